"""Retirement: updates the signals and incidents of a dataset that was deleted, restored, or has another tier or team.

The change of the dataset writes a timer row in its own transaction. The process that made the change retires the
dataset at once; a sweep does it again a minute later, when no process has the old dataset in its cache, and so
finishes the work of a process that crashed. Running it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, NotFoundError, StoreBusyError, TransientError
from headgate.health.incidents.decisions import aligned
from headgate.health.incidents.rows import TimerKind, due_put, open_query
from headgate.health.incidents.service import Incidents
from headgate.health.model.datasets import Dataset, DatasetProfile, DatasetStatus
from headgate.health.model.enums import SignalState
from headgate.health.model.incidents import Changes, Incident, Resolution
from headgate.health.model.signals import signal_key
from headgate.health.signals.reads import SIGNALS_OF_A_DATASET_MAX
from headgate.health.signals.rows import QUIET_DAYS, signal_of, signal_row
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import CONTROL, SIGNAL_STATE
from headgate.store.model.conditions import equals, version_is
from headgate.store.model.requests import Delete, Poll, Put, Query, Range, Sort, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

DUE: Final = "RETIREMENT"
# By then every process has reloaded the dataset.
LOOK_AGAIN_MS: Final = 60_000


def retirement_key(dataset_urn: str) -> Key:
    """Return the key of a dataset's timer row."""
    return Key(f"RETIREMENT#{dataset_urn}", "STATE")


def retirement_put(dataset_urn: str, now_ms: int) -> Put:
    """Return the write that schedules retirement of a deleted or restored dataset."""
    return Put(
        CONTROL,
        {
            **CONTROL.key_attributes(retirement_key(dataset_urn)),
            "due_pk": DUE,
            "due_at_ms": now_ms + LOOK_AGAIN_MS,
            "dataset_urn": dataset_urn,
        },
    )


BATCH: Final = 100
ATTEMPTS_MAX: Final = 10
REASON: Final = "dataset deleted"
# Closed, not resolved: after a restore, the same failure opens a new incident instead of reopening this one.
_CLOSED: Final = "CLOSED"


