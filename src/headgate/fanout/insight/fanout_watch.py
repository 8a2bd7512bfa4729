"""Fan-out watch: marks open fan-outs that stall or are failing, and publishes each once.

The mark on the row and its event are one transaction under the row's version, so any number of processes may watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import ConflictError, CorruptionError, OutcomeUnknownError
from headgate.fanout.core.campaigns import counts_of_row
from headgate.fanout.core.chunk_workers import ChunkWorkerRow, ChunkWorkers
from headgate.fanout.core.observer import FanoutObserver
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.insight.stalls import stall_reason
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.events import FAILING_EVENT, STALLED_EVENT, WENT_ON_EVENT
from headgate.fanout.model.rows import Fanout, timestamp
from headgate.store.model.requests import Write
from headgate.store.port import Store

# A fan-out is failing if more than this share of at least so many ended chunks has failed.
FAILING_SHARE: Final = 0.2
ENDED_MIN: Final = 20
_log = structlog.get_logger(__name__)


class Finding(Struct, frozen=True):
    """What has changed about a fan-out: the type of the event, and why."""

    event_type: str
    reason: str | None


def failing_reason(fanout: Fanout, counts: Counts) -> str | None:
    """Return why a fan-out counts as failing, or None. Tolerated failures are no reason."""
    if fanout.shards == 0:
        # Another program owns the row.
        return None
    if fanout.exceeded_at is not None:
        return fanout.reason
    policy = fanout.rules()
    ended = counts.completed + counts.failed
    share = max(FAILING_SHARE, policy.tolerated_failure_share or 0.0)
    if ended < ENDED_MIN or counts.failed <= share * ended or counts.failed <= (policy.tolerated_failures or 0):
        return None
    return f"{counts.failed} of {ended} ended chunks failed"


def findings(fanout: Fanout, counts: Counts, workers: Sequence[ChunkWorkerRow], now_ms: int) -> list[Finding]:
    """Return what has changed since the marks of an open fan-out were set. Raises `CorruptionError`."""
    found: list[Finding] = []
    stalled = stall_reason(fanout, counts, workers, now_ms)
    if stalled is not None and fanout.stalled_at is None:
        found.append(Finding(STALLED_EVENT, stalled))
    elif stalled is None and fanout.stalled_at is not None:
        found.append(Finding(WENT_ON_EVENT, None))
    failing = failing_reason(fanout, counts)
    if failing is not None and fanout.failing_at is None:
        found.append(Finding(FAILING_EVENT, failing))
    return found


def marked(fanout: Fanout, found: Sequence[Finding], now: str) -> Fanout:
    """Return the next version of a fan-out with the marks of its findings."""
    after = replace(fanout, version=fanout.version + 1)
    for finding in found:
        if finding.event_type == FAILING_EVENT:
            after = replace(after, failing_at=now)
        else:
            after = replace(after, stalled_at=now if finding.event_type == STALLED_EVENT else None)
    return after


class FanoutWatch:
    """Watches the open fan-outs of a store."""

    def __init__(self, store: Store, queries: FanoutQueries, workers: ChunkWorkers, observer: FanoutObserver) -> None:
        self._store = store
        self._queries = queries
        self._workers = workers
        self._observer = observer

    def run_once(self) -> int:
        """Examine every open fan-out, and return how many events were published."""
        workers = self._workers.live()
        return sum(self._examine(fanout, workers) for fanout in self._queries.every_active())

    def _examine(self, fanout: Fanout, workers: Sequence[ChunkWorkerRow]) -> int:
        now_ms = self._queries.now_ms()
        try:
            counts = counts_of_row(fanout)
            found = findings(fanout, counts, workers, now_ms)
        except CorruptionError:
            # Maintenance logs it.
            return 0
        if not found:
            return 0
        after = marked(fanout, found, timestamp(now_ms))
        writes: list[Write] = [after.replacing(fanout.version)]
        for finding in found:
            writes += self._observer.notice_writes(finding.event_type, replace(after, reason=finding.reason), counts)
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            raise
        except ConflictError:
            # The row has changed meanwhile; the next pass examines it again.
            return 0
        for finding in found:
            _log.info("fan-out event", run_id=fanout.run_id, type=finding.event_type, reason=finding.reason)
        self._observer.on_noticed()
        return len(found)
