"""Rows that ask for a period."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import ConflictError
from headgate.pipelines.runs.markers import RETENTION_SECONDS, Placed, marker_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import exists
from headgate.store.model.requests import ChangeKind, Check
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, SLOT, Rig, at_once, opened_rig

NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _kinds(rig: Rig) -> list[ChangeKind]:
    changes = rig.store.changes(PIPELINES, "router").changes
    return [change.kind for change in changes if str(change.key.partition).startswith("MARKER#")]


def test_put__the_first__is_a_row_of_its_own_date_that_the_stream_reports(rig: Rig) -> None:
    placed = rig.markers.put(SLOT, source="api", by="ann", data={"n": 1}, also=[EVENT])

    assert placed.is_new
    assert rig.markers.find(SLOT) == placed.marker
    item = rig.item("MARKER#orders", "2026-03-03#daily")
    assert item is not None
    assert item["ttl"] == rig.now_ms // 1000 + RETENTION_SECONDS
    assert _kinds(rig) == [ChangeKind.INSERT]
    assert rig.is_notified()


def test_put__where_one_is__changes_nothing_and_reports_nothing(rig: Rig) -> None:
    first = rig.markers.put(SLOT, source="api")
    second = rig.markers.put(SLOT, source="cascade:raw", also=[EVENT])

    assert second == Placed(first.marker, is_new=False)
    assert _kinds(rig) == [ChangeKind.INSERT]
    assert not rig.is_notified()


def test_put__by_many_at_once__is_new_to_one(rig: Rig) -> None:
    outcomes = at_once(6, lambda number: rig.markers.put(SLOT, source=f"s{number}"))

    assert sum(isinstance(each, Placed) and each.is_new for each in outcomes) == 1
    assert [each.marker for each in outcomes if isinstance(each, Placed)] == [rig.markers.find(SLOT)] * 6
    assert _kinds(rig) == [ChangeKind.INSERT]


def test_put_again__where_one_is__asks_once_more(rig: Rig) -> None:
    rig.markers.put(SLOT, source="api")
    again = rig.markers.put_again(SLOT, source="cascade:raw", also=[EVENT])

    assert (again.version, again.source) == (2, "cascade:raw")
    assert rig.markers.find(SLOT) == again
    assert _kinds(rig) == [ChangeKind.INSERT, ChangeKind.MODIFY]
    assert rig.is_notified()


def test_put_again__by_many_at_once__counts_each(rig: Rig) -> None:
    at_once(4, lambda number: rig.markers.put_again(SLOT, source=f"s{number}"))

    marker = rig.markers.find(SLOT)
    assert marker is not None
    assert marker.version == 4


def test_put_again__over_a_row_that_others_put__replaces_it(rig: Rig) -> None:
    rig.store.put(PIPELINES, {"PK": "MARKER#orders", "SK": "2026-03-03#daily"})

    assert rig.markers.put_again(SLOT, source="api").version == 1


@pytest.mark.parametrize("name", ["put", "put_again"])
def test_put__what_comes_with_it_is_refused__leaves_no_marker(rig: Rig, name: str) -> None:
    with pytest.raises(ConflictError):
        getattr(rig.markers, name)(SLOT, source="api", also=[NEVER])

    assert rig.markers.find(SLOT) is None


def test_put__after_the_last_has_expired__is_new(rig: Rig) -> None:
    rig.markers.put(SLOT, source="api")
    rig.clock.advance(RETENTION_SECONDS + 1)

    assert rig.markers.put(SLOT, source="api").is_new


def test_marker_of__a_row_read_after_midnight__has_the_date_of_the_record(rig: Rig) -> None:  # bug 16
    # The marker of the last hour of 3 March, written and read on the 4th, by one who gave nothing but the keys.
    item = {"PK": "MARKER#orders", "SK": "2026-03-03#h23", "note": "theirs"}

    assert marker_of(item).slot == Slot("orders", "h23", "2026-03-03")


def test_marker_of__a_row_without_a_schedule__is_for_the_daily_one() -> None:
    assert marker_of({"PK": "MARKER#orders", "SK": "2026-03-03"}).slot == SLOT


def test_ls__some_dates__are_those_that_begin_so_latest_first(rig: Rig) -> None:
    for date in ("2026-02-28", "2026-03-01", "2026-03-02"):
        rig.markers.put(SLOT._replace(date=date), source="api")

    assert [each.date for each in rig.markers.ls("orders")] == ["2026-03-02", "2026-03-01", "2026-02-28"]
    assert [each.date for each in rig.markers.ls("orders", dates="2026-03")] == ["2026-03-02", "2026-03-01"]
