"""Chunk SDK: lets any program run the chunk that a queue message names.

A worker with its own loop opens a block for each message:

    with ChunkWorker(tracker).chunk(message) as chunk:
        for place, item in zip(chunk.places, chunk.items, strict=True):
            ...

Leaving the block completes the chunk, and the message may be deleted; an exception fails the attempt, and the message
must be delivered again. `chunk_handler` does the same for a function, such as a Lambda function of a queue.
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import structlog
from msgspec import Struct

from headgate.clock import Clock, SystemClock
from headgate.durable.model.failures import describe
from headgate.errors import (
    HeadgateError,
    InvalidPayloadError,
    NotAdmittedError,
    NotFoundError,
    PayloadTooLargeError,
    StaleClaimError,
    UserError,
)
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, ErrorClass, item_indexes
from headgate.fanout.core.maintenance import worker_name
from headgate.fanout.core.tracking import Claim, is_cancelled
from headgate.fanout.handlers import OUTPUT_BYTES_MAX
from headgate.fanout.model.messages import ChunkMessage, Message, message_of
from headgate.fanout.model.rows import SLOW_LANE, Chunk, Fanout
from headgate.fanout.model.sources import Piece, read_items
from headgate.fanout.model.states import Admission
from headgate.fanout.model.traces import formatted_traceback
from headgate.fanout.remote.heartbeat import GRACE_SECONDS, ChunkHeartbeat, Deadline, RemainingMs
from headgate.fanout.remote.trackers import ChunkTracker

_log = structlog.get_logger(__name__)


class Delivery(Struct, frozen=True):
    """Queue metadata of a chunk's message."""

    receive_count: int = 0
    message_id: str | None = None


class ChunkWorker:
    """Runs chunks under one worker name. Safe to use from many threads.

    `clock` measures durations; the tracker has its own clock for stored times.
    """

    def __init__(self, tracker: ChunkTracker, *, name: str | None = None, clock: Clock | None = None) -> None:
        self.tracker = tracker
        self.clock = clock if clock is not None else SystemClock()
        self.name = name if name is not None else worker_name(os.getpid(), secrets.token_hex(4))

    def chunk(
        self,
        message: Message,
        *,
        receive_count: int = 0,
        message_id: str | None = None,
        remaining_ms: RemainingMs | None = None,
        name: str | None = None,
    ) -> ActiveChunk:
        """Return the chunk of a message (a mapping, its JSON, or run id and chunk id) as a context manager.

        Entering it starts an attempt. That raises `NotAdmittedError` if the message must be delivered again later, and
        `NotFoundError` if the chunk does not exist. `remaining_ms` returns the time left for this worker, as
        `context.get_remaining_time_in_millis` of a Lambda function does. Raises `InvalidPayloadError` for a malformed
        message.
        """
        delivery = Delivery(receive_count, message_id)
        return ActiveChunk(self, message_of(message), delivery, remaining_ms=remaining_ms, name=name)


