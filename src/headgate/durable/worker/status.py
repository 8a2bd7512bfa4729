"""Worker status: a snapshot of a worker for health checks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headgate.durable.model.worker_limits import DEFAULT_LIMITS, WorkerLimits, WorkerUsage
from headgate.durable.replay.turn_timeout import Overdue


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """A worker at one moment. `polled_seconds` and `turned_seconds` are ages; None if it has not happened yet."""

    has_failed: bool
    has_lease: bool
    polled_seconds: float | None
    turned_seconds: float | None
    # Activities that wait for a thread, that run, and of these the ones that were abandoned.
    queued: int
    running: int
    hung: int
    limits: WorkerLimits = DEFAULT_LIMITS
    usage: WorkerUsage = WorkerUsage()
    overdue: Sequence[Overdue]

    def faults(self) -> list[str]:
        """Return a sentence for each fault of the worker."""
        faults = [
            f"execution {each.execution_id} has been in one turn for {each.seconds:.0f} s, at {each.place}"
            for each in self.overdue
        ]
        if self.has_failed:
            faults.append("it has stopped after an error; see the log")
        elif not self.has_lease:
            faults.append("its lease has expired, so that other workers may have reclaimed its activities")
        if self.hung:
            faults.append(f"{self.hung} activities were abandoned and still hold a thread")
        return faults

    def __str__(self) -> str:
        """Return the activity of the worker in one line."""
        return (
            f"last poll {_age(self.polled_seconds)}, last turn {_age(self.turned_seconds)}; "
            f"{self.queued} activities queued, {self.running} running"
        )


def _age(seconds: float | None) -> str:
    return "not yet" if seconds is None else f"{seconds:.1f} s ago"
