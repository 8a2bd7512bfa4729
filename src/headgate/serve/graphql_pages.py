"""Pages of GraphQL connections: as many as were asked for, each with a cursor of its own.

Listings know the cursor of a page's end alone. The cursor of an edge is that of the page it was on, and where on the
page it stands; what cannot be altered of it is the former, and the latter only leaves things out.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from headgate import shapes
from headgate.errors import CursorError

# How many pages of a listing are looked at for one that is answered, where few rows are in scope.
LOOKED_AT_MAX: Final = 10
CURSOR_LENGTH_MAX: Final = 4096

T = TypeVar("T")
Place = tuple[str, ...]


class Listed(Struct, Generic[T], frozen=True):
    """A page of a listing: what of it is to be shown, and the cursor of the next one."""

    rows: Sequence[T]
    cursor: str | None


class Shown(Struct, Generic[T], frozen=True):
    """What is answered: rows with their cursors, and the cursor to go on with if there may be more."""

    rows: list[tuple[str, T]]
    end_cursor: str | None
    has_more: bool
    is_all: bool


class _Cursor(Struct, frozen=True, array_like=True):
    start: str | None
    place: Place | None = None


def shown(
    fetch: Callable[[str | None], Listed[T]],
    place: Callable[[T], Place],
    *,
    first: int,
    after: str | None,
    descending: bool,
) -> Shown[T]:
    """Return up to `first` rows that come after a cursor. Raises `CursorError`, and what `fetch` raises.

    `fetch` returns the page at a cursor of the listing; `place` says where a row stands in its order.
    """
    at = _read(after)
    rows: list[tuple[str, T]] = []
    for _ in range(LOOKED_AT_MAX):
        page = fetch(at.start)
        rest = [row for row in page.rows if at.place is None or _is_after(place(row), at.place, descending=descending)]
        taken = rest[: first - len(rows)]
        rows += [(_written(_Cursor(at.start, place(row))), row) for row in taken]
        if len(taken) < len(rest):
            return Shown(rows, rows[-1][0], has_more=True, is_all=False)
        if page.cursor is None:
            return Shown(rows, rows[-1][0] if rows else after, has_more=False, is_all=after is None)
        at = _Cursor(page.cursor)
        if len(rows) == first:
            break
    return Shown(rows, _written(at), has_more=True, is_all=False)


def _is_after(place: Place, mark: Place, *, descending: bool) -> bool:
    return place < mark if descending else place > mark


def _written(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def _read(text: str | None) -> _Cursor:
    if text is None:
        return _Cursor(None)
    try:
        if len(text) > CURSOR_LENGTH_MAX:
            raise ValueError(text)
        return shapes.from_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), _Cursor)
    except (ValueError, msgspec.DecodeError) as exc:
        raise CursorError("after: not a cursor that was given out here; start again without one") from exc
