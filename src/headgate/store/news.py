"""News: whom a transaction concerns of those who wait for the store in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.store.tables import (
    AUDIT,
    CONTROL,
    DATASET_REGISTRY,
    DATASET_RESOLUTION,
    EVENTS,
    EVIDENCE_CACHE,
    INCIDENT_INDEX,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.writes import Put, Write

# What is known of datasets. Whoever looks at it wants to know; no worker takes work from it.
_KNOWN: Final = frozenset(
    table.name
    for table in (
        SIGNAL_STATE, SIGNAL_HISTORY, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE, AUDIT,
    )
)  # fmt: skip
# What is written along with it. An event for which someone has subscribed is work besides, in a table of its own.
_KNOWN_OR_BESIDE: Final = _KNOWN | {EVENTS.name, CONTROL.name}


def are_quiet(writes: Sequence[Write]) -> bool:
    """Whether nobody who waits for the store need be woken by these."""
    return all(type(write) is Put and write.quiet for write in writes)


def concerns_workers(writes: Sequence[Write]) -> bool:
    """Whether workers may find something to do in these: they change more than what is known of datasets."""
    names = {write.table.name for write in writes}
    return names.isdisjoint(_KNOWN) or not names <= _KNOWN_OR_BESIDE
