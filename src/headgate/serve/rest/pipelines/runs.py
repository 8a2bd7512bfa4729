"""Run API: start, list, cancel and complete runs; run logs; reruns."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Meta, Struct

from headgate.asl.machines.executions import execution_id_of
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.pipelines.enums import FailureCategory, RerunReason
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.operations.manual import ManualActions
from headgate.pipelines.runs.rerun_rows import reason_of
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.due_checks import slot_named, timetable_named
from headgate.pipelines.schedule.sensor_periods import period_text
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag
from headgate.serve.http.problem import Problem
from headgate.serve.http.raw_json import idempotency_key
from headgate.serve.rest.parameters import Cursor, Limit, PageQuery
from headgate.serve.rest.pipelines.models import (
    Date,
    JobPage,
    Reason,
    RerunPage,
    RerunView,
    RunLogPage,
    RunLogView,
    RunPage,
    RunView,
    ScheduleName,
    job_page,
    rerun_view,
    run_log_view,
    run_view,
)
from headgate.serve.rest.pipelines.permissions import CONTROL, PUSH, READ


class StartRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """A period to start now; with `force` the job starts regardless of readiness."""

    date: Date
    schedule: ScheduleName | None = None
    force: bool = False
    reason: Reason


class CancelRun(Struct, forbid_unknown_fields=True):
    """Reason of the cancellation."""

    reason: Reason


class CompleteRun(Struct, forbid_unknown_fields=True, kw_only=True):
    """Completion report of a job; for a failure `category` tells whether a retry may help."""

    status: Literal["success", "failed"]
    reason: Annotated[str, Meta(max_length=4000, examples=["disk full"])] = ""
    category: FailureCategory | None = None


class AskRerun(Struct, forbid_unknown_fields=True, kw_only=True):
    """A period to rerun. The reason selects the budget; `force` ignores an exhausted budget."""

    date: Date
    schedule: ScheduleName | None = None
    reason: Annotated[str, Meta(max_length=200, examples=["manual", "late-data", "data-drift", "job-fail-retry"])] = (
        RerunReason.MANUAL.value
    )
    note: Reason
    force: bool = False


class RunLogsQuery(Struct, forbid_unknown_fields=True):
    """Filter of run logs by date prefix."""

    dates: Annotated[str, Meta(max_length=40, examples=["2026-03"])] = ""
    limit: Limit = 100
    cursor: Cursor | None = None


class LogQuery(Struct, forbid_unknown_fields=True):
    """Schedule; optional if the pipeline has one."""

    schedule: ScheduleName | None = None


class JobQuery(Struct, forbid_unknown_fields=True):
    """Schedule, and page."""

    schedule: ScheduleName | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class StartedView(Struct, frozen=True, kw_only=True):
    """The started lifecycle. The run appears in the run log of the period once it has started."""

    pipeline_id: str
    schedule_id: str
    date: str
    execution: str
    execution_id: str
    created: bool


def run_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operations on runs."""
    return [*_Runs(pipelines).operations(), *_Logs(pipelines).operations(), *_Reruns(pipelines).operations()]


def manual_of(pipelines: PipelineService) -> ManualActions:
    """Return the manual operations of a pipeline service."""
    return pipelines.manual


