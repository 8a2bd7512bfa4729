"""The lookout: the same looks as ever, and an execution that is woken only where it would go on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.errors import CorruptionError, HeadgateError, ItemTooLargeError, OutcomeUnknownError, StoreBusyError
from headgate.pipelines.definition.model import Readiness, Rule, Trait
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.evaluator import (
    FALLBACK_SECONDS,
    ReadinessDecision,
    ReadinessEvaluator,
    ReadinessSnapshot,
    ReadinessStep,
    decide,
    wake_reason,
)
from headgate.pipelines.readiness.poller import BATCH, RELOAD_SECONDS, ReadinessPoller
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict
from headgate.pipelines.runs.rows import Directive, Order, Run, RunLog
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.service import PipelineService
from headgate.store.catalogue.tables import PIPELINES, WAITER
from tests.health_faults import Failing
from tests.pipeline_rig import DATE, ORDERS_THERE, Rig, pipeline, slot_of, waiting_pipeline

SLOT = slot_of()
MINUTE = Readiness(rules=(ORDERS_THERE,), interval=Seconds(60))


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(waiting_pipeline(readiness=MINUTE))
        yield made


def land(rig: Rig) -> None:
    rig.push("silver", "landed", date=DATE)


def push_without_notice(rig: Rig, count: int = 10) -> None:
    """Say something of a sensor without notifying anyone."""
    rig.pipelines.sensors.push("silver", "orders", {"count": count})
    rig.read_stream()


def looks(rig: Rig) -> int:
    return len(rig.pipelines.evaluations.ls(SLOT).evaluations)


def evaluations_of_the_machine(rig: Rig) -> int:
    return rig.visited(rig.executions()[0]).count("Evaluate")


def another_server(rig: Rig) -> PipelineService:
    service = rig.env.service
    return PipelineService(service.store, service.clock, service.ids, service.bus, service.asl, rig.jobs)


# What follows a look.


def a_run(rig: Rig) -> Run:
    land(rig)
    return rig.run(SLOT)


def verdict(result: ReadinessResult) -> ReadinessVerdict:
    return ReadinessVerdict(result=result, reason="because")


PROCEED = verdict(ReadinessResult.PROCEED)
NOT_READY = verdict(ReadinessResult.NOT_READY)


def test_decide__every_say__in_the_order_of_the_lifecycle(rig: Rig) -> None:
    run = a_run(rig)
    log = rig.log(SLOT)
    held = replace(log, hold=Directive(Order.HOLD, "ana", "audit", 1))
    forced = replace(log, order=Directive(Order.FORCE, "ana", "now", 1))
    cancelled = replace(run, status=RunStatus.CANCELLED)

    def step(run: Run, log: RunLog | None, verdict: ReadinessVerdict | None, **more: Any) -> str:
        return decide(run, log, verdict, **more).step.value

    assert step(run, log, PROCEED) == "proceed"
    assert step(run, None, PROCEED, is_dry_run=True) == "dry_run"
    assert step(run, log, PROCEED, quarantined="12 records") == "not_ready"
    assert step(run, log, NOT_READY) == "not_ready"
    assert step(run, log, None) == "not_ready"
    assert step(run, log, verdict(ReadinessResult.ERROR)) == "error"
    assert step(run, held, PROCEED) == "not_ready"
    assert step(run, forced, NOT_READY) == "proceed"
    assert step(run, replace(held, order=forced.order), NOT_READY) == "not_ready"
    assert step(cancelled, forced, PROCEED) == "cancelled"


def test_wake_reason__nothing_but_not_ready__sleeps_on_until_its_time_is_over(rig: Rig) -> None:
    look = rig.pipelines.readiness_evaluator.evaluate(a_run(rig))
    waits = ReadinessDecision(ReadinessStep.NOT_READY, "orders")

    def later(seconds: float) -> ReadinessSnapshot:
        return replace(look, evaluation=replace(look.evaluation, at_ms=look.at_ms + round(1000 * seconds)))

    hard = replace(look.pipeline, readiness=replace(MINUTE, timeout=Seconds(600)))
    assert [
        wake_reason(look, ReadinessDecision(step, "so"))
        for step in ReadinessStep
        if step is not ReadinessStep.NOT_READY
    ] == ["so"] * 4
    assert wake_reason(later(3_599), waits) == ""
    assert wake_reason(later(3_600), waits) == "its time is over"
    assert wake_reason(replace(later(599), pipeline=hard), waits) == ""
    assert wake_reason(replace(later(600), pipeline=hard), waits) == "its time is over"
    assert wake_reason(replace(look, run=replace(look.run, status=RunStatus.RUNNING)), waits) == "the run is RUNNING"


def test_look__seconds_to_the_next__by_interval_window_and_hard_limit(rig: Rig) -> None:
    look = rig.pipelines.readiness_evaluator.evaluate(a_run(rig))

    def seconds(**fields: Any) -> tuple[int, int]:
        given = Readiness(**{"window": Seconds(86_400), "interval": Seconds(60), **fields})
        made = replace(look, pipeline=replace(look.pipeline, readiness=given))
        return made.next_seconds, made.fallback_seconds

    assert seconds() == (60, FALLBACK_SECONDS)
    assert seconds(window=Seconds(600)) == (60, 600)
    assert seconds(window=Seconds(45)) == (45, 45)
    assert seconds(timeout=Seconds(90.5)) == (60, 91)
    assert seconds(interval=Seconds(7_200)) == (7_200, 7_200)
    assert seconds(interval=Seconds(0.2)) == (1, FALLBACK_SECONDS)


# Looks in place of an execution that waits.


def test_wait__nothing_changes__looked_at_every_interval_and_the_machine_sleeps(rig: Rig) -> None:
    land(rig)
    turns = len(rig.visited(rig.executions()[0]))

    rig.advance("10m")

    assert looks(rig) == 11
    assert rig.event_names("silver").count(EventName.READINESS_CHECKED) == 11
    assert len(rig.visited(rig.executions()[0])) == turns
    latest = rig.pipelines.evaluations.latest(SLOT)
    assert latest is not None
    assert (latest.at_ms, latest.next_at_ms) == (rig.now_ms, rig.now_ms + 60_000)
    assert latest.run_id == rig.run(SLOT).run_id


def test_wait__change_that_no_one_reports__starts_at_the_next_look_and_is_evaluated_once(rig: Rig) -> None:
    land(rig)
    rig.advance("90s")
    push_without_notice(rig)
    before = looks(rig)

    rig.advance("29s")
    early = rig.status(SLOT)
    rig.advance("1s")

    assert early is RunStatus.PENDING
    assert rig.status(SLOT) is RunStatus.RUNNING
    assert looks(rig) == before + 1
    assert rig.event_names("silver").count(EventName.VALIDATION_PASSED) == 1


def test_wait__rule_that_has_to_pass_three_times__counts_looks(rig: Rig) -> None:
    rig.define(waiting_pipeline(readiness=replace(MINUTE, rules=(replace(ORDERS_THERE, stable_for=3),))))
    rig.push("silver", "orders", count=10)
    land(rig)

    rig.advance("119s")
    early = rig.status(SLOT)
    rig.advance("1s")

    assert early is RunStatus.PENDING
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_wait__sensor_changes__woken_at_once_and_watched_on_from_then(rig: Rig) -> None:
    land(rig)
    rig.advance("30s")

    rig.push("silver", "orders", count=1)
    rig.advance("59s")
    between = looks(rig)
    rig.advance("1s")

    assert (between, looks(rig)) == (2, 3)


def test_wait__window_closes__fails_then_and_nothing_is_looked_at_after(rig: Rig) -> None:
    rig.define(waiting_pipeline(readiness=replace(MINUTE, window=Seconds(150))))
    land(rig)

    rig.advance("149s")
    early = rig.status(SLOT)
    rig.advance("1s")
    ended = rig.run(SLOT)
    seen = looks(rig)
    rig.advance("1h")

    assert early is RunStatus.PENDING
    assert (ended.status, ended.ended_at_ms) == (RunStatus.FAILED, ended.created_at_ms + 150_000)
    assert looks(rig) == seen


def test_wait__held_while_it_is_ready__looked_at_and_not_woken_until_it_is_let_go(rig: Rig) -> None:
    land(rig)
    rig.stores.directives.hold(SLOT, by="ana", reason="audit")
    push_without_notice(rig)
    rig.advance("5m")
    held = rig.status(SLOT)
    of_the_machine = evaluations_of_the_machine(rig)

    rig.stores.directives.approve(SLOT, by="ana", reason="fine")
    rig.read_stream()
    rig.advance("1m")

    assert held is RunStatus.PENDING
    assert of_the_machine == 1
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_wait__run_cancelled_and_no_one_woken__execution_ends_at_the_next_look(rig: Rig) -> None:
    land(rig)
    run = rig.run(SLOT)
    rig.stores.runs.move(run, RunStatus.CANCELLED, reason="not today")
    rig.read_stream()
    seen = looks(rig)

    rig.advance("1m")

    assert rig.lock(SLOT) is None
    assert rig.pipelines.waiters.find(SLOT, WaitKind.CHANGE) is None
    # The machine's own, on its way to the end.
    assert looks(rig) == seen + 1


def test_wait__traits_that_have_to_be_evaluated__looked_at_by_the_machine(rig: Rig) -> None:
    traits = {"fresh": Trait(evaluator="http://127.0.0.1/none", required=False)}
    rig.define(waiting_pipeline(readiness=replace(MINUTE, traits=traits)))
    land(rig)

    rig.advance("5m")

    assert evaluations_of_the_machine(rig) == looks(rig) == 6
    assert len(rig.evaluator_calls) == 6


def test_wait__no_one_at_the_lookout__machine_looks_at_every_interval() -> None:
    with Rig() as rig:
        rig.pipelines.readiness_poller._reload_at = None
        rig.define(waiting_pipeline(readiness=MINUTE))
        land(rig)

        rig.env.advance("5m")

        assert evaluations_of_the_machine(rig) == looks(rig) == 6


def test_wait__lookout_that_is_gone__machine_looks_by_itself_in_time(rig: Rig) -> None:
    rig.define(waiting_pipeline(readiness=replace(MINUTE, window=Seconds(86_400))))
    land(rig)
    push_without_notice(rig)

    rig.env.advance(FALLBACK_SECONDS)

    assert rig.status(SLOT) is RunStatus.RUNNING


# Other processes, and what fails.


def test_tick__server_that_has_just_started__looks_at_who_waited_before(rig: Rig) -> None:
    land(rig)
    push_without_notice(rig)
    rig.env.clock.advance(61.0)

    another_server(rig).tick()
    rig.env.run()

    assert rig.status(SLOT) is RunStatus.RUNNING


def test_tick__who_waits_was_seen_by_another_process__found_in_time(rig: Rig) -> None:
    other = another_server(rig)
    other.tick()
    land(rig)
    push_without_notice(rig)

    rig.env.clock.advance(RELOAD_SECONDS - 1)
    early = other.readiness_poller.tick()
    rig.env.clock.advance(1.0)

    assert (early, other.readiness_poller.tick()) == (0, 1)
    rig.env.run()
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_tick__two_servers__each_look_is_made_once(rig: Rig) -> None:
    other = another_server(rig)
    land(rig)
    other.tick()

    for _ in range(5):
        rig.env.clock.advance(60.0)
        rig.pipelines.tick()
        other.tick()
        for change in rig.read_stream():
            other.on_change(change)

    assert looks(rig) == 6


def test_tick__wait_ends_between_look_and_commit__look_is_not_kept(rig: Rig) -> None:
    land(rig)
    seen = looks(rig)
    lookout = rig.pipelines.readiness_poller
    store = rig.store

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def transact_many(self, transactions: Any) -> Any:
            rig.pipelines.waiters.wake(SLOT, WaitKind.CHANGE, "news")
            return store.transact_many(transactions)

    interrupted: Any = Interrupted()
    lookout._store = interrupted
    rig.env.clock.advance(60.0)
    lookout.tick()

    assert looks(rig) == seen


def poller_of(rig: Rig, **parts: Any) -> ReadinessPoller:
    """Return a poller with some of its collaborators replaced."""
    defaults: dict[str, Any] = {
        "store": rig.store,
        "clock": rig.clock,
        "runs": rig.stores.runs,
        "definitions": rig.reader,
        "waiters": rig.pipelines.waiters,
        "evaluator": rig.pipelines.readiness_evaluator,
        "on_committed": lambda: None,
    }
    return ReadinessPoller(**{**defaults, **parts})


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("get", StoreBusyError("busy")),
        ("transact_many", StoreBusyError("busy")),
        ("transact_many", OutcomeUnknownError("the answer was lost")),
    ],
    ids=["read", "written", "lost"],
)
def test_tick__store_that_fails_once__looked_at_a_little_later(rig: Rig, method: str, error: HeadgateError) -> None:
    land(rig)
    seen = looks(rig)
    faulty: Any = Failing(rig.store, method, error, is_done=isinstance(error, OutcomeUnknownError))
    lookout = poller_of(rig, store=faulty, runs=Runs(faulty, rig.clock, rig.ids))

    for _ in range(2):
        rig.env.clock.advance(60.0)
        lookout.tick()
        rig.env.clock.advance(6.0)
        lookout.tick()

    assert looks(rig) == seen + 2


def test_tick__row_that_makes_no_sense__is_for_the_machine_to_deal_with_and_stops_no_other(rig: Rig) -> None:
    rig.define(waiting_pipeline("other", readiness=MINUTE))
    rig.push("other", "landed", date=DATE)
    land(rig)
    run = rig.run(SLOT)

    class Broken(ReadinessEvaluator):
        def evaluate(self, run: Run) -> ReadinessSnapshot:
            if run.pipeline_id == "silver":
                raise CorruptionError("row: it is not a sensor")
            return super().evaluate(run)

    woken: list[str] = []
    rig.pipelines.waiters._answer = lambda _token, output: woken.append(output["woken"])
    rig.env.clock.advance(60.0)
    broken = Broken(
        rig.store, rig.clock, rig.stores.runs, rig.reader, rig.evaluations, rig.pipelines.facts, rig.event_writer
    )
    poller_of(rig, evaluator=broken).tick()

    assert woken == ["the evaluation failed: row: it is not a sensor"]
    assert rig.stores.runs.get(run.run_id).status is RunStatus.PENDING
    assert len(rig.pipelines.evaluations.ls(slot_of("other")).evaluations) == 2


def test_tick__look_that_cannot_be_kept__takes_no_other_with_it(rig: Rig) -> None:
    rig.define(waiting_pipeline("other", readiness=MINUTE))
    rig.push("other", "landed", date=DATE)
    land(rig)
    faulty: Any = Failing(rig.store, "transact_many", ItemTooLargeError("too large"))
    alone: Any = Failing(faulty, "transact", ItemTooLargeError("too large"))
    woken: list[str] = []
    rig.pipelines.waiters._answer = lambda _token, output: woken.append(output["woken"])
    rig.env.clock.advance(60.0)

    poller_of(rig, store=alone).tick()

    assert woken == ["the evaluation failed: too large"]
    assert looks(rig) + len(rig.pipelines.evaluations.ls(slot_of("other")).evaluations) == 3


def test_tick__row_of_a_waiter_that_makes_no_sense__others_are_looked_at(rig: Rig) -> None:
    land(rig)
    key = WAITER.key(pipeline_id="a", schedule_id="stream", date=DATE, kind="change")
    index = WAITER.index_attributes(pipeline_id="a", schedule_id="stream", date=DATE)
    rig.store.put(PIPELINES, {**PIPELINES.key_attributes(key), **index, "kind": "nothing that is known"})
    rig.env.clock.advance(60.0)

    other = another_server(rig).readiness_poller

    assert other.tick() == 1
    assert looks(rig) == 2


def test_tick__answer_that_cannot_be_given_now__is_given_a_little_later(rig: Rig) -> None:
    land(rig)
    push_without_notice(rig)
    answer = rig.pipelines.waiters._answer

    def busy(_token: str, _output: dict[str, str]) -> None:
        rig.pipelines.waiters._answer = answer
        raise StoreBusyError("busy")

    rig.pipelines.waiters._answer = busy
    rig.advance("60s")
    early = rig.status(SLOT)
    rig.advance("5s")

    assert early is RunStatus.PENDING
    assert rig.status(SLOT) is RunStatus.RUNNING


@pytest.mark.parametrize("seconds", [-7_200.0, 7_200.0])
def test_tick__clock_that_jumps__looked_at_after_the_interval_at_the_latest(rig: Rig, seconds: float) -> None:
    rig.define(waiting_pipeline(readiness=replace(MINUTE, window=Seconds(86_400))))
    land(rig)
    rig.advance("30s")
    rig.env.clock.step(seconds)
    push_without_notice(rig)

    for _ in range(61):
        rig.env.clock.advance(1.0)
        rig.pipelines.tick()
        rig.env.run()

    assert rig.status(SLOT) is RunStatus.RUNNING


def test_tick__more_than_one_tick_is_to_look_at__says_so_and_goes_on(rig: Rig) -> None:
    names = [f"p{number:02d}" for number in range(BATCH + 2)]
    rig.define(*(waiting_pipeline(name, readiness=MINUTE) for name in names))
    for name in names:
        rig.push(name, "landed", date=DATE)
    rig.env.clock.advance(60.0)
    commits = rig.env.service.store.stats.commits  # type: ignore[attr-defined]

    lookout = rig.pipelines.readiness_poller
    found = [(lookout.tick(), lookout.is_behind, lookout.polls(pipeline())) for _ in range(3)]

    assert found == [(BATCH, True, False), (2, False, True), (0, False, True)]
    assert rig.env.service.store.stats.commits == commits + 2  # type: ignore[attr-defined]


def test_seconds_left__not_begun_and_begun__at_once_and_until_the_next_look(rig: Rig) -> None:
    other = another_server(rig).readiness_poller
    assert other.seconds_left() == 0.0
    other.tick()
    assert other.seconds_left() == math.inf
    land(rig)
    rig.env.clock.advance(20.0)
    assert rig.pipelines.readiness_poller.seconds_left() == 40.0


def test_pipeline__ready_at_once__never_watched(rig: Rig) -> None:
    rig.define(pipeline("quick", readiness=Readiness(rules=(Rule(key="landed"),))))
    rig.push("quick", "landed", date=DATE)
    assert rig.status(slot_of("quick")) is RunStatus.RUNNING
    assert list(rig.pipelines.waiters.polled()) == []
