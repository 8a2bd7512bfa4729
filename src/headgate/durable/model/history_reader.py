"""History reader: reads the turns of an execution from the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import msgspec

from headgate.durable.model.history import Turn, load_turn
from headgate.durable.model.records import Execution
from headgate.errors import CorruptionError, InvalidPayloadError
from headgate.store.catalogue.tables import TURNS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

_PAGE: Final = 500


class ArchivedHistories(Protocol):
    """Where the histories of archived executions are."""

    def read(self, name: str) -> list[Turn]:
        """Return a history. Raises `CorruptionError` if it is gone or damaged."""


def read_run(store: Store, row: Execution, archive: ArchivedHistories | None = None) -> Iterator[Turn]:
    """Give the turns of the current run, up to the last turn of this row.

    A run after a reset begins with turns of earlier runs, which may be in the archive.
    """
    if row.kept_turns:
        for first, last in turn_ranges(row.kept_turns):
            yield from _read_range(store, row, first, last, archive)
    if row.turn >= row.first_turn:
        yield from read_turns(store, row.execution_id, row.first_turn, row.turn)


def read_life(store: Store, row: Execution, archive: ArchivedHistories | None = None) -> list[Turn]:
    """Return the turns of every run of this life of the id."""
    turns = _read_range(store, row, 1, row.turn, archive)
    return [turn for turn in turns if turn.run >= row.first_run]


def _read_range(
    store: Store, row: Execution, first: int, last: int, archive: ArchivedHistories | None
) -> Iterator[Turn]:
    if first <= row.archived_through:
        if archive is None or row.archive is None:
            raise _missing(row.execution_id, first)
        yield from (turn for turn in archive.read(row.archive) if first <= turn.turn <= last)
        first = row.archived_through + 1
    if first <= last:
        yield from read_turns(store, row.execution_id, first, last)


def turn_ranges(text: str) -> list[tuple[int, int]]:
    """Return the first and the last turn of each range of `Execution.kept_turns`."""
    pairs = [each.split("-") for each in text.split(",")] if text else []
    return [(int(first), int(last)) for first, last in pairs]


def range_text(turns: Iterable[int]) -> str:
    """Return ascending turn numbers as the text of their ranges."""
    ranges: list[list[int]] = []
    for turn in turns:
        if ranges and turn == ranges[-1][1] + 1:
            ranges[-1][1] = turn
        else:
            ranges.append([turn, turn])
    return ",".join(f"{first}-{last}" for first, last in ranges)


def read_turns(store: Store, execution_id: str, first: int, last: int) -> Iterator[Turn]:
    """Give turns `first` to `last`. Raises `CorruptionError` if one is missing."""
    expected = first
    cursor = None
    while True:
        page = store.query(
            Query(
                table=TURNS,
                partition=execution_id,
                sort=Sort(Range.BETWEEN, first, last),
                limit=_PAGE,
                cursor=cursor,
                consistent=True,
            )
        )
        for item in page.items:
            turn = _decoded(execution_id, item)
            if turn.turn != expected:
                raise _missing(execution_id, expected)
            expected += 1
            yield turn
        cursor = page.cursor
        if cursor is None:
            break
    if expected != last + 1:
        raise _missing(execution_id, expected)


def read_turn(store: Store, row: Execution) -> Turn:
    """Return the last turn of an execution."""
    item = store.get(TURNS, Key(row.execution_id, row.turn), consistent=True)
    if item is None:
        raise _missing(row.execution_id, row.turn)
    return _decoded(row.execution_id, item)


def first_turn_of_run(store: Store, execution_id: str, run: int, first: int, last: int) -> int:
    """Return the first of the turns `first` to `last` that belongs to this run or a later one; else `last`.

    A binary search: run numbers never decrease from turn to turn.
    """
    while first < last:
        middle = (first + last) // 2
        item = store.get(TURNS, Key(execution_id, middle), consistent=True)
        if item is None:
            raise _missing(execution_id, middle)
        if item["run"] < run:
            first = middle + 1
        else:
            last = middle
    return first


def _decoded(execution_id: str, item: Item) -> Turn:
    try:
        return load_turn(item["body"])
    except msgspec.DecodeError as exc:
        raise InvalidPayloadError(
            f"execution {execution_id} turn {item.get('turn')}: it cannot be read ({exc}); "
            "a newer version of Headgate may have written it: upgrade this worker"
        ) from exc


def _missing(execution_id: str, turn: int) -> CorruptionError:
    return CorruptionError(
        f"execution {execution_id}: turn {turn} is missing from its history; restore the store from a backup"
    )
