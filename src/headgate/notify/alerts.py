"""Alerts: reads, acknowledges and resolves alerts. Every change is a compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event
from headgate.errors import ConflictError, InvalidPayloadError, NotFoundError, StoreBusyError
from headgate.ids import made_at_ms
from headgate.notify.alert_rows import (
    PREFIX,
    RETENTION_SECONDS,
    Alert,
    AlertThread,
    Delivery,
    LatestAlert,
    ThreadAlert,
    alert_key,
    alert_of,
    alert_put,
    delivery_name,
    escalation_key,
    latest_alert_key,
    latest_alert_of,
    thread_key,
    thread_of,
    thread_put,
)
from headgate.notify.enums import AlertAction, AlertStatus
from headgate.notify.mutes import AlertAudit, Commit
from headgate.store.catalogue.tables import CONTROL, PIPELINES
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Delete, Query, Range, Sort, Write
from headgate.store.port import Store

DELIVER: Final = "headgate.alert.deliver"
ACKNOWLEDGED: Final = "headgate.alert.acknowledged"
# Open alerts of one thread.
THREAD_MAX: Final = 200
SOURCE: Final = "/headgate/notify"
RACES_MAX: Final = 20
# The channel's own subscription, and one that listens to all events.
_DELIVERIES_MAX: Final = 2


class AlertPage(Struct, frozen=True):
    """A page of alerts, latest first."""

    alerts: list[Alert]
    cursor: str | None = None


class AlertAcknowledged(Struct, frozen=True, kw_only=True):
    """An acknowledgement, as published on the bus."""

    alert_id: str
    by: str
    note: str = ""
    incident_id: str = ""


class DeliveryOrder(Struct, frozen=True, kw_only=True):
    """The order to deliver one alert action to one channel."""

    pipeline_id: str
    at_ms: int
    alert_id: str
    channel: str
    action: AlertAction


def new_alert_id(ulid: str) -> str:
    return f"{PREFIX}_{ulid}"


class Alerts:
    """The alerts of one store. Safe to use from many processes. `commit` writes changes with their audit entry."""

    def __init__(
        self, store: Store, clock: Clock, bus: Bus, commit: Commit, *, kept_seconds: int = RETENTION_SECONDS
    ) -> None:
        self._store = store
        self._clock = clock
        self._bus = bus
        self._commit = commit
        self.kept_seconds = kept_seconds

    # Reading.

    def get(self, alert_id: str) -> Alert:
        """Return an alert by its id. Raises `NotFoundError`."""
        at_ms = made_at_ms(alert_id)
        sort = Sort(Range.EQUALS, f"{at_ms:013d}#{alert_id}")
        page = self._store.query(Query(table=PIPELINES, index="GSI1", partition="ALERTS", sort=sort, limit=1))
        found = None if not page.items else self.find(page.items[0]["pipeline_id"], at_ms, alert_id)
        if found is None:
            raise NotFoundError(f"alert {alert_id}: there is none; 'headgate alert ls' lists them")
        return found

    def find(self, pipeline_id: str, at_ms: int, alert_id: str) -> Alert | None:
        """Return the current alert, or None."""
        item = self._store.get(PIPELINES, alert_key(pipeline_id, at_ms, alert_id), consistent=True)
        return None if item is None else alert_of(item)

    def ls(
        self, pipeline_id: str | None = None, *, since_ms: int = 0, limit: int = 100, cursor: str | None = None
    ) -> AlertPage:
        """Return alerts of a pipeline, or of all, latest first."""
        if pipeline_id is None:
            sort = Sort(Range.AT_LEAST, f"{since_ms:013d}")
            query = Query(table=PIPELINES, index="GSI1", partition="ALERTS", sort=sort, limit=limit)
        else:
            sort = Sort(Range.BETWEEN, f"ALERT#{since_ms:013d}", "ALERT#~")
            query = Query(table=PIPELINES, partition=f"PIPELINE#{pipeline_id}", sort=sort, limit=limit)
        page = self._store.query(replace(query, cursor=cursor, descending=True))
        return AlertPage([alert_of(item) for item in page.items], page.cursor)

    def latest_alerts(self, dedup_keys: Sequence[str]) -> list[LatestAlert | None]:
        """Return the latest alert of each dedup key, None where there is none."""
        if not dedup_keys:
            return []
        items = self._store.get_many(CONTROL, [latest_alert_key(key) for key in dedup_keys], consistent=True)
        return [None if item is None else latest_alert_of(item) for item in items]

    def thread(self, thread: str) -> AlertThread:
        """Return the open alerts of a thread."""
        item = self._store.get(CONTROL, thread_key(thread), consistent=True)
        return AlertThread(thread=thread) if item is None else thread_of(item)

    # Changing.

    def thread_writes(self, alert: Alert, now_ms: int) -> list[Write]:
        """Return the writes that add an alert to its thread, or remove it if it is resolved."""
        if not alert.thread:
            return []
        before = self.thread(alert.thread)
        others = {each: place for each, place in before.open.items() if each != alert.alert_id}
        if alert.status is not AlertStatus.RESOLVED:
            # The oldest leave if there are very many: a thread is one row.
            others = dict(sorted(others.items())[-(THREAD_MAX - 1) :])
            others[alert.alert_id] = ThreadAlert(
                pipeline_id=alert.pipeline_id, at_ms=alert.at_ms, channels=alert.channels
            )
        if others == before.open:
            return []
        after = replace(before, open=others, version=before.version + 1)
        return [thread_put(after, now_ms, kept_seconds=self.kept_seconds)]

    def acknowledge(self, alert_id: str, *, by: str, note: str = "", is_audited: bool = True) -> Alert:
        """Acknowledge an alert and the other open alerts of its thread.

        It stops their escalation and sends the acknowledgement to their channels. Returns the current alert; one that
        is acknowledged or resolved already is left alone. `is_audited` is false if the person's action has its audit
        entry already. Raises `NotFoundError`.
        """
        if not by.strip():
            raise InvalidPayloadError(f"alert {alert_id}: say who acknowledges it")
        alert = self.get(alert_id)
        acknowledged = self._acknowledge(alert, by, note, (), is_audited=is_audited)
        notified = set(_notified_channels(acknowledged))
        others = self.thread(alert.thread).open if alert.thread else {}
        for other_id, place in sorted(others.items()):
            other = None if other_id == alert_id else self.find(place.pipeline_id, place.at_ms, other_id)
            if other is not None:
                # A channel that has one message about the acknowledgement needs no second one.
                self._acknowledge(other, by, note, tuple(notified), is_audited=False)
                notified.update(_notified_channels(other))
        return acknowledged

    def _acknowledge(self, alert: Alert, by: str, note: str, notified: Sequence[str], *, is_audited: bool) -> Alert:
        alert_id = alert.alert_id
        now_ms = self._now_ms()

        def acknowledged(alert: Alert) -> Alert | None:
            if alert.status is not AlertStatus.OPEN:
                return None
            return replace(
                alert,
                status=AlertStatus.ACKNOWLEDGED,
                acknowledged_by=by.strip(),
                acknowledged_at_ms=now_ms,
                note=note[:1024],
            )

        change = AlertAudit(actor=by.strip(), action="alert.acknowledge", entity=alert_id, reason=note)
        return self._end(alert, acknowledged, AlertAction.ACKNOWLEDGE, change if is_audited else None, notified)

    def resolve(self, alert: Alert, *, by: str) -> Alert:
        """Resolve an alert, and send that to the channels that received it. Idempotent."""
        now_ms = self._now_ms()

        def resolved(alert: Alert) -> Alert | None:
            if alert.status is AlertStatus.RESOLVED:
                return None
            return replace(alert, status=AlertStatus.RESOLVED, resolved_by=by, resolved_at_ms=now_ms)

        return self._end(alert, resolved, AlertAction.RESOLVE, None)

    def change(
        self, alert: Alert, decide: Callable[[Alert], Alert | None], also: Callable[[Alert], Sequence[Write]]
    ) -> Alert:
        """Apply `decide` to the current alert, with the writes of `also`; None from `decide` means no change.

        Raises `StoreBusyError` after too many conflicts, and `NotFoundError` if the alert was deleted.
        """
        return self._change(alert, decide, also, None)

    def order_writes(self, alert: Alert, channels: Sequence[str], action: AlertAction, now_ms: int) -> list[Write]:
        """Return the writes that order deliveries: one event per channel, for that channel's subscription."""
        writes: list[Write] = []
        for channel in channels:
            order = DeliveryOrder(
                pipeline_id=alert.pipeline_id,
                at_ms=alert.at_ms,
                alert_id=alert.alert_id,
                channel=channel,
                action=action,
            )
            name = delivery_name(channel, action)
            event = Event(
                # The version makes a repeated delivery, such as an escalation, a new event.
                id=f"{alert.alert_id}#{name}#{alert.version}",
                type=DELIVER,
                source=SOURCE,
                subject=channel,
                data=msgspec.to_builtins(order),
            )
            writes += self._bus.event_writes(event, now_ms, deliveries_max=_DELIVERIES_MAX)
        return writes

    def _end(
        self,
        alert: Alert,
        decide: Callable[[Alert], Alert | None],
        action: AlertAction,
        change: AlertAudit | None,
        unnotified: Sequence[str] = (),
    ) -> Alert:
        """Acknowledge or resolve, stop the escalation, and notify the channels that received the alert."""
        now_ms = self._now_ms()

        def channels(after: Alert) -> tuple[str, ...]:
            return tuple(each for each in _notified_channels(after) if each not in unnotified)

        def ended(current: Alert) -> Alert | None:
            after = decide(current)
            return None if after is None else with_pending(after, channels(after), action)

        def also(after: Alert) -> list[Write]:
            writes = self.order_writes(after, channels(after), action, now_ms)
            writes.append(Delete(CONTROL, escalation_key(after.alert_id)))
            if action is AlertAction.ACKNOWLEDGE:
                writes += self._bus.event_writes(_acknowledged_event(after), now_ms)
            else:
                writes += self.thread_writes(after, now_ms)
            latest = self.latest_alerts([after.dedup_key])[0] if action is AlertAction.RESOLVE else None
            if latest is not None and latest.alert_id == after.alert_id:
                writes.append(Delete(CONTROL, latest_alert_key(after.dedup_key), version_is(latest.version)))
            return writes

        after = self._change(alert, ended, also, change)
        self._bus.on_committed()
        return after

    def _change(
        self,
        alert: Alert,
        decide: Callable[[Alert], Alert | None],
        also: Callable[[Alert], Sequence[Write]],
        change: AlertAudit | None,
    ) -> Alert:
        current: Alert | None = alert
        for _ in range(RACES_MAX):
            if current is None:
                raise NotFoundError(f"alert {alert.alert_id}: it was deleted after its retention")
            decided = decide(current)
            if decided is None:
                return current
            after = replace(decided, version=current.version + 1)
            writes = [alert_put(after, kept_seconds=self.kept_seconds, replaces=current.version), *also(after)]
            try:
                if change is None:
                    self._store.transact(writes)
                else:
                    self._commit(writes, change)
            except ConflictError:
                current = self.find(alert.pipeline_id, alert.at_ms, alert.alert_id)
            else:
                return after
        raise StoreBusyError(f"alert {alert.alert_id}: {RACES_MAX} conflicts with other writers; try again")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _acknowledged_event(alert: Alert) -> Event:
    data = AlertAcknowledged(
        alert_id=alert.alert_id, by=alert.acknowledged_by, note=alert.note, incident_id=alert.incident_id
    )
    return Event(
        id=f"{alert.alert_id}#acknowledged",
        type=ACKNOWLEDGED,
        source=SOURCE,
        subject=alert.alert_id,
        data=msgspec.to_builtins(data),
    )


def with_pending(alert: Alert, channels: Sequence[str], action: AlertAction) -> Alert:
    """Return the alert with pending deliveries of an action."""
    more = {delivery_name(channel, action): Delivery() for channel in channels}
    return replace(alert, deliveries={**alert.deliveries, **more})


def _notified_channels(alert: Alert) -> tuple[str, ...]:
    """Return the channels that received or will receive the alert."""
    suffix = f"#{AlertAction.TRIGGER}"
    return tuple(sorted(name.removesuffix(suffix) for name in alert.deliveries if name.endswith(suffix)))
