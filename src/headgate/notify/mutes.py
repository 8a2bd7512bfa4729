"""Mutes: suppress matching alerts until a time. Each has an author and a reason, and is audited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.ids import IdMaker
from headgate.notify.enums import Severity
from headgate.notify.notices import Audience, Notice, matches
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Delete, Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

PARTITION: Final = "ALERT-MUTES"
# Longest mute; an operator who still needs it renews it.
LONGEST_SECONDS: Final = 90 * 86_400
MUTES_MAX: Final = 500
_CACHE_SECONDS: Final = 5.0
_ATTRIBUTES: Final = ("mute_id", "event", "pipeline", "owner", "severity_max", "until_ms", "by", "reason", "at_ms")


class Mute(Struct, frozen=True, kw_only=True):
    """Suppresses notices that match all patterns until a time. Patterns may contain `*` and `?`.

    Notices above `severity_max` are sent nevertheless.
    """

    mute_id: str
    until_ms: int
    by: str
    reason: str
    at_ms: int
    event: str = "*"
    pipeline: str = "*"
    owner: str = "*"
    severity_max: Severity = Severity.CRITICAL


class AlertAudit(Struct, frozen=True, kw_only=True):
    """The audit entry of a mute or an acknowledgement: actor, action, entity and reason."""

    actor: str
    action: str
    entity: str
    reason: str = ""


# Commits writes together with their audit entry.
Commit = Callable[[Sequence[Write], AlertAudit], None]


def muted_by(notice: Notice, audience: Audience, mutes: Sequence[Mute], now_ms: int) -> str:
    """Return what mutes a notice: a mute's id, or the pattern of the definition; empty if nothing does."""
    for mute in mutes:
        if (
            mute.until_ms > now_ms
            and notice.severity.rank <= mute.severity_max.rank
            and matches(notice.event, mute.event)
            and matches(notice.pipeline_id, mute.pipeline)
            and matches(audience.owner, mute.owner)
        ):
            return mute.mute_id
    return next((f"definition:{each}" for each in audience.mute if matches(notice.event, each)), "")


class Mutes:
    """The mutes of one store. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, commit: Commit) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._commit = commit
        self._cached: tuple[float, tuple[Mute, ...]] | None = None

    def add(
        self,
        *,
        until_ms: int,
        by: str,
        reason: str,
        event: str = "*",
        pipeline: str = "*",
        owner: str = "*",
        severity_max: Severity = Severity.CRITICAL,
    ) -> Mute:
        """Mute matching alerts until a time. Raises `InvalidPayloadError` for an invalid time or a missing reason."""
        now_ms = self._now_ms()
        if not now_ms < until_ms <= now_ms + LONGEST_SECONDS * 1000:
            raise InvalidPayloadError(
                f"mute until {until_ms}: give a time after now and within {LONGEST_SECONDS // 86_400} days"
            )
        if not by.strip() or not reason.strip():
            raise InvalidPayloadError("mute: give your name and a reason; both are recorded in the audit log")
        for field, pattern in (("event", event), ("pipeline", pipeline), ("owner", owner)):
            if not pattern.isprintable() or not pattern.strip():
                raise InvalidPayloadError(f"mute: {field} {pattern[:60]!r}: use a name, or a pattern with '*' and '?'")
        mute = Mute(
            mute_id=self._ids.make("mute"),
            until_ms=until_ms,
            by=by.strip(),
            reason=reason.strip()[:1024],
            at_ms=now_ms,
            event=event,
            pipeline=pipeline,
            owner=owner,
            severity_max=severity_max,
        )
        item = {**msgspec.to_builtins(mute), **CONTROL.key_attributes(_key(mute.mute_id)), "ttl": until_ms // 1000 + 1}
        change = AlertAudit(actor=mute.by, action="alert.mute", entity=mute.mute_id, reason=mute.reason)
        self._commit([Put(CONTROL, item, absent())], change)
        self._cached = None
        return mute

    def remove(self, mute_id: str, *, by: str, reason: str = "") -> None:
        """End a mute early. Raises `NotFoundError`."""
        if all(mute.mute_id != mute_id for mute in self.ls()):
            raise NotFoundError(f"mute {mute_id}: there is none in force; 'headgate alert mutes' lists them")
        change = AlertAudit(actor=by, action="alert.unmute", entity=mute_id, reason=reason)
        self._commit([Delete(CONTROL, _key(mute_id), exists())], change)
        self._cached = None

    def ls(self) -> tuple[Mute, ...]:
        """Return the active mutes, oldest first."""
        page = self._store.query(Query(table=CONTROL, partition=PARTITION, limit=MUTES_MAX, consistent=True))
        now_ms = self._now_ms()
        found = [
            typed_decode.convert({name: item[name] for name in _ATTRIBUTES if name in item}, Mute)
            for item in page.items
        ]
        return tuple(mute for mute in found if mute.until_ms > now_ms)

    def recent(self) -> tuple[Mute, ...]:
        """Return the active mutes, cached for a few seconds; mutes added by this process are always included."""
        cached = self._cached
        if cached is None or self._clock.monotonic() >= cached[0] + _CACHE_SECONDS:
            cached = self._cached = (self._clock.monotonic(), self.ls())
        return cached[1]

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _key(mute_id: str) -> Key:
    return Key(PARTITION, mute_id)
