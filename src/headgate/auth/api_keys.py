"""API keys: `hg_{key_id}_{secret}`, stored as a digest only.

A revocation, rotation or change of rights takes effect at once in the process that made it, and within `CACHE_SECONDS`
in all others. While the store cannot be read, no key is accepted for longer than that.
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
from headgate.auth.principals import EVERYWHERE, LOCAL, CredentialKind, Principal, checked_scopes, covers
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
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.store.port import Store

PREFIX: Final = "hg_"
CACHE_SECONDS: Final = 5.0
# The name under which changes are counted for the other serving processes.
_CHANGES: Final = "api-keys"
CACHE_KEYS_MAX: Final = 4096
# The minimum interval of updates of a key's last use.
USE_NOTED_SECONDS: Final = 3600
# An expired key stays listed for a while, to explain why a program lost access.
EXPIRED_KEPT_SECONDS: Final = 30 * 86_400
EXPIRES_SECONDS_MAX: Final = 10 * 366 * 86_400
OVERLAP_SECONDS_MAX: Final = 7 * 86_400
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"hg_([0-9a-hjkmnp-tv-z]{26})_([0-9a-f]{64})")
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,199}")
_KIND: Final = "KEY"


class ApiKey(Struct, frozen=True, kw_only=True):
    """The description of a key, without its secret, which is returned only when the key is issued."""

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
    # Accurate to the hour.
    last_used_at: str | None = None
    version: int = 1


class IssuedKey(Struct, frozen=True):
    """A new key with its secret text."""

    key: Secret
    about: ApiKey


class ApiKeyPage(Struct, frozen=True):
    """One page of keys, with a cursor if there are more."""

    keys: list[ApiKey]
    cursor: str | None = None


class _Row(ApiKey, frozen=True, kw_only=True):
    """The stored row of a key."""

    digest: str
    # The digest of the previous secret, which is accepted during the overlap after a rotation.
    old_digest: str | None = None
    old_until: str | None = None
    kind: str = _KIND
    ttl: int | None = None

    def item(self) -> Item:
        row: Item = msgspec.to_builtins(self)
        # Index attributes must be absent rather than None.
        return {name: value for name, value in row.items() if value is not None}

    def about(self) -> ApiKey:
        return typed_decode.convert({name: getattr(self, name) for name in ApiKey.__struct_fields__}, ApiKey)


class ApiKeys:
    """Issues, rotates, revokes and verifies keys. Thread-safe."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdMaker, audit: AuditLog, peer_changes: PeerChanges = NO_PEERS
    ) -> None:
        """Count changes in `peer_changes`, for the other serving processes of this server, and heed theirs."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        self._lock = threading.Lock()
        # Cached rows with their expiry. Also missing keys, so that guesses do not reach the store every time.
        self._known: OrderedDict[str, tuple[float, _Row | None]] = OrderedDict()
        self._peer_changes = peer_changes
        # Changes by other serving processes that `_known` includes.
        self._seen = 0

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
        """Issue a key. Its text is returned here and stored nowhere.

        Raises `InvalidPayloadError` for invalid arguments, and `ForbiddenError` if the issuer lacks a right of the key.
        """
        if not _NAME.fullmatch(principal) or principal == LOCAL.name or len(note) > 1000:
            raise InvalidPayloadError(
                f"principal {principal[:40]!r}: name the user of the key in 1 to 200 characters, not {LOCAL.name!r}; "
                "a note has at most 1,000"
            )
        if expires_seconds is not None and not 1 <= expires_seconds <= EXPIRES_SECONDS_MAX:
            raise InvalidPayloadError(f"expires in {expires_seconds} s: give 1 to {EXPIRES_SECONDS_MAX:,} seconds")
        checked_roles, checked = tuple(sorted(set(roles))), checked_scopes(scopes)
        if not checked_roles:
            raise InvalidPayloadError(f"key of {principal}: give it at least one role, of {', '.join(Role)}")
        now_ms = self._now_ms()
        key_id, secret = self._ids.ulid().lower(), secrets.token_hex(_SECRET_BYTES)
        expires_ms = None if expires_seconds is None else now_ms + expires_seconds * 1000
        row = _Row(
            key_id=key_id,
            principal=principal,
            roles=checked_roles,
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
        """Replace the secret of a key. The current one is accepted for `overlap_seconds` more.

        Raises `NotFoundError`, `ForbiddenError`, `InvalidPayloadError`, and `VersionConflictError` for a concurrent
        change or a revoked key.
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
        """Revoke a key. Idempotent. Raises `NotFoundError`, `ForbiddenError` and `VersionConflictError`."""
        row = self._row(key_id)
        if row.revoked_at is not None:
            return row.about()
        after = msgspec.structs.replace(
            row, revoked_at=instant(self._now_ms()), old_digest=None, old_until=None, version=row.version + 1
        )
        self._commit(row, after, issuer, "key.revoke", reason)
        return after.about()

    def show(self, key_id: str) -> ApiKey:
        """Return the description of a key. Raises `NotFoundError`."""
        return self._row(key_id).about()

    def ls(self, principal: str | None = None, *, limit: int = 100, cursor: str | None = None) -> ApiKeyPage:
        """Return all keys or those of one principal, newest first. Reads an index, which may lag."""
        index, partition = ("kind-index", _KIND) if principal is None else ("principal-index", principal)
        page = self._store.query(
            Query(table=API_KEYS, index=index, partition=partition, limit=limit, cursor=cursor, descending=True)
        )
        return ApiKeyPage([_read(item).about() for item in page.items], page.cursor)

    def principal(self, text: str) -> Principal:
        """Return the principal of a key. Raises `UnauthenticatedError`, and the errors of reading the store."""
        key_id, secret = _parts(text)
        return self.holder(key_id, _digest(key_id, secret))

    def holder(self, key_id: str, digest: str) -> Principal:
        """Return the principal of a key by its digest. Raises as `principal`."""
        row = self._lookup(key_id)
        principal = self._verified(row, key_id, digest)
        if row is not None:
            self._note_use(row)
        return principal

    def remembered_holder(self, key_id: str, digest: str) -> Principal | None:
        """Return the principal of a key by its digest if it is cached, else None. Raises `UnauthenticatedError`."""
        self._heed_peers()
        with self._lock:
            known = self._known.get(key_id)
        if known is None or self._clock.monotonic() >= known[0]:
            return None
        return self._verified(known[1], key_id, digest)

    def remembered(self, text: str) -> Principal | None:
        """Return the principal of a key if it is cached, else None. Raises `UnauthenticatedError`."""
        key_id, secret = _parts(text)
        return self.remembered_holder(key_id, _digest(key_id, secret))

    def _verified(self, row: _Row | None, key_id: str, digest: str) -> Principal:
        now = instant(self._now_ms())
        # Compared also for a missing key, so that the response time reveals nothing.
        is_current = hmac.compare_digest(digest, "" if row is None else row.digest)
        is_old = hmac.compare_digest(digest, (row and row.old_digest) or "") and ((row and row.old_until) or "") > now
        if row is None or not (is_current or is_old):
            raise UnauthenticatedError("API key: not valid; check that it was copied completely, or ask for a new one")
        if row.revoked_at is not None:
            raise UnauthenticatedError(f"API key {key_id}: it was revoked at {row.revoked_at}; ask for a new one")
        if row.expires_at is not None and row.expires_at <= now:
            raise UnauthenticatedError(f"API key {key_id}: it expired at {row.expires_at}; ask for a new one")
        return Principal(row.principal, frozenset(row.roles), row.scopes, CredentialKind.API_KEY, key_id)

    def _lookup(self, key_id: str) -> _Row | None:
        now, seen = self._clock.monotonic(), self._heed_peers()
        with self._lock:
            known = self._known.get(key_id)
        if known is not None and now < known[0]:
            return known[1]
        item = self._store.get(API_KEYS, Key(key_id), consistent=True)
        row = None if item is None else _read(item)
        self._remember(key_id, row, now, seen)
        return row

    def _heed_peers(self) -> int:
        """Forget what other serving processes of this server have changed. Return the changes that were seen."""
        seen = self._peer_changes.by_others(_CHANGES)
        if seen != self._seen:
            with self._lock:
                self._known.clear()
                self._seen = seen
        return seen

    def _remember(self, key_id: str, row: _Row | None, at: float, seen: int) -> None:
        """Cache a row as of the time, and of the changes by other processes, before it was read or written."""
        with self._lock:
            if seen != self._seen:
                return
            known = self._known.get(key_id)
            # A read that started before a change by this process must not replace the newer row.
            if known is not None and known[1] is not None and row is not None and row.version < known[1].version:
                return
            # Stored as a sum: a difference computed on reading could round below the elapsed time.
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
            # Not worth failing the request.
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
        seen = self._heed_peers()
        try:
            self._audit.commit([Put(API_KEYS, new, condition)], entry)
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise VersionConflictError(
                f"key {after.key_id}: it was changed concurrently; read it and try again", current=exc.current
            ) from exc
        self._peer_changes.count(_CHANGES)
        self._remember(after.key_id, after, self._clock.monotonic(), seen)
        if self._heed_peers() != seen:
            # Another process may have changed the key since.
            self._lookup(after.key_id)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def key_digest(text: str) -> tuple[str, str]:
    """Return the id of a key and the digest that is stored of it. Raises `UnauthenticatedError` if malformed."""
    key_id, secret = _parts(text)
    return key_id, _digest(key_id, secret)


def _parts(text: str) -> tuple[str, str]:
    match = _KEY.fullmatch(text)
    if match is None:
        raise UnauthenticatedError("API key: malformed; check that it was copied completely")
    return match.group(1), match.group(2)


def _digest(key_id: str, secret: str) -> str:
    # A fast hash is enough: the secret has 256 random bits.
    return hashlib.sha256(f"{key_id}:{secret}".encode()).hexdigest()


def _read(item: Item) -> _Row:
    try:
        fields: dict[str, Any] = {name: item[name] for name in _Row.__struct_fields__ if name in item}
        return typed_decode.convert(fields, _Row)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"key {item.get('key_id')}: its row is corrupt ({exc})") from exc
