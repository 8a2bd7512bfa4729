"""Chained pages: several lists paged as one, in sequence, under one cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headgate.errors import CursorError

# Maximum reads to fill a filtered page; then a short page is returned.
READS_MAX: Final = 20
_DIGITS_MAX: Final = 18

T = TypeVar("T")
# Takes limit and cursor; returns the filtered rows and the next cursor.
Fetch = Callable[[int, str | None], tuple[list[T], str | None]]
Stage = tuple[str, Fetch[T]]


def chained_page(
    stages: Sequence[Stage[T]], limit: int, cursor: str | None, *, reads_max: int = READS_MAX
) -> tuple[list[T], str | None]:
    """Return up to `limit` rows from the stages, and the cursor of the next page if there may be more.

    After `reads_max` reads a page is returned as it is: short or even empty, and with a cursor. Raises `CursorError`
    for a malformed cursor.
    """
    current, inner = _position(stages, cursor)
    rows: list[T] = []
    for _ in range(reads_max):
        more, inner = stages[current][1](limit - len(rows), inner)
        rows += more
        if inner is None:
            current += 1
        if current == len(stages):
            return rows, None
        if len(rows) >= limit:
            break
    return rows, f"{stages[current][0]}|{inner or ''}"


def counted(fetch: Fetch[T], total: int) -> Fetch[T]:
    """Return a fetch that ends once it has returned as many rows as there were at first, instead of reading on in vain.

    Rows that come meanwhile are read in place of some of the others, or not at all. How many are left is part of the
    cursor. Raises `CursorError` for a malformed cursor.
    """

    def fetched(limit: int, cursor: str | None) -> tuple[list[T], str | None]:
        if cursor is None:
            left, inner = total, ""
        else:
            number, separator, inner = cursor.partition(".")
            if not separator or not (number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
                raise CursorError("cursor: not valid for this list; start again without it")
            left = int(number)
        if left <= 0:
            return [], None
        rows, following = fetch(limit, inner or None)
        left -= len(rows)
        return rows, None if following is None or left <= 0 else f"{left}.{following}"

    return fetched


def _position(stages: Sequence[Stage[T]], cursor: str | None) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    name, separator, inner = cursor.partition("|")
    names = [stage[0] for stage in stages]
    if not separator or name not in names:
        raise CursorError("cursor: not valid for this list; start again without it")
    return names.index(name), inner or None
