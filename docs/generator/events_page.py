"""The page of events: every event that Headgate publishes on its bus, with the fields of its data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from docs.generator.field_tables import fields_of, type_text
from docs.generator.markdown import NOTE, cell, code
from headgate.bootstrap.health import REGION_MOVED, RegionMoved
from headgate.durable.engine.stuck import STUCK_EVENT, ExecutionStuck
from headgate.durable.engine.turn_commit import ENDED_EVENT, ExecutionEnded
from headgate.fanout.model import events as fanout_events
from headgate.fanout.model.results import Summary
from headgate.feedback.incident_alerts import ALERT_EVENTS, ALERT_SEVERITIES, RESOLVED_EVENT
from headgate.health.error_alerts import EVENT_TYPE, ErrorRateAlert
from headgate.health.model.events import IncidentChanged, IncidentEventType, SignalChanged
from headgate.notify.alerts import ACKNOWLEDGED, AlertAcknowledged
from headgate.notify.enums import DefaultRoute
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.events.catalogue import CATALOGUE
from headgate.pipelines.events.event_types import EventType, Scope

_INTRODUCTION: Final = """\
Headgate publishes an event in the transaction of the change that causes it. Each event is a CloudEvent with `id`,
`type`, `source`, `subject`, `time` and `data`. An app subscribes with `@app.on_event(TYPE)`, and an alert channel by a
route of [alerts](alerts.md). `headgate event tail` prints events as they are published.
"""
_PIPELINES: Final = """\
The type of a pipeline event is `headgate.pipeline.` and its name in lower case. `headgate pipeline events PIPELINE`
lists those of a pipeline. The data of each has the fields of [Notice](#notice);
its `detail` has at least the fields that are named with the event, and [Detail](#detail) says what they mean.

Route: `page` alerts at once, `notify` alerts during the day, `log` is stored and alerts only through a route that names
the event. Scope: events with the same pipeline, schedule and date (`period`), the same pipeline (`pipeline`) or the
same name alone (`installation`) are about the same problem and make one alert. An event ends the alerts of the events
that it resolves.
"""
_INCIDENTS: Final = """\
Incidents are alerted under these names, which routes of [alerts](alerts.md) may list. The alert has the fields of
[Notice](#notice).
"""
_INCIDENT_ALERTS: Final = {
    "INCIDENT_OPENED": "An incident was opened.",
    "INCIDENT_REOPENED": "A resolved incident was opened again.",
    "INCIDENT_ESCALATED": "Its severity became worse, or it reached a higher escalation level.",
    "INCIDENT_RESOLVED": "It was resolved. Channels that received its alert receive its end.",
}
# The bus events besides those of pipelines: their types, and the struct of their data.
_BUS: Final[Sequence[tuple[tuple[str, ...], type[Struct], str]]] = (
    (("headgate.signal.state_changed",), SignalChanged, "A signal of a dataset changed its state."),
    (
        tuple(f"headgate.incident.{kind}" for kind in IncidentEventType),
        IncidentChanged,
        "An incident was opened, changed or resolved.",
    ),
    ((ENDED_EVENT,), ExecutionEnded, "An execution ended in any way."),
    ((STUCK_EVENT,), ExecutionStuck, "A turn of an execution failed with every build, and is not tried again."),
    (
        (
            fanout_events.ENDED_EVENT,
            fanout_events.STALLED_EVENT,
            fanout_events.WENT_ON_EVENT,
            fanout_events.FAILING_EVENT,
        ),
        Summary,
        "A fan-out ended, makes no progress, makes progress again, or has many failures.",
    ),
    ((ACKNOWLEDGED,), AlertAcknowledged, "A person acknowledged an alert."),
    ((EVENT_TYPE,), ErrorRateAlert, "Store errors of one kind exceeded their rate per minute."),
    ((REGION_MOVED,), RegionMoved, "The health service serves from another region."),
)
_BUS_FIELDS: Final = {
    "alert_id": "The alert.",
    "alert_threshold_per_minute": "How many a minute are tolerated.",
    "attempt": "The number of the attempt.",
    "attempts": "How often it was attempted.",
    "by": "Who acknowledged it.",
    "cancelled": "Chunks that were cancelled.",
    "category": "The category of the error.",
    "change": "What happened.",
    "chunks": "Chunks in all.",
    "completed": "Chunks that succeeded.",
    "dataset_urn": "The dataset.",
    "episode": "How often it has broken out.",
    "error": "Type and message of the exception.",
    "error_type": "The code of the error.",
    "escalation_level": "How far it was escalated.",
    "event_type": "The kind of event in upper case.",
    "execution_id": "The execution.",
    "failed": "Chunks that failed.",
    "failovers": "How often the region was changed.",
    "failure_signature": "What failed, as the reporter names it.",
    "failure_signatures": "What failed, each as its reporter names it.",
    "incident_id": "The incident.",
    "items": "Items in all.",
    "items_failed": "Items that failed.",
    "items_ok": "Items that succeeded.",
    "new_state": "The state since the change.",
    "note": "What the person wrote.",
    "owner_team": "The team that owns the dataset.",
    "phase": "The phase of work on the incident.",
    "previous_state": "The state before; null for a new signal.",
    "reason": "Why.",
    "region": "The region that serves now.",
    "run_id": "The fan-out.",
    "score": "The measured value.",
    "severity": "The severity of the incident.",
    "signal_type": "The type of the signal.",
    "signal_types": "The types of the signals that breach.",
    "status": "The status after the change.",
    "tier": "The tier of the dataset.",
    "timestamp": "The time of the change.",
    "title": "One line about the problem.",
    "turn": "The number of the turn.",
    "version": "The version after the change, which grows with each.",
    "window_end": "The end of the measured window.",
    "window_start": "The beginning of the measured window.",
    "workflow": "The name of the workflow.",
}
_NOTICE_FIELDS: Final = {
    "event": "The name of the event.",
    "event_id": "The id of the event.",
    "severity": "How bad it is.",
    "route": "Where it goes without a route of yours.",
    "alerts": "Whether it alerts without a route that names it.",
    "is_news": "Whether it begins or ends an alert.",
    "text": "One line for people.",
    "dedup_key": "The same for all events about the same problem.",
    "at_ms": "The time, in milliseconds since 1970.",
    "pipeline_id": "The pipeline; that of the infrastructure for events without one.",
    "schedule_id": "The schedule.",
    "date": "The period.",
    "run_id": "The run.",
    "message": "More about this event.",
    "hint": "What to do.",
    "resolves": "The keys of the alerts that it ends.",
    "detail": "The fields of the table below.",
    "avoid": "Channels that are not used, because the event is about them.",
    "incident_id": "The incident, of events about one.",
    "dataset_urn": "The dataset of the incident.",
    "tier": "The tier of the dataset.",
    "team": "The team that owns the dataset.",
    "owner": "The owner by which alerts are routed.",
    "thread": "The cause that it shares with other alerts.",
}
_DETAIL_FIELDS: Final = {
    "after": "The status after the change.",
    "alarm": "The name of the alarm.",
    "attempt": "The number of the attempt.",
    "attempts": "The number of attempts.",
    "backfill_id": "The backfill.",
    "before": "The status before the change.",
    "by": "The caller.",
    "category": "The category of the failure.",
    "channel": "The alert channel.",
    "checks": "The checks that did not run.",
    "chunks": "Chunks in all.",
    "completed": "Chunks that succeeded.",
    "count": "The number of records.",
    "current": "The value now.",
    "dataset": "The dataset.",
    "deadline": "The deadline.",
    "delay_seconds": "Seconds until the next attempt.",
    "downstream": "The pipeline downstream.",
    "duration_seconds": "For how many seconds.",
    "error": "The error.",
    "evaluator": "The evaluator.",
    "execution": "The execution.",
    "execution_id": "The execution.",
    "failed": "How many failed: periods of a backfill, chunks of a fan-out.",
    "failure": "The failure that was repaired.",
    "failures": "The number of failures in a row.",
    "fanout": "The fan-out.",
    "file": "The file of the definition.",
    "kind": "The kind of expectation.",
    "late_by": "How late the data is.",
    "limit": "The largest number of reruns.",
    "marker": "The key of the marker.",
    "periods": "The number of periods.",
    "previous": "The value when the run succeeded.",
    "reason": "Why.",
    "refusal": "Why the rerun was refused.",
    "replaced": "The origin of the definition that was replaced.",
    "rule": "The rule.",
    "run_id": "The run.",
    "sensor_key": "The sensor.",
    "since": "Since when.",
    "sla_status": "Whether the run would have met its deadline.",
    "source": "What excludes the date.",
    "state": "The state of the alarm.",
    "status": "The status.",
    "trait": "The trait.",
    "trigger": "The type of trigger.",
    "verdict": "The verdict.",
    "version": "The version of the definition.",
    "workflow": "The workflow.",
}


def events_page() -> str:
    """Return the page of events."""
    lines = ["# Events", "", NOTE, _INTRODUCTION, "## Events on the bus", ""]
    lines += ["| Type | When | Data |", "|---|---|---|"]
    for types, struct, when in _BUS:
        name = struct.__name__
        lines.append(f"| {', '.join(code(each) for each in types)} | {when} | [{name}](#{name.lower()}) |")
    lines += ["| `headgate.pipeline.NAME` | Any of the [pipeline events](#pipeline-events). | [Notice](#notice) |", ""]
    for _, struct, _ in _BUS:
        lines += [f"### {struct.__name__}", "", *_fields(struct, _BUS_FIELDS)]
    lines += _incident_alerts()
    lines += ["## Pipeline events", "", _PIPELINES, "### Notice", "", *_fields(Notice, _NOTICE_FIELDS)]
    lines += ["### Detail", "", "| Field | For |", "|---|---|"]
    for name in sorted({name for kind in CATALOGUE.values() for name in kind.fields}):
        lines.append(f"| `{name}` | {_DETAIL_FIELDS[name]} |")
    lines.append("")
    for route, title in (
        (DefaultRoute.PAGE, "Events that page"),
        (DefaultRoute.NOTIFY, "Events that notify"),
        (DefaultRoute.LOG, "Events that are stored"),
    ):
        lines += [f"### {title}", ""]
        for kind in CATALOGUE.values():
            if kind.route is route:
                lines += _pipeline_event(kind)
    return "\n".join(lines)


def _incident_alerts() -> Iterator[str]:
    yield from ("## Alerts of incidents", "", _INCIDENTS, "| Event | When |", "|---|---|")
    for name in dict.fromkeys((*ALERT_EVENTS.values(), RESOLVED_EVENT)):
        yield f"| `{name}` | {_INCIDENT_ALERTS[name]} |"
    yield from ("", "| Severity of the incident | Severity of the alert | Route |", "|---|---|---|")
    for severity, (alert, route) in ALERT_SEVERITIES.items():
        yield f"| `{severity}` | `{alert}` | `{route}` |"
    yield ""


def _fields(struct: type[Struct], described: dict[str, str]) -> Iterator[str]:
    yield from ("| Field | Type | For |", "|---|---|---|")
    for field in fields_of(struct):
        kind = type_text(field.type).replace("mapping, below", "mapping")
        yield f"| `{field.encode_name}` | {cell(kind)} | {described[field.name]} |"
    yield ""


def _pipeline_event(kind: EventType) -> Iterator[str]:
    scope = f" Scope: {kind.scope}." if kind.scope is not Scope.PERIOD else ""
    yield from (f"#### `{kind.name}`", "", f"`{event_type(kind.name)}`, {kind.severity}.{scope}", "")
    yield from (f"> {kind.text}", "")
    if kind.hint:
        yield from (f"What to do: {kind.hint}.", "")
    if kind.fields:
        yield from (f"`detail`: {', '.join(code(name) for name in kind.fields)}.", "")
    if kind.resolves:
        yield from (f"Resolves: {', '.join(code(name) for name in kind.resolves)}.", "")
