"""Item API: lists the failed items of a fan-out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.errors import CursorError
from headgate.fanout.core.queries import ROWS_AT_ONCE, ChunkRows
from headgate.fanout.insight.failed_items import FailedItem, failed_items_of
from headgate.fanout.model.rows import Chunk, Fanout
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.fanout.service import FanoutService
from headgate.serve.http.operations import Answer, Call, Operation
from headgate.serve.rest.parameters import Cursor, Limit, NonEmpty
from headgate.serve.runtime.chained_pages import Fetch, Stage, chained_page

_FAILED: Final = (Disposition.DEAD, Disposition.QUARANTINED)
# Takes limit and cursor of chunks.
_Rows = Callable[[int, str | None], ChunkRows]


class ItemQuery(Struct, forbid_unknown_fields=True):
    """Filter of failed items, by error."""

    error_class: NonEmpty | None = None
    fingerprint: NonEmpty | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class ItemPage(Struct, frozen=True):
    """A page of failed items. `total` is the number of failed items; with a filter it is unknown."""

    items: list[FailedItem]
    total: int | None = None
    cursor: str | None = None


class FanoutItems:
    """Operations on items."""

    def __init__(self, fanouts: FanoutService) -> None:
        self._queries = fanouts.queries

    def operations(self) -> list[Operation]:
        """Return the operations."""
        path = "/fanouts/{id}/items"
        return [Operation("GET", path, "List failed items", self.ls, {200: ItemPage}, query=ItemQuery)]

    def ls(self, call: Call[None, ItemQuery]) -> Answer:
        asked, fanout = call.query, self._queries.fanout(call.path["id"])

        def matches(item: FailedItem) -> bool:
            return asked.error_class in (None, item.error_class) and asked.fingerprint in (None, item.fingerprint)

        found, cursor = chained_page(self._stages(fanout, matches), asked.limit, asked.cursor)
        is_filtered = asked.error_class is not None or asked.fingerprint is not None
        total = None if is_filtered else self._queries.counts(fanout).items_failed
        return Answer(ItemPage(found, total, cursor))

    def _stages(self, fanout: Fanout, matches: Callable[[FailedItem], bool]) -> list[Stage[FailedItem]]:
        run_id, queries = fanout.run_id, self._queries
        if not fanout.shards:
            # Written by another program: its rows are not in our indexes.
            return [("all", _items(lambda limit, cursor: queries.matching(
                run_id, lambda chunk: chunk.status is ChunkStatus.FAILED or chunk.item_errors is not None,
                limit=limit, cursor=cursor,
            ), matches))]  # fmt: skip

        def listed(about: Disposition) -> _Rows:
            return lambda limit, cursor: queries.in_disposition(run_id, about, limit=limit, cursor=cursor)

        stages: list[Stage[FailedItem]] = [(about.value, _items(listed(about), matches)) for about in _FAILED]
        stages.append(
            (
                "completed",
                _items(
                    lambda limit, cursor: queries.with_failed_items(run_id, limit=limit, cursor=cursor),
                    matches,
                ),
            )
        )
        return [*stages, (Disposition.DEFERRED.value, _items(listed(Disposition.DEFERRED), matches))]


def _items(read: _Rows, matches: Callable[[FailedItem], bool]) -> Fetch[FailedItem]:
    """Return a list of the failed items of chunks. A page may end within a chunk: its cursor has the position."""

    def fetch(limit: int, position: str | None) -> tuple[list[FailedItem], str | None]:
        skipped, cursor = _parsed(position)
        page = read(ROWS_AT_ONCE, cursor)
        found: list[FailedItem] = []
        for place, chunk in enumerate(page.chunks):
            own = _matching(chunk, matches)[skipped if place == 0 else 0 :]
            room = limit - len(found)
            found += own[:room]
            if len(own) > room or (len(found) == limit and place + 1 < len(page.chunks)):
                # A cursor is that of a page: the page that ends before the next chunk has the right one.
                is_whole = len(own) <= room
                through = place + is_whole
                before = cursor if not through else read(through, cursor).cursor
                used = 0 if is_whole else room + (skipped if place == 0 else 0)
                return found, f"{used}.{before or ''}"
        return found, None if page.cursor is None else f"0.{page.cursor}"

    return fetch


def _matching(chunk: Chunk, matches: Callable[[FailedItem], bool]) -> list[FailedItem]:
    return [item for item in failed_items_of(chunk) if matches(item)]


def _parsed(position: str | None) -> tuple[int, str | None]:
    if position is None:
        return 0, None
    count, separator, cursor = position.partition(".")
    if not separator or not (count.isascii() and count.isdigit()) or len(count) > 9:
        raise CursorError("cursor: not valid for this list; start again without it")
    return int(count), cursor or None
