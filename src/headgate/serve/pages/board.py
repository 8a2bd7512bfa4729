"""Now: each open incident with what it holds and whom it hurts, then everything else that needs someone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import ForbiddenError, InvalidPayloadError, TransientError
from headgate.feedback.outcome_signals import RUN as PIPELINE_RUN
from headgate.health.model.enums import IncidentStatus, Severity, SignalState
from headgate.health.model.timestamps import instant, milliseconds
from headgate.pipelines.enums import ExpectationVerdict, RunStatus
from headgate.pipelines.overview.status import PipelineState, PipelineStatus
from headgate.pipelines.service import PipelineService
from headgate.serve.pages.actions import Action, allowed
from headgate.serve.pages.api_calls import ApiCaller, Listed, Section, segment, twin
from headgate.serve.pages.health.datasets import REGISTER
from headgate.serve.pages.health.holds import HeldPipeline, held_by
from headgate.serve.pages.health.incident_actions import acknowledge
from headgate.serve.pages.health.incidents import datasets_of
from headgate.serve.pages.health.silences import Silence, silences
from headgate.serve.pages.labels import command
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, filtered
from headgate.serve.pages.pipelines.pipeline import WatchedPipelines, watched_pipelines
from headgate.serve.pages.pipelines.runs import RANGES

INCIDENTS_MAX: Final = 100
# Cards in full; further incidents are counted and linked.
CARDS_MAX: Final = 12
SIGNALS_MAX: Final = 50
PANEL_MAX: Final = 10
HELD_MAX: Final = 4
OPEN: Final = (IncidentStatus.OPEN.value, IncidentStatus.ACKNOWLEDGED.value)
DEMO: Final = command("demo")
ADDRESS: Final = "/ui"
RUNS: Final = "/ui/runs"
# The time range of what happened, and the number up to which it is counted.
WITHIN: Final = "24h"
COUNTED_MAX: Final = 20
_FAN_OUT: Final = "fan-out"
_RUNNING: Final = (RunStatus.RUNNING.value, RunStatus.TRIGGERING.value)
_LATE: Final = (PipelineState.LATE, PipelineState.MISSED)
_HELD: Final = (PipelineState.HELD, PipelineState.PAUSED)
_BROKEN: Final = (PipelineState.STOPPED, PipelineState.FAILED, PipelineState.STUCK)


class Count(Struct, frozen=True):
    """A count of problems, with the word of its state and the page that lists them."""

    word: str
    of: str
    number: int
    address: str


class Card(Struct, frozen=True, kw_only=True):
    """An open incident with its consequences."""

    incident: Any
    held: list[HeldPipeline]
    # The pipelines in trouble that it reports: they are its producer, or write its dataset.
    sources: list[PipelineStatus]
    # Tone of the border.
    tone: str
    dataset_count: int
    service_count: int
    services: list[str]
    escalates_at: str | None
    acknowledge: Action | None

    @property
    def named(self) -> list[HeldPipeline]:
        """The held pipelines that the card names."""
        return self.held[:HELD_MAX]


class RunningRow(Struct, frozen=True, kw_only=True):
    """A run whose job runs. `share` and `eta` are known of fan-outs."""

    run: Any
    since: str
    share: float | None
    eta: str


class Change(Struct, frozen=True, kw_only=True):
    """Something that was changed, by whom and why."""

    at: str
    what: str
    by: str
    about: str
    href: str
    reason: str


class Happened(Struct, frozen=True):
    """How often something happened within the time range, and the page that lists it. `has_more`: at least so often."""

    number: int
    has_more: bool
    what: str
    address: str


class Board(Struct, frozen=True, kw_only=True):
    """View of the page. `missing` lists unavailable parts with the reason."""

    cards: list[Card]
    more_cards: int
    has_more_incidents: bool
    signals: list[Any]
    silences: Mapping[tuple[str, str], Silence]
    counts: tuple[Count, ...]
    # Of pipelines, without those that a card names as its consequence.
    broken: list[PipelineStatus]
    late: list[PipelineStatus]
    held: list[PipelineStatus]
    # Pipelines that are listed on cards only.
    in_cards: int
    running: list[RunningRow]
    has_more_running: bool
    changes: list[Change]
    # What happened within the time range, and the choices of it.
    happened: list[Happened]
    within: str
    ranges: list[Chip]
    has_datasets: bool
    has_pipelines: bool
    has_more_pipelines: bool
    missing: tuple[str, ...]
    more_running: str = filtered(RUNS, {"status": list(_RUNNING)})
    register: str = REGISTER
    demo: str = DEMO

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be in trouble."""
        return not self.has_datasets and not self.has_pipelines

    @property
    def is_healthy(self) -> bool:
        """Whether there are no problems among the visible parts."""
        troubles = (self.cards, self.signals, self.broken, self.late, self.held, self.missing)
        return not any(troubles)


