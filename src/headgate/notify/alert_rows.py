"""Alert rows: alerts with their deliveries, and the rows for deduplication, groups and escalations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import CorruptionError
from headgate.notify.enums import INFRASTRUCTURE, AlertAction, AlertStatus, DeliveryState, Severity
from headgate.store.catalogue.tables import ALERT, CONTROL, PIPELINES
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

S = TypeVar("S", bound=Struct)

PREFIX: Final = "alert"
RETENTION_SECONDS: Final = 90 * 86_400
# How long processed events are remembered: longer than their deliveries are retried.
SEEN_SECONDS: Final = 7 * 86_400
ESCALATIONS_DUE: Final = "ALERT#ESCALATION"
GROUPS_DUE: Final = "ALERT#GROUP"
# Members of a group listed in its digest.
NAMED_MAX: Final = 20


class Delivery(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The delivery of one alert action to one channel."""

    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    at_ms: int = 0
    error: str = ""
    # The channel's own id of the message: a thread, a key.
    reference: str = ""


class Alert(Struct, frozen=True, kw_only=True):
    """An alert. Every change increments `version`."""

    alert_id: str
    pipeline_id: str
    event: str
    event_id: str
    severity: Severity
    text: str
    dedup_key: str
    at_ms: int
    last_at_ms: int
    status: AlertStatus = AlertStatus.OPEN
    count: int = 1
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    message: str = ""
    hint: str = ""
    owner: str = ""
    labels: dict[str, str] = {}
    detail: dict[str, Any] = {}
    channels: tuple[str, ...] = ()
    deliveries: dict[str, Delivery] = {}
    # The group that holds it back for a digest.
    group: str = ""
    muted_by: str = ""
    acknowledged_by: str = ""
    acknowledged_at_ms: int = 0
    note: str = ""
    resolved_by: str = ""
    resolved_at_ms: int = 0
    # Number of escalation steps taken.
    escalated: int = 0
    # Number of alerts that a digest summarises.
    held_count: int = 0
    # The cause that it shares with other alerts; empty if it stands for itself.
    thread: str = ""
    incident_id: str = ""
    dataset_urn: str = ""
    tier: str = ""
    team: str = ""
    version: int = 1

    def delivery(self, channel: str, action: AlertAction) -> Delivery | None:
        """Return the delivery of an action to a channel, or None if there is none."""
        return self.deliveries.get(delivery_name(channel, action))


class LatestAlert(Struct, frozen=True, kw_only=True):
    """The latest alert of a dedup key. Until `until_ms`, repeated events are counted instead of sent."""

    dedup_key: str
    alert_id: str
    pipeline_id: str
    until_ms: int
    version: int = 1


class ThreadAlert(Struct, frozen=True, kw_only=True):
    """An open alert of a thread."""

    pipeline_id: str
    at_ms: int
    channels: tuple[str, ...] = ()


class AlertThread(Struct, frozen=True, kw_only=True):
    """The open alerts of one cause, by alert id."""

    thread: str
    open: dict[str, ThreadAlert] = {}
    version: int = 0


class AlertGroup(Struct, frozen=True, kw_only=True):
    """Alerts of one kind for the same channels within a time window."""

    group_key: str
    event: str
    severity: Severity
    channels: tuple[str, ...]
    opened_at_ms: int
    closes_at_ms: int
    count: int = 0
    held_count: int = 0
    # Listed members: pipelines with their dates.
    held: tuple[str, ...] = ()
    # The pipeline of all members, or INFRASTRUCTURE if they have several.
    pipeline_id: str = INFRASTRUCTURE
    version: int = 1


class Escalation(Struct, frozen=True, kw_only=True):
    """The pending escalation of an unacknowledged alert. `step` is the next step."""

    alert_id: str
    pipeline_id: str
    at_ms: int
    step: int
    due_at_ms: int
    version: int = 1


def delivery_name(channel: str, action: AlertAction) -> str:
    """Return the key of a delivery within its alert."""
    return f"{channel}#{action}"


def alert_key(pipeline_id: str, at_ms: int, alert_id: str) -> Key:
    return ALERT.key(pipeline_id=pipeline_id, at_ms=at_ms, alert_id=alert_id)


