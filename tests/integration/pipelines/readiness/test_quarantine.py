"""Quarantine: what was put aside for a period, whichever program wrote it, and what happens when it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidPayloadError
from headgate.pipelines.readiness.quarantine import (
    RETENTION_SECONDS,
    QuarantineCheck,
    Quarantined,
    QuarantineRecords,
    QuarantineState,
    judge,
    prefixes,
)
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Put
from headgate.store.sqlite.store import SqliteStore
from tests.unit.pipelines.evaluator_rig import store_in, virtual_clock

CLEAN, QUARANTINED, BLOCKED = QuarantineState.CLEAN, QuarantineState.QUARANTINED, QuarantineState.BLOCKED


class Rig:
    def __init__(self, store: SqliteStore) -> None:
        self.clock = virtual_clock()
        self.store = store
        self.unreadable: list[QuarantineCheck] = []
        self.records = QuarantineRecords(store, self.clock, on_unreadable=self.unreadable.append)

    def state(self, date: str, *, blocking: bool = False, pipeline_id: str = "orders") -> QuarantineState:
        return self.records.check(pipeline_id, date, blocking=blocking).state

    def foreign(self, sort: str, **attributes: Any) -> None:
        self.store.put(PIPELINES, {"PK": "PIPELINE#orders", "SK": f"QUARANTINE#{sort}", **attributes})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with store_in(tmp_path, virtual_clock()) as store:
        rig = Rig(store)
        yield rig


@pytest.mark.parametrize(
    ("counts", "blocking", "state"),
    [
        ([], True, CLEAN),
        ([0], True, CLEAN),
        ([3], False, QUARANTINED),
        ([3], True, BLOCKED),
        ([0, 2], True, BLOCKED),
    ],
)
def test_judge__counts__say_whether_it_blocks(counts: list[int], blocking: bool, state: QuarantineState) -> None:
    records = [Quarantined(date="2026-03-03", hour=f"{hour:02d}", count=count) for hour, count in enumerate(counts)]
    check = judge("orders", "2026-03-03", records, blocking=blocking)
    assert (check.state, check.count, check.is_blocked) == (state, sum(counts), state is BLOCKED)


@pytest.mark.parametrize(
    ("of", "seen_by", "unseen_by"),
    [
        (
            "2026-03-03T07",
            ["2026-03-03T07", "2026-03-03T07:15", "2026-03-03", "2026-03", "2026-W10"],
            ["2026-03-03T08"],
        ),
        ("2026-03-03", ["2026-03-03", "2026-03-03T07", "2026-03", "2026-W10"], ["2026-03-04", "2026-W09", "2026-04"]),
        ("20260303", ["2026-03-03"], ["2026-03-13"]),
        ("2026-12-31T23", ["2026-W53", "2026-12"], ["2027-01", "2026-W52"]),
    ],
)
def test_check__period_of_any_length__sees_what_lies_in_it(
    rig: Rig, of: str, seen_by: list[str], unseen_by: list[str]
) -> None:
    rig.records.put("orders", of, 4, path="s3://lake/bad", reasons=["null id"])
    assert [rig.state(date) for date in seen_by] == [QUARANTINED] * len(seen_by)
    assert [rig.state(date) for date in unseen_by] == [CLEAN] * len(unseen_by)
    assert rig.state(of, pipeline_id="orders-eu") is CLEAN


@pytest.mark.parametrize(
    ("sort", "attributes", "state"),
    [
        ("20260303#07", {"count": 5, "quarantinePath": "s3://x", "reasons": {"null id"}}, BLOCKED),
        ("20260303#07", {"count": "5"}, BLOCKED),  # bug 55
        ("2026-03-03#07", {}, BLOCKED),
        ("2026-03-03#07", {"count": "many"}, BLOCKED),
        ("2026-03-03#07", {"count": 0}, CLEAN),  # bug 48
        ("2026-03-03#07", {"count": 2.0, "reasons": "text"}, BLOCKED),
    ],
)
def test_check__row_of_another_writer__is_read_in_its_form__bugs_48_55(
    rig: Rig, sort: str, attributes: dict[str, Any], state: QuarantineState
) -> None:
    rig.foreign(sort, **attributes)
    assert rig.state("2026-03-03T07", blocking=True) is state


def test_check__hours_of_a_day__add_up_and_say_why(rig: Rig) -> None:
    rig.records.put("orders", "2026-03-03T07", 4, reasons=["null id"])
    rig.records.put("orders", "2026-03-03T08", 6, reasons=["bad date", "null id"])
    check = rig.records.check("orders", "2026-03-03", blocking=True)
    assert (check.count, len(check.records)) == (10, 2)
    assert check.reason == "10 records are in quarantine for 2026-03-03: bad date, null id"
    rig.records.put("orders", "2026-03-03T07", 0)
    rig.records.put("orders", "2026-03-03T08", 0)
    assert rig.records.check("orders", "2026-03-03", blocking=True).reason == "nothing is in quarantine for 2026-03-03"


def test_check__more_rows_than_a_page__are_all_counted__bug_75(rig: Rig) -> None:
    rows = [
        {"PK": "PIPELINE#orders", "SK": f"QUARANTINE#2026-03-{day:02d}#{hour:02d}", "count": 1}
        for day in range(1, 31)
        for hour in range(24)
    ]
    for start in range(0, len(rows), 25):
        rig.store.batch_write([Put(PIPELINES, row) for row in rows[start : start + 25]])
    assert rig.records.check("orders", "2026-03", blocking=False).count == 720


def test_put__with_more_writes__are_one_transaction(rig: Rig) -> None:
    event = Put(PIPELINES, {"PK": "PIPELINE#orders", "SK": "EVENT#1"})
    rig.records.put("orders", "2026-03-03", 1, also=[event])
    row = rig.store.get(PIPELINES, PIPELINES.key_of({"PK": "PIPELINE#orders", "SK": "QUARANTINE#2026-03-03#all"}))
    assert row is not None
    assert row["ttl"] == int(rig.clock.seconds()) + RETENTION_SECONDS
    assert rig.store.get(PIPELINES, PIPELINES.key_of(event.item)) is not None


@pytest.mark.parametrize(
    ("date", "count"), [("2026-03", 1), ("2026-W10", 1), ("now", 1), ("2026-02-30", 1), ("2026-03-03", -1)]
)
def test_put__what_cannot_be__is_refused(rig: Rig, date: str, count: int) -> None:
    with pytest.raises(InvalidPayloadError, match="quarantine of"):
        rig.records.put("orders", date, count)


def test_check__cannot_be_read__is_clean_and_reported(rig: Rig) -> None:
    rig.records.put("orders", "2026-03-03", 5)
    rig.store.close()
    check = rig.records.check("orders", "2026-03-03", blocking=True)
    assert check.state is CLEAN
    assert "closed" in check.problem
    assert rig.unreadable == [check]
    assert "could not be read" in check.reason


def test_check__who_is_reported_fails_too__is_clean_all_the_same(rig: Rig) -> None:
    def tell(_check: QuarantineCheck) -> None:
        rig.records.put("orders", "2026-03-03", 1)

    rig.store.close()
    records = QuarantineRecords(rig.store, rig.clock, on_unreadable=tell)
    assert records.check("orders", "2026-03-03", blocking=True).state is CLEAN


def test_check__read_well__notifies_no_one(rig: Rig) -> None:
    rig.records.put("orders", "2026-03-03", 5)
    assert rig.state("2026-03-03", blocking=True) is BLOCKED
    assert rig.unreadable == []


def test_check__date_is_none__is_clean_and_reported(rig: Rig) -> None:
    assert rig.state("someday", blocking=True) is CLEAN
    assert len(rig.unreadable) == 1


def test_prefixes__of_a_week__are_those_of_its_seven_days_in_both_forms() -> None:
    assert len(prefixes("2026-W10")) == 14
    assert prefixes("2026-W10")[:2] == ("QUARANTINE#2026-03-02#", "QUARANTINE#20260302#")