def board(api: ApiCaller, within: str = WITHIN) -> Board:
    """Return the board of a caller, with what happened within a time range.

    Raises `UnauthenticatedError`, and `ForbiddenError` without dataset access.
    """
    has_datasets = bool(api.listed("GET /datasets", most=1).items)
    missing: list[str] = []
    found = _listed(api, missing, "GET /incidents", INCIDENTS_MAX, status=list(OPEN))
    incidents = sorted(found.items, key=_urgency)
    watched = _pipelines(api, missing)
    rows = watched.rows
    cards = _cards(api, incidents[:CARDS_MAX], rows)
    held_ids = {each.pipeline_id for card in cards for each in card.held}
    explained = held_ids | {row.pipeline.id for card in cards for row in card.sources}
    others = [row for row in rows if row.pipeline.id not in explained]
    signals = _signals(api, missing)
    running = _running(api, missing)
    since_ms = api.now_ms - round(RANGES[within] * 3_600_000)
    return Board(
        cards=cards,
        more_cards=max(0, len(incidents) - CARDS_MAX),
        has_more_incidents=found.has_more,
        signals=signals,
        silences=silences(api, signals),
        counts=(*_of_incidents(incidents), *_of_signals(signals), *_of_pipelines(rows)),
        broken=_in(others, _BROKEN),
        late=_in(others, _LATE),
        held=_in(others, _HELD),
        in_cards=len(held_ids),
        running=running[:PANEL_MAX],
        has_more_running=len(running) > PANEL_MAX,
        changes=_changes(api, incidents, since_ms),
        happened=_happened(api, within, since_ms),
        within=within,
        ranges=chips(ADDRESS, {"within": within}, "within", [(each, each) for each in RANGES]),
        has_datasets=has_datasets,
        has_pipelines=bool(rows),
        has_more_pipelines=watched.has_more,
        missing=tuple(dict.fromkeys(missing)),
    )


def _urgency(incident: Mapping[str, Any]) -> tuple[str, bool, str]:
    """Sort key: worst first, of these the unacknowledged, of these the oldest."""
    return incident["severity"], incident["status"] != IncidentStatus.OPEN, incident["created_at"]


def _cards(api: ApiCaller, incidents: Sequence[Any], rows: Sequence[PipelineStatus]) -> list[Card]:
    escalations = api.health.incident_timers.next_escalations([each["incident_id"] for each in incidents])
    cards = []
    for each in incidents:
        radius = each["blast_radius"] or {}
        escalation = escalations.get(each["incident_id"])
        is_open = each["status"] == IncidentStatus.OPEN
        take = allowed(api, Permission.INCIDENT_WRITE, acknowledge(each), each["primary_dataset_urn"])
        cards.append(
            Card(
                incident=each,
                held=held_by(rows, datasets_of(each)),
                sources=[row for row in rows if row.state in (*_BROKEN, *_LATE) and _is_source(row, each)],
                tone="bad" if each["severity"] == Severity.SEV_1 else "warn",
                dataset_count=len(radius.get("downstream_datasets") or ()),
                service_count=radius.get("downstream_count") or 0,
                services=list(radius.get("downstream_services") or ())[:HELD_MAX],
                escalates_at=None if escalation is None else instant(escalation.due_at_ms),
                acknowledge=take if is_open else None,
            )
        )
    return cards


