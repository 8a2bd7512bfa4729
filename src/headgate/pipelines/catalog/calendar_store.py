"""Calendar store: named calendars of excluded days, with all their versions."""

from __future__ import annotations

import re
import threading
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import ConflictError, CorruptionError, InvalidIdError, NotFoundError, VersionConflictError
from headgate.pipelines.definition.model import Exclusions, Inclusions
from headgate.pipelines.schedule.calendars import Calendars, check_calendar
from headgate.store.catalogue.tables import DEFINITION, DEFINITION_VERSION, DEFINITIONS
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.values import Item
from headgate.store.port import Store

KIND: Final = "CALENDAR"
# How long calendars are cached: every use of a timetable reads them.
FRESH_SECONDS: Final = 5.0
_RACES_MAX: Final = 5
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)


class StoredCalendar(Struct, frozen=True, kw_only=True):
    """A version of a calendar."""

    name: str
    version: int
    exclusions: Exclusions
    by: str = ""
    at: str = ""
    deleted: bool = False


class CalendarStore:
    """Stores calendars. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Calendars = {}
        self._read_at: float | None = None

    def put(self, name: str, exclusions: Exclusions, by: str, *, version: int | None = None) -> StoredCalendar:
        """Store a calendar under a name, and return it. An unchanged one is no new version.

        With `version`, only if that is the current one (0: there is none); otherwise raises `VersionConflictError`.
        Raises `InvalidIdError` for an invalid name, and `DefinitionError` for unknown days, dates, holidays or
        calendars.
        """
        _check_name(name)
        check_calendar(exclusions, Inclusions(), {**self._read(), name: exclusions})
        return self._change(name, exclusions, by, version)

    def delete(self, name: str, by: str, *, version: int | None = None) -> StoredCalendar:
        """Delete a calendar; its versions stay. Raises `NotFoundError`, and `VersionConflictError` as `put` does.

        The caller checks whether others build on it.
        """
        self.get(name)
        return self._change(name, None, by, version)

    def get(self, name: str) -> StoredCalendar:
        """Return a calendar. Raises `NotFoundError`."""
        calendar = self.find(name)
        if calendar is None:
            raise NotFoundError(f"calendar {name[:80]!r}: there is none; known calendars: {self._names()}")
        return calendar

    def find(self, name: str) -> StoredCalendar | None:
        """Return a calendar, or None."""
        row = self._row(name)
        return None if row is None or row.deleted else row

    def ls(self) -> list[StoredCalendar]:
        """Return all calendars by name. An unreadable row is left out."""
        calendars: list[StoredCalendar] = []
        cursor: str | None = None
        while True:
            page = self._store.query(Query(table=DEFINITIONS, partition=KIND, index="kind-index", cursor=cursor))
            for item in page.items:
                try:
                    calendars.append(_calendar(item))
                except CorruptionError:
                    # Pipelines that use it report an unknown calendar; the others go on.
                    continue
            cursor = page.cursor
            if cursor is None:
                return sorted(calendars, key=lambda each: each.name)

    def all(self) -> Calendars:
        """Return all calendars by name, cached for some seconds; own writes are visible at once."""
        now = self._clock.monotonic()
        with self._lock:
            if self._read_at is not None and now - self._read_at < FRESH_SECONDS:
                return self._known
        return self._read()

    def _read(self) -> Calendars:
        began_at = self._clock.monotonic()
        known = {each.name: each.exclusions for each in self.ls()}
        with self._lock:
            self._known, self._read_at = known, began_at
        return known

    def _names(self) -> str:
        return ", ".join(sorted(self.all())) or "none"

    def _change(self, name: str, exclusions: Exclusions | None, by: str, version: int | None) -> StoredCalendar:
        """Write the next version; None: a deletion."""
        for _ in range(_RACES_MAX):
            row = self._row(name)
            live_version = 0 if row is None or row.deleted else row.version
            if version is not None and version != live_version:
                raise VersionConflictError(
                    f"calendar {name}: it is at version {live_version}, not {version}; look at it, then try again",
                    current={"name": name, "version": live_version},
                )
            if row is not None and exclusions == (None if row.deleted else row.exclusions):
                return row
            last = 0 if row is None else row.version
            made = StoredCalendar(
                name=name,
                version=last + 1,
                exclusions=exclusions if exclusions is not None else Exclusions(),
                by=by,
                at=instant(int(self._clock.seconds() * 1000)),
                deleted=exclusions is None,
            )
            try:
                self._store.transact(
                    [
                        Put(DEFINITIONS, _latest(made), version_is(last) if last else absent()),
                        Put(DEFINITIONS, _item(made), absent()),
                    ]
                )
            except ConflictError:
                # A concurrent write: read again.
                continue
            self._read()
            return made
        raise VersionConflictError(f"calendar {name}: concurrent changes keep winning; read it, then try again")

    def _row(self, name: str) -> StoredCalendar | None:
        if not _NAME.fullmatch(name):
            return None
        item = self._store.get(DEFINITIONS, DEFINITION.key(kind=KIND, name=name), consistent=True)
        return None if item is None else _calendar(item)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidIdError(
            f"calendar {name[:90]!r}: use 1 to 80 letters, digits, dots, dashes and underscores, no sign first"
        )


def _latest(calendar: StoredCalendar) -> Item:
    # Deleted calendars are not in the index.
    index = {} if calendar.deleted else DEFINITION.index_attributes(kind=KIND, name=calendar.name)
    key = DEFINITIONS.key_attributes(DEFINITION.key(kind=KIND, name=calendar.name))
    return {**_attributes(calendar), **index, **key}


def _item(calendar: StoredCalendar) -> Item:
    key = DEFINITION_VERSION.key(kind=KIND, name=calendar.name, version=calendar.version)
    return {**_attributes(calendar), **DEFINITIONS.key_attributes(key)}


def _attributes(calendar: StoredCalendar) -> dict[str, Any]:
    attributes: dict[str, Any] = msgspec.to_builtins(calendar)
    return attributes


def _calendar(item: Item) -> StoredCalendar:
    try:
        return typed_decode.convert(
            {name: item[name] for name in StoredCalendar.__struct_fields__ if name in item}, StoredCalendar
        )
    except msgspec.ValidationError as exc:
        where = (item.get("PK"), item.get("SK"))
        raise CorruptionError(f"row {where}: it is no calendar, {exc}; put the calendar again") from exc
