"""Job times: for how long the job of a trigger is polled. The job's own time-out extends the window."""

from __future__ import annotations

from typing import Final

from headgate.durable.model.duration import seconds_of
from headgate.pipelines.definition.model import POLL_WINDOW_SECONDS, TriggerSpec

# The kinds of jobs that end by a time-out in their config, with its defaults: time-out and grace.
_LIMITED: Final = {"command": (3_600.0, 5.0)}
# A job past its time-out is ended, and its end recorded.
_END_SECONDS: Final = 60.0


def window_seconds(trigger: TriggerSpec | None) -> float:
    """Return how long a job is polled: its poll window, or its own time-out if that is longer.

    A poll window that the definition shortens counts unless the definition sets the time-out too.
    """
    if trigger is None:
        return POLL_WINDOW_SECONDS
    window = trigger.poll_window or POLL_WINDOW_SECONDS
    if trigger.type not in _LIMITED or (window != POLL_WINDOW_SECONDS and "timeout" not in trigger.config):
        return window
    timeout, grace = _LIMITED[trigger.type]
    limit = _seconds(trigger.config.get("timeout"), timeout) + _seconds(trigger.config.get("grace"), grace)
    return max(window, limit + _END_SECONDS)


def _seconds(value: object, otherwise: float) -> float:
    try:
        return otherwise if value is None else float(seconds_of(value))
    except ValueError:
        # A template, or an error that the trigger reports when it starts.
        return otherwise
