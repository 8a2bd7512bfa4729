"""Logs: the lines that a workflow and its activities wrote, page by page out of the history.

Lines come in the order in which the execution heard of them: what an activity wrote comes with its end. A page reads
no more of the history than it shows, and a bounded number of turns that have nothing to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from headgate.durable.model.history import Note, Turn
from headgate.errors import CursorError

TURNS_MAX: Final = 2_000


class LogPage(Struct, frozen=True):
    """Some lines, and the cursor of those that follow if there may be any. It may be short, or empty."""

    notes: list[Note]
    cursor: str | None = None


class LogPlace(Struct, frozen=True):
    """Where a page begins: at a turn, after so many of its lines."""

    turn: int = 1
    skipped: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> LogPlace:
        """Read a cursor. Raises `CursorError` if it is none."""
        if cursor is None:
            return cls()
        turn, _, skipped = cursor.partition(".")
        if not (turn.isdecimal() and skipped.isdecimal() and cursor.isascii() and len(cursor) <= 40):
            raise CursorError(f"cursor {cursor[:40]!r}: it is not one of a log; begin again without")
        return cls(max(1, int(turn)), int(skipped))

    def __str__(self) -> str:
        return f"{self.turn}.{self.skipped}"


def notes_of(turn: Turn) -> list[Note]:
    """Return the lines of a turn, and of the activities whose end it heard, in order of time."""
    heard = [note for event in turn.events for note in getattr(event, "notes", ())]
    return sorted([*heard, *turn.notes], key=lambda note: note.at_ms)


def read_page(turns: Iterable[Turn], place: LogPlace, last_turn: int, limit: int) -> LogPage:
    """Return up to `limit` lines of these turns, which begin with that of `place` and end with `last_turn`."""
    notes: list[Note] = []
    for next_place, note in _lines(turns, place):
        if note is not None:
            notes.append(note)
        if len(notes) == limit or next_place.turn - place.turn >= TURNS_MAX:
            return LogPage(notes, str(next_place) if next_place.turn <= last_turn else None)
    return LogPage(notes)


def _lines(turns: Iterable[Turn], place: LogPlace) -> Iterator[tuple[LogPlace, Note | None]]:
    """Give each line with the place after it, and each turn without one with the place of the next."""
    for turn in turns:
        after = LogPlace(turn.turn + 1)
        notes = notes_of(turn)
        first = place.skipped if turn.turn == place.turn else 0
        if first >= len(notes):
            yield after, None
        for number in range(first, len(notes)):
            yield LogPlace(turn.turn, number + 1) if number + 1 < len(notes) else after, notes[number]
