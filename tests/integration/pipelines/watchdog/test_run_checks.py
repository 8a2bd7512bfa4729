"""The checks of what has happened: stuck runs, executions that are gone, failures, arrivals, and what has to follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.bootstrap.watchdog import build_watchdog
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import (
    Exclusions,
    Monitoring,
    Period,
    Pipeline,
    PostRun,
    Readiness,
    RetryPolicy,
    Rule,
    Schedule,
    SensorTrigger,
    Sla,
    Trait,
    WatchdogSpec,
)
from headgate.pipelines.enums import Cause, ExpectationKind, FailureCategory, JobEvent, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.locks import Lock, evaluation_key
from headgate.pipelines.runs.rerun_rows import RerunStatus
from headgate.pipelines.runs.rows import Directive, Order, Run, RunLog, Slot
from headgate.pipelines.watchdog.followups import Followup, FollowupKind
from headgate.pipelines.watchdog.liveness_check import LivenessFinding, RunLiveness, decide_liveness
from headgate.pipelines.watchdog.run_checks import (
    ArrivalFacts,
    FailureFacts,
    RecoveryStep,
    decide_arrival,
    decide_failure,
)
from headgate.pipelines.watchdog.watchdog import Watchdog
from headgate.store.catalogue.tables import PIPELINES
from tests.integration.pipelines.watchdog_rig import SLOT, WatchRig, gold
from tests.pipeline_rig import COMMAND, DATE, pipeline, slot_of, waiting_pipeline

MINUTE_MS = 60_000
NOW_MS = 1_772_000_000_000
STREAM = slot_of()
RELATIVE = ExpectationKind.RELATIVE_SLA
POST_RUN = ExpectationKind.POST_RUN_SENSOR
TRIGGER = ExpectationKind.TRIGGER_DEADLINE
NO_RETRY = RetryPolicy(attempts=1)


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    with WatchRig() as opened:
        yield opened


# Decided from facts alone: pursuits.


def a_run(status: RunStatus, minutes_ago: float, **more: Any) -> Run:
    at_ms = NOW_MS - round(minutes_ago * MINUTE_MS)
    return Run(
        **SLOT._asdict(),
        run_id="run_1",
        status=status,
        version=1,
        attempt=1,
        cause=Cause.CRON,
        created_at_ms=at_ms,
        updated_at_ms=at_ms,
        execution="exec",
        **more,
    )


def a_log(run: Run, **more: Any) -> RunLog:
    return RunLog(
        **SLOT._asdict(),
        status=run.status,
        version=1,
        created_at_ms=run.created_at_ms,
        updated_at_ms=run.updated_at_ms,
        attempts=1,
        run_id=run.run_id,
        execution=run.execution,
        **more,
    )


def a_lock(minutes_ago: float) -> Lock:
    at_ms = NOW_MS - round(minutes_ago * MINUTE_MS)
    return Lock(key="k", owner="exec", token="t", version=1, acquired_at_ms=at_ms, expires_at=at_ms // 1000 + 9_999)


def decided(run: Run | None, *, definition: Pipeline | None = None, **more: Any) -> LivenessFinding:
    given: dict[str, Any] = {"log": None if run is None else a_log(run), "lock": None, "is_open": True, **more}
    return decide_liveness(RunLiveness(run=run, **given), definition or gold(), NOW_MS).finding


LONG = replace(COMMAND, poll_window=Seconds(7_200))
HALF_A_DAY = replace(COMMAND, config={"timeout": "12h"})


@pytest.mark.parametrize(
    ("run", "definition", "finding"),
    [
        (a_run(RunStatus.PENDING, 29), None, LivenessFinding.FINE),
        (a_run(RunStatus.PENDING, 30), None, LivenessFinding.STUCK),
        (a_run(RunStatus.TRIGGERING, 31), None, LivenessFinding.STUCK),
        # A job is asked after for as long as its window says.
        (a_run(RunStatus.RUNNING, 31), None, LivenessFinding.FINE),
        (a_run(RunStatus.RUNNING, 61), None, LivenessFinding.FINE),
        (a_run(RunStatus.RUNNING, 68), None, LivenessFinding.STUCK),
        (a_run(RunStatus.RUNNING, 66), gold(trigger=LONG), LivenessFinding.FINE),
        # Its own time-out counts, though its window is the usual hour.
        (
            a_run(RunStatus.RUNNING, 700),
            gold(trigger=replace(COMMAND, config={"timeout": "12h"})),
            LivenessFinding.FINE,
        ),
        # Evaluated every hour: half an hour without is nothing.
        (a_run(RunStatus.PENDING, 90), gold(readiness=Readiness(interval=Seconds(3_600))), LivenessFinding.FINE),
        (a_run(RunStatus.COMPLETED, 500), None, LivenessFinding.OVER),
        (a_run(RunStatus.FAILED, 500), None, LivenessFinding.OVER),
        (a_run(RunStatus.CANCELLED, 500), None, LivenessFinding.OVER),
        (None, None, LivenessFinding.OVER),
    ],
)
def test_decide_liveness__status_and_age__is_stuck_only_beyond_what_its_definition_allows(
    run: Run | None, definition: Pipeline | None, finding: LivenessFinding
) -> None:
    assert decided(run, definition=definition) is finding


def test_decide_liveness__pipeline_with_its_own_threshold__is_stuck_by_that() -> None:
    patient = gold(watchdog=WatchdogSpec(stuck=Seconds(7_200)))
    strict = gold(watchdog=WatchdogSpec(stuck=Seconds(60)), readiness=Readiness(interval=Seconds(10)))

    assert decided(a_run(RunStatus.TRIGGERING, 31), definition=patient) is LivenessFinding.FINE
    assert decided(a_run(RunStatus.TRIGGERING, 121), definition=patient) is LivenessFinding.STUCK
    assert decided(a_run(RunStatus.TRIGGERING, 2), definition=strict) is LivenessFinding.STUCK


def test_decide_liveness__evaluated_a_moment_ago__is_alive_however_old() -> None:
    assert decided(a_run(RunStatus.PENDING, 300), evaluated_at_ms=NOW_MS - MINUTE_MS) is LivenessFinding.FINE


def test_decide_liveness__someone_holds_it__is_not_stuck() -> None:
    run = a_run(RunStatus.PENDING, 300)
    held = a_log(run, hold=Directive(Order.HOLD, "ana", "wait", NOW_MS))

    assert decided(run, log=held) is LivenessFinding.FINE


@pytest.mark.parametrize(
    ("minutes_left", "finding"),
    [
        (60, LivenessFinding.FINE),
        (0, LivenessFinding.FINE),
        (-4, LivenessFinding.FINE),
        (-6, LivenessFinding.MONITORED_TOO_LONG),
    ],
)
def test_decide_liveness__watched_after_its_success__is_not_stuck_within_its_window(
    minutes_left: int, finding: LivenessFinding
) -> None:
    # A healthy watch of two hours raised an alarm after 30 minutes.
    run = a_run(RunStatus.COMPLETED_MONITORING, 100, monitor_until_ms=NOW_MS + minutes_left * MINUTE_MS)

    assert decided(run) is finding


@pytest.mark.parametrize(
    ("run", "lock", "is_open", "finding"),
    [
        (a_run(RunStatus.RUNNING, 10), a_lock(12), False, LivenessFinding.GONE),
        # It may be ending just now.
        (a_run(RunStatus.RUNNING, 1), a_lock(12), False, LivenessFinding.FINE),
        # bug 17: a lock that no run came of.
        (None, a_lock(10), False, LivenessFinding.GONE),
        (None, a_lock(10), True, LivenessFinding.FINE),
        (a_run(RunStatus.COMPLETED, 10), a_lock(12), False, LivenessFinding.GONE),
        # The execution is not named.
        (a_run(RunStatus.PENDING, 10), None, None, LivenessFinding.FINE),
        (a_run(RunStatus.PENDING, 40), None, None, LivenessFinding.STUCK),
    ],
)
def test_decide_liveness__execution_is_gone__what_it_left_is_ended(
    run: Run | None, lock: Lock | None, is_open: bool | None, finding: LivenessFinding
) -> None:
    assert decided(run, lock=lock, is_open=is_open) is finding


# Decided from facts alone: failures.


def failure(minutes_ago: float = 60, definition: Pipeline | None = None, **changes: Any) -> FailureFacts:
    run = a_run(RunStatus.FAILED, minutes_ago)
    facts = {name: changes.pop(name) for name in ("is_open", "refusal", "excluded") if name in changes}
    log = replace(a_log(run), **{"ended_at_ms": run.updated_at_ms, "failures": 1, **changes})
    return FailureFacts(log=log, pipeline=definition or gold(), **{"is_open": False, **facts})


SLOW = gold(retry=RetryPolicy(attempts=3, backoff=Seconds(7_200), backoff_max=Seconds(7_200)))


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (failure(), RecoveryStep.START),
        (failure(category=FailureCategory.TIMEOUT), RecoveryStep.START),
        # Its own execution tries again.
        (failure(is_open=True), RecoveryStep.WAIT),
        (failure(4), RecoveryStep.WAIT),
        (failure(60, SLOW), RecoveryStep.WAIT),
        (failure(refusal="ana paused it"), RecoveryStep.WAIT),
        (failure(60 * 24 * 8, refusal="ana paused it"), RecoveryStep.DROP),
        (failure(category=FailureCategory.PERMANENT, permanent_failures=1), RecoveryStep.DROP),
        (failure(failures=3), RecoveryStep.DROP),
        # D8: data that never came is not made to come.
        (failure(event=JobEvent.VALIDATION_EXHAUSTED, category=FailureCategory.TIMEOUT), RecoveryStep.DROP),
        # D9: a poll window that closed is a failure like any other.
        (failure(event=JobEvent.JOB_POLL_EXHAUSTED, category=FailureCategory.TIMEOUT), RecoveryStep.START),
        (failure(excluded="a Sunday"), RecoveryStep.DROP),
        (failure(definition=gold(dry_run=True)), RecoveryStep.DROP),
        (failure(hold=Directive(Order.HOLD, "ana", "wait", NOW_MS)), RecoveryStep.DROP),
        # bug 19: what is over is not begun again, however long ago.
        (failure(status=RunStatus.COMPLETED), RecoveryStep.DROP),
        (failure(status=RunStatus.CANCELLED), RecoveryStep.DROP),
        (failure(status=RunStatus.RUNNING), RecoveryStep.DROP),
        # Closed before it began.
        (failure(attempts=0), RecoveryStep.DROP),
        (FailureFacts(log=None, pipeline=gold(), is_open=False), RecoveryStep.DROP),
    ],
)
def test_decide_failure__how_it_failed__is_begun_again_only_if_it_may_be(
    facts: FailureFacts, step: RecoveryStep
) -> None:
    since_ms = NOW_MS if facts.log is None else facts.log.updated_at_ms

    assert decide_failure(facts, since_ms, NOW_MS).step is step


# Decided from facts alone: arrivals.


def arrival(**changes: Any) -> ArrivalFacts:
    return ArrivalFacts(**{"log": None, "pipeline": gold(), "is_locked": False, "is_met": True, **changes})


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (arrival(), RecoveryStep.START),
        (arrival(is_locked=True), RecoveryStep.WAIT),
        (arrival(refusal="paused"), RecoveryStep.WAIT),
        (arrival(is_met=False), RecoveryStep.DROP),
        (arrival(excluded="a Sunday"), RecoveryStep.DROP),
        (arrival(pipeline=None), RecoveryStep.DROP),
        (arrival(pipeline=gold(dry_run=True)), RecoveryStep.DROP),
        (arrival(log=a_log(a_run(RunStatus.RUNNING, 1))), RecoveryStep.DROP),
        # bug 19.
        (arrival(log=a_log(a_run(RunStatus.COMPLETED, 5_000))), RecoveryStep.DROP),
        (arrival(log=a_log(a_run(RunStatus.FAILED, 5_000))), RecoveryStep.DROP),
    ],
)
def test_decide_arrival__how_the_period_stands__is_begun_only_if_no_one_has(
    facts: ArrivalFacts, step: RecoveryStep
) -> None:
    assert decide_arrival(facts, NOW_MS, NOW_MS).step is step


# Stuck runs and executions that are gone.


def test_pursuits__a_run_makes_no_progress__is_reported_once_and_again_for_another_state(rig: WatchRig) -> None:
    rig.define(gold())
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone()
    rig.watchdog = _with_open(rig)
    rig.watch(until="2026-03-03T11:00:00+00:00")
    response = rig.count(EventName.RUN_STUCK)
    rig.move(rig.stores.runs.get(run.run_id), RunStatus.TRIGGERING)
    rig.watch(until="2026-03-03T13:00:00+00:00")

    events = rig.events("gold", EventName.RUN_STUCK)
    assert response == 1
    assert [(event.detail["status"], event.detail["since"]) for event in events] == [
        ("PENDING", "2026-03-03T09:00:00.000Z"),
        ("TRIGGERING", "2026-03-03T11:00:00.000Z"),
    ]


def _with_open(rig: WatchRig) -> Watchdog:
    """Return a watchdog that takes every execution for one that is under way."""
    lifecycle = replace(rig.lifecycle, is_open=lambda _: True)
    return build_watchdog(rig.pipelines, lifecycle)


def test_pursuits__execution_is_gone__run_ends_lock_is_let_go_and_it_is_tried_again(rig: WatchRig) -> None:
    # bug 17, bug 22: neither held for hours, nor begun beside a run that goes on. D9: it is reported and retried.
    rig.define(gold())
    rig.set_clock("2026-03-03T09:00:30+00:00")
    rig.begin_alone(execution="gone")
    rig.watch(until="2026-03-03T09:35:00+00:00")
    ended = rig.runs(SLOT)[0]
    lock = rig.lock(SLOT)
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T09:55:00+00:00")

    assert (ended.status, ended.category, lock) == (RunStatus.FAILED, FailureCategory.TIMEOUT, None)
    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert [run.cause for run in rig.runs(SLOT)] == [Cause.CRON, Cause.RECOVERY]
    names = (EventName.SFN_TIMEOUT, EventName.WATCHDOG_RETRIGGER)
    assert rig.event_names("gold", *names) == list(names)


@pytest.mark.parametrize("lifetime_seconds", [4 * 3_600.0, 600.0], ids=["lock held", "lock expired"])
def test_pursuits__rerun_was_refused_by_the_lock_of_a_lost_execution__is_started(
    rig: WatchRig, lifetime_seconds: float
) -> None:
    rig.define(gold())
    rig.jobs.is_sync = True
    rig.advance_to("2026-03-03T09:01:00+00:00")
    assert rig.stores.locks.acquire(evaluation_key(SLOT), "gone", lifetime_seconds) is not None
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana", is_forced=True)
    rig.advance_to("2026-03-03T09:02:00+00:00")
    refused = rig.stores.reruns.get(rerun.rerun_id)
    rig.watch(until="2026-03-03T09:55:00+00:00")

    assert refused.status is RerunStatus.REQUESTED
    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.COMPLETED
    assert [run.cause for run in rig.runs(SLOT)] == [Cause.CRON, Cause.RERUN]
    assert (rig.lock(SLOT), len(rig.jobs.begun)) == (None, 2)


def test_pursuits__execution_is_gone_and_the_job_succeeded_meanwhile__the_run_is_completed(rig: WatchRig) -> None:
    # bug 28: it was never set to completed.
    rig.define(gold())
    rig.advance_to("2026-03-03T09:01:00+00:00")
    (execution,) = rig.executions()
    rig.env.service.asl.executions.stop(execution)
    rig.jobs.succeed()
    rig.watch(until="2026-03-03T09:45:00+00:00")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert len(rig.jobs.begun) == 1
    assert (rig.lock(SLOT), rig.count(EventName.WATCHDOG_RETRIGGER)) == (None, 0)


def test_pursuits__execution_is_gone_and_the_job_runs_on__it_is_ended_before_another_begins(rig: WatchRig) -> None:
    rig.define(gold())
    rig.advance_to("2026-03-03T09:01:00+00:00")
    (execution,) = rig.executions()
    rig.env.service.asl.executions.stop(execution)
    rig.watch(until="2026-03-03T09:50:00+00:00")

    assert rig.jobs.cancelled == rig.jobs.begun[:1]
    assert len(rig.jobs.begun) == 2
    assert rig.runs(SLOT)[0].reason.endswith("is gone")


def test_pursuits__a_lock_that_no_run_came_of__is_let_go(rig: WatchRig) -> None:
    # bug 17: the start failed, and nothing could begin for hours.
    rig.define(gold())
    rig.stores.locks.acquire(evaluation_key(SLOT), "never-started", 4 * 3_600.0)
    rig.watch(until="2026-03-03T08:35:00+00:00")

    assert rig.lock(SLOT) is None
    assert rig.count(EventName.SFN_TIMEOUT) == 1
    assert rig.watched() == set()


def test_pursuits__a_lock_taken_over_by_another__is_not_let_go_on_behalf_of_the_first(rig: WatchRig) -> None:
    # bug 18, bug 21: let go only by its holder, and never as two steps.
    rig.define(gold())
    rig.stores.locks.acquire(evaluation_key(SLOT), "gone", 60.0)
    rig.tick()
    rig.set_clock("2026-03-03T08:31:00+00:00")
    rig.stores.locks.acquire(evaluation_key(SLOT), "alive", 4 * 3_600.0)
    rig.watchdog = _with_open(rig)
    rig.watchdog.tick()

    lock = rig.lock(SLOT)
    assert lock is not None
    assert lock.owner == "alive"


def test_pursuits__validation_exhausted__ends_the_period_and_its_lock(rig: WatchRig) -> None:
    # D8: it was left running, later data was ignored, and hours later it was reported as timed out.
    rig.define(waiting_pipeline(retry=NO_RETRY))
    rig.push("silver", "landed", date=DATE)
    rig.watch(until="2026-03-03T14:00:00+00:00")

    assert rig.status(STREAM) is RunStatus.FAILED
    assert (rig.lock(STREAM), rig.count(EventName.SFN_TIMEOUT, "silver")) == (None, 0)
    assert len(rig.runs(STREAM)) == 1


def test_pursuits__monitoring_goes_on_too_long__is_ended(rig: WatchRig) -> None:
    monitored = PostRun(monitoring=Monitoring(enabled=True, duration=Seconds(3_600)))
    rig.define(gold(readiness=Readiness(traits={"fresh": Trait(evaluator="push")}), post_run=monitored))
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone(execution="gone")
    rig.move(
        run,
        RunStatus.TRIGGERING,
        RunStatus.RUNNING,
        RunStatus.COMPLETED_MONITORING,
        monitor_until_ms=rig.now_ms + 3_600_000,
    )
    rig.watch(until="2026-03-03T10:00:00+00:00")
    within = rig.status(SLOT)
    rig.watch(until="2026-03-03T10:40:00+00:00")

    assert (within, rig.status(SLOT)) == (RunStatus.COMPLETED_MONITORING, RunStatus.COMPLETED)
    assert rig.count(EventName.RUN_STUCK) == 0
    assert rig.count(EventName.MONITORING_COMPLETED) == 1


def test_pursuits__a_run_that_goes_well__is_looked_after_and_forgotten(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watch(until="2026-03-03T09:05:00+00:00")
    during = rig.watched()
    rig.jobs.succeed()
    rig.watch(until="2026-03-03T10:00:00+00:00")

    assert (during, rig.watched()) == ({FollowupKind.LIVENESS}, set())
    assert not set(rig.event_names("gold")) & {EventName.SFN_TIMEOUT, EventName.RUN_STUCK, EventName.WATCHDOG_RETRIGGER}


# Failed runs.


def test_failures__its_own_retry_never_began__is_begun_again_and_reported_once(rig: WatchRig) -> None:
    rig.define(gold())
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone(execution="gone")
    rig.stores.locks.release_owned(evaluation_key(SLOT), "gone")
    rig.move(run, RunStatus.FAILED, category=FailureCategory.TRANSIENT, event=JobEvent.FAIL)
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T09:30:00+00:00")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.count(EventName.WATCHDOG_RETRIGGER) == 1
    assert rig.watched() == set()


def test_failures__attempts_are_used_up__stays_failed(rig: WatchRig) -> None:
    rig.define(gold(retry=RetryPolicy(attempts=2, backoff=Seconds(60))))
    rig.jobs.fail()
    rig.watch(until="2026-03-03T12:00:00+00:00")

    assert rig.status(SLOT) is RunStatus.FAILED
    assert len(rig.runs(SLOT)) == 2
    assert rig.count(EventName.WATCHDOG_RETRIGGER) == 0


def test_failures__watchdog_dies_between_telling_and_beginning__begins_and_does_not_report_twice(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.define(gold())
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone(execution="gone")
    rig.stores.locks.release_owned(evaluation_key(SLOT), "gone")
    rig.move(run, RunStatus.FAILED, category=FailureCategory.TRANSIENT)
    rig.tick()
    rig.set_clock("2026-03-03T09:15:00+00:00")

    def dies(*_: object, **__: object) -> bool:
        raise KeyError("dies")

    with monkeypatch.context() as patch:
        patch.setattr(rig.pipelines.starter, "start_run", dies)
        assert "failed-runs" in rig.watchdog.tick().failed
    rig.restart()
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T09:30:00+00:00")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.count(EventName.WATCHDOG_RETRIGGER) == 1


def test_failures__years_after_they_were_done__nothing_is_begun_again(rig: WatchRig) -> None:
    # bug 19: rows of what was done ran out after a day, and everything was begun again.
    rig.define(pipeline())
    rig.jobs.is_sync = True
    rig.push("silver", "landed", date=DATE)
    rig.tick()
    begun = list(rig.jobs.begun)
    for date in ("2026-03-05", "2026-06-20", "2028-03-03"):
        rig.set_clock(f"{date}T08:00:00+00:00")
        rig.store.sweep()
        rig.restart()
        assert not rig.watchdog.tick().failed
        rig.pump()

    assert rig.jobs.begun == begun
    assert rig.status(STREAM) is RunStatus.COMPLETED


# Sensors that began nothing.


def lose_the_stream(rig: WatchRig) -> None:
    """Keep from the router what has changed."""
    while rig.read_stream():
        pass


def test_arrivals__is_unknown_the_sensor__the_period_is_begun_once(rig: WatchRig) -> None:
    rig.define(pipeline())
    rig.jobs.is_sync = True
    for date in ("2026-03-02", DATE):
        rig.pipelines.sensors.push("silver", "landed", {"date": date})
    lose_the_stream(rig)
    rig.tick()
    early = rig.executions()
    rig.watch(until="2026-03-03T08:30:00+00:00")

    assert early == []
    assert [rig.status(slot_of(date=date)) for date in ("2026-03-02", DATE)] == [RunStatus.COMPLETED] * 2
    assert rig.count(EventName.TRIGGER_RECOVERED, "silver") == 2
    assert {run.cause for run in rig.runs(STREAM)} == {Cause.RECOVERY}
    assert rig.run(STREAM).sensor_arrival_at_ms is not None


def test_arrivals__seen_in_time__nothing_is_recovered(rig: WatchRig) -> None:
    rig.define(pipeline())
    rig.jobs.is_sync = True
    rig.push("silver", "landed", date=DATE)
    rig.watch(until="2026-03-03T09:00:00+00:00")

    assert rig.count(EventName.TRIGGER_RECOVERED, "silver") == 0
    assert len(rig.jobs.begun) == 1


@pytest.mark.parametrize(
    ("sensor", "data"),
    [
        (SensorTrigger(key="landed", check="gte", field="count", value=10), {"count": 9}),
        # No part of it: a prefix counts only up to a delimiter.
        (SensorTrigger(key="land"), {"count": 10}),
        # Too late to begin by itself.
        (SensorTrigger(key="landed", deadline="2h"), {"count": 10, "date": "2026-03-01"}),
    ],
)
def test_arrivals__sensor_that_begins_nothing__is_not_recovered(
    rig: WatchRig, sensor: SensorTrigger, data: dict[str, Any]
) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=sensor),)))
    rig.pipelines.sensors.push("silver", "landed", data)
    lose_the_stream(rig)
    rig.watch(until="2026-03-03T08:20:00+00:00")

    assert rig.executions() == []


def test_arrivals__sensors_that_lay_there_before_the_definition__begin_nothing(rig: WatchRig) -> None:
    # bug 73, bug 62: what is history began runs that could never end.
    for day in range(1, 4):
        rig.pipelines.sensors.push("silver", "landed", {"date": f"2026-02-0{day}"})
    rig.set_clock("2026-03-03T08:10:00+00:00")
    rig.define(pipeline())
    lose_the_stream(rig)
    rig.watch(until="2026-03-03T08:40:00+00:00")

    assert rig.executions() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"dry_run": True},
        {"schedules": (Schedule(sensor=SensorTrigger(key="landed"), exclude=Exclusions(dates=(DATE,))),)},
    ],
)
def test_arrivals__dry_run_or_excluded__nothing_is_begun(rig: WatchRig, fields: dict[str, Any]) -> None:
    rig.define(pipeline(**fields))
    rig.pipelines.sensors.push("silver", "landed", {"date": DATE})
    lose_the_stream(rig)
    rig.watch(until="2026-03-03T08:40:00+00:00")

    assert (rig.executions(), rig.jobs.begun) == ([], [])
    assert rig.count(EventName.TRIGGER_RECOVERED, "silver") == 0


def test_arrivals__without_a_period_just_before_midnight__is_for_the_day_it_came_on(rig: WatchRig) -> None:
    # The date is that of the record, not of a reader after midnight.
    rig.define(pipeline())
    rig.jobs.is_sync = True
    rig.set_clock("2026-03-03T23:58:00+00:00")
    rig.pipelines.sensors.push("silver", "landed", {"count": 1})
    lose_the_stream(rig)
    rig.watch(until="2026-03-04T00:20:00+00:00")

    assert rig.status(STREAM) is RunStatus.COMPLETED


# Trigger deadlines.

BY_NOON = Schedule(sensor=SensorTrigger(key="landed", deadline="12:00", check="equals", field="ok", value=True))


def test_trigger_deadline__the_sensor_never_came__the_period_is_closed_and_only_a_person_begins_it(
    rig: WatchRig,
) -> None:
    rig.define(pipeline(schedules=(BY_NOON,)))
    rig.watch(until="2026-03-04T11:55:00+00:00")
    early = rig.verdict(STREAM, TRIGGER)
    rig.watch(until="2026-03-04T12:10:00+00:00")
    rig.push("silver", "landed", date=DATE, ok=True)
    rig.watch(until="2026-03-04T12:30:00+00:00")

    log = rig.log(STREAM)
    assert (early, rig.verdict(STREAM, TRIGGER)) == ("none", "MISSED")
    assert (log.status, log.attempts, rig.jobs.begun) == (RunStatus.FAILED, 0, [])
    assert rig.count(EventName.SENSOR_DEADLINE_EXPIRED, "silver") == 1

    rig.jobs.is_sync = True
    rig.pipelines.starter.start_run(STREAM, Cause.MANUAL, by="ana")
    rig.pump()
    assert rig.status(STREAM) is RunStatus.COMPLETED


def test_trigger_deadline__begun_between_the_look_and_the_close__is_left_alone(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bug 20.
    rig.define(pipeline(schedules=(BY_NOON,)))
    rig.watchdog.tick()
    rig.set_clock("2026-03-04T12:01:00+00:00")
    close = rig.stores.runs.close

    def begun_first(slot: Slot, *arguments: Any, **more: Any) -> Any:
        rig.begin_alone(slot, execution="just-now")
        return close(slot, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(rig.stores.runs, "close", begun_first)
        rig.watchdog.tick()

    assert (rig.log(STREAM).status, rig.log(STREAM).attempts) == (RunStatus.PENDING, 1)
    assert rig.verdict(STREAM, TRIGGER) == "MISSED"


def test_trigger_deadline__hour_of_the_schedules_zone__closes_that_hour(rig: WatchRig) -> None:
    # The zone of the SLA was used for it.
    hourly = Schedule(sensor=SensorTrigger(key="landed", deadline=":30"), timezone="Asia/Kolkata")
    rig.define(pipeline(schedules=(hourly,), period=Period.HOURLY, sla=Sla(timezone="America/New_York")))
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T10:05:00+00:00")
    rig.watchdog.tick()

    # The hour 13 of Kolkata is over at 08:30 UTC, and closed half an hour later.
    assert [date for _, date, _ in rig.missed()] == ["2026-03-03T13", "2026-03-03T14"]


# What has to follow within a time.


def test_relative_sla__data_came_and_nothing_was_done__is_warned_of_and_breached(rig: WatchRig) -> None:
    # D10: never warned of, and of hours never looked at.
    rig.define(pipeline(period=Period.HOURLY, sla=Sla(max_duration=Seconds(3_600))))
    slot = slot_of(date="2026-03-03T07")
    rig.stores.controls.pause("silver", by="ana", reason="later")
    rig.push("silver", "landed", date=DATE, hour="07")
    rig.stores.controls.resume("silver", by="ana", reason="now")
    rig.watch(until="2026-03-03T08:44:00+00:00")
    early = rig.event_names("silver", EventName.RELATIVE_SLA_WARNING)
    rig.watch(until="2026-03-03T09:10:00+00:00")

    names = (EventName.RELATIVE_SLA_WARNING, EventName.RELATIVE_SLA_BREACH)
    assert early == []
    assert rig.event_names("silver", *names) == list(names)
    assert rig.verdict(slot, RELATIVE) == "MISSED"
    assert rig.events("silver", names[1])[0].detail["deadline"] == "2026-03-03T09:00:00.000Z"


def test_relative_sla__done_in_time__is_met_once(rig: WatchRig) -> None:
    rig.define(pipeline(sla=Sla(max_duration=Seconds(3_600))))
    rig.jobs.is_sync = True
    rig.push("silver", "landed", date=DATE)
    rig.watch(until="2026-03-03T10:00:00+00:00")

    assert rig.verdict(STREAM, RELATIVE) == "MET"
    assert rig.event_names("silver", EventName.SLA_MET, EventName.RELATIVE_SLA_BREACH) == [EventName.SLA_MET]


def test_relative_sla__the_sensor_comes_again__counts_from_the_first(rig: WatchRig) -> None:
    rig.define(waiting_pipeline(sla=Sla(max_duration=Seconds(3_600))))
    rig.push("silver", "landed", date=DATE, part=1)
    rig.watch(until="2026-03-03T08:40:00+00:00")
    rig.push("silver", "landed", date=DATE, part=2)
    rig.watch(until="2026-03-03T09:05:00+00:00")

    assert rig.verdict(STREAM, RELATIVE) == "MISSED"


@pytest.mark.parametrize(("second_ms", "kept_ms"), [(900, 900), (1_000, 1_000), (1_100, 1_000)])
def test_watches__noted_again__what_happened_first_counts(rig: WatchRig, second_ms: int, kept_ms: int) -> None:
    for since_ms in (1_000, second_ms):
        watch = Followup(**SLOT._asdict(), kind=FollowupKind.RELATIVE_SLA, since_ms=since_ms, due_at_ms=since_ms + 5)
        rig.watches.record_all([watch])

    found = rig.watches.find(SLOT, FollowupKind.RELATIVE_SLA)
    assert found is not None
    assert (found.since_ms, found.due_at_ms) == (kept_ms, kept_ms + 5)


POST = PostRun(rules=(Rule(key="audit"),), sensor_timeout=Seconds(7_200))


@pytest.mark.parametrize("period", [Period.DAILY, Period.HOURLY])
@pytest.mark.parametrize(
    ("at", "verdict"), [(None, "MISSED"), ("08:30", "MET"), ("10:30", "MISSED")], ids=["never", "in time", "late"]
)
def test_post_run_sensor__after_the_success__has_to_come_in_its_time(
    rig: WatchRig, period: Period, at: str | None, verdict: str
) -> None:
    date = DATE if period is Period.DAILY else f"{DATE}T07"
    slot = slot_of(date=date)
    rig.define(pipeline(post_run=POST, period=period))
    rig.jobs.is_sync = True
    rig.push("silver", "audit", date, ok=True)
    rig.env.clock.advance(1)
    rig.push("silver", "landed", date)
    if at is not None:
        rig.watch(until=f"{DATE}T{at}:00+00:00")
        rig.push("silver", "audit", date, ok=True)
    rig.watch(until=f"{DATE}T12:00:00+00:00")

    assert rig.status(slot) is RunStatus.COMPLETED
    assert rig.verdict(slot, POST_RUN) == verdict
    assert rig.count(EventName.POST_RUN_SENSOR_MISSING, "silver") == (verdict == "MISSED")


def test_post_run_sensor__none_has_to_come__nothing_is_expected(rig: WatchRig) -> None:
    rig.define(pipeline(post_run=PostRun(rules=POST.rules, sensor_timeout=Seconds(0))))
    rig.jobs.is_sync = True
    rig.push("silver", "landed", DATE)
    rig.watch(until=f"{DATE}T12:00:00+00:00")

    assert rig.status(slot_of()) is RunStatus.COMPLETED
    assert rig.verdict(slot_of(), POST_RUN) == "none"


def test_post_run_sensor__came_in_time_and_again_while_the_watchdog_was_away__is_met(rig: WatchRig) -> None:
    rig.define(pipeline(post_run=POST))
    rig.jobs.is_sync = True
    rig.push("silver", "landed", DATE)
    for clock in ("09:00", "11:00"):
        rig.set_clock(f"{DATE}T{clock}:00+00:00")
        rig.push("silver", "audit", DATE, ok=True)
    rig.watchdog.tick()

    assert rig.verdict(STREAM, POST_RUN) == "MET"


def test_feed__reported_everything_twice__nothing_is_reported_or_begun_twice(rig: WatchRig) -> None:
    rig.define(pipeline(sla=Sla(max_duration=Seconds(3_600)), post_run=POST), gold())
    rig.jobs.is_sync = True
    rig.pipelines.sensors.push("silver", "landed", {"date": DATE})
    lose_the_stream(rig)
    rig.watch(until="2026-03-03T12:00:00+00:00")
    before = (rig.event_names("silver"), rig.event_names("gold"), list(rig.jobs.begun))
    rig.store.checkpoint(PIPELINES, "watchdog", "0")
    for _ in range(3):
        rig.tick()
    rig.watch(until="2026-03-03T13:30:00+00:00")

    assert (rig.event_names("silver"), rig.event_names("gold"), rig.jobs.begun) == before


def test_feed__sensor_of_a_pipeline_that_begins_otherwise__is_no_arrival(rig: WatchRig) -> None:
    rig.define(gold())
    rig.push("gold", "landed", date=DATE)
    rig.tick()

    assert rig.watched() == set()
