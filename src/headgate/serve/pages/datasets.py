"""Pages of datasets: the list, and all that is known of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.errors import TransientError
from headgate.health.model.enums import IncidentStatus, SignalState, Tier
from headgate.serve.pages.api_calls import ApiCaller, Section
from headgate.serve.pages.board import REGISTER
from headgate.serve.pages.labels import command, number, options, span
from headgate.serve.pages.signal_strip import Strip, since, strip

LISTED: Final = 50
SHOWN_MAX: Final = 50
STRIPS_MAX: Final = 20
VERSIONS_MAX: Final = 10
FILTERS: Final = ("search", "tier", "owner_team", "status")
# What someone should look at first.
_WORST_FIRST: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN, SignalState.OK)
_RANK: Final[Mapping[str, int]] = {state.value: rank for rank, state in enumerate(_WORST_FIRST)}


class Row(Struct, frozen=True):
    """A dataset of the list, and its worst signal: a state, or nothing if it has none or they may not be seen."""

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
    """A signal, and the strip of its states if there is one."""

    signal: Any
    strip: Strip | None


class Downstream(Struct, frozen=True, kw_only=True):
    """What depends on a dataset. `hidden` counts datasets that are not in the caller's scope."""

    datasets: list[Any]
    entities: list[Any]
    dataset_count: int
    entity_count: int
    hidden: int
    impact: str
    complete: bool


class DatasetPage(Struct, frozen=True, kw_only=True):
    """All that is known of a dataset, each part as far as the caller may see it."""

    dataset: Any
    promises: list[str]
    signals: Section
    signal_rows: list[SignalRow]
    gate: Section
    incidents: Section
    opened: list[Any]
    recent: list[Any]
    writers: Section
    readers: Section
    downstream: Downstream | None
    downstream_missing: str
    versions: Section
    commands: tuple[tuple[str, str], ...]


def dataset_list(asking: ApiCaller, query: Mapping[str, Any]) -> DatasetList:
    """Return a page of the list. Raises as the operation does."""
    found = asking.ask("GET /datasets", query={**query, "page_size": LISTED})
    datasets = found["items"]
    filters = {name: str(query.get(name, "")) for name in FILTERS}
    names = {"search": "--search", "tier": "--tier", "owner_team": "--team", "status": "--status"}
    return DatasetList(
        rows=_rows(asking, datasets),
        next_page_token=found["next_page_token"],
        filters=filters,
        cli=command("dataset", "ls", *options((names[name], value) for name, value in filters.items())),
    )


def _rows(asking: ApiCaller, datasets: Sequence[Any]) -> list[Row]:
    urns = [each["dataset_urn"] for each in datasets if asking.may(Permission.SIGNAL_READ, each["dataset_urn"])]
    try:
        found = dict(zip(urns, asking.health.signals.of_datasets(urns) if urns else [], strict=True))
    except TransientError:
        found = {}
    rows = []
    for each in datasets:
        signals = found.get(each["dataset_urn"], [])
        worst = min((signal.state.value for signal in signals), key=_RANK.__getitem__, default="")
        rows.append(Row(each, worst, len(signals)))
    return rows


def dataset_page(asking: ApiCaller, urn: str) -> DatasetPage:
    """Return the page of a dataset. Raises `DatasetNotFoundError`, and as reading the dataset does."""
    dataset = asking.ask("GET /datasets/{dataset_urn}", path={"dataset_urn": urn})
    urn = dataset["dataset_urn"]
    path = {"dataset_urn": urn}
    signals = asking.section("GET /datasets/{dataset_urn}/signals", path=path)
    incidents = asking.section("GET /incidents", query={"dataset_urn": urn, "page_size": SHOWN_MAX})
    downstream = asking.section("GET /datasets/{dataset_urn}/downstream", path=path)
    page = {"page_size": SHOWN_MAX}
    return DatasetPage(
        dataset=dataset,
        promises=promises(dataset["slos"] or {}),
        signals=signals,
        signal_rows=_signal_rows(asking, urn, signals.items("signals")),
        gate=asking.section("POST /gate", body={"datasets": [urn], "verb": "read"}),
        incidents=incidents,
        opened=[each for each in incidents.items() if each["status"] != IncidentStatus.RESOLVED],
        recent=[each for each in incidents.items() if each["status"] == IncidentStatus.RESOLVED],
        writers=asking.section("GET /datasets/{dataset_urn}/writers", path=path, query=page),
        readers=asking.section("GET /datasets/{dataset_urn}/readers", path=path, query=page),
        downstream=None if downstream.value is None else reached(asking, downstream.value),
        downstream_missing=downstream.missing,
        versions=asking.section("GET /datasets/{dataset_urn}/versions", path=path, query={"page_size": VERSIONS_MAX}),
        commands=_commands(urn),
    )


def reached(asking: ApiCaller, found: Mapping[str, Any]) -> Downstream:
    """Return what depends on a dataset, without the datasets that the caller may not see."""
    seen = [each for each in found["datasets"] if asking.may(Permission.DATASET_READ, each["dataset_urn"])]
    return Downstream(
        datasets=seen[:SHOWN_MAX],
        entities=found["entities"][:SHOWN_MAX],
        dataset_count=found["dataset_count"],
        entity_count=found["downstream_count"],
        hidden=len(found["datasets"]) - len(seen),
        impact=found["estimated_impact"],
        complete=found["complete"],
    )


def promises(slos: Mapping[str, Any]) -> list[str]:
    """Return what is promised of a dataset, in words."""
    said = []
    if fresh := slos.get("freshness"):
        warns = fresh.get("warning_delay_seconds")
        told = f" (warned of after {span(warns)})" if warns else ""
        said.append(f"Freshness: at most {span(fresh['max_delay_seconds'])} late{told}")
    if volume := slos.get("volume"):
        if (least := volume.get("min_events_per_window")) is not None:
            said.append(f"Volume: at least {number(least)} records a window")
        if (most := volume.get("max_deviation_percent")) is not None:
            days = volume.get("baseline_window_days", 7)
            said.append(f"Volume: within {number(most)} % of the last {days} days")
    if kept := slos.get("contract_compliance"):
        said.append(f"Contract: kept by at least {number(100 * kept['min_compliance_rate'])} % of records")
    return said


def _signal_rows(asking: ApiCaller, urn: str, signals: Sequence[Any]) -> list[SignalRow]:
    # The latest trouble first, within each state.
    newest = sorted(signals, key=lambda each: str(each["state_changed_at"]), reverse=True)
    rows = []
    for index, signal in enumerate(sorted(newest, key=lambda each: _RANK[each["state"]])):
        drawn = _strip(asking, urn, signal) if index < STRIPS_MAX else None
        rows.append(SignalRow(signal, drawn))
    return rows


def _strip(asking: ApiCaller, urn: str, signal: Mapping[str, Any]) -> Strip | None:
    found = asking.section(
        "GET /datasets/{dataset_urn}/signals/{signal_type}/history",
        path={"dataset_urn": urn, "signal_type": signal["signal_type"]},
        query={"from": since(asking.now_ms)},
    )
    return None if found.value is None else strip(found.items("snapshots"), signal, asking.now_ms)


def _commands(urn: str) -> tuple[tuple[str, str], ...]:
    return (
        ("This page", command("dataset", "show", urn)),
        ("Its signals", command("signal", "show", urn)),
        ("May it be read?", command("gate", "check", urn)),
        ("What depends on it", command("lineage", "downstream", urn)),
        ("Its versions", command("dataset", "versions", urn)),
        ("Its evidence", command("evidence", "ls", urn)),
    )
