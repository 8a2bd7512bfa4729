"""Freshness backfill: sets the timers of datasets that were registered before there were freshness timers.

It reads the change feed once per store, a chunk in each sweep, and records how far it is.
"""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.health.model.datasets import DatasetStatus
from headgate.health.registry.service import Registry
from headgate.health.signals.freshness_rows import freshness_put
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

_KEY: Final = Key("FRESHNESS-BACKFILL", "STATE")


class FreshnessBackfill:
    """Runs until the end of the feed is recorded. Running it twice changes nothing."""

    def __init__(self, store: Store, clock: Clock, registry: Registry) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._is_done = False

    def sweep(self) -> int:
        """Set the timers of the next chunk of datasets, and return their count. Raises what the store raises."""
        if self._is_done:
            return 0
        row = self._store.get(CONTROL, _KEY, consistent=True)
        self._is_done = row is not None and row["is_done"]
        if self._is_done:
            return 0
        chunk = self._registry.export(None if row is None else row["checkpoint"])
        now_ms = int(self._clock.seconds() * 1000)
        promised = [
            each.dataset_urn
            for each in chunk.datasets
            if each.slos is not None and each.slos.freshness is not None and each.status is not DatasetStatus.DELETED
        ]
        for error in self._store.transact_many([[freshness_put(urn, now_ms, now_ms, absent())] for urn in promised]):
            if error is not None and not isinstance(error, ConflictError):
                raise error
        writes: list[Write] = [
            Put(
                CONTROL,
                {
                    **CONTROL.key_attributes(_KEY),
                    "checkpoint": chunk.checkpoint,
                    "is_done": not chunk.has_more,
                },
            )
        ]
        self._store.transact(writes)
        return len(promised)