class Retirement:
    """Retires and restores signals and incidents with their dataset. Safe to run in any number of processes."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        cache: Cache,
        incidents: Incidents,
        *,
        stored: Callable[[str], Dataset | None],
        quiet_days: int = QUIET_DAYS,
    ) -> None:
        """Take the store. `stored` returns the stored dataset of exactly this URN, deleted or not."""
        self._store = store
        self._clock = clock
        self._cache = cache
        self._incidents = incidents
        self._stored = stored
        self._quiet_days = quiet_days

    def on_dataset_changed(self, dataset_urn: str) -> None:
        """Settle a dataset right after its change. On a store failure, a later sweep does it."""
        try:
            self.settle(dataset_urn)
        except TransientError:
            # The change and its timer row are durable.
            return

    def sweep(self, *, limit: int = BATCH) -> int:
        """Settle every dataset whose timer is due, and return their count. Raises `TransientError`."""
        due = Sort(Range.AT_MOST, int(self._clock.seconds() * 1000))
        page = self._store.query(
            Query(table=CONTROL, index="due-index", partition=DUE, sort=due, limit=limit, poll=Poll.RELAXED)
        )
        for row in page.items:
            self.settle(row["dataset_urn"])
            try:
                self._store.transact(
                    [Delete(CONTROL, retirement_key(row["dataset_urn"]), equals("due_at_ms", row["due_at_ms"]))]
                )
            except ConflictError:
                # The dataset changed again, and its timer was reset.
                continue
        return len(page.items)

    def settle(self, dataset_urn: str) -> None:
        """Bring signals and incidents of a dataset in line with its status, tier and team. Raises `TransientError`."""
        dataset = self._stored(dataset_urn)
        if dataset is None:
            return
        if dataset.status is DatasetStatus.DELETED:
            self.end_incidents(dataset_urn, REASON, dataset.updated_by)
            self._each_signal(dataset_urn, self._unlisted)
        else:
            self._each_signal(dataset_urn, lambda row: self._listed(row, dataset))
            self._align_incidents(dataset)

    def end_incidents(self, dataset_urn: str, reason: str, actor: str) -> list[str]:
        """Resolve the open incidents of this dataset alone, and return their ids."""
        urn, ended = dataset_urn, []
        changes = Changes(status=_CLOSED, reason=reason, resolution=Resolution(root_cause=reason))
        for row in self._store.query(replace(open_query(urn), consistent=True)).items:
            try:
                incident = self._incidents.get(row["incident_id"])
            except NotFoundError:
                continue
            is_shared = any(link.dataset_urn != urn for link in incident.links)
            if incident.is_open and incident.primary_dataset_urn == urn and not is_shared:
                self._incidents.change(incident.incident_id, changes, actor=actor)
                ended.append(incident.incident_id)
        return ended

    def _align_incidents(self, dataset: Dataset) -> None:
        """Give the open incidents of a dataset its tier and team, and the severity that follows."""
        profile = DatasetProfile(dataset.tier, dataset.owner_team)

        def decide(incident: Incident, now_ms: int) -> Incident:
            return aligned(incident, profile, now_ms) if incident.is_open else incident

        for row in self._store.query(replace(open_query(dataset.dataset_urn), consistent=True)).items:
            try:
                incident = self._incidents.get(row["incident_id"])
            except NotFoundError:
                continue
            if incident.primary_dataset_urn == dataset.dataset_urn:
                self._incidents.change_by_system(incident.incident_id, decide)

    def _each_signal(self, urn: str, writes: Callable[[Item], list[Write]]) -> None:
        """Write each signal of a dataset for which `writes` returns changes. Raises `StoreBusyError`."""
        for _ in range(ATTEMPTS_MAX):
            query = Query(table=SIGNAL_STATE, partition=urn, limit=SIGNALS_OF_A_DATASET_MAX, consistent=True)
            changes = [made for row in self._store.query(query).items if (made := writes(row))]
            if not changes:
                return
            try:
                for each in changes:
                    self._store.transact(each)
            except ConflictError:
                # Another writer changed a signal: read it again.
                continue
            finally:
                self._cache.invalidate(cache_keys.signal_states_of(urn))
        raise StoreBusyError(f"signals of {urn}: {ATTEMPTS_MAX} conflicts with other writers; the next sweep retries")

    def _unlisted(self, row: Item) -> list[Write]:
        """Return the writes that take a signal in breach out of the breach index and out of a shared incident."""
        if row["state"] == SignalState.OK or "breach_pk" not in row:
            return []
        expires = int(self._clock.seconds()) + self._quiet_days * 86_400
        update = Update(
            SIGNAL_STATE,
            signal_key(row["PK"], row["SK"]),
            set={"incident_id": None, "ttl": expires, "version": row["version"] + 1},
            remove=("breach_pk", "breach_sk"),
            condition=version_is(row["version"]),
        )
        held = row.get("incident_id")
        # It may have been the incident's last signal in breach.
        timers = [] if held is None else [due_put(TimerKind.RECOVERY, held, int(self._clock.seconds() * 1000))]
        return [update, *timers]

    def _listed(self, row: Item, dataset: Dataset) -> list[Write]:
        """Return the write that gives a signal the dataset's tier and team, and lists it if it is in breach."""
        is_listed = row["state"] == SignalState.OK or "breach_pk" in row
        if is_listed and (row["tier"], row["owner_team"]) == (dataset.tier.value, dataset.owner_team):
            return []
        signal = signal_of(row)
        after = replace(signal, version=signal.version + 1, tier=dataset.tier, owner_team=dataset.owner_team)
        again = signal_row(after, int(self._clock.seconds()), self._quiet_days)
        return [Put(SIGNAL_STATE, again, version_is(row["version"]))]
