"""News: what a transaction is about, for those who wait for the store and are not to be woken by everything."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cache
from typing import Final

from headgate.store.catalogue.tables import (
    AUDIT,
    CONTROL,
    DATASET_REGISTRY,
    DATASET_RESOLUTION,
    EVENTS,
    EVIDENCE_CACHE,
    FANOUT,
    INCIDENT_INDEX,
    PIPELINES,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.model.requests import Put, Write


class Topic(enum.IntFlag):
    """What those who wait tell apart."""

    # What is known of datasets. Whoever looks at it wants to know; no worker takes work from it.
    DATASETS = enum.auto()
    PIPELINES = enum.auto()
    CHUNKS = enum.auto()
    # Everything else.
    DURABLE = enum.auto()


# Some of them, as a plain number: every commit joins and compares them, and flags take ten times as long.
Topics = int
ANYTHING: Final[Topics] = int(Topic.DATASETS | Topic.PIPELINES | Topic.CHUNKS | Topic.DURABLE)
# What a worker of executions may find something to do in.
WORK: Final[Topics] = int(Topic.PIPELINES | Topic.CHUNKS | Topic.DURABLE)

_TOPICS: Final = {
    PIPELINES.name: Topic.PIPELINES,
    FANOUT.name: Topic.CHUNKS,
    **{
        table.name: Topic.DATASETS
        for table in (
            SIGNAL_STATE, SIGNAL_HISTORY, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE, AUDIT,
        )
    },
}  # fmt: skip
# What may be written along with what is known of datasets. An event for which someone has subscribed is work besides,
# in a table of its own.
_BESIDE: Final = frozenset((EVENTS.name, CONTROL.name))


def are_quiet(writes: Sequence[Write]) -> bool:
    """Whether nobody who waits for the store need be woken by these."""
    return all(type(write) is Put and write.quiet for write in writes)


def topics_of(writes: Sequence[Write]) -> Topics:
    """Return what these are about, if they are one transaction."""
    return _topics_of(frozenset([write.table.name for write in writes]))


@cache
def _topics_of(names: frozenset[str]) -> Topics:
    found = 0
    for name in names - _BESIDE:
        found |= _TOPICS.get(name, Topic.DURABLE)
    return int(found if found & Topic.DATASETS or names.isdisjoint(_BESIDE) else found | Topic.DURABLE)
