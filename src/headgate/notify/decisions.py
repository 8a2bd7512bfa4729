"""Alert decisions: whether a notice is sent, counted, held, muted or ignored, and escalation steps. Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.notify.alert_rows import NAMED_MAX, Alert, AlertGroup, Escalation, LatestAlert
from headgate.notify.enums import INFRASTRUCTURE, AlertStatus, Severity
from headgate.notify.notices import Notice
from headgate.settings import about

DEDUP_SECONDS: Final = 3_600.0
GROUP_AFTER: Final = 5
GROUP_SECONDS: Final = 300.0


class EscalationStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The channels to notify if an alert is unacknowledged for this long."""

    after_seconds: Annotated[float, about("Time since the alert.")]
    channels: Annotated[tuple[str, ...], about("Channels that receive it then.")]


class AlertPolicy(Struct, frozen=True, kw_only=True):
    """Deduplication, grouping and escalation of alerts.

    A repeated event within `dedup_seconds` is only counted. After `group_after` alerts of one kind for the same
    channels within `group_seconds`, the rest of that window is sent as one digest at its end; 0 disables grouping.
    Critical alerts are grouped by pipeline or dataset only.
    """

    dedup_seconds: float = DEDUP_SECONDS
    group_after: int = GROUP_AFTER
    group_seconds: float = GROUP_SECONDS
    escalation: tuple[EscalationStep, ...] = ()
    escalates_from: Severity = Severity.CRITICAL


class NoticeOutcome(enum.StrEnum):
    """The decision on a notice."""

    # No channel is subscribed to it.
    PASS = "pass"
    MUTE = "mute"
    COUNT = "count"
    HOLD = "hold"
    SEND = "send"


def outcome_of(
    channels: Sequence[str],
    muted_by: str,
    latest: LatestAlert | None,
    group: AlertGroup | None,
    policy: AlertPolicy,
    now_ms: int,
) -> NoticeOutcome:
    """Return the decision on a notice for these channels."""
    if not channels:
        return NoticeOutcome.PASS
    if muted_by:
        return NoticeOutcome.MUTE
    if latest is not None and now_ms < latest.until_ms:
        return NoticeOutcome.COUNT
    if policy.group_after and group is not None and now_ms < group.closes_at_ms and group.count >= policy.group_after:
        return NoticeOutcome.HOLD
    return NoticeOutcome.SEND


def group_name(notice: Notice, channels: Sequence[str]) -> str:
    """Return the group of a notice: event, severity and channels; of a critical one, its subject too.

    So the first critical alert of a kind about a pipeline or dataset is sent at once, whatever else fails.
    """
    subject = f"|{notice.dataset_urn or notice.pipeline_id}" if notice.severity is Severity.CRITICAL else ""
    return f"{notice.event}|{notice.severity}|{','.join(sorted(channels))}{subject}"


def with_notice(
    group: AlertGroup | None,
    notice: Notice,
    channels: Sequence[str],
    policy: AlertPolicy,
    now_ms: int,
    *,
    is_held: bool,
) -> AlertGroup:
    """Return the group with one more notice; a new group if the window has ended."""
    if group is None or (now_ms >= group.closes_at_ms and not group.held_count):
        group = AlertGroup(
            group_key=group_name(notice, channels),
            event=notice.event,
            severity=notice.severity,
            channels=tuple(channels),
            pipeline_id=notice.pipeline_id,
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
        # A digest about several pipelines is about none of them.
        pipeline_id=group.pipeline_id if group.pipeline_id == notice.pipeline_id else INFRASTRUCTURE,
        version=group.version + 1,
    )


def first_escalation(alert: Alert, policy: AlertPolicy) -> Escalation | None:
    """Return the first escalation of a new alert, or None."""
    if not policy.escalation or alert.severity.rank < policy.escalates_from.rank:
        return None
    return Escalation(
        alert_id=alert.alert_id,
        pipeline_id=alert.pipeline_id,
        at_ms=alert.at_ms,
        step=0,
        due_at_ms=_due_ms(alert, policy, 0),
    )


class EscalationResult(Struct, frozen=True):
    """The channels to notify now, and the next escalation."""

    channels: tuple[str, ...] = ()
    next: Escalation | None = None


def escalate(alert: Alert, due: Escalation, policy: AlertPolicy, now_ms: int) -> EscalationResult:
    """Return the result of a due escalation. An acknowledged alert ends it.

    A step that is not due is unchanged. Steps missed during a downtime are taken together, so that an old alert reaches
    the last step at once.
    """
    if alert.status is not AlertStatus.OPEN:
        return EscalationResult()
    channels: list[str] = []
    step = due.step
    while step < len(policy.escalation) and _due_ms(alert, policy, step) <= now_ms:
        channels += policy.escalation[step].channels
        step += 1
    if step >= len(policy.escalation):
        return EscalationResult(tuple(dict.fromkeys(channels)))
    following = replace(due, step=step, due_at_ms=_due_ms(alert, policy, step), version=due.version + 1)
    return EscalationResult(tuple(dict.fromkeys(channels)), following)


def _due_ms(alert: Alert, policy: AlertPolicy, step: int) -> int:
    return alert.at_ms + round(policy.escalation[step].after_seconds * 1000)
