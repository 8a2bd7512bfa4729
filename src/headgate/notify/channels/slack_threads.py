"""Slack threads: one thread per pipeline, schedule and date, shared by all processes.

The process that writes the row first starts the thread; the others wait for it and reply. If it dies before posting,
its claim expires.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.ids import IdMaker
from headgate.notify.messages import NotYetError
from headgate.store.catalogue.tables import PIPELINES, THREAD
from headgate.store.model.conditions import absent, all_of, any_of, equals, lacks, less_than
from headgate.store.port import Store

# Longer than a post takes: after this, an unfinished claim is abandoned.
START_SECONDS_MAX: Final = 60.0
KEPT_SECONDS: Final = 90 * 86_400


class ThreadTopic(Struct, frozen=True):
    """The subject of a thread, and the alert channel that it is in."""

    channel: str
    pipeline_id: str
    schedule_id: str
    date: str


class SlackThreads:
    """Finds or starts threads. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, *, kept_seconds: int = KEPT_SECONDS) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._kept_seconds = kept_seconds

    def reply_or_start(self, topic: ThreadTopic, post: Callable[[str | None], str]) -> str:
        """Post in the thread of a topic, and return the thread.

        `post` receives the thread to reply to, or None to start one, and returns the id of the message. Raises
        `NotYetError` while another process starts the thread, and errors of `post`; then no thread is started.
        """
        key = THREAD.key(
            pipeline_id=topic.pipeline_id,
            schedule_id=topic.schedule_id or "-",
            # Two Slack channels have separate threads about one date.
            date=f"{topic.date or '-'}#{topic.channel}",
        )
        owner = self._ids.ulid()
        now_ms = int(self._clock.seconds() * 1000)
        claim = {
            **PIPELINES.key_attributes(key),
            "owner": owner,
            "begins_until_ms": now_ms + round(START_SECONDS_MAX * 1000),
            "ttl": now_ms // 1000 + self._kept_seconds,
        }
        abandoned = all_of(lacks("thread"), less_than("begins_until_ms", now_ms))
        try:
            self._store.put(PIPELINES, claim, condition=any_of(absent(), abandoned))
        except ConflictError as exc:
            thread = (exc.current or {}).get("thread")
            if thread is None:
                raise NotYetError(f"thread of {topic}: another process is starting it; try again shortly") from exc
            post(str(thread))
            return str(thread)
        try:
            started = post(None)
        except BaseException:
            # Release the claim at once, unless another process has it by now.
            self._release(key, owner)
            raise
        self._store.update(PIPELINES, key, set={"thread": started}, remove=("owner",), condition=equals("owner", owner))
        return started

    def _release(self, key: object, owner: str) -> None:
        try:
            self._store.delete(PIPELINES, key, condition=equals("owner", owner))  # type: ignore[arg-type]
        except ConflictError:
            return
