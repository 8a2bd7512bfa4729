"""The log of events as someone follows it who is told what comes in."""

from __future__ import annotations

from typing import Final

from headgate.durable.bus.event_log import LIMIT_MAX, EventLog, StoredEvent, first_id
from headgate.health.service import HealthService

# An event's place in the log is that of when it was made, and a later one may be there before it: look back so far.
OVERLAP_MS: Final = 3_000


class Followed:
    """The log of events, looked at again and again from one moment on. Each event is returned once."""

    def __init__(self, health: HealthService, kind: str) -> None:
        self._log = EventLog(health.store, health.clock)
        self._kind = kind
        self._begun_ms = self._newest_ms = int(health.clock.seconds() * 1000)
        self._seen: set[str] = set()

    def look(self) -> list[StoredEvent]:
        """Return what has come in since the last look, in the order of the log."""
        start = first_id(max(self._begun_ms, self._newest_ms - OVERLAP_MS))
        after, found = start, list[StoredEvent]()
        while True:
            page = self._log.tail(after, type=self._kind, limit=LIMIT_MAX)
            found += [each for each in page if each.event_id not in self._seen]
            if len(page) < LIMIT_MAX:
                break
            after = page[-1].event_id
        self._seen = {each for each in self._seen if each >= start} | {each.event_id for each in found}
        self._newest_ms = max([self._newest_ms, *(each.accepted_at_ms for each in found)])
        return found
