"""Control API: pause and resume pipelines, hold, approve, skip and force periods, run backfills."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import quote

from msgspec import Meta, Struct

from headgate.clock import epoch_ms
from headgate.errors import InvalidPayloadError
from headgate.pipelines.events.names import EventName
from headgate.pipelines.operations.backfill_plans import CONCURRENCY_MAX, Backfill, DateOrder, plan
from headgate.pipelines.operations.backfill_requests import BackfillRequest, done_dates, range_of, spec_of
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.schedule.due_checks import slot_named, timetable_named
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag
from headgate.serve.http.problem import Problem
from headgate.serve.rest.parameters import Moment, PageQuery
from headgate.serve.rest.pipelines.models import (
    BackfillPage,
    BackfillView,
    ControlView,
    Date,
    Reason,
    RunLogView,
    ScheduleName,
    backfill_view,
    control_view,
    run_log_view,
)
from headgate.serve.rest.pipelines.permissions import CONTROL, READ
from headgate.serve.rest.pipelines.runs import manual_of
from headgate.store.model.requests import Write


class PausePipeline(Struct, forbid_unknown_fields=True):
    """Reason of a pause, and its end; without `until` it lasts until a resume."""

    reason: Reason
    until: Moment | None = None


class ResumePipeline(Struct, forbid_unknown_fields=True):
    """Reason of the resume."""

    reason: Reason


class GiveOrder(Struct, forbid_unknown_fields=True):
    """Reason of the directive."""

    reason: Reason
    schedule: ScheduleName | None = None


class AskBackfill(Struct, forbid_unknown_fields=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Periods from one to another, inclusive, with a concurrency. With `dry_run` nothing starts."""

    first: Date
    last: Date
    schedule: ScheduleName | None = None
    concurrency: Annotated[int, Meta(ge=1, le=CONCURRENCY_MAX)] = 1
    order: DateOrder = DateOrder.OLDEST_FIRST
    # Whether completed periods are included.
    redo: bool = False
    while_paused: bool = False
    stop_on_failure: bool = False
    dry_run: bool = False
    reason: Reason


class SteerBackfill(Struct, forbid_unknown_fields=True):
    """Reason."""

    reason: Reason


class BackfillPlanView(Struct, frozen=True, kw_only=True):
    """Dry run of a backfill: periods to start in order, periods skipped as done, and excluded periods."""

    pipeline_id: str
    schedule_id: str
    begins: list[str]
    skips: list[str]
    excluded: dict[str, str]