class _Runs:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._runs = pipelines.stores.runs
        self._manual = manual_of(pipelines)

    def operations(self) -> list[Operation]:
        many, one = "/pipelines/{id}/runs", "/runs/{run_id}"
        return [
            Operation("GET", many, "List runs", self.ls, {200: RunPage}, query=PageQuery, rule=READ),
            Operation(
                "POST", many, "Start a run", self.start, {202: StartedView, 409: Problem}, body=StartRun, rule=PUSH,
                repeatable=True,
            ),
            Operation("GET", one, "Show a run", self.show, {200: RunView}, rule=READ),
            Operation(
                "POST", f"{one}/cancel", "Cancel a run and its job", self.cancel, {202: RunView, 409: Problem},
                body=CancelRun, rule=CONTROL,
            ),
            Operation(
                "POST", f"{one}/complete", "Report the end of a job", self.complete, {200: RunView},
                body=CompleteRun, rule=PUSH,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        page = self._runs.ls(call.path["id"], limit=call.query.limit, cursor=call.query.cursor)
        if not page.runs and call.query.cursor is None:
            # A deleted pipeline may have runs; a pipeline without runs may be a wrong name.
            self._definitions.get(call.path["id"])
        return Answer(RunPage([run_view(each) for each in page.runs], page.cursor))

    def start(self, call: Call[StartRun, NoQuery]) -> Answer:
        body = call.body
        slot = slot_named(self._definitions.get(call.path["id"]).pipeline, body.date, body.schedule)
        by, key = call.principal.name, idempotency_key(call.headers)
        # Two callers may use the same key independently.
        token = "" if key is None else f"{by}-{key}"
        run = self._manual.start(slot, by=by, reason=body.reason, is_forced=body.force, token=token)
        view = StartedView(
            **slot._asdict(),
            execution=run.execution,
            execution_id=execution_id_of(MACHINE, run.execution),
            created=run.is_new,
        )
        return Answer(view, 202, {"location": _log_path(slot)})

    def show(self, call: Call[None, NoQuery]) -> Answer:
        run = self._runs.get(call.path["run_id"])
        return Answer(run_view(run), headers=etag(run.version))

    def cancel(self, call: Call[CancelRun, NoQuery]) -> Answer:
        run = self._manual.cancel(call.path["run_id"], by=call.principal.name, reason=call.body.reason)
        return Answer(run_view(run), 202)

    def complete(self, call: Call[CompleteRun, NoQuery]) -> Answer:
        body = call.body
        run = self._manual.complete(
            call.path["run_id"], is_success=body.status == "success", reason=body.reason, category=body.category
        )
        return Answer(run_view(run))


class _Logs:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._runs = pipelines.stores.runs
        self._jobs = pipelines.stores.job_log

    def operations(self) -> list[Operation]:
        many, one = "/pipelines/{id}/run-logs", "/pipelines/{id}/run-logs/{date}"
        return [
            Operation(
                "GET", many, "List run logs", self.ls, {200: RunLogPage}, query=RunLogsQuery, rule=READ
            ),
            Operation("GET", one, "Show a run log", self.show, {200: RunLogView}, query=LogQuery, rule=READ),
            Operation(
                "GET", f"{one}/jobs", "List job events of a period", self.jobs, {200: JobPage}, query=JobQuery,
                rule=READ,
            ),
        ]  # fmt: skip

    def ls(self, call: Call[None, RunLogsQuery]) -> Answer:
        query = call.query
        page = self._runs.logs(call.path["id"], dates=query.dates, limit=query.limit, cursor=query.cursor)
        if not page.logs and query.cursor is None:
            self._definitions.get(call.path["id"])
        return Answer(RunLogPage([run_log_view(each) for each in page.logs], page.cursor))

    def show(self, call: Call[None, LogQuery]) -> Answer:
        slot = self._slot(call, call.query.schedule)
        log = self._runs.log(slot)
        if log is None:
            raise NotFoundError(f"{slot}: no run and no directive; request the explanation")
        return Answer(run_log_view(log), headers=etag(log.version))

    def jobs(self, call: Call[None, JobQuery]) -> Answer:
        query = call.query
        return Answer(job_page(self._jobs.ls(self._slot(call, query.schedule), limit=query.limit, cursor=query.cursor)))

    def _slot(self, call: Call[None, Any], schedule: str | None) -> Slot:
        """Return the requested period, also of a removed schedule."""
        pipeline = self._definitions.get(call.path["id"]).pipeline
        schedule_id = schedule if schedule is not None else timetable_named(pipeline, None, {}).schedule_id
        date = period_text(call.path["date"])
        if date is None:
            raise InvalidPayloadError(
                f"date {call.path['date'][:40]!r} is not a period; write 2026-03-03, 2026-03-03T07, 2026-W10 or 2026-03"
            )
        return Slot(pipeline.id, schedule_id, date)


class _Reruns:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._reruns = pipelines.stores.reruns
        self._manual = manual_of(pipelines)

    def operations(self) -> list[Operation]:
        many = "/pipelines/{id}/reruns"
        return [
            Operation("GET", many, "List reruns", self.ls, {200: RerunPage}, query=PageQuery, rule=READ),
            Operation(
                "POST", many, "Request a rerun", self.ask, {202: RerunView}, body=AskRerun,
                rule=CONTROL, repeatable=True,
            ),
            Operation("GET", "/reruns", "List reruns of all pipelines", self.ls_all, {200: RerunPage},
                      query=PageQuery, rule=READ),
            Operation("GET", "/reruns/{rerun_id}", "Show a rerun", self.show, {200: RerunView}, rule=READ),
        ]  # fmt: skip

    def ls(self, call: Call[None, PageQuery]) -> Answer:
        self._definitions.get(call.path["id"])
        page = self._reruns.ls(call.path["id"], limit=call.query.limit, cursor=call.query.cursor)
        return Answer(RerunPage([rerun_view(each) for each in page.reruns], page.cursor))

    def ls_all(self, call: Call[None, PageQuery]) -> Answer:
        page = self._reruns.ls(limit=call.query.limit, cursor=call.query.cursor)
        return Answer(RerunPage([rerun_view(each) for each in page.reruns], page.cursor))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(rerun_view(self._reruns.get(call.path["rerun_id"])))

    def ask(self, call: Call[AskRerun, NoQuery]) -> Answer:
        body = call.body
        slot = slot_named(self._definitions.get(call.path["id"]).pipeline, body.date, body.schedule)
        rerun = self._manual.rerun(
            slot, reason_of(body.reason), by=call.principal.name, note=body.note, is_forced=body.force
        )
        return Answer(rerun_view(rerun), 202, {"location": f"{PREFIX}/reruns/{quote(rerun.rerun_id, safe='')}"})


def _log_path(slot: Slot) -> str:
    pipeline, date = quote(slot.pipeline_id, safe=""), quote(slot.date, safe="")
    return f"{PREFIX}/pipelines/{pipeline}/run-logs/{date}?schedule={quote(slot.schedule_id, safe='')}"
