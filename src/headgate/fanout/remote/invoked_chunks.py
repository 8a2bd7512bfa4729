"""Invoked chunks: runs the chunks of queue messages in this process, with the handlers that their fan-outs name.

For functions: an invocation has a deadline, and ends with it. A chunk whose handler takes one item at a time defers the
items that are left to the slow lane shortly before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.durable.model.failures import NonRetryable
from headgate.errors import InvalidPayloadError
from headgate.fanout.core.attempts import AttemptFailure
from headgate.fanout.handlers import load, perform
from headgate.fanout.local.chunk_results import job_of
from headgate.fanout.model.child_protocol import Done, Failed
from headgate.fanout.model.local_access import LocalAccess
from headgate.fanout.remote.chunk_handler import Later, chunk_handler
from headgate.fanout.remote.sdk import ActiveChunk, AttemptFailedError, ChunkWorker


class InvokedChunks:
    """Runs chunks for one invocation after another. Handlers must be among those that `access` allows.

    Their messages come from the queue `queue_url`.
    """

    def __init__(
        self, worker: ChunkWorker, access: LocalAccess, *, later: Later | None = None, queue_url: str | None = None
    ) -> None:
        self._access = access
        self._handle = chunk_handler(worker, later=later, queue_url=queue_url)(self._run)

    def __call__(self, event: Mapping[str, Any], context: object) -> Any:  # noqa: ANN401 - as Lambda defines it
        """Run the chunks of an event of SQS, and return the messages to deliver again."""
        return self._handle(event, context)

    def _run(self, chunk: ActiveChunk) -> None:
        handler = chunk.fanout.handler
        if handler is None:
            raise NonRetryable(f"fan-out {chunk.run_id}: it has no handler; submit it with one, or run a worker for it")
        job = job_of(0, chunk.claim, chunk.lane)
        answer = perform(
            load(handler, self._access),
            job,
            chunk.progress,
            self._access.files,
            should_stop=lambda: chunk.should_stop,
        )
        if chunk.cancelled:
            raise InvalidPayloadError(f"fan-out {chunk.run_id}: it was cancelled")
        if isinstance(answer, Failed):
            raise AttemptFailedError(_failure(answer))
        _record(chunk, answer)


def _record(chunk: ActiveChunk, done: Done) -> None:
    for place, text in done.item_errors.items():
        chunk.item_error(place, text)
    if done.deferred:
        chunk.defer(*done.deferred)
    chunk.output(None if done.output is None else msgspec.json.decode(done.output), key=done.output_key)


def _failure(failed: Failed) -> AttemptFailure:
    return AttemptFailure(
        failed.error_class,
        failed.message,
        failed.is_final,
        failed.item_errors,
        traceback=failed.traceback,
        memory_mb=failed.memory_mb,
        duration_ms=failed.duration_ms,
    )
