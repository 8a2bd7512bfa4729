"""Upstream health: which of the datasets that feed a dataset are in trouble now.

A dataset is in trouble if one of its signals is CRITICAL, or if a person opened a SEV_1 incident on it. There are few
of them, so all are read together, at most once a second, whatever the number of gate requests. Troubles that hold a
dataset are confirmed by their own rows: a pipeline that a recovery has woken must not be held by an older reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.health.incidents.rows import Sealer, Unsealed, incident_key, incident_of
from headgate.health.lineage.blast_radius import DatasetsWithin
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier
from headgate.health.model.signals import signal_key
from headgate.health.signals.rows import breach_partition, signal_of
from headgate.store.catalogue.tables import BREACH_SHARDS, INCIDENT_INDEX, SIGNAL_STATE
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.port import Store

REFRESH_SECONDS: Final = 1.0
# Of each index partition. More than this is an outage of everything, and each answer says that it is incomplete.
ROWS_MAX: Final = 500
# The nearest troubles, which an answer names and a hold confirms.
NAMED_MAX: Final = 10


class Trouble(Struct, frozen=True):
    """A fact that makes a dataset unhealthy."""

    dataset_urn: str
    message: str
    since: str
    signal_type: str | None = None
    incident_id: str | None = None


class UpstreamTrouble(Struct, frozen=True):
    """A trouble of a dataset upstream, and its distance in producers."""

    trouble: Trouble
    distance: int


class UpstreamFacts(Struct, frozen=True):
    """The troubles upstream of a dataset, nearest first. `complete`: none can be missing."""

    troubles: tuple[UpstreamTrouble, ...] = ()
    complete: bool = True


class UpstreamHealth:
    """Finds unhealthy datasets upstream. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        within: Callable[[str, int], DatasetsWithin],
        *,
        sealer: Sealer | None = None,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        """Take the store, and `within`, which returns the datasets up to some producers upstream of a dataset."""
        self._store = store
        self._clock = clock
        self._within = within
        self._sealer = sealer if sealer is not None else Unsealed()
        self._refresh_seconds = refresh_seconds
        self._lock = threading.Lock()
        self._troubles: dict[str, list[Trouble]] = {}
        self._is_complete = True
        self._refreshed: float | None = None

    def of(self, dataset_urn: str, hops: int, holds: bool = False) -> UpstreamFacts:  # noqa: FBT001,FBT002
        """Return the troubles up to `hops` producers upstream, at most a second old. Raises what the store raises.

        `holds`: they hold the dataset. If one of the nearest has ended since the last reading, all are read again.
        """
        facts = self._facts(dataset_urn, hops, *self._current())
        if holds and facts.troubles and self._has_ended(first_troubles(facts, NAMED_MAX)):
            with self._lock:
                self._refreshed = None
            return self._facts(dataset_urn, hops, *self._current())
        return facts

    def _facts(
        self,
        dataset_urn: str,
        hops: int,
        troubles: Mapping[str, Sequence[Trouble]],
        is_complete: bool,  # noqa: FBT001
    ) -> UpstreamFacts:
        if not troubles and is_complete:
            return UpstreamFacts()
        upstream = self._within(dataset_urn, hops)
        found = [
            UpstreamTrouble(trouble, distance)
            for urn, distance in sorted(upstream.distances.items(), key=lambda each: (each[1], each[0]))
            for trouble in troubles.get(urn, ())
        ]
        return UpstreamFacts(tuple(found), is_complete and upstream.complete)

    def _has_ended(self, troubles: Sequence[UpstreamTrouble]) -> bool:
        """Whether the rows say that one of some troubles has ended."""
        of_signals = [each.trouble for each in troubles if each.trouble.signal_type is not None]
        keys = [signal_key(each.dataset_urn, each.signal_type or "") for each in of_signals]
        for row in self._store.get_many(SIGNAL_STATE, keys, consistent=True):
            if row is None or signal_of(row).state is not SignalState.CRITICAL:
                return True
        of_incidents = [each.trouble for each in troubles if each.trouble.signal_type is None]
        keys = [incident_key(each.incident_id or "") for each in of_incidents]
        for row in self._store.get_many(INCIDENT_INDEX, keys, consistent=True):
            incident = None if row is None else incident_of(row, self._sealer)
            if incident is None or not incident.is_open or incident.severity is not Severity.SEV_1:
                return True
        return False

    def _current(self) -> tuple[dict[str, list[Trouble]], bool]:
        with self._lock:
            now = self._clock.monotonic()
            if self._refreshed is None or now - self._refreshed >= self._refresh_seconds:
                self._troubles, self._is_complete = self._read()
                self._refreshed = now
            return self._troubles, self._is_complete

    def _read(self) -> tuple[dict[str, list[Trouble]], bool]:
        signals = [
            Query(
                table=SIGNAL_STATE,
                index="breach-index",
                partition=breach_partition(SignalState.CRITICAL, tier, shard),
                limit=ROWS_MAX,
            )
            for tier in Tier
            for shard in range(BREACH_SHARDS)
        ]
        incidents = [
            Query(
                table=INCIDENT_INDEX,
                index="status-severity-index",
                partition=f"STATUS#{status}",
                sort=Sort(Range.BEGINS_WITH, f"{Severity.SEV_1}#"),
                limit=ROWS_MAX,
            )
            for status in (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED)
        ]
        pages = self._store.query_many([*signals, *incidents])
        found: dict[str, list[Trouble]] = {}
        for page in pages[: len(signals)]:
            for row in page.items:
                each = signal_of(row)
                message = f"{each.signal_type} of {each.dataset_urn} is CRITICAL: {each.value.failure_signature}"
                trouble = Trouble(each.dataset_urn, message, each.since, each.signal_type, each.value.incident_id)
                found.setdefault(each.dataset_urn, []).append(trouble)
        for page in pages[len(signals) :]:
            for row in page.items:
                incident = incident_of(row, self._sealer)
                # The signals of other incidents say themselves whether they are CRITICAL.
                for urn in () if incident.links else incident.dataset_urns:
                    message = f"{incident.incident_id} is {incident.status} ({incident.severity}): {incident.title}"
                    since = incident.episode_started_at or incident.created_at
                    trouble = Trouble(urn, message, since, incident_id=incident.incident_id)
                    found.setdefault(urn, []).append(trouble)
        return found, all(page.cursor is None for page in pages)


def first_troubles(facts: UpstreamFacts, limit: int) -> Sequence[UpstreamTrouble]:
    """Return one trouble of each dataset upstream, nearest first, up to a limit."""
    first: dict[str, UpstreamTrouble] = {}
    for each in facts.troubles:
        first.setdefault(each.trouble.dataset_urn, each)
    return list(first.values())[:limit]
