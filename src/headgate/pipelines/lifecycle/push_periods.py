"""Push periods: the period that a sensor value without one belongs to.

It is the period in which the value arrives. After the end of a period, a value still belongs to it while its run waits
and the next one has not started: the run of 22:00 may get its data after midnight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.rules.compiler import needs_of
from headgate.pipelines.runs.rows import RunLog
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.periods import periods_of
from headgate.pipelines.schedule.sensor_periods import is_key_of

_DAY: Final = timedelta(days=1)
# One period of a pipeline has a log for each schedule.
_LOGS_MAX: Final = 100

LogsOf = Callable[[str], Sequence[RunLog]]


class PushPeriods:
    """Returns the period of a value that names none."""

    def __init__(self, runs: Runs, definitions: DefinitionReader) -> None:
        self._runs = runs
        self._definitions = definitions

    def __call__(self, pipeline_id: str, key: str, now: datetime) -> str | None:
        """Return the period of a value that arrives now; None for an unknown pipeline."""
        try:
            pipeline, _ = self._definitions.newest(pipeline_id)
        except NotFoundError:
            return None

        def logs_of(date: str) -> list[RunLog]:
            # Including the delimiter: the prefix of a day would match its hours.
            return self._runs.logs(pipeline_id, dates=f"{date}#", limit=_LOGS_MAX).logs

        return period_of_push(pipeline, key, now, logs_of)


def period_of_push(pipeline: Pipeline, key: str, now: datetime, logs_of: LogsOf) -> str:
    """Return the period of a value without one. `logs_of` returns the run logs of a period."""
    starting = _started_by(pipeline.schedules, key)
    periods = periods_of(pipeline, starting or next(iter(pipeline.schedules), None))
    current = periods.at(now)
    if periods.length < _DAY and (starting is None or starting.cron is not None):
        # Shorter periods run after their end, so the data of the last one is arriving.
        current = periods.previous(current)
    before = periods.previous(current)
    is_post_run = any(is_key_of(key, each) for each in needs_of(pipeline.post_run.rules).sensors)
    post_run_ms = round(1000 * pipeline.post_run.sensor_timeout) if is_post_run else 0
    now_ms = round(now.timestamp() * 1000)
    if not any(_awaits(log, now_ms, post_run_ms) for log in logs_of(before)):
        return current
    return current if any(log.attempts for log in logs_of(current)) else before


def _started_by(schedules: Iterable[Schedule], key: str) -> Schedule | None:
    return next((each for each in schedules if each.sensor is not None and is_key_of(key, each.sensor.key)), None)


def _awaits(log: RunLog, now_ms: int, post_run_ms: int) -> bool:
    """Whether a period still waits for data: its run is not ready, or its post-run sensor is expected."""
    if log.is_live:
        return log.status is RunStatus.PENDING or bool(post_run_ms)
    return log.succeeded_at_ms is not None and now_ms < log.succeeded_at_ms + post_run_ms
