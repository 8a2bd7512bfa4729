"""Commit topics: classify transactions by table, so that waiters wake only for commits they care about."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cache
from operator import attrgetter
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
    """A class of commits that `Store.wait` can filter by."""

    # Dataset health. Watchers wait for it; no worker claims work from it.
    DATASETS = enum.auto()
    PIPELINES = enum.auto()
    CHUNKS = enum.auto()
    # Everything else.
    DURABLE = enum.auto()


# A set of topics as a plain integer: every commit combines them, and enum flags are ten times slower.
Topics = int
ANYTHING: Final[Topics] = int(Topic.DATASETS | Topic.PIPELINES | Topic.CHUNKS | Topic.DURABLE)
# The topics in which an execution worker finds work.
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
# Tables that dataset transactions also write. A subscribed event is work in a table of its own.
_INCIDENTAL: Final = frozenset((EVENTS.name, CONTROL.name))


# The topics of the writes of a step, which are always of the same tables.
STEP_TOPICS: Final[Topics] = int(Topic.DURABLE)

_table_name: Final = attrgetter("table.name")


def are_quiet(writes: Sequence[Write]) -> bool:
    """Whether these writes wake no waiters."""
    return all(type(write) is Put and write.quiet for write in writes)


def topics_of(writes: Sequence[Write]) -> Topics:
    """Return the topics of one transaction."""
    return _topics_of(frozenset(map(_table_name, writes)))


@cache
def _topics_of(names: frozenset[str]) -> Topics:
    topics = 0
    for name in names - _INCIDENTAL:
        topics |= _TOPICS.get(name, Topic.DURABLE)
    return int(topics if topics & Topic.DATASETS or names.isdisjoint(_INCIDENTAL) else topics | Topic.DURABLE)
