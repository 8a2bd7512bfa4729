"""Sensor pushes: store a value, and refuse a key that the pipeline does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.errors import UnknownSensorError
from headgate.ids import check_new_path
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.definition.problems import nearest
from headgate.pipelines.rules.sensor_keys import reads_sensor, sensor_keys
from headgate.pipelines.schedule.sensor_periods import split_key
from headgate.pipelines.sensors import KEY_LENGTH_MAX, PROBE_PREFIX, Sensor, Sensors

_LISTED_MAX: Final = 10


class SensorPushes:
    """Pushes of producers. A misspelled key would otherwise be stored and never read."""

    def __init__(self, definitions: PipelineStore, sensors: Sensors) -> None:
        self._definitions = definitions
        self._sensors = sensors

    def push(
        self,
        pipeline_id: str,
        key: str,
        data: Mapping[str, Json],
        *,
        period: str | None = None,
        is_for_all: bool = False,
        is_new: bool = False,
        by: str = "",
    ) -> Sensor:
        """Store a value as `Sensors.push` does. `is_new` allows a key that the pipeline does not read.

        A key with a stored value is known as well. Raises `NotFoundError` for an unknown pipeline and
        `UnknownSensorError` for an unknown key.
        """
        pipeline = self._definitions.get(pipeline_id).pipeline
        if not is_new:
            self._check_known(pipeline, split_key(key)[0])
        return self._sensors.push(pipeline_id, key, data, period=period, is_for_all=is_for_all, by=by)

    def _check_known(self, pipeline: Pipeline, key: str) -> None:
        if reads_sensor(pipeline, key) or self._sensors.get(pipeline.id, key) is not None:
            return
        check_new_path("sensor key", key, KEY_LENGTH_MAX, is_foreign=True)
        if next(self._sensors.ls(pipeline.id, key=key), None) is None:
            raise UnknownSensorError(unknown_key(pipeline, key))


def unknown_key(pipeline: Pipeline, key: str) -> str:
    """Return the message for a key that a pipeline does not read: the nearest key, or those that it reads."""
    known = [each for each in sensor_keys(pipeline) if not each.startswith(PROBE_PREFIX)]
    near = nearest(key, known)
    more = ", …" if len(known) > _LISTED_MAX else ""
    reads = f"it reads {', '.join(known[:_LISTED_MAX])}{more}" if known else "it reads no sensors"
    hint = f"did you mean {near}? To" if near else f"{reads}. To"
    return f"sensor {key!r}: {pipeline.id} does not read this key; {hint} push it anyway, give --new (API: new)"
