"""Pipeline pages: the list, those that need attention first, and one pipeline in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.health.model.timestamps import instant, milliseconds
from headgate.pipelines.catalog.project import FolderReport
from headgate.pipelines.catalog.store import BadPipeline
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ExpectationVerdict, RunStatus
from headgate.pipelines.overview.attention import AttentionList, attention_list, stored
from headgate.pipelines.overview.status import (
    DefinedPipeline,
    PipelineState,
    PipelineStatus,
    PipelineStatusReader,
    sla_margins,
)
from headgate.pipelines.rules.sensor_keys import sensor_keys
from headgate.pipelines.runs.rerun_decisions import limit_of
from headgate.pipelines.runs.rerun_rows import Budget
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.schedule.dependencies import upstreams_of
from headgate.pipelines.service import PipelineService
from headgate.serve.pages import labels
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.health.lineage import Graph, GraphNode, dataset_node, worst_states
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute
from headgate.serve.pages.pipelines.actions import pipeline_actions
from headgate.serve.pages.pipelines.definition_history import History, definition_of, history_of
from headgate.serve.pages.pipelines.event_lines import EVENTS_MAX, EventLine, event_lines
from headgate.serve.pages.pipelines.period_grid import DurationStrip, duration_strip
from headgate.serve.pages.pipelines.summary import Fact, definition_facts

LISTED: Final = 50
# Batch size and maximum batches read to fill a filtered page.
_BATCH: Final = 100
_BATCHES_MAX: Final = 10
ATTENTION_MAX: Final = 60
PERIODS: Final = 60
SHOWN_MAX: Final = 30
UPCOMING_HOURS: Final = 24 * 8
PIPELINE_NODE: Final = "pipeline:"
FILTERS: Final = ("search", "owner", "status")
BEGIN: Final = command("init", "shop")
APPLY: Final = command("pipeline", "apply", "pipelines", "--reason", "WHY")


class WatchedPipelines(Struct, frozen=True):
    """The pipelines that may need attention, and the first of the others. `has_more`: there may be further ones."""

    rows: list[PipelineStatus]
    has_more: bool


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


class SpentBudget(Struct, frozen=True):
    """The reruns of a period that were accepted, of those that its budget allows."""

    budget: Budget
    used: int
    limit: int


class PipelinePage(Struct, frozen=True, kw_only=True):
    """View of a pipeline, focused on one period."""

    row: PipelineStatus
    definition: Any
    facts: list[Fact]
    why: Section
    chosen: Slot
    is_chosen: bool
    sensors: list[SeenSensor]
    strip: DurationStrip
    history: History
    budgets: list[SpentBudget]
    events: list[EventLine]
    events_missing: str
    expectations: list[Any]
    upstream: list[str]
    downstream: list[str]
    graph: Graph
    # The datasets that have a page.
    registered: frozenset[str]
    durations: dict[str, Any]
    margins: dict[str, Any]
    runs: list[Any]
    upcoming: Section
    log: RunLog | None
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


def watched_pipelines(api: ApiCaller) -> WatchedPipelines:
    """Return the statuses of what the first page of the list shows; none if there are no pipelines.

    Raises as the API operation.
    """
    if api.pipelines is None:
        return WatchedPipelines([], has_more=False)
    attention = attention_list(api.pipelines)
    listed, _, _ = _listed(api, dict.fromkeys(FILTERS, ""), None)
    rows = _statuses(api.pipelines, attention, _suspects(api.pipelines, attention), listed)
    return WatchedPipelines(rows, has_more=len(attention.suspects) > ATTENTION_MAX)


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


def _fits(pipeline: Pipeline, filters: Mapping[str, str]) -> bool:
    text = "\n".join((pipeline.id, pipeline.owner, pipeline.description, *pipeline.labels.values())).lower()
    return filters["owner"] in ("", pipeline.owner) and filters["search"].lower() in text


def pipeline_page(api: ApiCaller, pipeline_id: str, query: Mapping[str, Any]) -> PipelinePage:
    """Return the page of a pipeline, for the chosen or most relevant period. Raises `NotFoundError`."""
    pipelines, path = served(api), {"id": pipeline_id}
    shown = api.call("GET /pipelines/{id}", path=path)
    pipeline = definition_of(shown)
    (row,) = PipelineStatusReader(pipelines, attention_list(pipelines)).statuses(
        [DefinedPipeline(pipeline, shown["at"])], periods=PERIODS
    )
    chosen = Slot(pipeline.id, str(query.get("schedule", row.slot.schedule_id)), str(query.get("date", row.slot.date)))
    log = row.log if chosen == row.slot else pipelines.stores.runs.log(chosen)
    runs = api.section("GET /pipelines/{id}/runs", path=path, query={"limit": PERIODS}).items("runs")
    upstream = sorted({each.upstream.pipeline for each in upstreams_of(pipeline)})
    downstream = sorted(pipelines.known.dependents(pipeline.id))
    known_datasets = registered(api, (*pipeline.reads, *pipeline.writes))
    events = api.section("GET /pipelines/{id}/events", path=path, query={"limit": EVENTS_MAX})
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
        strip=duration_strip(row, _lengths_ms(runs), api.now_ms),
        history=history_of(api, pipeline.id),
        budgets=spent_budgets(pipeline, log),
        events=event_lines(events.items("events"), has_more=_has_more(events))[:SHOWN_MAX],
        events_missing=events.missing,
        expectations=[each for each in expected.items("expectations") if each["verdict"] == ExpectationVerdict.MISSED],
        upstream=upstream,
        downstream=downstream,
        graph=_graph(api, row, upstream, downstream, known_datasets),
        registered=known_datasets,
        durations=durations_chart(runs),
        margins=margins_chart(sla_margins(pipeline, row.logs, pipelines.reader.calendars())),
        runs=runs[:SHOWN_MAX],
        upcoming=api.section("GET /upcoming", query={"pipeline": pipeline.id, "hours": UPCOMING_HOURS, "limit": 5}),
        log=log,
        commands=_commands(pipeline, chosen),
    )


def spent_budgets(pipeline: Pipeline, log: RunLog | None) -> list[SpentBudget]:
    """Return the budgets of reruns of a period; the policy of retries has its own limit."""
    used = {} if log is None else log.reruns
    return [
        SpentBudget(each, used.get(each, 0), limit_of(each, pipeline.budgets)) for each in (Budget.MANUAL, Budget.DRIFT)
    ]


def _has_more(events: Section) -> bool:
    return bool(events.value and events.value["cursor"])


def _lengths_ms(runs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how long the jobs of runs took, by run."""
    return {each["run_id"]: each["duration_ms"] for each in runs if each["duration_ms"] is not None}


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


