"""Alarms: publishes alarms of external monitoring, received on the bus, as pipeline events."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.bus.events import Event
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents

# Sent by the monitoring: the CloudWatch event as it is, or {"alarm": NAME, "state": STATE}.
TYPE: Final = "infra.alarm"
SUBSCRIPTION: Final = "headgate.pipelines.alarms"
_ALARM: Final = "ALARM"


class Alarms:
    """Subscriber for alarms."""

    def __init__(self, events: PipelineEvents) -> None:
        self._events = events

    def handle(self, event: Event) -> None:
        """Publish an active alarm, once. Other states are ignored."""
        name, state, reason = alarm_of(event.decoded().data)
        if state != _ALARM:
            return
        alarm = PipelineEvent(
            name=EventName.INFRA_ALARM,
            detail={"alarm": name or event.subject or event.source, "state": state},
            message=reason,
            dedup_key=f"{EventName.INFRA_ALARM}#{name}",
            once=f"alarm#{event.source}#{event.id}",
        )
        self._events.publish(alarm)


def alarm_of(data: Any) -> tuple[str, str, str]:  # noqa: ANN401 - what someone else sends
    """Return the name, state and reason of an alarm. Missing fields are empty; a missing state means ALARM."""
    fields = data if isinstance(data, dict) else {}
    detail = fields.get("detail")
    inner = detail if isinstance(detail, dict) else fields
    state = inner.get("state", _ALARM)
    value, reason = (state.get("value"), state.get("reason")) if isinstance(state, dict) else (state, "")
    return str(inner.get("alarmName") or inner.get("alarm") or ""), str(value or _ALARM).upper(), str(reason or "")
