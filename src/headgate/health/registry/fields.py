"""Dataset fields in the registry: one row for each dataset with its observed schema and the latest changes."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from headgate import typed_decode
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.model.dataset_fields import DatasetFields, Observation, folded
from headgate.health.model.urns import dataset_urn
from headgate.store.catalogue.tables import DATASET_FIELDS, DATASET_REGISTRY
from headgate.store.model.conditions import absent, version_is
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 10


class FieldIndex:
    """Reads and writes the fields of datasets. Safe to use from many threads and processes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, urn: str) -> DatasetFields:
        """Return the fields of a dataset; none if no tool reported any."""
        item = self._store.get(DATASET_REGISTRY, DATASET_FIELDS.key(dataset_urn=dataset_urn(urn)), consistent=True)
        return DatasetFields(dataset_urn=urn) if item is None else typed_decode.convert(item, DatasetFields)

    def move(self, urn: str, into: str) -> None:
        """Give the fields of a dataset to another one that has none."""
        found = self.get(urn)
        if found.version == 0 or self.get(into).version > 0:
            return
        item = {
            **msgspec.to_builtins(msgspec.structs.replace(found, dataset_urn=into, version=1)),
            **DATASET_REGISTRY.key_attributes(DATASET_FIELDS.key(dataset_urn=into)),
        }
        with suppress(ConflictError):
            # A tool reported the fields meanwhile.
            self._store.put(DATASET_REGISTRY, item, condition=absent())

    def observe(self, urn: str, seen: Observation) -> tuple[DatasetFields, DatasetFields]:
        """Store an observation, and return the fields before and after it. Repeating it changes nothing.

        Raises `StoreBusyError` after too many conflicts with other writers.
        """
        for _ in range(ATTEMPTS_MAX):
            before = self.get(urn)
            after = folded(before, seen)
            if after is before:
                return before, before
            after = msgspec.structs.replace(after, version=before.version + 1)
            item = {
                **msgspec.to_builtins(after),
                **DATASET_REGISTRY.key_attributes(DATASET_FIELDS.key(dataset_urn=urn)),
            }
            condition = absent() if before.version == 0 else version_is(before.version)
            try:
                self._store.put(DATASET_REGISTRY, item, condition=condition)
            except ConflictError:
                continue
            return before, after
        raise StoreBusyError(f"fields of {urn}: {ATTEMPTS_MAX} conflicts with other writers; try again")
