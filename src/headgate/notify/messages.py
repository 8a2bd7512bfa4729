"""Messages: what a channel is given to tell, and how it is put in words. Pure."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from msgspec import Struct

from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.alert_rows import Alert, Group
from headgate.notify.enums import INFRASTRUCTURE, Action, Severity

LINE_MAX: Final = 500
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
# Shown first, if the detail has them.
_FACTS: Final = (
    "deadline", "status", "source", "cron", "run_id", "error", "category", "attempts", "rule", "sensor_key", "reason",
)  # fmt: skip
_FACTS_MAX: Final = 12


class NotYetError(TransientError):
    """Nothing is wrong with the channel: something else has to be told first."""

    code = "not_yet"


class Message(Struct, frozen=True, kw_only=True):
    """One thing to be told over one channel. `message_id` is the same for every attempt at it."""

    message_id: str
    alert_id: str
    action: Action
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

    @property
    def text(self) -> str:
        """All of it, a line for each thing."""
        return "\n".join([self.title, *self.lines])


class Channel(Protocol):
    """Tells people. Each has time-outs of its own, and may be used from many threads."""

    name: str
    # What it can be asked to tell; it is not asked for the rest.
    actions: frozenset[Action]

    def send(self, message: Message) -> str:
        """Tell it, and return what the channel calls the message; empty if it has no name for it.

        Raises `NonRetryable` if it will never be taken so, and `TransientError` if it may be later; `NotYetError` if
        that is not the channel's fault.
        """


def message_of(alert: Alert, action: Action, *, link: str = "") -> Message:
    """Return what is told of an alert."""
    lines = [line(alert.message)] if alert.message else []
    lines += _facts(alert)
    match action:
        case Action.RESOLVE:
            title = f"resolved: {alert.text}"
        case Action.ACKNOWLEDGE:
            title = f"acknowledged by {alert.acknowledged_by}: {alert.text}"
            lines = [line(alert.note)] if alert.note else []
        case _:
            title = alert.text
            if alert.escalated:
                lines.append(f"nobody has acknowledged this since {instant(alert.at_ms)}")
    return Message(
        # A reminder is another message, not the first one again.
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
        hint="" if action is Action.RESOLVE else line(alert.hint),
        count=alert.count,
        link=link,
        detail=alert.detail,
    )


def digest_text(group: Group) -> str:
    """Return the one line that stands for all that a group held back."""
    return f"{group.held_count} more {group.event} in {(group.closes_at_ms - group.opened_at_ms) // 1000} s"


def digest_lines(group: Group) -> str:
    """Return who they are, as far as they are named."""
    more = group.held_count - len(group.held)
    return ", ".join(group.held) + (f" and {more} more" if more > 0 else "")


def trial_message(channel: str, now_ms: int, *, message_id: str) -> Message:
    """Return what proves that a channel works."""
    return Message(
        message_id=message_id,
        alert_id=message_id,
        action=Action.TRIGGER,
        event="ALERT_TEST",
        severity=Severity.INFO,
        title=f"This is a test of the channel {channel}. Nothing is wrong.",
        lines=(f"sent {instant(now_ms)}",),
        dedup_key=f"ALERT_TEST#{channel}",
        at_ms=now_ms,
        is_test=True,
    )


def line(text: object, limit: int = LINE_MAX) -> str:
    """Return a text as one line that no terminal, header or log takes for more, cut if it is long."""
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