class ActiveChunk:
    """A chunk within its block. Items are given by their index within the fan-out, as in `places`.

    For a chunk that has ended or was cancelled, the block is entered with that `admission`; any use of the chunk then
    leaves the block without an error, since the message is done with.
    """

    def __init__(
        self,
        worker: ChunkWorker,
        message: ChunkMessage,
        delivery: Delivery,
        *,
        remaining_ms: RemainingMs | None = None,
        name: str | None = None,
        keeps_errors: bool = False,
    ) -> None:
        self.run_id = message.run_id
        self.chunk_id = message.chunk_id
        self.admission: Admission | None = None
        # The row after the block.
        self.ended: Chunk | None = None
        self._message = message
        self._delivery = delivery
        self._tracker = worker.tracker
        self._clock = worker.clock
        self._name = name or worker.name
        self._remaining_ms = remaining_ms
        self._keeps_errors = keeps_errors
        self._heartbeat: ChunkHeartbeat | None = None
        self._deadline = Deadline(worker.clock, remaining_ms)
        self._skipped: NotAdmittedError | None = None
        self._output: str | None = None
        self._output_key: str | None = None
        self._deferred: set[int] = set()
        self._item_errors: dict[int, str] = {}

    # The block.

    def __enter__(self) -> Self:
        left_seconds = self._deadline.left_seconds()
        start = self._tracker.start(
            self.run_id,
            self.chunk_id,
            worker=self._name,
            receive_count=self._delivery.receive_count,
            message_id=self._delivery.message_id,
            # The lease ends soon after the worker's own time limit, or with the policy's if that is sooner.
            lease_seconds=None if self._remaining_ms is None else left_seconds + GRACE_SECONDS,
        )
        self.admission = start.admission
        if start.admission in (Admission.BUSY, Admission.PAUSED):
            raise self._refusal()
        if start.claim is not None:
            limit_seconds = start.claim.fanout.rules().timeout_seconds
            self._deadline = Deadline(self._clock, self._remaining_ms, limit_seconds)
            self._heartbeat = ChunkHeartbeat(self._tracker, self._clock, start.claim, self._deadline)
            self._heartbeat.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        del kind, trace
        if self._heartbeat is None:
            return error is not None and error is self._skipped
        self._heartbeat.stop()
        if error is None:
            self._complete(self._heartbeat.claim)
            return False
        self._end_with_error(self._heartbeat.claim, error)
        if not self._keeps_errors or not isinstance(error, Exception):
            return False
        _log.warning("chunk failed", run_id=self.run_id, chunk_id=self.chunk_id, exc_info=error)
        return True

    # Properties of the chunk.

    @property
    def is_admitted(self) -> bool:
        """Whether this worker may run the chunk."""
        return self._heartbeat is not None

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline of this attempt; infinity if it has none."""
        return self._deadline.left_seconds()

    @property
    def claim(self) -> Claim:
        """The claim as of the last heartbeat."""
        return self._claim()

    @property
    def fanout(self) -> Fanout:
        """The fan-out as of the last heartbeat."""
        return self._claim().fanout

    @property
    def group(self) -> str:
        """The group of the fan-out."""
        return self._claim().fanout.group

    @property
    def lane(self) -> str:
        """Its lane. Items of the slow lane cannot be deferred."""
        return self._claim().chunk.lane

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._claim().chunk.attempt

    @property
    def input_key(self) -> str:
        """The location of the input, for workers that read it themselves."""
        return self._claim().chunk.input_key or self._message.input_key

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the fan-out."""
        text = self._claim().fanout.params
        params: dict[str, Any] = msgspec.json.decode(text) if text else self._message.params or {}
        return params

    @property
    def places(self) -> Sequence[int]:
        """The index of each item within the fan-out."""
        return item_indexes(self._claim().chunk)

    @functools.cached_property
    def items(self) -> list[Any]:
        """The items. Raises `NotFoundError` if the input is missing, or if only the worker can locate it."""
        claim = self._claim()
        if claim.items is not None:
            return list(claim.items)
        chunk = claim.chunk
        source = msgspec.json.decode(claim.fanout.source) if claim.fanout.source else {}
        return read_items(source, Piece(chunk.start, chunk.items, chunk.input_key, chunk.input), self.places)

    # Reports of the worker.

    @property
    def cancelled(self) -> bool:
        """Whether the fan-out was cancelled, as of the last heartbeat."""
        return is_cancelled(self._claim().fanout)

    @property
    def should_stop(self) -> bool:
        """Whether to start no further item: the deadline is near, the fan-out is cancelled, or the claim was lost."""
        heartbeat = self._started()
        return self._deadline.is_near() or heartbeat.error is not None or is_cancelled(heartbeat.claim.fanout)

    def progress(self, items_done: int) -> None:
        """Report the number of processed items. Cheap enough to call after each item: updates are throttled.

        Raises `StaleClaimError` once the claim is lost.
        """
        self._started().progress(items_done)

    def defer(self, *places: int) -> None:
        """Defer items to the slow lane.

        Raises `InvalidPayloadError` for foreign and for redriven items, and in the slow lane.
        """
        if self.lane == SLOW_LANE:
            raise InvalidPayloadError(f"chunk {self.chunk_id} of {self.run_id}: the slow lane cannot defer items")
        if self._claim().chunk.rerun_items is not None:
            raise InvalidPayloadError(f"chunk {self.chunk_id} of {self.run_id}: redriven items cannot be deferred")
        for place in places:
            self._check_own(place)
            self._item_errors.pop(place, None)
            self._deferred.add(place)

    def item_error(self, place: int, error: BaseException | str) -> None:
        """Record the failure of one item; the others may succeed. Raises `InvalidPayloadError` for a foreign item."""
        self._check_own(place)
        self._deferred.discard(place)
        self._item_errors[place] = error if isinstance(error, str) else str(describe(error))

    def output(self, value: Any = None, *, key: str | None = None) -> None:  # noqa: ANN401 - whatever JSON can say
        """Set the chunk's output: a small value, the `key` of a stored object, or both.

        Raises `InvalidPayloadError` for values that JSON cannot hold, and `PayloadTooLargeError`.
        """
        self._claim()
        if value is not None:
            self._output = self._encoded(value)
        if key is not None:
            self._output_key = key

    @property
    def has_output(self) -> bool:
        """Whether `output` was set."""
        return self._output is not None or self._output_key is not None

    def _encoded(self, value: Any) -> str:  # noqa: ANN401 - whatever JSON can say
        try:
            text = msgspec.json.encode(value)
        except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as exc:
            raise InvalidPayloadError(
                f"chunk {self.chunk_id} of {self.run_id}: the output cannot be written as JSON ({exc})"
            ) from exc
        if len(text) > OUTPUT_BYTES_MAX:
            raise PayloadTooLargeError(
                f"chunk {self.chunk_id} of {self.run_id}: the output has {len(text)} bytes as JSON, at most "
                f"{OUTPUT_BYTES_MAX}; store it in a file or bucket, and give its name as key"
            )
        return text.decode()

    def _check_own(self, place: int) -> None:
        if place not in self.places:
            chunk = self._claim().chunk
            raise InvalidPayloadError(
                f"chunk {self.chunk_id} of {self.run_id}: item {place} is not in it; "
                f"it has {chunk.items} items from {chunk.start}"
            )

    def _claim(self) -> Claim:
        return self._started().claim

    def _started(self) -> ChunkHeartbeat:
        if self._heartbeat is None:
            if self.admission is None:
                raise RuntimeError("a chunk is used within its block: with worker.chunk(message) as chunk")
            self._skipped = self._refusal()
            raise self._skipped
        return self._heartbeat

    def _refusal(self) -> NotAdmittedError:
        assert self.admission is not None, "only a start that was answered can be refused"
        fact = _REFUSALS[self.admission]
        return NotAdmittedError(f"chunk {self.chunk_id} of {self.run_id}: {fact}", self.admission)

    # Ending.

    def _complete(self, claim: Claim) -> None:
        result = AttemptResult(
            output_key=self._output_key,
            output=self._output,
            item_errors=self._item_errors,
            deferred=sorted(self._deferred),
        )
        try:
            self.ended = self._tracker.complete(claim, result)
        except UserError as exc:
            # The result cannot be stored, and a retry would produce the same.
            self._fail(claim, exc, is_final=True)
            raise

    def _end_with_error(self, claim: Claim, error: BaseException) -> None:
        assert self._heartbeat is not None, "only a started chunk can fail"
        if isinstance(self._heartbeat.error, StaleClaimError):
            return
        # The worker is shutting down, or the fan-out is cancelled: the attempt does not count.
        if not isinstance(error, Exception) or is_cancelled(claim.fanout):
            self._record(error, lambda: self._tracker.release(claim))
        else:
            self._fail(claim, error)

    def _fail(self, claim: Claim, error: BaseException, *, is_final: bool = False) -> None:
        failure = failure_of(error, self._item_errors, is_final=is_final)
        self._record(error, lambda: self._tracker.fail(claim, failure))

    def _record(self, error: BaseException, write: Callable[[], Chunk]) -> None:
        try:
            self.ended = write()
        except HeadgateError as exc:
            # The original error is the one to report; the lease expires by itself.
            error.add_note(f"chunk {self.chunk_id} of {self.run_id}: this could not be recorded ({exc})")


_REFUSALS: Final = {
    Admission.DUPLICATE: "it has ended already; drop the message",
    Admission.CANCELLED: "it was cancelled; drop the message",
    Admission.BUSY: "another worker is running it; let the message come again",
    Admission.PAUSED: "its fan-out is paused; let the message come again",
}


class AttemptFailedError(Exception):
    """An attempt has failed, and how is known already."""

    def __init__(self, failure: AttemptFailure) -> None:
        super().__init__(f"{failure.error_class}: {failure.message}")
        self.failure = failure


def failure_of(error: BaseException, item_errors: Mapping[int, str], *, is_final: bool = False) -> AttemptFailure:
    """Return the attempt failure for an exception. `NonRetryable` makes it final."""
    if isinstance(error, AttemptFailedError):
        return error.failure
    described = describe(error)
    return AttemptFailure(
        error_class=ErrorClass.OOM if isinstance(error, MemoryError) else described.type,
        message=described.message,
        is_final=is_final or not described.retryable or isinstance(error, NotFoundError),
        item_errors=item_errors,
        traceback=formatted_traceback(error),
    )
