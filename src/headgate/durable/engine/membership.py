"""The fleet: the worker processes that share a store, who of them is alive, and whose an execution is.

A worker's row is its lease, and with it the lease on everything it has claimed. Whose an execution is is a hint that
spares races; the version of the execution's row decides.

Hosts: which machine and process this is, and whether another process of it is still there.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, OutcomeUnknownError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import WORKERS
from headgate.store.model.conditions import Condition, all_of, equals, exists, lacks
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.port import Store


@lru_cache(maxsize=1)
def this_host() -> str:
    """Return what tells apart machines, and containers that share a name but not their processes."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return f"{socket.gethostname()} {processes}".strip()


def is_running(pid: int) -> bool:
    """Whether a process of this host is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


LEASE_SECONDS: Final = 10.0
_FLEET: Final = "FLEET"
# What is true of a worker that may claim.
MEMBER: Final[Condition] = all_of(exists(), lacks("is_given_up"))
_PAGE: Final = 500


class Member(Struct, frozen=True, omit_defaults=True):
    """A worker process, as it described itself."""

    worker_id: str
    # Counts its signs of life. Others watch it change by their own clocks, so that no wall clock is trusted.
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
    # Set by the others: it can claim nothing more, and what it has claimed is being taken over.
    is_given_up: bool = False
    seen_at_ms: int = 0

    @property
    def lease_until_ms(self) -> int:
        """Until when its last sign of life is good, by the wall clock."""
        return self.seen_at_ms + round(1000 * self.lease_seconds)

    def seems_alive(self, now_ms: int) -> bool:
        """Whether its lease is good by the wall clock: for those who only look. Workers judge by `Fleet.is_alive`."""
        return not self.is_given_up and now_ms <= self.lease_until_ms


class Fleet:
    """This process's place among the workers of a store."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, *, lease_seconds: float = LEASE_SECONDS) -> None:
        self.worker_id = ""
        self.lease_seconds = lease_seconds
        # Where processes can see one another. Who shares no processes with others under this name gives itself another.
        self.host = this_host()
        self._store = store
        self._clock = clock
        self._ids = ids
        self._member: Member | None = None
        self._others: list[Member] = []
        self._good_until = 0.0
        # By worker: how many signs of life were seen, and since when there was no further one.
        self._watched: dict[str, tuple[int, float]] = {}
        self._given_up: dict[str, float] = {}

    def join(self, app: str, workflows: Collection[str], activities: Collection[str], queues: Collection[str]) -> None:
        """Become a worker under a new id."""
        now_ms = self._now_ms()
        self.worker_id = self._ids.make("wrk")
        self._member = Member(
            worker_id=self.worker_id,
            beats=1,
            started_at_ms=now_ms,
            lease_seconds=self.lease_seconds,
            seen_at_ms=now_ms,
            host=self.host,
            pid=os.getpid(),
            app=app,
            workflows=tuple(sorted(workflows)),
            activities=tuple(sorted(activities)),
            queues=tuple(sorted(queues)),
        )
        self._good_until = self._clock.monotonic() + self.lease_seconds
        self._store.put(WORKERS, _item(self._member))
        self.refresh()

    def renew(self) -> bool:
        """Extend the lease. False if the others have given this worker up: what it had claimed is theirs."""
        assert self._member is not None, "join first"
        asked_at = self._clock.monotonic()
        renewed = msgspec.structs.replace(self._member, beats=self._member.beats + 1, seen_at_ms=self._now_ms())
        change = {"beats": renewed.beats, "seen_at_ms": renewed.seen_at_ms}
        try:
            self._store.update(WORKERS, Key(self.worker_id), set=change, condition=MEMBER)
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        self._member = renewed
        self._good_until = asked_at + self.lease_seconds
        return True

    def has_lease(self) -> bool:
        """Whether the others cannot have given this worker up yet."""
        return self._member is not None and self._clock.monotonic() < self._good_until

    def refresh(self) -> None:
        """Read who else is there."""
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

    def _watch(self) -> None:
        now = self._clock.monotonic()
        watched: dict[str, tuple[int, float]] = {}
        for member in self._others:
            beats, since = self._watched.get(member.worker_id, (-1, now))
            watched[member.worker_id] = (beats, since) if beats == member.beats else (member.beats, now)
        self._watched = watched
        self._given_up = {
            member.worker_id: self._given_up.get(member.worker_id, now) for member in self._others if member.is_given_up
        }

    def is_alive(self, member: Member) -> bool:
        """Whether a worker has shown itself within its lease, as far as this one has seen.

        On the same machine there is no need to wait for that: its process is there, or it is not.
        """
        if member.is_given_up:
            return False
        if member.worker_id == self.worker_id:
            return True
        if member.host == self.host and not is_running(member.pid):
            return False
        _, since = self._watched.get(member.worker_id, (0, self._clock.monotonic()))
        return self._clock.monotonic() - since <= member.lease_seconds

    def leave(self) -> None:
        """Say good-bye. Whatever is still claimed is given up by `bury`'s reader."""
        if self._member is not None:
            self._store.delete(WORKERS, Key(self.worker_id))
            self._member = None

    def give_up(self, member: Member) -> bool:
        """Let a worker whose lease has run out claim nothing more. False if it has come back."""
        if member.is_given_up:
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

    def bury(self, member: Member) -> bool:
        """Take a worker that was given up, and has nothing left to take over, off the list.

        Not at once: what it claimed last may not show in the index yet.
        """
        since = self._given_up.get(member.worker_id)
        if since is None or self._clock.monotonic() - since < member.lease_seconds:
            return False
        try:
            self._store.delete(WORKERS, Key(member.worker_id), condition=equals("beats", member.beats))
        except ConflictError:
            return False
        return True

    def members(self) -> list[Member]:
        """Return everyone known, this worker first."""
        return ([self._member] if self._member is not None else []) + self._others

    def dead(self) -> list[Member]:
        """Return those who have not shown themselves for longer than their lease, or were given up."""
        return [member for member in self._others if not self.is_alive(member)]

    def owns(self, execution_id: str, workflow: str | None = None) -> bool:
        """Whether this worker, of all that are alive, is the one to advance an execution."""
        if not self._others:
            return True
        able = [m for m in self._others if self.is_alive(m) and (workflow is None or workflow in m.workflows)]
        mine = _weight(self.worker_id, execution_id)
        return all(_weight(member.worker_id, execution_id) < mine for member in able)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def list_members(store: Store) -> Sequence[Member]:
    """Return every worker of a store, for those who only look."""
    page = store.query(Query(table=WORKERS, index="fleet-index", partition=_FLEET, limit=_PAGE))
    return [typed_decode.convert(item, Member) for item in page.items]


def _weight(worker_id: str, execution_id: str) -> int:
    """Rendezvous hashing: each worker draws a number for each execution, and the highest has it."""
    drawn = hashlib.blake2b(f"{worker_id}\0{execution_id}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big")


def _item(member: Member) -> dict[str, Any]:
    # An index needs the attribute even where it is the default.
    return {**msgspec.to_builtins(member), "fleet": _FLEET}
