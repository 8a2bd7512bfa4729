"""Run output API: what the job of a run has written, in parts or followed by long polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, Final

from litestar import Response
from litestar.response import Stream
from msgspec import Meta, Struct

from headgate.durable.model import duration
from headgate.errors import HeadgateError, UserError
from headgate.pipelines.operations.run_output import RunOutput, RunOutputs
from headgate.serve.http.operations import JSON, Answer, Call, Operation
from headgate.serve.rest.parameters import DurationText
from headgate.serve.rest.pipelines.permissions import READ
from headgate.serve.runtime.thread_pool import WorkPool

LIMIT_MAX: Final = 1_048_576
WAIT_SECONDS_MAX: Final = 20.0
TEXT: Final = "text/plain"
# How often a long poll checks for more.
_CHECK_SECONDS: Final = 0.2


class OutputQuery(Struct, forbid_unknown_fields=True):
    """The part of the output, and how long to wait for more."""

    offset: Annotated[
        int, Meta(description="First byte; negative: so many bytes before the end.", examples=[0, -4096])
    ] = 0
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of bytes.")] = 65_536
    attempt: Annotated[int, Meta(ge=1, description="Another attempt at the period of the run.")] | None = None
    # How long to wait for output beyond the offset, 20s at most.
    wait: DurationText = "0s"
    download: Annotated[bool, Meta(description="Return the whole output from the offset on, as plain text.")] = False


class OutputView(Struct, frozen=True, kw_only=True):
    """A part of the output of a job. The next part begins at `next_offset`; offsets count bytes.

    `dropped_bytes` were dropped before this part, because the output grew beyond its limit.
    """

    run_id: str
    attempt: int
    text: str
    offset: int
    next_offset: int
    size: int
    # Whether the job has ended: nothing is written after `size`.
    is_complete: bool
    dropped_bytes: int


def output_operations(outputs: RunOutputs, pool: WorkPool, stopping: Callable[[], bool]) -> list[Operation]:
    """Return the operation that reads output. Long polls end once `stopping` returns True."""
    reading = _Outputs(outputs, pool, stopping)
    summary = "Read the output of a job"
    return [
        Operation(
            "GET",
            "/runs/{run_id}/log",
            summary,
            reading.read,
            {200: OutputView},
            query=OutputQuery,
            answer_media=(JSON, TEXT),
            rule=READ,
        )
    ]


def _wait_seconds(text: str) -> float:
    """Parse how long to wait. Raises `UserError`."""
    seconds = duration.seconds(text, name="wait")
    if seconds > WAIT_SECONDS_MAX:
        raise UserError(f"wait {text!r}: at most {WAIT_SECONDS_MAX:g}s; ask again for more")
    return seconds


class _Outputs:
    def __init__(self, outputs: RunOutputs, pool: WorkPool, stopping: Callable[[], bool]) -> None:
        self._outputs = outputs
        self._pool = pool
        self._stopping = stopping

    async def read(self, call: Call[None, OutputQuery]) -> Answer | Response[Any]:
        query, loop = call.query, asyncio.get_running_loop()
        ends_at = loop.time() + _wait_seconds(query.wait)
        read = partial(
            self._outputs.read, call.path["run_id"], attempt=query.attempt, offset=query.offset, limit=query.limit
        )
        if query.download:
            # Read before the stream starts, so that a missing output is a 404.
            first = await self._pool.run(read)
            return Stream(self._parts(first), media_type=TEXT, headers=_attachment(first))
        while True:
            found = await self._pool.run(read)
            part = found.output
            if part.text or part.is_ended or loop.time() >= ends_at or self._stopping():
                return Answer(_view(found), headers={"cache-control": "no-store"})
            await asyncio.sleep(_CHECK_SECONDS)

    async def _parts(self, found: RunOutput) -> AsyncIterator[bytes]:
        """Yield the output from a part on, up to its size at the beginning."""
        part, size = found.output, found.output.size
        while part.text:
            yield part.text.encode()
            if part.next_offset >= size or self._stopping():
                return
            try:
                read = partial(self._outputs.read, found.run.run_id, attempt=None, offset=part.next_offset)
                part = (await self._pool.run(partial(read, limit=LIMIT_MAX))).output
            except HeadgateError:
                # The stream has started: it ends here.
                return


def _attachment(found: RunOutput) -> dict[str, str]:
    # A run id has no character that a header or a file name must quote.
    return {"cache-control": "no-store", "content-disposition": f'attachment; filename="{found.run.run_id}.log"'}


def _view(found: RunOutput) -> OutputView:
    run, part = found.run, found.output
    return OutputView(
        run_id=run.run_id,
        attempt=run.attempt,
        text=part.text,
        offset=part.offset,
        next_offset=part.next_offset,
        size=part.size,
        is_complete=part.is_ended,
        dropped_bytes=part.dropped_bytes,
    )
