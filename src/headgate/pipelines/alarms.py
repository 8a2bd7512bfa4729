"""Alarms: what watches the installation from outside says over the bus, and is told like any other trouble."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.bus.events import Event
from headgate.pipelines.events.names import EventName
from headgate.pipelines.events.outbox import PipelineEvent, PipelineEvents

# Sent by who watches: the event of CloudWatch as it is, or {"alarm": NAME, "state": STATE}.
TYPE: Final = "infra.alarm"
SUBSCRIPTION: Final = "headgate.pipelines.alarms"
_ALARM: Final = "ALARM"


class Alarms:
    """Hears of alarms."""

    def __init__(self, events: PipelineEvents) -> None:
        self._events = events

    def handle(self, event: Event) -> None:
        """Tell of an alarm that is on, once. One that is off is nothing to wake anyone for."""
        name, state, reason = alarm_of(event.decoded().data)
        if state != _ALARM:
            return
        told = PipelineEvent(
            name=EventName.INFRA_ALARM,
            detail={"alarm": name or event.subject or event.source, "state": state},
            message=reason,
            dedup_key=f"{EventName.INFRA_ALARM}#{name}",
            once=f"alarm#{event.source}#{event.id}",
        )
        self._events.tell(told)


def alarm_of(data: Any) -> tuple[str, str, str]:  # noqa: ANN401 - what someone else sends
    """Return the name, the state and the reason of an alarm; what is not said is empty, but for the state: it is on."""
    said = data if isinstance(data, dict) else {}
    detail = said.get("detail")
    inner = detail if isinstance(detail, dict) else said
    state = inner.get("state", _ALARM)
    value, reason = (state.get("value"), state.get("reason")) if isinstance(state, dict) else (state, "")
    return str(inner.get("alarmName") or inner.get("alarm") or ""), str(value or _ALARM).upper(), str(reason or "")
