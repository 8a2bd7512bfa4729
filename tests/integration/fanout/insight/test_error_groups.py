"""Errors by fingerprint: how they are counted, and how they are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.fanout.insight.error_groups import (
    CHUNK_IDS_MAX,
    DISTINCT_MAX,
    Occurrence,
    error_groups,
    grouped,
    of_chunk,
)
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.rows import Policy, timestamp
from headgate.fanout.model.states import Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import RUN, T0, Stage, made_chunk


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(T0 / 1000)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


def _one(name: str, at: int, chunk: str = "chunk-0000000") -> Occurrence:
    return Occurrence(name, "ValueError", f"message of {name} at {at}", chunk, timestamp(T0 + at))


def test_grouped__several_kinds__are_ordered_by_how_many() -> None:
    found = grouped([_one("a", 1), _one("b", 5), _one("b", 9), _one("b", 3), _one("c", 2), _one("c", 2)])

    assert [(group.fingerprint, group.count) for group in found.groups] == [("b", 3), ("c", 2), ("a", 1)]
    first = found.groups[0]
    assert (first.first_seen, first.last_seen) == (timestamp(T0 + 3), timestamp(T0 + 9))
    assert first.message == "message of b at 9"
    assert (found.errors, found.others) == (6, 0)


def test_grouped__more_groups_than_asked_for__counts_the_rest() -> None:
    found = grouped([_one(name, 0) for name in "aabbcde"], groups_max=2)

    assert [group.fingerprint for group in found.groups] == ["a", "b"]
    assert (found.errors, found.others) == (7, 3)


def test_grouped__more_kinds_than_can_be_distinguished__are_counted_together() -> None:
    found = grouped((_one(f"{number}", 0) for number in range(DISTINCT_MAX + 50)), groups_max=DISTINCT_MAX * 2)

    assert len(found.groups) == DISTINCT_MAX
    assert (found.errors, found.others) == (DISTINCT_MAX + 50, 50)


def test_grouped__many_chunks__names_a_few() -> None:
    found = grouped(_one("a", number, f"chunk-{number:07d}") for number in range(40))

    assert found.groups[0].chunk_ids == [f"chunk-{number:07d}" for number in range(CHUNK_IDS_MAX)]


def test_of_chunk__row_without_a_fingerprint__is_given_one() -> None:
    chunk = made_chunk(0, Disposition.DEAD, error="no such key 17")

    assert [one.fingerprint for one in of_chunk(chunk)] == [fingerprint("Error", "no such key 99")]
    assert list(of_chunk(made_chunk(0))) == []


def test_error_groups__dead_quarantined_and_retrying__are_all_reported(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=8, policy=Policy(max_attempts=2, backoff_seconds=0))
    for number in range(3):
        stage.fail(number, f"key {number} is missing", error_class="KeyError")
        stage.fail(number, f"key {number} is missing", error_class="KeyError")
    stage.fail(3, "cannot parse", final=True)
    stage.fail(4, "key 4 is missing", error_class="KeyError")
    stage.complete(5)

    found = error_groups(stage.queries, RUN)

    assert [(group.error_class, group.count) for group in found.groups] == [("KeyError", 4), ("ValueError", 1)]
    assert found.is_complete


def test_error_groups__more_rows_than_may_be_read__says_so(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=4, policy=Policy(max_attempts=1))
    for number in range(4):
        stage.fail(number)

    assert error_groups(stage.queries, RUN, rows_max=4).is_complete
    cut = error_groups(stage.queries, RUN, rows_max=3)
    assert (cut.errors, cut.is_complete) == (3, False)


def test_error_groups__rows_of_another_program__are_read_as_they_are(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=1)
    store.put(FANOUT, {"PK": "foreign", "SK": "RUN", "survey": "grs-15", "jobs_total": 2})
    store.put(FANOUT, {"PK": "foreign", "SK": "CHUNK#chunk-0000000", "status": "FAILED", "error": "out of memory"})
    store.put(FANOUT, {"PK": "foreign", "SK": "CHUNK#chunk-0000500", "status": "COMPLETED"})

    found = error_groups(stage.queries, "foreign")

    assert [(group.message, group.count) for group in found.groups] == [("out of memory", 1)]


def test_error_groups__no_such_fan_out__is_said(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=1)

    with pytest.raises(NotFoundError, match="fan-out other"):
        error_groups(stage.queries, "other")
