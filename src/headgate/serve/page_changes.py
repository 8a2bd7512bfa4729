"""Changes for pages: a stream that says that something of health is no longer as a page shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from headgate.auth.principals import Principal, may
from headgate.auth.roles import Permission
from headgate.durable.event_log import StoredEvent
from headgate.errors import HeadgateError
from headgate.health.announcements import SOURCE
from headgate.health.service import HealthService
from headgate.serve import streams
from headgate.serve.followed_log import Followed
from headgate.serve.pool import WorkPool
from headgate.serve.watching import Watches

_TYPES: Final = "headgate.*"
# What someone must be allowed to see to be told that it has changed.
_KINDS: Final[Mapping[str, Permission]] = {
    "signal": Permission.SIGNAL_READ,
    "incident": Permission.INCIDENT_READ,
    "dataset": Permission.DATASET_READ,
}
# What is committed between a look and the wait for the next commit is seen so much later at most.
_LOOK_SECONDS: Final = 1.0
# A page is not drawn anew more often than people can read it.
_PAUSE_SECONDS: Final = 0.5


class PageChanges:
    """Tells pages that they are out of date."""

    def __init__(self, health: HealthService, pool: WorkPool, watches: Watches) -> None:
        self._health = health
        self._pool = pool
        self._watches = watches

    async def messages(self, principal: Principal, dataset_urn: str | None) -> AsyncIterator[bytes]:
        """Go through the changes of one dataset, or of all that the caller sees, from now on.

        It ends after some hours, when the server stops, and when the store cannot be asked: the page comes back.
        """
        loop = asyncio.get_running_loop()
        followed = Followed(self._health, _TYPES)
        ends_at, spoke_at = loop.time() + streams.STREAM_SECONDS_MAX, loop.time()
        # From here on nothing is missed: a page that was drawn before fetches itself once more.
        yield streams.OPENING + streams.message("ready", {})
        try:
            while not self._watches.is_stopping and loop.time() < ends_at:
                kinds = sorted(changed(await self._pool.run(followed.look), principal, dataset_urn))
                if kinds:
                    yield streams.message("changed", {"kinds": kinds})
                    spoke_at = loop.time()
                elif loop.time() - spoke_at >= streams.ALIVE_SECONDS:
                    yield streams.ALIVE
                    spoke_at = loop.time()
                await asyncio.sleep(_PAUSE_SECONDS)
                await self._watches.committed(_LOOK_SECONDS)
        except HeadgateError:
            return


def changed(events: list[StoredEvent], principal: Principal, dataset_urn: str | None) -> set[str]:
    """Return which kinds of things have changed that someone may see, of one dataset or of all."""
    found = set()
    for each in events:
        # Anyone may emit an event of any type, but not from here.
        if each.source != SOURCE:
            continue
        kind = each.type.split(".")[1]
        data: Any = each.event.data
        urn = data.get("dataset_urn", "") if isinstance(data, dict) else ""
        is_meant = dataset_urn in (None, urn)
        if is_meant and kind in _KINDS and may(principal, _KINDS[kind], urn):
            found.add(kind)
    return found
