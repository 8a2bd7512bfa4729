"""Dataset pages: the list, and one dataset in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import TransientError
from headgate.health.gate.decisions import Code, Ruling
from headgate.health.model.enums import IncidentStatus, SignalState, Tier
from headgate.serve.pages.actions import REASON, Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.health.dataset_charts import signal_chart, volume_chart
from headgate.serve.pages.health.holds import held_section
from headgate.serve.pages.health.lineage import EXPAND, Graph, graph_or_reason
from headgate.serve.pages.health.results import ResultRow, results_section
from headgate.serve.pages.health.signal_strip import Strip, since, strip
from headgate.serve.pages.health.silences import Silence, silences
from headgate.serve.pages.labels import command, number, options, span, stamp
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute

LISTED: Final = 50
REGISTER: Final = command("dataset", "register", "urn:dp:orders:created", "--team", "orders", "--freshness", "1h")
SHOWN_MAX: Final = 50
STRIPS_MAX: Final = 20
VERSIONS_MAX: Final = 10
VOLUME_DAYS: Final = 7
FLAGGED_MAX: Final = 5
FILTERS: Final = ("search", "tier", "owner_team", "status")
# Order of urgency.
_WORST_FIRST: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN, SignalState.OK)
_RANK: Final[Mapping[str, int]] = {state.value: rank for rank, state in enumerate(_WORST_FIRST)}


class Row(Struct, frozen=True):
    """A dataset and its worst signal state; empty without visible signals."""

    dataset: Any
    worst: str
    signals: int


class DatasetList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: list[Row]
    next_page_token: str | None
    filters: Mapping[str, str]
    tiers: tuple[str, ...] = tuple(each.value for each in Tier)
    cli: str
    register: str = REGISTER


class SignalRow(Struct, frozen=True):
    """A signal and its state strip."""

    signal: Any
    strip: Strip | None
    chart: dict[str, Any] | None


class Downstream(Struct, frozen=True, kw_only=True):
    """Downstream of a dataset. `hidden` counts datasets out of the caller's scope."""

    datasets: list[Any]
    entities: list[Any]
    dataset_count: int
    entity_count: int
    hidden: int
    impact: str
    complete: bool


class DatasetPage(Struct, frozen=True, kw_only=True):
    """View of a dataset, with the parts visible to the caller."""

    dataset: Any
    promises: list[str]
    signals: Section
    signal_rows: list[SignalRow]
    silences: Mapping[tuple[str, str], Silence]
    results: Section
    result_rows: list[ResultRow]
    fields: Section
    gate: Section
    incidents: Section
    opened: list[Any]
    recent: list[Any]
    writers: Section
    readers: Section
    downstream: Downstream | None
    downstream_missing: str
    versions: Section
    graph: Graph | None
    graph_missing: str
    held: Section
    # The pipelines whose rules or schedules name the dataset, and the names in its lineage that are pipelines.
    dependents: list[str]
    pipelines: frozenset[str]
    volume: dict[str, Any]
    # Hours outside of their expected band, and declared checks that have not run yet.
    flagged: list[Any]
    waiting_checks: list[str]
    # Constraints of fields that no check evaluates.
    not_evaluated: list[str]
    overrides: list[tuple[Any, Action]]
    expand: str
    commands: tuple[tuple[str, str], ...]


def dataset_list(api: ApiCaller, query: Mapping[str, Any]) -> DatasetList:
    """Return a page of the list. Raises as the API operation."""
    found = api.call("GET /datasets", query={**query, "page_size": LISTED})
    datasets = found["items"]
    filters = {name: str(query.get(name, "")) for name in FILTERS}
    names = {"search": "--search", "tier": "--tier", "owner_team": "--team", "status": "--status"}
    return DatasetList(
        rows=_rows(api, datasets),
        next_page_token=found["next_page_token"],
        filters=filters,
        cli=command("dataset", "ls", *options((names[name], value) for name, value in filters.items())),
    )


def _rows(api: ApiCaller, datasets: Sequence[Any]) -> list[Row]:
    urns = [each["dataset_urn"] for each in datasets if api.may(Permission.SIGNAL_READ, each["dataset_urn"])]
    try:
        found = dict(zip(urns, api.health.signals.of_datasets(urns) if urns else [], strict=True))
    except TransientError:
        found = {}
    rows = []
    for each in datasets:
        signals = found.get(each["dataset_urn"], [])
        worst = min((signal.state.value for signal in signals), key=_RANK.__getitem__, default="")
        rows.append(Row(each, worst, len(signals)))
    return rows


