"""Rows for tests of what is reported of a fan-out: made by hand, and stored where they are read."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, with_disposition
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.model.rows import Attempt, Chunk, Fanout, Policy, chunk_id_at, dump_policy, sort_key, timestamp
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import AttemptOutcome, Disposition, FanoutStatus
from headgate.ids import IdMaker
from headgate.store.port import Store

RUN: Final = "fan-1"
T0: Final = 1_750_000_000_000
SIZE: Final = 10
_ENDED: Final = (
    Disposition.DONE,
    Disposition.DEFERRED,
    Disposition.RETRYING,
    Disposition.DEAD,
    Disposition.QUARANTINED,
    Disposition.CANCELLED,
)


def made_fanout(policy: Policy | None = None, **changes: Any) -> Fanout:
    """Return a fan-out that was created at T0 and is running."""
    fanout = Fanout(
        run_id=RUN,
        sk="RUN",
        group="grs-15",
        gsi1_pk="grs-15",
        gsi1_sk=timestamp(T0),
        created_at=timestamp(T0),
        status=FanoutStatus.RUNNING,
        version=1,
        width=7,
        shards=1,
        chunk_size=SIZE,
        source="{}",
        digest="",
        policy=dump_policy(policy or Policy()),
    )
    return replace(fanout, **changes)


def made_chunk(
    number: int,
    disposition: Disposition = Disposition.DONE,
    *,
    begin_ms: int = T0,
    duration_ms: int = 1000,
    attempt: int = 1,
    **changes: Any,
) -> Chunk:
    """Return chunk `number` of the fan-out, whose latest attempt began and took as given."""
    is_begun = disposition in (*_ENDED, Disposition.RUNNING)
    has_ended = disposition in _ENDED
    chunk = Chunk(
        run_id=RUN,
        sk=sort_key(chunk_id_at(number * SIZE, 7)),
        status=disposition.status,
        disposition=disposition,
        created_at=timestamp(T0),
        start=number * SIZE,
        items=SIZE,
        token="t",
        attempt=attempt if is_begun else 0,
        worker="w1" if is_begun else None,
        started_at=timestamp(begin_ms) if is_begun else None,
        completed_at=timestamp(begin_ms + duration_ms) if has_ended else None,
        duration_ms=duration_ms if has_ended else None,
        lease_expires_at=timestamp(begin_ms + 900_000) if disposition is Disposition.RUNNING else None,
    )
    return with_disposition(replace(chunk, **changes), disposition, timestamp(begin_ms), T0)


def made_attempt(number: int, attempt: int, outcome: AttemptOutcome, *, end_ms: int = T0, **changes: Any) -> Attempt:
    """Return the row of an attempt at chunk `number` that took a second."""
    made = Attempt(
        run_id=RUN,
        sk=f"ATT#{chunk_id_at(number * SIZE, 7)}#{attempt:04d}",
        attempt=attempt,
        outcome=outcome,
        ended_at=timestamp(end_ms),
        started_at=timestamp(end_ms - 1000),
        duration_ms=1000,
        worker="w1",
    )
    return replace(made, **changes)


class Stage:
    """A fan-out in a store, and a worker that takes its chunks as the test says."""

    def __init__(self, store: Store, clock: VirtualClock, *, chunks: int, policy: Policy | None = None) -> None:
        ids = IdMaker(clock)
        order = Order(group="grs-15", chunk_size=SIZE, policy=policy or Policy(backoff_seconds=0.0))
        self.clock = clock
        self.store = store
        self.tracker = Tracker(store, clock, ids, draw=lambda: 0.0)
        self.queries = self.tracker.queries
        self.fanout = Splitter(store, clock, ids).split(order, RangeSource(0, chunks * SIZE), run_id=RUN)

    def start(self, number: int, *, worker: str = "w1") -> Claim:
        claim = self.tracker.start(RUN, chunk_id_at(number * SIZE, self.fanout.width), worker=worker).claim
        assert claim is not None
        return claim

    def complete(self, number: int, *, seconds: float = 1.0) -> Chunk:
        claim = self.start(number)
        self.clock.advance(seconds)
        return self.tracker.complete(claim, AttemptResult())

    def fail(
        self, number: int, message: str = "boom", *, error_class: str = "ValueError", final: bool = False
    ) -> Chunk:
        return self.tracker.fail(self.start(number), AttemptFailure(error_class, message, is_final=final))
