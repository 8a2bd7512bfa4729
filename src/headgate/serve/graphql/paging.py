"""GraphQL paging: connections with a cursor per edge, and input types of filters.

Listings only provide the cursor at the end of a page. An edge's cursor is the signed cursor of its page plus the
unsigned position on it, which can only skip rows.
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

# Maximum listing pages read for one connection page, where few rows are in scope.
PAGES_READ_MAX: Final = 10
CURSOR_LENGTH_MAX: Final = 4096

T = TypeVar("T")
Place = tuple[str, ...]


class Listed(Struct, Generic[T], frozen=True):
    """A page of a listing: its visible rows, and the next cursor."""

    rows: Sequence[T]
    cursor: str | None


class Shown(Struct, Generic[T], frozen=True):
    """A connection page: rows with cursors, and the cursor of the next page if there may be more."""

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
    """Return up to `first` rows after a cursor. Raises `CursorError`, and errors of `fetch`.

    `fetch` returns the listing page at a cursor; `place` returns the position of a row in its order.
    """
    at = _read(after)
    rows: list[tuple[str, T]] = []
    for _ in range(PAGES_READ_MAX):
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
        raise CursorError("after: not a valid cursor; start again without it") from exc


PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100


@strawberry.input(name="Pagination")
class PaginationInput:
    """Page: the `first` rows (at most 100) `after` a cursor."""

    first: int = PAGE_DEFAULT
    after: str | None = UNSET


@strawberry.input(name="IncidentFilter")
class IncidentFilterInput:
    """Filter of incidents; all conditions must match. `from` and `to` apply to the time of opening."""

    status: list[IncidentStatus] | None = UNSET
    severity: list[Severity] | None = UNSET
    dataset_urn: str | None = UNSET
    owner_team: str | None = UNSET
    from_: Moment | None = strawberry.field(name="from", default=UNSET)
    to: Moment | None = UNSET

    def wanted(self) -> IncidentFilter:
        """Return the filter in domain terms. Raises `InvalidIdError`."""
        return IncidentFilter(
            # Without duplicates: each value is a partition to read.
            statuses=tuple(dict.fromkeys(self.status or ())),
            severities=tuple(dict.fromkeys(self.severity or ())),
            dataset_urn=urns.dataset_urn(self.dataset_urn) if self.dataset_urn else None,
            owner_team=self.owner_team or None,
            since=self.from_ or "",
            until=self.to or "9999",
        )


@strawberry.input(name="DatasetFilter")
class DatasetFilterInput:
    """Filter of datasets; all conditions must match.

    `inBreach` selects datasets with, or without, a WARNING or CRITICAL signal.
    """

    tier: list[Tier] | None = UNSET
    owner_team: str | None = UNSET
    source_type: str | None = UNSET
    in_breach: bool | None = UNSET
    search: str | None = UNSET


def page_size(given: int, name: str) -> int:
    """Return a valid page size. Raises `QueryLimitError`."""
    if not 1 <= given <= PAGE_MAX:
        raise QueryLimitError(f"{name} is {given}: must be 1 to {PAGE_MAX}; use paging for more")
    return given
