"""Built-in evaluators: facts that Headgate stores itself, and probes of files, objects and databases.

Placeholders such as `${date}` are filled in, in every text of the config. An invalid config is a permanent error that
names the field.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.field_values import MISSING, field_of, moment_ms, number, shown
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.sensors import Reading, Sensor
from headgate.pipelines.traits.config import duration_seconds, flag, number_or_none, text, text_or_none, texts_or_none
from headgate.pipelines.traits.protocol import Answer, Question, failure, not_met, passed
from headgate.triggers.templates import date_values, render

PREFIX: Final = "builtin:"
SCHEDULE_DEFAULT: Final = "daily"
# Timestamps further ahead of the clock than this are rejected.
FUTURE_SECONDS_MAX: Final = 300.0
_NAMED_MAX: Final = 5

Builtin = Callable[[Question], Answer]


class SensorReader(Protocol):
    """Reads the sensors that apply to a run."""

    def read(self, pipeline_id: str, keys: Iterable[str], date: str, *, any_period: Collection[str] = ()) -> Reading:
        """Return the sensors that apply to a run of `date`, by key; those of `any_period` of whichever period."""


class RunLogReader(Protocol):
    """Reads run logs."""

    def log(self, slot: Slot) -> RunLog | None:
        """Return the log of a period, or None."""


class BuiltinEvaluator:
    """The evaluators that come with Headgate, and `more` by name."""

    def __init__(self, sensors: SensorReader, runs: RunLogReader, more: Mapping[str, Builtin] | None = None) -> None:
        self._sensors = sensors
        self._runs = runs
        self._builtins: dict[str, Builtin] = {
            "upstream-job-log": self._upstream_job_log,
            "sensor-threshold": self._sensor_threshold,
            "sensor-freshness": self._sensor_freshness,
            "window-completeness": self._window_completeness,
            "data-quality": self._data_quality,
            **(more or {}),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names that can follow `builtin:`."""
        return tuple(sorted(self._builtins))

    def evaluate(self, question: Question) -> Answer:
        """Run the evaluator that the reference names. Raises `HeadgateError` if it cannot read."""
        name = question.reference.removeprefix(PREFIX)
        builtin = self._builtins.get(name)
        if builtin is None:
            return failure(FailureCategory.PERMANENT, f"there is no {PREFIX}{name}; use one of {', '.join(self.names)}")
        return builtin(rendered(question))

    def _upstream_job_log(self, question: Question) -> Answer:
        """Whether a period of another pipeline is done: of `upstreamSchedule`, else of the run's own schedule."""
        config = question.config
        slot = Slot(
            text(config, "upstreamPipeline"),
            text_or_none(config, "upstreamSchedule") or text_or_none(config, "scheduleID") or SCHEDULE_DEFAULT,
            text(config, "date"),
        )
        log = self._runs.log(slot)
        if log is None:
            return not_met(f"{slot} has not begun")
        value = {"status": log.status.value, "attempts": log.attempts, "runId": log.run_id}
        return passed(f"{slot} is done", value) if log.status.is_done else not_met(f"{slot} is {log.status}", value)

    def _sensor_threshold(self, question: Question) -> Answer:
        """Whether a number of a sensor (`field`, by default `value`) is from `min` to `max`."""
        low, high = number_or_none(question.config, "min"), number_or_none(question.config, "max")
        if low is None and high is None:
            raise DefinitionError("config: neither min nor max is given; give at least one")
        field = text_or_none(question.config, "field") or "value"
        sensor = self._sensor(question)
        if isinstance(sensor, Answer):
            return sensor
        given = field_of(sensor.data, field)
        if given is MISSING:
            return not_met(f"sensor {sensor.full_key} has no {field}")
        read = number(given)
        if read is None:
            return failure(
                FailureCategory.PERMANENT, f"sensor {sensor.full_key}: {field} is {shown(given)}, which is no number"
            )
        value = {field: read}
        if low is not None and read < low:
            return not_met(f"{field} of {sensor.full_key} is {read:g}, less than {low:g}", value)
        if high is not None and read > high:
            return not_met(f"{field} of {sensor.full_key} is {read:g}, more than {high:g}", value)
        return passed(f"{field} of {sensor.full_key} is {read:g}", value)

    def _sensor_freshness(self, question: Question) -> Answer:
        """Whether a sensor is no older than `maxAge`, by its own `field` if one is named."""
        age_max = duration_seconds(question.config, "maxAge")
        field = text_or_none(question.config, "field")
        # The age is the limit: the value of an earlier period may be recent enough.
        sensor = self._sensor(question, is_of_any_period=True)
        if isinstance(sensor, Answer):
            return sensor
        from_ms = sensor.updated_at_ms if field is None else moment_ms(field_of(sensor.data, field))
        if not from_ms:
            # A row of another program without a time: its age is unknown.
            what = f"{field} that is a moment" if field else "moment it is from"
            return not_met(f"sensor {sensor.full_key} has no {what}")
        age = (question.now_ms - from_ms) / 1000
        value = {"ageSeconds": round(age, 3)}
        if age < -FUTURE_SECONDS_MAX:
            return not_met(f"sensor {sensor.full_key} is from the future, by {-age:.0f} s", value)
        if age > age_max:
            return not_met(f"sensor {sensor.full_key} is {age:.0f} s old, more than {age_max:g} s", value)
        return passed(f"sensor {sensor.full_key} is {max(0.0, age):.0f} s old", value)

    def _window_completeness(self, question: Question) -> Answer:
        """Whether a sensor lists all of `expectedWindows`, or at least `expectedCount` of them, in `field`."""
        expected = texts_or_none(question.config, "expectedWindows")
        count = number_or_none(question.config, "expectedCount")
        if expected is None and count is None:
            raise DefinitionError("config: neither expectedWindows nor expectedCount is given; give one")
        field = text_or_none(question.config, "field") or "windows"
        sensor = self._sensor(question)
        if isinstance(sensor, Answer):
            return sensor
        there = _windows(field_of(sensor.data, field))
        if expected is not None:
            if isinstance(there, int):
                return failure(
                    FailureCategory.PERMANENT, f"sensor {sensor.full_key}: {field} is a number, and names no windows"
                )
            return _all_of(expected, there, sensor)
        have = there if isinstance(there, int) else len(there)
        value = {"count": have}
        if count is not None and have < count:
            return not_met(f"{have} of {count:g} windows are there", value)
        return passed(f"{have} windows are there", value)

    def _data_quality(self, question: Question) -> Answer:
        """Whether the share of nulls is at most `maxNullRate`, and the schema is what it was, or may differ."""
        rate_max = number_or_none(question.config, "maxNullRate")
        if rate_max is not None and not 0 <= rate_max <= 1:
            raise DefinitionError(f"config: maxNullRate is {rate_max:g}; give a share from 0 to 1")
        may_drift = flag(question.config, "allowSchemaDrift", default=False)
        sensor = self._sensor(question)
        if isinstance(sensor, Answer):
            return sensor
        found = _either(sensor.data, "nullRate", "null_rate")
        rate = number(found)
        has_drifted = _either(sensor.data, "schemaDrift", "schema_drift") in (True, 1, "true", "True")
        value = {"nullRate": rate, "schemaDrift": has_drifted}
        if has_drifted and not may_drift:
            return not_met(f"sensor {sensor.full_key} reports another schema", value)
        if rate_max is None:
            return passed(f"the schema is as it was, by sensor {sensor.full_key}", value)
        if rate is None:
            return not_met(f"sensor {sensor.full_key} has no nullRate that is a number", value)
        if rate > rate_max:
            return not_met(f"{rate:g} of the values are null, more than {rate_max:g}", value)
        return passed(f"{rate:g} of the values are null", value)

    def _sensor(self, question: Question, *, is_of_any_period: bool = False) -> Sensor | Answer:
        """Return the sensor that the config names, or the answer if there is none."""
        key = text(question.config, "sensorType")
        any_period = [key] if is_of_any_period else []
        reading = self._sensors.read(question.pipeline_id, [key], question.date, any_period=any_period)
        sensor = reading.sensors.get(key)
        if sensor is None:
            stray = reading.strays.get(key)
            known = f"; it is known of {stray}" if stray else ""
            return not_met(f"sensor {key} is not there for {question.date or 'now'}{known}")
        return sensor


