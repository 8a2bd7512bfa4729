"""Traits: kept by type and period, good for a while, pushed from outside, with a history that stays short."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, CorruptionError, InvalidPayloadError
from headgate.pipelines.definition.model import Pipeline, PostRun, Readiness, Rule, Trait
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.rules.facts import TraitFact
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.traits.rows import HISTORY_MAX, RETENTION_SECONDS, VALUE_BYTES_MAX, TraitResult
from headgate.pipelines.traits.traits import TraitPush, Traits
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Check, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.unit.pipelines.evaluator_rig import NOW, NOW_MS, store_in, virtual_clock

TODAY = Slot("orders", "daily", "2026-03-03")
YESTERDAY = Slot("orders", "daily", "2026-03-02")
PASS, FAIL, ERROR, STALE = TraitStatus.PASS, TraitStatus.FAIL, TraitStatus.ERROR, TraitStatus.STALE


class Rig:
    def __init__(self, store: SqliteStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock
        self.traits = Traits(store, clock)

    def push(self, status: str = "PASS", ttl: float = 300, trait_type: str = "fresh", **more: Any) -> TraitResult:
        push = TraitPush(status=status, ttl_seconds=ttl, **more)
        return self.traits.push("orders", trait_type, push)

    def record(self, status: TraitStatus, slot: Slot | None = TODAY, **more: Any) -> TraitResult:
        now_ms = int(self.clock.seconds() * 1000)
        period = {} if slot is None else {"date": slot.date, "schedule_id": slot.schedule_id}
        given: dict[str, Any] = {"evaluated_at_ms": now_ms, "expires_at_ms": now_ms + 300_000, **period, **more}
        return self.traits.record(TraitResult(pipeline_id="orders", trait_type="fresh", status=status, **given))

    def status(self, slot: Slot = TODAY, trait_type: str = "fresh") -> TraitStatus | None:
        fact = self.traits.read("orders", [trait_type], slot, self.clock.now()).get(trait_type)
        return None if fact is None else fact.status

    def row(self, sort: str) -> dict[str, Any] | None:
        return self.store.get(PIPELINES, Key("PIPELINE#orders", sort), consistent=True)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    clock = virtual_clock()
    with store_in(tmp_path, clock) as store:
        yield Rig(store, clock)


# What is good for how long.


def test_trait__time_is_up__is_stale_on_read_whatever_it_was_and_still_there(rig: Rig) -> None:
    rig.record(PASS, reason="lag 3 s")
    rig.clock.advance(299.999)
    assert rig.status() is PASS
    rig.clock.advance(0.001)
    fact = rig.traits.read("orders", ["fresh"], TODAY, rig.clock.now())["fresh"]
    assert fact == TraitFact(status=STALE, reason="it expired 0 s ago; it was PASS: lag 3 s", evaluated_at_ms=NOW_MS)
    rig.clock.advance(RETENTION_SECONDS + 1)
    assert rig.status() is None


def test_trait__moment_that_is_asked_for__counts_and_not_the_clock__bug_14(rig: Rig) -> None:
    rig.record(PASS)
    later = rig.clock.now() + timedelta(hours=1)
    assert rig.traits.read("orders", ["fresh"], TODAY, later)["fresh"].status is STALE
    found = rig.traits.find("orders", "fresh", TODAY, later)
    assert found is not None
    assert (found.status, found.status_at(NOW_MS)) == (PASS, PASS)


def test_trait__time_of_zero__does_not_expire(rig: Rig) -> None:
    rig.push(ttl=0)
    rig.clock.advance(10 * 365 * 86_400)
    assert rig.status() is PASS


def test_trait__error__keeps_its_category_and_reason(rig: Rig) -> None:
    rig.record(ERROR, category=FailureCategory.TRANSIENT, reason="answered 503")
    assert rig.traits.read("orders", ["fresh"], TODAY, NOW)["fresh"] == TraitFact(
        status=ERROR, reason="answered 503", category=FailureCategory.TRANSIENT, evaluated_at_ms=NOW_MS
    )


# What is for which period.


def test_trait__found_of_one_period__is_not_taken_for_another(rig: Rig) -> None:
    rig.record(PASS, YESTERDAY)
    assert rig.status(YESTERDAY) is PASS
    assert rig.status(TODAY) is None
    assert rig.status(Slot("orders", "h07", YESTERDAY.date)) is None


def test_trait__two_periods_at_once__each_has_its_own(rig: Rig) -> None:
    rig.record(PASS, YESTERDAY)
    rig.record(FAIL, TODAY)
    rig.clock.advance(1)
    rig.record(PASS, YESTERDAY)
    assert (rig.status(YESTERDAY), rig.status(TODAY)) == (PASS, FAIL)


def test_trait__pushed_for_all__holds_for_every_period_until_something_of_the_period_is_said__bug_52(rig: Rig) -> None:
    rig.push("FAIL", ttl=3600)
    assert (rig.status(TODAY), rig.status(YESTERDAY)) == (FAIL, FAIL)
    rig.push("PASS", ttl=60, date="2026-03-03")
    assert (rig.status(TODAY), rig.status(YESTERDAY)) == (PASS, FAIL)
    rig.push("FAIL", ttl=60, date="20260303", schedule_id="daily")
    assert (rig.status(TODAY), rig.status(Slot("orders", "h07", "2026-03-03"))) == (FAIL, PASS)
    rig.clock.advance(61)
    # What is of the period has expired; what was said for all still holds.
    assert (rig.status(TODAY), rig.status(YESTERDAY)) == (FAIL, FAIL)


def test_trait__rows__are_where_the_catalogue_has_them(rig: Rig) -> None:
    rig.record(PASS, value={"lag": 3})
    row = rig.row("TRAIT#fresh")
    assert row is not None
    assert (row["status"], row["value_json"], row["version"]) == ("PASS", '{"lag":3}', 1)
    assert rig.row("TRAIT#fresh#2026-03-03#daily") is not None


@pytest.mark.parametrize(
    "value", [{"lag": 3}, [1, 2], "text", 0, False, {"n": 10**30}, {"deep": [[[[[[]]]]]]}, {"": "\x00"}, None]
)
def test_trait__value_of_any_json__comes_back_as_it_was(rig: Rig, value: Any) -> None:
    rig.record(PASS, value=value)
    found = rig.traits.find("orders", "fresh", TODAY, NOW)
    assert found is not None
    assert found.value == value
    assert type(found.value) is type(value)


# What is newer.


def test_trait__slow_result_that_is_older_than_what_is_known__does_not_replace_it(rig: Rig) -> None:
    rig.clock.advance(60)
    rig.record(FAIL)
    rig.record(PASS, evaluated_at_ms=NOW_MS)
    latest = rig.traits.latest("orders", "fresh")
    assert latest is not None
    assert (rig.status(), latest.status) == (FAIL, FAIL)
    rig.record(PASS, None, evaluated_at_ms=NOW_MS)
    assert rig.status(YESTERDAY) is None


def test_trait__many_write_at_once__nothing_is_lost(rig: Rig) -> None:
    slots = [Slot("orders", "daily", f"2026-03-{day:02d}") for day in range(1, 13)]
    threads = [threading.Thread(target=rig.record, args=(PASS, slot)) for slot in slots]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [rig.status(slot) for slot in slots] == [PASS] * len(slots)


# The history.


def test_history__the_same_again__is_counted_and_the_rest_is_bounded(rig: Rig) -> None:
    for _ in range(3):
        rig.record(FAIL, reason="lag 900 s")
        rig.clock.advance(60)
    rig.record(PASS, reason="lag 3 s")
    last, first = rig.traits.history("orders", "fresh")
    assert (last.status, last.count) == (PASS, 1)
    assert (first.status, first.count, first.last_at_ms - first.first_at_ms) == (FAIL, 3, 120_000)
    for number in range(2 * HISTORY_MAX):
        rig.clock.advance(1)
        rig.record(PASS if number % 2 else FAIL)
    assert len(rig.traits.history("orders", "fresh")) == HISTORY_MAX


def test_history__of_nothing__is_empty(rig: Rig) -> None:
    assert rig.traits.history("orders", "fresh") == []


def test_ls__many_periods_of_many_types__is_the_latest_of_each_type(rig: Rig) -> None:
    for day in range(1, 29):
        rig.push(trait_type="fresh", date=f"2026-02-{day:02d}")
    rig.push("FAIL", trait_type="fresh-eu")
    rig.push(trait_type="fresh.us")
    rig.push(trait_type="Schema")
    rig.traits.push("orders-eu", "other", TraitPush(status="PASS", ttl_seconds=1))
    assert [(each.trait_type, each.status) for each in rig.traits.ls("orders")] == [
        ("Schema", PASS), ("fresh", PASS), ("fresh-eu", FAIL), ("fresh.us", PASS),
    ]  # fmt: skip


# Pushes.


@pytest.mark.parametrize(
    ("trait_type", "more", "said"),
    [
        ("fresh#x", {}, "use 1 to 128 letters"),
        ("", {}, "use 1 to 128 letters"),
        ("fresh", {"status": "ERROR"}, "push PASS or FAIL"),
        ("fresh", {"status": "pass"}, "push PASS or FAIL"),
        ("fresh", {"ttl_seconds": -1}, "ttl is -1"),
        ("fresh", {"ttl_seconds": float("nan")}, "ttl is nan"),
        ("fresh", {"ttl_seconds": True}, "ttl is True"),
        ("fresh", {"date": "yesterday"}, "is no period"),
        ("fresh", {"schedule_id": "daily"}, "given with a date"),
        ("fresh", {"value": "x" * VALUE_BYTES_MAX}, "cannot be kept"),
        ("fresh", {"value": object()}, "not JSON"),
        ("fresh", {"reason": "x" * 2000}, "a reason has at most"),
    ],
)
def test_push__what_cannot_be__is_refused_and_nothing_kept(
    rig: Rig, trait_type: str, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidPayloadError, match=said):
        rig.traits.push("orders", trait_type, TraitPush(**{"status": "PASS", "ttl_seconds": 60, **more}))
    assert list(rig.traits.ls("orders")) == []


def test_push__with_more_writes__are_one_transaction_and_know_what_was_before(rig: Rig) -> None:
    seen: list[TraitStatus | None] = []

    def also(result: TraitResult, before: TraitResult | None) -> Sequence[Write]:
        seen.append(None if before is None else before.status)
        return [Put(PIPELINES, {"PK": "PIPELINE#orders", "SK": f"EVENT#{result.status}"})]

    rig.traits.push("orders", "fresh", TraitPush(status="PASS", ttl_seconds=60, by="ann"), also=also)
    rig.traits.push("orders", "fresh", TraitPush(status="FAIL", ttl_seconds=60, by="bob"), also=also)
    assert seen == [None, PASS]
    assert rig.row("EVENT#PASS") is not None
    latest = rig.traits.latest("orders", "fresh")
    assert latest is not None
    assert (latest.by, latest.evaluator) == ("bob", "push")


def test_push__what_goes_with_it_is_refused__nothing_is_kept(rig: Rig) -> None:
    refused = Check(PIPELINES, Key("PIPELINE#orders", "NOT-THERE"), exists())
    with pytest.raises(ConflictError):
        rig.traits.push("orders", "fresh", TraitPush(status="PASS", ttl_seconds=60), also=lambda *_: [refused])
    assert rig.status() is None


# Facts of a pipeline.


def test_facts__traits_of_the_definition_and_of_its_rules__are_all_read(rig: Rig) -> None:
    pipeline = Pipeline(
        id="orders",
        readiness=Readiness(
            rules=(Rule(any=(Rule(trait="in-rule"), Rule(key="load"))),), traits={"fresh": Trait(evaluator="push")}
        ),
        post_run=PostRun(rules=(Rule(trait="after"),)),
    )
    for name in ("fresh", "in-rule", "after", "unasked"):
        rig.push(trait_type=name)
    assert sorted(rig.traits.facts(pipeline, TODAY, NOW)) == ["after", "fresh", "in-rule"]
    assert rig.traits.facts(Pipeline(id="orders"), TODAY, NOW) == {}


def test_facts__one_row_is_not_a_trait__is_an_error_and_the_others_stand__d29(rig: Rig) -> None:
    rig.push(trait_type="good")
    rig.store.put(PIPELINES, {"PK": "PIPELINE#orders", "SK": "TRAIT#bad", "status": "FINE"})
    facts = rig.traits.read("orders", ["good", "bad", "no#trait"], TODAY, NOW)
    assert {name: fact.status for name, fact in facts.items()} == {"good": PASS, "bad": ERROR, "no#trait": ERROR}
    assert facts["bad"].category is FailureCategory.PERMANENT
    assert [each.trait_type for each in rig.traits.ls("orders")] == ["good"]
    with pytest.raises(CorruptionError):
        rig.traits.latest("orders", "bad")
    rig.push(trait_type="bad")
    assert rig.status(trait_type="bad") is PASS


def test_rows__of_a_period__expire_and_are_not_kept_for_ever__d19(rig: Rig) -> None:
    rig.push(ttl=0, date="2026-03-03")
    rig.record(PASS)
    query = Query(table=PIPELINES, partition="PIPELINE#orders", sort=Sort(Range.BEGINS_WITH, "TRAIT#fresh#"))
    assert all(item["ttl"] > 0 for item in rig.store.query(query).items)
