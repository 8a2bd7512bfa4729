"""The notifier: takes notices from the bus, decides what becomes of each, and has the channels told.

What is decided is written in one transaction with the orders to the channels, and with a mark that the event was taken,
so that one which is delivered twice is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event
from headgate.errors import ConflictError, HeadgateError, StoreBusyError, TransientError
from headgate.ids import IdMaker, made_at_ms
from headgate.notify.alert_rows import (
    ESCALATIONS_DUE,
    GROUPS_DUE,
    Alert,
    Escalation,
    Group,
    Twin,
    alert_put,
    escalation_key,
    escalation_of,
    escalation_put,
    group_key,
    group_of,
    group_put,
    seen_put,
    twin_put,
)
from headgate.notify.alerts import RACES_MAX, Alerts, new_alert_id, ordered
from headgate.notify.configuration import NotifyConfig
from headgate.notify.decisions import Escalated, Fate, escalate, fate, first_escalation, group_name, joined
from headgate.notify.enums import INFRASTRUCTURE, Action, AlertStatus, Severity
from headgate.notify.messages import digest_lines, digest_text
from headgate.notify.mutes import Mutes, muted_by
from headgate.notify.notices import NOBODY, Audience, Notice, notice_of
from headgate.notify.routes import channels_for
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Delete, Query, Range, Sort, Write
from headgate.store.port import Store

_DUE_MAX: Final = 100
_log = structlog.get_logger("headgate.notify")


class _Standing(Struct, frozen=True):
    """What is known when a notice is decided on."""

    audience: Audience
    channels: tuple[str, ...]
    muted_by: str
    twin: Twin | None
    # The alert of the twin, if it is still to be counted on.
    alert: Alert | None
    group: Group | None


class Notifier:
    """Decides who is told of what. Safe to use from many processes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        bus: Bus,
        config: NotifyConfig,
        alerts: Alerts,
        mutes: Mutes,
        *,
        audience_of: Callable[[str], Audience] = lambda _pipeline_id: NOBODY,
        ended_by: Callable[[Notice], str] = lambda _notice: "",
    ) -> None:
        """Take `ended_by`, which names what has put an end to a trouble by now, or nothing."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._bus = bus
        self._config = config
        self._policy = config.policy
        self._defaults = config.default_channels()
        self._alerts = alerts
        self._mutes = mutes
        self._audience_of = audience_of
        self._ended_by = ended_by

    def handle(self, event: Event) -> None:
        """Take an event of the bus. Raises `InvalidPayloadError` for one that is no notice."""
        self.take(notice_of(event))

    def take(self, notice: Notice) -> Fate:
        """Decide on a notice, and write down what becomes of it. The same notice again changes nothing.

        Raises `StoreBusyError` if others were faster again and again.
        """
        for twin in self._alerts.twins(notice.resolves):
            if twin is not None:
                self._resolve(twin, notice, notice.event)
        decided = self._decide(notice)
        # After it was told, also by someone who died then: its end may have been told before it, and is not again.
        if ended_by := self._ended_by(notice):
            for twin in self._alerts.twins([notice.dedup_key]):
                if twin is not None:
                    self._resolve(twin, notice, ended_by)
        return decided

    def _decide(self, notice: Notice) -> Fate:
        for _ in range(RACES_MAX):
            now_ms = self._now_ms()
            standing = self._standing(notice, now_ms)
            decided = fate(
                standing.channels,
                standing.muted_by,
                standing.twin if standing.alert is not None else None,
                standing.group,
                self._policy,
                now_ms,
            )
            if decided is Fate.PASS:
                return decided
            writes = [seen_put(notice.event_id, now_ms), *self._writes(decided, notice, standing, now_ms)]
            try:
                self._store.transact(writes)
            except ConflictError as exc:
                if exc.failures.get(0) is not None:
                    return Fate.PASS
                continue
            self._bus.on_committed()
            return decided
        raise StoreBusyError(f"notice {notice.event_id}: others were faster {RACES_MAX} times; try again")

    def tick(self) -> int:
        """Tell what is due: groups whose window is over, and alerts that nobody has acknowledged. Returns how many.

        One that fails does not keep the others: what went wrong is raised as `TransientError` when all were tried.
        """
        work: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
            *((item, lambda item: self._close(group_of(item))) for item in self._due(GROUPS_DUE)),
            *((item, lambda item: self._escalate(escalation_of(item))) for item in self._due(ESCALATIONS_DUE)),
        ]
        done = 0
        failures: list[str] = []
        for item, act in work:
            try:
                done += act(item)
            except HeadgateError as exc:
                _log.error("alert_not_told", due=item["PK"], error=str(exc))
                failures.append(f"{item['PK']}: {exc}")
        self._bus.on_committed()
        if failures:
            raise TransientError(f"{len(failures)} of {len(work)} that are due were not told: {'; '.join(failures)}")
        return done

    # Deciding on one notice.

    def _standing(self, notice: Notice, now_ms: int) -> _Standing:
        audience = self._audience_of(notice.pipeline_id)
        channels = channels_for(notice, audience, self._config.routes, self._defaults, list(self._config.channels))
        if not channels:
            return _Standing(audience, (), "", None, None, None)
        twin = self._alerts.twins([notice.dedup_key])[0]
        alert = None if twin is None else self._alerts.find(twin.pipeline_id, made_at_ms(twin.alert_id), twin.alert_id)
        if alert is not None and alert.status is AlertStatus.RESOLVED and alert.severity is not Severity.INFO:
            alert = None
        item = self._store.get(CONTROL, group_key(group_name(notice, channels)), consistent=True)
        group = None if item is None else group_of(item)
        silenced = muted_by(notice, audience, self._mutes.recent(), now_ms)
        return _Standing(audience, channels, silenced, twin, alert, group)

    def _writes(self, decided: Fate, notice: Notice, standing: _Standing, now_ms: int) -> list[Write]:
        if decided is Fate.COUNT:
            assert standing.alert is not None, "only what was told before is counted"
            before = standing.alert
            counted = replace(before, count=before.count + 1, last_at_ms=notice.at_ms, version=before.version + 1)
            return [alert_put(counted, replaces=before.version)]
        alert = self._new(notice, standing, decided)
        if decided is Fate.MUTE:
            return [alert_put(alert)]
        is_held = decided is Fate.HOLD
        group = joined(standing.group, notice, standing.channels, self._policy, now_ms, is_held=is_held)
        before_twin = 0 if standing.twin is None else standing.twin.version
        twin = Twin(
            dedup_key=notice.dedup_key,
            alert_id=alert.alert_id,
            pipeline_id=alert.pipeline_id,
            until_ms=now_ms + round(self._policy.dedup_seconds * 1000),
            version=before_twin + 1,
        )
        before_group = 0 if standing.group is None else standing.group.version
        kept: list[Write] = [twin_put(twin, now_ms, replaces=before_twin), group_put(group, replaces=before_group)]
        if is_held:
            return [alert_put(alert), *kept]
        return [*self._sending(alert, standing.channels, now_ms), *kept]

    def _new(self, notice: Notice, standing: _Standing, decided: Fate) -> Alert:
        ulid = self._ids.ulid()
        return Alert(
            alert_id=new_alert_id(ulid),
            pipeline_id=notice.pipeline_id,
            event=notice.event,
            event_id=notice.event_id,
            severity=notice.severity,
            text=notice.text,
            dedup_key=notice.dedup_key,
            # That of the id, so that the row can be found by it.
            at_ms=made_at_ms(ulid),
            last_at_ms=notice.at_ms,
            status=_status(notice, decided),
            schedule_id=notice.schedule_id,
            date=notice.date,
            run_id=notice.run_id,
            message=notice.message,
            hint=notice.hint,
            owner=standing.audience.owner,
            labels=standing.audience.labels,
            detail=notice.detail,
            channels=standing.channels,
            group=group_name(notice, standing.channels) if decided is Fate.HOLD else "",
            muted_by=standing.muted_by,
        )

    def _sending(self, alert: Alert, channels: Sequence[str], now_ms: int) -> list[Write]:
        """Return the writes of a new alert that these channels are told, and of when others are."""
        writes: list[Write] = [alert_put(ordered(alert, channels, Action.TRIGGER))]
        escalation = first_escalation(alert, self._policy)
        if escalation is not None:
            writes.append(escalation_put(escalation))
        return [*writes, *self._alerts.order_writes(alert, channels, Action.TRIGGER, now_ms)]

    def _resolve(self, twin: Twin, notice: Notice, by: str) -> None:
        alert = self._alerts.find(twin.pipeline_id, made_at_ms(twin.alert_id), twin.alert_id)
        # What came later than the good news is not over by it.
        if alert is not None and alert.last_at_ms <= notice.at_ms:
            self._alerts.resolve(alert, by=by)

    # What is due.

    def _due(self, partition: str) -> list[dict[str, Any]]:
        due = Sort(Range.AT_MOST, self._now_ms())
        query = Query(table=CONTROL, index="due-index", partition=partition, sort=due, limit=_DUE_MAX)
        return self._store.query(query).items

    def _close(self, group: Group) -> bool:
        """Tell what a group held back, once. Returns whether it was this process that did."""
        now_ms = self._now_ms()
        ulid = self._ids.ulid()
        digest = Alert(
            alert_id=new_alert_id(ulid),
            pipeline_id=INFRASTRUCTURE,
            event=group.event,
            event_id=f"{group.group_key}#{group.opened_at_ms}",
            severity=group.severity,
            text=digest_text(group),
            dedup_key=f"GROUP#{group.group_key}#{group.opened_at_ms}",
            at_ms=made_at_ms(ulid),
            last_at_ms=now_ms,
            message=digest_lines(group),
            channels=group.channels,
            held_count=group.held_count,
        )
        gone = Delete(CONTROL, group_key(group.group_key), version_is(group.version))
        try:
            self._store.transact([gone, *self._sending(digest, group.channels, now_ms)])
        except ConflictError:
            # Another process was faster, or the group has grown: then it is still in the list.
            return False
        return True

    def _escalate(self, due: Escalation) -> bool:
        """Take the steps of an escalation that are due. Returns whether anyone is told."""
        now_ms = self._now_ms()
        alert = self._alerts.find(due.pipeline_id, due.at_ms, due.alert_id)
        follows = Escalated() if alert is None else escalate(alert, due, self._policy, now_ms)
        if follows.next is not None:
            row: Write = escalation_put(follows.next, replaces=due.version)
        else:
            row = Delete(CONTROL, escalation_key(due.alert_id), version_is(due.version))
        writes = [row]
        if alert is not None and follows.channels:
            told = replace(alert, escalated=alert.escalated + 1, version=alert.version + 1)
            told = ordered(told, follows.channels, Action.TRIGGER)
            writes.append(alert_put(told, replaces=alert.version))
            writes += self._alerts.order_writes(told, follows.channels, Action.TRIGGER, now_ms)
        try:
            self._store.transact(writes)
        except ConflictError:
            # Acknowledged or told in this moment: whatever is still due is found again.
            return False
        return bool(follows.channels)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _status(notice: Notice, decided: Fate) -> AlertStatus:
    if decided is Fate.MUTE:
        return AlertStatus.MUTED
    # Good news is sent and is then over: nobody has to see to it.
    return AlertStatus.RESOLVED if notice.severity is Severity.INFO else AlertStatus.OPEN
