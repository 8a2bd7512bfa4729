"""Dataset fields in the registry: one row for each dataset with its observed schema and the latest changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from headgate import typed_decode
from headgate.errors import ConflictError, StoreBusyError
from headgate.health.model.dataset_fields import DatasetFields, Observation, folded
from headgate.health.model.urns import dataset_urn
from headgate.store.catalogue.tables import DATASET_FIELDS, DATASET_REGISTRY
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 10
TOGETHER: Final = 100


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

    def observe_many(self, seen: Sequence[tuple[str, Observation]]) -> list[tuple[DatasetFields, DatasetFields]]:
        """Store observations of different datasets as `observe` does, in few transactions; answers are in order."""
        found: list[tuple[DatasetFields, DatasetFields]] = []
        for start in range(0, len(seen), TOGETHER):
            found += self._observe_together(seen[start : start + TOGETHER])
        return found

    def _observe_together(
        self, seen: Sequence[tuple[str, Observation]]
    ) -> Iterator[tuple[DatasetFields, DatasetFields]]:
        keys = [DATASET_FIELDS.key(dataset_urn=dataset_urn(urn)) for urn, _ in seen]
        rows = self._store.get_many(DATASET_REGISTRY, keys, consistent=True)
        pairs = []
        for (urn, observation), item in zip(seen, rows, strict=True):
            before = DatasetFields(dataset_urn=urn) if item is None else typed_decode.convert(item, DatasetFields)
            pairs.append((before, _next(before, observation)))
        changed = [pair for pair in pairs if pair[1] is not pair[0]]
        outcomes = iter(self._store.transact_many([[_put(*pair)] for pair in changed]) if changed else [])
        for (urn, observation), (before, after) in zip(seen, pairs, strict=True):
            error = next(outcomes) if after is not before else None
            if error is not None and not isinstance(error, ConflictError):
                raise error
            yield (before, after) if error is None else self.observe(urn, observation)

    def observe(self, urn: str, seen: Observation) -> tuple[DatasetFields, DatasetFields]:
        """Store an observation, and return the fields before and after it. Repeating it changes nothing.

        Raises `StoreBusyError` after too many conflicts with other writers.
        """
        for _ in range(ATTEMPTS_MAX):
            before = self.get(urn)
            after = _next(before, seen)
            if after is before:
                return before, before
            try:
                self._store.transact([_put(before, after)])
            except ConflictError:
                continue
            return before, after
        raise StoreBusyError(f"fields of {urn}: {ATTEMPTS_MAX} conflicts with other writers; try again")


def _next(before: DatasetFields, seen: Observation) -> DatasetFields:
    after = folded(before, seen)
    return before if after is before else msgspec.structs.replace(after, version=before.version + 1)


def _put(before: DatasetFields, after: DatasetFields) -> Put:
    key = DATASET_FIELDS.key(dataset_urn=after.dataset_urn)
    item = {**msgspec.to_builtins(after), **DATASET_REGISTRY.key_attributes(key)}
    return Put(DATASET_REGISTRY, item, absent() if before.version == 0 else version_is(before.version))