def dataset_page(api: ApiCaller, urn: str) -> DatasetPage:
    """Return the page of a dataset. Raises `DatasetNotFoundError`, and as the API operation."""
    dataset = api.call("GET /datasets/{dataset_urn}", path={"dataset_urn": urn})
    urn = dataset["dataset_urn"]
    path = {"dataset_urn": urn}
    signals = api.section("GET /datasets/{dataset_urn}/signals", path=path)
    incidents = api.section("GET /incidents", query={"dataset_urn": urn, "page_size": SHOWN_MAX})
    downstream = api.section("GET /datasets/{dataset_urn}/downstream", path=path)
    page = {"page_size": SHOWN_MAX}
    writers = api.section("GET /datasets/{dataset_urn}/writers", path=path, query=page)
    readers = api.section("GET /datasets/{dataset_urn}/readers", path=path, query=page)
    gate = api.section("POST /gate", body={"datasets": [urn], "verb": "read"})
    graph, graph_missing = graph_or_reason(api, urn)
    results, result_rows = results_section(api, urn)
    volumes = api.section("GET /datasets/{dataset_urn}/volume-history", path=path, query={"days": VOLUME_DAYS})
    expected = api.section("GET /datasets/{dataset_urn}/expected-volumes", path=path, query={"days": VOLUME_DAYS})
    checks = api.section("GET /datasets/{dataset_urn}/checks", path=path)
    return DatasetPage(
        dataset=dataset,
        promises=promises(dataset["slos"] or {}, _overdue_since(gate)),
        signals=signals,
        signal_rows=_signal_rows(api, urn, signals.items("signals")),
        silences=silences(api, signals.items("signals")),
        results=results,
        result_rows=result_rows,
        fields=api.section("GET /datasets/{dataset_urn}/fields", path=path),
        gate=gate,
        incidents=incidents,
        opened=[each for each in incidents.items() if each["status"] != IncidentStatus.RESOLVED],
        recent=[each for each in incidents.items() if each["status"] == IncidentStatus.RESOLVED],
        writers=writers,
        readers=readers,
        downstream=None if downstream.value is None else reached(api, downstream.value),
        downstream_missing=downstream.missing,
        versions=api.section("GET /datasets/{dataset_urn}/versions", path=path, query={"page_size": VERSIONS_MAX}),
        graph=graph,
        graph_missing=graph_missing,
        held=held_section(api, [urn]),
        dependents=_dependents(api, urn),
        pipelines=_pipelines(api, (*writers.items(), *readers.items())),
        volume=volume_chart(volumes.items("points"), expected.items("hours")),
        flagged=[each for each in expected.items("hours") if each["is_flagged"]][-FLAGGED_MAX:],
        waiting_checks=[each["id"] for each in checks.items("checks") if each["state"] is None],
        not_evaluated=checks.items("not_evaluated"),
        overrides=_overrides(api, urn),
        expand=EXPAND,
        commands=_commands(urn),
    )


def reached(api: ApiCaller, found: Mapping[str, Any]) -> Downstream:
    """Return the downstream of a dataset, without datasets out of scope."""
    seen = [each for each in found["datasets"] if api.may(Permission.DATASET_READ, each["dataset_urn"])]
    return Downstream(
        datasets=seen[:SHOWN_MAX],
        entities=found["entities"][:SHOWN_MAX],
        dataset_count=found["dataset_count"],
        entity_count=found["downstream_count"],
        hidden=len(found["datasets"]) - len(seen),
        impact=found["estimated_impact"],
        complete=found["complete"],
    )


def _overdue_since(gate: Section) -> str | None:
    """Return since when no report on freshness came in time, or None."""
    reasons = [] if gate.value is None else gate.value["reasons"]
    return next((each["since"] for each in reasons if each["code"] == Code.FRESHNESS_OVERDUE), None)


def promises(slos: Mapping[str, Any], overdue_since: str | None = None) -> list[str]:
    """Return the SLOs of a dataset in words."""
    lines = []
    if fresh := slos.get("freshness"):
        warns = fresh.get("warning_delay_seconds")
        warning = f" (warning after {span(warns)})" if warns else ""
        overdue = "" if overdue_since is None else f"; no report in time since {stamp(overdue_since)}"
        lines.append(f"Freshness: at most {span(fresh['max_delay_seconds'])} late{warning}{overdue}")
    if volume := slos.get("volume"):
        if (least := volume.get("min_events_per_window")) is not None:
            lines.append(f"Volume: at least {number(least)} records per window")
        if (most := volume.get("max_deviation_percent")) is not None:
            days = volume.get("baseline_window_days", 7)
            lines.append(f"Volume: within {number(most)} % of the last {days} days")
    if contract := slos.get("contract_compliance"):
        lines.append(f"Contract: at least {number(100 * contract['min_compliance_rate'])} % compliant records")
    return lines


def _dependents(api: ApiCaller, urn: str) -> list[str]:
    if api.pipelines is None or not api.may(Permission.PIPELINE_READ):
        return []
    return sorted(api.pipelines.known.dependents(urn))


