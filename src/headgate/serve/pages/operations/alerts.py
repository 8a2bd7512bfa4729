"""Alert pages: alerts with their deliveries, mutes, and channels that can be tested."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.notify.enums import AlertStatus, Severity
from headgate.serve.pages.actions import Action, Field, FieldKind, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_PIPELINES, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, chips, following
from headgate.serve.pages.pipelines.runs import RANGES, since

ADDRESS: Final = "/ui/alerts"
LISTED: Final = 50
FILTERS: Final = ("status", "pipeline", "within", "cursor")
_STATES: Final = (("All", ""), *((each.value.capitalize(), each.value) for each in AlertStatus))


class AlertRow(Struct, frozen=True):
    """An alert, and its acknowledgement if it is open."""

    alert: Any
    action: Action | None


class AlertList(Struct, frozen=True, kw_only=True):
    """A page of alerts, with the mutes and channels. Mutes and channels come with an action each."""

    rows: list[AlertRow]
    chips: list[Chip]
    filters: Mapping[str, Any]
    is_filtered: bool
    more: str
    mutes: Section
    unmutes: Mapping[str, Action]
    channels: Section
    tests: Mapping[str, Action]
    ranges: tuple[str, ...] = tuple(RANGES)


class AlertPage(Struct, frozen=True, kw_only=True):
    """View of an alert."""

    alert: Any


def acknowledge(api: ApiCaller, alert: Mapping[str, Any]) -> Action | None:
    """Return the acknowledgement of an open alert."""
    if alert["status"] != AlertStatus.OPEN:
        return None
    alert_id = alert["alert_id"]
    action = Action(
        label="Acknowledge",
        sentence="Stops the escalation of this alert and shows others that you have it.",
        path=f"/alerts/{segment(alert_id)}/ack",
        fields=(Field(name="note", label="Note", hint="For other responders; may be empty."),),
        cli=f"{command('alert', 'ack', alert_id)} --note {{note}}",
        tone=Tone.PRIMARY,
        done="The alert is acknowledged.",
    )
    return allowed(api, Permission.EVENT_WRITE, action)


def mute(api: ApiCaller, *, pipeline: str = "*", event: str = "*") -> Action:
    """Return the action that mutes matching alerts."""
    action = Action(
        label="Mute",
        sentence="Matching alerts are stored but not sent until the mute ends. Patterns may have * and ?.",
        path="/alert-mutes",
        fields=(
            Field(name="pipeline", label="Pipeline", value=pipeline, is_required=True),
            Field(name="event", label="Event", value=event, is_required=True, hint="Such as SLA_WARNING or SLA_*."),
            Field(
                name="severity_max", label="Up to severity", kind=FieldKind.CHOICE, value=Severity.CRITICAL.value,
                choices=tuple(each.value for each in Severity),
            ),
            Field(name="duration", label="For", value="2h", is_required=True, hint="Such as 30m, 2h or 1d."),
            Field(name="reason", label="Reason", is_required=True, hint="Recorded in the audit log."),
        ),
        cli=(
            "headgate alert mute --pipeline {pipeline} --event {event} --severity-max {severity_max} "
            "--until {duration} --reason {reason}"
        ),
        done="Matching alerts are muted.",
    )  # fmt: skip
    return allowed(api, Permission.EVENT_WRITE, action)


def _unmute(api: ApiCaller, mute_id: str) -> Action:
    action = Action(
        label="End",
        sentence="Ends the mute now. Alerts that it stored are not sent later.",
        method="DELETE",
        path=f"/alert-mutes/{segment(mute_id)}",
        fields=(),
        cli=command("alert", "unmute", mute_id),
        done="The mute has ended.",
    )
    return allowed(api, Permission.EVENT_WRITE, action)


def _test(api: ApiCaller, name: str) -> Action:
    action = Action(
        label="Send a test",
        sentence=f"Sends a test message to {name}, and reports whether the channel accepted it.",
        path=f"/alert-channels/{segment(name)}/test",
        fields=(),
        cli=command("alert", "test", name),
        done=f"{name} accepted the test message.",
    )
    return allowed(api, Permission.EVENT_WRITE, action)


def alert_list(api: ApiCaller, query: Mapping[str, Any]) -> AlertList:
    """Return a page of the list. Raises as the API operation."""
    alerts, cursor = api.found("GET /alerts", "alerts", query={**since(api, query), "limit": LISTED})
    mutes, channels = api.section("GET /alert-mutes"), api.section("GET /alert-channels")
    return AlertList(
        rows=[AlertRow(each, acknowledge(api, each)) for each in alerts],
        chips=chips(ADDRESS, query, "status", _STATES),
        filters={name: query.get(name, "") for name in FILTERS},
        is_filtered=any(query.get(name) for name in FILTERS),
        more=following(ADDRESS, query, cursor),
        mutes=mutes,
        unmutes={each["mute_id"]: _unmute(api, each["mute_id"]) for each in mutes.items("mutes")},
        channels=channels,
        tests={each["name"]: _test(api, each["name"]) for each in channels.items("channels")},
    )


def _list(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    given = (
        ("--pipeline", query.get("pipeline")),
        ("--status", query.get("status")),
        ("--since", query.get("within")),
    )
    return Page(
        template="alerts.html",
        title="Alerts",
        view=alert_list(api, query),
        actions=(mute(api, pipeline=query.get("pipeline", "*")),),
        json=twin("/alerts", since(api, query)),
        cli=command("alert", "ls", *options(given)),
        changes=changes_of(of=ALL_PIPELINES),
        section="alerts",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    alert_id = request.path["alert_id"]
    alert = api.call("GET /alerts/{alert_id}", path={"alert_id": alert_id})
    acknowledged = acknowledge(api, alert)
    muted = mute(api, pipeline=alert["pipeline_id"] or "*", event=alert["event"])
    return Page(
        template="alert.html",
        title=alert["text"][:80],
        crumbs=(("Alerts", ADDRESS),),
        view=AlertPage(alert=alert),
        actions=(muted,) if acknowledged is None else (acknowledged, muted),
        json=twin(f"/alerts/{segment(alert_id)}"),
        cli=command("alert", "show", alert_id),
        changes=changes_of(of=ALL_PIPELINES),
        section="alerts",
    )


PAGES: Final = (
    PageRoute("/alerts", _list, FILTERS, needs="GET /alerts"),
    PageRoute("/alerts/{alert_id:str}", _one),
)
