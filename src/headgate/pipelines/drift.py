"""Drift: whether what a run was made from has changed since, by the fields of its sensors as they were then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from headgate.pipelines.definition import Json, PostRun
from headgate.pipelines.facts import Facts
from headgate.pipelines.rule_operators import MISSING, field_of, number
from headgate.pipelines.rules import CompiledRules

# The fields of each sensor, by its key: two rules on the same field of two sensors do not overwrite each other.
Baseline = Mapping[str, Mapping[str, Json]]


class Drift(Struct, frozen=True, kw_only=True):
    """By how much one sensor has moved."""

    sensor_key: str
    field: str
    previous: int | float
    current: int | float
    threshold: float

    @property
    def delta(self) -> int | float:
        """How much there is more than before; less than nothing: how much less."""
        return self.current - self.previous


def baseline_of(compiled: CompiledRules, facts: Facts) -> dict[str, dict[str, Any]]:
    """Return the fields of every sensor that post-run rules look at, as they are now."""
    return {key: dict(facts.sensors[key].data) for key in sorted(compiled.needs.sensors) if key in facts.sensors}


def drift_of(baseline: Baseline | None, sensor_key: str, data: Mapping[str, Json], post_run: PostRun) -> Drift | None:
    """Return by how much a sensor has moved beyond the threshold; None: it has not, or it cannot be told.

    Without a baseline, or without the field in one of the two, there is nothing to compare: a field that is missing
    is not zero, and zero is a number like any other.
    """
    known = (baseline or {}).get(sensor_key)
    if known is None:
        return None
    previous, current = _field(known, post_run.drift_field), _field(data, post_run.drift_field)
    if previous is None or current is None or abs(current - previous) <= post_run.drift_threshold:
        return None
    return Drift(
        sensor_key=sensor_key,
        field=post_run.drift_field,
        previous=previous,
        current=current,
        threshold=post_run.drift_threshold,
    )


def _field(data: Mapping[str, Json], field: str) -> int | float | None:
    value = field_of(data, field)
    return None if value is MISSING else number(value)
