"""Peer changes: counters of changes in memory that the serving processes of one server share.

A process that has committed a change counts it before it answers the caller. Another process compares the count when it
reads its own memory, and so never uses what it read before the change: without a message, and without waiting for a
process that is busy. Each process counts in a column of its own, which no other writes, so that no count is lost.

Many names share a slot. A change of another name in the slot causes a read of the store, never an old answer.
"""

from __future__ import annotations

import mmap
import threading
from functools import lru_cache
from typing import Final, Protocol
from zlib import crc32

SLOTS: Final = 65_536
_SLOT_BYTES: Final = 8
# Counts changes of everything: the process that counts them cannot say what has changed.
_EVERYTHING: Final = 0
_NAMES_MAX: Final = 32_768


class PeerChanges(Protocol):
    """Counts changes, and returns how many the other processes have counted. Thread-safe."""

    def count(self, name: str) -> None:
        """Count a committed change of `name`, before its caller is answered."""

    def by_others(self, *names: str) -> int:
        """Return a number that differs after another process has counted a change of one of the names."""


class _NoPeers:
    """A server with one serving process."""

    def count(self, name: str) -> None:
        """Do nothing: no other process has to know."""

    def by_others(self, *_names: str) -> int:
        return 0


NO_PEERS: Final[PeerChanges] = _NoPeers()


def memory_bytes(processes: int) -> int:
    """Return the size of the shared memory for a number of processes."""
    return processes * SLOTS * _SLOT_BYTES


class SharedChanges:
    """The counters of one process and its peers, in shared memory."""

    def __init__(self, memory: mmap.mmap | memoryview, *, process: int, processes: int) -> None:
        """Count as number `process`, from 0, of `processes`. A restarted process continues its column."""
        whole = memoryview(memory)[: memory_bytes(processes)].cast("B").cast("Q")
        columns = [whole[number * SLOTS : (number + 1) * SLOTS] for number in range(processes)]
        self._own = columns[process]
        self._others = [column for number, column in enumerate(columns) if number != process]
        self._lock = threading.Lock()

    def count(self, name: str) -> None:
        """Count a committed change of `name`, before its caller is answered."""
        self._count(_slot(name))

    def count_everything(self) -> None:
        """Count a change of every name: another process has ended, perhaps between a commit and its count."""
        self._count(_EVERYTHING)

    def by_others(self, *names: str) -> int:
        """Return a number that differs after another process has counted a change of one of the names.

        The columns only grow, and so does their sum.
        """
        total = 0
        for column in self._others:
            total += column[_EVERYTHING]
            for name in names:
                total += column[_slot(name)]
        return total

    def _count(self, slot: int) -> None:
        with self._lock:
            self._own[slot] += 1


@lru_cache(maxsize=_NAMES_MAX)
def _slot(name: str) -> int:
    return 1 + crc32(name.encode()) % (SLOTS - 1)
