"""The whole lifecycle in virtual time: from a sensor to a job that has ended, and every way in which that can go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import (
    Budgets,
    Monitoring,
    PostRun,
    Readiness,
    RetryPolicy,
    Schedule,
    SensorTrigger,
    Sla,
    Trait,
    TriggerSpec,
)
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rerun_rows import RerunStatus
from headgate.pipelines.runs.rows import Slot
from headgate.triggers.contract import TriggerFailedError
from tests.pipeline_rig import COMMAND, DATE, LANDED, ORDERS_THERE, Rig, pipeline, slot_of, waiting_pipeline

SLOT = slot_of()
MONITORED = PostRun(monitoring=Monitoring(enabled=True, duration=Seconds(600), interval=Seconds(60)))
FRESH = Readiness(traits={"fresh": Trait(evaluator="push")})


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        yield opened


def land(rig: Rig, **data: object) -> None:
    rig.push("silver", "landed", date=DATE, **data)


def the_execution(rig: Rig) -> str:
    (execution_id,) = rig.executions()
    return execution_id


# The way without trouble.


def test_lifecycle__ready_at_once__job_runs_and_the_period_is_completed(rig: Rig) -> None:
    rig.define(pipeline())

    land(rig)
    begun = rig.status(SLOT)
    rig.jobs.succeed()
    rig.advance("30s")

    assert begun is RunStatus.RUNNING
    # bug 28: the period itself says that it is done.
    assert rig.log(SLOT).status is RunStatus.COMPLETED
    assert rig.run(SLOT).status is RunStatus.COMPLETED
    assert [each.status for each in rig.run(SLOT).transitions] == [
        RunStatus.PENDING,
        RunStatus.TRIGGERING,
        RunStatus.RUNNING,
        RunStatus.COMPLETED,
    ]
    assert rig.run(SLOT).duration_ms == 30_000
    assert rig.lock(SLOT) is None
    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED


def test_lifecycle__job_done__reported_once(rig: Rig) -> None:
    # bug 35
    rig.define(pipeline())
    rig.jobs.succeed()

    land(rig)
    rig.advance("10m")
    rig.receive_again(rig.all_changes())
    rig.advance("10m")

    for name in (EventName.JOB_TRIGGERED, EventName.JOB_COMPLETED, EventName.PIPELINE_COMPLETED):
        assert len(rig.event_names("silver", name)) == 1, name


def test_lifecycle__replayed_before_every_turn__goes_the_same_way() -> None:
    with Rig(replay_always=True) as rig:
        rig.define(waiting_pipeline())
        land(rig)
        rig.push("silver", "orders", count=12)
        rig.jobs.succeed()
        rig.advance("30s")

        assert rig.status(SLOT) is RunStatus.COMPLETED


def test_lifecycle__job_that_is_over_when_it_is_started__completes_without_a_poll(rig: Rig) -> None:
    # bug 32: no event, no poll, and nothing is missing in the document of the machine.
    rig.define(pipeline())
    rig.jobs.is_sync = True

    land(rig)

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.jobs.polls == []


def test_lifecycle__job_id_of_the_other_side__is_kept_and_asked_after_with(rig: Rig) -> None:
    # D2: whatever a kind of trigger calls its id, it is polled with what its start answered.
    rig.define(pipeline())

    land(rig)
    rig.advance("2m")

    run = rig.run(SLOT)
    assert run.job_id == f"job-{run.run_id}"
    assert run.job["metadata"] == {"external_id": f"job-{run.run_id}", "cluster": "c1"}
    assert rig.jobs.polls[:2] == [run.run_id, run.run_id]


def test_lifecycle__no_one_writes_how_the_job_is__it_is_asked(rig: Rig) -> None:
    # bug 30
    rig.define(pipeline())
    land(rig)

    rig.advance("5m")
    still = rig.status(SLOT)
    rig.jobs.succeed()
    rig.advance("1m")

    assert still is RunStatus.RUNNING
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_lifecycle__job_reports_its_end_itself__is_believed_at_once(rig: Rig) -> None:
    rig.define(pipeline())
    land(rig)

    rig.pipelines.jobs.complete(rig.run(SLOT).run_id, is_success=True)
    rig.pump()

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.jobs.polls == []
    assert rig.event_names("silver", EventName.CALLBACK_RECEIVED)


def test_lifecycle__job_reports_its_end_twice_and_otherwise__the_first_word_counts(rig: Rig) -> None:
    rig.define(pipeline())
    land(rig)
    run_id = rig.run(SLOT).run_id

    rig.pipelines.jobs.complete(run_id, is_success=False, reason="disk full", category=FailureCategory.PERMANENT)
    rig.pipelines.jobs.complete(run_id, is_success=True)
    rig.pump()

    assert rig.run(SLOT).status is RunStatus.FAILED
    assert rig.run(SLOT).reason == "disk full"


def test_lifecycle__job_reports_its_end_before_its_start_is_answered__is_not_forgotten(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.meanwhile = lambda order: rig.pipelines.jobs.complete(order.run_id, is_success=True)

    land(rig)
    rig.advance("1m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert len(rig.jobs.begun) == 1


# Waiting for readiness.


def test_lifecycle__not_ready__waits_and_goes_on_as_soon_as_it_is(rig: Rig) -> None:
    # bug 37: not ready is not the end.
    rig.define(waiting_pipeline())

    land(rig)
    rig.advance("17m")
    waiting = rig.status(SLOT)
    rig.push("silver", "orders", count=10)

    assert waiting is RunStatus.PENDING
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_lifecycle__sensor_that_changes_often_while_it_waits__one_attempt(rig: Rig) -> None:
    # bug 39
    rig.define(waiting_pipeline())
    land(rig)

    for count in range(1, 10):
        rig.push("silver", "orders", count=count)
        rig.advance("1m")
    rig.push("silver", "orders", count=10)

    assert rig.log(SLOT).attempts == 1
    assert len(rig.jobs.begun) == 1


def test_lifecycle__window_closes__fails_and_can_begin_again_with_news(rig: Rig) -> None:
    # bug 36 and D8: not a success, not left open, and later data is not lost.
    rig.define(waiting_pipeline(readiness=Readiness(rules=(ORDERS_THERE,), window=Seconds(600))))
    land(rig)

    rig.advance("10m")
    run = rig.run(SLOT)
    free = rig.lock(SLOT) is None
    rig.push("silver", "orders", count=10)
    land(rig, again=1)

    assert run.status is RunStatus.FAILED
    assert run.event is JobEvent.VALIDATION_EXHAUSTED
    assert run.category is FailureCategory.TIMEOUT
    assert "orders" in run.reason
    assert free
    assert rig.event_names("silver", EventName.VALIDATION_EXHAUSTED)
    assert rig.status(SLOT) is RunStatus.RUNNING
    assert rig.log(SLOT).attempts == 2


def test_lifecycle__window_closes__reported_as_a_failure_of_the_pipeline(rig: Rig) -> None:
    rig.define(waiting_pipeline(readiness=Readiness(rules=(ORDERS_THERE,), window=Seconds(600))))
    land(rig)

    rig.advance("10m")

    assert rig.event_names("silver", EventName.PIPELINE_FAILED) == ["PIPELINE_FAILED"]
    assert [event.detail["after"] for event in rig.events("silver", EventName.RUN_STATE_CHANGED)][-1] == "FAILED"


def test_lifecycle__hard_limit_on_waiting__ends_the_attempt_before_the_window_does(rig: Rig) -> None:
    limited = Readiness(rules=(ORDERS_THERE,), window=Seconds(7_200), timeout=Seconds(900))
    rig.define(waiting_pipeline(readiness=limited, retry=RetryPolicy(attempts=1)))
    land(rig)

    rig.advance("20m")

    assert rig.status(SLOT) is RunStatus.FAILED
    assert rig.run(SLOT).event is JobEvent.VALIDATION_EXHAUSTED
    assert rig.event_names("silver", EventName.VALIDATION_TIMEOUT)


def test_lifecycle__trait_that_cannot_be_found_out__fails_and_is_reported(rig: Rig) -> None:
    # An error of an evaluator is not waited on in silence.
    rig.define(pipeline(readiness=Readiness(traits={"fresh": Trait(evaluator="http://127.0.0.1/none")})))

    land(rig)
    rig.advance("1h")

    assert rig.status(SLOT) is RunStatus.FAILED
    assert rig.event_names("silver", EventName.EVALUATOR_FAILED, EventName.VALIDATION_EXHAUSTED)
    assert rig.jobs.orders == []


def test_lifecycle__held_and_then_approved__starts(rig: Rig) -> None:
    rig.define(pipeline())
    rig.stores.directives.hold(SLOT, by="ana", reason="audit")
    land(rig)
    rig.advance("10m")
    held = list(rig.jobs.orders)

    rig.stores.directives.approve(SLOT, by="ana", reason="fine")
    land(rig, again=1)
    rig.advance("10m")

    assert held == []
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_lifecycle__forced__starts_though_it_is_not_ready(rig: Rig) -> None:
    rig.define(waiting_pipeline())
    land(rig)

    rig.stores.directives.force(SLOT, by="ana", reason="the rest is not coming")
    rig.advance("6m")

    assert rig.status(SLOT) is RunStatus.RUNNING


# Jobs that fail.


def test_lifecycle__job_fails__tried_again_after_a_pause_that_grows(rig: Rig) -> None:
    rig.define(pipeline(retry=RetryPolicy(attempts=3, backoff=Seconds(60), multiplier=2.0)))
    rig.jobs.fail()

    land(rig)
    rig.advance("30m")

    runs = rig.runs(SLOT)
    assert [run.status for run in runs] == [RunStatus.FAILED] * 3
    pauses = [after.created_at_ms - (before.ended_at_ms or 0) for before, after in pairwise(runs)]
    assert pauses == [60_000, 120_000]
    assert len(rig.event_names("silver", EventName.RETRY_SCHEDULED)) == 2
    assert len(rig.event_names("silver", EventName.RETRY_EXHAUSTED)) == 1
    assert len(rig.event_names("silver", EventName.PIPELINE_FAILED)) == 1
    assert rig.lock(SLOT) is None


def test_lifecycle__second_attempt__is_asked_after_by_itself(rig: Rig) -> None:
    # D4: what the first attempt came to says nothing about the second.
    rig.define(pipeline())
    rig.jobs.fail()
    land(rig)
    rig.advance("30s")
    first = rig.run(SLOT).run_id

    rig.jobs.keep_running()
    rig.advance("5m")
    second = rig.run(SLOT)

    assert second.run_id != first
    assert second.status is RunStatus.RUNNING
    assert rig.jobs.polls.count(second.run_id) > 2
    rig.jobs.succeed(second.run_id)
    rig.advance("2m")
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_lifecycle__first_attempt_ends_while_the_second_runs__changes_nothing_of_it(rig: Rig) -> None:
    # D5: every write of an attempt is compared with that attempt, and with the hold on the lock.
    rig.define(pipeline())
    rig.jobs.fail()
    land(rig)
    rig.advance("30s")
    first = rig.run(SLOT)
    rig.jobs.keep_running()
    rig.advance("2m")

    answer = rig.call(SLOT, action="logResult", runId=first.run_id, lockToken=first.lock_token, status="FAILED")

    assert answer["retryable"] is False
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_lifecycle__failure_that_trying_again_does_not_help__is_not_tried_again(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.fail(category=FailureCategory.PERMANENT, reason="syntax error")

    land(rig)
    rig.advance("1h")

    assert [run.reason for run in rig.runs(SLOT)] == ["syntax error"]
    assert rig.event_names("silver", EventName.PIPELINE_FAILED) == ["PIPELINE_FAILED"]


def test_lifecycle__job_that_hangs__is_cancelled_when_the_window_closes(rig: Rig) -> None:
    # bug 33
    hangs = TriggerSpec(type="command", config={"command": ["x"]}, poll_window=Seconds(900))
    rig.define(pipeline(trigger=hangs, retry=RetryPolicy(attempts=1)))

    land(rig)
    rig.advance("20m")

    run = rig.run(SLOT)
    assert (run.status, run.event) == (RunStatus.FAILED, JobEvent.JOB_POLL_EXHAUSTED)
    assert set(rig.jobs.cancelled) == {run.run_id}
    assert rig.event_names("silver", EventName.JOB_POLL_EXHAUSTED) == ["JOB_POLL_EXHAUSTED"]
    assert run.ended_at_ms is not None
    assert run.started_at_ms is not None
    assert 900_000 <= run.ended_at_ms - run.started_at_ms <= 905_000


def test_lifecycle__error_in_asking_after_a_job__is_not_a_failure_of_the_job(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.poll_errors.extend(TriggerFailedError("503", FailureCategory.TRANSIENT) for _ in range(3))
    land(rig)

    rig.advance("2m")
    still = rig.status(SLOT)
    rig.jobs.succeed()
    rig.advance("2m")

    assert still is RunStatus.RUNNING
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_lifecycle__job_log__has_one_end_for_each_attempt(rig: Rig) -> None:
    rig.define(pipeline(retry=RetryPolicy(attempts=2, backoff=Seconds(60))))
    rig.jobs.fail()
    land(rig)
    rig.advance("30s")
    rig.jobs.succeed()
    rig.advance("5m")

    entries = sorted(rig.stores.job_log.ls(SLOT).entries, key=lambda entry: entry.at_ms)
    assert [(entry.event, entry.attempt) for entry in entries] == [(JobEvent.FAIL, 1), (JobEvent.SUCCESS, 2)]


# Jobs that do not start.


def test_lifecycle__start_that_fails_for_a_while__is_tried_again_after_30_60_and_120_seconds(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.start_errors.extend(TriggerFailedError("busy", FailureCategory.TRANSIENT) for _ in range(3))

    land(rig)
    tries = [len(rig.jobs.orders)]
    for duration in ("30s", "60s", "120s"):
        rig.advance(duration)
        tries.append(len(rig.jobs.orders))

    assert tries == [1, 2, 3, 4]
    # bug 31: what the tries left behind is not taken for the state of the job.
    assert rig.status(SLOT) is RunStatus.RUNNING
    assert rig.log(SLOT).attempts == 1
    assert {order.key for order in rig.jobs.orders} == {rig.run(SLOT).run_id}
    entries = rig.stores.job_log.ls(SLOT).entries
    assert [entry.event for entry in entries] == [JobEvent.INFRA_TRIGGER_FAILURE] * 3


def test_lifecycle__start_that_keeps_failing__ends_the_attempt_and_frees_the_period(rig: Rig) -> None:
    rig.define(pipeline(retry=RetryPolicy(attempts=1)))
    rig.jobs.start_errors.extend(TriggerFailedError("busy", FailureCategory.TRANSIENT) for _ in range(9))

    land(rig)
    rig.advance("1h")

    run = rig.run(SLOT)
    assert (run.status, run.event) == (RunStatus.FAILED, JobEvent.INFRA_TRIGGER_EXHAUSTED)
    assert len(rig.jobs.orders) == 5
    assert rig.event_names("silver", EventName.TRIGGER_EXHAUSTED) == ["TRIGGER_EXHAUSTED"]
    assert rig.lock(SLOT) is None
    # A new sensor begins it again, although its attempts are used up: the job never began.
    rig.jobs.start_errors.clear()
    land(rig, again=1)
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_lifecycle__start_that_is_refused_for_good__is_tried_once(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.start_errors.append(TriggerFailedError("no such job", FailureCategory.PERMANENT))

    land(rig)
    rig.advance("10m")

    assert len(rig.jobs.orders) == 1
    assert rig.run(SLOT).status is RunStatus.FAILED
    assert rig.run(SLOT).category is FailureCategory.PERMANENT
    assert "no such job" in rig.run(SLOT).reason


def test_lifecycle__job_that_ran_and_failed_within_its_start__counts_as_a_failure_of_the_job(rig: Rig) -> None:
    rig.define(pipeline())
    error = TriggerFailedError("exit 3", FailureCategory.TRANSIENT, was_started=True)
    rig.jobs.start_errors.append(error)
    rig.jobs.is_sync = True

    land(rig)
    first = rig.runs(SLOT)[0]
    rig.advance("5m")

    assert (first.status, first.event) == (RunStatus.FAILED, JobEvent.FAIL)
    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.log(SLOT).attempts == 2


def test_lifecycle__definition_without_a_trigger__is_reported_and_closes_the_period(rig: Rig) -> None:
    # bug 38
    rig.define(pipeline(trigger=None))

    land(rig)

    assert rig.status(SLOT) is RunStatus.FAILED
    events = rig.events("silver", EventName.PIPELINE_FAILED)
    assert [("no trigger" in str(event.detail)) for event in events] == [True]
    assert rig.lock(SLOT) is None


# Cancelling.


@pytest.mark.parametrize("minutes", [0, 3])
def test_cancel__run_that_waits__ends_at_once(rig: Rig, minutes: int) -> None:
    rig.define(waiting_pipeline())
    land(rig)
    rig.advance(60.0 * minutes)

    rig.pipelines.jobs.cancel(rig.run(SLOT).run_id, by="ana", reason="wrong day")
    rig.pump()

    assert rig.status(SLOT) is RunStatus.CANCELLED
    assert rig.lock(SLOT) is None
    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED
    assert rig.event_names("silver", EventName.RUN_CANCELLED) == ["RUN_CANCELLED"]


def test_cancel__run_whose_job_runs__ends_the_job_too(rig: Rig) -> None:
    rig.define(pipeline())
    land(rig)
    run_id = rig.run(SLOT).run_id

    rig.pipelines.jobs.cancel(run_id, by="ana", reason="wrong day")
    rig.advance("5m")

    assert rig.jobs.cancelled == [run_id]
    assert rig.status(SLOT) is RunStatus.CANCELLED
    assert rig.log(SLOT).attempts == 1
    assert rig.lock(SLOT) is None


def test_cancel__while_the_job_is_being_started__ends_the_job_too(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.meanwhile = lambda order: rig.pipelines.jobs.cancel(order.run_id, by="ana", reason="no")

    land(rig)
    rig.advance("5m")

    assert rig.status(SLOT) is RunStatus.CANCELLED
    assert rig.jobs.cancelled == rig.jobs.begun


def test_cancel__of_a_rerun__ends_the_rerun(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.succeed()
    land(rig)
    rig.advance("1m")
    rig.jobs.keep_running()
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()

    rig.pipelines.jobs.cancel(rig.run(SLOT).run_id, by="ana", reason="no")
    rig.advance("5m")

    assert not rig.stores.reruns.get(rerun.rerun_id).status.is_open


def test_lifecycle__run_ended_by_someone_else__its_execution_ends(rig: Rig) -> None:
    # Who took over after the lock had run out has ended it, without a word about its job.
    rig.define(pipeline())
    land(rig)
    run = rig.run(SLOT)

    rig.stores.runs.move(run, RunStatus.FAILED, category=FailureCategory.PERMANENT, reason="taken over")
    rig.advance("2m")

    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED
    assert rig.jobs.polls == []
    assert rig.lock(SLOT) is None


# Locks.


def test_lifecycle__lock__outlives_everything_that_the_definition_allows(rig: Rig) -> None:
    # bug 22
    slow = Readiness(rules=(ORDERS_THERE,), window=Seconds(7 * 3_600), interval=Seconds(7_200))
    long = TriggerSpec(type="command", config={}, poll_window=Seconds(10 * 3_600), check_interval=Seconds(7_200))
    rig.define(waiting_pipeline(readiness=slow, trigger=long))
    land(rig)
    rig.advance("6h50m")
    rig.push("silver", "orders", count=10)

    rig.advance("9h50m")
    rig.mark(Slot("silver", "stream", DATE))
    still = rig.lock(SLOT)
    rig.jobs.succeed()
    rig.advance("10m")

    assert still is not None
    assert rig.log(SLOT).attempts == 1
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_lifecycle__two_requests_for_one_period__one_run(rig: Rig) -> None:
    rig.define(pipeline())
    land(rig)

    rig.mark(SLOT)
    rig.mark(SLOT)

    assert rig.log(SLOT).attempts == 1
    assert len(rig.executions()) == 3
    assert len(rig.jobs.begun) == 1


def test_lifecycle__step_of_the_lifecycle_that_fails_for_good__frees_the_period_and_is_reported(rig: Rig) -> None:
    # bug 17 and bug 76: a lock is not left behind, and the error is caught whatever it is.
    rig.define(waiting_pipeline())
    land(rig)
    lock = rig.lock(SLOT)
    stand_in = rig.env.stand_in(rig.app.activities["headgate.pipelines.orchestrator"])
    real = rig.pipelines.orchestrator

    def broken(event: dict[str, object]) -> object:
        if event.get("action") == "checkReadiness":
            raise RuntimeError("disk on fire")
        return real(event)

    stand_in.calls_with(broken)
    rig.advance("6h")

    assert lock is not None
    assert rig.lock(SLOT) is None
    assert rig.run(SLOT).status is RunStatus.FAILED
    assert "disk on fire" in rig.run(SLOT).reason
    assert rig.event_names("silver", EventName.INFRA_FAILURE) == ["INFRA_FAILURE"]
    # Nothing follows by itself, and nothing says that it would.
    assert rig.event_names("silver", EventName.RETRY_SCHEDULED) == []
    assert rig.event_names("silver", EventName.PIPELINE_FAILED) == ["PIPELINE_FAILED"]
    assert rig.ended(the_execution(rig)) is ExecutionStatus.FAILED


def test_lifecycle__lock_cannot_be_released__run_stays_what_it_is_and_it_is_reported(rig: Rig) -> None:
    # bug 29
    rig.define(pipeline())
    stand_in = rig.env.stand_in(rig.app.activities["headgate.pipelines.orchestrator"])
    real = rig.pipelines.orchestrator

    def broken(event: dict[str, object]) -> object:
        if event.get("action") == "releaseLock":
            raise RuntimeError("no answer")
        return real(event)

    stand_in.calls_with(broken)
    rig.jobs.succeed()
    land(rig)
    rig.advance("3h")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.event_names("silver", EventName.LOCK_NOT_RELEASED) == ["LOCK_NOT_RELEASED"]
    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED


# Long absences.


def test_absence__longer_than_a_lock_lasts__job_that_succeeded_meanwhile_has_succeeded(rig: Rig) -> None:
    # The period was not taken over: its owner is the same.
    rig.define(pipeline())
    land(rig)
    rig.jobs.succeed()

    rig.env.clock.advance(20 * 3_600.0)
    rig.advance("10m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.event_names("silver", EventName.INFRA_FAILURE) == []
    assert rig.lock(SLOT) is None


def test_absence__longer_than_the_window__run_that_waited_is_reported_as_that(rig: Rig) -> None:
    rig.define(waiting_pipeline())
    land(rig)

    rig.env.clock.advance(20 * 3_600.0)
    rig.advance("10m")

    assert rig.run(SLOT).event is JobEvent.VALIDATION_EXHAUSTED
    assert rig.event_names("silver", EventName.INFRA_FAILURE) == []


def test_absence__between_the_lock_and_the_run__request_is_not_lost(rig: Rig) -> None:
    rig.define(pipeline())
    stand_in = rig.env.stand_in(rig.app.activities["headgate.pipelines.orchestrator"])
    real = rig.pipelines.orchestrator
    slept: list[bool] = []

    def absent(event: dict[str, object]) -> object:
        if event.get("action") == "resolvePipeline" and not slept:
            slept.append(True)
            rig.env.clock.advance(20 * 3_600.0)
        return real(event)

    stand_in.calls_with(absent)
    land(rig)
    rig.advance("10m")

    assert rig.log(SLOT).attempts == 1
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_absence__and_another_took_over__the_first_does_no_harm(rig: Rig) -> None:
    rig.define(pipeline())
    land(rig)
    first = rig.run(SLOT).run_id
    rig.env.clock.advance(20 * 3_600.0)
    # The other is there first.
    rig.stores.markers.put_again(SLOT, source="api", by="ana")
    for change in rig.read_stream():
        rig.pipelines.router.on_change(change)
    lock = rig.call(SLOT, action="acquireLock", executionName="other")
    second = rig.call(
        SLOT, action="resolvePipeline", executionName="other", cause="marker", lockToken=lock["lockToken"]
    )

    rig.jobs.succeed()
    rig.advance("10m")

    assert rig.stores.runs.get(first).status is RunStatus.FAILED
    assert rig.log(SLOT).run_id == second["runId"]
    assert rig.status(SLOT) is RunStatus.PENDING


# SLA: reported, never enforced, and never blocking.


def test_lifecycle__sla_with_a_duration_alone_and_no_arrival__ends(rig: Rig) -> None:
    # D1, bug 13: what is optional in a definition is never missing in the document of the machine.
    rig.define(pipeline(sla=Sla(max_duration=Seconds(3_600))))
    rig.jobs.succeed()

    rig.mark(SLOT)
    rig.advance("1m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert [call["mode"] for call in rig.sla_calls] == ["schedule", "cancel"]
    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED


@pytest.mark.parametrize(
    "sla",
    [
        Sla(deadline="10:00"),
        Sla(deadline=":30"),
        Sla(expected_duration=Seconds(60), deadline="10:00", timezone="Europe/Berlin"),
        Sla(critical=True),
    ],
    ids=["daily", "hourly", "all", "nothing"],
)
def test_lifecycle__sla_of_any_form__machine_finds_all_that_it_reads(rig: Rig, sla: Sla) -> None:
    rig.define(pipeline(sla=sla, timezone="America/New_York"))
    rig.jobs.succeed()

    land(rig)
    rig.advance("1m")

    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED
    # D7: the zone is passed to the canceller as to the scheduler.
    assert {call["sla"]["timezone"] for call in rig.sla_calls} == {sla.timezone or "America/New_York"}


def test_lifecycle__deadline_far_away__execution_does_not_stay_for_it(rig: Rig) -> None:
    # bug 11
    rig.define(pipeline(sla=Sla(deadline="23:59")))
    rig.jobs.succeed()

    land(rig)
    rig.advance("1m")

    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED


def test_lifecycle__job_that_failed__timers_are_cancelled_as_well(rig: Rig) -> None:
    # bugs 5 and 27: no way ends without cancelling what was scheduled.
    rig.define(pipeline(sla=Sla(deadline="23:59"), retry=RetryPolicy(attempts=1)))
    rig.jobs.fail()

    land(rig)
    rig.advance("1m")

    assert [call["mode"] for call in rig.sla_calls] == ["schedule", "cancel"]
    cancelled = rig.sla_calls[-1]
    # bug 12: moments, not times of the day.
    assert cancelled["warningAt"] == "2026-03-03T09:00:00Z"
    assert cancelled["breachAt"] == "2026-03-03T10:00:00Z"


def test_lifecycle__retry__timers_are_scheduled_again(rig: Rig) -> None:
    # D6
    rig.define(pipeline(sla=Sla(deadline="23:59"), retry=RetryPolicy(attempts=2, backoff=Seconds(60))))
    rig.jobs.fail()
    land(rig)

    rig.advance("10m")

    modes = [(call["mode"], call["runId"]) for call in rig.sla_calls]
    first, second = (run.run_id for run in rig.runs(SLOT))
    assert modes == [("schedule", first), ("schedule", second), ("cancel", second)]


def test_lifecycle__sla_monitor_that_fails__job_goes_on_and_it_is_reported() -> None:
    def down(event: dict[str, object]) -> dict[str, object]:
        raise RuntimeError(f"{event['mode']}: scheduler is down")

    with Rig(functions={"sla_monitor_arn": down}) as rig:
        rig.define(pipeline(sla=Sla(deadline="23:59")))
        rig.jobs.succeed()
        land(rig)
        rig.advance("2h")

        assert rig.status(SLOT) is RunStatus.COMPLETED
        assert len(rig.event_names("silver", EventName.INFRA_FAILURE)) == 2
        assert rig.lock(SLOT) is None


# Dry runs.


def test_dry_run__ready__says_what_would_be_started_and_starts_nothing(rig: Rig) -> None:
    rig.define(pipeline(dry_run=True))

    land(rig)
    rig.advance("1h")

    assert rig.jobs.orders == []
    assert rig.event_names("silver", EventName.DRY_RUN_WOULD_TRIGGER, EventName.DRY_RUN_COMPLETED) == [
        "DRY_RUN_WOULD_TRIGGER",
        "DRY_RUN_COMPLETED",
    ]
    assert rig.lock(SLOT) is None


@pytest.mark.parametrize("how", ["sensor", "marker", "rerun", "force"])
def test_dry_run__asked_for_in_any_way__starts_nothing(rig: Rig, how: str) -> None:
    # bug 70
    rig.define(pipeline(dry_run=True, budgets=Budgets(manual=5)))
    land(rig)

    match how:
        case "sensor":
            land(rig, again=1)
        case "marker":
            rig.mark(SLOT)
        case "rerun":
            rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana", is_forced=True)
        case "force":
            rig.stores.directives.force(SLOT, by="ana", reason="now")
            rig.mark(SLOT)
    rig.advance("3h")

    assert rig.jobs.orders == []
    assert rig.lock(SLOT) is None


def test_dry_run__that_is_a_rerun__ends_the_rerun(rig: Rig) -> None:
    rig.define(pipeline(dry_run=True, budgets=Budgets(manual=5)))
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("1h")

    assert not rig.stores.reruns.get(rerun.rerun_id).status.is_open


# Reruns.


def completed(rig: Rig, **fields: Any) -> None:
    rig.define(pipeline(**fields))
    rig.jobs.succeed()
    land(rig)
    rig.advance("1m")
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_rerun__of_a_done_period__does_it_again(rig: Rig) -> None:
    completed(rig)

    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana", note="new columns")
    rig.advance("1m")

    assert [(run.cause, run.status) for run in rig.runs(SLOT)] == [
        (Cause.SENSOR, RunStatus.COMPLETED),
        (Cause.RERUN, RunStatus.COMPLETED),
    ]
    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.COMPLETED
    assert rig.event_names("silver", EventName.RERUN_ACCEPTED) == ["RERUN_ACCEPTED"]


def test_rerun__beyond_its_budget__is_rejected_and_reported(rig: Rig) -> None:
    completed(rig, budgets=Budgets(manual=0))

    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("1m")

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.REJECTED
    assert rig.log(SLOT).attempts == 1
    (events,) = rig.events("silver", EventName.RERUN_REJECTED)
    assert "budgets.manual is 0" in events.detail["refusal"]
    assert rig.lock(SLOT) is None


def test_rerun__after_all_that_it_may_have__is_rejected_and_the_limit_is_reported(rig: Rig) -> None:
    completed(rig, budgets=Budgets(drift=1))
    for _ in range(2):
        rig.stores.reruns.request(SLOT, RerunReason.DATA_DRIFT)
        rig.advance("2m")

    assert rig.event_names("silver", EventName.RERUN_ACCEPTED, EventName.RERUN_REJECTED) == [
        "RERUN_ACCEPTED",
        "RERUN_REJECTED",
    ]
    (events,) = rig.events("silver", EventName.RERUN_CAP_REACHED)
    assert (events.detail["reason"], events.detail["limit"]) == ("data-drift", 1)


def test_run__begun_by_hand__keeps_what_was_said_about_it(rig: Rig) -> None:
    rig.define(pipeline())

    rig.pipelines.manual.start(SLOT, by="ana", reason="the export was late")
    rig.pump()

    assert (rig.run(SLOT).by, rig.run(SLOT).note) == ("ana", "the export was late")
    assert rig.events("silver", EventName.RUN_STATE_CHANGED)[0].text.endswith(": no run became PENDING")


def test_rerun__while_its_period_is_locked__costs_nothing_and_is_not_accepted_before(rig: Rig) -> None:
    # bugs 24 and 25
    rig.define(pipeline(budgets=Budgets(manual=1)))
    land(rig)

    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.REQUESTED
    assert rig.event_names("silver", EventName.RERUN_ACCEPTED) == []
    assert rig.log(SLOT).reruns == {}


def test_rerun__asked_for_while_its_period_is_locked__begins_when_it_is_free(rig: Rig) -> None:
    rig.define(pipeline(budgets=Budgets(manual=1)))
    land(rig)
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()

    rig.jobs.succeed()
    rig.advance("5m")

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.COMPLETED
    assert rig.log(SLOT).attempts == 2


def test_rerun__first_attempt_fails__is_tried_again_like_any_other(rig: Rig) -> None:
    completed(rig)
    rig.jobs.fail()
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("30s")

    rig.jobs.succeed()
    rig.advance("5m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.COMPLETED


def test_rerun__window_closes__ends_the_rerun(rig: Rig) -> None:
    completed(rig)
    rig.define(waiting_pipeline(readiness=Readiness(rules=(ORDERS_THERE,), window=Seconds(600))))

    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("15m")

    assert rig.stores.reruns.get(rerun.rerun_id).status is RerunStatus.FAILED


# Monitoring.


def watched(rig: Rig) -> None:
    rig.define(pipeline(readiness=FRESH, post_run=MONITORED))
    rig.push_trait("silver", "fresh", "PASS")
    rig.jobs.succeed()
    land(rig)
    rig.advance("31s")
    assert rig.status(SLOT) is RunStatus.COMPLETED_MONITORING


def test_monitoring__nothing_changes__ends_by_itself(rig: Rig) -> None:
    watched(rig)

    rig.advance("11m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.event_names("silver", EventName.MONITORING_STARTED, EventName.MONITORING_COMPLETED) == [
        "MONITORING_STARTED",
        "MONITORING_COMPLETED",
    ]
    assert rig.lock(SLOT) is None
    assert rig.log(SLOT).attempts == 1


def test_monitoring__traits_no_longer_hold__the_period_is_done_again(rig: Rig) -> None:
    watched(rig)

    rig.push_trait("silver", "fresh", "FAIL")
    rig.advance("2m")
    drifted = rig.events("silver", EventName.MONITORING_DRIFT_DETECTED)
    rig.push_trait("silver", "fresh", "PASS")
    rig.advance("2m")

    assert [each.detail["trait"] for each in drifted] == ["fresh"]
    assert [(run.cause, run.status.is_done) for run in rig.runs(SLOT)] == [(Cause.SENSOR, True), (Cause.RERUN, True)]


def test_monitoring__late_data_meanwhile__is_not_forgotten(rig: Rig) -> None:
    watched(rig)

    land(rig, again=1)
    rig.advance("40m")

    (rerun,) = rig.stores.reruns.ls("silver").reruns
    assert rerun.reason is RerunReason.LATE_DATA
    assert rerun.status is RerunStatus.COMPLETED


def test_post_run__without_monitoring__holds_no_execution(rig: Rig) -> None:
    # bug 59
    rig.define(pipeline(post_run=PostRun(rules=(ORDERS_THERE,))))
    rig.jobs.succeed()
    land(rig)
    rig.advance("1m")

    assert rig.ended(the_execution(rig)) is ExecutionStatus.SUCCEEDED


# Schedules of one pipeline.


def test_lifecycle__two_schedules__each_has_its_own_lock_and_log(rig: Rig) -> None:
    other = Schedule(name="evening", sensor=SensorTrigger(key="evening"))
    rig.define(pipeline(schedules=(LANDED, other)))

    land(rig)
    rig.push("silver", "evening", date=DATE)

    evening = slot_of(schedule_id="evening")
    assert rig.status(SLOT) is RunStatus.RUNNING
    assert rig.status(evening) is RunStatus.RUNNING
    assert len(rig.jobs.begun) == 2


def test_lifecycle__definition_changed_under_way__run_goes_by_the_one_it_began_with(rig: Rig) -> None:
    rig.define(waiting_pipeline())
    land(rig)

    rig.define(waiting_pipeline(trigger=TriggerSpec(type="http", config={"url": "http://x"})))
    rig.push("silver", "orders", count=10)

    assert [order.type for order in rig.jobs.orders] == [COMMAND.type]
    assert rig.run(SLOT).definition_version == 1
