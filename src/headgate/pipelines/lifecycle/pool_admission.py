"""Pool admission: lets a ready run start its job when its pools have free slots, and frees them when the run ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import NotFoundError, StaleClaimError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.locks import evaluation_key, lifetime_seconds
from headgate.pipelines.runs.pool_decisions import Lease, Pool, PoolNeed, Ticket, offers, pool_needs
from headgate.pipelines.runs.pools import PoolWait, pool_of, waiting_text
from headgate.pipelines.runs.rows import Run, run_of
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Change

# How often the leases of all pools are compared with their runs.
SWEEP_SECONDS: Final = 30.0
_ENDED: Final = frozenset(status.value for status in RunStatus if status.is_terminal or status.is_done)


class PoolState(Struct, frozen=True):
    """A pool with its size, its leases and the first runs of its queue. Size None: it is no longer declared."""

    name: str
    size: int | None
    pool: Pool
    queue: list[Ticket]


class PoolAdmission:
    """Acquires and frees the slots that runs need. `tick` belongs to one thread; the other methods are thread-safe."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        waiters: Waiters,
        clock: Clock,
        sizes: Mapping[str, int],
    ) -> None:
        """`sizes` are the declared pools."""
        self.sizes = sizes
        self._stores = stores
        self._definitions = definitions
        self._waiters = waiters
        self._clock = clock
        # Pools behind `concurrency`, which no setting names, as this process meets them.
        self._own_sizes: dict[str, int] = {}
        self._sweep_at = 0.0

    def needs(self, pipeline: Pipeline) -> tuple[PoolNeed, ...]:
        """Return the slots that each run of a pipeline needs."""
        return pool_needs(pipeline, self.sizes)

    def admit(self, run: Run, pipeline: Pipeline) -> str:
        """Take the slots that a ready run needs. Returns why it has to wait; empty: it may start its job."""
        for need in self.needs(pipeline):
            self._remember(need)
            wait = self._stores.pools.acquire(run, need)
            if wait is not None:
                self._extend_lock(run, pipeline)
                return waiting_text(wait)
        return ""

    def leave(self, run: Run, pipeline: Pipeline) -> None:
        """Free the slots and the places in queues of a run that has ended or is not ready any more."""
        for need in self.needs(pipeline):
            if self._stores.pools.leave(run, need.pool) and need.size is not None:
                self._stores.pools.serve(need.pool, need.size)

    def wait_of(self, run: Run, pipeline: Pipeline) -> PoolWait | None:
        """Return the pool that a run waits for, or None."""
        waits = (self._stores.pools.wait_of(run, need) for need in self.needs(pipeline))
        return next((wait for wait in waits if wait is not None), None)

    def is_offered(self, run: Run, pipeline: Pipeline) -> bool:
        """Whether a slot is offered to a run that has not claimed it."""
        return any(self._stores.pools.is_offered(run.run_id, need.pool) for need in self.needs(pipeline))

    # Changes and time.

    def on_run_changed(self, item: Mapping[str, Any]) -> None:
        """Free the slots of a run that has ended, however it ended."""
        if item.get("status") not in _ENDED:
            return
        run = run_of(item)
        with suppress(NotFoundError):
            self.leave(run, self._definitions.of_run(run))

    def on_pool_changed(self, change: Change) -> None:
        """Wake the runs that got an offer."""
        if change.new is None or str(change.key.sort) != "STATE":
            return
        after = pool_of(change.new)
        before = None if change.old is None else pool_of(change.old)
        for lease in offers(before, after):
            self._waiters.wake(lease.slot, WaitKind.CHANGE, f"pool {after.name} offers a slot")

    def tick(self) -> None:
        """Compare leases with their runs, renew those of active runs, and serve the queues, from time to time."""
        now = self._clock.monotonic()
        if now < self._sweep_at:
            return
        self._sweep_at = now + SWEEP_SECONDS
        for name, size in {**self._own_sizes, **self.sizes}.items():
            self._stores.pools.sweep(name, size)
            for lease in self._stores.pools.get(name).leases:
                if not lease.is_claimed:
                    # The change that made the offer may have been lost with its consumer.
                    self._waiters.wake(lease.slot, WaitKind.CHANGE, f"pool {name} offers a slot")

    # Operators.

    def ls(self) -> list[PoolState]:
        """Return the declared pools."""
        return [self.show(name) for name in sorted(self.sizes)]

    def show(self, name: str) -> PoolState:
        """Return a pool. Raises `NotFoundError` for one that is neither declared nor in use."""
        pool, queue = self._stores.pools.get(name), self._stores.pools.queue(name, limit=1_000)
        size = self.sizes.get(name, self._own_sizes.get(name))
        if size is None and not pool.leases and not queue:
            known = ", ".join(sorted(self.sizes)) or "none"
            raise NotFoundError(f"pool {name}: it is not declared in pipelines.pools; declared: {known}")
        return PoolState(name, size, pool, queue)

    def free(self, name: str, run_id: str) -> Lease:
        """End the lease of a run, for example of one whose job has ended unseen. Raises `NotFoundError`."""
        state = self.show(name)
        freed = self._stores.pools.free(name, run_id)
        if freed is None:
            raise NotFoundError(f"pool {name}: run {run_id} holds no slot; see 'headgate pool show {name}'")
        if state.size is not None:
            self._stores.pools.serve(name, state.size)
        return freed

    def _remember(self, need: PoolNeed) -> None:
        if need.size is not None and need.pool not in self.sizes:
            self._own_sizes[need.pool] = need.size

    def _extend_lock(self, run: Run, pipeline: Pipeline) -> None:
        """Keep the lock of a period while its run waits: no definition limits that time."""
        key, seconds = evaluation_key(run.slot), lifetime_seconds(pipeline)
        lock = self._stores.locks.find(key)
        if lock is None or lock.token != run.lock_token or lock.expires_at - self._clock.seconds() > seconds / 2:
            return
        # A lost lock is noticed where it is needed: when the job is triggered.
        with suppress(StaleClaimError):
            self._stores.locks.renew(lock, seconds)