def _pipelines(api: ApiCaller, entries: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of writers and readers that are pipelines of this server."""
    if api.pipelines is None or not api.may(Permission.PIPELINE_READ):
        return frozenset()
    names = {each["entity_name"] for each in entries}
    return frozenset(each for each in names if api.pipelines.known.find(each) is not None)


def _overrides(api: ApiCaller, urn: str) -> list[tuple[Any, Action]]:
    """Return the active overrides of the gate, each with the action that ends it."""
    found = api.section("GET /gate/overrides/{dataset_urn}", path={"dataset_urn": urn})
    return [(each, _revoke(api, urn, each["override_id"])) for each in found.items("overrides")]


def _revoke(api: ApiCaller, urn: str, override_id: str) -> Action:
    action = Action(
        label="Revoke",
        sentence="Ends the override now. The gate blocks again while the dataset is unhealthy.",
        path=f"/gate/overrides/{segment(urn)}/{segment(override_id)}",
        method="DELETE",
        fields=(),
        cli=command("gate", "revoke", urn, override_id),
        done="The override is revoked.",
    )
    return allowed(api, Permission.GATE_OVERRIDE, action, urn)


def dataset_actions(api: ApiCaller, view: DatasetPage) -> tuple[Action, ...]:
    """Return the actions on a dataset: override a gate that blocks, and forget its signals."""
    urn = view.dataset["dataset_urn"]
    found: list[Action] = []
    if view.gate.value is not None and view.gate.value["decision"] == Ruling.BLOCK:
        found.append(
            Action(
                label="Override the gate",
                sentence="The gate warns instead of blocking, for a limited time. Held runs start.",
                path=f"/gate/overrides/{segment(urn)}",
                fields=(
                    Field(name="duration", label="For", value="2h", is_required=True, hint="Such as 30m, 2h or 1d."),
                    Field(name="verb", label="To", kind=FieldKind.CHOICE, choices=("read", "publish"), value="read"),
                    Field(name="principal", label="Only for", hint="A pipeline or a person. Empty: for all."),
                    REASON,
                ),
                cli=f"{command('gate', 'override', urn)} --for-time {{duration}} --verb {{verb}} --reason {{reason}}",
                tone=Tone.DANGER,
                done="The gate is overridden.",
            )
        )
    if view.signal_rows:
        found.append(
            Action(
                label="Reset signals",
                sentence="Deletes all signals of the dataset and resolves its incidents. Use it after a false alarm.",
                path=f"/datasets/{segment(urn)}/signals/reset",
                cli=f"{command('signal', 'reset', urn)} --reason {{reason}}",
                tone=Tone.DANGER,
                done="The signals are reset.",
            )
        )
    return tuple(allowed(api, Permission.GATE_OVERRIDE, each, urn) for each in found)


def _signal_rows(api: ApiCaller, urn: str, signals: Sequence[Any]) -> list[SignalRow]:
    # Latest change first within each state.
    newest = sorted(signals, key=lambda each: str(each["state_changed_at"]), reverse=True)
    rows = []
    for index, signal in enumerate(sorted(newest, key=lambda each: _RANK[each["state"]])):
        found = _history(api, urn, signal) if index < STRIPS_MAX else None
        if found is None:
            rows.append(SignalRow(signal, None, None))
        else:
            drawn, chart = strip(found, signal, api.now_ms), signal_chart(found, signal, api.now_ms)
            rows.append(SignalRow(signal, drawn, chart))
    return rows


def _history(api: ApiCaller, urn: str, signal: Mapping[str, Any]) -> list[Any] | None:
    found = api.section(
        "GET /datasets/{dataset_urn}/signals/{signal_type}/history",
        path={"dataset_urn": urn, "signal_type": signal["signal_type"]},
        query={"from": since(api.now_ms)},
    )
    return None if found.value is None else found.items("snapshots")


def _commands(urn: str) -> tuple[tuple[str, str], ...]:
    return (
        ("This page", command("dataset", "show", urn)),
        ("Its signals", command("signal", "show", urn)),
        ("Its tests", command("dataset", "tests", urn)),
        ("Its checks", command("check", "ls", urn)),
        ("Check the gate", command("gate", "check", urn)),
        ("Show downstream", command("lineage", "downstream", urn)),
        ("Its fields", command("dataset", "fields", urn)),
        ("Its versions", command("dataset", "versions", urn)),
        ("Its evidence", command("evidence", "ls", urn)),
    )


def _list(api: ApiCaller, request: PageRequest) -> Page:
    view = dataset_list(api, request.query)
    return Page(
        template="datasets.html",
        title="Datasets",
        view=view,
        json=twin("/datasets", request.query),
        cli=view.cli,
        changes=changes_of(),
        section="datasets",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    view = dataset_page(api, request.path["dataset_urn"])
    urn = view.dataset["dataset_urn"]
    return Page(
        template="dataset.html",
        title=urn,
        crumbs=(("Datasets", "/ui/datasets"),),
        view=view,
        actions=dataset_actions(api, view),
        json=twin(f"/datasets/{segment(urn)}"),
        cli=view.commands[0][1],
        changes=changes_of(dataset_urn=urn),
        section="datasets",
    )


PAGES: Final = (PageRoute("/datasets", _list, FILTERS), PageRoute("/datasets/{dataset_urn:str}", _one))
