"""Alert messages: the text of alerts, and the channel protocol. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol
from urllib.parse import quote

from msgspec import Struct

from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.alert_rows import Alert, AlertGroup
from headgate.notify.enums import INFRASTRUCTURE, AlertAction, Severity

LINE_MAX: Final = 500
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Details shown first, if present.
_FACTS: Final = (
    "deadline", "status", "source", "cron", "run_id", "error", "category", "attempts", "rule", "sensor_key", "reason",
)  # fmt: skip
_FACTS_MAX: Final = 12


class NotYetError(TransientError):
    """Another message must be delivered first. Not a failure of the channel."""

    code = "not_yet"


class Message(Struct, frozen=True, kw_only=True):
    """A message for one channel. `message_id` is the same for every attempt."""

    message_id: str
    alert_id: str
    action: AlertAction
    event: str
    severity: Severity
    # One line without control characters.
    title: str
    lines: tuple[str, ...]
    dedup_key: str
    at_ms: int
    pipeline_id: str = INFRASTRUCTURE
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    hint: str = ""
    count: int = 1
    link: str = ""
    detail: dict[str, Any] = {}
    is_test: bool = False
    # The cause that it shares with other alerts; empty if it stands for itself.
    thread: str = ""
    # How many other alerts of the thread are open in this channel.
    others_open: int = 0
    # The channel's own id of the message that began it, for later actions on the same alert.
    began_as: str = ""
    incident_id: str = ""
    dataset_urn: str = ""
    owner: str = ""
    team: str = ""
    tier: str = ""

    @property
    def subject(self) -> str:
        """What it is about: a dataset, or a pipeline and its period."""
        about = (self.dataset_urn,) if self.dataset_urn else (self.pipeline_id, self.schedule_id, self.date)
        return " | ".join(filter(None, about))

    @property
    def text(self) -> str:
        """The full text, one fact per line."""
        return "\n".join([self.title, *self.lines])


class Channel(Protocol):
    """Delivers messages. Each channel has its own time-outs and is safe to use from many threads."""

    name: str
    # Supported actions; others are skipped.
    actions: frozenset[AlertAction]

    def send(self, message: Message) -> str:
        """Deliver a message, and return the channel's id of it, or an empty string.

        Raises `NonRetryable` if it will never be accepted, and `TransientError` if a retry may succeed; `NotYetError`
        if that is not the channel's fault.
        """


def link_of(alert: Alert, public_url: str) -> str:
    """Return the address of the page about an alert: its incident, run or pipeline."""
    if not public_url:
        return ""
    if alert.incident_id:
        page = f"/incidents/{quote(alert.incident_id, safe='')}"
    elif alert.run_id:
        page = f"/runs/{quote(alert.run_id, safe='')}"
    elif alert.pipeline_id != INFRASTRUCTURE:
        page = f"/pipelines/{quote(alert.pipeline_id, safe='')}"
    else:
        page = ""
    return f"{public_url.rstrip('/')}/ui{page}"


def message_of(alert: Alert, action: AlertAction, *, link: str = "", others_open: int = 0) -> Message:
    """Return the message of an alert action."""
    lines = [line(alert.message)] if alert.message else []
    lines += _facts(alert)
    match action:
        case AlertAction.RESOLVE:
            title = f"resolved: {alert.text}"
            # What kind of failure it was would read as the state of the job now.
            lines = [each for each in lines if not each.startswith("category:")]
        case AlertAction.ACKNOWLEDGE:
            title = f"acknowledged by {alert.acknowledged_by}: {alert.text}"
            lines = [line(alert.note)] if alert.note else []
        case _:
            title = alert.text
            if alert.escalated:
                lines.append(f"unacknowledged since {instant(alert.at_ms)}")
    return Message(
        # An escalation is a new message, not a retry of the first.
        message_id=f"{alert.alert_id}-{action}" + (f"-{alert.escalated}" if alert.escalated else ""),
        alert_id=alert.alert_id,
        action=action,
        event=alert.event,
        severity=alert.severity,
        title=line(title),
        lines=tuple(lines),
        dedup_key=alert.dedup_key,
        at_ms=alert.at_ms,
        pipeline_id=alert.pipeline_id,
        schedule_id=alert.schedule_id,
        date=alert.date,
        run_id=alert.run_id,
        hint="" if action is AlertAction.RESOLVE else line(alert.hint),
        count=alert.count,
        link=link,
        detail=alert.detail,
        thread=alert.thread,
        others_open=others_open,
        incident_id=alert.incident_id,
        dataset_urn=alert.dataset_urn,
        owner=alert.owner,
        team=alert.team,
        tier=alert.tier,
    )


def digest_text(group: AlertGroup) -> str:
    """Return the title of a digest of held alerts."""
    return f"{group.held_count} more {group.event} in {(group.closes_at_ms - group.opened_at_ms) // 1000} s"


def digest_lines(group: AlertGroup) -> str:
    """Return the members of a digest, as far as they are listed."""
    more = group.held_count - len(group.held)
    return ", ".join(group.held) + (f" and {more} more" if more > 0 else "")


def trial_message(channel: str, now_ms: int, *, message_id: str) -> Message:
    """Return a test message."""
    return Message(
        message_id=message_id,
        alert_id=message_id,
        action=AlertAction.TRIGGER,
        event="ALERT_TEST",
        severity=Severity.INFO,
        title=f"This is a test of the channel {channel}. Nothing is wrong.",
        lines=(f"sent {instant(now_ms)}",),
        dedup_key=f"ALERT_TEST#{channel}",
        at_ms=now_ms,
        is_test=True,
    )


def line(text: object, limit: int = LINE_MAX) -> str:
    """Return a text as a single line without control characters, truncated to the limit."""
    plain = _CONTROLS.sub(" ", str(text)).strip()
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def _facts(alert: Alert) -> list[str]:
    named = [name for name in _FACTS if name in alert.detail]
    others = [name for name in sorted(alert.detail) if name not in named]
    return [
        f"{line(name, 60)}: {line(alert.detail[name])}"
        for name in [*named, *others][:_FACTS_MAX]
        if not isinstance(alert.detail[name], dict | list) and alert.detail[name] not in (None, "")
    ]
