"""Chunk attempts: pure functions from a chunk's row, the policy and the time to the change to write."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.item_errors import error_texts, stored_errors
from headgate.fanout.model.rows import (
    ERROR_CHARS_MAX,
    MAIN_LANE,
    NO_TOKEN,
    SLOW_LANE,
    Attempt,
    AttemptLog,
    Chunk,
    Policy,
    attempt_key,
    attention_partition,
    chunk_id_at,
    chunk_key,
    failed_items_partition,
    is_log_ref,
    log_key,
    printed_log,
    queue_partition,
    queue_position,
    sort_key,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.states import AttemptOutcome, ChunkStatus, Disposition
from headgate.fanout.model.worker_names import short_worker_name
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import equals
from headgate.store.model.requests import Update, Write

# Longest output, in characters, that is stored in the row of its chunk: it costs no further write.
PRINTED_IN_ROW_MAX: Final = 1_000


class ErrorClass(enum.StrEnum):
    """Errors detected by the worker or the queue, not raised by the handler."""

    TIMEOUT = "TIMEOUT"
    OOM = "OOM"
    CRASH = "CRASH"
    LOST = "LOST"
    DEAD_LETTER = "DEAD_LETTER"


class AttemptFailure(Struct, frozen=True):
    """Why an attempt failed. `is_final` means that a retry cannot succeed.

    `is_lost` means that its process was ended from outside, so that the attempt does not count.
    """

    error_class: str
    message: str
    is_final: bool = False
    item_errors: Mapping[int, str] = {}
    is_lost: bool = False
    traceback: str = ""
    # What it wrote to standard output and error, shortened.
    printed: str = ""
    memory_mb: int | None = None
    duration_ms: int | None = None
    # Number of the worker's process that ran it, from 1.
    process: int | None = None


class AttemptResult(Struct, frozen=True):
    """The result of a successful attempt. Items are given by their index within the fan-out."""

    output_key: str | None = None
    output: str | None = None
    item_errors: Mapping[int, str] = {}
    deferred: Sequence[int] = ()
    memory_mb: int | None = None
    duration_ms: int | None = None
    printed: str = ""
    process: int | None = None


_DONE: Final = Disposition.DONE
# Listed by the attention index since they are in it. It lists neither those that are WAITING since the split, nor most
# of those that are DONE (see `completed_index`): an entry for each would cost every chunk a write.
_LISTED: Final = (
    Disposition.WAITING,
    Disposition.RETRYING,
    Disposition.DEFERRED,
    Disposition.DEAD,
    Disposition.QUARANTINED,
    Disposition.CANCELLED,
    Disposition.SKIPPED,
)
_DOUBLINGS_MAX: Final = 1000


def with_disposition(chunk: Chunk, disposition: Disposition, since: str, available_at_ms: int = 0) -> Chunk:
    """Return the chunk in a new disposition, with the index attributes that belong to it."""
    digits = chunk.sk.rpartition("-")[2]
    is_queued = disposition in (Disposition.QUEUED, Disposition.RETRYING)
    place = None
    if disposition is Disposition.RUNNING:
        place = f"{chunk.lease_expires_at}#{digits}"
    elif disposition in _LISTED or has_listed_items(chunk, disposition):
        place = f"{since}#{digits}"
    return replace(
        chunk,
        status=disposition.status,
        disposition=disposition,
        attention_pk=None if place is None else attention_of(chunk.run_id, disposition),
        attention_sk=place,
        queue_pk=queue_partition(chunk.run_id, chunk.lane) if is_queued else None,
        queue_sk=queue_position(available_at_ms, chunk.sk) if is_queued else None,
    )


def has_listed_items(chunk: Chunk, disposition: Disposition) -> bool:
    """Whether the index of chunks with failed items lists a chunk in this disposition."""
    return disposition is Disposition.DONE and chunk.item_errors is not None


def attention_of(run_id: str, disposition: Disposition) -> str:
    """Return the attention-index partition of a chunk that the index lists."""
    is_done = disposition is Disposition.DONE
    return failed_items_partition(run_id) if is_done else attention_partition(run_id, disposition)


def start_change(
    chunk: Chunk,
    *,
    worker: str,
    token: str,
    now_ms: int,
    lease_seconds: float,
    receive_count: int = 0,
    message_id: str | None = None,
) -> ChunkChange:
    """Return the change by which a worker claims a chunk: a queued one, or one whose lease has expired."""
    now = timestamp(now_ms)
    after = replace(
        chunk,
        token=token,
        attempt=chunk.attempt + 1,
        lost_attempts=chunk.lost_attempts + (chunk.disposition is Disposition.RUNNING),
        worker=worker,
        lease_expires_at=timestamp(now_ms + round(1000 * lease_seconds)),
        heartbeat_at=None,
        items_done=0,
        receive_count=max(receive_count, chunk.receive_count),
        message_id=message_id or chunk.message_id,
        started_at=now,
        completed_at=None,
        duration_ms=None,
        process=None,
        printed=None,
    )
    counted = {"attempts": 1}
    # The row is about to record another attempt: what the last one printed gets a row of its own.
    log = printed_log(chunk)
    extra_writes: tuple[Write, ...] = () if log is None else (log.put(),)
    if chunk.attempt:
        counted["retries"] = 1
    if chunk.disposition is Disposition.RUNNING:
        spent_ms = _known_ms(chunk)
        counted |= {"lost": 1, "busy_ms": spent_ms, "wasted_ms": spent_ms}
        extra_writes += (_attempt(chunk, AttemptOutcome.LOST, now_ms, _lost_error(chunk)).put(),)
    is_overdue = chunk.disposition is Disposition.RUNNING
    return ChunkChange(chunk, with_disposition(after, Disposition.RUNNING, now), counted, extra_writes, is_overdue)


def has_expired(chunk: Chunk, now_ms: int) -> bool:
    """Whether the lease of a running chunk has expired."""
    return chunk.lease_expires_at is None or timestamp_ms(chunk.lease_expires_at) <= now_ms


def completion_change(
    chunk: Chunk, result: AttemptResult, *, now_ms: int, width: int, is_waiting: bool = False
) -> ChunkChange:
    """Return the change that completes a chunk, or completes it except for items deferred to the slow lane.

    Raises `InvalidPayloadError` if the result names items of another chunk.
    """
    _check_items(chunk, result)
    now = timestamp(now_ms)
    deferred, failed = sorted(set(result.deferred)), len(result.item_errors)
    ok = items_to_run(chunk) - len(deferred) - failed
    is_rerun = chunk.rerun_items is not None
    duration_ms = result.duration_ms if result.duration_ms is not None else _spent_ms(chunk, now_ms)
    after = replace(
        chunk,
        completed_at=now,
        duration_ms=duration_ms,
        output_key=(result.output_key or chunk.output_key) if is_rerun else result.output_key,
        output=merged_output(chunk, result.output) if is_rerun else result.output,
        memory_mb=result.memory_mb,
        process=result.process,
        error=None,
        error_class=None,
        error_fingerprint=None,
        items_done=chunk.items - len(deferred),
        items_ok=ok + (chunk.items_ok if is_rerun else 0),
        items_failed=failed + (chunk.items_failed if is_rerun else 0),
        items_deferred=len(deferred),
        **stored_errors(_errors_after(chunk, result.item_errors)),
        deferred=chunk.deferred if not deferred else msgspec.json.encode(deferred).decode(),
        rerun_items=None,
        lease_expires_at=None,
        log_ref=_foreign_ref(chunk),
        printed=result.printed if 0 < len(result.printed) <= PRINTED_IN_ROW_MAX else None,
    )
    log = None if after.printed is not None else _log(after, now, printed=result.printed)
    if log is not None:
        after = replace(after, log_ref=log.sk)
    counted = {"busy_ms": duration_ms}
    extra_writes: list[Write] = [] if log is None else [log.put()]
    if chunk.attempt > 1:
        extra_writes.append(_attempt(after, AttemptOutcome.COMPLETED, now_ms, None).put())
    disposition = Disposition.DONE
    if chunk.lane == SLOW_LANE:
        extra_writes.append(_parent_done(chunk, ok, failed, width, now))
        counted |= {"deferred": -1, "done": 1, "done_listed": 1}
        counted |= {"items_ok": ok, "items_failed": failed, "items_deferred": -chunk.items}
    elif deferred:
        disposition = Disposition.DEFERRED
        piece = slow_lane_chunk(after, deferred, now_ms, width, is_waiting=is_waiting)
        extra_writes.append(piece.put(None))
        counted |= {"slow_total": 1, f"slow_{piece.disposition.bucket}": 1}
    return ChunkChange(chunk, with_disposition(after, disposition, now), counted, tuple(extra_writes))


def failure_change(chunk: Chunk, failure: AttemptFailure, policy: Policy, *, now_ms: int, draw: float) -> ChunkChange:
    """Return the change after a failed or lost attempt: retry with backoff, dead, or quarantined.

    A lost attempt uses up none of the chunk's attempts: it has a limit of its own.
    """
    outcome = AttemptOutcome.LOST if failure.is_lost else AttemptOutcome.FAILED
    lost_attempts = chunk.lost_attempts + failure.is_lost
    is_lost_too_often = failure.is_lost and lost_attempts >= policy.lost_attempts_max
    if is_lost_too_often:
        limit = f"{lost_attempts} attempts were lost, at most {policy.lost_attempts_max} may be"
        failure = replace(failure, message=f"{failure.message}; {limit}")
    # Nothing is known of a worker after its last heartbeat.
    is_unknown = failure.is_lost and failure.duration_ms is None
    spent_ms = _known_ms(chunk) if is_unknown else _spent_ms(chunk, now_ms)
    log = _log(chunk, timestamp(now_ms), traceback=failure.traceback, printed=failure.printed)
    after = replace(
        chunk,
        completed_at=timestamp(now_ms),
        # Of the attempt itself, if its worker has measured it: a chunk may wait in its worker's queue.
        duration_ms=spent_ms if failure.duration_ms is None else failure.duration_ms,
        memory_mb=failure.memory_mb,
        process=failure.process,
        log_ref=_foreign_ref(chunk) if log is None else log.sk,
        lost_attempts=lost_attempts,
        error=_text(failure.message),
        error_class=_text(failure.error_class),
        error_fingerprint=fingerprint(failure.error_class, failure.message),
        **stored_errors(_errors_after(chunk, failure.item_errors)),
        lease_expires_at=None,
    )
    counted = {"busy_ms": spent_ms, "wasted_ms": spent_ms}
    if outcome is AttemptOutcome.LOST:
        counted["lost"] = 1
    extra_writes = (_attempt(after, outcome, now_ms, failure).put(), *([] if log is None else [log.put()]))
    if failure.is_final:
        ended = with_disposition(_items_failed(after), Disposition.QUARANTINED, timestamp(now_ms))
        return ChunkChange(chunk, ended, counted, extra_writes)
    attempts = attempts_since_redrive(after)
    if is_lost_too_often or (not failure.is_lost and attempts >= policy.max_attempts):
        ended = with_disposition(_items_failed(after), Disposition.DEAD, timestamp(now_ms))
        return ChunkChange(chunk, ended, counted, extra_writes)
    # The backoff grows with the failures of the chunk, not with those of its workers.
    again_ms = now_ms + round(1000 * retry_delay_seconds(policy, 1 if failure.is_lost else attempts, draw))
    return ChunkChange(
        chunk, with_disposition(after, Disposition.RETRYING, timestamp(now_ms), again_ms), counted, extra_writes
    )


def release_change(chunk: Chunk, *, now_ms: int) -> ChunkChange:
    """Return the change by which a worker returns an unfinished chunk to the queue; the attempt does not count."""
    after = replace(chunk, attempt=chunk.attempt - 1, worker=None, lease_expires_at=None, started_at=None, items_done=0)
    queued = with_disposition(after, Disposition.QUEUED, timestamp(now_ms), now_ms)
    spent_ms = _spent_ms(chunk, now_ms)
    counted = {"attempts": -1, "retries": -1 if chunk.attempt > 1 else 0, "busy_ms": spent_ms, "wasted_ms": spent_ms}
    return ChunkChange(chunk, queued, counted)


def redrive_change(chunk: Chunk, *, now_ms: int, is_waiting: bool = False, heals: int = 0) -> ChunkChange:
    """Return the change that queues a failed or cancelled chunk again with all its attempts."""
    is_rerun = chunk.rerun_items is not None
    failed_again = items_to_run(chunk) if chunk.status is ChunkStatus.FAILED else 0
    after = replace(
        chunk,
        redrives=chunk.redrives + (0 if heals else 1),
        heals=chunk.heals + heals,
        # Attempt numbers keep increasing, so that rows of earlier attempts are never overwritten.
        tried=chunk.attempt,
        lost_attempts=0,
        worker=None,
        message=None,
        completed_at=None,
        duration_ms=None,
        # Items that do not run again keep their outcome.
        items_failed=max(0, chunk.items_failed - failed_again) if is_rerun else 0,
        items_ok=chunk.items_ok if is_rerun else 0,
        **stored_errors(_errors_after(chunk, {})),
    )
    disposition = Disposition.WAITING if is_waiting else Disposition.QUEUED
    return ChunkChange(chunk, with_disposition(after, disposition, timestamp(now_ms), now_ms), {"redriven": 1})


def item_redrive_change(
    chunk: Chunk, indexes: Collection[int], *, token: str, now_ms: int, is_waiting: bool = False
) -> ChunkChange:
    """Return the change that queues a completed chunk again with some of its failed items.

    The other items keep their outcome and their place in the output.
    """
    left = {index: text for index, text in error_texts(chunk).items() if index not in indexes}
    after = replace(
        chunk,
        token=token,
        redrives=chunk.redrives + 1,
        tried=chunk.attempt,
        lost_attempts=0,
        worker=None,
        message=None,
        message_id=None,
        receive_count=0,
        completed_at=None,
        duration_ms=None,
        items_failed=chunk.items_failed - len(indexes),
        rerun_items=msgspec.json.encode(sorted(indexes)).decode(),
        **stored_errors(left),
    )
    disposition = Disposition.WAITING if is_waiting else Disposition.QUEUED
    ended_ms = now_ms if chunk.completed_at is None else timestamp_ms(chunk.completed_at)
    # The output of an attempt whose results the next attempt cannot replace one by one.
    before = replace(
        _attempt(chunk, AttemptOutcome.COMPLETED, ended_ms, None), output_key=chunk.output_key, output=chunk.output
    )
    queued = with_disposition(after, disposition, timestamp(now_ms), now_ms)
    return ChunkChange(chunk, queued, {"redriven": 1}, (before.put(),))


def merged_output(chunk: Chunk, output: str | None) -> str | None:
    """Return the output of a chunk after some of its items ran again.

    Results of single items take their place in the list of results. Any other output replaces the earlier one, which
    stays with its attempt.
    """
    if output is None:
        return chunk.output
    places = item_indexes(chunk)
    try:
        results = typed_decode.from_json(output, list[Raw])
        merged = [Raw(b"null")] * chunk.items
        if chunk.output is not None:
            merged = typed_decode.from_json(chunk.output, list[Raw])
    except msgspec.ValidationError:
        return output
    if len(results) != len(places) or len(merged) != chunk.items:
        return output
    for place, result in zip(places, results, strict=True):
        merged[place - chunk.start] = result
    return (b"[" + b",".join(map(bytes, merged)) + b"]").decode()


def move_change(chunk: Chunk, disposition: Disposition, *, now_ms: int, error: str | None = None) -> ChunkChange:
    """Return the change that cancels, skips, kills or quarantines a chunk."""
    after = replace(chunk, completed_at=timestamp(now_ms), lease_expires_at=None)
    if error is not None:
        after = replace(after, error=_text(error))
    extra_writes: tuple[Write, ...] = ()
    counted: dict[str, int] = {}
    if chunk.disposition is Disposition.RUNNING:
        extra_writes = (_attempt(chunk, AttemptOutcome.CANCELLED, now_ms, None).put(),)
        counted = dict.fromkeys(("busy_ms", "wasted_ms"), _spent_ms(chunk, now_ms))
    if disposition is Disposition.SKIPPED:
        # A skipped chunk's failed items no longer count against the fan-out.
        after = replace(after, items_failed=0)
    elif disposition.status is ChunkStatus.FAILED and chunk.status is not ChunkStatus.FAILED:
        after = _items_failed(after)
    return ChunkChange(chunk, with_disposition(after, disposition, timestamp(now_ms)), counted, extra_writes)


def attempts_since_redrive(chunk: Chunk) -> int:
    """Return the number of attempts since the chunk was last redriven, without lost ones."""
    return chunk.attempt - chunk.tried - chunk.lost_attempts


def retry_delay_seconds(policy: Policy, attempts: int, draw: float) -> float:
    """Return the backoff before the next attempt; `draw` in 0..1 adds up to 25 % jitter."""
    # Caps the exponent, since the power would overflow a float.
    exponent = min(float(attempts - 1), _DOUBLINGS_MAX / max(1.0, math.log2(max(policy.backoff_factor, 1.0))))
    pause: float = min(policy.backoff_seconds * policy.backoff_factor**exponent, policy.backoff_seconds_max)
    return pause * (1 + 0.25 * draw)


def slow_lane_chunk(chunk: Chunk, deferred: Sequence[int], now_ms: int, width: int, *, is_waiting: bool) -> Chunk:
    """Return the slow-lane row for the deferred items of a chunk.

    With `is_waiting` it is WAITING until its queue message is sent.
    """
    disposition = Disposition.WAITING if is_waiting else Disposition.QUEUED
    piece = Chunk(
        run_id=chunk.run_id,
        sk=sort_key(chunk_id_at(chunk.start, width, slow=True)),
        status=disposition.status,
        disposition=disposition,
        created_at=timestamp(now_ms),
        start=chunk.start,
        items=len(deferred),
        token=NO_TOKEN,
        input_key=chunk.input_key,
        input=chunk.input,
        deferred=msgspec.json.encode(list(deferred)).decode(),
        has_failed_siblings=chunk.item_errors is not None,
        shard=chunk.shard,
        ttl=chunk.ttl,
    )
    return with_disposition(piece, disposition, timestamp(now_ms), now_ms)


def _parent_done(piece: Chunk, ok: int, failed: int, width: int, now: str) -> Write:
    key = chunk_key(piece.run_id, chunk_id_at(piece.start, width))
    is_failed = piece.has_failed_siblings
    # It is listed, since a search for completed chunks may have gone past it.
    partition = failed_items_partition(piece.run_id) if is_failed else attention_partition(piece.run_id, _DONE)
    place = {"attention_pk": partition, "attention_sk": f"{now}#{piece.sk.rpartition('-')[2]}"}
    return Update(
        FANOUT,
        key,
        set={"disposition": _DONE.value} | place,
        add={"items_ok": ok, "items_failed": failed, "items_deferred": -piece.items, "items_done": ok},
        condition=equals("disposition", Disposition.DEFERRED.value),
    )


def _attempt(chunk: Chunk, outcome: AttemptOutcome, now_ms: int, failure: AttemptFailure | None) -> Attempt:
    key = attempt_key(chunk.run_id, chunk.chunk_id, chunk.attempt)
    spent_ms = _known_ms(chunk) if outcome is AttemptOutcome.LOST else _spent_ms(chunk, now_ms)
    return Attempt(
        run_id=chunk.run_id,
        sk=str(key.sort),
        attempt=chunk.attempt,
        outcome=outcome,
        ended_at=timestamp(now_ms),
        started_at=chunk.started_at,
        duration_ms=chunk.duration_ms if chunk.duration_ms is not None else spent_ms,
        worker=chunk.worker,
        process=chunk.process,
        error=None if failure is None else _text(failure.message),
        error_class=None if failure is None else _text(failure.error_class),
        error_fingerprint=None if failure is None else fingerprint(failure.error_class, failure.message),
        receive_count=chunk.receive_count,
        memory_mb=chunk.memory_mb,
        log_ref=chunk.log_ref,
        ttl=chunk.ttl,
    )


def _foreign_ref(chunk: Chunk) -> str | None:
    """Return the log reference of a chunk unless it is the log of an earlier attempt.

    A chunk that is an iteration of a state machine refers to its execution, from which a redrive goes on.
    """
    return None if chunk.log_ref is None or is_log_ref(chunk.log_ref) else chunk.log_ref


def _log(chunk: Chunk, ended_at: str, *, traceback: str = "", printed: str = "") -> AttemptLog | None:
    if not traceback and not printed:
        return None
    key = log_key(chunk.run_id, chunk.chunk_id, chunk.attempt)
    return AttemptLog(chunk.run_id, str(key.sort), chunk.attempt, ended_at, traceback, printed, chunk.ttl)


def _lost_error(chunk: Chunk) -> AttemptFailure:
    message = f"worker {short_worker_name(chunk.worker)} vanished; its lease was until {chunk.lease_expires_at}"
    return AttemptFailure(ErrorClass.LOST, message, is_lost=True)


def lease_expiry_change(chunk: Chunk, policy: Policy, *, now_ms: int, draw: float) -> ChunkChange:
    """Return the change of a running chunk whose lease has expired, or whose worker process no longer exists."""
    return replace(failure_change(chunk, _lost_error(chunk), policy, now_ms=now_ms, draw=draw), is_overdue=True)


def _known_ms(chunk: Chunk) -> int:
    """Return the time from the start of an attempt to the last heartbeat of its worker."""
    return _spent_ms(chunk, 0 if chunk.heartbeat_at is None else timestamp_ms(chunk.heartbeat_at))


def _spent_ms(chunk: Chunk, now_ms: int) -> int:
    return 0 if chunk.started_at is None else max(0, now_ms - timestamp_ms(chunk.started_at))


def _check_items(chunk: Chunk, result: AttemptResult) -> None:
    if not result.item_errors and not result.deferred:
        return
    own = set(item_indexes(chunk))
    for index in (*result.item_errors, *result.deferred):
        if index not in own:
            raise InvalidPayloadError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: item {index} is not in it; "
                f"it has {chunk.items} items from {chunk.start}"
            )
    both = set(result.item_errors) & set(result.deferred)
    if both:
        raise InvalidPayloadError(f"chunk {chunk.chunk_id} of {chunk.run_id}: items {sorted(both)} failed and deferred")
    if result.deferred and chunk.lane != MAIN_LANE:
        raise InvalidPayloadError(f"chunk {chunk.chunk_id} of {chunk.run_id}: the slow lane cannot defer items further")
    if result.deferred and chunk.rerun_items is not None:
        raise InvalidPayloadError(f"chunk {chunk.chunk_id} of {chunk.run_id}: redriven items cannot be deferred")


def item_indexes(chunk: Chunk) -> Sequence[int]:
    """Return the indexes within the fan-out of the items that an attempt at a chunk processes."""
    if chunk.rerun_items is not None:
        return typed_decode.from_json(chunk.rerun_items, list[int])
    if chunk.lane == SLOW_LANE and chunk.deferred is not None:
        return typed_decode.from_json(chunk.deferred, list[int])
    return range(chunk.start, chunk.start + chunk.items)


def items_to_run(chunk: Chunk) -> int:
    """Return the number of items that an attempt at a chunk processes."""
    return chunk.items if chunk.rerun_items is None else len(item_indexes(chunk))


def _items_failed(chunk: Chunk) -> Chunk:
    """Return a chunk that will not be tried again: the items of its last attempt have failed."""
    return replace(chunk, items_failed=chunk.items_failed + items_to_run(chunk))


def _errors_after(chunk: Chunk, errors: Mapping[int, str]) -> Mapping[int, str]:
    """Return the item errors of a chunk after an attempt: those of the attempt, and of items that it did not run."""
    if chunk.rerun_items is None:
        return errors
    run = set(item_indexes(chunk))
    kept = {index: text for index, text in error_texts(chunk).items() if index not in run}
    # An error of an item that did not run would make it count twice: it has its outcome.
    return kept | {index: text for index, text in errors.items() if index in run}


def _text(text: str) -> str:
    """Return the text truncated and with lone surrogates replaced, so that it can be stored."""
    return text[:ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
