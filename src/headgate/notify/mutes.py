"""Mutes: what nobody wants to hear of until a time. Kept with who asked for it and why, and audited."""

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
from headgate.notify.notices import Audience, Notice, is_like
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Delete, Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

PARTITION: Final = "ALERT-MUTES"
# Nothing is muted for ever: who still means it says so again.
LONGEST_SECONDS: Final = 90 * 86_400
MUTES_MAX: Final = 500
_CACHE_SECONDS: Final = 5.0
_ATTRIBUTES: Final = ("mute_id", "event", "pipeline", "owner", "severity_max", "until_ms", "by", "reason", "at_ms")


class Mute(Struct, frozen=True, kw_only=True):
    """Silences what fits all of it until a time. Patterns have `*` and `?`.

    What is worse than `severity_max` is told all the same.
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


class Change(Struct, frozen=True, kw_only=True):
    """What is written down of a mute or an acknowledgement: who did what to which thing, and why."""

    actor: str
    action: str
    entity: str
    reason: str = ""


# Applies writes together with what is written down about them, or neither.
Commit = Callable[[Sequence[Write], Change], None]


def muted_by(notice: Notice, audience: Audience, mutes: Sequence[Mute], now_ms: int) -> str:
    """Return what silences a notice: the id of a mute, or the pattern of the definition; empty if nothing does."""
    for mute in mutes:
        if (
            mute.until_ms > now_ms
            and notice.severity.rank <= mute.severity_max.rank
            and is_like(notice.event, mute.event)
            and is_like(notice.pipeline_id, mute.pipeline)
            and is_like(audience.owner, mute.owner)
        ):
            return mute.mute_id
    return next((f"definition:{each}" for each in audience.mute if is_like(notice.event, each)), "")


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
        """Silence what fits until a time. Raises `InvalidPayloadError` for one past, too far, or unexplained."""
        now_ms = self._now_ms()
        if not now_ms < until_ms <= now_ms + LONGEST_SECONDS * 1000:
            raise InvalidPayloadError(
                f"mute until {until_ms}: give a moment after now and within {LONGEST_SECONDS // 86_400} days"
            )
        if not by.strip() or not reason.strip():
            raise InvalidPayloadError("mute: say who asks for it and why; someone will ask why nobody was told")
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
        change = Change(actor=mute.by, action="alert.mute", entity=mute.mute_id, reason=mute.reason)
        self._commit([Put(CONTROL, item, absent())], change)
        self._cached = None
        return mute

    def remove(self, mute_id: str, *, by: str, reason: str = "") -> None:
        """End a mute before its time. Raises `NotFoundError` if there is none."""
        if all(mute.mute_id != mute_id for mute in self.ls()):
            raise NotFoundError(f"mute {mute_id}: there is none in force; 'headgate alert mutes' lists them")
        change = Change(actor=by, action="alert.unmute", entity=mute_id, reason=reason)
        self._commit([Delete(CONTROL, _key(mute_id), exists())], change)
        self._cached = None

    def ls(self) -> tuple[Mute, ...]:
        """Return the mutes in force, the oldest first."""
        page = self._store.query(Query(table=CONTROL, partition=PARTITION, limit=MUTES_MAX, consistent=True))
        now_ms = self._now_ms()
        found = [
            typed_decode.convert({name: item[name] for name in _ATTRIBUTES if name in item}, Mute)
            for item in page.items
        ]
        return tuple(mute for mute in found if mute.until_ms > now_ms)

    def recent(self) -> tuple[Mute, ...]:
        """Return the mutes in force as of a few seconds ago at most, and at least what this process asked for."""
        cached = self._cached
        if cached is None or self._clock.monotonic() >= cached[0] + _CACHE_SECONDS:
            cached = self._cached = (self._clock.monotonic(), self.ls())
        return cached[1]

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _key(mute_id: str) -> Key:
    return Key(PARTITION, mute_id)
