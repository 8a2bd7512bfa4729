"""Stalls: open fan-outs in which nothing ends for longer than their policy explains, or that have no worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.fanout.core.chunk_workers import ChunkWorkerRow
from headgate.fanout.insight.progress import patience_seconds
from headgate.fanout.insight.stuck import lane_states
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Fanout, timestamp_ms
from headgate.fanout.model.states import FanoutStatus

# Without a worker, a fan-out is stalled after this time: workers of a deployment may be restarting.
NO_WORKER_SECONDS: Final = 300.0


def stall_reason(fanout: Fanout, counts: Counts, workers: Sequence[ChunkWorkerRow], now_ms: int) -> str | None:
    """Return why a fan-out makes no progress, or None if it does or is held on purpose."""
    running = counts.running + counts.slow_running
    is_splitting = fanout.status is FanoutStatus.SPLITTING
    has_work = counts.open + counts.slow_open > 0 or is_splitting
    if fanout.is_finished or not has_work or fanout.cancelled_at is not None or fanout.shards == 0:
        return None
    if fanout.paused_at is not None:
        return None
    silent_seconds = (now_ms - _last_sign_ms(fanout, is_still=not running or is_splitting)) / 1000
    if not running and silent_seconds > NO_WORKER_SECONDS:
        waiting = {MAIN_LANE: counts.pending - counts.retrying, SLOW_LANE: counts.slow_open - counts.slow_retrying}
        for lane, state in lane_states(fanout, counts, workers, {}).items():
            if waiting[lane] and state.no_taker is not None:
                return state.no_taker
    if silent_seconds <= patience_seconds(fanout.rules()):
        return None
    if is_splitting:
        return f"the split has stopped: {fanout.split_error or 'its process is gone'}"
    return f"{running} chunks are running, and none of them ends" if running else "no worker takes its chunks"


def _last_sign_ms(fanout: Fanout, *, is_still: bool) -> int:
    times = [fanout.created_at, fanout.started_at, fanout.progressed_at, fanout.updated_at if is_still else None]
    return max((timestamp_ms(text) for text in times if text), default=0)
