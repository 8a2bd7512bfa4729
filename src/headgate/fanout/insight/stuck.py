"""Stuck chunks: chunks without progress, for how long, and whether they will recover by themselves."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec import Struct

from headgate.fanout.core.queries import PAGE, FanoutQueries
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, timestamp, timestamp_ms
from headgate.fanout.model.states import Disposition

# Chunks read at the head of a queue; a blocked queue is blocked as a whole.
QUEUE_HEAD_MAX: Final = 100


class StuckKind(enum.StrEnum):
    """Why a chunk makes no progress."""

    RETRY_PENDING = "RETRY_PENDING"  # Its attempt failed or its lease expired; it will be retried.
    LOST = "LOST"  # Its lease expired and it will not be retried.
    NEVER_STARTED = "NEVER_STARTED"  # It is queued, and no worker has claimed it.
    OVERDUE = "OVERDUE"  # Its worker is alive, and exceeds the time.


class Stuck(Struct, frozen=True):
    """A chunk without progress: since when, and why."""

    kind: StuckKind
    chunk: Chunk
    since: str
    seconds: float
    reason: str


def classify(fanout: Fanout, chunk: Chunk, now_ms: int, *, older_than_seconds: float | None = None) -> Stuck | None:
    """Return why a chunk makes no progress, or None.

    An expired lease or a pending retry is reported at once. A running or queued chunk is reported after
    `older_than_seconds`, by default the policy's time-out. For queued ones the time counts from the last change of the
    fan-out, so that waiting in a moving queue is not reported.
    """
    threshold_ms = round(1000 * _threshold_seconds(fanout, older_than_seconds))
    if chunk.disposition is Disposition.RUNNING:
        return _running(fanout, chunk, now_ms, threshold_ms)
    if fanout.paused_at is not None or fanout.cancelled_at is not None:
        return None
    if chunk.disposition is Disposition.RETRYING:
        since_ms = _moment_ms(chunk.completed_at, chunk.created_at)
        reason = f"attempt {chunk.attempt} failed; it will be retried at {_due(chunk)}"
        return _stuck(StuckKind.RETRY_PENDING, chunk, since_ms, now_ms, reason)
    if chunk.disposition in (Disposition.QUEUED, Disposition.WAITING):
        return _waiting(fanout, chunk, now_ms, threshold_ms)
    return None


def stuck(
    queries: FanoutQueries, run_id: str, *, older_than_seconds: float | None = None, limit: int = PAGE
) -> list[Stuck]:
    """Return up to `limit` stuck chunks, running ones first, each kind longest first.

    Pending retries are included only after `older_than_seconds`. From eventually consistent indexes: read a chunk again
    before acting on it. The cost depends on running and stuck chunks only. Raises `NotFoundError`.
    """
    fanout = queries.fanout(run_id)
    if fanout.is_finished:
        return []
    now_ms = queries.now_ms()
    threshold_seconds = _threshold_seconds(fanout, older_than_seconds)
    found = _candidates(queries, fanout, now_ms - round(1000 * threshold_seconds))
    detail = (classify(fanout, chunk, now_ms, older_than_seconds=threshold_seconds) for chunk in found)
    return list(islice((one for one in detail if one is not None), limit))


def _candidates(queries: FanoutQueries, fanout: Fanout, before_ms: int) -> Iterator[Chunk]:
    if not fanout.shards:
        # Written by another program, without our index attributes.
        yield from queries.every_chunk(fanout.run_id)
        return
    # Ordered by the end of their lease: expired ones first.
    yield from queries.every_in_disposition(fanout.run_id, Disposition.RUNNING)
    yield from queries.every_in_disposition(fanout.run_id, Disposition.RETRYING, before=timestamp(before_ms))
    for lane in (MAIN_LANE, SLOW_LANE):
        head = queries.queued(fanout.run_id, lane, due_ms=before_ms, limit=QUEUE_HEAD_MAX)
        yield from (chunk for chunk in head if chunk.disposition is Disposition.QUEUED)


def _running(fanout: Fanout, chunk: Chunk, now_ms: int, threshold_ms: int) -> Stuck | None:
    started_ms = _moment_ms(chunk.started_at, chunk.created_at)
    if chunk.lease_expires_at is not None:
        expires_ms = timestamp_ms(chunk.lease_expires_at)
    else:
        # A worker of another program holds no lease: the time-out stands in for it.
        expires_ms = started_ms + round(1000 * fanout.rules().timeout_seconds)
    if expires_ms <= now_ms:
        kind, reason = _expired(fanout, chunk)
        return _stuck(kind, chunk, expires_ms, now_ms, reason)
    if started_ms < now_ms - threshold_ms:
        reason = f"{_worker(chunk)} is alive, and has been running it since {chunk.started_at}"
        return _stuck(StuckKind.OVERDUE, chunk, started_ms, now_ms, reason)
    return None


def _expired(fanout: Fanout, chunk: Chunk) -> tuple[StuckKind, str]:
    gone = f"the lease of {_worker(chunk)} expired"
    lost, allowed = chunk.lost_attempts + 1, fanout.rules().lost_attempts_max
    if fanout.cancelled_at is not None:
        return StuckKind.LOST, f"{gone}, and the fan-out is cancelled"
    if lost >= allowed:
        return StuckKind.LOST, f"{gone}, and that was lost attempt {lost} of {allowed}"
    return StuckKind.RETRY_PENDING, f"{gone}; it will run again (lost attempt {lost} of {allowed})"


def _waiting(fanout: Fanout, chunk: Chunk, now_ms: int, threshold_ms: int) -> Stuck | None:
    queued_ms = _queued_ms(chunk)
    since_ms = max(queued_ms, _moment_ms(fanout.updated_at, None))
    if since_ms >= now_ms - threshold_ms:
        return None
    reason = "no worker has taken it, nor any other chunk meanwhile"
    if chunk.disposition is Disposition.WAITING:
        error = fanout.send_error or fanout.split_error
        reason = f"its message was never sent: {error or 'the sending process has stopped'}"
    return _stuck(StuckKind.NEVER_STARTED, chunk, since_ms, now_ms, reason)


def _queued_ms(chunk: Chunk) -> int:
    """Return since when a chunk is queued, from its queue position, which a redrive renews."""
    due = (chunk.queue_sk or "").partition("#")[0]
    made_ms = _moment_ms(chunk.created_at, None)
    return max(int(due), made_ms) if due.isdigit() else made_ms


def _worker(chunk: Chunk) -> str:
    return f"worker {chunk.worker}" if chunk.worker is not None else "its worker"


def _due(chunk: Chunk) -> str:
    due = (chunk.queue_sk or "").partition("#")[0]
    return timestamp(int(due)) if due.isdigit() else "its next delivery"


def _threshold_seconds(fanout: Fanout, older_than_seconds: float | None) -> float:
    return fanout.rules().timeout_seconds if older_than_seconds is None else older_than_seconds


def _moment_ms(text: str | None, otherwise: str | None) -> int:
    known = text or otherwise
    return timestamp_ms(known) if known else 0


def _stuck(kind: StuckKind, chunk: Chunk, since_ms: int, now_ms: int, reason: str) -> Stuck:
    return Stuck(kind, chunk, timestamp(since_ms), max(0, now_ms - since_ms) / 1000, reason)