def rendered(question: Question) -> Question:
    """Return the question with the placeholders of its config filled in, as a copy."""
    values = date_values(question.date) if question.date else {}
    values |= {
        "schedule": question.schedule_id,
        "scheduleID": question.schedule_id,
        "pipeline": question.pipeline_id,
        "pipelineID": question.pipeline_id,
        "run_id": question.run_id,
    }
    config, _ = render(dict(question.config), values, _no_secrets)
    return replace(question, config=config)


def _no_secrets(source: str, reference: str) -> str:
    raise DefinitionError(f"${{{source}:{reference}}}: the config of a trait has no secrets; it is stored and shown")


def _windows(given: Json) -> frozenset[str] | int:
    """Return the windows that a field names, or their number."""
    if isinstance(given, Mapping):
        return frozenset(str(name) for name, is_there in given.items() if is_there)
    if isinstance(given, list | tuple | set | frozenset):
        return frozenset(str(each) for each in given)
    count = number(given)
    return frozenset() if count is None else int(count)


def _all_of(expected: tuple[str, ...], there: frozenset[str], sensor: Sensor) -> Answer:
    missing = [window for window in expected if window not in there]
    value = {"count": len(expected) - len(missing), "missing": missing}
    if not missing:
        return passed(f"all {len(expected)} windows are there", value)
    named = ", ".join(missing[:_NAMED_MAX])
    more = f" and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
    return not_met(f"{len(missing)} of {len(expected)} windows of {sensor.full_key} are missing: {named}{more}", value)


def _either(data: Mapping[str, Json], *names: str) -> Json:
    # By presence: a rate of 0 counts.
    return next((data[name] for name in names if data.get(name) is not None), None)
