"""Following fan-outs over HTTP: how far one is, told again whenever that changes."""

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

# A fan-out changes with every chunk, and nobody reads faster than this.
PAUSE_SECONDS: Final = 0.5


class FanoutWatching:
    """Streams of how far fan-outs are."""

    def __init__(
        self, fanouts: FanoutService, pool: WorkPool, watches: WatchHub, unusable: Callable[[], Mapping[str, str]]
    ) -> None:
        self._fanouts = fanouts
        self._unusable = unusable
        self._pool = pool
        self._watches = watches

    def operations(self) -> list[Operation]:
        """Return the one operation."""
        return [
            Operation(
                "GET",
                "/fanouts/{id}/watch",
                "Follow its progress as server-sent events",
                self.watch,
                {200: ProgressView},
                query=StreamQuery,
                answer_media=MEDIA_TYPE,
            )
        ]

    async def watch(self, call: Call[None, StreamQuery]) -> Response[Any]:
        ends_at = _now() + stream_seconds(call.query.seconds)
        followed = _Followed(self._fanouts, call.path["id"], self._unusable)
        # Before the answer begins: afterwards it is too late to say that there is no such fan-out.
        first = await self._pool.run(followed.look)
        return stream(self._changes(followed, first, ends_at))

    async def _changes(self, followed: _Followed, seen: ProgressView, ends_at: float) -> AsyncIterator[bytes]:
        yield OPENING
        yield message("state", seen)
        said_at = _now()
        while not seen.is_finished and _now() < ends_at and not self._watches.is_stopping:
            try:
                await self._watches.committed(min(ALIVE_SECONDS, ends_at - _now()))
                await asyncio.sleep(min(PAUSE_SECONDS, max(0.0, ends_at - _now())))
                after = await self._pool.run(followed.look)
            except HeadgateError:
                return  # Too late for another answer. Who comes back is told.
            if _is_news(seen, after):
                seen, said_at = after, _now()
                yield message("state", seen)
            elif _now() - said_at >= ALIVE_SECONDS:
                said_at = _now()
                yield ALIVE
        if seen.is_finished:
            yield message("end", await self._pool.run(followed.summary))


class _Followed:
    """One fan-out that is looked at again and again, by one thread at a time."""

    def __init__(self, fanouts: FanoutService, run_id: str, unusable: Callable[[], Mapping[str, str]]) -> None:
        self._unusable = unusable
        self._queries = fanouts.queries
        self._run_id = run_id
        self._follower = Follower(fanouts.store, fanouts.clock, run_id)

    def look(self) -> ProgressView:
        # The row first: one that has ended has its last counts.
        fanout = self._queries.fanout(self._run_id, consistent=True)
        return progress_view(fanout, self._follower.look(), self._unusable())

    def summary(self) -> Summary:
        fanout = self._queries.fanout(self._run_id)
        return summary_of(fanout, self._queries.counts(fanout))


def _is_news(before: ProgressView, after: ProgressView) -> bool:
    """Whether something has happened. Rates and estimates move by themselves as time passes."""
    names = ("status", "is_finished", "paused_at", "counts", "notes", "stragglers")
    return any(_text(getattr(before, name)) != _text(getattr(after, name)) for name in names)


def _text(value: object) -> bytes:
    return msgspec.json.encode(value)


def _now() -> float:
    return asyncio.get_running_loop().time()
