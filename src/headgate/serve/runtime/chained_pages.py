"""Staged pages: several lists shown as one, each after the other, under one cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headgate.errors import CursorError

# A page that is filtered may take many reads to fill; after so many it is answered as it is.
READS_MAX: Final = 20

T = TypeVar("T")
# Given how many to read and where to go on, returns what is left after filtering and where the next begin.
Fetch = Callable[[int, str | None], tuple[list[T], str | None]]
Stage = tuple[str, Fetch[T]]


def staged(stages: Sequence[Stage[T]], limit: int, cursor: str | None) -> tuple[list[T], str | None]:
    """Return up to `limit` from the stages, and the cursor to what follows if there may be more.

    A page may be short, or empty, and have a cursor all the same. Raises `CursorError` for one that is not ours.
    """
    current, inner = _position(stages, cursor)
    found: list[T] = []
    for _ in range(READS_MAX):
        more, inner = stages[current][1](limit - len(found), inner)
        found += more
        if inner is None:
            current += 1
        if current == len(stages):
            return found, None
        if len(found) >= limit:
            break
    return found, f"{stages[current][0]}|{inner or ''}"


def _position(stages: Sequence[Stage[T]], cursor: str | None) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, separator, inner = cursor.partition("|")
    names = [stage[0] for stage in stages]
    if not separator or name not in names:
        raise CursorError("cursor: it is not one of this list; begin again without")
    return names.index(name), inner or None
