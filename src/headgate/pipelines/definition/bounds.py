"""Bounds: the allowed range of each number and duration of a definition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import (
    Budgets,
    Cascade,
    Monitoring,
    Pipeline,
    PostRun,
    Readiness,
    RetryPolicy,
    Rule,
    SensorTrigger,
    Sla,
    Trait,
    TriggerSpec,
    Upstream,
    WatchdogSpec,
)

_MINUTE: Final = 60.0
_DAY: Final = 86_400.0
_MONTH: Final = 31 * _DAY
_YEAR: Final = 366 * _DAY


class Bounds(NamedTuple):
    """The smallest and largest allowed number; `zero` also allows 0, for "default" or "never"."""

    low: float
    high: float
    zero: bool = False

    def allow(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        return self.low <= value <= self.high or (self.zero and value == 0)


class Excess(NamedTuple):
    """A number out of its bounds, and its path."""

    path: tuple[str | int, ...]
    value: float
    bounds: Bounds


BOUNDS: Final[dict[tuple[type[Struct], str], Bounds]] = {
    (Pipeline, "tier"): Bounds(1, 3),
    (Pipeline, "every"): Bounds(_MINUTE, _YEAR),
    (Pipeline, "concurrency"): Bounds(0, 1_000),
    (Pipeline, "slots"): Bounds(1, 1_000),
    (SensorTrigger, "settle"): Bounds(0, _DAY),
    (Upstream, "missing_max"): Bounds(0, 1_000),
    (Rule, "stable_for"): Bounds(1, 1_000),
    (Rule, "future_max"): Bounds(0, _YEAR),
    (Trait, "ttl"): Bounds(1, _YEAR),
    (Trait, "timeout"): Bounds(0.1, 3_600),
    (Readiness, "window"): Bounds(1, _MONTH),
    (Readiness, "interval"): Bounds(1, _DAY),
    (Readiness, "timeout"): Bounds(1, _MONTH),
    (TriggerSpec, "check_interval"): Bounds(1, _DAY),
    (TriggerSpec, "poll_window"): Bounds(_MINUTE, _DAY, zero=True),
    (TriggerSpec, "heartbeat"): Bounds(1, _DAY),
    (RetryPolicy, "attempts"): Bounds(1, 11),
    (RetryPolicy, "backoff"): Bounds(0, _DAY),
    (RetryPolicy, "multiplier"): Bounds(1, 10),
    (RetryPolicy, "backoff_max"): Bounds(0, _DAY),
    (RetryPolicy, "permanent_retries"): Bounds(0, 3),
    (Budgets, "drift"): Bounds(0, 5),
    (Budgets, "manual"): Bounds(0, 5),
    (Budgets, "breaker"): Bounds(0, 1_000),
    (Sla, "day_offset"): Bounds(0, 31),
    (Sla, "max_duration"): Bounds(1, _DAY),
    (Sla, "expected_duration"): Bounds(0, _MONTH),
    (Sla, "at_risk"): Bounds(0, _MONTH),
    (PostRun, "drift_threshold"): Bounds(0, 1e300),
    (PostRun, "sensor_timeout"): Bounds(1, _MONTH, zero=True),
    (Monitoring, "duration"): Bounds(1, _MONTH),
    (Monitoring, "interval"): Bounds(1, _DAY),
    (Cascade, "delay_between"): Bounds(0, 3_600),
    (WatchdogSpec, "stuck"): Bounds(_MINUTE, _MONTH),
    (WatchdogSpec, "schedule_grace"): Bounds(1, _DAY),
    (WatchdogSpec, "recovery_grace"): Bounds(1, _DAY),
    (WatchdogSpec, "lost"): Bounds(1, _DAY),
    (WatchdogSpec, "patience"): Bounds(_MINUTE, _YEAR),
}

# Most items of a kind in a definition.
SCHEDULES_MAX: Final = 200
UPSTREAMS_MAX: Final = 90
# Each written dataset is a row in the transaction that completes a run.
WRITES_MAX: Final = 50


def excesses(part: Struct, path: tuple[str | int, ...] = ()) -> Iterator[Excess]:
    """Yield every number of a definition, or of a part of one, that is out of its bounds."""
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        bounds = BOUNDS.get((type(part), field.name))
        below = (*path, field.name)
        if bounds is not None and isinstance(value, int | float) and not bounds.allow(value):
            yield Excess(below, value, bounds)
        yield from _inside(value, below)


def _inside(value: Any, path: tuple[str | int, ...]) -> Iterator[Excess]:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, Struct):
        yield from excesses(value, path)
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _inside(each, (*path, index))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _inside(each, (*path, key))


def bounds_text(excess: Excess) -> str:
    """Return the allowed range in its unit."""
    low, high, zero = excess.bounds
    is_time = isinstance(excess.value, Seconds)
    shown = [duration.text(bound) if is_time else f"{bound:g}" for bound in (low, high)]
    return f"use {'0, or ' if zero else ''}{shown[0]} to {shown[1]}"
