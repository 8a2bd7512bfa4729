"""Decisions on alerts: sent, counted, held, muted or passed over; escalated or let be. Pure; the time is passed in."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.notify.alert_rows import NAMED_MAX, Alert, Escalation, Group, Twin
from headgate.notify.enums import AlertStatus, Severity
from headgate.notify.notices import Notice

DEDUP_SECONDS: Final = 3_600.0
GROUP_AFTER: Final = 5
GROUP_SECONDS: Final = 300.0


class EscalationStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is told next if nobody has acknowledged, so long after the alert."""

    after_seconds: float
    channels: tuple[str, ...]


class AlertPolicy(Struct, frozen=True, kw_only=True):
    """How often people are told.

    The same trouble again within `dedup_seconds` of being told counts up. Once `group_after` alerts of one kind went to
    the same channels within `group_seconds`, the rest of that window is told in one message at its end; 0 never groups.
    """

    dedup_seconds: float = DEDUP_SECONDS
    group_after: int = GROUP_AFTER
    group_seconds: float = GROUP_SECONDS
    escalation: tuple[EscalationStep, ...] = ()
    escalates_from: Severity = Severity.CRITICAL


class Fate(enum.StrEnum):
    """What becomes of a notice."""

    # Nobody asked to be told.
    PASS = "pass"
    MUTE = "mute"
    COUNT = "count"
    HOLD = "hold"
    SEND = "send"


def fate(
    channels: Sequence[str], muted_by: str, twin: Twin | None, group: Group | None, policy: AlertPolicy, now_ms: int
) -> Fate:
    """Return what becomes of a notice that would go to these channels."""
    if not channels:
        return Fate.PASS
    if muted_by:
        return Fate.MUTE
    if twin is not None and now_ms < twin.until_ms:
        return Fate.COUNT
    if policy.group_after and group is not None and now_ms < group.closes_at_ms and group.count >= policy.group_after:
        return Fate.HOLD
    return Fate.SEND


def group_name(notice: Notice, channels: Sequence[str]) -> str:
    """Return what a notice is grouped by: its kind, how bad it is, and who is told."""
    return f"{notice.event}|{notice.severity}|{','.join(sorted(channels))}"


def joined(
    group: Group | None, notice: Notice, channels: Sequence[str], policy: AlertPolicy, now_ms: int, *, is_held: bool
) -> Group:
    """Return the group with one more in it; a new one if the window of the last is over."""
    if group is None or (now_ms >= group.closes_at_ms and not group.held_count):
        group = Group(
            group_key=group_name(notice, channels),
            event=notice.event,
            severity=notice.severity,
            channels=tuple(channels),
            opened_at_ms=now_ms,
            closes_at_ms=now_ms + round(policy.group_seconds * 1000),
            version=0 if group is None else group.version,
        )
    held = group.held
    if is_held and len(held) < NAMED_MAX:
        held = (*held, " ".join(filter(None, (notice.pipeline_id, notice.schedule_id, notice.date))))
    return replace(
        group,
        count=group.count + 1,
        held_count=group.held_count + is_held,
        held=held,
        version=group.version + 1,
    )


def first_escalation(alert: Alert, policy: AlertPolicy) -> Escalation | None:
    """Return when a new alert is told to others, or None if it never is."""
    if not policy.escalation or alert.severity.rank < policy.escalates_from.rank:
        return None
    return Escalation(
        alert_id=alert.alert_id,
        pipeline_id=alert.pipeline_id,
        at_ms=alert.at_ms,
        step=0,
        due_at_ms=_due_ms(alert, policy, 0),
    )


class Escalated(Struct, frozen=True):
    """What follows a step that is due: these channels are told, and that is due next."""

    channels: tuple[str, ...] = ()
    next: Escalation | None = None


def escalate(alert: Alert, due: Escalation, policy: AlertPolicy, now_ms: int) -> Escalated:
    """Return what follows an escalation that is in the list. Someone who has acknowledged ends it.

    A step that is not due yet stays as it is. Steps that passed while nobody looked are taken together, so that an
    alert which is an hour old reaches the last in line at once.
    """
    if alert.status is not AlertStatus.OPEN:
        return Escalated()
    channels: list[str] = []
    step = due.step
    while step < len(policy.escalation) and _due_ms(alert, policy, step) <= now_ms:
        channels += policy.escalation[step].channels
        step += 1
    if step >= len(policy.escalation):
        return Escalated(tuple(dict.fromkeys(channels)))
    following = replace(due, step=step, due_at_ms=_due_ms(alert, policy, step), version=due.version + 1)
    return Escalated(tuple(dict.fromkeys(channels)), following)


def _due_ms(alert: Alert, policy: AlertPolicy, step: int) -> int:
    return alert.at_ms + round(policy.escalation[step].after_seconds * 1000)
