"""Log pages: reads the log lines of a workflow and its activities from the history.

Lines come in the order of the turns that recorded them: those of an activity come with its end. A page reads only the
turns that it shows, and a bounded number of turns without lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from headgate.durable.model.history import Note, Turn
from headgate.errors import CursorError

TURNS_MAX: Final = 2_000


class LogPage(Struct, frozen=True):
    """A page of log lines, maybe short or empty. `cursor` is None on the last page."""

    notes: list[Note]
    cursor: str | None = None


class LogPlace(Struct, frozen=True):
    """The start of a page: a turn, and how many of its lines to skip."""

    turn: int = 1
    skipped: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> LogPlace:
        """Parse a cursor. Raises `CursorError` if it is not valid."""
        if cursor is None:
            return cls()
        turn, _, skipped = cursor.partition(".")
        if not (turn.isdecimal() and skipped.isdecimal() and cursor.isascii() and len(cursor) <= 40):
            raise CursorError(f"cursor {cursor[:40]!r}: it is not a cursor of a log; start again without one")
        return cls(max(1, int(turn)), int(skipped))

    def __str__(self) -> str:
        return f"{self.turn}.{self.skipped}"


def notes_of(turn: Turn) -> list[Note]:
    """Return the lines of a turn, and of the activities whose end it consumed, in order of time."""
    activity_notes = [note for event in turn.events for note in getattr(event, "notes", ())]
    return sorted([*activity_notes, *turn.notes], key=lambda note: note.at_ms)


def read_page(turns: Iterable[Turn], place: LogPlace, last_turn: int, limit: int) -> LogPage:
    """Return up to `limit` lines of these turns, from the turn of `place` to `last_turn`."""
    notes: list[Note] = []
    for next_place, note in _lines(turns, place):
        if note is not None:
            notes.append(note)
        if len(notes) == limit or next_place.turn - place.turn >= TURNS_MAX:
            return LogPage(notes, str(next_place) if next_place.turn <= last_turn else None)
    return LogPage(notes)


def _lines(turns: Iterable[Turn], place: LogPlace) -> Iterator[tuple[LogPlace, Note | None]]:
    """Give each line with the place after it, and for each turn without lines the place of the next turn."""
    for turn in turns:
        after = LogPlace(turn.turn + 1)
        notes = notes_of(turn)
        first = place.skipped if turn.turn == place.turn else 0
        if first >= len(notes):
            yield after, None
        for number in range(first, len(notes)):
            yield LogPlace(turn.turn, number + 1) if number + 1 < len(notes) else after, notes[number]
