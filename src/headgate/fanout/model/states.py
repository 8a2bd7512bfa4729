"""States: what a chunk and a fan-out can be in, and which moves between them are legal.

A chunk's `status` is what every reader of the table knows; its `disposition` says the same more precisely, and is also
the bucket in which the chunk is counted. Each disposition belongs to one status, so that counts by status are sums.
"""

from __future__ import annotations

import enum
from typing import Final


class ChunkStatus(enum.StrEnum):
    """Where a chunk stands."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing more happens to the chunk by itself."""
        return self not in (ChunkStatus.PENDING, ChunkStatus.IN_PROGRESS)


class Disposition(enum.StrEnum):
    """Where a chunk stands, precisely."""

    WAITING = "WAITING"  # Its message has not been sent yet.
    QUEUED = "QUEUED"
    RETRYING = "RETRYING"  # An attempt has failed, and another one will be made.
    RUNNING = "RUNNING"
    DONE = "DONE"
    DEFERRED = "DEFERRED"  # Done but for items that the slow lane has.
    DEAD = "DEAD"  # No attempts are left.
    QUARANTINED = "QUARANTINED"  # Put aside: trying again is known not to help.
    CANCELLED = "CANCELLED"
    SKIPPED = "SKIPPED"

    @property
    def status(self) -> ChunkStatus:
        """The status that this disposition belongs to."""
        return _STATUS_OF[self]

    @property
    def bucket(self) -> str:
        """The name of the counter of chunks like this."""
        return _BUCKET_OF[self]


class FanoutStatus(enum.StrEnum):
    """Where a fan-out stands. PARTIAL without `finished_at` means that only the slow lane goes on."""

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
    LOST = "LOST"  # Its lease ran out.
    CANCELLED = "CANCELLED"
    RELEASED = "RELEASED"  # Given back unfinished; does not count as a try.


class Admission(enum.StrEnum):
    """What a worker that was handed a chunk is told."""

    RUN = "RUN"
    DUPLICATE = "DUPLICATE"  # It has ended already: drop the message.
    BUSY = "BUSY"  # Someone else is at it, and alive.
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
    # To itself: another worker takes over when the lease has run out.
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
    Disposition.DONE: frozenset(),
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
