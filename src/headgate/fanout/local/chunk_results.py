"""Chunk results: converts claims to jobs, and the answers of a handler to chunk changes."""

from __future__ import annotations

from headgate.errors import InvalidPayloadError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, completion_change, failure_change, move_change
from headgate.fanout.core.tracking import Claim
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.child_protocol import Done, Failed, Job
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE
from headgate.fanout.model.states import Disposition


def job_of(key: int, claim: Claim, lane: str) -> Job:
    """Return the job of a claim for a worker of this lane."""
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
        places=chunk.rerun_items or (chunk.deferred if chunk.lane == SLOW_LANE else None),
        is_rerun=chunk.rerun_items is not None,
        params=fanout.params,
        each=policy.each,
        # Redriven items are not deferred again.
        item_timeout_seconds=policy.item_timeout_seconds if lane == MAIN_LANE and not chunk.rerun_items else None,
    )


def result_change(claim: Claim, answer: Done | Failed, *, now_ms: int, draw: float) -> ChunkChange:
    """Return the change that records the outcome of a job."""
    if isinstance(answer, Done):
        result = AttemptResult(
            output_key=answer.output_key,
            output=answer.output,
            item_errors=answer.item_errors,
            deferred=answer.deferred,
            memory_mb=answer.memory_mb,
            duration_ms=answer.duration_ms,
            printed=answer.printed,
            process=answer.process,
        )
        is_waiting = claim.fanout.queue_url is not None
        try:
            return completion_change(
                claim.chunk, result, now_ms=now_ms, width=claim.fanout.width, is_waiting=is_waiting
            )
        except InvalidPayloadError as exc:
            # The result names items of another chunk, so that it cannot be recorded: the attempt counts as failed.
            answer = Failed(
                answer.key,
                answer.duration_ms,
                "InvalidPayloadError",
                str(exc),
                printed=answer.printed,
                process=answer.process,
            )
    if claim.fanout.cancelled_at is not None:
        return move_change(claim.chunk, Disposition.CANCELLED, now_ms=now_ms)
    failure = AttemptFailure(
        answer.error_class,
        answer.message,
        answer.is_final,
        answer.item_errors,
        is_lost=answer.is_lost,
        traceback=answer.traceback,
        printed=answer.printed,
        memory_mb=answer.memory_mb,
        duration_ms=answer.duration_ms,
        process=answer.process,
    )
    return failure_change(claim.chunk, failure, claim.fanout.rules(), now_ms=now_ms, draw=draw)
