"""Schedule API: create, change, pause, trigger, backfill and preview schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Raw, Struct

from headgate.auth.roles import Permission
from headgate.durable.model.duration import optional_seconds, seconds
from headgate.durable.model.records import instant
from headgate.durable.schedules import cron
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.schedules import PREVIEW_MAX, check_schedule_id
from headgate.durable.schedules.slots import Backfill, CatchUp, Fire, Overlap, Schedule, Spec, moment
from headgate.durable.service import Service
from headgate.serve.http.operations import (
    PREFIX,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    operation_routes,
)
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem
from headgate.serve.http.raw_json import checked, idempotency_key, missing
from headgate.serve.http.views import shown
from headgate.serve.rest.durable.executions import require_workflow
from headgate.serve.rest.parameters import Cursor, Duration, Limit, Moment, Reason, ScheduleId, described
from headgate.serve.runtime.thread_pool import WorkPool

_POLICY: Final = AccessPolicy(Permission.SCHEDULE_READ, Permission.SCHEDULE_WRITE)


class ScheduleSpec(Struct, forbid_unknown_fields=True, kw_only=True):
    """Workflow and recurrence. `cron` is an expression, a name such as @hourly, or an interval such as `every 15m`."""

    workflow: str
    cron: str
    zone: str = "UTC"
    start: Moment | None = None
    end: Moment | None = None
    jitter: Duration = 0.0
    input: Raw = msgspec.field(default_factory=missing)
    overlap: Overlap = Overlap.SKIP
    catchup: CatchUp = CatchUp.LAST
    catchup_window: Duration = "7d"
    tags: dict[str, str] = {}
    timeout: Duration | None = None
    retention: Duration | None = None


class NewSchedule(ScheduleSpec, forbid_unknown_fields=True, kw_only=True):
    """A schedule to create, optionally paused."""

    id: ScheduleId
    paused: bool = False
    reason: Reason = ""


class PauseSchedule(Struct, forbid_unknown_fields=True):
    """Reason of the pause."""

    reason: Reason = ""


class TriggerSchedule(Struct, forbid_unknown_fields=True):
    """A manual start, deduplicated by id or Idempotency-Key."""

    overlap: Overlap = Overlap.ALLOW
    id: Annotated[str, described(r"[A-Za-z0-9._:@/=+-]{1,200}")] | None = None


class BackfillSchedule(Struct, forbid_unknown_fields=True):
    """Slots from `since` (inclusive) to `until` (exclusive), in sequence (buffer_one) or in parallel (allow)."""

    since: Moment
    until: Moment
    overlap: Overlap = Overlap.BUFFER_ONE


class PreviewQuery(Struct, forbid_unknown_fields=True):
    """Number of upcoming slots."""

    n: Annotated[int, Meta(ge=1, le=PREVIEW_MAX)] = 10


class BackfillView(Struct, frozen=True):
    """A backfill in progress."""

    since: str
    until: str
    done_through: str
    one_by_one: bool


class ScheduleView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A schedule. `revision` is its ETag; `fires` are the latest slots."""

    id: str
    revision: int
    workflow: str
    cron: str
    zone: str
    overlap: Overlap
    catchup: CatchUp
    catchup_window_seconds: int
    created_at: str
    judged_through: str
    input: Raw
    paused: bool
    next: str | None = None
    reason: str = ""
    # The app whose code declares it; empty if it was made by hand.
    declared_by: str = ""
    start: datetime | None = None
    end: datetime | None = None
    jitter_seconds: int = 0
    tags: dict[str, str] = {}
    timeout_seconds: float | None = None
    retention_seconds: float | None = None
    started_count: int = 0
    skipped_count: int = 0
    open_executions: list[str] = []
    fires: list[FireView] = []
    backfills: list[BackfillView] = []


class FireView(Struct, frozen=True, omit_defaults=True):
    """The outcome of a slot: an execution, or why it was skipped."""

    slot: str
    at: str
    execution_id: str | None = None
    skipped: str | None = None
    blocked_by: str | None = None