def _is_source(row: PipelineStatus, incident: Mapping[str, Any]) -> bool:
    """Whether an incident reports the runs of a pipeline."""
    producer = (incident["implicated_producer"] or {}).get("producer_id")
    is_writer = incident["primary_dataset_urn"] in row.pipeline.writes
    return PIPELINE_RUN in incident["signal_types"] and (row.pipeline.id == producer or is_writer)


def _in(rows: Iterable[PipelineStatus], states: Sequence[PipelineState]) -> list[PipelineStatus]:
    return sorted((row for row in rows if row.state in states), key=lambda row: row.urgency)


def _listed(api: ApiCaller, missing: list[str], name: str, most: int, **query: Any) -> Listed:  # noqa: ANN401
    try:
        return api.listed(name, most=most, query=query)
    except (ForbiddenError, TransientError) as exc:
        missing.append(exc.message)
        return Listed([], has_more=False)


def _signals(api: ApiCaller, missing: list[str]) -> list[Any]:
    """Return the signals in breach that no incident stands for, most severe first."""
    found = _listed(api, missing, "GET /signals", SIGNALS_MAX)
    alone = [each for each in found.items if not each["incident_id"]]
    return sorted(alone, key=lambda each: (each["tier"], each["state"] != SignalState.CRITICAL))


def _pipelines(api: ApiCaller, missing: list[str]) -> WatchedPipelines:
    # Without pipeline permissions the page shows datasets only.
    if not api.may(Permission.PIPELINE_READ):
        return WatchedPipelines([], has_more=False)
    try:
        return watched_pipelines(api)
    except TransientError as exc:
        missing.append(exc.message)
        return WatchedPipelines([], has_more=False)


def _running(api: ApiCaller, missing: list[str]) -> list[RunningRow]:
    pipelines = api.pipelines
    if pipelines is None or not api.may(Permission.PIPELINE_READ):
        return []
    query = {"status": list(_RUNNING), "limit": PANEL_MAX + 1}
    found = api.section("GET /runs", query=query)
    if found.missing:
        missing.append(found.missing)
    return [_progress(api, pipelines, each) for each in found.items("runs")]


def _progress(api: ApiCaller, pipelines: PipelineService, run: Mapping[str, Any]) -> RunningRow:
    """Return a run with the progress of its job, which fan-outs report."""
    since = run["started_at"] or run["triggered_at"] or run["created_at"]
    pipeline = pipelines.known.find(run["pipeline_id"])
    is_fan_out = pipeline is not None and pipeline.trigger is not None and pipeline.trigger.type == _FAN_OUT
    fanout = None
    if is_fan_out and run["job_id"]:
        fanout = api.section("GET /fanouts/{id}", path={"id": run["job_id"]}).value
    estimate = None if fanout is None or fanout["is_finished"] else fanout["estimate"]
    return RunningRow(
        run=run,
        since=since,
        share=None if fanout is None else fanout["share"],
        eta="" if estimate is None or estimate["unknown"] else f"{estimate['text']} left",
    )


def _happened(api: ApiCaller, within: str, since_ms: int) -> list[Happened]:
    """Return what happened within the time range, of what the caller may read."""
    since = instant(since_ms)
    opened = api.section("GET /incidents", query={"from": since, "page_size": COUNTED_MAX})
    found = [_counted(opened, "items", "next_page_token", "incident", "opened", "/ui/incidents")]
    failed = {"status": [RunStatus.FAILED.value]}
    missed = {"verdict": ExpectationVerdict.MISSED.value}
    for operation, items, query, noun, verb, address in (
        ("GET /runs", "runs", failed, "run", "failed", RUNS),
        ("GET /expectations", "expectations", missed, "expectation", "missed", "/ui/expectations"),
    ):
        section = api.section(operation, query={**query, "since": since, "limit": COUNTED_MAX})
        found.append(_counted(section, items, "cursor", noun, verb, filtered(address, {**query, "within": within})))
    return [each for each in found if each is not None]


