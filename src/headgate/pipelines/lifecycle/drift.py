"""Drift: whether what a run was made from has changed since, by the fields of its sensors as they were then.

Baselines: what the sensors of the post-run rules said when a run succeeded, to compare with what comes later.

Dry runs: what would have followed from what comes after one, told and never done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.errors import CorruptionError, UserError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline, PostRun, RetryPolicy
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.operators import MISSING, field_of, number
from headgate.pipelines.rules.rules import CompiledRules, compile_post_run
from headgate.pipelines.runs.retries import RetryDecision, decide_retry
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.sensors import Sensor
from headgate.store.catalogue.tables import BASELINE, PIPELINES
from headgate.store.model.requests import Put, Query, Range, Sort, Write

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


KEPT_SECONDS: Final = 30 * 86_400


class RunBaselines:
    """The baselines of one store, one for each period: that of its last success."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        """Return the writes that keep the baseline of a run which has just succeeded, for that transaction.

        Where it cannot be taken they tell that.
        """
        if not pipeline.post_run.rules:
            return []
        parts = self._parts
        try:
            compiled = compile_post_run(pipeline.post_run)
            baseline = baseline_of(compiled, parts.facts.gather(pipeline, run.slot, compiled.needs, parts.now()))
        except (UserError, CorruptionError) as exc:
            # What cannot be read will not be readable the next time either, and the run has succeeded all the same.
            detail = {"run_id": run.run_id, "error": str(exc)}
            return parts.tells(EventName.BASELINE_CAPTURE_FAILED, run.slot, detail)
        key = BASELINE.key(**run.slot._asdict())
        item = {
            **PIPELINES.key_attributes(key),
            "run_id": run.run_id,
            "sensors": baseline,
            "ttl": parts.now_ms() // 1000 + KEPT_SECONDS,
        }
        captured = {"run_id": run.run_id, "sensors": sorted(baseline)}
        return [Put(PIPELINES, item), *parts.tells(EventName.POST_RUN_BASELINE_CAPTURED, run.slot, captured)]

    def find(self, slot: Slot) -> Mapping[str, Mapping[str, Any]] | None:
        """Return what the sensors said at the last success of a period."""
        item = self._parts.store.get(PIPELINES, BASELINE.key(**slot._asdict()), consistent=True)
        return None if item is None else item["sensors"]


_FAILURES: Final = frozenset({JobEvent.FAIL.value, JobEvent.TIMEOUT.value})
_LOOKED_AT_MAX: Final = 100


class DryRunNews:
    """Tells what a dry run would have led to. Each thing is told once."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def was_one(self, log: RunLog | None) -> bool:
        """Whether a period was gone through by a dry run."""
        if log is None or log.status is not RunStatus.CANCELLED or not log.run_id:
            return False
        run = self._parts.runs.find(log.run_id)
        return run is not None and run.is_dry_run

    def late(self, log: RunLog, sensor: Sensor, token: str) -> None:
        """Tell that data came after the dry run."""
        late_by_seconds = max(0.0, (sensor.changed_at_ms - (log.ended_at_ms or 0)) / 1000)
        once = f"dry-late#{log.slot}#{sensor.full_key}#{token}"
        detail = {"sensor_key": sensor.full_key, "late_by": f"{late_by_seconds:g} s"}
        self._parts.tell_once(once, EventName.DRY_RUN_LATE_DATA, log.slot, **detail)

    def drifted(self, slot: Slot, drift: Drift, once: str) -> None:
        """Tell that what the dry run would have been made from has changed."""
        detail = {"sensor_key": drift.sensor_key, "previous": drift.previous, "current": drift.current}
        self._parts.tell_once(f"{once}#dry", EventName.DRY_RUN_DRIFT, slot, **detail)

    def failed(self, slot: Slot, item: Mapping[str, Any], policy: RetryPolicy) -> None:
        """Tell what would follow a failure that someone else wrote into the job log of a period."""
        if str(item.get("event", "")) not in _FAILURES:
            return
        query = Query(
            table=PIPELINES,
            partition=str(item["PK"]),
            sort=Sort(Range.BEGINS_WITH, f"JOB#{slot.schedule_id}#{slot.date}#"),
            limit=_LOOKED_AT_MAX,
            consistent=True,
        )
        entries = self._parts.store.query(query).items
        failures = sum(str(each.get("event", "")) in _FAILURES and each["SK"] <= item["SK"] for each in entries)
        decision = retry_after(slot, failures, _category(item), policy)
        name = EventName.DRY_RUN_WOULD_RETRY if decision.is_retryable else EventName.DRY_RUN_RETRY_EXHAUSTED
        self._parts.tell_once(f"dry-failed#{item['SK']}#{slot.pipeline_id}", name, slot, reason=decision.reason)


def retry_after(slot: Slot, failures: int, category: FailureCategory, policy: RetryPolicy) -> RetryDecision:
    """Return what would follow so many failures of a period."""
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
    """Return what an entry of anybody's says of its failure. What is not known may pass."""
    try:
        return FailureCategory(str(item.get("category", "")))
    except ValueError:
        return FailureCategory.TRANSIENT