class SchedulesQuery(Struct, forbid_unknown_fields=True, kw_only=True):
    """Filter and page of schedules. A page may be short or empty and still have a cursor."""

    workflow: Annotated[str, Meta(max_length=200)] | None = None
    # None: both.
    paused: bool | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SchedulePage(Struct, frozen=True):
    """A page of schedules, next due first; paused ones come last."""

    schedules: list[ScheduleView]
    cursor: str | None = None


class SlotView(Struct, frozen=True):
    """An upcoming slot, its due time with jitter, and its local time in the schedule's zone."""

    slot: datetime
    due: datetime
    local: datetime


class PreviewView(Struct, frozen=True):
    """Upcoming slots, and the zone of the schedule."""

    zone: str
    slots: list[SlotView]


def schedule_routes(
    service: Service, pool: WorkPool, *, auditing: Auditing | None = None
) -> list[ControllerRouterHandler]:
    """Return the routes of schedules."""
    return operation_routes(
        _Schedules(service).operations(), pool, _POLICY, auditing=auditing, path_types={"id": ScheduleId}
    )


class _Schedules:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._schedules = service.schedules

    def operations(self) -> list[Operation]:
        one, shown = "/schedules/{id}", {200: ScheduleView}
        changed = {**shown, 412: Problem}
        fired = {201: FireView, 200: FireView}
        return [
            Operation("GET", "/schedules", "List schedules", self.ls, {200: SchedulePage}, query=SchedulesQuery),
            Operation("POST", "/schedules", "Create a schedule", self.create, {201: ScheduleView}, body=NewSchedule),
            Operation("GET", one, "Show a schedule", self.show, shown),
            Operation("PUT", one, "Change a schedule", self.update, changed, body=ScheduleSpec),
            Operation("DELETE", one, "Delete a schedule", self.delete, {204: None, 412: Problem}),
            Operation("POST", f"{one}/pause", "Pause a schedule", self.pause, changed, body=PauseSchedule),
            Operation("POST", f"{one}/resume", "Resume a schedule", self.resume, changed),
            Operation("POST", f"{one}/trigger", "Trigger a schedule now", self.trigger, fired, body=TriggerSchedule),
            Operation(
                "POST",
                f"{one}/backfill",
                "Backfill past slots",
                self.backfill,
                {202: ScheduleView},
                body=BackfillSchedule,
            ),
            Operation("POST", f"{one}/stop-backfills", "Stop backfills", self.stop_backfills, changed),
            Operation(
                "GET",
                f"{one}/preview",
                "Preview upcoming slots",
                self.preview,
                {200: PreviewView},
                query=PreviewQuery,
            ),
        ]

    def ls(self, call: Call[None, SchedulesQuery]) -> Answer:
        query = call.query
        page = self._schedules.ls(limit=query.limit, cursor=query.cursor)
        shown = [self._view(each) for each in page.schedules]
        found = [
            each for each in shown if query.workflow in (None, each.workflow) and query.paused in (None, each.paused)
        ]
        return Answer(SchedulePage(found, page.cursor))

    def create(self, call: Call[NewSchedule, NoQuery]) -> Answer:
        body = call.body
        check_schedule_id(body.id)
        created = self._schedules.create(body.id, self._spec(body), paused=body.paused, reason=body.reason)
        location = {"location": f"{PREFIX}/schedules/{quote(created.schedule_id, safe='')}"}
        return self._response(created, 201, location)

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return self._response(self._schedules.get(call.path["id"]))

    def update(self, call: Call[ScheduleSpec, NoQuery]) -> Answer:
        spec = self._spec(call.body)
        return matching(
            call.headers,
            None,
            lambda revision: self._response(self._schedules.update(call.path["id"], spec, revision=revision)),
        )

    def delete(self, call: Call[None, NoQuery]) -> Answer:
        def remove(revision: int | None) -> Answer:
            self._schedules.delete(call.path["id"], revision=revision)
            return Answer(status=204)

        return matching(call.headers, None, remove)

    def pause(self, call: Call[PauseSchedule, NoQuery]) -> Answer:
        return matching(
            call.headers,
            None,
            lambda revision: self._response(
                self._schedules.pause(call.path["id"], call.body.reason, revision=revision)
            ),
        )

    def resume(self, call: Call[None, NoQuery]) -> Answer:
        return matching(
            call.headers,
            None,
            lambda revision: self._response(self._schedules.resume(call.path["id"], revision=revision)),
        )

    def trigger(self, call: Call[TriggerSchedule, NoQuery]) -> Answer:
        body = call.body
        request_id = body.id if body.id is not None else idempotency_key(call.headers)
        fire = self._schedules.trigger(call.path["id"], overlap=body.overlap, request_id=request_id)
        return Answer(_fire_view(fire), 201 if fire.skipped is None else 200)

    def backfill(self, call: Call[BackfillSchedule, NoQuery]) -> Answer:
        body = call.body
        return self._response(self._schedules.backfill(call.path["id"], body.since, body.until, body.overlap), 202)

    def stop_backfills(self, call: Call[None, NoQuery]) -> Answer:
        return matching(
            call.headers,
            None,
            lambda revision: self._response(self._schedules.stop_backfills(call.path["id"], revision=revision)),
        )

    def preview(self, call: Call[None, PreviewQuery]) -> Answer:
        zone = self._schedules.get(call.path["id"]).spec.recurrence.zone
        upcoming = self._schedules.preview(call.path["id"], call.query.n)
        slots = [SlotView(each.slot, each.due, each.slot.astimezone(ZoneInfo(zone))) for each in upcoming]
        return Answer(PreviewView(zone, slots))

    def _response(self, schedule: Schedule, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
        return Answer(self._view(schedule), status, {**etag(schedule.revision), **(headers or {})})

    def _view(self, schedule: Schedule) -> ScheduleView:
        return _view(schedule, self._schedules.running(schedule), self._now_ms())

    def _now_ms(self) -> int:
        return int(self._service.clock.seconds() * 1000)

    def _spec(self, body: ScheduleSpec) -> Spec:
        """Parse the spec. Raises `UnknownWorkflowError`, and `InvalidPayloadError` for an input that does not fit."""
        require_workflow(self._service, body.workflow)
        input = checked(body.input, f"input of workflow {body.workflow}")
        definition = self._service.app.workflows.get(body.workflow)
        if definition is not None:
            definition.signature.unpack(input, what=f"input of workflow {body.workflow}")
        return Spec(
            workflow=body.workflow,
            recurrence=Recurrence(
                expression=body.cron,
                zone=body.zone,
                start=body.start,
                end=body.end,
                jitter_seconds=round(seconds(body.jitter, name="jitter")),
            ),
            input=bytes(input).decode(),
            overlap=body.overlap,
            catchup=body.catchup,
            catchup_window_seconds=round(seconds(body.catchup_window, name="catchup_window")),
            tags=body.tags,
            timeout_seconds=optional_seconds(body.timeout, name="timeout"),
            retention_seconds=optional_seconds(body.retention, name="retention"),
        )


def _fire_view(fire: Fire) -> FireView:
    skipped = None if fire.skipped is None else fire.skipped.value
    return FireView(fire.slot, instant(fire.at_ms), fire.execution_id, skipped, fire.blocked_by)


def _backfill_view(backfill: Backfill) -> BackfillView:
    return BackfillView(
        instant(backfill.since_ms),
        instant(backfill.until_ms),
        # Before the first slot the value is -1, which is not a valid instant.
        instant(max(0, backfill.done_through_ms)),
        backfill.one_by_one,
    )


def _view(schedule: Schedule, running: Sequence[str], now_ms: int) -> ScheduleView:
    spec = schedule.spec
    recurrence = spec.recurrence
    after = moment(max(schedule.judged_through_ms, now_ms))
    upcoming = [] if schedule.paused else cron.next_times(recurrence, after, 1)
    return shown(
        ScheduleView,
        schedule,
        spec,
        recurrence,
        id=schedule.schedule_id,
        cron=recurrence.expression,
        input=Raw(spec.input.encode()),
        next=cron.slot_text(upcoming[0]) if upcoming else None,
        open_executions=list(running),
        fires=[_fire_view(fire) for fire in schedule.fires],
        backfills=[_backfill_view(each) for each in schedule.backfills],
    )
