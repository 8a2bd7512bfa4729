"""Timeline of an incident: what happened since it opened with the alerts sent, and what was changed before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.health.model.timestamps import instant, milliseconds
from headgate.serve.pages.api_calls import ApiCaller, Section

# Changes that may have caused an incident: how long before it, and how many entries of the log are read.
BEFORE_HOURS: Final = 24
CHANGES_READ_MAX: Final = 100
CHANGES_MAX: Final = 20


class Moment(Struct, frozen=True, kw_only=True):
    """Something that happened; `note` is its second line."""

    at: str
    kind: str
    what: str
    note: str = ""


class IncidentTimeline(Struct, frozen=True):
    """The moments since an incident opened and those before it, both latest first. `missing`: why no changes."""

    since: list[Moment]
    before: list[Moment]
    missing: str
    hours: int = BEFORE_HOURS


def incident_timeline(
    api: ApiCaller, context: Mapping[str, Any], alerts: Iterable[Mapping[str, Any]]
) -> IncidentTimeline:
    """Return the timeline of an incident from its context, its alerts and the audit log."""
    incident = context["incident"]
    changes = _changes(api, context)
    known = [
        Moment(at=each["at"], kind=each["kind"], what=each["what"].replace(" -> ", " → "))
        for each in context["timeline"]
    ]
    moments = sorted(
        [*known, *(_sent(each) for each in alerts), *(_changed(each) for each in changes.value or [])],
        # The entries of one instant stay in their order.
        key=lambda each: milliseconds(each.at),
    )[::-1]
    opened_ms = milliseconds(incident["created_at"])
    return IncidentTimeline(
        since=[each for each in moments if milliseconds(each.at) >= opened_ms],
        before=[each for each in moments if milliseconds(each.at) < opened_ms],
        missing=changes.missing,
    )


def _sent(alert: Mapping[str, Any]) -> Moment:
    return Moment(at=alert["at"], kind="alert", what=alert["text"], note=deliveries(alert))


def deliveries(alert: Mapping[str, Any]) -> str:
    """Return where an alert went, each channel once for each outcome."""
    if alert["muted_by"]:
        return f"muted by {alert['muted_by']}"
    ways = [
        f"{each['channel']} {each['state'].lower()}" + (f" ({each['error']})" if each["error"] else "")
        for each in alert["deliveries"]
    ]
    said = ", ".join(dict.fromkeys(ways)) or "to no channel"
    return f"{said}; acknowledged by {alert['acknowledged_by']}" if alert["acknowledged_by"] else said


def _changed(entry: Mapping[str, Any]) -> Moment:
    what = f"{entry['action'].replace('.', ' ').replace('_', ' ')} {entry['entity'].removeprefix('pipeline/')}"
    reason = f": {entry['reason']}" if entry["reason"] else ""
    return Moment(at=entry["at"], kind="change", what=what, note=f"by {entry['actor']}{reason}")


def _changes(api: ApiCaller, context: Mapping[str, Any]) -> Section:
    """Return the audited changes to the dataset, its writers and what they read, in the time before the incident."""
    opened_ms = milliseconds(context["incident"]["created_at"])
    query = {
        "from": instant(opened_ms - BEFORE_HOURS * 3_600_000),
        "to": instant(opened_ms),
        "page_size": CHANGES_READ_MAX,
    }
    found = api.section("GET /audit", query=query)
    if found.value is None:
        return found
    concerned = _concerned(api, context)
    # The configuration versions of the dataset itself are in its context already.
    own = context["incident"]["primary_dataset_urn"]
    return Section(
        [each for each in found.items() if each["entity"] != own and _is_of(each["entity"], concerned)][:CHANGES_MAX]
    )


def _concerned(api: ApiCaller, context: Mapping[str, Any]) -> frozenset[str]:
    records = [each.get("producer") for each in (context["last_good"], context["first_bad"]) if each]
    producers = (context["incident"]["implicated_producer"], *records)
    named = [each["producer_id"] for each in producers if each and each.get("producer_id")]
    writers = [*(each["entity_name"] for each in context["writers"]), *named]
    known = None if api.pipelines is None else api.pipelines.known
    read = [
        urn
        for name in writers
        if known is not None and (pipeline := known.find(name)) is not None
        for urn in pipeline.reads
    ]
    return frozenset((*writers, *read))


def _is_of(entity: str, names: Iterable[str]) -> bool:
    """Whether an audited entity is one of the names, a pipeline of such a name, or a period of it."""
    return any(entity == name or f"{entity}/".startswith(f"pipeline/{name}/") for name in names)
