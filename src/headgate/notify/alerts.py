"""Alerts: what was told or is to be, found, acknowledged and resolved. Every change is a compare-and-swap."""

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
    Alert,
    Delivery,
    Twin,
    alert_key,
    alert_of,
    alert_put,
    delivery_name,
    escalation_key,
    twin_key,
    twin_of,
)
from headgate.notify.enums import Action, AlertStatus
from headgate.notify.mutes import Change, Commit
from headgate.store.catalogue.tables import CONTROL, PIPELINES
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Delete, Query, Range, Sort, Write
from headgate.store.port import Store

DELIVER: Final = "headgate.alert.deliver"
SOURCE: Final = "/headgate/notify"
RACES_MAX: Final = 20
# Besides the channel's own subscription, who listens to everything.
_DELIVERIES_MAX: Final = 2


class AlertPage(Struct, frozen=True):
    """Some alerts, the latest first."""

    alerts: list[Alert]
    cursor: str | None = None


class DeliveryOrder(Struct, frozen=True, kw_only=True):
    """What one channel is asked to tell of one alert."""

    pipeline_id: str
    at_ms: int
    alert_id: str
    channel: str
    action: Action


def new_alert_id(ulid: str) -> str:
    return f"{PREFIX}_{ulid}"


class Alerts:
    """The alerts of one store. Safe to use from many processes. `commit` audits what people change."""

    def __init__(self, store: Store, clock: Clock, bus: Bus, commit: Commit) -> None:
        self._store = store
        self._clock = clock
        self._bus = bus
        self._commit = commit

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
        """Return an alert as it stands, or None."""
        item = self._store.get(PIPELINES, alert_key(pipeline_id, at_ms, alert_id), consistent=True)
        return None if item is None else alert_of(item)

    def ls(
        self, pipeline_id: str | None = None, *, since_ms: int = 0, limit: int = 100, cursor: str | None = None
    ) -> AlertPage:
        """Return alerts of a pipeline, or of all, the latest first."""
        if pipeline_id is None:
            sort = Sort(Range.AT_LEAST, f"{since_ms:013d}")
            query = Query(table=PIPELINES, index="GSI1", partition="ALERTS", sort=sort, limit=limit)
        else:
            sort = Sort(Range.BETWEEN, f"ALERT#{since_ms:013d}", "ALERT#~")
            query = Query(table=PIPELINES, partition=f"PIPELINE#{pipeline_id}", sort=sort, limit=limit)
        page = self._store.query(replace(query, cursor=cursor, descending=True))
        return AlertPage([alert_of(item) for item in page.items], page.cursor)

    def twins(self, dedup_keys: Sequence[str]) -> list[Twin | None]:
        """Return the latest alert of each of these troubles, None where there is none."""
        if not dedup_keys:
            return []
        items = self._store.get_many(CONTROL, [twin_key(key) for key in dedup_keys], consistent=True)
        return [None if item is None else twin_of(item) for item in items]

    # Changing.

    def acknowledge(self, alert_id: str, *, by: str, note: str = "") -> Alert:
        """Say that someone is at it: nobody else is told, and channels that know of such things are.

        Returns the alert as it stands; one that is acknowledged or over already stays as it is. Raises `NotFoundError`.
        """
        if not by.strip():
            raise InvalidPayloadError(f"alert {alert_id}: say who acknowledges it")
        alert = self.get(alert_id)
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

        change = Change(actor=by.strip(), action="alert.acknowledge", entity=alert_id, reason=note)
        return self._end(alert, acknowledged, Action.ACKNOWLEDGE, change)

    def resolve(self, alert: Alert, *, by: str) -> Alert:
        """Say that it is over, by whom or what, and tell whoever was told of it. It is resolved once."""
        now_ms = self._now_ms()

        def resolved(alert: Alert) -> Alert | None:
            if alert.status is AlertStatus.RESOLVED:
                return None
            return replace(alert, status=AlertStatus.RESOLVED, resolved_by=by, resolved_at_ms=now_ms)

        return self._end(alert, resolved, Action.RESOLVE, None)

    def change(
        self, alert: Alert, decide: Callable[[Alert], Alert | None], also: Callable[[Alert], Sequence[Write]]
    ) -> Alert:
        """Apply what `decide` makes of the alert as it stands, None for nothing, with the writes of `also`.

        Raises `StoreBusyError` if others were faster again and again, and `NotFoundError` if it is gone.
        """
        return self._change(alert, decide, also, None)

    def order_writes(self, alert: Alert, channels: Sequence[str], action: Action, now_ms: int) -> list[Write]:
        """Return the writes that have channels told: an event for each, which goes to the channel's subscription."""
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
                # A channel that is told again, by an escalation, is told under another id.
                id=f"{alert.alert_id}#{name}#{alert.version}",
                type=DELIVER,
                source=SOURCE,
                subject=channel,
                data=msgspec.to_builtins(order),
            )
            writes += self._bus.event_writes(event, now_ms, deliveries_max=_DELIVERIES_MAX)
        return writes

    def _end(
        self, alert: Alert, decide: Callable[[Alert], Alert | None], action: Action, change: Change | None
    ) -> Alert:
        """Acknowledge or resolve, stop the escalation, and tell the channels that were told."""
        now_ms = self._now_ms()

        def ended(current: Alert) -> Alert | None:
            after = decide(current)
            return None if after is None else ordered(after, _listeners(after), action)

        def also(after: Alert) -> list[Write]:
            writes = self.order_writes(after, _listeners(after), action, now_ms)
            writes.append(Delete(CONTROL, escalation_key(after.alert_id)))
            twin = self.twins([after.dedup_key])[0] if action is Action.RESOLVE else None
            if twin is not None and twin.alert_id == after.alert_id:
                writes.append(Delete(CONTROL, twin_key(after.dedup_key), version_is(twin.version)))
            return writes

        after = self._change(alert, ended, also, change)
        self._bus.on_committed()
        return after

    def _change(
        self,
        alert: Alert,
        decide: Callable[[Alert], Alert | None],
        also: Callable[[Alert], Sequence[Write]],
        change: Change | None,
    ) -> Alert:
        current: Alert | None = alert
        for _ in range(RACES_MAX):
            if current is None:
                raise NotFoundError(f"alert {alert.alert_id}: it is gone; alerts are kept for 90 days")
            decided = decide(current)
            if decided is None:
                return current
            after = replace(decided, version=current.version + 1)
            writes = [alert_put(after, replaces=current.version), *also(after)]
            try:
                if change is None:
                    self._store.transact(writes)
                else:
                    self._commit(writes, change)
            except ConflictError:
                current = self.find(alert.pipeline_id, alert.at_ms, alert.alert_id)
            else:
                return after
        raise StoreBusyError(f"alert {alert.alert_id}: others were faster {RACES_MAX} times; try again")

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def ordered(alert: Alert, channels: Sequence[str], action: Action) -> Alert:
    """Return the alert with deliveries that are still to be made."""
    more = {delivery_name(channel, action): Delivery() for channel in channels}
    return replace(alert, deliveries={**alert.deliveries, **more})


def _listeners(alert: Alert) -> tuple[str, ...]:
    """Return the channels that were told, or are being, and so are to hear how it goes on."""
    suffix = f"#{Action.TRIGGER}"
    return tuple(sorted(name.removesuffix(suffix) for name in alert.deliveries if name.endswith(suffix)))
