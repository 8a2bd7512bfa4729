"""Stuck chunks: chunks without progress, for how long, and whether they will recover by themselves.

A chunk that waits for its turn is not stuck, however long it waits: a live worker takes it, or others of its lane run.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from headgate.fanout.core.chunk_workers import ChunkWorkerRow, no_taker_reason
from headgate.fanout.core.queries import PAGE, PAGE_MAX, ROWS_AT_ONCE, FanoutQueries
from headgate.fanout.insight.eta import Spread, durations_of, spread_of, time_text
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, slow_timeout, timestamp, timestamp_ms
from headgate.fanout.model.states import Disposition
from headgate.fanout.model.worker_names import short_worker_name

# Chunks read at the head of a queue; a blocked queue is blocked as a whole.
QUEUE_HEAD_MAX: Final = 100
# A queued chunk that no live worker takes is reported after this time: workers may be restarting.
NO_WORKER_SECONDS: Final = 60.0
# A running chunk is hung after this many times the 99th percentile of its lane, and at least after this time.
HUNG_P99: Final = 10.0
HUNG_SECONDS_MIN: Final = 60.0
HUNG_COMPLETIONS_MIN: Final = 20


class StuckKind(enum.StrEnum):
    """Why a chunk makes no progress."""

    RETRY_PENDING = "RETRY_PENDING"  # Its attempt failed or its lease expired; it will be retried.
    LOST = "LOST"  # Its lease expired and it will not be retried.
    NEVER_STARTED = "NEVER_STARTED"  # It is queued, and no worker takes it.
    OVERDUE = "OVERDUE"  # Its worker is alive, and exceeds the time.
    NO_HEARTBEAT = "NO_HEARTBEAT"  # Its worker sends no heartbeats, and its lease has not expired yet.


class Stuck(Struct, frozen=True):
    """A chunk without progress: since when, and why."""

    kind: StuckKind
    chunk: Chunk
    since: str
    seconds: float
    reason: str


class LaneState(Struct, frozen=True):
    """What a lane of a fan-out does."""

    # Chunks that run at the moment: the others wait for their turn.
    running: int = 0
    # Why no live worker takes its chunks; None: one does, or that is not known (a queue, or another program).
    no_taker: str | None = None
    is_remote: bool = False
    durations: Spread | None = None


def lane_states(
    fanout: Fanout,
    counts: Counts,
    workers: Sequence[ChunkWorkerRow],
    durations: Mapping[str, Spread | None],
    expired: Sequence[Chunk] = (),
) -> dict[str, LaneState]:
    """Return the state of each lane of a fan-out; `expired` are running chunks whose lease has expired."""
    is_remote = fanout.queue_url is not None or fanout.shards == 0
    running = {MAIN_LANE: counts.running, SLOW_LANE: counts.slow_running}
    for chunk in expired:
        running[chunk.lane] -= 1
    return {
        lane: LaneState(
            max(0, running[lane]),
            None if is_remote else no_taker_reason(workers, fanout, lane),
            is_remote,
            durations.get(lane),
        )
        for lane in (MAIN_LANE, SLOW_LANE)
    }


def classify(
    fanout: Fanout, chunk: Chunk, now_ms: int, lane: LaneState, *, older_than_seconds: float | None = None
) -> Stuck | None:
    """Return why a chunk makes no progress, or None.

    An expired lease or a pending retry is reported at once. A running chunk is reported after `older_than_seconds`, by
    default its time-out or many times the 99th percentile of its lane. A queued chunk is reported if no live worker
    takes it and none of its lane runs, after a minute; with a queue, if no chunk has begun or ended for a time-out.
    """
    if chunk.disposition is Disposition.RUNNING:
        return _running(fanout, chunk, now_ms, lane, older_than_seconds)
    if fanout.paused_at is not None or fanout.cancelled_at is not None:
        return None
    if chunk.disposition is Disposition.RETRYING:
        since_ms = _moment_ms(chunk.completed_at, chunk.created_at)
        reason = f"attempt {chunk.attempt} failed; it will be retried at {_due(chunk)}"
        return _stuck(StuckKind.RETRY_PENDING, chunk, since_ms, now_ms, reason)
    if chunk.disposition in (Disposition.QUEUED, Disposition.WAITING):
        return _waiting(fanout, chunk, now_ms, lane, older_than_seconds)
    return None


def stuck(
    queries: FanoutQueries,
    run_id: str,
    *,
    workers: Sequence[ChunkWorkerRow],
    older_than_seconds: float | None = None,
    limit: int = PAGE,
) -> list[Stuck]:
    """Return up to `limit` stuck chunks, running ones first, each kind longest first.

    Pending retries are included only after `older_than_seconds`, by default the time-out. From eventually consistent
    indexes: read a chunk again before acting on it. The cost depends on running and stuck chunks only. Raises
    `NotFoundError`.
    """
    fanout = queries.fanout(run_id)
    if fanout.is_finished:
        return []
    now_ms = queries.now_ms()
    counts = queries.counts(fanout)
    expired = queries.in_disposition(run_id, Disposition.RUNNING, before=timestamp(now_ms), limit=PAGE_MAX).chunks
    lanes = lane_states(fanout, counts, workers, _durations(queries, fanout, counts), expired)
    found = chain(
        _candidates(queries, fanout, lanes, now_ms, older_than_seconds), _unsent(queries, fanout, counts, lanes)
    )
    detail = (
        classify(fanout, chunk, now_ms, lanes[chunk.lane], older_than_seconds=older_than_seconds) for chunk in found
    )
    return list(islice((one for one in detail if one is not None), limit))


def _durations(queries: FanoutQueries, fanout: Fanout, counts: Counts) -> dict[str, Spread | None]:
    """Return the durations of a page of completed chunks of each lane in which chunks run."""
    found: dict[str, Spread | None] = {}
    for lane, running in ((MAIN_LANE, counts.running), (SLOW_LANE, counts.slow_running)):
        if running:
            page = queries.chunks(fanout.run_id, slow=lane == SLOW_LANE, limit=ROWS_AT_ONCE)
            found[lane] = spread_of(durations_of(page.chunks))
    return found


def _candidates(
    queries: FanoutQueries,
    fanout: Fanout,
    lanes: Mapping[str, LaneState],
    now_ms: int,
    older_than_seconds: float | None,
) -> Iterator[Chunk]:
    if not fanout.shards:
        # Written by another program, without our index attributes.
        yield from queries.every_chunk(fanout.run_id)
        return
    # Ordered by the end of their lease: expired ones first.
    yield from queries.every_in_disposition(fanout.run_id, Disposition.RUNNING)
    policy = fanout.rules()
    retry_seconds = policy.timeout_seconds if older_than_seconds is None else older_than_seconds
    before = timestamp(now_ms - round(1000 * retry_seconds))
    yield from queries.every_in_disposition(fanout.run_id, Disposition.RETRYING, before=before)
    for lane, state in lanes.items():
        if not state.running and (state.is_remote or state.no_taker is not None):
            head = queries.queued(fanout.run_id, lane, due_ms=now_ms, limit=QUEUE_HEAD_MAX)
            yield from (chunk for chunk in head if chunk.disposition is Disposition.QUEUED)


def _unsent(queries: FanoutQueries, fanout: Fanout, counts: Counts, lanes: Mapping[str, LaneState]) -> Iterator[Chunk]:
    """Yield the first chunks of each lane whose messages were not sent."""
    if not fanout.shards:
        return
    for lane, waiting in ((MAIN_LANE, counts.waiting), (SLOW_LANE, counts.slow_waiting)):
        if waiting and not lanes[lane].running:
            unsent = (chunk for chunk in queries.every_unsent(fanout) if chunk.lane == lane)
            yield from islice(unsent, min(waiting, QUEUE_HEAD_MAX))


def _running(
    fanout: Fanout, chunk: Chunk, now_ms: int, lane: LaneState, older_than_seconds: float | None
) -> Stuck | None:
    policy = fanout.rules()
    timeout_seconds = policy.timeout_seconds if chunk.lane == MAIN_LANE else slow_timeout(policy)
    started_ms = _moment_ms(chunk.started_at, chunk.created_at)
    if chunk.lease_expires_at is not None:
        expires_ms = timestamp_ms(chunk.lease_expires_at)
    else:
        # A worker of another program holds no lease: the time-out stands in for it.
        expires_ms = started_ms + round(1000 * timeout_seconds)
    if expires_ms <= now_ms:
        kind, reason = _expired(fanout, chunk)
        return _stuck(kind, chunk, expires_ms, now_ms, reason)
    seconds = (now_ms - started_ms) / 1000
    limit, why = _hung_after(lane, timeout_seconds, older_than_seconds)
    if seconds > limit:
        reason = f"{_worker(chunk)} is alive, and has been running it since {chunk.started_at}{why}"
        return _stuck(StuckKind.OVERDUE, chunk, started_ms, now_ms, reason)
    return _silent(chunk, started_ms, expires_ms, now_ms)


def _hung_after(lane: LaneState, timeout_seconds: float, older_than_seconds: float | None) -> tuple[float, str]:
    """Return the running time after which a chunk is overdue, and what it is compared with."""
    if older_than_seconds is not None:
        return older_than_seconds, ""
    spread = lane.durations
    if spread is not None and spread.count >= HUNG_COMPLETIONS_MIN:
        p99_seconds = spread.p99_ms / 1000
        limit = max(HUNG_SECONDS_MIN, HUNG_P99 * p99_seconds)
        if limit < timeout_seconds:
            return limit, f"; 99 of 100 others took at most {time_text(p99_seconds)}"
    return timeout_seconds, f"; its time-out is {time_text(timeout_seconds)}"


def _silent(chunk: Chunk, started_ms: int, expires_ms: int, now_ms: int) -> Stuck | None:
    """Return a chunk whose worker has stopped sending heartbeats, and still has most of a third of its lease."""
    if chunk.heartbeat_at is None:
        # Workers need not send heartbeats: the lease is then the whole time-out.
        return None
    heartbeat_ms = max(started_ms, timestamp_ms(chunk.heartbeat_at))
    if now_ms - heartbeat_ms <= 2 * (expires_ms - heartbeat_ms) / 3:
        return None
    reason = f"{_worker(chunk)} has sent no heartbeat since {chunk.heartbeat_at}; its lease is until "
    return _stuck(StuckKind.NO_HEARTBEAT, chunk, heartbeat_ms, now_ms, f"{reason}{chunk.lease_expires_at}")


def _expired(fanout: Fanout, chunk: Chunk) -> tuple[StuckKind, str]:
    gone = f"the lease of {_worker(chunk)} expired"
    lost, allowed = chunk.lost_attempts + 1, fanout.rules().lost_attempts_max
    if fanout.cancelled_at is not None:
        return StuckKind.LOST, f"{gone}, and the fan-out is cancelled"
    if lost >= allowed:
        return StuckKind.LOST, f"{gone}, and that was lost attempt {lost} of {allowed}"
    return StuckKind.RETRY_PENDING, f"{gone}; it will run again (lost attempt {lost} of {allowed})"


def _waiting(
    fanout: Fanout, chunk: Chunk, now_ms: int, lane: LaneState, older_than_seconds: float | None
) -> Stuck | None:
    if lane.running:
        return None
    queued_ms = _queued_ms(chunk)
    since_ms = max(queued_ms, _moment_ms(fanout.updated_at, None))
    if lane.is_remote:
        usual, reason = fanout.rules().timeout_seconds, "no worker has taken it, nor any other chunk meanwhile"
        if chunk.disposition is Disposition.WAITING:
            error = fanout.send_error or fanout.split_error
            reason = f"its message was never sent: {error or 'the sending process has stopped'}"
    elif lane.no_taker is not None:
        usual, reason = NO_WORKER_SECONDS, lane.no_taker
    else:
        return None
    threshold_seconds = usual if older_than_seconds is None else older_than_seconds
    if since_ms >= now_ms - round(1000 * threshold_seconds):
        return None
    return _stuck(StuckKind.NEVER_STARTED, chunk, since_ms, now_ms, reason)


def _queued_ms(chunk: Chunk) -> int:
    """Return since when a chunk is queued, from its queue position, which a redrive renews."""
    due = (chunk.queue_sk or "").partition("#")[0]
    made_ms = _moment_ms(chunk.created_at, None)
    return max(int(due), made_ms) if due.isdigit() else made_ms


def _worker(chunk: Chunk) -> str:
    return f"worker {short_worker_name(chunk.worker)}" if chunk.worker is not None else "its worker"


def _due(chunk: Chunk) -> str:
    due = (chunk.queue_sk or "").partition("#")[0]
    return timestamp(int(due)) if due.isdigit() else "its next delivery"


def _moment_ms(text: str | None, otherwise: str | None) -> int:
    known = text or otherwise
    return timestamp_ms(known) if known else 0


def _stuck(kind: StuckKind, chunk: Chunk, since_ms: int, now_ms: int, reason: str) -> Stuck:
    return Stuck(kind, chunk, timestamp(since_ms), max(0, now_ms - since_ms) / 1000, reason)
