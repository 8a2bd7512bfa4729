"""Heartbeats: the server and the watchdog each write one, and alert when the other's stops.

A silence is published once, and so is its end. A process that was itself suspended cannot know whether the other was
silent meanwhile, so it waits the full time-out again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import ConflictError
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.definition.model import Json
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import HEARTBEAT, PIPELINES
from headgate.store.model.conditions import absent, all_of, equals, lacks
from headgate.store.model.requests import Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

SILENT_SECONDS: Final = 120.0
# A heartbeat is written several times within the time-out, at most this far apart.
_HEARTBEAT_SECONDS_MAX: Final = 30.0
# The slot of events about the installation itself.
INSTALLATION: Final = Slot(INFRASTRUCTURE, "", "")
_RACES_MAX: Final = 5


class HeartbeatSource(enum.StrEnum):
    """The processes that write heartbeats."""

    SERVER = "server"
    WATCHDOG = "watchdog"


class HeartbeatChange(enum.Enum):
    """A change of the other process's state."""

    FELL_SILENT = enum.auto()
    RECOVERED = enum.auto()


class Heartbeat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last heartbeat of a process, and the start of its uninterrupted series."""

    name: HeartbeatSource
    at_ms: int
    since_ms: int
    # Start of the silence that was published.
    silent_since_ms: int | None = None
    # The failed checks that were published last.
    degraded: tuple[str, ...] = ()


_SILENT: Final = {HeartbeatSource.SERVER: EventName.SERVER_SILENT, HeartbeatSource.WATCHDOG: EventName.WATCHDOG_SILENT}
_RECOVERED: Final = {
    HeartbeatSource.SERVER: EventName.SERVER_RECOVERED,
    HeartbeatSource.WATCHDOG: EventName.WATCHDOG_RECOVERED,
}


def decide(other: Heartbeat, observed_since_ms: int, now_ms: int, silent_seconds: float) -> HeartbeatChange | None:
    """Return the change to publish about the other process, or None.

    `observed_since_ms` is the start of the observer's own uninterrupted series. A heartbeat from the future counts.
    """
    is_alive = now_ms - other.at_ms < 1000 * silent_seconds
    if other.silent_since_ms is not None:
        return HeartbeatChange.RECOVERED if is_alive else None
    is_silent = now_ms - max(other.at_ms, observed_since_ms) >= 1000 * silent_seconds
    return HeartbeatChange.FELL_SILENT if is_silent else None


def heartbeat_seconds(silent_seconds: float) -> float:
    """Return the interval of heartbeats for a time-out: one or two late ones cause no alert."""
    return min(_HEARTBEAT_SECONDS_MAX, silent_seconds / 4)


class Heartbeats:
    """Writes heartbeats and compares them."""

    def __init__(
        self, store: Store, clock: Clock, events: EventWriter, *, silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._store = store
        self._clock = clock
        self._events = events
        self._silent_seconds = silent_seconds

    @property
    def interval_seconds(self) -> float:
        """The time between two heartbeats."""
        return heartbeat_seconds(self._silent_seconds)

    def silent_for(self, name: HeartbeatSource) -> float | None:
        """Return the seconds since the last heartbeat of a process; None if it has never written one."""
        known = self.find(name)
        return None if known is None else max(0.0, (self._now_ms() - known.at_ms) / 1000)

    def beat(self, name: HeartbeatSource) -> Heartbeat:
        """Write a heartbeat."""
        for _ in range(_RACES_MAX):
            now_ms = self._now_ms()
            known = self.find(name)
            is_unbroken = known is not None and now_ms - known.at_ms < 1000 * self._silent_seconds
            since_ms = known.since_ms if known is not None and is_unbroken else now_ms
            if known is None:
                beat = Heartbeat(name=name, at_ms=now_ms, since_ms=since_ms)
                write: Write = Put(PIPELINES, row(heartbeat_key(name), beat), absent(), quiet=True)
            else:
                # An update: the row also holds what was published.
                moved = {"at_ms": now_ms, "since_ms": since_ms}
                write = Update(PIPELINES, heartbeat_key(name), set=moved, condition=equals("name", name.value))
            if self._is_written([write]):
                return Heartbeat(name=name, at_ms=now_ms, since_ms=since_ms)
        raise ConflictError(f"heartbeat {name}: concurrent writes keep winning; check for a second process")

    def watch(self, own: Heartbeat, other: HeartbeatSource) -> HeartbeatChange | None:
        """Compare the other's heartbeat, publish a change of its state, and return it."""
        now_ms = self._now_ms()
        known = self.find(other)
        if known is None:
            # It counts from now on, so that a process that never starts is noticed too.
            expected = Heartbeat(name=other, at_ms=now_ms, since_ms=now_ms)
            self._is_written([Put(PIPELINES, row(heartbeat_key(other), expected), absent(), quiet=True)])
            return None
        change = decide(known, own.since_ms, now_ms, self._silent_seconds)
        if change is None:
            return None
        is_published = self._is_written(self._change_writes(known, change))
        return change if is_published else None

    def degrade(self, name: HeartbeatSource, checks: Mapping[str, str]) -> bool:
        """Record the failed checks with their errors, and return whether an event was published."""
        known = self.find(name)
        names = tuple(sorted(checks))
        if known is None or known.degraded == names:
            return False
        condition = equals("at_ms", known.at_ms)
        update = Update(PIPELINES, heartbeat_key(name), set={"degraded": list(names)}, condition=condition)
        detail: dict[str, Json] = {"checks": ", ".join(names), "errors": dict(checks)}
        # A new failed check and full recovery are published; a partial recovery is not.
        is_worse = not set(names) <= set(known.degraded)
        writes: list[Write] = []
        if is_worse:
            writes = self._events.writes(EventName.WATCHDOG_DEGRADED, INSTALLATION, detail)
        elif not names:
            since = {"since": instant(known.since_ms)}
            writes = self._events.writes(EventName.WATCHDOG_RECOVERED, INSTALLATION, since)
        return self._is_written([update, *writes]) and bool(writes)

    def find(self, name: HeartbeatSource) -> Heartbeat | None:
        """Return the last heartbeat of a process, or None."""
        item = self._store.get(PIPELINES, heartbeat_key(name), consistent=True)
        return None if item is None else heartbeat_of(item)

    def _change_writes(self, known: Heartbeat, change: HeartbeatChange) -> list[Write]:
        key = heartbeat_key(known.name)
        detail = {"since": instant(known.at_ms), "name": known.name.value}
        if change is HeartbeatChange.FELL_SILENT:
            # The condition lets one of several observers publish.
            unmarked = all_of(equals("at_ms", known.at_ms), lacks("silent_since_ms"))
            mark = Update(PIPELINES, key, set={"silent_since_ms": known.at_ms}, condition=unmarked)
            return [mark, *self._events.writes(_SILENT[known.name], INSTALLATION, detail)]
        marked = equals("silent_since_ms", known.silent_since_ms)
        unmark = Update(PIPELINES, key, remove=("silent_since_ms",), condition=marked)
        detail = {**detail, "since": instant(known.silent_since_ms or known.at_ms)}
        return [unmark, *self._events.writes(_RECOVERED[known.name], INSTALLATION, detail)]

    def _is_written(self, writes: list[Write]) -> bool:
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            if 0 in exc.failures:
                return False
            raise
        return True

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def heartbeat_key(name: HeartbeatSource) -> Key:
    """Return the key of a heartbeat's row."""
    return HEARTBEAT.key(name=name.value)


def heartbeat_of(item: Mapping[str, Any]) -> Heartbeat:
    """Decode a heartbeat from its row."""
    return struct_of(item, Heartbeat)
