"""Live updates: a stream that notifies pages of changes in health and pipelines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
from random import random
from typing import Any, Final
from urllib.parse import urlencode

from msgspec import Struct

from headgate.auth.principals import Principal, may
from headgate.auth.roles import Permission
from headgate.durable.bus.event_log import StoredEvent
from headgate.errors import HeadgateError
from headgate.health.model import events as announcements
from headgate.pipelines.events import outbox as pipeline_events
from headgate.serve.http import sse
from headgate.serve.pages.change_feed import Batch, ChangeFeed
from headgate.serve.runtime.watch_hub import WatchHub

PATH: Final = "/ui"
ALL_PIPELINES: Final = "pipelines"
ALL_WORK: Final = "work"
OF_SERVER: Final = "server"
# Permission required to be notified of each kind of change.
_KINDS: Final[Mapping[str, Permission]] = {
    "signal": Permission.SIGNAL_READ,
    "incident": Permission.INCIDENT_READ,
    "dataset": Permission.DATASET_READ,
}
_PIPELINE: Final = "pipeline"
_RUN: Final = "run"
# Time over which the messages of a batch are spread, the share of pages that are ahead of them, and by how much: for a
# crowd of pages, and less for fewer.
_SPREAD_SECONDS: Final = 0.2
_AHEAD_SHARE: Final = 0.05
_AHEAD_SECONDS: Final = 0.1
_CROWD: Final = 100
# Interval of refreshes of pages about the server itself, whose state changes without commits.
_SERVER_SECONDS: Final = 5.0


def changes_of(**subject: str) -> str:
    """Return the address of the stream of changes of a `dataset_urn`, a `pipeline_id`, or all `of` a kind."""
    return f"{PATH}/changes" + (f"?{urlencode(subject)}" if subject else "")


class Subject(Struct, frozen=True, kw_only=True):
    """Subject of a page: one dataset, one pipeline, all pipelines, all of health and pipelines, work, or the server.

    Executions and fan-outs change with every commit and publish few events, so that pages of work follow commits.
    """

    dataset_urn: str | None = None
    pipeline_id: str | None = None
    is_of_pipelines: bool = False
    is_of_work: bool = False
    is_of_server: bool = False


class PageChanges:
    """Notifies pages that they are out of date."""

    def __init__(self, feed: ChangeFeed, watches: WatchHub) -> None:
        self._feed = feed
        self._watches = watches

    async def messages(self, principal: Principal, subject: Subject) -> AsyncIterator[bytes]:
        """Yield the changes of a page's subject that the caller may see, from now on.

        Each message has a position in the feed, as of which the page requests its content. The stream ends after some
        hours, on shutdown, and when the store is unavailable: the page reconnects.
        """
        loop = asyncio.get_running_loop()
        try:
            follower = await self._feed.follow()
        except HeadgateError:
            return
        ends_at, sent_at = loop.time() + sse.STREAM_SECONDS_MAX, loop.time()
        # From here on no change is missed: the page refreshes once on this message.
        yield sse.OPENING + sse.message("ready", {"as_of": self._feed.position(follower.sequence)})
        while not self._watches.is_stopping and not follower.is_over and loop.time() < ends_at:
            await follower.wait(_SERVER_SECONDS if subject.is_of_server else sse.ALIVE_SECONDS)
            if follower.is_behind:
                await asyncio.sleep(delay_seconds(follower.count, random(), random()))
            kinds = _kinds(follower.take(), principal, subject)
            if subject.is_of_server:
                kinds = [OF_SERVER] if loop.time() - sent_at >= _SERVER_SECONDS else []
            if kinds:
                yield sse.message("changed", {"kinds": kinds, "as_of": self._feed.position(follower.sequence)})
                sent_at = loop.time()
            elif loop.time() - sent_at >= sse.ALIVE_SECONDS:
                yield sse.ALIVE
                sent_at = loop.time()


def delay_seconds(pages: int, first: float, second: float) -> float:
    """Return how long a page waits before it is notified of a batch. The last two are random, from 0 to 1.

    Many pages request the same content. A few of them are ahead, so that it is rendered when the others request it:
    waiting requests count towards the limits of the server. The others are spread. A lone page does not wait.
    """
    is_ahead = first < _AHEAD_SHARE
    crowd = min(1.0, pages / _CROWD)
    return 0.0 if is_ahead else crowd * (_AHEAD_SECONDS + _SPREAD_SECONDS * second)


def _kinds(batches: list[Batch] | None, principal: Principal, subject: Subject) -> list[str]:
    """Return what has changed for a page."""
    if batches is None:
        return ["unknown"]
    if subject.is_of_work:
        return ["work"] if batches else []
    find = partial(changed, principal=principal, subject=subject)
    return sorted({kind for each in batches for kind in each.once((principal, subject), find)})


def changed(events: list[StoredEvent], principal: Principal, subject: Subject) -> set[str]:
    """Return the kinds of visible changes to the subject of a page."""
    found = set()
    for each in events:
        payload: Any = each.event.data
        data: dict[str, Any] = payload if isinstance(payload, dict) else {}
        # Users may emit events of any type; only ours have this source.
        if each.source == announcements.SOURCE:
            kind = _of_health(each.type.split(".")[1], data, principal, subject)
        elif each.source == pipeline_events.SOURCE:
            kind = _of_pipelines(data, principal, subject)
        else:
            kind = None
        if kind is not None:
            found.add(kind)
    return found


def _of_health(kind: str, data: Mapping[str, Any], principal: Principal, subject: Subject) -> str | None:
    urn = data.get("dataset_urn", "")
    is_relevant = subject.pipeline_id is None and not subject.is_of_pipelines and subject.dataset_urn in (None, urn)
    return kind if is_relevant and kind in _KINDS and may(principal, _KINDS[kind], urn) else None


def _of_pipelines(data: Mapping[str, Any], principal: Principal, subject: Subject) -> str | None:
    is_relevant = subject.dataset_urn is None and subject.pipeline_id in (None, data.get("pipeline_id"))
    if not is_relevant or not may(principal, Permission.PIPELINE_READ):
        return None
    return _RUN if data.get("run_id") else _PIPELINE
