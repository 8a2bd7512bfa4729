"""Run spans: the trace of a run, recorded from its row when it ends.

The times are those of the row, so a restart in the middle loses no span, and the lifecycle itself records nothing. The
parent is the request that started the run: its context is stored with the sensor, marker or start, and with the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headgate.errors import CorruptionError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import Run, run_of
from headgate.span_export import Attribute
from headgate.store.model.requests import Change
from headgate.telemetry import Tracing

_ENDED: Final = frozenset(status.value for status in RunStatus if status.is_terminal or status.is_done)


class Phase(NamedTuple):
    """A part of a run, in milliseconds since 1970."""

    name: str
    from_ms: int
    to_ms: int


def phases(run: Run) -> Iterator[Phase]:
    """Yield the parts of a run that has ended: admission, readiness, trigger and job, as far as it came."""
    ended_ms = run.ended_at_ms or run.updated_at_ms
    if run.sensor_arrival_at_ms is not None:
        yield Phase("pipeline.admission", min(run.sensor_arrival_at_ms, run.created_at_ms), run.created_at_ms)
    yield Phase("pipeline.readiness", run.created_at_ms, run.triggered_at_ms or ended_ms)
    if run.triggered_at_ms is not None:
        yield Phase("pipeline.trigger", run.triggered_at_ms, run.started_at_ms or ended_ms)
    if run.started_at_ms is not None:
        yield Phase("pipeline.job", run.started_at_ms, ended_ms)


class RunSpans:
    """Records the spans of ended runs from the change stream."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def on_change(self, change: Change) -> None:
        """Record the spans of a run whose change is its end. Other changes record nothing."""
        item = change.new
        if item is None or not self._tracing.is_on or not str(change.key.sort).startswith("RUN#"):
            return
        was_ended = change.old is not None and change.old.get("status") in _ENDED
        if was_ended or item.get("status") not in _ENDED:
            return
        try:
            run = run_of(item)
        except CorruptionError:
            # The router reports it.
            return
        attributes: dict[str, Attribute] = {
            "pipeline": run.pipeline_id,
            "schedule": run.schedule_id,
            "date": run.date,
            "run_id": run.run_id,
            "attempt": run.attempt,
            "cause": run.cause.value,
            "status": run.status.value,
            **({"job_id": run.job_id} if run.job_id else {}),
            **({"reason": run.reason} if run.reason else {}),
        }
        parts = list(phases(run))
        root = self._tracing.record(
            "pipeline.run", run.traceparent, parts[0].from_ms, parts[-1].to_ms, attributes, is_error=_is_failed(run)
        )
        for part in parts:
            self._tracing.record(part.name, root, part.from_ms, part.to_ms, {"run_id": run.run_id})


def _is_failed(run: Run) -> bool:
    return run.status is RunStatus.FAILED
