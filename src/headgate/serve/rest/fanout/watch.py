"""Fan-out watch API: streams progress as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import msgspec
from litestar import Response

from headgate.errors import HeadgateError
from headgate.fanout.insight.progress import Follower
from headgate.fanout.model.results import Summary, summary_of
from headgate.fanout.service import FanoutService
from headgate.serve.http.operations import Call, Operation
from headgate.serve.http.sse import ALIVE, ALIVE_SECONDS, MEDIA_TYPE, OPENING, message, stream, stream_seconds
from headgate.serve.rest.durable.models import StreamQuery
from headgate.serve.rest.fanout.models import ProgressView, progress_view
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

# A fan-out changes with every chunk; updates are limited to this rate.
PAUSE_SECONDS: Final = 0.5


class FanoutWatching:
    """Streams the progress of fan-outs."""

    def __init__(
        self, fanouts: FanoutService, pool: WorkPool, watches: WatchHub, unusable: Callable[[], Mapping[str, str]]
    ) -> None:
        self._fanouts = fanouts
        self._unusable = unusable
        self._pool = pool
        self._watches = watches

    def operations(self) -> list[Operation]:
        """Return the operation."""
        return [
            Operation(
                "GET",
                "/fanouts/{id}/watch",
                "Stream progress as server-sent events",
                self.watch,
                {200: (ProgressView, Summary)},
                query=StreamQuery,
                answer_media=MEDIA_TYPE,
            )
        ]

    async def watch(self, call: Call[None, StreamQuery]) -> Response[Any]:
        ends_at = _now() + stream_seconds(call.query.seconds)
        poller = _ProgressPoller(self._fanouts, call.path["id"], self._unusable)
        # Read before streaming starts, so that a missing fan-out is a 404.
        first = await self._pool.run(poller.look)
        return stream(self._changes(poller, first, ends_at))

    async def _changes(self, poller: _ProgressPoller, seen: ProgressView, ends_at: float) -> AsyncIterator[bytes]:
        yield OPENING
        yield message("state", seen)
        sent_at = _now()
        while not seen.is_finished and _now() < ends_at and not self._watches.is_stopping:
            try:
                await self._watches.committed(min(ALIVE_SECONDS, ends_at - _now()))
                await asyncio.sleep(min(PAUSE_SECONDS, max(0.0, ends_at - _now())))
                after = await self._pool.run(poller.look)
            except HeadgateError:
                return  # The stream has started; the client sees the error when it reconnects.
            if _has_changed(seen, after):
                seen, sent_at = after, _now()
                yield message("state", seen)
            elif _now() - sent_at >= ALIVE_SECONDS:
                sent_at = _now()
                yield ALIVE
        if seen.is_finished:
            yield message("end", await self._pool.run(poller.summary))


class _ProgressPoller:
    """Polls one fan-out, from one thread at a time."""

    def __init__(self, fanouts: FanoutService, run_id: str, unusable: Callable[[], Mapping[str, str]]) -> None:
        self._unusable = unusable
        self._queries = fanouts.queries
        self._run_id = run_id
        self._follower = Follower(fanouts.store, fanouts.clock, run_id, prices=fanouts.prices)

    def look(self) -> ProgressView:
        # The row first: an ended fan-out has final counts.
        fanout = self._queries.fanout(self._run_id, consistent=True)
        return progress_view(fanout, self._follower.look(), self._unusable())

    def summary(self) -> Summary:
        fanout = self._queries.fanout(self._run_id)
        return summary_of(fanout, self._queries.counts(fanout))


def _has_changed(before: ProgressView, after: ProgressView) -> bool:
    """Whether counters changed. Rates and estimates change by themselves."""
    names = ("status", "is_finished", "paused_at", "counts", "notes", "stragglers")
    return any(_text(getattr(before, name)) != _text(getattr(after, name)) for name in names)


def _text(value: object) -> bytes:
    return msgspec.json.encode(value)


def _now() -> float:
    return asyncio.get_running_loop().time()
