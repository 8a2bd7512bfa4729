"""Log tail: polls the event log for new events of one type."""

from __future__ import annotations

from typing import Final

from headgate.durable.bus.event_log import LIMIT_MAX, EventLog, StoredEvent, first_id
from headgate.health.service import HealthService

# Events are ordered by creation time and may be stored late: each poll re-reads this window.
OVERLAP_MS: Final = 3_000


class LogTail:
    """Reads the event log from its creation on. Each event is returned once."""

    def __init__(self, health: HealthService, kind: str) -> None:
        self._log = EventLog(health.store, health.clock)
        self._kind = kind
        self._started_ms = self._newest_ms = int(health.clock.seconds() * 1000)
        self._seen: set[str] = set()

    def poll(self) -> list[StoredEvent]:
        """Return the events stored since the last poll, in log order."""
        start = first_id(max(self._started_ms, self._newest_ms - OVERLAP_MS))
        after, events = start, list[StoredEvent]()
        while True:
            page = self._log.tail(after, type=self._kind, limit=LIMIT_MAX)
            events += [each for each in page if each.event_id not in self._seen]
            if len(page) < LIMIT_MAX:
                break
            after = page[-1].event_id
        self._seen = {each for each in self._seen if each >= start} | {each.event_id for each in events}
        self._newest_ms = max([self._newest_ms, *(each.accepted_at_ms for each in events)])
        return events
