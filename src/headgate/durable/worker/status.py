"""The pulse of a worker: what it is seen to do at a moment, for those who want to know whether it is well."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from headgate.durable.replay.turn_timeout import Overdue


class Pulse(Struct, frozen=True, kw_only=True):
    """A worker at one moment. Times are ages in seconds; None: it has not happened yet."""

    has_failed: bool
    # Whether the others cannot have given it up yet.
    has_lease: bool
    looked_seconds: float | None
    turned_seconds: float | None
    # Activities that wait for a thread, that run, and of these the ones that were given up.
    queued: int
    running: int
    hung: int
    overdue: Sequence[Overdue]

    def faults(self) -> list[str]:
        """Return a sentence for each thing that is wrong with it."""
        found = [
            f"execution {each.execution_id} has been in one turn for {each.seconds:.0f} s, at {each.place}"
            for each in self.overdue
        ]
        if self.has_failed:
            found.append("it has stopped for an error that the log has")
        elif not self.has_lease:
            found.append("its lease has run out, so that others may have taken over what it had claimed")
        if self.hung:
            found.append(f"{self.hung} activities were given up and still hold a thread")
        return found

    def __str__(self) -> str:
        """Return what it does, in one line."""
        return (
            f"last looked for work {_age(self.looked_seconds)}, last turn {_age(self.turned_seconds)}; "
            f"{self.queued} activities queued, {self.running} running"
        )


def _age(seconds: float | None) -> str:
    return "not yet" if seconds is None else f"{seconds:.1f} s ago"
