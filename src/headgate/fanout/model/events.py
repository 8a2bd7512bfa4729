"""Fan-out events: the audit trail of operations on a fan-out, stored in its partition."""

from __future__ import annotations

from msgspec import Struct, field, to_builtins

from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put
from headgate.store.model.values import Item

EVENT_PREFIX = "EVT#"
# Type of the bus event that reports the end of a fan-out.
ENDED_EVENT = "headgate.fanout.ended"
# Types of the bus events of open fan-outs: without progress, with it again, and with many failures.
STALLED_EVENT = "headgate.fanout.stalled"
WENT_ON_EVENT = "headgate.fanout.went_on"
FAILING_EVENT = "headgate.fanout.failing"


class FanoutEvent(Struct, frozen=True, omit_defaults=True):
    """An operation on a fan-out."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    kind: str
    at: str
    by: str | None = None
    reason: str | None = None
    count: int | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(FANOUT, to_builtins(self))


def event(
    run_id: str,
    unique: str,
    kind: str,
    at: str,
    *,
    by: str | None = None,
    reason: str | None = None,
    count: int | None = None,
) -> FanoutEvent:
    """Return an event; `unique` is a time-ordered id."""
    return FanoutEvent(run_id, f"{EVENT_PREFIX}{unique}", kind, at, by, reason, count)


def event_of(item: Item) -> FanoutEvent:
    """Decode an event from a stored item."""
    return FanoutEvent(
        item["PK"], item["SK"], item["kind"], item["at"], item.get("by"), item.get("reason"), item.get("count")
    )
