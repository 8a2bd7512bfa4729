"""SLA schedules: the SLA monitor on AWS, which also has itself called at the moment when an SLA is due.

The watchdog judges every SLA, also without them: they only make it prompt. One that fires is a question, and asks what
holds then, so that one too many does no harm.
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

_MOMENTS: Final = {WARNING: "warningAt", BREACH: "breachAt"}
# Who it is about, and since when the time of a relative SLA counts.
_CARRIED: Final = ("pipelineId", "scheduleId", "date", "runId", "sensorArrivalAt")


class ScheduledSlaMonitor:
    """Answers like the SLA monitor itself, and keeps its schedules."""

    def __init__(
        self, monitor: Callable[[dict[str, Any]], Answer], one_shots: OneShotSchedules, *, own_arn: str, clock: Clock
    ) -> None:
        self._monitor = monitor
        self._one_shots = one_shots
        self._own_arn = own_arn
        self._clock = clock

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Return the answer to an event. Raises what the monitor raises, `TransientError` and `StoreIOError`."""
        answer = self._monitor(event)
        match event.get("mode"):
            case "schedule":
                self._schedule(event, answer)
            case "cancel":
                for kind in _MOMENTS:
                    self._one_shots.drop(_wish(event, kind))
        return answer

    def _schedule(self, event: dict[str, Any], answer: Answer) -> None:
        for kind, at in _moments(answer):
            if at > self._clock.now():
                given: Json = {"mode": "fire-alert", "kind": kind, **{name: event.get(name, "") for name in _CARRIED}}
                self._one_shots.put(_wish(event, kind), at, self._own_arn, given)


def _moments(answer: Answer) -> Iterator[tuple[str, datetime]]:
    for kind, field in _MOMENTS.items():
        if answer.get(field):
            yield kind, datetime.fromisoformat(str(answer[field]))


def _wish(event: dict[str, Any], kind: str) -> str:
    return f"sla-{kind}-{event['pipelineId']}-{event['scheduleId']}-{event['date']}"
