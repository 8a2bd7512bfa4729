"""SLA schedules: the SLA monitor on AWS, with one-shot EventBridge schedules for its deadlines.

The watchdog judges every SLA; schedules only make that prompt. A schedule that fires makes the monitor evaluate the SLA
again, so a superfluous one has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from headgate.clock import Clock
from headgate.pipelines.definition.model import Json
from headgate.pipelines.lifecycle.eventbridge_timers import OneShotSchedules
from headgate.pipelines.lifecycle.messages import Answer
from headgate.pipelines.watchdog.sla_monitor import BREACH, WARNING

_DEADLINES: Final = {WARNING: "warningAt", BREACH: "breachAt"}
# Fields of the event that a schedule passes on: the run, and the start of a relative SLA.
_EVENT_FIELDS: Final = ("pipelineId", "scheduleId", "date", "runId", "sensorArrivalAt")


class ScheduledSlaMonitor:
    """Wraps the SLA monitor, and creates and deletes its schedules."""

    def __init__(
        self, monitor: Callable[[dict[str, Any]], Answer], one_shots: OneShotSchedules, *, own_arn: str, clock: Clock
    ) -> None:
        self._monitor = monitor
        self._one_shots = one_shots
        self._own_arn = own_arn
        self._clock = clock

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Return the monitor's answer to an event. Raises its errors, `TransientError` and `StoreIOError`."""
        answer = self._monitor(event)
        match event.get("mode"):
            case "schedule":
                self._schedule(event, answer)
            case "cancel":
                for kind in _DEADLINES:
                    self._one_shots.drop(_schedule_name(event, kind))
        return answer

    def _schedule(self, event: dict[str, Any], answer: Answer) -> None:
        for kind, at in _deadlines(answer):
            if at > self._clock.now():
                fields = {name: event.get(name, "") for name in _EVENT_FIELDS}
                input: Json = {"mode": "fire-alert", "kind": kind, **fields}
                self._one_shots.put(_schedule_name(event, kind), at, self._own_arn, input)


def _deadlines(answer: Answer) -> Iterator[tuple[str, datetime]]:
    for kind, field in _DEADLINES.items():
        if answer.get(field):
            yield kind, datetime.fromisoformat(str(answer[field]))


def _schedule_name(event: dict[str, Any], kind: str) -> str:
    return f"sla-{kind}-{event['pipelineId']}-{event['scheduleId']}-{event['date']}"
