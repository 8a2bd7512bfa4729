"""Pages of pipelines: the list, trouble first, and all that someone on call needs to know of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.duration import from_json_type
from headgate.errors import NotFoundError
from headgate.health.model.timestamps import instant
from headgate.pipelines.catalog.store import BadPipeline
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ControlState, ExpectationVerdict, RunStatus
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.dependencies import upstreams_of
from headgate.pipelines.service import PipelineService
from headgate.serve.pages.api_calls import ApiCaller, Section
from headgate.serve.pages.attention import AttentionList, stored, troubles
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.pipeline_status import Defined, PipelineRow, PipelineStatusReader, State
from headgate.serve.pages.pipeline_summary import Fact, definition_facts, sensor_keys

LISTED: Final = 50
# How many that match a filter are looked for in one page, and in how many parts of the list.
_BATCH: Final = 100
_BATCHES_MAX: Final = 10
TROUBLED_MAX: Final = 60
PERIODS: Final = 60
SHOWN_MAX: Final = 30
FILTERS: Final = ("search", "owner", "status")
BEGIN: Final = command("init", "shop")
APPLY: Final = command("pipeline", "apply", "pipelines", "--reason", "WHY")


class PipelineCounts(Struct, frozen=True, kw_only=True):
    """How many pipelines are in trouble, for the health board. `has_more`: there may be others."""

    failed: int
    late: int
    stuck: int
    held: int
    paused: int
    has_more: bool

    @property
    def listed(self) -> list[tuple[str, int, str]]:
        """Each that there is: its state, how many, and in a word what they are."""
        found = (
            (State.FAILED, self.failed, "failed"),
            (State.LATE, self.late, "past their deadline"),
            (State.STUCK, self.stuck, "stuck"),
            (State.HELD, self.held, "held"),
            (State.PAUSED, self.paused, "paused"),
        )
        return [(state.value, number, said) for state, number, said in found if number]


class PipelineList(Struct, frozen=True, kw_only=True):
    """A page of the list: what is in trouble, of all pipelines, and then some of the others."""

    troubled: list[PipelineRow]
    has_more_trouble: bool
    rows: list[PipelineRow]
    bad: list[BadPipeline]
    next_page_token: str | None
    filters: Mapping[str, str]
    states: tuple[str, ...] = tuple(each.value for each in State)
    cli: str
    begin: str = BEGIN
    apply: str = APPLY


class SeenSensor(Struct, frozen=True, kw_only=True):
    """What is known under a key for a period: a value and when it is from, or why there is none."""

    key: str
    data: Mapping[str, Any] = {}
    period: str | None = None
    updated_at: str | None = None
    by: str = ""
    missing: str = ""


class PipelinePage(Struct, frozen=True, kw_only=True):
    """All that someone on call needs to know of a pipeline, told by one of its periods."""

    row: PipelineRow
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


# The list.


def pipeline_list(asking: ApiCaller, query: Mapping[str, Any]) -> PipelineList:
    """Return a page of the list. Raises as listing pipelines does, and `NotFoundError` where there are none."""
    pipelines = served(asking)
    filters = {name: str(query.get(name, "")) for name in FILTERS}
    token = query.get("page_token")
    found, bad, following = _listed(asking, filters, token)
    seen = troubles(pipelines)
    standings = PipelineStatusReader(pipelines, seen)
    # Each page begins where the last has ended; what is wrong stands on the first.
    read = [] if token else _suspects(pipelines, seen, filters)
    suspects = [each for each in read if _fits(each.pipeline, filters)]
    known = {each.pipeline.id for each in suspects}
    rows = standings.rows([*suspects, *(each for each in found if each.pipeline.id not in known)])
    wanted = sorted((row for row in rows if filters["status"] in ("", row.state)), key=lambda row: row.urgency)
    troubled = [row for row in wanted if row.state.is_trouble]
    return PipelineList(
        troubled=troubled,
        has_more_trouble=not token and len(seen.suspects) > TROUBLED_MAX,
        rows=sorted((row for row in wanted if not row.state.is_trouble), key=lambda row: row.pipeline.id),
        bad=bad,
        next_page_token=following,
        filters=filters,
        cli=command("pipeline", "ls", *options([("--owner", filters["owner"])])),
    )


def pipeline_counts(asking: ApiCaller) -> PipelineCounts | None:
    """Return how many pipelines are in trouble, or None if there are none at all. Raises as listing them does."""
    if asking.pipelines is None or not asking.ask("GET /pipelines", query={"limit": 1})["pipelines"]:
        return None
    seen = troubles(asking.pipelines)
    suspects = _defined(asking.pipelines, seen.suspects[:TROUBLED_MAX])
    rows = PipelineStatusReader(asking.pipelines, seen).rows(suspects)
    found = Counter(row.state for row in rows)
    return PipelineCounts(
        failed=found[State.FAILED] + found[State.STOPPED],
        late=found[State.LATE],
        stuck=found[State.STUCK],
        held=found[State.HELD],
        paused=found[State.PAUSED],
        has_more=len(seen.suspects) > TROUBLED_MAX,
    )


def served(asking: ApiCaller) -> PipelineService:
    """Return the pipelines of this server. Raises `NotFoundError` if it has none."""
    if asking.pipelines is None:
        raise NotFoundError("this server has no pipelines; start it with 'headgate up --pipelines FOLDER'")
    return asking.pipelines


def _suspects(pipelines: PipelineService, seen: AttentionList, filters: Mapping[str, str]) -> list[Defined]:
    also = seen.waiting if filters["status"] == State.WAITING else ()
    return _defined(pipelines, list(dict.fromkeys((*seen.suspects, *also)))[:TROUBLED_MAX])


def _defined(pipelines: PipelineService, ids: Sequence[str]) -> list[Defined]:
    return [Defined(each.pipeline, each.at) for each in stored(pipelines, ids)]


def _listed(
    asking: ApiCaller, filters: Mapping[str, str], token: str | None
) -> tuple[list[Defined], list[BadPipeline], str | None]:
    """Return pipelines that match, rows that are no definitions, and where the next page begins."""
    # Who may ask for one may see all: they are read as they are kept, which is quicker than as they are told.
    asking.ask("GET /pipelines", query={"limit": 1})
    definitions = served(asking).definitions
    is_filtered = bool(filters["search"] or filters["owner"])
    found: list[Defined] = []
    bad: list[BadPipeline] = []
    for _ in range(_BATCHES_MAX if is_filtered else 1):
        page = definitions.ls(limit=_BATCH if is_filtered else LISTED, cursor=token)
        found += [Defined(each.pipeline, each.at) for each in page.pipelines if _fits(each.pipeline, filters)]
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


# One of them.


def pipeline_page(asking: ApiCaller, pipeline_id: str, query: Mapping[str, Any]) -> PipelinePage:
    """Return the page of a pipeline, about the period that was chosen or needs someone. Raises `NotFoundError`."""
    pipelines, path = served(asking), {"id": pipeline_id}
    shown = asking.ask("GET /pipelines/{id}", path=path)
    pipeline = _pipeline(shown)
    (row,) = PipelineStatusReader(pipelines, troubles(pipelines)).rows(
        [Defined(pipeline, shown["at"])], periods=PERIODS
    )
    chosen = Slot(pipeline.id, str(query.get("schedule", row.slot.schedule_id)), str(query.get("date", row.slot.date)))
    expected = asking.section("GET /expectations", query={"pipeline": pipeline.id, "limit": SHOWN_MAX})
    return PipelinePage(
        row=row,
        definition=shown,
        facts=definition_facts(pipeline),
        why=asking.section(
            "GET /pipelines/{id}/why", path=path, query={"date": chosen.date, "schedule": chosen.schedule_id}
        ),
        chosen=chosen,
        is_chosen=chosen != row.slot,
        sensors=_sensors(pipelines, pipeline, chosen.date),
        events=asking.section("GET /pipelines/{id}/events", path=path, query={"limit": SHOWN_MAX}),
        expectations=[each for each in expected.items("expectations") if each["verdict"] == ExpectationVerdict.MISSED],
        upstream=sorted({each.upstream.pipeline for each in upstreams_of(pipeline)}),
        downstream=sorted(pipelines.known.dependents(pipeline.id)),
        actions=_actions(row, chosen),
        commands=_commands(pipeline, chosen),
    )


def _sensors(pipelines: PipelineService, pipeline: Pipeline, date: str) -> list[SeenSensor]:
    """Return the sensors that a pipeline goes by, as they hold for a period."""
    keys = sensor_keys(pipeline)
    reading = pipelines.sensors.read(pipeline.id, keys, date)
    found: list[SeenSensor] = []
    for key in keys:
        sensor = reading.sensors.get(key)
        if sensor is None:
            stray = reading.strays.get(key)
            missing = f"known only of {stray}" if stray else "nobody has said anything"
            found.append(SeenSensor(key=key, missing=missing))
            continue
        at_ms = sensor.updated_at_ms
        at = instant(at_ms) if at_ms else None
        found.append(SeenSensor(key=key, data=sensor.data, period=sensor.period, updated_at=at, by=sensor.by))
    return found


def _actions(row: PipelineRow, slot: Slot) -> tuple[tuple[str, str], ...]:
    """Return what can be done about a pipeline and a period as they stand."""
    name, reason = slot.pipeline_id, ("--reason", "WHY")
    is_stopped = row.control.state is not ControlState.ACTIVE
    steered = (
        ("Let it go on", command("pipeline", "resume", name, *reason))
        if is_stopped
        else ("Begin nothing for a while", command("pipeline", "pause", name, "--until", "2h", *reason))
    )
    return (steered, *_of_period(row, slot, reason))


def _of_period(row: PipelineRow, slot: Slot, reason: tuple[str, ...]) -> list[tuple[str, str]]:
    name, schedule = slot.pipeline_id, schedule_option(row.pipeline, slot)
    log = row.log if row.slot == slot else None
    period = (name, slot.date, *schedule, *reason)
    if log is not None and log.is_live and log.status is not RunStatus.PENDING:
        return [("End its run and the job", command("run", "cancel", log.run_id, *reason))]
    is_over = log is not None and (log.status.is_done or log.status.is_terminal)
    if is_over:
        again = ("Do it again", command("run", "rerun", name, "--date", slot.date, *schedule, *reason))
        return [again, ("Take it for done", command("period", "mark-success", *period))]
    held = (
        ("Let the period go on", command("period", "approve", *period))
        if log is not None and log.hold is not None
        else ("Hold the period", command("period", "hold", *period))
    )
    return [
        ("Begin it now", command("run", "start", name, "--date", slot.date, *schedule, *reason)),
        held,
        ("Start its job, ready or not", command("period", "force", *period)),
        ("Do nothing for it", command("period", "skip", *period)),
        ("Take it for done", command("period", "mark-success", *period)),
    ]


def _commands(pipeline: Pipeline, slot: Slot) -> tuple[tuple[str, str], ...]:
    name, schedule = pipeline.id, schedule_option(pipeline, slot)
    return (
        ("Why", command("why", name, "--date", slot.date, *schedule)),
        ("Its definition", command("pipeline", "show", name)),
        ("Its periods", command("run", "log", name)),
        ("Its sensors", command("sensor", "ls", name)),
        ("Try its rules", command("pipeline", "evaluate", name, "--date", slot.date, *schedule)),
        ("Follow what happens", command("pipeline", "events", name, "--follow")),
    )


def schedule_option(pipeline: Pipeline, slot: Slot) -> Sequence[str]:
    """Return the option that names the schedule of a period, where there are several."""
    return ("--schedule", slot.schedule_id) if len(pipeline.schedules) > 1 else ()
