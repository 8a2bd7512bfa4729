"""Notifier: turns notices from the bus into alerts and delivery orders.

The decision, the orders to the channels and the mark of the processed event are one transaction, so that an event
delivered twice is sent once.
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
    AlertGroup,
    Escalation,
    LatestAlert,
    alert_put,
    escalation_key,
    escalation_of,
    escalation_put,
    group_key,
    group_of,
    group_put,
    latest_alert_put,
    seen_put,
)
from headgate.notify.alerts import RACES_MAX, Alerts, new_alert_id, with_pending
from headgate.notify.configuration import NotifyConfig
from headgate.notify.decisions import (
    EscalationResult,
    NoticeOutcome,
    escalate,
    first_escalation,
    group_name,
    outcome_of,
    with_notice,
)
from headgate.notify.enums import AlertAction, AlertStatus, Severity
from headgate.notify.messages import digest_lines, digest_text
from headgate.notify.mutes import Mutes, muted_by
from headgate.notify.notices import NO_AUDIENCE, Audience, Notice, audience_for, notice_of
from headgate.notify.routes import channels_for
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Delete, Poll, Put, Query, Range, Sort, Write
from headgate.store.port import Store

_DUE_MAX: Final = 100
_log = structlog.get_logger("headgate.notify")


class _NoticeContext(Struct, frozen=True):
    """The state that a decision on a notice is based on."""

    audience: Audience
    channels: tuple[str, ...]
    muted_by: str
    latest: LatestAlert | None
    # The latest alert itself, while it may be counted up.
    alert: Alert | None
    group: AlertGroup | None


class Notifier:
    """Decides which channels receive which notices. Safe to use from many processes."""

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
        audience_of: Callable[[str], Audience] = lambda _pipeline_id: NO_AUDIENCE,
        ended_by: Callable[[Notice], str] = lambda _notice: "",
    ) -> None:
        """`ended_by` names the event that has already resolved a notice's problem, or returns an empty string."""
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
        """Handle a bus event. Raises `InvalidPayloadError` for one that is not a notice."""
        self.take(notice_of(event))

    def take(self, notice: Notice) -> NoticeOutcome:
        """Decide on a notice and store the result. Idempotent.

        Raises `StoreBusyError` after too many conflicts.
        """
        for latest in self._alerts.latest_alerts(notice.resolves):
            if latest is not None:
                self._resolve(latest, notice, notice.event)
        decided = self._decide(notice)
        # After the alert was stored, also by a process that died then: its resolution may have come first.
        if ended_by := self._ended_by(notice):
            for latest in self._alerts.latest_alerts([notice.dedup_key]):
                if latest is not None:
                    self._resolve(latest, notice, ended_by)
        return decided

    def _decide(self, notice: Notice) -> NoticeOutcome:
        for _ in range(RACES_MAX):
            now_ms = self._now_ms()
            context = self._context(notice, now_ms)
            decided = outcome_of(
                context.channels,
                context.muted_by,
                context.latest if context.alert is not None else None,
                context.group,
                self._policy,
                now_ms,
            )
            if decided is NoticeOutcome.PASS:
                return decided
            writes = [seen_put(notice.event_id, now_ms), *self._writes(decided, notice, context, now_ms)]
            try:
                self._store.transact(writes)
            except ConflictError as exc:
                if exc.failures.get(0) is not None:
                    return NoticeOutcome.PASS
                continue
            self._bus.on_committed()
            return decided
        raise StoreBusyError(f"notice {notice.event_id}: {RACES_MAX} conflicts with other writers; try again")

    def tick(self) -> int:
        """Send due digests and escalations, and return their number.

        A failure does not stop the others; failures are raised as one `TransientError` at the end.
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
                _log.error("alert_not_sent", due=item["PK"], error=str(exc))
                failures.append(f"{item['PK']}: {exc}")
        self._bus.on_committed()
        if failures:
            raise TransientError(f"{len(failures)} of {len(work)} due alerts were not sent: {'; '.join(failures)}")
        return done

    # Deciding.

    def _context(self, notice: Notice, now_ms: int) -> _NoticeContext:
        audience = audience_for(notice, self._audience_of(notice.pipeline_id))
        channels = channels_for(notice, audience, self._config.routes, self._defaults, list(self._config.channels))
        if not channels:
            return _NoticeContext(audience, (), "", None, None, None)
        latest = self._alerts.latest_alerts([notice.dedup_key])[0]
        alert = (
            None
            if latest is None
            else self._alerts.find(latest.pipeline_id, made_at_ms(latest.alert_id), latest.alert_id)
        )
        if alert is not None and alert.status is AlertStatus.RESOLVED and alert.severity is not Severity.INFO:
            alert = None
        item = self._store.get(CONTROL, group_key(group_name(notice, channels)), consistent=True)
        group = None if item is None else group_of(item)
        muting = muted_by(notice, audience, self._mutes.recent(), now_ms)
        return _NoticeContext(audience, channels, muting, latest, alert, group)

    def _writes(self, decided: NoticeOutcome, notice: Notice, context: _NoticeContext, now_ms: int) -> list[Write]:
        if decided is NoticeOutcome.COUNT:
            assert context.alert is not None, "only an alert that was sent is counted up"
            before = context.alert
            counted = replace(before, count=before.count + 1, last_at_ms=notice.at_ms, version=before.version + 1)
            return [self._alert_put(counted, replaces=before.version)]
        alert = self._new(notice, context, decided)
        if decided is NoticeOutcome.MUTE:
            return [self._alert_put(alert)]
        is_held = decided is NoticeOutcome.HOLD
        group = with_notice(context.group, notice, context.channels, self._policy, now_ms, is_held=is_held)
        before_latest = 0 if context.latest is None else context.latest.version
        latest = LatestAlert(
            dedup_key=notice.dedup_key,
            alert_id=alert.alert_id,
            pipeline_id=alert.pipeline_id,
            until_ms=now_ms + round(self._policy.dedup_seconds * 1000),
            version=before_latest + 1,
        )
        before_group = 0 if context.group is None else context.group.version
        kept: list[Write] = [
            latest_alert_put(latest, now_ms, kept_seconds=self._alerts.kept_seconds, replaces=before_latest),
            group_put(group, replaces=before_group),
        ]
        if is_held:
            return [self._alert_put(alert), *kept]
        return [*self._sending(alert, context.channels, now_ms), *kept]

    def _alert_put(self, alert: Alert, *, replaces: int = 0) -> Put:
        return alert_put(alert, kept_seconds=self._alerts.kept_seconds, replaces=replaces)

    def _new(self, notice: Notice, context: _NoticeContext, decided: NoticeOutcome) -> Alert:
        ulid = self._ids.ulid()
        return Alert(
            alert_id=new_alert_id(ulid),
            pipeline_id=notice.pipeline_id,
            event=notice.event,
            event_id=notice.event_id,
            severity=notice.severity,
            text=notice.text,
            dedup_key=notice.dedup_key,
            # The time of the id, so that the row can be found by id.
            at_ms=made_at_ms(ulid),
            last_at_ms=notice.at_ms,
            status=_status(notice, decided),
            schedule_id=notice.schedule_id,
            date=notice.date,
            run_id=notice.run_id,
            message=notice.message,
            hint=notice.hint,
            owner=context.audience.owner,
            labels=context.audience.labels,
            detail=notice.detail,
            channels=context.channels,
            group=group_name(notice, context.channels) if decided is NoticeOutcome.HOLD else "",
            muted_by=context.muted_by,
            thread=notice.thread_key,
            incident_id=notice.incident_id,
            dataset_urn=notice.dataset_urn,
            tier=context.audience.tier,
            team=context.audience.team,
        )

    def _sending(self, alert: Alert, channels: Sequence[str], now_ms: int) -> list[Write]:
        """Return the writes of a new alert, its orders to these channels, and its escalation."""
        writes: list[Write] = [self._alert_put(with_pending(alert, channels, AlertAction.TRIGGER))]
        escalation = first_escalation(alert, self._policy)
        if escalation is not None:
            writes.append(escalation_put(escalation))
        if alert.status is AlertStatus.OPEN:
            writes += self._alerts.thread_writes(alert, now_ms)
        return [*writes, *self._alerts.order_writes(alert, channels, AlertAction.TRIGGER, now_ms)]

    def _resolve(self, latest: LatestAlert, notice: Notice, by: str) -> None:
        alert = self._alerts.find(latest.pipeline_id, made_at_ms(latest.alert_id), latest.alert_id)
        # An event after the resolving one is not resolved by it.
        if alert is not None and alert.last_at_ms <= notice.at_ms:
            self._alerts.resolve(alert, by=by)

    # Due work.

    def _due(self, partition: str) -> list[dict[str, Any]]:
        due = Sort(Range.AT_MOST, self._now_ms())
        query = Query(
            table=CONTROL, index="due-index", partition=partition, sort=due, limit=_DUE_MAX, poll=Poll.RELAXED
        )
        return self._store.query(query).items

    def _close(self, group: AlertGroup) -> bool:
        """Send the digest of a group, once. Returns whether this process did."""
        now_ms = self._now_ms()
        ulid = self._ids.ulid()
        digest = Alert(
            alert_id=new_alert_id(ulid),
            pipeline_id=group.pipeline_id,
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
            # Another process was faster, or the group has grown and is still listed.
            return False
        return True

    def _escalate(self, due: Escalation) -> bool:
        """Take the due steps of an escalation. Returns whether a channel is notified."""
        now_ms = self._now_ms()
        alert = self._alerts.find(due.pipeline_id, due.at_ms, due.alert_id)
        follows = EscalationResult() if alert is None else escalate(alert, due, self._policy, now_ms)
        if follows.next is not None:
            row: Write = escalation_put(follows.next, replaces=due.version)
        else:
            row = Delete(CONTROL, escalation_key(due.alert_id), version_is(due.version))
        writes = [row]
        if alert is not None and follows.channels:
            after = replace(alert, escalated=alert.escalated + 1, version=alert.version + 1)
            after = with_pending(after, follows.channels, AlertAction.TRIGGER)
            writes.append(self._alert_put(after, replaces=alert.version))
            writes += self._alerts.order_writes(after, follows.channels, AlertAction.TRIGGER, now_ms)
        try:
            self._store.transact(writes)
        except ConflictError:
            # Acknowledged or escalated concurrently: what is still due is found again.
            return False
        return bool(follows.channels)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _status(notice: Notice, decided: NoticeOutcome) -> AlertStatus:
    if decided is NoticeOutcome.MUTE:
        return AlertStatus.MUTED
    # An INFO notice is sent and resolved at once: it needs no action.
    return AlertStatus.RESOLVED if notice.severity is Severity.INFO else AlertStatus.OPEN
