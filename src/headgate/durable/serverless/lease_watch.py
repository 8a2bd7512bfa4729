"""The watch over workers where nobody stays long enough to watch: what was seen of a worker travels in a message.

A sweep sends how many signs of life each worker has given. Whoever gets that message after the worker's lease looks
whether there was another one since. No two clocks are compared: the queue alone says that the time has passed.
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


class WorkerWatch:
    """Gives up workers that are dead, and has others perform what they had claimed."""

    def __init__(self, worker: Worker, store: Store) -> None:
        """Take a worker that joins nobody: only what it knows of others is needed."""
        self._worker = worker
        self._store = store

    def seen(self) -> Sequence[Due]:
        """Return for every worker when to look whether it still lives."""
        return [self._later(member, WorkerWake(member.worker_id, member.beats)) for member in list_members(self._store)]

    def look(self, wake: WorkerWake) -> Due | None:
        """Give up a worker that has not shown itself since, and return when to look again at what it leaves behind."""
        item = self._store.get(WORKERS, Key(wake.worker_id), consistent=True)
        member = None if item is None else typed_decode.convert(item, Member)
        if member is None or member.beats != wake.beats or not self._worker.fleet.give_up(member):
            return None
        taken = self._worker.activities.reap(wake.worker_id)
        if taken:
            _log.warning("took over from a dead worker", worker_id=wake.worker_id, activities=taken)
        elif wake.is_given_up:
            self._bury(member)
            return None
        # Once more: what it claimed last may not show in the index yet.
        return self._later(member, replace(wake, is_given_up=True))

    def _bury(self, member: Member) -> None:
        try:
            self._store.delete(WORKERS, Key(member.worker_id), condition=equals("beats", member.beats))
        except ConflictError:
            return
        _log.info("worker is gone", worker_id=member.worker_id)

    def _later(self, member: Member, wake: WorkerWake) -> Due:
        return Due(wake, self._worker.activities.now_ms() + round(1000 * member.lease_seconds))
