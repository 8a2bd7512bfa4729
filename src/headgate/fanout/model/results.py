"""Fan-out summary: final status and counts, sent to the waiting execution and to the bus."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout


class Summary(Struct, frozen=True):
    """The status of a fan-out with its counts."""

    run_id: str
    status: str
    chunks: int
    completed: int
    failed: int
    cancelled: int
    items: int
    items_ok: int
    items_failed: int
    # Why it was stopped or cancelled.
    reason: str | None = None


def summary_of(fanout: Fanout, counts: Counts) -> Summary:
    """Return the summary of a fan-out."""
    return Summary(
        run_id=fanout.run_id,
        status=fanout.status.value,
        chunks=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        items=counts.items_total,
        items_ok=counts.items_ok,
        items_failed=counts.items_failed,
        reason=fanout.reason,
    )


def summary_json(fanout: Fanout, counts: Counts) -> Raw:
    """Return the summary as JSON."""
    return Raw(msgspec.json.encode(summary_of(fanout, counts)))
