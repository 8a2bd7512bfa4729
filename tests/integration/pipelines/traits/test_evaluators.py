"""Evaluators: by reference, isolated from each other, and never raising for what one of them does."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.model.duration import Seconds
from headgate.errors import DefinitionError, StoreBusyError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Trait
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.sensors import Sensors
from headgate.pipelines.traits.breaker import EvaluatorBreakers
from headgate.pipelines.traits.builtin import BuiltinEvaluator
from headgate.pipelines.traits.evaluators import Evaluators, TraitOrder
from headgate.pipelines.traits.http import HttpEvaluator
from headgate.pipelines.traits.isolation import Isolation
from headgate.pipelines.traits.protocol import Answer, Question, passed
from headgate.pipelines.traits.rows import VALUE_BYTES_MAX, TraitResult
from headgate.pipelines.traits.subprocess import ProcessEvaluator
from headgate.pipelines.traits.traits import TraitPush, Traits
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Put, Write
from headgate.store.sqlite.store import SqliteStore
from tests.unit.pipelines.evaluator_rig import NOW, NOW_MS, answering, order, serving, store_in, virtual_clock

PASS, FAIL, ERROR, STALE = TraitStatus.PASS, TraitStatus.FAIL, TraitStatus.ERROR, TraitStatus.STALE
SLOT = Slot("orders", "daily", "2026-03-03")
PROGRAM = "command:" + shlex.join([sys.executable, "-S", "-c", 'print(\'{"status": "PASS"}\')'])


class Rig:
    """Evaluators of every kind on one store."""

    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.traits = Traits(store, clock)
        self.sensors = Sensors(store, clock)
        self.breakers = EvaluatorBreakers(clock)
        self.release = threading.Event()
        self.seen: list[Question] = []
        self.builtins: dict[str, Callable[[Question], Answer]] = {"hang": self._hang, "look": self._look}
        self.evaluators = self.made()

    def made(self, **more: Any) -> Evaluators:
        runs = Runs(self.store, self.clock, IdMaker(self.clock))
        parts: dict[str, Any] = {
            "builtin": BuiltinEvaluator(self.sensors, runs, self.builtins),
            "http": HttpEvaluator(SystemClock(), Destinations(hosts=("127.0.0.1",), plain_http=True)),
            "process": ProcessEvaluator({}),
            "breakers": self.breakers,
            "isolation": Isolation(grace_seconds=0.3),
        }
        return Evaluators(self.clock, self.traits, **{**parts, **more})

    def _hang(self, _question: Question) -> Answer:
        self.release.wait(60)
        return passed("late")

    def _look(self, question: Question) -> Answer:
        self.seen.append(question)
        return passed("seen")

    def stored(self) -> TraitResult | None:
        return self.traits.find("orders", "fresh", SLOT, NOW)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    clock = virtual_clock()
    with store_in(tmp_path, clock) as store:
        rig = Rig(store, clock)
        yield rig
        rig.release.set()


def test_evaluate__each_kind_of_reference__is_asked_and_kept(rig: Rig) -> None:
    rig.sensors.push("orders", "load", {"value": 7})
    with serving(answering(200, b'{"status": "PASS", "reason": "over http"}')) as server:
        kinds: list[tuple[str, dict[str, Any], str]] = [
            ("builtin:sensor-threshold", {"sensorType": "load", "min": 7}, "value of load is 7"),
            (PROGRAM, {}, ""),
            (f"{server.url}/evaluate", {}, "over http"),
        ]
        for reference, config, said in kinds:
            rig.clock.advance(1)
            result = rig.evaluators.evaluate_trait(order(reference, **config), rig.clock.now())
            assert (result.status, result.reason, result.evaluator) == (PASS, said, reference)
            assert rig.stored() == result


def test_evaluate__result__has_the_period_and_is_good_from_when_it_was_answered(rig: Rig) -> None:
    def slow(_question: Question) -> Answer:
        rig.clock.advance(20)
        return passed("done")

    rig.builtins["slow"] = slow
    result = rig.made().evaluate_trait(order("builtin:slow", ttl=10, timeout=30), NOW)
    assert (result.date, result.schedule_id, result.run_id) == ("2026-03-03", "daily", "run_1")
    assert (result.duration_ms, result.evaluated_at_ms, result.expires_at_ms) == (
        20_000, NOW_MS + 20_000, NOW_MS + 30_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("builtin:nothing", "sensor-threshold"),
        ("ftp://example.com", "of no known kind"),
        ("", "of no known kind"),
        ("evaluate.sh", "of no known kind"),
        ("command:/nowhere", "cannot be run"),
        ("https://10.0.0.1/", "not a public address"),
    ],
)
def test_evaluate__reference_leads_nowhere__is_a_permanent_error_that_is_kept__bug_38(
    rig: Rig, reference: str, said: str
) -> None:
    result = rig.evaluators.evaluate_trait(order(reference), NOW)
    assert (result.status, result.category) == (ERROR, FailureCategory.PERMANENT)
    assert said in result.reason
    assert rig.stored() == result


@pytest.mark.parametrize("reference", ["push", "https://example.com/x", "builtin:data-quality", PROGRAM])
def test_check__good_reference__is_accepted(rig: Rig, reference: str) -> None:
    rig.evaluators.check(Trait(evaluator=reference))


def test_check__what_can_never_be_evaluated__is_refused(rig: Rig) -> None:
    for reference in ("builtin:nothing", "nothing", "httpx://example.com"):
        with pytest.raises(DefinitionError, match=reference.partition(":")[0]):
            rig.evaluators.check(Trait(evaluator=reference))
    with pytest.raises(DefinitionError, match="timeout 0"):
        rig.evaluators.check(Trait(evaluator="push", timeout=Seconds(0)))
    with pytest.raises(DefinitionError, match="no programs"):
        rig.made(process=None).check(Trait(evaluator=PROGRAM))


def test_evaluate__no_programs_here__is_an_error_and_runs_nothing(rig: Rig, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    result = rig.made(process=None).evaluate_trait(order(f"command:touch {witness}"), NOW)
    assert (result.status, result.category, witness.exists()) == (ERROR, FailureCategory.PERMANENT, False)


# What evaluators do.


def test_evaluate__evaluator_raises__is_a_crash_and_not_an_exception__bug_42(rig: Rig) -> None:
    def broken(_question: Question) -> Answer:
        found: dict[str, str] = {}
        return passed(found["status"])

    def busy(_question: Question) -> Answer:
        raise StoreBusyError("the store is busy")

    rig.builtins |= {"broken": broken, "busy": busy}
    evaluators = rig.made()
    assert evaluators.evaluate_trait(order("builtin:broken"), NOW).category is FailureCategory.EVALUATOR_CRASH
    rig.clock.advance(1)
    result = evaluators.evaluate_trait(order("builtin:busy"), rig.clock.now())
    assert (result.status, result.category) == (ERROR, FailureCategory.TRANSIENT)


def test_evaluate__one_hangs__the_others_are_not_delayed(rig: Rig) -> None:
    rig.sensors.push("orders", "load", {"value": 7})
    done: dict[str, float] = {}
    began = time.monotonic()
    isolated = rig.made(also=lambda result, _: done.update({result.trait_type: time.monotonic() - began}) or ())
    orders = [
        order("builtin:hang", trait_type="hanging", timeout=3),
        order("builtin:sensor-threshold", trait_type="good", sensorType="load", min=7),
        order(PROGRAM, trait_type="program", timeout=20),
        order("builtin:hang", trait_type="hanging-too", timeout=3),
    ]
    with ThreadPoolExecutor(len(orders)) as threads:
        results = list(threads.map(lambda each: isolated.evaluate_trait(each, NOW), orders))
    assert [(each.trait_type, each.status, each.category) for each in results] == [
        ("hanging", FAIL, FailureCategory.TIMEOUT),
        ("good", PASS, None),
        ("program", PASS, None),
        ("hanging-too", FAIL, FailureCategory.TIMEOUT),
    ]
    assert max(done["good"], done["program"]) < 3 <= min(done["hanging"], done["hanging-too"])
    # They hang side by side.
    assert max(done.values()) < 6


def test_evaluate__server_never_answers__is_bounded_by_the_time_of_the_trait(rig: Rig) -> None:
    def respond(_request: BaseHTTPRequestHandler, _before: int) -> None:
        rig.release.wait(20)

    with serving(respond) as server:
        began = time.monotonic()
        result = rig.evaluators.evaluate_trait(order(f"{server.url}/", timeout=0.5), NOW)
        assert time.monotonic() - began < 4
        rig.release.set()
    assert (result.status, result.category) == (FAIL, FailureCategory.TIMEOUT)
    assert result.reason.startswith("EVALUATOR_TIMEOUT")


def test_evaluate__name_server_hangs__is_bounded_too(rig: Rig) -> None:
    def resolve(_host: str, _port: int) -> list[str]:
        rig.release.wait(60)
        return []

    http = HttpEvaluator(SystemClock(), Destinations(plain_http=True), resolve=resolve)
    began = time.monotonic()
    result = rig.made(http=http).evaluate_trait(order("http://slow.example/", timeout=0.2), NOW)
    assert time.monotonic() - began < 4
    assert result.category is FailureCategory.TIMEOUT


def test_evaluate__service_keeps_failing__is_left_alone_and_others_are_asked__bug_41(rig: Rig) -> None:
    with serving(answering(500)) as bad, serving(answering(200, b'{"status": "PASS"}')) as good:
        statuses = []
        for _ in range(7):
            rig.clock.advance(1)
            statuses.append(rig.evaluators.evaluate_trait(order(bad.url), rig.clock.now()).status)
        assert statuses == [ERROR] * 5 + [FAIL] * 2
        assert len(bad.bodies) == 5
        stored = rig.stored()
        assert stored is not None
        assert (stored.category, "left alone" in stored.reason) == (FailureCategory.TRANSIENT, True)
        rig.clock.advance(1)
        assert rig.evaluators.evaluate_trait(order(good.url), rig.clock.now()).status is PASS
        rig.clock.advance(30)
        rig.evaluators.evaluate_trait(order(bad.url), rig.clock.now())
        assert len(bad.bodies) == 6


def test_evaluate__builtin_fails_for_one_pipeline__is_still_asked_for_another(rig: Rig) -> None:
    def picky(question: Question) -> Answer:
        if question.pipeline_id == "orders":
            raise StoreBusyError("busy")
        return passed("fine")

    rig.builtins["picky"] = picky
    evaluators = rig.made()
    ours = order("builtin:picky")
    for _ in range(6):
        rig.clock.advance(1)
        last = evaluators.evaluate_trait(ours, rig.clock.now())
    assert "left alone" in last.reason
    theirs = TraitOrder(pipeline_id="other", trait_type="fresh", trait=ours.trait)
    assert evaluators.evaluate_trait(theirs, rig.clock.now()).status is PASS


# What is asked and kept.


def test_evaluate__config__has_the_date_and_schedule_of_the_run_and_the_definition_stays__bug_57(rig: Rig) -> None:
    asked = order("builtin:look", depth={"max": 1})
    for date in ("2026-03-03", "2026-03-04"):
        rig.evaluators.evaluate_trait(
            TraitOrder(pipeline_id="orders", trait_type="fresh", trait=asked.trait, date=date, schedule_id="h07"), NOW
        )
    assert [dict(question.config) for question in rig.seen] == [
        {"date": "2026-03-03", "scheduleID": "h07", "depth": {"max": 1}},
        {"date": "2026-03-04", "scheduleID": "h07", "depth": {"max": 1}},
    ]
    assert asked.trait.config == {"depth": {"max": 1}}
    rig.evaluators.evaluate_trait(order("builtin:look", date="2026-03-03", **{}), NOW)
    own = Trait(evaluator="builtin:look", config={"date": "2020-01-01"})
    rig.evaluators.evaluate_trait(TraitOrder(pipeline_id="o", trait_type="t", trait=own, date="2026-03-03"), NOW)
    assert rig.seen[-1].config == {"date": "2020-01-01"}


def test_evaluate__value_is_too_large_or_not_json__result_stands_without_it(rig: Rig) -> None:
    rig.builtins |= {
        "large": lambda _: passed("fine", "x" * VALUE_BYTES_MAX),
        "odd": lambda _: passed("fi\ud800ne\x00", object()),
    }
    evaluators = rig.made()
    large = evaluators.evaluate_trait(order("builtin:large"), NOW)
    assert (large.status, large.value) == (PASS, None)
    assert f"value of {VALUE_BYTES_MAX + 2} bytes is not kept" in large.reason
    odd = evaluators.evaluate_trait(order("builtin:odd"), NOW + timedelta(seconds=1))
    assert (odd.status, odd.reason) == (PASS, "fi ne (its value is not JSON, and not kept)")
    assert rig.stored() == odd


def test_evaluate__events_that_go_with_it__are_written_with_the_result(rig: Rig) -> None:
    def also(result: TraitResult, before: TraitResult | None) -> Sequence[Write]:
        was = None if before is None else before.status.value
        return [Put(PIPELINES, {"PK": "PIPELINE#orders", "SK": f"EVENT#{result.evaluated_at_ms}", "was": was})]

    evaluators = rig.made(also=also)
    evaluators.evaluate_trait(order("builtin:look"), NOW)
    evaluators.evaluate_trait(order("builtin:nothing"), NOW + timedelta(minutes=1))
    keys = [f"EVENT#{NOW_MS}", f"EVENT#{NOW_MS + 60_000}"]
    found = [rig.store.get(PIPELINES, PIPELINES.key_of({"PK": "PIPELINE#orders", "SK": key})) for key in keys]
    assert [item and item["was"] for item in found] == [None, "PASS"]


def test_ask__keeps_nothing(rig: Rig) -> None:
    assert rig.evaluators.ask(order("builtin:look"), NOW).status is PASS
    assert rig.stored() is None


# What is pushed.


def test_evaluate__pushed__is_read_and_left_as_it_is(rig: Rig) -> None:
    missing = rig.evaluators.evaluate_trait(order("push"), NOW)
    assert (missing.status, missing.category) == (FAIL, None)
    assert rig.stored() is None
    rig.traits.push("orders", "fresh", TraitPush(status="PASS", ttl_seconds=60, reason="checked", by="ann"))
    found = rig.evaluators.evaluate_trait(order("push"), NOW)
    assert (found.status, found.reason, found.by) == (PASS, "checked", "ann")
    late = rig.evaluators.evaluate_trait(order("push"), NOW + timedelta(seconds=61))
    assert (late.status, late.reason) == (STALE, "it expired 1 s ago; it was PASS: checked")
    stored = rig.stored()
    assert stored is not None
    assert (stored.status, len(rig.traits.history("orders", "fresh"))) == (PASS, 1)


def test_evaluate__pushed_for_another_period__is_not_taken_for_this(rig: Rig) -> None:
    rig.traits.push("orders", "fresh", TraitPush(status="PASS", ttl_seconds=60, date="2026-03-02"))
    assert rig.evaluators.ask(order("push"), NOW).status is FAIL
    assert rig.evaluators.ask(order("push", date="2026-03-02"), NOW).status is PASS
