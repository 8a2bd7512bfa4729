"""Dry runs: what would have followed from what comes after one, told and never done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headgate.pipelines.definition import RetryPolicy
from headgate.pipelines.drift import Drift
from headgate.pipelines.event_names import EventName
from headgate.pipelines.parts import Parts
from headgate.pipelines.retries import RetryDecision, decide_retry
from headgate.pipelines.run_rows import RunLog, Slot
from headgate.pipelines.sensors import Sensor
from headgate.pipelines.vocabulary import FailureCategory, JobEvent, RunStatus
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Query, Range, Sort

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
