"""Calendars that are kept by name: versions, races, what is remembered of them, and rows of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import DefinitionError, InvalidIdError, NotFoundError, VersionConflictError
from headgate.pipelines.catalog.calendar_store import FRESH_SECONDS, CalendarStore
from headgate.pipelines.definition.model import Exclusions
from headgate.store.catalogue.tables import DEFINITIONS
from headgate.store.port import Store
from tests.stores import open_sqlite

WEEKENDS = Exclusions(weekends=True)
FRIDAYS = Exclusions(days=("friday",))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_750_000_000.0)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(open_sqlite(tmp_path, clock=clock)) as opened:
        yield opened


@pytest.fixture
def calendars(store: Store, clock: VirtualClock) -> CalendarStore:
    return CalendarStore(store, clock)


def test_put__new_same_and_other__counts_versions(calendars: CalendarStore) -> None:
    first = calendars.put("company", WEEKENDS, "ada")
    same = calendars.put("company", WEEKENDS, "bob")
    other = calendars.put("company", FRIDAYS, "bob")

    assert (first.version, first.by, first.at) == (1, "ada", "2025-06-15T15:06:40.000Z")
    assert same == first
    assert (other.version, other.by) == (2, "bob")
    assert calendars.all() == {"company": FRIDAYS}


def test_put__another_version_than_was_seen__is_a_conflict(calendars: CalendarStore) -> None:
    calendars.put("company", WEEKENDS, "ada", version=0)

    with pytest.raises(VersionConflictError):
        calendars.put("company", FRIDAYS, "bob", version=0)
    assert calendars.put("company", FRIDAYS, "bob", version=1).version == 2


def test_delete__and_put_again__goes_on_counting(calendars: CalendarStore) -> None:
    calendars.put("company", WEEKENDS, "ada")

    assert calendars.delete("company", "ada").deleted
    assert (calendars.all(), calendars.find("company"), calendars.ls()) == ({}, None, [])
    with pytest.raises(NotFoundError):
        calendars.delete("company", "ada")
    assert calendars.put("company", WEEKENDS, "ada").version == 3


def test_all__put_by_another_process__is_seen_after_a_moment(
    calendars: CalendarStore, store: Store, clock: VirtualClock
) -> None:
    assert calendars.all() == {}

    CalendarStore(store, clock).put("company", WEEKENDS, "ada")

    assert calendars.all() == {}
    clock.advance(FRESH_SECONDS)
    assert calendars.all() == {"company": WEEKENDS}


def test_put__on_a_calendar_that_another_process_has_just_put__builds_on_it(
    calendars: CalendarStore, store: Store, clock: VirtualClock
) -> None:
    assert calendars.all() == {}
    CalendarStore(store, clock).put("company", WEEKENDS, "ada")

    calendars.put("team", Exclusions(calendar="company"), "ada")

    assert set(calendars.all()) == {"company", "team"}


def test_all__a_row_that_is_no_calendar__hides_no_other(calendars: CalendarStore, store: Store) -> None:
    calendars.put("company", WEEKENDS, "ada")
    store.put(DEFINITIONS, {"PK": "CALENDAR#bad", "SK": "LATEST", "latest_kind": "CALENDAR", "exclusions": 7})

    assert [each.name for each in calendars.ls()] == ["company"]


@pytest.mark.parametrize("name", ["", "a b", "a#b", "-a", "x" * 81, "ä"])
def test_put__name_that_none_can_have__is_refused(calendars: CalendarStore, name: str) -> None:
    with pytest.raises(InvalidIdError):
        calendars.put(name, WEEKENDS, "ada")
    assert calendars.find(name) is None


@pytest.mark.parametrize(
    "bad", [Exclusions(days=("someday",)), Exclusions(dates=("soon",)), Exclusions(calendar="none")]
)
def test_put__days_that_are_none__are_refused(calendars: CalendarStore, bad: Exclusions) -> None:
    with pytest.raises(DefinitionError):
        calendars.put("company", bad, "ada")
    assert calendars.ls() == []