def control_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operations on pipelines, periods and backfills."""
    return [*_Controls(pipelines).operations(), *_Backfills(pipelines).operations()]


class _Controls:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._controls = pipelines.stores.controls
        self._clock = pipelines.clock
        self._manual = manual_of(pipelines)

    def operations(self) -> list[Operation]:
        one, changed = "/pipelines/{id}", {200: ControlView}
        orders: dict[str, tuple[str, Callable[..., RunLog]]] = {
            "hold": ("Hold a period until it is approved", self._manual.hold),
            "approve": ("Approve a held period", self._manual.approve),
            "skip": ("Skip a period", self._manual.skip),
            "mark-success": ("Mark a period as successful", self._manual.mark_success),
            "force": ("Start the job of a period regardless of readiness", self._manual.force),
        }
        return [
            Operation("GET", f"{one}/control", "Show the control state of a pipeline", self.show, changed, rule=READ),
            Operation(
                "POST", f"{one}/pause", "Pause a pipeline", self.pause, changed, body=PausePipeline,
                rule=CONTROL,
            ),
            Operation(
                "POST", f"{one}/resume", "Resume a pipeline", self.resume, changed, body=ResumePipeline, rule=CONTROL
            ),
            *(
                Operation(
                    "POST", f"{one}/periods/{{date}}/{word}", summary, partial(self.order, give=give),
                    {200: RunLogView, 409: Problem}, body=GiveOrder, rule=CONTROL,
                )
                for word, (summary, give) in orders.items()
            ),
        ]  # fmt: skip

    def show(self, call: Call[None, NoQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        control = self._controls.get(call.path["id"])
        return Answer(control_view(control, epoch_ms(self._clock)), headers=etag(control.version))

    def pause(self, call: Call[PausePipeline, NoQuery]) -> Answer:
        pipeline_id, body = call.path["id"], call.body
        self._definitions.get(pipeline_id)
        until_ms = None if body.until is None else round(body.until.timestamp() * 1000)
        if until_ms is not None and until_ms <= epoch_ms(self._clock):
            raise InvalidPayloadError(f"until {body.until}: in the past; set a later time, or none")
        control = self._manual.pause(pipeline_id, by=call.principal.name, reason=body.reason, until_ms=until_ms)
        return Answer(control_view(control, epoch_ms(self._clock)), headers=etag(control.version))

    def resume(self, call: Call[ResumePipeline, NoQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        control = self._manual.resume(call.path["id"], by=call.principal.name, reason=call.body.reason)
        return Answer(control_view(control, epoch_ms(self._clock)), headers=etag(control.version))

    def order(self, call: Call[GiveOrder, NoQuery], *, give: Callable[..., RunLog]) -> Answer:
        pipeline = self._definitions.get(call.path["id"]).pipeline
        slot = slot_named(pipeline, call.path["date"], call.body.schedule)
        log = give(slot, by=call.principal.name, reason=call.body.reason)
        return Answer(run_log_view(log), headers=etag(log.version))


class _Backfills:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._store = pipelines.store
        self._calendars = pipelines.reader.calendars
        self._events = pipelines.event_writer
        self._backfills = Backfills(pipelines.store, pipelines.clock, pipelines.ids)

    def operations(self) -> list[Operation]:
        many, one = "/pipelines/{id}/backfills", "/backfills/{backfill_id}"
        steered = {200: BackfillView, 409: Problem}
        verbs: dict[str, tuple[str, Callable[..., Backfill]]] = {
            "pause": ("Pause a backfill", self._backfills.pause),
            "resume": ("Resume a backfill", self._backfills.resume),
            "cancel": ("Cancel a backfill", self._backfills.cancel),
        }
        return [
            Operation("GET", many, "List backfills", self.ls, {200: BackfillPage}, query=PageQuery, rule=READ),
            Operation(
                "POST", many, "Start a backfill, or plan it with dry_run", self.ask,
                {200: BackfillPlanView, 202: BackfillView}, body=AskBackfill, rule=CONTROL, repeatable=True,
            ),
            Operation("GET", one, "Show a backfill", self.show, {200: BackfillView}, rule=READ),
            *(
                Operation(
                    "POST", f"{one}/{word}", summary, partial(self.steer, give=give), steered, body=SteerBackfill,
                    rule=CONTROL,
                )
                for word, (summary, give) in verbs.items()
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        page = self._backfills.ls(call.path["id"], limit=call.query.limit, cursor=call.query.cursor)
        return Answer(BackfillPage([backfill_view(each) for each in page.backfills], page.cursor))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(backfill_view(self._backfills.get(call.path["backfill_id"])))

    def ask(self, call: Call[AskBackfill, NoQuery]) -> Answer:
        body = call.body
        pipeline = self._definitions.get(call.path["id"]).pipeline
        timetable = timetable_named(pipeline, body.schedule, self._calendars())
        found = range_of(timetable, body.first, body.last)
        request = BackfillRequest(
            first=body.first,
            last=body.last,
            concurrency=body.concurrency,
            order=body.order,
            redo=body.redo,
            while_paused=body.while_paused,
            stop_on_failure=body.stop_on_failure,
        )
        spec = spec_of(timetable, request, found.dates)
        if body.dry_run:
            planned = plan(spec, done_dates(self._store, spec))
            return Answer(
                BackfillPlanView(
                    pipeline_id=spec.pipeline_id,
                    schedule_id=spec.schedule_id,
                    begins=list(planned.begins),
                    skips=list(planned.skips),
                    excluded=found.excluded,
                )
            )
        made = self._backfills.create(spec, by=call.principal.name, reason=body.reason, also=self._event_writes)
        return Answer(backfill_view(made), 202, {"location": f"{PREFIX}/backfills/{quote(made.backfill_id, safe='')}"})

    def steer(self, call: Call[SteerBackfill, NoQuery], *, give: Callable[..., Backfill]) -> Answer:
        return Answer(backfill_view(give(call.path["backfill_id"], by=call.principal.name, reason=call.body.reason)))

    def _event_writes(self, backfill: Backfill) -> list[Write]:
        about = Slot(backfill.pipeline_id, backfill.schedule_id, "")
        detail = {"backfill_id": backfill.backfill_id, "periods": backfill.dates_count, "by": backfill.by}
        return self._events.writes(EventName.BACKFILL_STARTED, about, detail)
