"""Drift detection: compares sensors with their values at the last success, and publishes dry-run events.

A baseline holds the fields of the sensors that post-run rules read, as they were when the run succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import CorruptionError, UserError
from headgate.pipelines.definition.model import Json, Pipeline, PostRun, RetryPolicy
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.field_values import MISSING, field_of, number
from headgate.pipelines.rules.facts import FactReader, Facts
from headgate.pipelines.rules.rules import CompiledRules, compile_post_run
from headgate.pipelines.runs.retries import RetryDecision, decide_retry
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.sensors import Sensor
from headgate.store.catalogue.tables import BASELINE, PIPELINES
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.port import Store

# Sensor key to its fields: rules on the same field of two sensors stay apart.
Baseline = Mapping[str, Mapping[str, Json]]


class Drift(Struct, frozen=True, kw_only=True):
    """A sensor that moved beyond the threshold since the baseline."""

    sensor_key: str
    field: str
    previous: int | float
    current: int | float
    threshold: float

    @property
    def delta(self) -> int | float:
        """The increase since the baseline; negative for a decrease."""
        return self.current - self.previous


def baseline_of(compiled: CompiledRules, facts: Facts) -> dict[str, dict[str, Any]]:
    """Return the current fields of every sensor that the post-run rules read."""
    return {key: dict(facts.sensors[key].data) for key in sorted(compiled.needs.sensors) if key in facts.sensors}


def drift_of(baseline: Baseline | None, sensor_key: str, data: Mapping[str, Json], post_run: PostRun) -> Drift | None:
    """Return the drift of a sensor beyond the threshold; None if it is within, or cannot be compared.

    Without a baseline, or without the field on either side, there is nothing to compare. A missing field is not zero.
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


RETENTION_SECONDS: Final = 30 * 86_400


class RunBaselines:
    """Stores one baseline for each period: that of its last success."""

    def __init__(
        self,
        store: Store,
        facts: FactReader,
        events: EventWriter,
        clock: Clock,
        *,
        kept_seconds: int = RETENTION_SECONDS,
    ) -> None:
        self._store = store
        self._facts = facts
        self._events = events
        self._clock = clock
        self._kept_seconds = kept_seconds

    def writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        """Return the writes that store the baseline of a successful run, for the transaction that completes it.

        If the baseline cannot be read, they publish that instead.
        """
        if not pipeline.post_run.rules:
            return []
        try:
            compiled = compile_post_run(pipeline.post_run)
            baseline = baseline_of(compiled, self._facts.gather(pipeline, run.slot, compiled.needs, self._clock.now()))
        except (UserError, CorruptionError) as exc:
            # A retry would fail on the same data, and the run has succeeded: report and go on.
            detail = {"run_id": run.run_id, "error": str(exc)}
            return self._events.writes(EventName.BASELINE_CAPTURE_FAILED, run.slot, detail)
        key = BASELINE.key(**run.slot._asdict())
        item = {
            **PIPELINES.key_attributes(key),
            "run_id": run.run_id,
            "sensors": baseline,
            "ttl": epoch_ms(self._clock) // 1000 + self._kept_seconds,
        }
        captured = {"run_id": run.run_id, "sensors": sorted(baseline)}
        return [Put(PIPELINES, item), *self._events.writes(EventName.POST_RUN_BASELINE_CAPTURED, run.slot, captured)]

    def find(self, slot: Slot) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the sensor fields at the last success of a period."""
        item = self._store.get(PIPELINES, BASELINE.key(**slot._asdict()), consistent=True)
        return None if item is None else item["sensors"]


_FAILURES: Final = frozenset({JobEvent.FAIL.value, JobEvent.TIMEOUT.value})
_ENTRIES_MAX: Final = 100


class DryRunEvents:
    """Publishes what would have followed a dry run. Each event is published once."""

    def __init__(self, store: Store, runs: Runs, events: EventWriter) -> None:
        self._store = store
        self._runs = runs
        self._events = events

    def is_dry_run(self, log: RunLog | None) -> bool:
        """Whether the latest run of a period was a dry run."""
        if log is None or log.status is not RunStatus.CANCELLED or not log.run_id:
            return False
        run = self._runs.find(log.run_id)
        return run is not None and run.is_dry_run

    def late_data(self, log: RunLog, sensor: Sensor, token: str) -> None:
        """Publish that data arrived after the dry run."""
        late_by_seconds = max(0.0, (sensor.changed_at_ms - (log.ended_at_ms or 0)) / 1000)
        once = f"dry-late#{log.slot}#{sensor.full_key}#{token}"
        detail = {"sensor_key": sensor.full_key, "late_by": f"{late_by_seconds:g} s"}
        self._events.publish_once(once, EventName.DRY_RUN_LATE_DATA, log.slot, **detail)

    def drifted(self, slot: Slot, drift: Drift, once: str) -> None:
        """Publish that an input of the dry run changed."""
        detail = {"sensor_key": drift.sensor_key, "previous": drift.previous, "current": drift.current}
        self._events.publish_once(f"{once}#dry", EventName.DRY_RUN_DRIFT, slot, **detail)

    def failed(self, slot: Slot, item: Mapping[str, Any], policy: RetryPolicy) -> None:
        """Publish the retry decision for a failure that another program wrote into the job log."""
        if str(item.get("event", "")) not in _FAILURES:
            return
        query = Query(
            table=PIPELINES,
            partition=str(item["PK"]),
            sort=Sort(Range.BEGINS_WITH, f"JOB#{slot.schedule_id}#{slot.date}#"),
            limit=_ENTRIES_MAX,
            consistent=True,
        )
        entries = self._store.query(query).items
        failures = sum(str(each.get("event", "")) in _FAILURES and each["SK"] <= item["SK"] for each in entries)
        decision = retry_after(slot, failures, _category(item), policy)
        name = EventName.DRY_RUN_WOULD_RETRY if decision.is_retryable else EventName.DRY_RUN_RETRY_EXHAUSTED
        self._events.publish_once(f"dry-failed#{item['SK']}#{slot.pipeline_id}", name, slot, reason=decision.reason)


def retry_after(slot: Slot, failures: int, category: FailureCategory, policy: RetryPolicy) -> RetryDecision:
    """Return the retry decision after this number of failures of a period."""
    is_permanent = category is FailureCategory.PERMANENT
    log = RunLog(
        **slot._asdict(),
        status=RunStatus.FAILED,
        version=1,
        created_at_ms=0,
        updated_at_ms=0,
        category=category,
        failures=0 if is_permanent else failures,
        permanent_failures=failures if is_permanent else 0,
    )
    return decide_retry(policy, log)


def _category(item: Mapping[str, Any]) -> FailureCategory:
    """Return the failure category of a job log entry; an unknown one counts as transient."""
    try:
        return FailureCategory(str(item.get("category", "")))
    except ValueError:
        return FailureCategory.TRANSIENT
