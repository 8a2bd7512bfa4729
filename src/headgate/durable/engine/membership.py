"""Fleet: the workers that share a store, their leases, and which worker owns which execution.

A worker's row is its lease, and the lease of every claim it holds. Ownership of an execution is a hint that avoids
races; the version of the execution's row decides them.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.engine.build_routing import candidates, has_untried, is_mixed
from headgate.durable.engine.deployments import Deployment, Deployments
from headgate.durable.model.records import Execution
from headgate.durable.model.worker_limits import WorkerLimits, WorkerUsage
from headgate.errors import ConflictError, OutcomeUnknownError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import WORKERS
from headgate.store.model.conditions import Condition, all_of, equals, exists, lacks
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store


@lru_cache(maxsize=1)
def this_host() -> str:
    """Return a name of this machine, different for containers that share a host name but not their processes."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return f"{socket.gethostname()} {processes}".strip()


def is_running(pid: int) -> bool:
    """Whether a process of this host is running."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


LEASE_SECONDS: Final = 10.0
_FLEET: Final = "FLEET"
# The condition for a worker to claim.
MEMBER: Final[Condition] = all_of(exists(), lacks("is_given_up"))
_PAGE: Final = 500


class Member(Struct, frozen=True, omit_defaults=True):
    """The row of a worker: its lease and what it serves."""

    worker_id: str
    # Heartbeat count. Other workers time its changes by their own clocks, so that no wall clock is trusted.
    beats: int
    started_at_ms: int
    lease_seconds: float
    fleet: str = _FLEET
    host: str = ""
    pid: int = 0
    app: str = ""
    workflows: tuple[str, ...] = ()
    activities: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    # The schedules that its app declares, with the digest of each declaration.
    schedules: tuple[str, ...] = ()
    # The id of its code; empty for workers of earlier versions of Headgate.
    build: str = ""
    # The workflows whose executions it pins to its build.
    pinned: tuple[str, ...] = ()
    # The patches in the code of its workflows, by workflow.
    patches: dict[str, list[str]] = {}
    # Set by another worker after the lease expired: the worker can claim nothing more, and its claims are reclaimed.
    is_revoked: bool = msgspec.field(default=False, name="is_given_up")
    seen_at_ms: int = 0
    limits: WorkerLimits | None = None
    # As of its last heartbeat.
    usage: WorkerUsage | None = None

    @property
    def lease_until_ms(self) -> int:
        """When the lease expires by the wall clock."""
        return self.seen_at_ms + round(1000 * self.lease_seconds)

    def seems_alive(self, now_ms: int) -> bool:
        """Whether the lease is valid by the wall clock, for displays. Workers use `Fleet.is_alive`."""
        return not self.is_revoked and now_ms <= self.lease_until_ms


class Fleet:
    """The membership of one worker, and its view of the other workers."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        lease_seconds: float = LEASE_SECONDS,
        host: str | None = None,
        worker_id: str = "",
        build: str = "",
        limits: WorkerLimits | None = None,
        usage: Callable[[], WorkerUsage] | None = None,
    ) -> None:
        """`host` names the machine: workers with the same one check each other's process id. Default: this machine.

        `worker_id` is the id until `join` makes a new one. `build` names the code of this worker. `limits` and `usage`
        are for displays.
        """
        self.worker_id = worker_id
        self.build = build
        # Whether other live workers serve other workflows, or the same with other code.
        self.is_mixed = False
        self.lease_seconds = lease_seconds
        self._limits = limits
        self._usage = usage
        self._host = this_host() if host is None else host
        self._store = store
        self._clock = clock
        self._ids = ids
        self._member: Member | None = None
        self._others: list[Member] = []
        self._stored_deployments = Deployments(store)
        self._deployments: dict[str, Deployment] = {}
        self._lease_until = 0.0
        # By worker: its last heartbeat count, and since when that has not changed.
        self._watched: dict[str, tuple[int, float]] = {}
        self._revoked_at: dict[str, float] = {}

    def join(
        self,
        app: str,
        workflows: Collection[str],
        activities: Collection[str],
        queues: Collection[str],
        *,
        pinned: Collection[str] = (),
        patches: Mapping[str, Sequence[str]] | None = None,
        schedules: Collection[str] = (),
        alone: bool = False,
    ) -> None:
        """Register as a worker under a new id. `pinned` are the workflows whose executions it pins to its build.

        `patches` are those in the code of its workflows. `schedules` are those that its app declares, with the digest
        of each. A worker that is `alone` does not read the
        rows of the others: it advances no execution, and there may be thousands of its kind.
        """
        now_ms = self._now_ms()
        self.worker_id = self._ids.make("wrk")
        self._member = Member(
            worker_id=self.worker_id,
            beats=1,
            started_at_ms=now_ms,
            lease_seconds=self.lease_seconds,
            seen_at_ms=now_ms,
            host=self._host,
            pid=os.getpid(),
            app=app,
            workflows=tuple(sorted(workflows)),
            activities=tuple(sorted(activities)),
            queues=tuple(sorted(queues)),
            schedules=tuple(sorted(schedules)),
            limits=self._limits,
            build=self.build,
            pinned=tuple(sorted(pinned)),
            patches={name: list(found) for name, found in sorted((patches or {}).items())},
        )
        self._lease_until = self._clock.monotonic() + self.lease_seconds
        # The index needs the attribute, which is omitted as a default.
        self._store.put(WORKERS, {**msgspec.to_builtins(self._member), "fleet": _FLEET})
        if not alone:
            self.refresh()

    def renew(self) -> bool:
        """Extend the lease. False if it was revoked: other workers reclaim the claims of this one."""
        assert self._member is not None, "join first"
        asked_at = self._clock.monotonic()
        usage = None if self._usage is None else self._usage()
        renewed = msgspec.structs.replace(
            self._member, beats=self._member.beats + 1, seen_at_ms=self._now_ms(), usage=usage
        )
        change: Item = {"beats": renewed.beats, "seen_at_ms": renewed.seen_at_ms}
        if usage is not None:
            change["usage"] = msgspec.to_builtins(usage)
        try:
            self._store.update(WORKERS, Key(self.worker_id), set=change, condition=MEMBER)
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        self._member = renewed
        self._lease_until = asked_at + self.lease_seconds
        return True

    @property
    def is_alone(self) -> bool:
        """Whether there was no other worker when the fleet was read last."""
        return not self._others

    def has_lease(self) -> bool:
        """Whether the lease is certainly valid: no other worker can have revoked it yet."""
        return self._member is not None and self._clock.monotonic() < self._lease_until

    def refresh(self) -> None:
        """Read the rows of the other workers."""
        found: list[Member] = []
        cursor = None
        while True:
            page = self._store.query(
                Query(table=WORKERS, index="fleet-index", partition=_FLEET, limit=_PAGE, cursor=cursor)
            )
            found += [typed_decode.convert(item, Member) for item in page.items]
            cursor = page.cursor
            if cursor is None:
                break
        self._others = [member for member in found if member.worker_id != self.worker_id]
        self._watch()
        self._deployments = self._stored_deployments.all()
        self.is_mixed = is_mixed([member for member in self.members() if member.workflows and self.is_alive(member)])

    def _watch(self) -> None:
        now = self._clock.monotonic()
        watched: dict[str, tuple[int, float]] = {}
        for member in self._others:
            beats, since = self._watched.get(member.worker_id, (-1, now))
            watched[member.worker_id] = (beats, since) if beats == member.beats else (member.beats, now)
        self._watched = watched
        self._revoked_at = {
            member.worker_id: self._revoked_at.get(member.worker_id, now)
            for member in self._others
            if member.is_revoked
        }

    def is_alive(self, member: Member) -> bool:
        """Whether a worker has sent a heartbeat within its lease, as timed by this one.

        A worker on the same host is dead as soon as its process is gone.
        """
        if member.is_revoked:
            return False
        if member.worker_id == self.worker_id:
            return True
        if member.host == self._host and not is_running(member.pid):
            return False
        _, since = self._watched.get(member.worker_id, (0, self._clock.monotonic()))
        return self._clock.monotonic() - since <= member.lease_seconds

    def leave(self) -> None:
        """Deregister. Release all claims first."""
        if self._member is not None:
            self._store.delete(WORKERS, Key(self.worker_id))
            self._member = None

    def revoke(self, member: Member) -> bool:
        """Revoke an expired lease, so that the worker can claim nothing more. False if it has sent a heartbeat."""
        if member.is_revoked:
            return True
        try:
            self._store.update(
                WORKERS,
                Key(member.worker_id),
                set={"is_given_up": True},
                condition=equals("beats", member.beats),
            )
        except ConflictError:
            return False
        return True

    def remove(self, member: Member) -> bool:
        """Delete the row of a worker whose lease was revoked and that has no claims left. False if it is too early.

        The row stays for one lease time: the last claims may not show in the index yet.
        """
        since = self._revoked_at.get(member.worker_id)
        if since is None or self._clock.monotonic() - since < member.lease_seconds:
            return False
        try:
            self._store.delete(WORKERS, Key(member.worker_id), condition=equals("beats", member.beats))
        except ConflictError:
            return False
        return True

    def members(self) -> list[Member]:
        """Return all known workers, this one first."""
        return ([self._member] if self._member is not None else []) + self._others

    def declared_schedules(self, app: str) -> set[str]:
        """Return what the other live workers of an app declare, as their rows have it."""
        alive = [member for member in self._others if member.app == app and self.is_alive(member)]
        return {entry for member in alive for entry in member.schedules}

    def dead(self) -> list[Member]:
        """Return the workers whose lease has expired or was revoked."""
        return [member for member in self._others if not self.is_alive(member)]

    def owns(self, execution_id: str, row: Execution | None = None) -> bool:
        """Whether this worker, of all live workers, is to advance an execution. With its row, its build counts too."""
        if not self._others:
            return True
        able = [member.worker_id for member in self._able(row)]
        if row is not None and self.worker_id not in able:
            return False
        mine = _weight(self.worker_id, execution_id)
        return all(_weight(each, execution_id) < mine for each in able if each != self.worker_id)

    def pins(self, workflow: str) -> bool:
        """Whether this worker pins executions of a workflow. One that has not joined does not."""
        return self._member is not None and workflow in self._member.pinned

    def may_advance(self, row: Execution) -> bool:
        """Whether this worker, which has the workflow, may take the next turn of an execution.

        A worker that has not joined always may.
        """
        own = self._member
        if own is None:
            return True
        if row.workflow not in own.workflows:
            # Declared after it joined.
            own = msgspec.structs.replace(own, workflows=(*own.workflows, row.workflow))
        alive = [own, *[member for member in self._others if self.is_alive(member)]]
        able = candidates(alive, row, self._deployments)
        return any(member is own for member in able)

    def has_untried_build(self, row: Execution) -> bool:
        """Whether a live worker has code that has not failed at the next turn of an execution. Reads the fleet."""
        if self._member is None:
            return False
        self.refresh()
        return has_untried(self._alive(), row, self._deployments)

    def _able(self, row: Execution | None) -> list[Member]:
        alive = [member for member in self._alive() if member.workflows]
        # If no live worker may take a turn, one of them still ends the execution when it is terminated.
        return alive if row is None else candidates(alive, row, self._deployments) or alive

    def _alive(self) -> list[Member]:
        return [member for member in self.members() if self.is_alive(member)]

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def list_members(store: Store) -> Sequence[Member]:
    """Return every worker of a store, for displays."""
    page = store.query(Query(table=WORKERS, index="fleet-index", partition=_FLEET, limit=_PAGE))
    return [typed_decode.convert(item, Member) for item in page.items]


def _weight(worker_id: str, execution_id: str) -> int:
    """Return a rendezvous hash: the worker with the highest weight owns the execution."""
    drawn = hashlib.blake2b(f"{worker_id}\0{execution_id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big")
