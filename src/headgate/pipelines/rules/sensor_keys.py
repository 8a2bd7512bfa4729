"""Sensor keys: the keys that a pipeline reads, so that a push to any other can be refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.rules.compiler import needs_of
from headgate.pipelines.schedule.sensor_periods import is_key_of
from headgate.pipelines.sensors import PROBE_PREFIX

# The field of a trait's config that names a sensor.
SENSOR_FIELD: Final = "sensorType"
_PLACEHOLDER: Final = re.compile(r"\$\{[^{}]*\}")


def sensor_keys(pipeline: Pipeline) -> list[str]:
    """Return the keys that schedules, readiness and post-run rules, and traits read, without templates."""
    starting = {schedule.sensor.key for schedule in pipeline.schedules if schedule.sensor is not None}
    of_rules = needs_of((*pipeline.readiness.rules, *pipeline.post_run.rules)).sensors
    of_traits = {key for key in _of_traits(pipeline) if not _PLACEHOLDER.search(key)}
    return sorted(starting | of_rules | of_traits)


def reads_sensor(pipeline: Pipeline, key: str) -> bool:
    """Whether a pipeline reads a key, or the key that this one is a period or part of. Those of probes are known."""
    if key.startswith(PROBE_PREFIX) or any(is_key_of(key, each) for each in sensor_keys(pipeline)):
        return True
    templates = (each for each in _of_traits(pipeline) if _PLACEHOLDER.search(each))
    return any(_pattern(each).match(key) for each in templates)


def _of_traits(pipeline: Pipeline) -> Iterator[str]:
    for trait in pipeline.readiness.traits.values():
        key = trait.config.get(SENSOR_FIELD)
        if isinstance(key, str):
            yield key


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the keys that a template such as `orders-${schedule}` can become."""
    return re.compile(".+".join(re.escape(part) for part in _PLACEHOLDER.split(template)) + "(#|$)")
