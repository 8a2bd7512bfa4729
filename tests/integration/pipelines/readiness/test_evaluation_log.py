"""Evaluations kept and remembered, and the facts that they are made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, StoreBusyError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import History, Period, Pipeline, Readiness, Rule, Schedule, Trait, Upstream
from headgate.pipelines.enums import RunStatus, TraitStatus, Verdict
from headgate.pipelines.readiness.evaluation_log import Evaluations, Outlook, Purpose, StoredEvaluation
from headgate.pipelines.rules.facts import DatasetFact, FactReader, Facts, TraitFact
from headgate.pipelines.rules.readiness import readiness_of
from headgate.pipelines.rules.rules import compile_readiness, compile_rules, evaluate
from headgate.pipelines.runs.rows import RunLog, Slot, run_log_put
from headgate.pipelines.schedule.related_periods import RelatedPeriods
from headgate.pipelines.sensors import Sensors
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Put
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

SLOT = Slot("silver", "daily", "2026-03-03")
SILVER = Pipeline(id="silver", readiness=Readiness(rules=(Rule(key="orders", stable_for=2), Rule(key="refunds"))))
BRONZE = Pipeline(id="bronze", period=Period.HOURLY, schedules=(Schedule(name="hourly", timezone="Europe/Berlin"),))
MINUTE = 60.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_772_517_600.0)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


@pytest.fixture
def evaluations(store: Store, clock: VirtualClock) -> Evaluations:
    return Evaluations(store, clock, IdMaker(clock))


def find(pipeline_id: str) -> Pipeline | None:
    return {"silver": SILVER, "bronze": BRONZE}.get(pipeline_id)


@pytest.fixture
def reader(store: Store, clock: VirtualClock) -> FactReader:
    return FactReader(store, Sensors(store, clock), RelatedPeriods(find))


def cycle(
    reader: FactReader, evaluations: Evaluations, clock: VirtualClock, *, run_id: str = "run_1", spacing: float = 0.0
) -> StoredEvaluation:
    """Look at a pipeline once, as its lifecycle does."""
    compiled = compile_readiness(SILVER.readiness)
    memory = evaluations.memory(SLOT, run_id=run_id, spacing_seconds=spacing)
    facts = reader.gather(SILVER, SLOT, compiled.needs, clock.now(), memory=memory)
    evaluation = evaluate(compiled, facts, clock.now())
    verdict = readiness_of(evaluation, facts.traits, SILVER)
    return evaluations.put(SLOT, evaluation, verdict, facts=facts, outlook=Outlook(run_id=run_id, next_at_ms=9))


def test_put__every_evaluation__comes_back_whole_and_the_latest_first(
    reader: FactReader, evaluations: Evaluations, store: Store, clock: VirtualClock
) -> None:
    first = cycle(reader, evaluations, clock)
    Sensors(store, clock).push("silver", "orders", {"count": 1})
    clock.advance(5 * MINUTE)
    second = cycle(reader, evaluations, clock)
    assert evaluations.ls(SLOT).evaluations == [second, first]
    assert evaluations.latest(SLOT) == second
    assert second.seen["orders"].version == 1
    assert [result.verdict for result in second.evaluation.results] == [Verdict.UNKNOWN, Verdict.FAIL]
    # The second has been missing since the first look.
    assert second.evaluation.results[1].since_ms == first.at_ms
    page = evaluations.ls(SLOT, limit=1)
    assert evaluations.ls(SLOT, limit=1, cursor=page.cursor).evaluations == [first]


def test_memory__stability__survives_between_processes(
    reader: FactReader, evaluations: Evaluations, store: Store, clock: VirtualClock
) -> None:
    Sensors(store, clock).push("silver", "orders", {})
    assert cycle(reader, evaluations, clock).evaluation.results[0].verdict is Verdict.UNKNOWN
    clock.advance(5 * MINUTE)
    elsewhere = Evaluations(store, clock, IdMaker(clock))
    assert cycle(reader, elsewhere, clock).evaluation.results[0].verdict is Verdict.PASS


def test_memory__of_another_run__counts_for_nothing(
    reader: FactReader, evaluations: Evaluations, store: Store, clock: VirtualClock
) -> None:
    Sensors(store, clock).push("silver", "orders", {})
    cycle(reader, evaluations, clock, run_id="run_1")
    clock.advance(5 * MINUTE)
    assert cycle(reader, evaluations, clock, run_id="run_2").evaluation.results[0].passes == 1


def test_memory__a_task_tried_again__counts_once(
    reader: FactReader, evaluations: Evaluations, store: Store, clock: VirtualClock
) -> None:
    Sensors(store, clock).push("silver", "orders", {})
    for seconds, expected in ((0, 1), (2, 1), (4, 1), (150, 2)):
        clock.advance(seconds)
        assert cycle(reader, evaluations, clock, spacing=150.0).evaluation.results[0].passes == expected


def test_put__with_a_write_that_is_refused__keeps_nothing(evaluations: Evaluations, clock: VirtualClock) -> None:
    evaluation = evaluate(compile_rules([]), Facts(), clock.now())
    refused = Put(PIPELINES, {"PK": "a", "SK": "b"}, exists())
    with pytest.raises(ConflictError):
        evaluations.put(SLOT, evaluation, readiness_of(evaluation, {}, SILVER), also=[refused])
    assert evaluations.latest(SLOT) is None
    assert evaluations.cached("silver") is None


def test_purposes__are_kept_apart(evaluations: Evaluations, clock: VirtualClock) -> None:
    evaluation = evaluate(compile_rules([Rule(key="orders")]), Facts(), clock.now())
    verdict = readiness_of(evaluation, {}, SILVER)
    after = evaluations.put(SLOT, evaluation, verdict, purpose=Purpose.POST_RUN)
    assert evaluations.latest(SLOT) is None
    assert evaluations.memory(SLOT) is None
    assert evaluations.latest(SLOT, purpose=Purpose.POST_RUN) == after
    # The summary of a pipeline shows its readiness, not what came after.
    assert evaluations.cached("silver") is None


def test_latest__other_periods_and_schedules__are_not_it(evaluations: Evaluations, clock: VirtualClock) -> None:
    evaluation = evaluate(compile_rules([]), Facts(), clock.now())
    for slot in (
        SLOT._replace(date="2026-03-03T07"),
        SLOT._replace(schedule_id="daily-eu"),
        SLOT._replace(date="2026-03"),
    ):
        evaluations.put(slot, evaluation, readiness_of(evaluation, {}, SILVER))
    assert evaluations.latest(SLOT) is None


def test_cached__for_five_minutes__then_gone(reader: FactReader, evaluations: Evaluations, clock: VirtualClock) -> None:
    stored = cycle(reader, evaluations, clock)
    cached = evaluations.cached("silver")
    assert cached is not None
    assert (cached.evaluation_id, cached.result) == (stored.evaluation_id, stored.verdict.result)
    assert cached.blocking == stored.verdict.blocking
    clock.advance(301)
    assert evaluations.cached("silver") is None
    assert evaluations.latest(SLOT) is not None


def test_retention__thirty_days__then_gone(reader: FactReader, evaluations: Evaluations, clock: VirtualClock) -> None:
    # D19
    cycle(reader, evaluations, clock)
    clock.advance(29 * 86_400)
    assert evaluations.latest(SLOT) is not None
    clock.advance(2 * 86_400)
    assert evaluations.latest(SLOT) is None


def test_put__deepest_and_most_rules__comes_back_whole(evaluations: Evaluations, clock: VirtualClock) -> None:
    deep = Rule(key="orders", check="equals", field="f", value="x" * 1000)
    for _ in range(11):
        deep = Rule(all=(deep,))
    wide = [Rule(key=f"s{number}", name="n" * 500) for number in range(900)]
    evaluation = evaluate(compile_rules([deep, *wide]), Facts(), clock.now())
    stored = evaluations.put(SLOT, evaluation, readiness_of(evaluation, {}, SILVER))
    assert evaluations.latest(SLOT) == stored


# Facts.


def _log(store: Store, pipeline_id: str, schedule_id: str, date: str, status: RunStatus) -> None:
    of_slot = Slot(pipeline_id, schedule_id, date)._asdict()
    log = RunLog(**of_slot, status=status, version=1, created_at_ms=1, updated_at_ms=1)
    store.transact([run_log_put(log)])


def _upstreams(reader: FactReader, clock: VirtualClock, *upstreams: Upstream, slot: Slot = SLOT) -> list[Verdict]:
    compiled = compile_rules([Rule(upstream=upstream) for upstream in upstreams])
    facts = reader.gather(SILVER, slot, compiled.needs, clock.now())
    return [result.verdict for result in evaluate(compiled, facts, clock.now()).results]


@pytest.mark.parametrize(("date", "hours"), [("2026-03-03", 24), ("2026-03-29", 23), ("2026-10-25", 25)])
@pytest.mark.parametrize("schedule", ["hourly", None])
def test_upstream__all_hours_of_a_day__through_clock_changes(
    reader: FactReader, store: Store, clock: VirtualClock, date: str, hours: int, schedule: str | None
) -> None:
    upstream = Upstream(pipeline="bronze", schedule=schedule, periods="all")
    berlin = replace(SILVER, timezone="Europe/Berlin")
    bronze = replace(BRONZE, timezone="Europe/Berlin")
    related = RelatedPeriods({"bronze": bronze}.get)
    dates = related.of_upstream(berlin, upstream, date)
    assert len(dates) == hours
    for each in dates[:-1]:
        _log(store, "bronze", "hourly", each, RunStatus.COMPLETED)
    reader = FactReader(store, Sensors(store, clock), related)
    compiled = compile_rules([Rule(upstream=upstream)])

    def verdict() -> Verdict:
        facts = reader.gather(berlin, SLOT._replace(date=date), compiled.needs, clock.now())
        return evaluate(compiled, facts, clock.now()).verdict

    assert verdict() is Verdict.FAIL
    _log(store, "bronze", "hourly", dates[-1], RunStatus.COMPLETED)
    assert verdict() is Verdict.PASS


def test_upstream__same_and_previous__by_the_run_s_own_date(
    reader: FactReader, store: Store, clock: VirtualClock
) -> None:
    same, before = Upstream(pipeline="silver"), Upstream(pipeline="silver", periods="previous")
    assert _upstreams(reader, clock, same, before) == [Verdict.FAIL, Verdict.FAIL]
    _log(store, "silver", "daily", "2026-03-02", RunStatus.COMPLETED)
    assert _upstreams(reader, clock, same, before) == [Verdict.FAIL, Verdict.PASS]
    # bug 64, bug 16: the wall clock has nothing to do with it.
    clock.advance(40 * 86_400)
    assert _upstreams(reader, clock, same, before) == [Verdict.FAIL, Verdict.PASS]


def test_upstream__without_schedule__every_one_that_has_begun(
    reader: FactReader, store: Store, clock: VirtualClock
) -> None:
    upstream = Upstream(pipeline="silver")
    _log(store, "silver", "am", "2026-03-03", RunStatus.COMPLETED)
    assert _upstreams(reader, clock, upstream) == [Verdict.PASS]
    _log(store, "silver", "pm", "2026-03-03", RunStatus.RUNNING)
    assert _upstreams(reader, clock, upstream) == [Verdict.FAIL]
    assert _upstreams(reader, clock, replace(upstream, schedule="am")) == [Verdict.PASS]


def test_upstream__that_cannot_be__is_unknown_and_says_why(reader: FactReader, clock: VirtualClock) -> None:
    nobody, odd = Upstream(pipeline="nobody"), Upstream(pipeline="bronze", periods="some")
    assert _upstreams(reader, clock, nobody, odd) == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    compiled = compile_rules([Rule(upstream=nobody)])
    facts = reader.gather(SILVER, SLOT, compiled.needs, clock.now())
    assert "no pipeline has this id" in facts.upstreams[nobody].problem


def test_history__earlier_periods__of_the_run_s_own_date(reader: FactReader, store: Store, clock: VirtualClock) -> None:
    sensors = Sensors(store, clock)
    for day, count in ((1, 100), (2, 110), (3, 500), (4, 9_000)):
        sensors.push("silver", "orders", {"count": count, "date": f"2026-03-{day:02d}"})
    rule = Rule(key="orders", field="count", history=History(periods=7, within=0.2))
    compiled = compile_rules([rule])
    facts = reader.gather(SILVER, SLOT, compiled.needs, clock.now())
    assert [data["count"] for data in facts.history["orders"]] == [110, 100]
    assert evaluate(compiled, facts, clock.now()).verdict is Verdict.FAIL


def test_gather__traits_and_datasets__asked_only_where_needed(store: Store, clock: VirtualClock) -> None:
    asked: list[object] = []

    def traits(pipeline: Pipeline, slot: Slot, _now: object) -> dict[str, TraitFact]:
        asked.append((pipeline.id, slot))
        return {"fresh": TraitFact(status=TraitStatus.PASS)}

    def gate(datasets: Sequence[str]) -> dict[str, DatasetFact]:
        asked.append(tuple(datasets))
        return {each: DatasetFact(verdict=Verdict.PASS) for each in datasets}

    reader = FactReader(store, Sensors(store, clock), RelatedPeriods(find), traits=traits, gate=gate)
    reader.gather(SILVER, SLOT, compile_rules([Rule(key="orders")]).needs, clock.now())
    assert asked == []
    rules = compile_rules([Rule(dataset="urn:dp:a"), Rule(trait="fresh"), Rule(dataset="urn:dp:a")])
    facts = reader.gather(SILVER, SLOT, rules.needs, clock.now())
    assert asked == [("silver", SLOT), ("urn:dp:a",)]
    assert evaluate(rules, facts, clock.now()).verdict is Verdict.PASS
    with_traits = replace(SILVER, readiness=Readiness(traits={"fresh": Trait(evaluator="push")}))
    assert "fresh" in reader.gather(with_traits, SLOT, compile_rules([]).needs, clock.now()).traits


def test_gate__cannot_be_asked__is_unknown_and_the_rest_goes_on(store: Store, clock: VirtualClock) -> None:
    def gate(_datasets: Sequence[str]) -> dict[str, DatasetFact]:
        raise StoreBusyError("busy")

    reader = FactReader(store, Sensors(store, clock), RelatedPeriods(find), gate=gate)
    Sensors(store, clock).push("silver", "orders", {})
    rules = compile_rules([Rule(dataset="urn:dp:a"), Rule(key="orders")])
    results = evaluate(rules, reader.gather(SILVER, SLOT, rules.needs, clock.now()), clock.now()).results
    assert [result.verdict for result in results] == [Verdict.UNKNOWN, Verdict.PASS]
    assert results[0].reason == "urn:dp:a: the gate could not be read: busy"
