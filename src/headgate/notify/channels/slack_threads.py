"""Slack threads: one for each pipeline, schedule and date, whoever is first to have something to say in it.

Who writes the row first may begin the thread; the others wait for it and reply. One who dies between the two loses the
right to begin it after a while.
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

# Longer than a message takes to be posted: who has not said by then where the thread is will not say it any more.
BEGINS_WITHIN_SECONDS: Final = 60.0
KEPT_SECONDS: Final = 90 * 86_400


class Place(Struct, frozen=True):
    """What a thread is about, and the channel of ours that it is in."""

    channel: str
    pipeline_id: str
    schedule_id: str
    date: str


class Threads:
    """Where the threads are. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    def reply_or_begin(self, place: Place, post: Callable[[str | None], str]) -> str:
        """Post in the thread of a place, and return the thread.

        `post` is given the thread to reply in, or None if it is to begin one, and returns the name of what it posted.
        Raises `NotYetError` while another is beginning it, and whatever `post` raises; then it is not begun.
        """
        key = THREAD.key(
            pipeline_id=place.pipeline_id,
            schedule_id=place.schedule_id or "-",
            # Two channels of Slack have two threads about one date.
            date=f"{place.date or '-'}#{place.channel}",
        )
        owner = self._ids.ulid()
        now_ms = int(self._clock.seconds() * 1000)
        claim = {
            **PIPELINES.key_attributes(key),
            "owner": owner,
            "begins_until_ms": now_ms + round(BEGINS_WITHIN_SECONDS * 1000),
            "ttl": now_ms // 1000 + KEPT_SECONDS,
        }
        abandoned = all_of(lacks("thread"), less_than("begins_until_ms", now_ms))
        try:
            self._store.put(PIPELINES, claim, condition=any_of(absent(), abandoned))
        except ConflictError as exc:
            thread = (exc.current or {}).get("thread")
            if thread is None:
                raise NotYetError(f"thread of {place}: another is beginning it; try again shortly") from exc
            post(str(thread))
            return str(thread)
        try:
            begun = post(None)
        except BaseException:
            # The right to begin goes back at once, unless someone has taken it over meanwhile.
            self._give_back(key, owner)
            raise
        self._store.update(PIPELINES, key, set={"thread": begun}, remove=("owner",), condition=equals("owner", owner))
        return begun

    def _give_back(self, key: object, owner: str) -> None:
        try:
            self._store.delete(PIPELINES, key, condition=equals("owner", owner))  # type: ignore[arg-type]
        except ConflictError:
            return
