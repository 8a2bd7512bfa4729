"""Shared connection counts: the open connections of all serving processes of one server.

Each process counts in a column of its own, so that those of a process that was killed can be cleared. Client addresses
are counted by a keyed hash: a client cannot choose an address that shares its count with another one's.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SLOTS: Final = 16_384
_SLOT_BYTES: Final = 8
_KEY_BYTES: Final = 32
# The slot of all connections of a process; the others are those of client addresses.
_TOTAL: Final = 0


def memory_bytes(processes: int) -> int:
    """Return the size of the shared memory for a number of processes."""
    return processes * SLOTS * _SLOT_BYTES + _KEY_BYTES


class SharedConnections:
    """Counts of one process and its peers. Used on an event loop."""

    def __init__(
        self, memory: mmap.mmap, descriptor: int, *, offset: int, process: int, processes: int, key: bytes | None = None
    ) -> None:
        """Count as number `process` of `processes`, from `offset` in the memory of the file `descriptor`.

        The first process gives the `key` of the hash, which the others read.
        """
        self._descriptor, self._offset, self._bytes = descriptor, offset, memory_bytes(processes)
        at = offset + processes * SLOTS * _SLOT_BYTES
        if key is not None:
            memory[at : at + _KEY_BYTES] = key
        self._key = memory[at : at + _KEY_BYTES]
        whole = memoryview(memory)[offset:at].cast("B").cast("Q")
        self._columns = [whole[number * SLOTS : (number + 1) * SLOTS] for number in range(processes)]
        self._own = self._columns[process]
        self._others = [column for number, column in enumerate(self._columns) if number != process]

    @property
    def total(self) -> int:
        """The connections of all processes."""
        return sum(column[_TOTAL] for column in self._columns)

    def is_ahead(self, uncounted: int) -> bool:
        """Whether this process has more connections than another one, with those that are not counted yet."""
        own = self._own[_TOTAL] + uncounted
        return any(own > other[_TOTAL] for other in self._others)

    def at(self, address: str) -> int:
        """Return the connections of a client address in all processes."""
        slot = self._slot(address)
        return sum(column[slot] for column in self._columns)

    def add(self, address: str, count: int) -> None:
        """Count connections that were opened, or closed if `count` is negative."""
        for slot in (_TOTAL, self._slot(address)):
            self._own[slot] = max(0, self._own[slot] + count)

    def clear(self, process: int) -> None:
        """Forget the connections of a process that has ended."""
        self._columns[process][:] = memoryview(bytes(SLOTS * _SLOT_BYTES)).cast("Q")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude the other processes, so that two do not both take the last place."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, self._bytes, self._offset)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, self._bytes, self._offset)

    def _slot(self, address: str) -> int:
        digest = hashlib.blake2b(address.encode(), key=self._key, digest_size=8).digest()
        return 1 + int.from_bytes(digest, "big") % (SLOTS - 1)
