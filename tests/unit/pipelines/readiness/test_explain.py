"""Why: a sentence and a tree for every way in which a run can be where it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import (
    Exclusions,
    Inclusions,
    Period,
    Pipeline,
    Readiness,
    Rule,
    Schedule,
    SensorTrigger,
    Trait,
    Upstream,
)
from headgate.pipelines.enums import (
    Cause,
    ControlState,
    FailureCategory,
    JobEvent,
    RerunReason,
    RunStatus,
    Severity,
    TraitStatus,
    Verdict,
)
from headgate.pipelines.readiness.evaluation_log import Evaluations, Outlook, Purpose, StoredEvaluation
from headgate.pipelines.readiness.explain import Explainer, PeriodSnapshot, PeriodState, as_text, why
from headgate.pipelines.rules.facts import DatasetFact, Facts, TraitFact
from headgate.pipelines.rules.readiness import readiness_of
from headgate.pipelines.rules.rules import compile_readiness, evaluate
from headgate.pipelines.runs.controls import Control, Controls
from headgate.pipelines.runs.locks import Lock, Locks, evaluation_key
from headgate.pipelines.runs.rerun_rows import Rerun, RerunStatus
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Attempt, Directive, Order, RunLog, Slot, run_log_put
from headgate.pipelines.schedule.due_checks import Due, due_of
from headgate.pipelines.sensors import Sensor
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

SLOT = Slot("silver-orders", "daily", "2026-03-03")
# 06:30 in Berlin, where the pipeline is.
NOW = datetime(2026, 3, 3, 5, 30, tzinfo=UTC)
SIX = datetime(2026, 3, 3, 5, 0, tzinfo=UTC)
RULES = (
    Rule(key="orders", check="gte", field="count", value=5),
    Rule(key="refunds"),
    Rule(key="orders-landed"),
)
PIPELINE = Pipeline(id="silver-orders", timezone="Europe/Berlin", readiness=Readiness(rules=RULES))
KNOWN = Facts(sensors={"orders": Sensor(key="orders", data={"count": 9}), "refunds": Sensor(key="refunds", data={})})


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def at(hour: int, minute: int = 0, *, day: int = 3) -> int:
    """A time of the day in Berlin."""
    return ms(datetime(2026, 3, day, hour, minute, tzinfo=UTC) - timedelta(hours=1))


def evaluated(
    pipeline: Pipeline = PIPELINE, facts: Facts = KNOWN, *, closes_at_ms: int | None = None, moment: datetime = SIX
) -> StoredEvaluation:
    evaluation = evaluate(compile_readiness(pipeline.readiness), facts, moment)
    clock = VirtualClock(moment.timestamp())
    return StoredEvaluation(
        evaluation_id=IdMaker(clock).make("readiness"),
        **SLOT._asdict(),
        purpose=Purpose.READINESS,
        at_ms=ms(moment),
        evaluation=evaluation,
        verdict=readiness_of(evaluation, facts.traits, pipeline),
        traits=dict(facts.traits),
        next_at_ms=at(6, 35),
        window_closes_at_ms=closes_at_ms if closes_at_ms is not None else at(7),
    )


def log(status: RunStatus, **more: Any) -> RunLog:
    given: dict[str, Any] = {"version": 1, "created_at_ms": at(6), "updated_at_ms": at(6, 10), **more}
    return RunLog(**SLOT._asdict(), status=status, **given)


def explain(**known: Any) -> tuple[PeriodState, str]:
    explanation = why(PeriodSnapshot(pipeline=PIPELINE, slot=SLOT, now=NOW, **known))
    return explanation.state, explanation.sentence.removeprefix("silver-orders of 2026-03-03 ")


def lock(acquired_at_ms: int = at(6, 5)) -> Lock:
    return Lock(
        key=evaluation_key(SLOT), owner="exec-1", token="t", version=1, acquired_at_ms=acquired_at_ms,
        expires_at=at(9) // 1000,
    )  # fmt: skip


def test_waiting__a_sensor_missing__one_sentence_with_all_times() -> None:
    explanation = why(
        PeriodSnapshot(pipeline=PIPELINE, slot=SLOT, now=NOW, evaluation=evaluated(), lock=lock(at(5, 59)))
    )
    assert explanation.state is PeriodState.WAITING
    assert explanation.sentence == (
        "silver-orders of 2026-03-03 has not started: 2 of 3 rules hold; orders-landed is missing since 06:00 CET; "
        "next evaluation at 06:35 CET, the window closes at 07:00 CET"
    )


DUE = Due(due_at_ms=at(6), schedule='cron "0 6 * * *"')
CASES: list[tuple[PeriodState, str, dict[str, Any]]] = [
    (
        PeriodState.DONE,
        "is done since 06:20 CET, by run_1",
        {"log": log(RunStatus.COMPLETED, ended_at_ms=at(6, 20), succeeded_run_id="run_1")},
    ),
    (
        PeriodState.DONE,
        "is done since 06:20 CET, by run_1, and is monitored for changes",
        {"log": log(RunStatus.COMPLETED_MONITORING, ended_at_ms=at(6, 20), succeeded_run_id="run_1")},
    ),
    (
        PeriodState.DONE,
        "is done since 06:10 CET, as marked by anna",
        {"log": log(RunStatus.COMPLETED, order=Directive(Order.MARK_SUCCESS, "anna", "by hand", at(6)))},
    ),
    (
        PeriodState.SKIPPED,
        "was skipped by anna at 06:00 CET: no data today",
        {"log": log(RunStatus.CANCELLED, order=Directive(Order.SKIP, "anna", "no data today", at(6)))},
    ),
    (
        PeriodState.CANCELLED,
        "was cancelled at 06:10 CET: wrong file",
        {"log": log(RunStatus.CANCELLED, reason="wrong file")},
    ),
    (
        PeriodState.FAILED,
        "failed at 06:20 CET, attempt 3 (TIMEOUT): job took too long",
        {
            "log": log(
                RunStatus.FAILED, attempts=3, ended_at_ms=at(6, 20), category=FailureCategory.TIMEOUT,
                reason="job took too long",
            )
        },
    ),
    (
        PeriodState.FAILED,
        "failed at 06:20 CET: its sensor did not come",
        {"log": log(RunStatus.FAILED, attempts=0, ended_at_ms=at(6, 20), reason="its sensor did not come")},
    ),
    (
        PeriodState.EXHAUSTED,
        "never became ready before its window closed at 06:20 CET: 2 of 3 rules hold; "
        "orders-landed is missing since 06:00 CET",
        {
            "log": log(RunStatus.FAILED, event=JobEvent.VALIDATION_EXHAUSTED, ended_at_ms=at(6, 20)),
            "evaluation": evaluated(),
        },
    ),
    (
        PeriodState.RUNNING,
        "is running since 06:05 CET, attempt 2 (run_2)",
        {"log": log(RunStatus.RUNNING, attempts=2, run_id="run_2", begun_at_ms=at(6, 5))},
    ),
    (
        PeriodState.PAUSED,
        "has not started: anna paused the pipeline at 2026-03-02 18:00 CET until 08:00 CET: source is moving",
        {
            "control": Control(
                pipeline_id="silver-orders", state=ControlState.PAUSED, by="anna", reason="source is moving",
                since_ms=at(18, day=2), until_ms=at(8),
            ),
            "evaluation": evaluated(),
            "due": DUE,
        },
    ),
    (
        PeriodState.TRIPPED,
        "has not started: 5 failures in a row stopped the pipeline at 05:00 CET; resume it when the cause is fixed",
        {
            "control": Control(
                pipeline_id="silver-orders", state=ControlState.TRIPPED, failures_in_a_row=5, since_ms=at(5)
            )
        },
    ),
    (
        PeriodState.HELD,
        "has not started: anna holds it since 06:00 CET until someone approves it: check first",
        {
            "log": log(RunStatus.PENDING, hold=Directive(Order.HOLD, "anna", "check first", at(6))),
            "evaluation": evaluated(),
        },
    ),
    (
        PeriodState.EXCLUDED,
        "has not started and will not: the calendar leaves it out, a Sunday",
        {"due": Due(excluded="a Sunday")},
    ),
    (
        PeriodState.EXHAUSTED,
        "has not started and its window closed at 06:25 CET: 2 of 3 rules hold; "
        "orders-landed is missing since 06:00 CET",
        {"evaluation": evaluated(closes_at_ms=at(6, 25))},
    ),
    (
        PeriodState.LOCKED,
        "has not started: exec-1 holds its lock since 06:05 CET and has evaluated nothing yet; "
        "the lock expires at 09:00 CET",
        {"lock": lock(), "due": DUE},
    ),
    (
        # What was evaluated belongs to an attempt before.
        PeriodState.LOCKED,
        "has not started: exec-1 holds its lock since 06:05 CET and has evaluated nothing yet; "
        "the lock expires at 09:00 CET",
        {"lock": lock(), "evaluation": evaluated(closes_at_ms=at(6, 4)), "due": DUE},
    ),
    (
        PeriodState.NOT_DUE,
        'has not started: it is not due before 07:00 CET (cron "0 7 * * *")',
        {"due": Due(due_at_ms=at(7), schedule='cron "0 7 * * *"')},
    ),
    (
        PeriodState.NOT_DUE,
        "has not started: it is not due before 2026-03-04 06:00 CET (after 06:00)",
        {"due": Due(due_at_ms=at(6, day=4), schedule="after 06:00")},
    ),
    (
        PeriodState.NOT_DUE,
        "has not started: no schedule names a Tuesday",
        {"due": Due(unscheduled="no schedule names a Tuesday")},
    ),
    (
        PeriodState.AWAITING,
        "has not started: it waits for sensor orders-landed",
        {"due": Due(awaited="sensor orders-landed")},
    ),
    (
        PeriodState.UNASKED,
        'has not started though it was due at 06:00 CET (cron "0 6 * * *"): nothing was evaluated, '
        "and its lock is free; is the engine running?",
        {"due": DUE},
    ),
    (
        PeriodState.UNASKED,
        "has not started: no start was requested, and no schedule names it",
        {},
    ),
    (
        PeriodState.UNASKED,
        "has not started: no start was requested, and no schedule names it",
        {"control": Control(pipeline_id="silver-orders"), "log": log(RunStatus.PENDING)},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("standing", "sentence", "known"), CASES)
def test_why__circumstances__what_comes_first_in_the_way(
    standing: PeriodState, sentence: str, known: dict[str, Any]
) -> None:
    assert explain(**known) == (standing, sentence)


def rerun(status: RerunStatus, **more: Any) -> Rerun:
    return Rerun(
        **SLOT._asdict(), rerun_id="rerun_1", reason=RerunReason.DATA_DRIFT, status=status, version=2,
        requested_at_ms=at(6, 20), by="ana", decided_at_ms=at(6, 21), **more,
    )  # fmt: skip


def test_why__done_period_whose_rerun_waits__says_both() -> None:
    state, sentence = explain(
        log=log(RunStatus.PENDING, succeeded_at_ms=at(6, 5), succeeded_run_id="run_1", rerun_id="rerun_1"),
        rerun=rerun(RerunStatus.ACCEPTED),
        evaluation=evaluated(),
    )

    assert state is PeriodState.WAITING
    assert sentence.startswith(
        "was done at 06:05 CET, by run_1; its rerun rerun_1 (data-drift) has not started: 2 of 3"
    )


def test_why__rejected_rerun__says_so_until_another_run_starts() -> None:
    rejected = rerun(RerunStatus.REJECTED, decision="1 of 1 drift reruns of the period are used up")
    done = {"succeeded_at_ms": at(6, 5), "succeeded_run_id": "run_1", "ended_at_ms": at(6, 5)}

    _, sentence = explain(log=log(RunStatus.COMPLETED, begun_at_ms=at(6), **done), rerun=rejected)
    _, later = explain(log=log(RunStatus.COMPLETED, begun_at_ms=at(6, 25), **done), rerun=rejected)

    assert sentence == (
        "is done since 06:05 CET, by run_1; rerun rerun_1 of ana was rejected at 06:21 CET: 1 of 1 drift reruns of the "
        "period are used up"
    )
    assert later == "is done since 06:05 CET, by run_1"


def test_why__a_pause_that_is_over__is_not_in_the_way() -> None:
    over = Control(pipeline_id="silver-orders", state=ControlState.PAUSED, by="anna", until_ms=at(6, 29))
    assert explain(control=over, due=DUE)[0] is PeriodState.UNASKED


def test_why__a_lock_that_ran_out__is_not_in_the_way() -> None:
    assert explain(lock=replace(lock(), expires_at=at(6, 30) // 1000), due=DUE)[0] is PeriodState.UNASKED


def test_why__ready_or_error__said_so() -> None:
    there = replace(KNOWN, sensors={**KNOWN.sensors, "orders-landed": Sensor(key="orders-landed", data={})})
    assert explain(evaluation=evaluated(facts=there)) == (
        PeriodState.READY,
        "is ready since 06:00 CET and about to start: 3 of 3 rules hold",
    )
    pipeline = replace(PIPELINE, readiness=replace(PIPELINE.readiness, traits={"fresh": Trait(evaluator="push")}))
    failed = replace(there, traits={"fresh": TraitFact(status=TraitStatus.ERROR, reason="HTTP 404")})
    standing, sentence = explain(evaluation=evaluated(pipeline, failed))
    assert standing is PeriodState.ERROR
    assert sentence.startswith("has not started: the evaluation failed: trait fresh is ERROR: HTTP 404")


def test_tree__everything_known__line_by_line() -> None:
    rules = (*RULES, Rule(any=(Rule(key="eu"), Rule(key="us")), name="a region", severity=Severity.WARN))
    traits = {"fresh": Trait(evaluator="push"), "quality": Trait(evaluator="push")}
    pipeline = replace(PIPELINE, readiness=Readiness(rules=rules, traits=traits))
    facts = replace(KNOWN, traits={"fresh": TraitFact(status=TraitStatus.STALE, reason="expired")})
    attempt = Attempt(
        number=1, run_id="run_1", status=RunStatus.FAILED, cause=Cause.CRON, begun_at_ms=at(5), reason="exit 1"
    )
    stored = evaluated(pipeline, facts)
    explanation = why(
        PeriodSnapshot(
            pipeline=pipeline,
            slot=SLOT,
            now=NOW,
            evaluation=stored,
            lock=lock(at(5, 59)),
            log=log(RunStatus.PENDING, attempts=1, history=(attempt,)),
            due=DUE,
        )
    )
    lines = as_text(explanation.tree).splitlines()
    assert lines[0].startswith("[waiting] silver-orders of 2026-03-03: has not started: 2 of 3 rules hold")
    assert lines[1:] == [
        '  [DUE] due: 06:00 CET (cron "0 6 * * *")',
        "  [TAKEN] lock: by exec-1 until 09:00 CET",
        f"  [not_ready] evaluation {stored.evaluation_id}: 2 of 3 rules hold at 06:00 CET; "
        "next evaluation at 06:35 CET, the window closes at 07:00 CET",
        "    [PASS] orders.count: orders.count is 9",
        "    [PASS] refunds: refunds is there",
        "    [FAIL] orders-landed: orders-landed is missing, since 06:00 CET",
        "    [FAIL] a region (warns only): 0 of 2 hold, one is needed, since 06:00 CET",
        "      [FAIL] eu: eu is missing, since 06:00 CET",
        "      [FAIL] us: us is missing, since 06:00 CET",
        "    [STALE] trait fresh: expired",
        "    [MISSING] trait quality: no result",
        "  [PENDING] attempts: 1 in all",
        "    [FAILED] attempt 1 (run_1): cron, begun at 05:00 CET: exit 1",
    ]


# From calendars and schedules.


def test_tree__a_dataset__is_named_once() -> None:
    urn = "urn:dp:shop:orders:v1"
    pipeline = replace(PIPELINE, readiness=Readiness(rules=(Rule(dataset=urn),)))
    facts = replace(KNOWN, datasets={urn: DatasetFact(verdict=Verdict.FAIL, reason="VOLUME is CRITICAL")})
    stored = evaluated(pipeline, facts)

    explanation = why(PeriodSnapshot(pipeline=pipeline, slot=SLOT, now=NOW, evaluation=stored))

    assert f"{urn}: VOLUME is CRITICAL since" in explanation.sentence
    assert as_text(explanation.tree).splitlines()[-1].startswith(f"    [FAIL] {urn}: VOLUME is CRITICAL, since")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(cron="0 6 * * *"), Due(due_at_ms=at(6), schedule='cron "0 6 * * *"')),
        (
            Schedule(cron="0 5 * * *", after="06:30"),
            Due(due_at_ms=at(6, 30), schedule='cron "0 5 * * *", after 06:30'),
        ),
        (Schedule(after="06:00"), Due(due_at_ms=at(6), schedule="after 06:00")),
        (Schedule(cron="0 6 * * SUN"), Due(unscheduled='no time of cron "0 6 * * SUN" is for 2026-03-03')),
        (Schedule(sensor=SensorTrigger(key="orders")), Due(awaited="sensor orders")),
        (
            Schedule(upstream=(Upstream(pipeline="bronze"),), event="order.closed"),
            Due(awaited="upstream bronze or event order.closed"),
        ),
    ],
)
def test_due__a_schedule__said_in_words(schedule: Schedule, expected: Due) -> None:
    pipeline = replace(PIPELINE, schedules=(replace(schedule, name="daily"),))
    assert due_of(pipeline, SLOT, {}) == expected


def test_due__dormant_unknown_or_without_schedules__says_so() -> None:
    def due(*schedules: Schedule) -> Due:
        return due_of(replace(PIPELINE, schedules=schedules), SLOT, {})

    assert (
        "2026-03-03"
        in due(Schedule(name="daily", cron="0 6 * * *", exclude=Exclusions(dates=("2026-03-03",)))).excluded
    )
    included = Schedule(name="daily", cron="0 6 * * *", include=Inclusions(dates=("2026-03-04",)))
    assert due(included).excluded == "2026-03-03: not one of the days that are included"
    assert due(Schedule(name="am", cron="0 6 * * *")) == Due(unscheduled="it has no schedule daily; it has am")
    assert due() == Due(awaited="a marker or an operator to start it: it has no schedules")


def test_due__an_hour__is_due_once_it_is_over() -> None:
    hourly = replace(PIPELINE, period=Period.HOURLY, schedules=(Schedule(name="daily", cron="5 * * * *"),))
    assert due_of(hourly, SLOT._replace(date="2026-03-03T05"), {}).due_at_ms == at(6, 5)


# From what is stored.


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(SIX.timestamp())


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


@pytest.mark.integration
def test_explainer__one_period_through_its_day__from_storage_alone(store: Store, clock: VirtualClock) -> None:
    ids = IdMaker(clock)
    evaluations, controls, locks = Evaluations(store, clock, ids), Controls(store, clock), Locks(store, clock, ids)
    reruns = Reruns(store, clock, ids)
    explainer = Explainer(store, clock, evaluations=evaluations, controls=controls, locks=locks, reruns=reruns)

    def standing() -> PeriodState:
        return explainer.why(PIPELINE, SLOT, DUE).state

    clock.step(-60)
    assert standing() is PeriodState.NOT_DUE
    clock.step(60)
    assert standing() is PeriodState.UNASKED
    locks.acquire(evaluation_key(SLOT), "exec-1", 3_600)
    assert standing() is PeriodState.LOCKED
    evaluation = evaluate(compile_readiness(PIPELINE.readiness), KNOWN, clock.now())
    outlook = Outlook(next_at_ms=at(6, 5), window_closes_at_ms=at(7))
    evaluations.put(SLOT, evaluation, readiness_of(evaluation, {}, PIPELINE), outlook=outlook)
    assert standing() is PeriodState.WAITING
    controls.pause("silver-orders", by="anna", reason="wait for the source")
    assert standing() is PeriodState.PAUSED
    controls.resume("silver-orders", by="anna", reason="it is there")
    clock.advance(3_600)
    assert standing() is PeriodState.EXHAUSTED
    store.transact([run_log_put(log(RunStatus.COMPLETED, succeeded_run_id="run_1"))])
    assert standing() is PeriodState.DONE
