"""Run page: timeline, readiness evaluation, job and other attempts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.asl.machines.executions import execution_id_of
from headgate.health.model.timestamps import instant, milliseconds
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.definition.serialization import differences
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.lifecycle.starter import MACHINE
from headgate.pipelines.overview.status import sla_moments
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import PipelineService
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, span
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute
from headgate.serve.pages.pipelines.actions import run_actions
from headgate.serve.pages.pipelines.event_lines import EVENTS_MAX, EventLine, event_lines
from headgate.serve.pages.pipelines.pipeline import registered, schedule_option, served
from headgate.serve.pages.pipelines.run_job import COMMAND, FAN_OUT, WORKFLOW, RunJob, run_job
from headgate.serve.pages.pipelines.run_timeline import run_timeline
from headgate.serve.pages.pipelines.summary import Fact, definition_facts
from headgate.serve.pages.work.execution_timeline import Timeline

SHOWN_MAX: Final = 50
WIDTH: Final = 1000
_BAR_MIN: Final = 4.0
# Events of a run may arrive shortly after its end.
_AFTER_MS: Final = 600_000


class Phase(Struct, frozen=True, kw_only=True):
    """A period of time in one state. A final state has no width."""

    status: str
    since: str
    lasted: str
    x: float
    width: float


class DefinitionThen(Struct, frozen=True):
    """The definition that a run follows, and how the one in force differs from it."""

    version: int
    facts: list[Fact]
    current: int
    changes: list[str]


class RunPage(Struct, frozen=True, kw_only=True):
    """View of a run, with the parts visible to the caller."""

    run: Any
    phases: list[Phase]
    timeline: Timeline
    trigger: str
    reads: list[str]
    writes: list[str]
    registered: frozenset[str]
    took: str
    is_live: bool
    is_latest: bool
    why: Section
    log: Section
    evaluation: Any
    jobs: list[Any]
    events: list[EventLine]
    events_missing: str
    execution: str
    commands: tuple[tuple[str, str], ...]
    output_api: str
    sentence: str
    job: RunJob
    definition: DefinitionThen | None

    @property
    def parts(self) -> list[Chip]:
        """Links to the parts of the page."""
        found = [
            ("Log", "#log"),
            ("Why", "#why"),
            ("Attempts", "#attempts"),
            *([("Chunks", "#chunks")] if self.trigger == FAN_OUT else []),
            ("Execution", "#execution"),
            ("Events", "#events"),
            ("Definition", "#definition"),
        ]
        return [(text, address, False) for text, address in found]


def run_page(api: ApiCaller, run_id: str) -> RunPage:
    """Return the page of a run. Raises `NotFoundError`, and as the API operation."""
    pipelines = served(api)
    run = api.call("GET /runs/{run_id}", path={"run_id": run_id})
    slot = Slot(run["pipeline_id"], run["schedule_id"], run["date"])
    path, schedule = {"id": slot.pipeline_id}, {"schedule": slot.schedule_id}
    of_period = {**path, "date": slot.date}
    log = api.section("GET /pipelines/{id}/run-logs/{date}", path=of_period, query=schedule)
    jobs = api.section("GET /pipelines/{id}/run-logs/{date}/jobs", path=of_period, query=schedule)
    events = api.section("GET /pipelines/{id}/events", path=path, query=_time_of(run))
    status = RunStatus(run["status"])
    is_latest = log.value is None or log.value["run_id"] == run["run_id"]
    execution = execution_id_of(MACHINE, run["execution"]) if run["execution"] else ""
    # The definition at the start of the run, also of a deleted pipeline.
    stored = pipelines.definitions.find(slot.pipeline_id, run["definition_version"] or None)
    pipeline = None if stored is None else stored.pipeline
    trigger = "" if pipeline is None or pipeline.trigger is None else pipeline.trigger.type
    reads, writes = ([], []) if pipeline is None else (list(pipeline.reads), list(pipeline.writes))
    evaluations = _evaluations(api, run)
    sla = None if pipeline is None else sla_moments(pipeline, slot, pipelines.reader.calendars())
    own_events = [each for each in events.items("events") if each["run_id"] == run["run_id"]]
    entries = [each for each in jobs.items("entries") if each["run_id"] == run["run_id"]]
    why = api.section("GET /pipelines/{id}/why", path=path, query={"date": slot.date, **schedule})
    return RunPage(
        run=run,
        phases=phases(run["transitions"], api.now_ms, is_open=not status.is_terminal),
        timeline=run_timeline(run, evaluations, own_events, sla, api.now_ms),
        trigger=trigger,
        reads=reads,
        writes=writes,
        registered=registered(api, (*reads, *writes)),
        took="" if run["duration_ms"] is None else span(run["duration_ms"] / 1000),
        is_live=not status.is_terminal and not status.is_done,
        is_latest=is_latest,
        why=why,
        log=log,
        evaluation=_evaluation(run, evaluations),
        jobs=entries,
        events=event_lines(own_events, has_more=bool(events.value and events.value["cursor"])),
        events_missing=events.missing,
        execution=execution,
        commands=_commands(run, execution, trigger),
        output_api=twin(f"/runs/{segment(run_id)}/log"),
        sentence=why.value["sentence"] if is_latest and why.value else _sentence(run),
        job=run_job(api, run, trigger, entries),
        definition=None if stored is None else _definition(pipelines, stored),
    )


def _definition(pipelines: PipelineService, stored: StoredPipeline) -> DefinitionThen:
    current = pipelines.definitions.find(stored.pipeline.id)
    changes = [] if current is None else differences(stored.pipeline, current.pipeline)
    version = stored.version if current is None else current.version
    return DefinitionThen(stored.version, definition_facts(stored.pipeline), version, changes)


def phases(transitions: Sequence[Mapping[str, Any]], now_ms: int, *, is_open: bool) -> list[Phase]:
    """Return the phases of a run in order, with their durations; a final state has none."""
    if not transitions:
        return []
    starts = [milliseconds(each["at"]) for each in transitions]
    end_ms = max(now_ms, starts[-1]) if is_open else starts[-1]
    lengths = [stop - start for start, stop in zip(starts, [*starts[1:], end_ms], strict=True)]
    # Very short phases get a minimum width, taken from long ones.
    shown = len(lengths) if is_open else len(lengths) - 1
    room = WIDTH - shown * _BAR_MIN
    scale = room / max(1, end_ms - starts[0])
    found: list[Phase] = []
    x = 0.0
    for index, (each, length_ms) in enumerate(zip(transitions, lengths, strict=True)):
        is_over = index >= shown
        width = 0.0 if is_over else _BAR_MIN + length_ms * scale
        lasted = "" if is_over else _lasted(length_ms)
        found.append(
            Phase(status=each["status"], since=each["at"], lasted=lasted, x=round(x, 1), width=round(width, 1))
        )
        x += width
    return found


def _lasted(length_ms: int) -> str:
    # Milliseconds for sub-second phases.
    return f"{length_ms} ms" if length_ms < 1_000 else span(length_ms / 1000)


def _time_of(run: Mapping[str, Any]) -> dict[str, Any]:
    until = {"until": instant(milliseconds(run["ended_at"]) + _AFTER_MS)} if run["ended_at"] else {}
    return {"since": run["created_at"], **until, "limit": EVENTS_MAX}


def _sentence(run: Mapping[str, Any]) -> str:
    return f"{run['pipeline_id']} of {run['date']}, attempt {run['attempt']}: {run['status'].lower()}" + (
        f", {run['reason']}" if run["reason"] else ""
    )


def _evaluations(api: ApiCaller, run: Mapping[str, Any]) -> list[Any]:
    """Return the stored evaluations of a run, latest first."""
    found = api.section(
        "GET /pipelines/{id}/evaluations",
        path={"id": run["pipeline_id"]},
        query={"date": run["date"], "schedule": run["schedule_id"], "limit": SHOWN_MAX},
    ).items("evaluations")
    return [each for each in found if run["run_id"] == each["run_id"] or run["evaluation_id"] == each["evaluation_id"]]


def _evaluation(run: Mapping[str, Any], evaluations: Sequence[Any]) -> Any:  # noqa: ANN401 - JSON of the API
    """Return the evaluation that released a run, or its last one; None if none is stored."""
    named = [each for each in evaluations if each["evaluation_id"] == run["evaluation_id"]]
    return next(iter((*named, *evaluations)), None)


def _commands(run: Mapping[str, Any], execution: str, trigger: str) -> tuple[tuple[str, str], ...]:
    found = [("This page", command("run", "show", run["run_id"]))]
    if execution:
        found += [
            ("Its lifecycle", command("asl", "show-execution", execution)),
            ("Show the execution history", command("asl", "history", execution)),
        ]
    if trigger == COMMAND and run["job_id"]:
        found.append(("Its output", command("run", "logs", run["run_id"], "--follow")))
    if trigger == FAN_OUT and run["job_id"]:
        found += [
            ("Its chunks", command("fanout", "show", run["job_id"])),
            ("Follow them", command("fanout", "watch", run["job_id"])),
        ]
    if trigger == WORKFLOW and run["job_id"]:
        found.append(("Its job", command("execution", "show", run["job_id"])))
    return tuple(found)


def _page(api: ApiCaller, request: PageRequest) -> Page:
    run_id = request.path["run_id"]
    view = run_page(api, run_id)
    pipeline_id, date = view.run["pipeline_id"], view.run["date"]
    own = (pipeline_id, f"/ui/pipelines/{segment(pipeline_id)}")
    pipeline = served(api).definitions.find(pipeline_id, view.run["definition_version"] or None)
    slot = Slot(pipeline_id, view.run["schedule_id"], date)
    option = () if pipeline is None else schedule_option(pipeline.pipeline, slot)
    return Page(
        template="run.html",
        title=f"{pipeline_id} of {date}",
        crumbs=(("Pipelines", "/ui/pipelines"), own) if api.has_pipeline(pipeline_id) else (("Runs", "/ui/runs"),),
        view=view,
        actions=run_actions(api, view.run, RunStatus(view.run["status"]), option, view.trigger),
        json=twin(f"/runs/{segment(run_id)}"),
        cli=view.commands[0][1],
        changes=changes_of(pipeline_id=pipeline_id),
        section="runs",
    )


PAGES: Final = (PageRoute("/runs/{run_id:str}", _page),)
