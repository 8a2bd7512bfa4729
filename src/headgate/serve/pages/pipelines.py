"""Pipeline pages: the list, those that need attention first, and one pipeline in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.duration import from_json_type
from headgate.errors import NotFoundError
from headgate.health.model.timestamps import instant
from headgate.pipelines.catalog.project import FolderReport
from headgate.pipelines.catalog.store import BadPipeline
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState, ExpectationVerdict, RunStatus
from headgate.pipelines.overview.attention import AttentionList, attention_list, stored
from headgate.pipelines.overview.status import DefinedPipeline, PipelineState, PipelineStatus, PipelineStatusReader
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.dependencies import upstreams_of
from headgate.pipelines.service import PipelineService
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute
from headgate.serve.pages.pipeline_summary import Fact, definition_facts, sensor_keys

LISTED: Final = 50
# Batch size and maximum batches read to fill a filtered page.
_BATCH: Final = 100
_BATCHES_MAX: Final = 10
ATTENTION_MAX: Final = 60
PERIODS: Final = 60
SHOWN_MAX: Final = 30
FILTERS: Final = ("search", "owner", "status")
BEGIN: Final = command("init", "shop")
APPLY: Final = command("pipeline", "apply", "pipelines", "--reason", "WHY")


class PipelineCounts(Struct, frozen=True, kw_only=True):
    """Counts of pipelines that need attention, for the health board. `has_more`: there may be others."""

    failed: int
    late: int
    stuck: int
    held: int
    missed: int
    paused: int
    has_more: bool

    @property
    def listed(self) -> list[tuple[str, int, str]]:
        """The nonzero counts: state, number and label."""
        counts = (
            (PipelineState.FAILED, self.failed, "failed"),
            (PipelineState.LATE, self.late, "past their deadline"),
            (PipelineState.STUCK, self.stuck, "stuck"),
            (PipelineState.HELD, self.held, "held"),
            (PipelineState.MISSED, self.missed, "with missed periods"),
            (PipelineState.PAUSED, self.paused, "paused"),
        )
        return [(state.value, number, label) for state, number, label in counts if number]


class PipelineList(Struct, frozen=True, kw_only=True):
    """A page of the list: all pipelines that need attention, then some others."""

    troubled: list[PipelineStatus]
    has_more_attention: bool
    rows: list[PipelineStatus]
    bad: list[BadPipeline]
    folder: FolderReport | None
    next_page_token: str | None
    filters: Mapping[str, str]
    states: tuple[str, ...] = tuple(each.value for each in PipelineState)
    cli: str
    begin: str = BEGIN
    apply: str = APPLY


class SeenSensor(Struct, frozen=True, kw_only=True):
    """The sensor value for a period, or why there is none."""

    key: str
    data: Mapping[str, Any] = {}
    period: str | None = None
    updated_at: str | None = None
    by: str = ""
    missing: str = ""


class PipelinePage(Struct, frozen=True, kw_only=True):
    """View of a pipeline, focused on one period."""

    row: PipelineStatus
    definition: Any
    facts: list[Fact]
    why: Section
    chosen: Slot
    is_chosen: bool
    sensors: list[SeenSensor]
    events: Section
    expectations: list[Any]
    upstream: list[str]
    downstream: list[str]
    actions: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]


def pipeline_list(api: ApiCaller, query: Mapping[str, Any]) -> PipelineList:
    """Return a page of the list. Raises as the API operation, and `NotFoundError` without pipelines."""
    pipelines = served(api)
    filters = {name: str(query.get(name, "")) for name in FILTERS}
    token = query.get("page_token")
    found, bad, following = _listed(api, filters, token)
    attention = attention_list(pipelines)
    # Only the first page shows the pipelines that need attention.
    read = [] if token else _suspects(pipelines, attention)
    rows = _statuses(pipelines, attention, [each for each in read if _fits(each.pipeline, filters)], found)
    wanted = sorted((row for row in rows if filters["status"] in ("", row.state)), key=lambda row: row.urgency)
    troubled = [row for row in wanted if row.state.needs_attention]
    return PipelineList(
        troubled=troubled,
        has_more_attention=not token and len(attention.suspects) > ATTENTION_MAX,
        rows=sorted((row for row in wanted if not row.state.needs_attention), key=lambda row: row.pipeline.id),
        bad=bad,
        folder=pipelines.project.report,
        next_page_token=following,
        filters=filters,
        cli=command("pipeline", "ls", *options([("--owner", filters["owner"])])),
    )


def pipeline_counts(api: ApiCaller) -> PipelineCounts | None:
    """Return the counts over what the first page of the list shows, or None if there are no pipelines.

    Raises as the API operation.
    """
    if api.pipelines is None or not api.call("GET /pipelines", query={"limit": 1})["pipelines"]:
        return None
    attention = attention_list(api.pipelines)
    listed, _, _ = _listed(api, dict.fromkeys(FILTERS, ""), None)
    rows = _statuses(api.pipelines, attention, _suspects(api.pipelines, attention), listed)
    found = Counter(row.state for row in rows)
    return PipelineCounts(
        failed=found[PipelineState.FAILED] + found[PipelineState.STOPPED],
        late=found[PipelineState.LATE],
        stuck=found[PipelineState.STUCK],
        held=found[PipelineState.HELD],
        missed=found[PipelineState.MISSED],
        paused=found[PipelineState.PAUSED],
        has_more=len(attention.suspects) > ATTENTION_MAX,
    )


def served(api: ApiCaller) -> PipelineService:
    """Return the pipelines of this server. Raises `NotFoundError` if it has none."""
    if api.pipelines is None:
        raise NotFoundError("this server has no pipelines; start it with 'headgate up --pipelines FOLDER'")
    return api.pipelines


def _suspects(pipelines: PipelineService, attention: AttentionList) -> list[DefinedPipeline]:
    found = stored(pipelines, attention.suspects[:ATTENTION_MAX])
    return [DefinedPipeline(each.pipeline, each.at) for each in found]


def _statuses(
    pipelines: PipelineService,
    attention: AttentionList,
    suspects: Sequence[DefinedPipeline],
    listed: Sequence[DefinedPipeline],
) -> list[PipelineStatus]:
    """Return the statuses of suspects and of a page of the list, each pipeline once: for the list and for the board."""
    known = {each.pipeline.id for each in suspects}
    others = [each for each in listed if each.pipeline.id not in known]
    return PipelineStatusReader(pipelines, attention).statuses([*suspects, *others])


def _listed(
    api: ApiCaller, filters: Mapping[str, str], token: str | None
) -> tuple[list[DefinedPipeline], list[BadPipeline], str | None]:
    """Return matching pipelines, invalid rows, and the cursor of the next page."""
    # Authorizes via the API; the definitions are then read directly, which is faster.
    api.call("GET /pipelines", query={"limit": 1})
    definitions = served(api).definitions
    is_filtered = bool(filters["search"] or filters["owner"])
    found: list[DefinedPipeline] = []
    bad: list[BadPipeline] = []
    for _ in range(_BATCHES_MAX if is_filtered else 1):
        page = definitions.ls(limit=_BATCH if is_filtered else LISTED, cursor=token)
        found += [DefinedPipeline(each.pipeline, each.at) for each in page.pipelines if _fits(each.pipeline, filters)]
        bad += page.bad
        token = page.cursor
        if token is None or len(found) >= LISTED:
            break
    return found, bad, token


def _pipeline(shown: Mapping[str, Any]) -> Pipeline:
    return typed_decode.convert(shown["definition"], Pipeline, dec_hook=from_json_type)


def _fits(pipeline: Pipeline, filters: Mapping[str, str]) -> bool:
    text = "\n".join((pipeline.id, pipeline.owner, pipeline.description, *pipeline.labels.values())).lower()
    return filters["owner"] in ("", pipeline.owner) and filters["search"].lower() in text


def pipeline_page(api: ApiCaller, pipeline_id: str, query: Mapping[str, Any]) -> PipelinePage:
    """Return the page of a pipeline, for the chosen or most relevant period. Raises `NotFoundError`."""
    pipelines, path = served(api), {"id": pipeline_id}
    shown = api.call("GET /pipelines/{id}", path=path)
    pipeline = _pipeline(shown)
    (row,) = PipelineStatusReader(pipelines, attention_list(pipelines)).statuses(
        [DefinedPipeline(pipeline, shown["at"])], periods=PERIODS
    )
    chosen = Slot(pipeline.id, str(query.get("schedule", row.slot.schedule_id)), str(query.get("date", row.slot.date)))
    expected = api.section("GET /expectations", query={"pipeline": pipeline.id, "limit": SHOWN_MAX})
    return PipelinePage(
        row=row,
        definition=shown,
        facts=definition_facts(pipeline),
        why=api.section(
            "GET /pipelines/{id}/why", path=path, query={"date": chosen.date, "schedule": chosen.schedule_id}
        ),
        chosen=chosen,
        is_chosen=chosen != row.slot,
        sensors=_sensors(pipelines, pipeline, chosen.date),
        events=api.section("GET /pipelines/{id}/events", path=path, query={"limit": SHOWN_MAX}),
        expectations=[each for each in expected.items("expectations") if each["verdict"] == ExpectationVerdict.MISSED],
        upstream=sorted({each.upstream.pipeline for each in upstreams_of(pipeline)}),
        downstream=sorted(pipelines.known.dependents(pipeline.id)),
        actions=_actions(row, chosen),
        commands=_commands(pipeline, chosen),
    )


def _sensors(pipelines: PipelineService, pipeline: Pipeline, date: str) -> list[SeenSensor]:
    """Return the sensors of a pipeline that apply to a period."""
    keys = sensor_keys(pipeline)
    reading = pipelines.sensors.read(pipeline.id, keys, date)
    found: list[SeenSensor] = []
    for key in keys:
        sensor = reading.sensors.get(key)
        if sensor is None:
            stray = reading.strays.get(key)
            missing = f"only known for {stray}" if stray else "no value received"
            found.append(SeenSensor(key=key, missing=missing))
            continue
        at_ms = sensor.updated_at_ms
        at = instant(at_ms) if at_ms else None
        found.append(SeenSensor(key=key, data=sensor.data, period=sensor.period, updated_at=at, by=sensor.by))
    return found


def _actions(row: PipelineStatus, slot: Slot) -> tuple[tuple[str, str], ...]:
    """Return the available actions with their commands."""
    name, reason = slot.pipeline_id, ("--reason", "WHY")
    is_stopped = row.control.state is not ControlState.ACTIVE
    steered = (
        ("Resume", command("pipeline", "resume", name, *reason))
        if is_stopped
        else ("Pause", command("pipeline", "pause", name, "--until", "2h", *reason))
    )
    return (steered, *_of_period(row, slot, reason))


def _of_period(row: PipelineStatus, slot: Slot, reason: tuple[str, ...]) -> list[tuple[str, str]]:
    name, schedule = slot.pipeline_id, schedule_option(row.pipeline, slot)
    log = row.log if row.slot == slot else None
    period = (name, slot.date, *schedule, *reason)
    if log is not None and log.is_live and log.status is not RunStatus.PENDING:
        return [("Cancel the run and its job", command("run", "cancel", log.run_id, *reason))]
    is_over = log is not None and (log.status.is_done or log.status.is_terminal)
    if is_over:
        again = ("Rerun", command("run", "rerun", name, "--date", slot.date, *schedule, *reason))
        return [again, ("Mark as successful", command("period", "mark-success", *period))]
    held = (
        ("Approve the period", command("period", "approve", *period))
        if log is not None and log.hold is not None
        else ("Hold the period", command("period", "hold", *period))
    )
    return [
        ("Start now", command("run", "start", name, "--date", slot.date, *schedule, *reason)),
        held,
        ("Force the job, regardless of readiness", command("period", "force", *period)),
        ("Skip the period", command("period", "skip", *period)),
        ("Mark as successful", command("period", "mark-success", *period)),
    ]


def _commands(pipeline: Pipeline, slot: Slot) -> tuple[tuple[str, str], ...]:
    name, schedule = pipeline.id, schedule_option(pipeline, slot)
    return (
        ("Why", command("why", name, "--date", slot.date, *schedule)),
        ("Its definition", command("pipeline", "show", name)),
        ("Its periods", command("run", "log", name)),
        ("Its sensors", command("sensor", "ls", name)),
        ("Evaluate the rules", command("pipeline", "evaluate", name, "--date", slot.date, *schedule)),
        ("Follow events", command("pipeline", "events", name, "--follow")),
    )


def schedule_option(pipeline: Pipeline, slot: Slot) -> Sequence[str]:
    """Return the schedule option, if the pipeline has several schedules."""
    return ("--schedule", slot.schedule_id) if len(pipeline.schedules) > 1 else ()


def _list(api: ApiCaller, request: PageRequest) -> Page:
    view = pipeline_list(api, request.query)
    return Page(
        template="pipelines.html",
        title="Pipelines",
        view=view,
        json=twin("/pipelines"),
        cli=view.cli,
        changes=changes_of(of=ALL_PIPELINES),
        section="pipelines",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    pipeline_id = request.path["pipeline_id"]
    view = pipeline_page(api, pipeline_id, request.query)
    return Page(
        template="pipeline.html",
        title=pipeline_id,
        crumbs=(("Pipelines", "/ui/pipelines"),),
        view=view,
        json=twin(f"/pipelines/{segment(pipeline_id)}"),
        cli=view.commands[0][1],
        changes=changes_of(pipeline_id=pipeline_id),
        section="pipelines",
    )


PAGES: Final = (
    PageRoute("/pipelines", _list, FILTERS),
    PageRoute("/pipelines/{pipeline_id:str}", _one, ("date", "schedule")),
)
