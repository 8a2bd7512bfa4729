"""Pages of GraphQL connections: as many as were asked for, each with a cursor of its own.

Listings know the cursor of a page's end alone. The cursor of an edge is that of the page it was on, and where on the
page it stands; what cannot be altered of it is the former, and the latter only leaves things out.

What can be given to a GraphQL query: filters, and which page of what they find.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
import strawberry
from msgspec import Struct
from strawberry import UNSET

from headgate import typed_decode
from headgate.errors import CursorError, QueryLimitError
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model import urns
from headgate.health.model.enums import IncidentStatus, Severity, Tier
from headgate.serve.graphql.enums import Moment

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
        return typed_decode.from_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), _Cursor)
    except (ValueError, msgspec.DecodeError) as exc:
        raise CursorError("after: not a cursor that was given out here; start again without one") from exc


PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100


@strawberry.input(name="Pagination")
class PaginationInput:
    """Which page: the `first` so many (at most 100) that come `after` a cursor."""

    first: int = PAGE_DEFAULT
    after: str | None = UNSET


@strawberry.input(name="IncidentFilter")
class IncidentFilterInput:
    """Which incidents: those that match all that is given. `from` and `to` are about when they were opened."""

    status: list[IncidentStatus] | None = UNSET
    severity: list[Severity] | None = UNSET
    dataset_urn: str | None = UNSET
    owner_team: str | None = UNSET
    from_: Moment | None = strawberry.field(name="from", default=UNSET)
    to: Moment | None = UNSET

    def wanted(self) -> IncidentFilter:
        """Return it in the words of health. Raises `InvalidIdError`."""
        return IncidentFilter(
            # Each once: every one of them is a partition to be read.
            statuses=tuple(dict.fromkeys(self.status or ())),
            severities=tuple(dict.fromkeys(self.severity or ())),
            dataset_urn=urns.dataset_urn(self.dataset_urn) if self.dataset_urn else None,
            owner_team=self.owner_team or None,
            since=self.from_ or "",
            until=self.to or "9999",
        )


@strawberry.input(name="DatasetFilter")
class DatasetFilterInput:
    """Which datasets: those that match all that is given.

    `inBreach` asks for those with a signal that is WARNING or CRITICAL, or for those without one.
    """

    tier: list[Tier] | None = UNSET
    owner_team: str | None = UNSET
    source_type: str | None = UNSET
    in_breach: bool | None = UNSET
    search: str | None = UNSET


def page_size(given: int, name: str) -> int:
    """Return a page size that is allowed. Raises `QueryLimitError`."""
    if not 1 <= given <= PAGE_MAX:
        raise QueryLimitError(f"{name} is {given}: ask for 1 to {PAGE_MAX} at a time, and page through more")
    return given
