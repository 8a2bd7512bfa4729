"""Lists over all pipelines: runs, backfills and upcoming slots, filtered by state, pipeline, owner, tier and time."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from headgate.durable.model.records import instant
from headgate.pipelines.catalog.selection import selector
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.operations.backfill_plans import BackfillState
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.overview.upcoming import UpcomingSlot, upcoming
from headgate.pipelines.runs.run_index import RunFilter
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import Answer, Call, Operation
from headgate.serve.rest.parameters import Cursor, Limit, Moment
from headgate.serve.rest.pipelines.models import BackfillPage, RunPage, backfill_view, run_view
from headgate.serve.rest.pipelines.permissions import READ

Owner = Annotated[str, Meta(min_length=1, max_length=200, examples=["data-platform"])]
Tier = Annotated[int, Meta(ge=1, le=10, description="Tier of the pipeline; 1 is critical.")]
PipelineId = Annotated[str, Meta(min_length=1, max_length=255, examples=["silver"])]


class RunsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of runs. `since` counts from the creation of a run."""

    status: list[RunStatus] = []
    pipeline: PipelineId | None = None
    owner: Owner | None = None
    tier: Tier | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class BackfillsQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of backfills. `since` counts from the creation of a backfill."""

    state: list[BackfillState] = []
    pipeline: PipelineId | None = None
    owner: Owner | None = None
    tier: Tier | None = None
    since: Moment | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class UpcomingQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter of slots, and how far ahead they are listed."""

    pipeline: PipelineId | None = None
    owner: Owner | None = None
    tier: Tier | None = None
    hours: Annotated[float, Meta(gt=0, le=24 * 31)] = 24.0
    limit: Limit = 100


class UpcomingView(Struct, frozen=True, kw_only=True):
    """A slot of a schedule. With `obstacle` no run starts at that time as things are now."""

    at: str
    timezone: str
    pipeline_id: str
    schedule_id: str
    date: str
    owner: str
    tier: int
    obstacle: str


class UpcomingList(Struct, frozen=True):
    """The next slots in order. `is_complete`: no further slot lies in the requested time."""

    slots: list[UpcomingView]
    is_complete: bool


def list_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the lists over all pipelines."""
    return _Lists(pipelines).operations()


class _Lists:
    def __init__(self, pipelines: PipelineService) -> None:
        self._pipelines = pipelines
        self._runs = pipelines.stores.runs
        self._index = pipelines.stores.run_index
        self._backfills = Backfills(pipelines.store, pipelines.clock, pipelines.ids)

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET", "/runs", "List runs of all pipelines", self.runs, {200: RunPage}, query=RunsQuery, rule=READ
            ),
            Operation(
                "GET", "/backfills", "List backfills of all pipelines", self.backfills, {200: BackfillPage},
                query=BackfillsQuery, rule=READ,
            ),
            Operation(
                "GET", "/upcoming", "List the next slots of all schedules of pipelines", self.upcoming,
                {200: UpcomingList}, query=UpcomingQuery, rule=READ,
            ),
        ]  # fmt: skip

    def runs(self, call: Call[None, RunsQuery]) -> Answer:
        query = call.query
        wanted = RunFilter(
            statuses=frozenset(query.status),
            since_ms=None if query.since is None else round(query.since.timestamp() * 1000),
            is_wanted=selector(self._pipelines.known, owner=query.owner, tier=query.tier),
        )
        if query.pipeline is None:
            page = self._index.ls(wanted, limit=query.limit, cursor=query.cursor)
            return Answer(RunPage([run_view(each) for each in page.runs], page.cursor))
        if query.cursor is None:
            self._pipelines.definitions.get(query.pipeline)
        own = self._runs.ls(query.pipeline, limit=query.limit, cursor=query.cursor)
        is_over = wanted.since_ms is not None and any(each.created_at_ms < wanted.since_ms for each in own.runs)
        found = [run_view(each) for each in own.runs if wanted.matches(each)]
        return Answer(RunPage(found, None if is_over else own.cursor))

    def backfills(self, call: Call[None, BackfillsQuery]) -> Answer:
        query = call.query
        if query.pipeline is None:
            page = self._backfills.ls_all(limit=query.limit, cursor=query.cursor)
        else:
            self._pipelines.definitions.get(query.pipeline)
            page = self._backfills.ls(query.pipeline, limit=query.limit, cursor=query.cursor)
        is_selected = selector(self._pipelines.known, owner=query.owner, tier=query.tier)
        since_ms = 0 if query.since is None else round(query.since.timestamp() * 1000)
        found = [
            backfill_view(each)
            for each in page.backfills
            if (not query.state or each.state in query.state)
            and each.created_at_ms >= since_ms
            and is_selected(each.pipeline_id)
        ]
        return Answer(BackfillPage(found, page.cursor))

    def upcoming(self, call: Call[None, UpcomingQuery]) -> Answer:
        query = call.query
        is_selected = selector(self._pipelines.known, owner=query.owner, tier=query.tier)
        if query.pipeline is not None:
            self._pipelines.definitions.get(query.pipeline)
        until = self._pipelines.clock.now() + timedelta(hours=query.hours)
        # One more than is returned, to know whether there are more.
        slots = upcoming(
            self._pipelines,
            until,
            query.limit + 1,
            is_wanted=lambda each: query.pipeline in (None, each) and is_selected(each),
        )
        return Answer(UpcomingList([_view(each) for each in slots[: query.limit]], len(slots) <= query.limit))


def _view(slot: UpcomingSlot) -> UpcomingView:
    return UpcomingView(
        at=instant(round(slot.at.timestamp() * 1000)),
        timezone=slot.pipeline.timezone,
        pipeline_id=slot.pipeline.id,
        schedule_id=slot.slot.schedule_id,
        date=slot.slot.date,
        owner=slot.pipeline.owner,
        tier=slot.pipeline.tier,
        obstacle=slot.obstacle,
    )
