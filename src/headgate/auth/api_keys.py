"""API keys: `hg_{key_id}_{secret}`, of which only a digest is kept.

A key that was revoked, rotated or given other rights is known so at once in the process that did it, and in all others
after `CACHE_SECONDS` at most. While the store cannot be read no key is accepted for longer than that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.audit_entry import AuditEntry, AuditLog, change_digest, changed_fields
from headgate.auth.principals import EVERYWHERE, LOCAL, Kind, Principal, checked_scopes, covers
from headgate.auth.roles import Role
from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import (
    ConflictError,
    CorruptionError,
    ForbiddenError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    TransientError,
    UnauthenticatedError,
    VersionConflictError,
)
from headgate.ids import IdMaker
from headgate.settings import Secret
from headgate.store.catalogue.tables import API_KEYS
from headgate.store.model.conditions import absent, exists, version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

PREFIX: Final = "hg_"
CACHE_SECONDS: Final = 5.0
CACHE_KEYS_MAX: Final = 4096
# Using a key is noted this often at most, so that a busy one does not write all the time.
USE_NOTED_SECONDS: Final = 3600
# A key that has expired stays on the list for a while, for those who wonder why a program stopped.
EXPIRED_KEPT_SECONDS: Final = 30 * 86_400
EXPIRES_SECONDS_MAX: Final = 10 * 366 * 86_400
OVERLAP_SECONDS_MAX: Final = 7 * 86_400
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"hg_([0-9a-hjkmnp-tv-z]{26})_([0-9a-f]{64})")
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
_KIND: Final = "KEY"


class ApiKey(Struct, frozen=True, kw_only=True):
    """What is known of a key. The secret is not: it is shown once, to whoever made the key."""

    key_id: str
    principal: str
    roles: tuple[Role, ...]
    scopes: tuple[str, ...]
    created_at: str
    created_by: str
    note: str = ""
    expires_at: str | None = None
    revoked_at: str | None = None
    rotated_at: str | None = None
    # To the hour.
    last_used_at: str | None = None
    version: int = 1


class IssuedKey(Struct, frozen=True):
    """A key as it was just made, with its text."""

    key: Secret
    about: ApiKey


class ApiKeyPage(Struct, frozen=True):
    """Some keys, and the cursor to the next ones if there are more."""

    keys: list[ApiKey]
    cursor: str | None = None


class _Row(ApiKey, frozen=True, kw_only=True):
    """A key as it is kept."""

    digest: str
    # The secret before the last rotation, which is accepted for a while.
    old_digest: str | None = None
    old_until: str | None = None
    kind: str = _KIND
    ttl: int | None = None

    def item(self) -> Item:
        row: Item = msgspec.to_builtins(self)
        # An attribute of an index is left out rather than empty, and so is a time that never comes.
        return {name: value for name, value in row.items() if value is not None}

    def about(self) -> ApiKey:
        return typed_decode.convert({name: getattr(self, name) for name in ApiKey.__struct_fields__}, ApiKey)


class ApiKeys:
    """Makes keys and recognises them. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, audit: AuditLog) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        self._lock = threading.Lock()
        # Until when each is known. Also keys that are not there: guessing must not reach the store with every guess.
        self._known: OrderedDict[str, tuple[float, _Row | None]] = OrderedDict()

    def issue(
        self,
        principal: str,
        roles: Iterable[Role],
        scopes: Iterable[str] = (EVERYWHERE,),
        *,
        issuer: Principal,
        expires_seconds: int | None = None,
        note: str = "",
        reason: str = "",
    ) -> IssuedKey:
        """Make a key. Its text is in the answer and nowhere else.

        Raises `InvalidPayloadError` for what a key cannot have, and `ForbiddenError` if the issuer lacks a right that
        the key would have.
        """
        if not _NAME.fullmatch(principal) or principal == LOCAL.name or len(note) > 1000:
            raise InvalidPayloadError(
                f"principal {principal[:40]!r}: name who uses the key, in 1 to 200 characters, and not {LOCAL.name!r}; "
                "a note has at most 1,000"
            )
        if expires_seconds is not None and not 1 <= expires_seconds <= EXPIRES_SECONDS_MAX:
            raise InvalidPayloadError(f"expires in {expires_seconds} s: give 1 to {EXPIRES_SECONDS_MAX:,} seconds")
        held, checked = tuple(sorted(set(roles))), checked_scopes(scopes)
        if not held:
            raise InvalidPayloadError(f"key of {principal}: give it at least one role, of {', '.join(Role)}")
        now_ms = self._now_ms()
        key_id, secret = self._ids.ulid().lower(), secrets.token_hex(_SECRET_BYTES)
        expires_ms = None if expires_seconds is None else now_ms + expires_seconds * 1000
        row = _Row(
            key_id=key_id,
            principal=principal,
            roles=held,
            scopes=checked,
            created_at=instant(now_ms),
            created_by=issuer.name,
            note=note,
            expires_at=None if expires_ms is None else instant(expires_ms),
            digest=_digest(key_id, secret),
            ttl=None if expires_ms is None else expires_ms // 1000 + EXPIRED_KEPT_SECONDS,
        )
        self._commit(None, row, issuer, "key.issue", reason)
        return IssuedKey(Secret(f"{PREFIX}{key_id}_{secret}"), row.about())

    def rotate(self, key_id: str, *, issuer: Principal, overlap_seconds: int = 0, reason: str = "") -> IssuedKey:
        """Give a key a new secret. The present one is accepted for `overlap_seconds` more.

        Raises `NotFoundError`, `ForbiddenError`, `InvalidPayloadError`, and `VersionConflictError` if someone else
        changed it meanwhile or it was revoked.
        """
        if not 0 <= overlap_seconds <= OVERLAP_SECONDS_MAX:
            raise InvalidPayloadError(f"overlap of {overlap_seconds} s: give 0 to {OVERLAP_SECONDS_MAX:,} seconds")
        row = self._row(key_id)
        if row.revoked_at is not None:
            raise VersionConflictError(f"key {key_id}: it was revoked at {row.revoked_at}; make a new one")
        now_ms, secret = self._now_ms(), secrets.token_hex(_SECRET_BYTES)
        after = msgspec.structs.replace(
            row,
            digest=_digest(key_id, secret),
            old_digest=row.digest if overlap_seconds else None,
            old_until=instant(now_ms + overlap_seconds * 1000) if overlap_seconds else None,
            rotated_at=instant(now_ms),
            version=row.version + 1,
        )
        self._commit(row, after, issuer, "key.rotate", reason)
        return IssuedKey(Secret(f"{PREFIX}{key_id}_{secret}"), after.about())

    def revoke(self, key_id: str, *, issuer: Principal, reason: str = "") -> ApiKey:
        """End a key. Once more changes nothing. Raises `NotFoundError`, `ForbiddenError` and `VersionConflictError`."""
        row = self._row(key_id)
        if row.revoked_at is not None:
            return row.about()
        after = msgspec.structs.replace(
            row, revoked_at=instant(self._now_ms()), old_digest=None, old_until=None, version=row.version + 1
        )
        self._commit(row, after, issuer, "key.revoke", reason)
        return after.about()

    def show(self, key_id: str) -> ApiKey:
        """Return what is known of a key. Raises `NotFoundError`."""
        return self._row(key_id).about()

    def ls(self, principal: str | None = None, *, limit: int = 100, cursor: str | None = None) -> ApiKeyPage:
        """Return keys, the newest first: of one principal, or all. An index: it may lag."""
        index, partition = ("kind-index", _KIND) if principal is None else ("principal-index", principal)
        page = self._store.query(
            Query(table=API_KEYS, index=index, partition=partition, limit=limit, cursor=cursor, descending=True)
        )
        return ApiKeyPage([_read(item).about() for item in page.items], page.cursor)

    def principal(self, text: str) -> Principal:
        """Return whose key this is. Raises `UnauthenticatedError`, and what the store raises if it cannot be asked."""
        key_id, secret = _parts(text)
        row = self._lookup(key_id)
        found = self._recognised(row, key_id, secret)
        if row is not None:
            self._note_use(row)
        return found

    def remembered(self, text: str) -> Principal | None:
        """Return whose key this is if that is known without asking the store. Raises `UnauthenticatedError`."""
        key_id, secret = _parts(text)
        with self._lock:
            known = self._known.get(key_id)
        if known is None or self._clock.monotonic() >= known[0]:
            return None
        return self._recognised(known[1], key_id, secret)

    def _recognised(self, row: _Row | None, key_id: str, secret: str) -> Principal:
        given, now = _digest(key_id, secret), instant(self._now_ms())
        # Compared also if there is none, so that how long it takes says nothing.
        is_current = hmac.compare_digest(given, "" if row is None else row.digest)
        is_old = hmac.compare_digest(given, (row and row.old_digest) or "") and ((row and row.old_until) or "") > now
        if row is None or not (is_current or is_old):
            raise UnauthenticatedError("API key: it is not valid; check that it was copied whole, or ask for a new one")
        if row.revoked_at is not None:
            raise UnauthenticatedError(f"API key {key_id}: it was revoked at {row.revoked_at}; ask for a new one")
        if row.expires_at is not None and row.expires_at <= now:
            raise UnauthenticatedError(f"API key {key_id}: it expired at {row.expires_at}; ask for a new one")
        return Principal(row.principal, frozenset(row.roles), row.scopes, Kind.API_KEY, key_id)

    def _lookup(self, key_id: str) -> _Row | None:
        now = self._clock.monotonic()
        with self._lock:
            known = self._known.get(key_id)
        if known is not None and now < known[0]:
            return known[1]
        item = self._store.get(API_KEYS, Key(key_id), consistent=True)
        row = None if item is None else _read(item)
        self._remember(key_id, row, now)
        return row

    def _remember(self, key_id: str, row: _Row | None, at: float) -> None:
        """Keep what was read, as of the time before it was read."""
        with self._lock:
            known = self._known.get(key_id)
            # A read that began before this process changed the key must not undo what it knows.
            if known is not None and known[1] is not None and row is not None and row.version < known[1].version:
                return
            # The sum, not the difference when it is looked at: that one can round to a hair less than has passed.
            self._known[key_id] = (at + CACHE_SECONDS, row)
            self._known.move_to_end(key_id)
            while len(self._known) > CACHE_KEYS_MAX:
                self._known.popitem(last=False)

    def _note_use(self, row: _Row) -> None:
        now_ms = self._now_ms()
        if row.last_used_at is not None and row.last_used_at > instant(now_ms - USE_NOTED_SECONDS * 1000):
            return
        used = msgspec.structs.replace(row, last_used_at=instant(now_ms))
        with self._lock:
            known = self._known.get(row.key_id)
            if known is not None and known[1] is row:
                self._known[row.key_id] = (known[0], used)
        try:
            self._store.update(API_KEYS, Key(row.key_id), set={"last_used_at": used.last_used_at}, condition=exists())
        except (ConflictError, TransientError):
            # Worth less than the request that it would fail.
            return

    def _row(self, key_id: str) -> _Row:
        item = self._store.get(API_KEYS, Key(key_id), consistent=True) if key_id else None
        if item is None:
            raise NotFoundError(f"key {key_id[:40]}: there is none; 'headgate api-key ls' lists them")
        return _read(item)

    def _commit(self, before: _Row | None, after: _Row, issuer: Principal, action: str, reason: str) -> None:
        if not covers(issuer, after.roles, after.scopes):
            raise ForbiddenError(
                f"{issuer.name}: cannot {action} with rights it does not have itself; the key has roles "
                f"{', '.join(after.roles)} on {', '.join(after.scopes) or 'no dataset'}"
            )
        old, new = (None if before is None else before.item()), after.item()
        entry = AuditEntry(
            issuer.name,
            action,
            f"key {after.key_id}",
            None if before is None else before.version,
            after.version,
            changed_fields(old, new),
            reason,
            None,
            change_digest(old, new, secret=("digest", "old_digest")),
        )
        condition = absent() if before is None else version_is(before.version)
        try:
            self._audit.commit([Put(API_KEYS, new, condition)], entry)
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise VersionConflictError(
                f"key {after.key_id}: someone else changed it meanwhile; look at it and try again", current=exc.current
            ) from exc
        self._remember(after.key_id, after, self._clock.monotonic())

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _parts(text: str) -> tuple[str, str]:
    match = _KEY.fullmatch(text)
    if match is None:
        raise UnauthenticatedError("API key: it has not the form of one; check that it was copied whole")
    return match.group(1), match.group(2)


def _digest(key_id: str, secret: str) -> str:
    # The secret has 256 random bits: nobody guesses it from a digest, however quickly that is made.
    return hashlib.sha256(f"{key_id}:{secret}".encode()).hexdigest()


def _read(item: Item) -> _Row:
    try:
        fields: dict[str, Any] = {name: item[name] for name in _Row.__struct_fields__ if name in item}
        return typed_decode.convert(fields, _Row)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"key {item.get('key_id')}: its row is not one of a key ({exc})") from exc