def _counted(section: Section, items: str, cursor: str, noun: str, verb: str, address: str) -> Happened | None:
    if section.value is None:
        return None
    number, has_more = len(section.items(items)), section.value[cursor] is not None
    return Happened(number, has_more, f"{noun if number == 1 and not has_more else noun + 's'} {verb}", address)


def _changes(api: ApiCaller, incidents: Sequence[Mapping[str, Any]], since_ms: int) -> list[Change]:
    """Return what people and deployments changed since a time, newest first."""
    audited = api.section("GET /audit", query={"from": instant(since_ms), "page_size": PANEL_MAX})
    found = [
        Change(
            at=each["at"],
            what=each["action"].replace(".", " ").replace("_", " "),
            by=each["actor"],
            about=_named(each["entity"]),
            href=_address(api, each["entity"]),
            reason=each["reason"],
        )
        for each in audited.items()
    ]
    deploys: dict[tuple[str, str], Change] = {}
    for each in incidents:
        producer = each["implicated_producer"] or {}
        if producer.get("deployed_at"):
            version = producer.get("version") or ""
            deploys[producer["producer_id"], version] = Change(
                at=producer["deployed_at"],
                what="deployed",
                by=producer["producer_id"],
                about=version,
                href="",
                reason="",
            )
    recent = [each for each in (*found, *deploys.values()) if milliseconds(each.at) >= since_ms]
    return sorted(recent, key=lambda each: milliseconds(each.at), reverse=True)[:PANEL_MAX]


def _named(entity: str) -> str:
    """Return the name of an audited entity, without its kind where the name says it."""
    for kind in ("pipeline/", "fanout/", "run/"):
        entity = entity.removeprefix(kind)
    return entity.replace("/period/", " of ")


def _address(api: ApiCaller, entity: str) -> str:
    """Return the page of an audited entity; none if it has no page, or no longer."""
    kind, _, rest = entity.partition("/")
    name = rest.partition("/")[0]
    if kind == "pipeline" and api.pipelines is not None and api.pipelines.known.find(name) is not None:
        return f"/ui/pipelines/{segment(name)}"
    if kind == "fanout" and api.section("GET /fanouts/{id}", path={"id": name}).value:
        return f"/ui/fanouts/{segment(name)}"
    if kind == "run" and api.section("GET /runs/{run_id}", path={"run_id": name}).value:
        return f"/ui/runs/{segment(name)}"
    if entity.startswith("urn:") and api.section("GET /datasets/{dataset_urn}", path={"dataset_urn": entity}).value:
        return f"/ui/datasets/{segment(entity)}"
    return f"/ui/incidents/{segment(entity)}" if entity.startswith("INC-") else ""


def _of_incidents(incidents: Sequence[Any]) -> list[Count]:
    found = Counter(each["severity"] for each in incidents)
    query = "&".join(f"status={each}" for each in OPEN)
    return [Count(each.value, "incidents", found[each], f"/ui/incidents?{query}&severity={each}") for each in Severity]


def _of_signals(signals: Sequence[Any]) -> list[Count]:
    found = Counter(each["state"] for each in signals)
    states = (SignalState.CRITICAL, SignalState.WARNING)
    return [Count(each.value, "signals without incident", found[each], "#signals") for each in states if found[each]]


def _of_pipelines(rows: Sequence[PipelineStatus]) -> list[Count]:
    found = Counter(row.state for row in rows if row.state.needs_attention)
    return [
        Count(state.upper(), "pipelines", found[state], f"/ui/pipelines?status={state}")
        for state in PipelineState
        if found[state]
    ]


def _page(api: ApiCaller, request: PageRequest) -> Page:
    within = str(request.query.get("within", WITHIN))
    if within not in RANGES:
        raise InvalidPayloadError(f"within {within[:40]!r}: not a time range; use one of {', '.join(RANGES)}")
    return Page(
        template="board.html",
        title="Now",
        view=board(api, within),
        json=twin("/incidents", {"status": ["OPEN", "ACKNOWLEDGED"]}),
        cli=command("incident", "ls"),
        changes=changes_of(),
        section="now",
    )


PAGES: Final = (PageRoute("", _page, ("within",)),)
