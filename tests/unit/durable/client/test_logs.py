"""Logs, page by page out of a history."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durable.client.logs import TURNS_MAX, LogPlace, notes_of, read_page
from headgate.durable.model.history import ActivityEnded, Note, Turn
from headgate.errors import CursorError


def turn(number: int, *lines: str, early_notes: tuple[str, ...] = ()) -> Turn:
    notes = tuple(Note(1_000 * number + place, "INFO", text) for place, text in enumerate(lines))
    early = tuple(Note(1_000 * number - 500 + place, "INFO", text, "charge") for place, text in enumerate(early_notes))
    return Turn(number, 1, 1_000 * number, (ActivityEnded(seq=1, notes=early),), (), notes, "w")


def pages(history: list[Turn], limit: int) -> Iterator[list[str]]:
    cursor: str | None = None
    for _ in range(10_000):
        place = LogPlace.parse(cursor)
        page = read_page((each for each in history if each.turn >= place.turn), place, len(history), limit)
        yield [note.text for note in page.notes]
        cursor = page.cursor
        if cursor is None:
            return
    raise AssertionError("no end of pages")


def test_notes_of__a_turn__has_the_lines_of_the_activity_that_ended_before_its_own() -> None:
    assert [note.text for note in notes_of(turn(3, "c", early_notes=("a", "b")))] == ["a", "b", "c"]


@given(st.lists(st.integers(0, 4), max_size=20), st.integers(1, 7))
def test_pages__of_any_history__hold_every_line_once_and_in_order(counts: list[int], limit: int) -> None:
    history = [turn(number, *(f"{number}/{place}" for place in range(count))) for number, count in enumerate(counts, 1)]
    found = list(pages(history, limit))
    assert [text for page in found for text in page] == [note.text for each in history for note in notes_of(each)]
    assert all(len(page) <= limit for page in found)


def test_page__that_ends_with_the_last_line__is_the_last() -> None:
    assert list(pages([turn(1, "a"), turn(2, "b")], 1)) == [["a"], ["b"]]


def test_pages__thousands_of_turns_without_a_line__look_at_some_at_a_time() -> None:
    history = [*(turn(number) for number in range(1, TURNS_MAX + 10)), turn(TURNS_MAX + 10, "at last")]
    assert list(pages(history, 100)) == [[], ["at last"]]


@pytest.mark.parametrize("cursor", ["", ".", "1", "1.", "a.1", "1.-2", "1.2.3", "\u0661.0", "9" * 50 + ".0"])
def test_cursor__that_is_none__is_refused(cursor: str) -> None:
    with pytest.raises(CursorError, match="start again without"):
        LogPlace.parse(cursor)
