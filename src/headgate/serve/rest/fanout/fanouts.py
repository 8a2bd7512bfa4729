"""Fan-out API: create, list, describe, compare and plot fan-outs; and all routes of rest/fanout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from litestar import Response
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import UserError
from headgate.fanout.core import campaigns
from headgate.fanout.core.maintenance import EXPIRING
from headgate.fanout.core.queries import PAGE_MAX, FanoutRows
from headgate.fanout.insight.comparison import Comparison, compared, side
from headgate.fanout.insight.error_groups import ErrorGroups, error_groups
from headgate.fanout.insight.progress import Follower
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.events import EVENT_PREFIX, event_of
from headgate.fanout.model.results import Summary, summary_of
from headgate.fanout.model.rows import Fanout, fanout_of, timestamp
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.service import FanoutService
from headgate.fanout.submissions import Asked, NewFanout, read_order
from headgate.serve.http.operations import (
    JSON,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    operation_routes,
)
from headgate.serve.http.raw_json import idempotency_key
from headgate.serve.rest.fanout.chunks import FanoutChunks
from headgate.serve.rest.fanout.items import FanoutItems
from headgate.serve.rest.fanout.models import (
    CreatedView,
    FanoutEventPage,
    FanoutPage,
    FanoutView,
    created_view,
    event_view,
    fanout_view,
    path_of,
    summary,
)
from headgate.serve.rest.fanout.operations import FanoutOperations
from headgate.serve.rest.fanout.plots import draw
from headgate.serve.rest.fanout.watch import FanoutWatching
from headgate.serve.rest.parameters import ChunkId, Cursor, Limit, Moment, NonEmpty, PageQuery
from headgate.serve.runtime.chained_pages import Fetch, chained_page
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Range, Sort

_POLICY: Final = AccessPolicy(Permission.FANOUT_READ, Permission.FANOUT_WRITE)

# A longer split continues after the response, which then has status SPLITTING.
SPLIT_SECONDS: Final = 20.0
MEMBERS_MAX: Final = 10_000
SVG: Final = "image/svg+xml"


class FanoutQuery(Struct, forbid_unknown_fields=True):
    """Filter: by group or campaign, newest first; or all, open ones first.

    `latest` returns only the newest of a group.
    """

    group: NonEmpty | None = None
    campaign: NonEmpty | None = None
    status: FanoutStatus | None = None
    since: Moment | None = None
    until: Moment | None = None
    latest: bool = False
    limit: Limit = 100
    cursor: Cursor | None = None


class ErrorQuery(Struct, forbid_unknown_fields=True):
    """Maximum number of error groups."""

    limit: Limit = 20


class CampaignView(Struct, frozen=True, kw_only=True):
    """Totals of a campaign; fan-outs that need attention come first."""

    campaign: str
    status: FanoutStatus
    is_finished: bool
    members: list[campaigns.Member]
    by_status: dict[str, int]
    counts: dict[str, int]
    share: float
    # In `currency`, of the fan-outs that have a price.
    cost: float | None
    projected_cost: float | None
    currency: str | None
    created_at: str | None
    finished_at: str | None
    eta_seconds: float | None


def fanout_routes(
    fanouts: FanoutService,
    pool: WorkPool,
    *,
    watches: WatchHub,
    unusable: Callable[[], Mapping[str, str]] = dict,
    auditing: Auditing | None = None,
) -> list[ControllerRouterHandler]:
    """Return the routes of fan-outs, chunks and campaigns.

    `unusable` returns the handlers that workers of this process could not load, with the reason.
    """
    operations = [
        *_Fanouts(fanouts, pool, unusable).operations(),
        *FanoutChunks(fanouts).operations(),
        *FanoutItems(fanouts).operations(),
        *FanoutOperations(fanouts).operations(),
        *FanoutWatching(fanouts, pool, watches, unusable).operations(),
    ]
    return operation_routes(
        operations, pool, _POLICY, namespace="fanout.", auditing=auditing, path_types={"chunk_id": ChunkId}
    )


class _Fanouts:
    """Operations on fan-outs."""

    def __init__(self, fanouts: FanoutService, pool: WorkPool, unusable: Callable[[], Mapping[str, str]]) -> None:
        self._fanouts = fanouts
        self._unusable = unusable
        self._queries = fanouts.queries
        self._store = fanouts.store
        self._pool = pool

    def operations(self) -> list[Operation]:
        one, made = "/fanouts/{id}", {201: CreatedView, 200: CreatedView, 202: CreatedView}
        compare, plot = f"{one}/compare/{{other}}", f"{one}/plots/{{name}}"
        return [
            Operation("POST", "/fanouts", "Create a fan-out", self.create, made, body_forms={JSON: NewFanout}),
            Operation("GET", "/fanouts", "List fan-outs", self.ls, {200: FanoutPage}, query=FanoutQuery),
            Operation("GET", one, "Describe a fan-out and its progress", self.show, {200: FanoutView}),
            Operation("GET", f"{one}/summary", "Show the summary of a fan-out", self.summary, {200: Summary}),
            Operation("GET", f"{one}/errors", "Group errors", self.errors, {200: ErrorGroups}, query=ErrorQuery),
            Operation(
                "GET",
                f"{one}/events",
                "List operator events",
                self.events,
                {200: FanoutEventPage},
                query=PageQuery,
            ),
            Operation("GET", compare, "Compare two fan-outs", self.compare, {200: Comparison}),
            Operation("GET", plot, "Draw it", self.plot, {200: str}, answer_media=SVG),
            Operation("GET", "/campaigns/{id}", "Show the totals of a campaign", self.campaign, {200: CampaignView}),
        ]

    async def create(self, call: Call[None, NoQuery]) -> Answer:
        query = await self._pool.run(lambda: read_order(call.content, self._fanouts.access.files))
        run_id = query.run_id or idempotency_key(call.headers) or self._fanouts.ids.make("fan")
        is_new = await self._pool.run(lambda: self._queries.find(run_id)) is None
        splitting = asyncio.ensure_future(self._pool.run(lambda: self._split(query, run_id)))
        # Later errors are recorded in the fan-out's row.
        splitting.add_done_callback(lambda future: future.cancelled() or future.exception())
        done, _ = await asyncio.wait({splitting}, timeout=SPLIT_SECONDS)
        if done:
            fanout, status = splitting.result(), 201 if is_new else 200
        else:
            fanout, status = await self._pool.run(lambda: self._queries.fanout(run_id)), 202
        return Answer(created_view(fanout, created=is_new), status, {"location": path_of(run_id)})

    def _split(self, query: Asked, run_id: str) -> Fanout:
        return self._fanouts.splitter.split(query.order, query.source, run_id=run_id)

    def ls(self, call: Call[None, FanoutQuery]) -> Answer:
        query = call.query
        if query.latest and query.group is None:
            raise UserError("latest: needs group")
        if query.group is not None and query.campaign is not None:
            raise UserError("group and campaign: set one of them")
        stages = self._stages(query)
        found, cursor = chained_page(stages, 1 if query.latest else query.limit, query.cursor)
        return Answer(FanoutPage([summary(fanout) for fanout in found], None if query.latest else cursor))

    def _stages(self, query: FanoutQuery) -> list[tuple[str, Fetch[Fanout]]]:
        if query.group is not None:
            return [("group", self._filtered(query, self._of_group(query)))]
        if query.campaign is not None:
            name = query.campaign
            return [
                (
                    "campaign",
                    self._filtered(
                        query,
                        lambda limit, cursor: campaigns.members(self._store, name, limit=limit, cursor=cursor),
                    ),
                )
            ]
        return [
            ("open", self._filtered(query, lambda limit, cursor: self._queries.active(limit=limit, cursor=cursor))),
            ("ended", self._filtered(query, self._ended)),
        ]

    def _of_group(self, query: FanoutQuery) -> Callable[[int, str | None], FanoutRows]:
        since, until = _text(query.since), _text(query.until)
        return lambda limit, cursor: self._queries.by_group(
            query.group or "", since=since, until=until, limit=limit, cursor=cursor
        )

    def _filtered(self, query: FanoutQuery, fetch: Callable[[int, str | None], FanoutRows]) -> Fetch[Fanout]:
        since, until = _text(query.since) or "", _text(query.until) or "~"

        def fetch_filtered(limit: int, cursor: str | None) -> tuple[list[Fanout], str | None]:
            page = fetch(limit, cursor)
            found = [fanout for fanout in page.fanouts if since <= fanout.created_at <= until]
            return [fanout for fanout in found if query.status in (None, fanout.status)], page.cursor

        return fetch_filtered

    def _ended(self, limit: int, cursor: str | None) -> FanoutRows:
        """Return ended fan-outs by expiry, latest first: with equal retention, the latest ended."""
        page = self._store.query(
            Query(
                table=FANOUT,
                index="attention-index",
                partition=EXPIRING,
                limit=limit,
                cursor=cursor,
                descending=True,
            )
        )
        return FanoutRows([fanout_of(item) for item in page.items], page.cursor)

    def show(self, call: Call[None, NoQuery]) -> Answer:
        run_id = call.path["id"]
        # The row first: an ended fan-out has final counts.
        fanout = self._queries.fanout(run_id, consistent=True)
        progress = Follower(self._store, self._fanouts.clock, run_id, prices=self._fanouts.prices).look()
        return Answer(fanout_view(fanout, progress, self._unusable()))

    def summary(self, call: Call[None, NoQuery]) -> Answer:
        fanout = self._queries.fanout(call.path["id"], consistent=True)
        return Answer(summary_of(fanout, self._queries.counts(fanout)))

    def errors(self, call: Call[None, ErrorQuery]) -> Answer:
        return Answer(error_groups(self._queries, call.path["id"], groups_max=call.query.limit))

    def events(self, call: Call[None, PageQuery]) -> Answer:
        run_id = call.path["id"]
        self._queries.fanout(run_id)
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=run_id,
                sort=Sort(Range.BEGINS_WITH, EVENT_PREFIX),
                limit=call.query.limit,
                cursor=call.query.cursor,
                consistent=True,
            )
        )
        return Answer(FanoutEventPage([event_view(event_of(item)) for item in page.items], page.cursor))

    def compare(self, call: Call[None, NoQuery]) -> Answer:
        prices = self._fanouts.prices
        before, after = (side(self._store, self._queries, call.path[name], prices=prices) for name in ("id", "other"))
        return Answer(compared(before, after))

    def campaign(self, call: Call[None, NoQuery]) -> Answer:
        name = call.path["id"]
        found: list[Fanout] = []
        cursor: str | None = None
        while len(found) < MEMBERS_MAX:
            page = campaigns.members(self._store, name, limit=PAGE_MAX, cursor=cursor)
            found += page.fanouts
            cursor = page.cursor
            if cursor is None:
                break
        counted = [(fanout, campaigns.counts_of_row(fanout)) for fanout in found]
        rollup = campaigns.roll_up(name, counted, self._queries.now_ms(), prices=self._fanouts.prices)
        same = set(CampaignView.__struct_fields__) - {"counts", "is_finished"}
        return Answer(
            CampaignView(
                counts={each: getattr(rollup.counts, each) for each in Counts.__struct_fields__},
                is_finished=all(fanout.is_finished for fanout in found),
                **{each: getattr(rollup, each) for each in same},
            )
        )

    def plot(self, call: Call[None, NoQuery]) -> Response[Any]:
        drawn = draw(self._fanouts, call.path["id"], call.path["name"].removesuffix(".svg"))
        return Response(drawn.encode(), status_code=200, media_type=SVG, headers={"cache-control": "no-store"})


def _text(given: datetime | None) -> str | None:
    """Return a time in the stored form, so that it compares with rows."""
    return None if given is None else timestamp(round(given.timestamp() * 1000))
