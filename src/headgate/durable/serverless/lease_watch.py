"""Lease watch: detects dead workers without a process that runs long enough to time their leases.

A sweep sends the heartbeat count of each worker as a message, delayed by the worker's lease. The receiver compares the
count with the worker's row. No clocks are compared: the delay of the queue is the lease time.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.engine.membership import Member, list_members
from headgate.durable.serverless.wakeups import Due, WorkerWake
from headgate.durable.worker.worker import Worker
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import WORKERS
from headgate.store.model.conditions import equals
from headgate.store.model.schema import Key
from headgate.store.port import Store

_log = structlog.get_logger(__name__)


class LeaseWatch:
    """Revokes the leases of dead workers, and reclaims their activities."""

    def __init__(self, worker: Worker, store: Store) -> None:
        """Take a worker that need not join the fleet: only its activity store is used."""
        self._worker = worker
        self._store = store

    def checks(self) -> Sequence[Due]:
        """Return a delayed check for every worker."""
        return [self._later(member, WorkerWake(member.worker_id, member.beats)) for member in list_members(self._store)]

    def check_of(self, worker_id: str, reason: str) -> Due | None:
        """Return a delayed check of a worker that may be dead for this reason; None if it has left."""
        member = self._member(worker_id)
        return None if member is None else self._later(member, WorkerWake(worker_id, member.beats, reason=reason))

    def check(self, wake: WorkerWake) -> Due | None:
        """Reclaim the activities of a worker without a heartbeat since, and return when to check for more of them."""
        member = self._member(wake.worker_id)
        if member is None or member.beats != wake.beats or not self._worker.fleet.revoke(member):
            return None
        reclaimed = self._worker.activities.reclaim(wake.worker_id, wake.reason)
        if reclaimed:
            _log.warning("activities of a dead worker reclaimed", worker_id=wake.worker_id, activities=reclaimed)
        elif wake.is_revoked:
            self._remove(member)
            return None
        # Checked once more: the last claims may not show in the index yet.
        return self._later(member, replace(wake, is_revoked=True))

    def _member(self, worker_id: str) -> Member | None:
        item = self._store.get(WORKERS, Key(worker_id), consistent=True)
        return None if item is None else typed_decode.convert(item, Member)

    def _remove(self, member: Member) -> None:
        try:
            self._store.delete(WORKERS, Key(member.worker_id), condition=equals("beats", member.beats))
        except ConflictError:
            return
        _log.info("dead worker removed", worker_id=member.worker_id)

    def _later(self, member: Member, wake: WorkerWake) -> Due:
        return Due(wake, self._worker.activities.now_ms() + round(1000 * member.lease_seconds))
