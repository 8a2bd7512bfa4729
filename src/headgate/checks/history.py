"""Stored history: the hourly volumes of a dataset, the durations of the runs that write it, and stored baselines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Final, Protocol

from headgate.errors import NotFoundError
from headgate.health.evidence.rows import Evidence
from headgate.health.model.enums import VOLUME
from headgate.health.model.expected_bands import DAY_HOURS, WEEK_HOURS, WEEKS_MAX
from headgate.health.model.signals import Signal
from headgate.health.model.timestamps import instant
from headgate.health.results.model import CHECK_SOURCE, ResultKind
from headgate.health.service import HealthService
from headgate.health.signals.baselines import Baseline
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.service import PipelineService

HOUR_MS: Final = 3_600_000
# The producer of the evidence of checks.
PRODUCER: Final = "headgate-checks"
EVIDENCE_MAX: Final = 5_000
_RUNS_MAX: Final = 3_000
_PAGE: Final = 500
_DONE: Final = (RunStatus.COMPLETED, RunStatus.COMPLETED_MONITORING)
_HOURS: Final = (WEEKS_MAX + 1) * WEEK_HOURS + DAY_HOURS


class History(Protocol):
    """What is known about a dataset besides its source."""

    def volumes(self, dataset_urn: str) -> dict[int, float]:
        """Return the hourly counts of a dataset by whole hours since the epoch."""

    def durations(self, pipeline_id: str) -> dict[int, float]:
        """Return the durations of a pipeline's runs in seconds, by whole hours since the epoch."""

    def baseline(self, dataset_urn: str, metric: str) -> Baseline:
        """Return a stored baseline. Raises `NotFoundError`."""

    def last_volume(self, dataset_urn: str) -> Signal | None:
        """Return the VOLUME signal, or None if it was never reported."""

    def evidence(self, dataset_urn: str, since_ms: int, until_ms: int) -> list[Evidence]:
        """Return the evidence of a time that others reported."""

    def is_reported(self, dataset_urn: str, kind: ResultKind) -> bool:
        """Whether another tool reports the signal that results of a kind feed: a check has no result of it yet."""


class NoHistory:
    """No history: checks are tried without a store."""

    def volumes(self, dataset_urn: str) -> dict[int, float]:
        del dataset_urn
        return {}

    def durations(self, pipeline_id: str) -> dict[int, float]:
        del pipeline_id
        return {}

    def baseline(self, dataset_urn: str, metric: str) -> Baseline:
        raise NotFoundError(f"baseline {metric} of {dataset_urn}: there is no store here")

    def last_volume(self, dataset_urn: str) -> Signal | None:
        del dataset_urn
        return None

    def evidence(self, dataset_urn: str, since_ms: int, until_ms: int) -> list[Evidence]:
        del dataset_urn, since_ms, until_ms
        return []

    def is_reported(self, dataset_urn: str, kind: ResultKind) -> bool:
        del dataset_urn, kind
        return False


class StoredHistory:
    """Reads what is stored about a dataset. Safe to use from many threads."""

    def __init__(self, health: HealthService, pipelines: PipelineService) -> None:
        self._health = health
        self._pipelines = pipelines

    def volumes(self, dataset_urn: str) -> dict[int, float]:
        """Return the hourly counts of a dataset by whole hours since the epoch."""
        return self._health.volumes.hourly(dataset_urn)

    def baseline(self, dataset_urn: str, metric: str) -> Baseline:
        """Return a stored baseline. Raises `NotFoundError`."""
        return self._health.baselines.get(dataset_urn, metric)

    def last_volume(self, dataset_urn: str) -> Signal | None:
        """Return the VOLUME signal, or None if it was never reported."""
        return self._health.signals.get(dataset_urn, VOLUME, consistent=True)

    def evidence(self, dataset_urn: str, since_ms: int, until_ms: int) -> list[Evidence]:
        """Return the evidence of a time, newest first, without that of checks; at most `EVIDENCE_MAX`."""
        found: list[Evidence] = []
        cursor: str | None = None
        while len(found) < EVIDENCE_MAX:
            page = self._health.evidence.of_dataset(
                dataset_urn, instant(since_ms), instant(until_ms), limit=_PAGE, cursor=cursor
            )
            found += [each for each in page.evidence if each.producer is None or each.producer.producer_id != PRODUCER]
            cursor = page.cursor
            if cursor is None:
                break
        return found

    def is_reported(self, dataset_urn: str, kind: ResultKind) -> bool:
        """Whether another tool reports the signal that results of a kind feed: a check has no result of it yet."""
        results = self._health.results.of(dataset_urn, kind)
        if any(each.source == CHECK_SOURCE for each in results):
            return False
        return bool(results) or self._health.signals.get(dataset_urn, kind.signal_type, consistent=True) is not None

    def durations(self, pipeline_id: str) -> dict[int, float]:
        """Return the seconds that the completed runs of a pipeline took, by the hour in which they began.

        The value of an hour with several runs is their median.
        """
        found: dict[int, list[float]] = {}
        for run in self._runs(pipeline_id):
            began_ms = run.triggered_at_ms or run.started_at_ms
            ended_ms = run.job_ended_at_ms or run.ended_at_ms
            if run.status in _DONE and began_ms is not None and ended_ms is not None:
                found.setdefault(began_ms // HOUR_MS, []).append(max(0, ended_ms - began_ms) / 1000)
        return {hour: statistics.median(seconds) for hour, seconds in found.items()}

    def _runs(self, pipeline_id: str) -> Iterator[Run]:
        pipelines = self._pipelines
        oldest_ms = round(pipelines.clock.seconds() * 1000) - _HOURS * HOUR_MS
        cursor: str | None = None
        for _ in range(_RUNS_MAX // _PAGE):
            page = pipelines.stores.runs.ls(pipeline_id, limit=_PAGE, cursor=cursor)
            for run in page.runs:
                if run.created_at_ms >= oldest_ms:
                    yield run
            cursor = page.cursor
            if cursor is None:
                return
