"""Heartbeats: the server and the watchdog each say that they live, and alert on the other's silence.

A silence is told once, and its end once. Who was away itself, because the machine slept or its process was stopped,
cannot tell whether the other was silent meanwhile, and gives it as long as at the first time.
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
from headgate.pipelines.context import Tells
from headgate.pipelines.definition.model import Json
from headgate.pipelines.events.names import EventName
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import HEARTBEAT, PIPELINES
from headgate.store.model.conditions import absent, all_of, equals, lacks
from headgate.store.model.requests import Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

# Three ticks of the watchdog.
SILENT_SECONDS: Final = 900.0
# Of whom installation events tell.
INSTALLATION: Final = Slot(INFRASTRUCTURE, "", "")
_RACES_MAX: Final = 5


class Who(enum.StrEnum):
    """Those who say that they live."""

    SERVER = "server"
    WATCHDOG = "watchdog"


class Change(enum.Enum):
    """What became of the other."""

    FELL_SILENT = enum.auto()
    RECOVERED = enum.auto()


class Heartbeat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When someone was last heard of, and since when without a break."""

    name: Who
    at_ms: int
    since_ms: int
    # Since when it has been silent, as was told.
    silent_since_ms: int | None = None
    # What it could not do the last time, as was told.
    degraded: tuple[str, ...] = ()


_SILENT: Final = {Who.SERVER: EventName.SERVER_SILENT, Who.WATCHDOG: EventName.WATCHDOG_SILENT}
_RECOVERED: Final = {Who.SERVER: EventName.SERVER_RECOVERED, Who.WATCHDOG: EventName.WATCHDOG_RECOVERED}


def decide(other: Heartbeat, observed_since_ms: int, now_ms: int, silent_seconds: float) -> Change | None:
    """Return what is to be told of the other; None: nothing that was not told.

    `observed_since_ms` is since when the observer has been there itself. A beat from the future is a beat.
    """
    is_heard = now_ms - other.at_ms < 1000 * silent_seconds
    if other.silent_since_ms is not None:
        return Change.RECOVERED if is_heard else None
    is_silent = now_ms - max(other.at_ms, observed_since_ms) >= 1000 * silent_seconds
    return Change.FELL_SILENT if is_silent else None


class Heartbeats:
    """The heartbeats of one store."""

    def __init__(self, store: Store, clock: Clock, tells: Tells, *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._store = store
        self._clock = clock
        self._tells = tells
        self._silent_seconds = silent_seconds

    def beat(self, name: Who) -> Heartbeat:
        """Say that one lives."""
        for _ in range(_RACES_MAX):
            now_ms = self._now_ms()
            known = self.find(name)
            is_unbroken = known is not None and now_ms - known.at_ms < 1000 * self._silent_seconds
            since_ms = known.since_ms if known is not None and is_unbroken else now_ms
            if known is None:
                beat = Heartbeat(name=name, at_ms=now_ms, since_ms=since_ms)
                write: Write = Put(PIPELINES, row(heartbeat_key(name), beat), absent(), quiet=True)
            else:
                # Beside the beat, the row keeps what was told.
                moved = {"at_ms": now_ms, "since_ms": since_ms}
                write = Update(PIPELINES, heartbeat_key(name), set=moved, condition=equals("name", name.value))
            if self._is_written([write]):
                return Heartbeat(name=name, at_ms=now_ms, since_ms=since_ms)
        raise ConflictError(f"heartbeat {name}: its row keeps changing; see who else writes it")

    def watch(self, own: Heartbeat, other: Who) -> Change | None:
        """Look whether the other lives, tell what is new about that, and return it."""
        now_ms = self._now_ms()
        known = self.find(other)
        if known is None:
            # It counts from now on: who never comes is missed too.
            expected = Heartbeat(name=other, at_ms=now_ms, since_ms=now_ms)
            self._is_written([Put(PIPELINES, row(heartbeat_key(other), expected), absent(), quiet=True)])
            return None
        change = decide(known, own.since_ms, now_ms, self._silent_seconds)
        if change is None:
            return None
        is_told = self._is_written(self._change_writes(known, change))
        return change if is_told else None

    def degrade(self, name: Who, checks: Mapping[str, str]) -> bool:
        """Say which checks failed, with why, if others did the last time. Returns whether that was told."""
        known = self.find(name)
        names = tuple(sorted(checks))
        if known is None or known.degraded == names:
            return False
        condition = equals("at_ms", known.at_ms)
        update = Update(PIPELINES, heartbeat_key(name), set={"degraded": list(names)}, condition=condition)
        detail: dict[str, Json] = {"checks": ", ".join(names), "errors": dict(checks)}
        # Fewer are no news; none is.
        is_worse = not set(names) <= set(known.degraded)
        told: list[Write] = []
        if is_worse:
            told = self._tells(EventName.WATCHDOG_DEGRADED, INSTALLATION, detail)
        elif not names:
            told = self._tells(EventName.WATCHDOG_RECOVERED, INSTALLATION, {"since": instant(known.since_ms)})
        return self._is_written([update, *told]) and bool(told)

    def find(self, name: Who) -> Heartbeat | None:
        """Return when someone was last heard of."""
        item = self._store.get(PIPELINES, heartbeat_key(name), consistent=True)
        return None if item is None else heartbeat_of(item)

    def _change_writes(self, known: Heartbeat, change: Change) -> list[Write]:
        key = heartbeat_key(known.name)
        detail = {"since": instant(known.at_ms), "name": known.name.value}
        if change is Change.FELL_SILENT:
            # Of several who look, one tells.
            unheard = all_of(equals("at_ms", known.at_ms), lacks("silent_since_ms"))
            mark = Update(PIPELINES, key, set={"silent_since_ms": known.at_ms}, condition=unheard)
            return [mark, *self._tells(_SILENT[known.name], INSTALLATION, detail)]
        marked = equals("silent_since_ms", known.silent_since_ms)
        unmark = Update(PIPELINES, key, remove=("silent_since_ms",), condition=marked)
        detail = {**detail, "since": instant(known.silent_since_ms or known.at_ms)}
        return [unmark, *self._tells(_RECOVERED[known.name], INSTALLATION, detail)]

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


def heartbeat_key(name: Who) -> Key:
    """Return where a heartbeat is kept."""
    return HEARTBEAT.key(name=name.value)


def heartbeat_of(item: Mapping[str, Any]) -> Heartbeat:
    """Return the heartbeat that a row stands for."""
    return struct_of(item, Heartbeat)
