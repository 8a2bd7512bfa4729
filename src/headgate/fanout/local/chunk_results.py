"""Endings: what a handler's answer makes of the chunk that it was called with."""

from __future__ import annotations

from headgate.errors import InvalidPayloadError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, completed, failed, moved_to
from headgate.fanout.core.tracking import Claim
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.child_protocol import Done, Failed, Job
from headgate.fanout.model.rows import MAIN_LANE
from headgate.fanout.model.states import Disposition


def job_of(key: int, claim: Claim, lane: str) -> Job:
    """Return the job that a claim is for a handler of a worker of this lane."""
    fanout, chunk, policy = claim.fanout, claim.chunk, claim.fanout.rules()
    return Job(
        key=key,
        run_id=chunk.run_id,
        chunk_id=chunk.chunk_id,
        group=fanout.group,
        lane=chunk.lane,
        attempt=chunk.attempt,
        start=chunk.start,
        items=chunk.items,
        source=fanout.source,
        input_key=chunk.input_key,
        input=chunk.input,
        deferred=chunk.deferred,
        params=fanout.params,
        each=policy.each,
        item_timeout_seconds=policy.item_timeout_seconds if lane == MAIN_LANE else None,
    )


def ended(claim: Claim, answer: Done | Failed, *, now_ms: int, draw: float) -> ChunkChange:
    """Return the change by which the end of a job is recorded."""
    if isinstance(answer, Done):
        result = AttemptResult(
            output_key=answer.output_key,
            output=answer.output,
            item_errors=answer.item_errors,
            deferred=answer.deferred,
            memory_mb=answer.memory_mb,
            duration_ms=answer.duration_ms,
        )
        is_waiting = claim.fanout.queue_url is not None
        try:
            return completed(claim.chunk, result, now_ms=now_ms, width=claim.fanout.width, is_waiting=is_waiting)
        except InvalidPayloadError as exc:
            # Said of the wrong items: what it did cannot be told, so that it counts as not done.
            answer = Failed(answer.key, answer.duration_ms, "InvalidPayloadError", str(exc))
    if claim.fanout.cancelled_at is not None:
        return moved_to(claim.chunk, Disposition.CANCELLED, now_ms=now_ms)
    failure = AttemptFailure(answer.error_class, answer.message, answer.is_final, answer.item_errors)
    return failed(claim.chunk, failure, claim.fanout.rules(), now_ms=now_ms, draw=draw)
