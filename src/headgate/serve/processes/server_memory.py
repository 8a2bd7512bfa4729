"""Server memory: what the serving processes of one server share: change counts, connection counts and rate limits.

It is a file without a name, which the first process creates and the others inherit. It ends with the last of them.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from pathlib import Path
from typing import Self

from headgate.auth.shared_buckets import MEMORY_BYTES as BUCKET_BYTES
from headgate.auth.shared_buckets import SharedBuckets
from headgate.serve.http.limits import shared_connections
from headgate.serve.http.limits.shared_connections import SharedConnections
from headgate.store import peer_changes
from headgate.store.peer_changes import SharedChanges

_KEY_BYTES = 32


class ServerMemory:
    """The shared memory as one of the processes sees it."""

    def __init__(self, descriptor: int, *, process: int, processes: int, key: bytes | None = None) -> None:
        """Map the memory for number `process` of `processes`. The first process gives the `key` of address hashes."""
        self.descriptor = descriptor
        self.process = process
        self.processes = processes
        connections_at = peer_changes.memory_bytes(processes)
        buckets_at = connections_at + shared_connections.memory_bytes(processes)
        memory = mmap.mmap(descriptor, _size(processes))
        self.changes = SharedChanges(memory, process=process, processes=processes)
        self.connections = SharedConnections(
            memory, descriptor, offset=connections_at, process=process, processes=processes, key=key
        )
        self.buckets = SharedBuckets(memory, descriptor, offset=buckets_at)

    @classmethod
    def create(cls, processes: int) -> Self:
        """Create the memory of a server, as its first process."""
        descriptor = _unnamed_file()
        os.ftruncate(descriptor, _size(processes))
        return cls(descriptor, process=0, processes=processes, key=secrets.token_bytes(_KEY_BYTES))


def _size(processes: int) -> int:
    return peer_changes.memory_bytes(processes) + shared_connections.memory_bytes(processes) + BUCKET_BYTES


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headgate")
    descriptor, path = tempfile.mkstemp(prefix="headgate-")
    Path(path).unlink()
    return descriptor
