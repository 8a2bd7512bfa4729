"""Flags: audited switches that people set and programs poll, such as the one that stops a fleet."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    StoreBusyError,
    VersionConflictError,
)
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

ATTEMPTS_MAX: Final = 32
ALL_MAX: Final = 1000
REASON_MAX: Final = 1024
ANY_VERSION: Final = -1
_PARTITION: Final = "FLAGS"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Flag(Struct, frozen=True, kw_only=True):
    """A switch, with the author and reason of its last change."""

    name: str
    is_on: bool
    reason: str
    updated_by: str
    updated_at: str
    version: int


class Flags:
    """Stores flags, and audits each change. Safe to use from many processes."""

    def __init__(self, store: Store, clock: Clock, audit: AuditLog) -> None:
        self._store = store
        self._clock = clock
        self._audit = audit

    def get(self, name: str) -> Flag:
        """Return a flag from the store. Raises `NotFoundError` for one that was never set."""
        found = self._find(name)
        if found is None:
            raise NotFoundError(f"flag {name}: never set; its reader decides on the default")
        return found

    def ls(self) -> list[Flag]:
        """Return all flags, by name."""
        page = self._store.query(Query(table=CONTROL, partition=_PARTITION, limit=ALL_MAX, consistent=True))
        return [typed_decode.convert(row, Flag) for row in page.items]

    def put(self, name: str, *, is_on: bool, actor: str, reason: str, expected_version: int = ANY_VERSION) -> Flag:
        """Set a flag. Repeating it changes nothing.

        `expected_version` 0: it must not exist; -1: any version. Raises `InvalidIdError` for an invalid name,
        `InvalidPayloadError` without a reason, `VersionConflictError`, and `StoreBusyError` after too many conflicts.
        """
        if not reason.strip() or len(reason) > REASON_MAX:
            raise InvalidPayloadError(f"flag {name[:80]}: reason is missing, or longer than {REASON_MAX}")
        for _ in range(ATTEMPTS_MAX):
            held = self._find(name)
            if held is not None and held.is_on is is_on:
                return held
            version = 0 if held is None else held.version
            if expected_version not in (ANY_VERSION, version):
                raise VersionConflictError(
                    f"flag {name}: it is at version {version}, not {expected_version}; read it again",
                    current={"version": version},
                )
            flag = Flag(
                name=name,
                is_on=is_on,
                reason=reason,
                updated_by=actor,
                updated_at=instant(int(self._clock.seconds() * 1000)),
                version=version + 1,
            )
            row = {**CONTROL.key_attributes(_key(name)), **msgspec.to_builtins(flag)}
            put = Put(CONTROL, row, absent() if held is None else version_is(version))
            try:
                self._audit.commit([put], _entry(flag))
            except ConflictError:
                continue
            return flag
        raise StoreBusyError(f"flag {name}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _find(self, name: str) -> Flag | None:
        row = self._store.get(CONTROL, _key(name), consistent=True)
        return None if row is None else typed_decode.convert(row, Flag)


def _key(name: str) -> Key:
    if _NAME.fullmatch(name) is None:
        raise InvalidIdError(f"flag {name[:80]!r}: write a name such as fleet.enabled, of at most 128 characters")
    return Key(_PARTITION, name)


def _entry(flag: Flag) -> AuditEntry:
    return AuditEntry(
        actor=flag.updated_by,
        action="flag.on" if flag.is_on else "flag.off",
        entity=f"flag:{flag.name}",
        before_version=flag.version - 1 or None,
        after_version=flag.version,
        changed=("is_on",),
        reason=flag.reason,
    )
