"""Baselines: the normal value of a metric of a dataset, as an anomaly engine computed it."""

from __future__ import annotations

import math
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidPayloadError, NotFoundError, StoreBusyError, VersionConflictError
from headgate.health.model.timestamps import instant
from headgate.health.model.urns import dataset_urn
from headgate.ids import check_new_path
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

METRIC_BYTES_MAX: Final = 256
OF_DATASET_MAX: Final = 1000
ATTEMPTS_MAX: Final = 32
ANY_VERSION: Final = -1


class Baseline(Struct, frozen=True, kw_only=True):
    """The mean, standard deviation and sample count of a metric."""

    dataset_urn: str
    metric: str
    baseline_value: float
    stddev: float
    sample_count: int
    updated_at: str
    version: int


class Baselines:
    """Stores the latest baseline of each metric. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, urn: str, metric: str) -> Baseline:
        """Return a baseline. Raises `NotFoundError` if there is none."""
        row = self._store.get(CONTROL, _key(urn, metric), consistent=True)
        if row is None:
            raise NotFoundError(f"baseline {metric} of {urn}: not computed yet")
        return typed_decode.convert(row, Baseline)

    def of(self, urn: str) -> list[Baseline]:
        """Return the baselines of a dataset, by metric."""
        partition = f"BASELINE#{dataset_urn(urn)}"
        page = self._store.query(Query(table=CONTROL, partition=partition, limit=OF_DATASET_MAX, consistent=True))
        return [typed_decode.convert(row, Baseline) for row in page.items]

    def put(
        self,
        urn: str,
        metric: str,
        *,
        baseline_value: float,
        stddev: float,
        sample_count: int,
        expected_version: int = ANY_VERSION,
    ) -> Baseline:
        """Replace a baseline. Repeating the same values changes nothing.

        `expected_version` 0: there must be none; -1: any version. Raises `VersionConflictError`, `InvalidPayloadError`
        for invalid numbers, and `StoreBusyError` after too many conflicts with other writers.
        """
        key = _key(urn, metric)
        check_new_path("metric", metric, METRIC_BYTES_MAX)
        values = _checked(baseline_value, stddev, sample_count)
        for _ in range(ATTEMPTS_MAX):
            row = self._store.get(CONTROL, key, consistent=True)
            stored = None if row is None else typed_decode.convert(row, Baseline)
            if stored is not None and values == (stored.baseline_value, stored.stddev, stored.sample_count):
                return stored
            version = 0 if stored is None else stored.version
            if expected_version not in (ANY_VERSION, version):
                raise VersionConflictError(
                    f"baseline {metric} of {urn}: it is at version {version}, not {expected_version}; read it again",
                    current={"version": version},
                )
            baseline = Baseline(
                dataset_urn=urn,
                metric=metric,
                baseline_value=values[0],
                stddev=values[1],
                sample_count=values[2],
                updated_at=instant(int(self._clock.seconds() * 1000)),
                version=version + 1,
            )
            item = {**CONTROL.key_attributes(key), **msgspec.to_builtins(baseline)}
            try:
                self._store.put(CONTROL, item, condition=absent() if stored is None else version_is(version))
            except ConflictError:
                continue
            return baseline
        raise StoreBusyError(f"baseline {metric} of {urn}: {ATTEMPTS_MAX} conflicts with other writers; try again")


def _key(urn: str, metric: str) -> Key:
    if not metric or len(metric.encode(errors="surrogatepass")) > METRIC_BYTES_MAX:
        raise InvalidPayloadError(f"metric {metric[:40]!r}: give 1 to {METRIC_BYTES_MAX} bytes of text")
    return Key(f"BASELINE#{dataset_urn(urn)}", metric)


def _checked(baseline_value: float, stddev: float, sample_count: int) -> tuple[float, float, int]:
    if not (math.isfinite(baseline_value) and math.isfinite(stddev)) or stddev < 0 or sample_count < 1:
        raise InvalidPayloadError(
            f"baseline {baseline_value} ± {stddev} of {sample_count} samples: give a finite value, a standard "
            "deviation of 0 or more, and a sample count of 1 or more"
        )
    return float(baseline_value), float(stddev), sample_count