def latest_alert_key(dedup_key: str) -> Key:
    return Key(f"DEDUP#alert#{dedup_key}", "DEDUP")


def seen_key(event_id: str) -> Key:
    return Key(f"DEDUP#notice#{event_id}", "DEDUP")


def group_key(group: str) -> Key:
    return Key(f"ALERT-GROUP#{group}", "STATE")


def thread_key(thread: str) -> Key:
    return Key(f"ALERT-THREAD#{thread}", "STATE")


def escalation_key(alert_id: str) -> Key:
    return Key(f"ESCALATION#{alert_id}", "STATE")


def alert_put(alert: Alert, *, kept_seconds: int, replaces: int = 0) -> Put:
    """Return the write of an alert: a new one, or one that replaces a version."""
    item: Item = {
        **msgspec.to_builtins(alert),
        **PIPELINES.key_attributes(alert_key(alert.pipeline_id, alert.at_ms, alert.alert_id)),
        **ALERT.index_attributes(at_ms=alert.at_ms, alert_id=alert.alert_id),
        "ttl": alert.at_ms // 1000 + kept_seconds,
    }
    return Put(PIPELINES, item, _replacing(replaces))


def alert_of(item: Mapping[str, Any]) -> Alert:
    return _struct(item, Alert)


def seen_put(event_id: str, now_ms: int) -> Put:
    item = {**CONTROL.key_attributes(seen_key(event_id)), "ttl": now_ms // 1000 + SEEN_SECONDS}
    return Put(CONTROL, item, absent())


def latest_alert_put(latest: LatestAlert, now_ms: int, *, kept_seconds: int, replaces: int = 0) -> Put:
    expiry = {"ttl": now_ms // 1000 + kept_seconds}
    item = {**msgspec.to_builtins(latest), **CONTROL.key_attributes(latest_alert_key(latest.dedup_key)), **expiry}
    return Put(CONTROL, item, _replacing(replaces))


def latest_alert_of(item: Mapping[str, Any]) -> LatestAlert:
    return _struct(item, LatestAlert)


def group_put(group: AlertGroup, *, replaces: int = 0) -> Put:
    """Return the write of a group. It is due at the end of its window if it holds alerts."""
    due = {"due_pk": GROUPS_DUE, "due_at_ms": group.closes_at_ms} if group.held_count else {}
    # A group that holds alerts never expires, however long the notifier was down.
    ttl = {} if group.held_count else {"ttl": group.closes_at_ms // 1000 + 3600}
    item = {**msgspec.to_builtins(group), **CONTROL.key_attributes(group_key(group.group_key)), **due, **ttl}
    return Put(CONTROL, item, _replacing(replaces))


def thread_put(thread: AlertThread, now_ms: int, *, kept_seconds: int) -> Put:
    """Return the write of a thread, which replaces the version before it."""
    item = {
        **msgspec.to_builtins(thread),
        **CONTROL.key_attributes(thread_key(thread.thread)),
        "ttl": now_ms // 1000 + kept_seconds,
    }
    return Put(CONTROL, item, _replacing(thread.version - 1))


def thread_of(item: Mapping[str, Any]) -> AlertThread:
    return _struct(item, AlertThread)


def group_of(item: Mapping[str, Any]) -> AlertGroup:
    return _struct(item, AlertGroup)


def escalation_put(escalation: Escalation, *, replaces: int = 0) -> Put:
    due = {"due_pk": ESCALATIONS_DUE}
    key = CONTROL.key_attributes(escalation_key(escalation.alert_id))
    return Put(CONTROL, {**msgspec.to_builtins(escalation), **key, **due}, _replacing(replaces))


def escalation_of(item: Mapping[str, Any]) -> Escalation:
    return _struct(item, Escalation)


def _replacing(version: int) -> Condition:
    return version_is(version) if version else absent()


def _struct(item: Mapping[str, Any], kind: type[S]) -> S:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    try:
        return typed_decode.convert({name: item[name] for name in names if name in item}, kind)
    except msgspec.ValidationError as exc:
        where = (item.get("PK"), item.get("SK"))
        raise CorruptionError(f"row {where}: it is not a {kind.__name__}, {exc}; check what else writes it") from exc
