"""Results: what a fan-out has come to, in a few lines for whoever waited for it."""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout


class Summary(Struct, frozen=True):
    """How a fan-out ended."""

    run_id: str
    status: str
    chunks: int
    completed: int
    failed: int
    cancelled: int
    items: int
    items_ok: int
    items_failed: int


def summarised(fanout: Fanout, counts: Counts) -> Summary:
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
    )


def summary(fanout: Fanout, counts: Counts) -> Raw:
    """Return the summary as JSON."""
    return Raw(msgspec.json.encode(summarised(fanout, counts)))
