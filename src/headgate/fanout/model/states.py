"""States: the states of chunks and fan-outs, and the legal transitions of a chunk.

A chunk's `status` is the coarse state that external readers of the table use. Its `disposition` is the precise state,
and also names the counter bucket. Each disposition belongs to one status, so that counts by status are sums.
"""

from __future__ import annotations

import enum
from typing import Final


class ChunkStatus(enum.StrEnum):
    """The coarse state of a chunk."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        """Whether the chunk has ended."""
        return self not in (ChunkStatus.PENDING, ChunkStatus.IN_PROGRESS)


class Disposition(enum.StrEnum):
    """The precise state of a chunk."""

    WAITING = "WAITING"  # Its queue message has not been sent.
    QUEUED = "QUEUED"
    RETRYING = "RETRYING"  # An attempt failed; queued with a backoff.
    RUNNING = "RUNNING"
    DONE = "DONE"
    DEFERRED = "DEFERRED"  # Done except for items in the slow lane.
    DEAD = "DEAD"  # Out of attempts.
    QUARANTINED = "QUARANTINED"  # Failed with an error that a retry cannot fix, or set aside by an operator.
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    @property
    def status(self) -> ChunkStatus:
        """The status that this disposition belongs to."""
        return _STATUS_OF[self]

    @property
    def bucket(self) -> str:
        """The name of its counter bucket."""
        return _BUCKET_OF[self]


class FanoutStatus(enum.StrEnum):
    """The state of a fan-out. PARTIAL without `finished_at` means that only the slow lane is running."""

    SPLITTING = "SPLITTING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class AttemptOutcome(enum.StrEnum):
    """How an attempt at a chunk ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    LOST = "LOST"  # Its lease expired.
    CANCELLED = "CANCELLED"
    RELEASED = "RELEASED"  # Returned to the queue unfinished; does not count.


class Admission(enum.StrEnum):
    """The response to a worker that wants to start a chunk."""

    RUN = "RUN"
    DUPLICATE = "DUPLICATE"  # The chunk has ended: drop the message.
    BUSY = "BUSY"  # Another worker holds a valid lease.
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"


_BUCKET_OF: Final = {disposition: disposition.value.lower() for disposition in Disposition}
_STATUS_OF: Final = {
    Disposition.WAITING: ChunkStatus.PENDING,
    Disposition.QUEUED: ChunkStatus.PENDING,
    Disposition.RETRYING: ChunkStatus.PENDING,
    Disposition.RUNNING: ChunkStatus.IN_PROGRESS,
    Disposition.DONE: ChunkStatus.COMPLETED,
    Disposition.DEFERRED: ChunkStatus.COMPLETED,
    Disposition.DEAD: ChunkStatus.FAILED,
    Disposition.QUARANTINED: ChunkStatus.FAILED,
    Disposition.CANCELLED: ChunkStatus.CANCELLED,
    Disposition.SKIPPED: ChunkStatus.SKIPPED,
}


LEGAL: Final[dict[Disposition, frozenset[Disposition]]] = {
    Disposition.WAITING: frozenset(
        {Disposition.QUEUED, Disposition.RUNNING, Disposition.CANCELLED, Disposition.SKIPPED, Disposition.DEAD}
    ),
    Disposition.QUEUED: frozenset(
        {Disposition.RUNNING, Disposition.CANCELLED, Disposition.SKIPPED, Disposition.DEAD, Disposition.QUARANTINED}
    ),
    Disposition.RETRYING: frozenset(
        {
            Disposition.QUEUED,
            Disposition.RUNNING,
            Disposition.CANCELLED,
            Disposition.SKIPPED,
            Disposition.DEAD,
            Disposition.QUARANTINED,
        }
    ),
    # To itself: another worker claims it after the lease expired.
    Disposition.RUNNING: frozenset(
        {
            Disposition.RUNNING,
            Disposition.QUEUED,
            Disposition.RETRYING,
            Disposition.DONE,
            Disposition.DEFERRED,
            Disposition.DEAD,
            Disposition.QUARANTINED,
            Disposition.CANCELLED,
        }
    ),
    Disposition.DEFERRED: frozenset({Disposition.DONE}),
    # Its failed items are redriven.
    Disposition.DONE: frozenset({Disposition.WAITING, Disposition.QUEUED}),
    Disposition.DEAD: frozenset(
        {Disposition.WAITING, Disposition.QUEUED, Disposition.SKIPPED, Disposition.QUARANTINED}
    ),
    Disposition.QUARANTINED: frozenset({Disposition.WAITING, Disposition.QUEUED, Disposition.SKIPPED}),
    Disposition.CANCELLED: frozenset({Disposition.WAITING, Disposition.QUEUED, Disposition.SKIPPED}),
    Disposition.SKIPPED: frozenset(),
}


def is_legal(before: Disposition, after: Disposition) -> bool:
    """Whether a chunk may move from one disposition to the other."""
    return after in LEGAL[before]
