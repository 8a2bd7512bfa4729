"""Rows of freshness timers: one per dataset with a freshness SLO, due when its state changes if no report comes."""

from __future__ import annotations

import zlib
from typing import Final

from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key

DUE_SHARDS: Final = 4
_KIND: Final = "FRESHNESS"


def freshness_key(dataset_urn: str) -> Key:
    """Return the key of a dataset's freshness timer."""
    return Key(f"{_KIND}#{dataset_urn}", "STATE")


def freshness_partitions() -> list[str]:
    """Return all due-index partitions of freshness timers."""
    return [f"{_KIND}#{shard}" for shard in range(DUE_SHARDS)]


def freshness_put(dataset_urn: str, due_at_ms: int, expected_ms: int, condition: Condition | None = None) -> Put:
    """Return the write that sets a dataset's freshness timer.

    `expected_ms` is when the next report is expected without delay, as far as it was known when the timer was set. It
    counts if there is no signal: none was reported yet, or an old one expired.
    """
    return Put(
        CONTROL,
        {
            **CONTROL.key_attributes(freshness_key(dataset_urn)),
            "due_pk": f"{_KIND}#{zlib.crc32(dataset_urn.encode()) % DUE_SHARDS}",
            "due_at_ms": due_at_ms,
            "expected_ms": expected_ms,
            "dataset_urn": dataset_urn,
        },
        condition,
    )


def freshness_delete(dataset_urn: str, condition: Condition | None = None) -> Delete:
    """Return the delete of a dataset's freshness timer."""
    return Delete(CONTROL, freshness_key(dataset_urn), condition)