def registered(api: ApiCaller, urns: Iterable[str]) -> frozenset[str]:
    """Return the datasets that are registered, and that the caller may read."""
    found = ((urn, api.section("GET /datasets/{dataset_urn}", path={"dataset_urn": urn})) for urn in urns)
    return frozenset(urn for urn, section in found if section.value is not None)


def _graph(
    api: ApiCaller,
    row: PipelineStatus,
    upstream: Sequence[str],
    downstream: Sequence[str],
    linked: frozenset[str],
) -> Graph:
    """Return what a pipeline reads and writes, and the pipelines next to it."""
    pipeline = row.pipeline
    states = worst_states(api, linked)
    own = _node(pipeline.id, tone="busy" if row.state is PipelineState.RUNNING else _tone(row.state), note=row.state)
    datasets = [
        dataset_node(urn, states.get(urn), is_linked=urn in linked) for urn in (*pipeline.reads, *pipeline.writes)
    ]
    pipelines = [_node(each) for each in (*upstream, *downstream)]
    edges = [
        *((urn, own.id) for urn in pipeline.reads),
        *((own.id, urn) for urn in pipeline.writes),
        *((f"{PIPELINE_NODE}{each}", own.id) for each in upstream),
        *((own.id, f"{PIPELINE_NODE}{each}") for each in downstream),
    ]
    unique = {node.id: node for node in (*datasets, *pipelines, own)}
    return Graph(nodes=list(unique.values()), edges=edges, focus=own.id)


def _node(pipeline_id: str, *, tone: str = "", note: str = "") -> GraphNode:
    return GraphNode(
        id=f"{PIPELINE_NODE}{pipeline_id}",
        label=pipeline_id,
        kind="pipeline",
        tone=tone,
        note=labels.state_label(note),
        href=f"/ui/pipelines/{segment(pipeline_id)}",
    )


def _tone(state: PipelineState) -> str:
    if state is PipelineState.HEALTHY:
        return "good"
    if state in (PipelineState.STOPPED, PipelineState.FAILED, PipelineState.LATE, PipelineState.STUCK):
        return "bad"
    return "warn" if state.needs_attention else "odd"


def durations_chart(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the chart of how long jobs took, failed ones apart."""
    series: dict[str, list[tuple[int, float]]] = {"good": [], "bad": []}
    for run in sorted(runs, key=lambda each: str(each["created_at"])):
        if run["duration_ms"] is not None and run["ended_at"]:
            tone = "bad" if run["status"] == RunStatus.FAILED else "good"
            series[tone].append((milliseconds(run["ended_at"]), run["duration_ms"] / 1000))
    names = {"good": "succeeded", "bad": "failed"}
    return {
        "unit": " s",
        "series": [
            {"name": names[tone], "points": points, "kind": "bar", "tone": tone}
            for tone, points in series.items()
            if points
        ],
    }


def margins_chart(margins: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Return the chart of the time between the end of a period's run and its deadline."""
    points = [(at_ms, round(seconds / 60, 2)) for at_ms, seconds in margins]
    series = [{"name": "before the deadline", "points": points, "kind": "line"}] if points else []
    return {"unit": " min", "threshold": 0, "series": series}


def _commands(pipeline: Pipeline, slot: Slot) -> tuple[tuple[str, str], ...]:
    name, schedule = pipeline.id, schedule_option(pipeline, slot)
    return (
        ("Why", command("period", "why", name, "--date", slot.date, *schedule)),
        ("Its definition", command("pipeline", "show", name)),
        ("Its last change", command("pipeline", "diff", name)),
        ("Its periods", command("period", "ls", name)),
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
        actions=pipeline_actions(api, view.row, view.chosen, view.log, schedule_option(view.row.pipeline, view.chosen)),
        json=twin(f"/pipelines/{segment(pipeline_id)}"),
        cli=view.commands[0][1],
        changes=changes_of(pipeline_id=pipeline_id),
        section="pipelines",
    )


PAGES: Final = (
    PageRoute("/pipelines", _list, FILTERS),
    PageRoute("/pipelines/{pipeline_id:str}", _one, ("date", "schedule")),
)
