"""Sessions of people in browsers: an opaque random id in a cookie, stored as a digest only.

A session from an API key is valid for as long as that key is: revoking or rotating the key ends it. Sign-out takes
effect at once in the process that made it, and within `CACHE_SECONDS` in all others.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections import OrderedDict
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.api_keys import ApiKeys, key_digest
from headgate.auth.audit_entry import AuditEntry, AuditLog
from headgate.auth.principals import CredentialKind, Principal
from headgate.auth.roles import Role
from headgate.clock import Clock
from headgate.durable.model.records import instant
from headgate.errors import ConflictError, CorruptionError, NotFoundError, TransientError, UnauthenticatedError
from headgate.ids import IdMaker
from headgate.settings import Secret
from headgate.store.catalogue.tables import SESSIONS
from headgate.store.model.conditions import absent, exists, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.peer_changes import NO_PEERS, PeerChanges
from headgate.store.port import Store

CACHE_SECONDS: Final = 5.0
# The name under which changes are counted for the other serving processes.
_CHANGES: Final = "sessions"
CACHE_SESSIONS_MAX: Final = 4096
# The minimum interval of updates of the last use.
SEEN_NOTED_SECONDS: Final = 60
# A replaced id stays valid for the requests that a browser has already sent with it.
REPLACED_SECONDS: Final = 60
_SECRET_BYTES: Final = 32
_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_KIND: Final = "SESSION"
_ENDED: Final = "session: it has ended; sign in again"


class SessionLimits(Struct, frozen=True):
    """How long a session lasts without a request, in all, and with one id."""

    idle_seconds: int
    total_seconds: int
    rotate_seconds: int


class _Row(Struct, frozen=True, kw_only=True):
    """The stored row of a session. `sign_in_id` stays the same when the id is replaced."""

    session_id: str
    sign_in_id: str
    principal: str
    roles: tuple[Role, ...]
    scopes: tuple[str, ...]
    credential: CredentialKind
    csrf_token: str
    signed_in_at: str
    # When this id was issued.
    issued_at: str
    last_seen_at: str
    expires_at: str
    ttl: int
    # The API key that opened the session, and the digest of its secret.
    key_id: str | None = None
    key_digest: str | None = None
    # The id that this one replaces.
    previous_id: str | None = None
    # The id that has replaced this one, and how long this one is still accepted.
    next_id: str | None = None
    replaced_until: str | None = None
    version: int = 1
    kind: str = _KIND

    def item(self) -> Item:
        row: Item = msgspec.to_builtins(self)
        return {name: value for name, value in row.items() if value is not None}

    def about(self) -> SignedIn:
        return SignedIn(
            sign_in_id=self.sign_in_id,
            principal=self.principal,
            roles=self.roles,
            scopes=self.scopes,
            credential=self.credential,
            signed_in_at=self.signed_in_at,
            last_seen_at=self.last_seen_at,
            expires_at=self.expires_at,
            key_id=self.key_id,
        )


class SignedIn(Struct, frozen=True, kw_only=True):
    """The description of a session, without its secrets."""

    sign_in_id: str
    principal: str
    roles: tuple[Role, ...]
    scopes: tuple[str, ...]
    credential: CredentialKind
    signed_in_at: str
    # Accurate to the minute.
    last_seen_at: str
    expires_at: str
    # The API key that opened it.
    key_id: str | None = None


class SignedInPage(Struct, frozen=True):
    """One page of sessions, with a cursor if there are more. A page may be short or empty and still have a cursor."""

    sessions: list[SignedIn]
    cursor: str | None = None


class Session(Struct, frozen=True):
    """A valid session and its principal."""

    principal: Principal
    # Sent with every request that changes something; a page of another site cannot know it.
    csrf_token: str
    is_due_for_rotation: bool
    row: _Row


class OpenedSession(Struct, frozen=True):
    """A new session, with the text of its cookie, which is returned here only."""

    cookie: Secret
    session: Session


class Sessions:
    """Opens, verifies, rotates and ends sessions. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        audit: AuditLog,
        keys: ApiKeys,
        limits: SessionLimits,
        peer_changes: PeerChanges = NO_PEERS,
    ) -> None:
        """Count changes in `peer_changes`, for the other serving processes of this server, and heed theirs."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        self._keys = keys
        self.limits = limits
        self._lock = threading.Lock()
        # Cached rows with their expiry. Also missing ones, so that a guess that is repeated does not reach the store.
        self._known: OrderedDict[str, tuple[float, _Row | None]] = OrderedDict()
        self._peer_changes = peer_changes
        # Changes by other serving processes that `_known` includes.
        self._seen = 0

    def open_by_key(self, text: str, *, replaces: str | None = None) -> OpenedSession:
        """Open a session for the principal of an API key. Raises `UnauthenticatedError`.

        `replaces` is the cookie that the browser sent: its session ends, also that of another person.
        """
        return self._open(self._keys.principal(text), key_digest(text)[1], replaces)

    def open_for(self, principal: Principal, *, replaces: str | None = None) -> OpenedSession:
        """Open a session for a principal that the token issuer has authenticated."""
        return self._open(principal, None, replaces)

    def session(self, cookie: str) -> Session:
        """Return the session of a cookie. Raises `UnauthenticatedError`, and the errors of reading the store."""
        session_id = _session_id(cookie)
        row = self._lookup(session_id)
        checked = self._live(row)
        if checked.key_id is not None:
            # Of the key as it is now: its rights may have changed.
            principal = self._keys.holder(checked.key_id, checked.key_digest or "")
        else:
            principal = _principal(checked)
        self._note_seen(checked)
        return self._valid(checked, principal)

    def remembered(self, cookie: str) -> Session | None:
        """Return the session of a cookie if it is cached, else None. Raises `UnauthenticatedError`."""
        session_id = _session_id(cookie)
        self._heed_peers()
        with self._lock:
            known = self._known.get(session_id)
        if known is None or self._clock.monotonic() >= known[0]:
            return None
        row = self._live(known[1])
        if row.key_id is None:
            return self._valid(row, _principal(row))
        principal = self._keys.remembered_holder(row.key_id, row.key_digest or "")
        return None if principal is None else self._valid(row, principal)

    def rotate(self, session: Session) -> Secret | None:
        """Replace the id of a session, and return the new cookie; None if another request has just done so."""
        row, now_ms = session.row, self._now_ms()
        cookie = _new_cookie()
        after = msgspec.structs.replace(
            row,
            session_id=_session_id(cookie),
            issued_at=instant(now_ms),
            last_seen_at=instant(now_ms),
            previous_id=row.session_id,
            version=1,
        )
        replaced = msgspec.structs.replace(
            row,
            next_id=after.session_id,
            replaced_until=instant(now_ms + REPLACED_SECONDS * 1000),
            version=row.version + 1,
        )
        seen = self._heed_peers()
        try:
            self._store.transact(
                [
                    Put(SESSIONS, after.item(), absent()),
                    Put(SESSIONS, replaced.item(), version_is(row.version)),
                ]
            )
        except ConflictError:
            return None
        self._changed(replaced, seen)
        return Secret(cookie)

    def end(self, session: Session) -> None:
        """End a session, with the ids before and after this one."""
        row = session.row
        entry = _entry(row, "session.sign_out", before=row.version, after=None)
        self._audit.commit(_deletions(row), entry)
        self._forget(row)

    def ls(self, *, limit: int = 100, cursor: str | None = None) -> SignedInPage:
        """Return the sessions that are valid, latest first. Reads an index, which may lag."""
        page = self._store.query(
            Query(table=SESSIONS, index="kind-index", partition=_KIND, limit=limit, cursor=cursor, descending=True)
        )
        rows = [_read(item) for item in page.items]
        return SignedInPage([row.about() for row in rows if row.next_id is None and self._is_live(row)], page.cursor)

    def end_by_id(self, sign_in_id: str, *, actor: Principal) -> SignedIn:
        """End a session of anyone, and return it. Raises `NotFoundError`."""
        rows = self._rows(sign_in_id)
        if not rows:
            raise NotFoundError(f"session {sign_in_id[:40]}: there is none; 'headgate session ls' lists them")
        newest = max(rows, key=lambda row: row.issued_at)
        ids = dict.fromkeys(each for row in rows for each in _ids(row))
        entry = AuditEntry(actor.name, "session.end", f"session {sign_in_id}", newest.version, None)
        self._audit.commit([Delete(SESSIONS, Key(each)) for each in ids], entry)
        for row in rows:
            self._forget(row)
        return newest.about()

    def _rows(self, sign_in_id: str) -> list[_Row]:
        """Return the rows of a session: that of its id, and those of ids that were replaced a moment ago."""
        sort = Sort(Range.EQUALS, sign_in_id)
        page = self._store.query(Query(table=SESSIONS, index="kind-index", partition=_KIND, sort=sort, limit=10))
        found: dict[str, _Row | None] = {}
        ids = [item["session_id"] for item in page.items]
        # The index may lag behind a rotation: the rows themselves name the ids before and after them.
        while ids:
            items = self._store.get_many(SESSIONS, [Key(each) for each in ids], consistent=True)
            found |= {each: None if item is None else _read(item) for each, item in zip(ids, items, strict=True)}
            ids = list({near for row in found.values() if row is not None for near in _ids(row)} - found.keys())
        return [row for row in found.values() if row is not None]

    def _is_live(self, row: _Row) -> bool:
        try:
            self._live(row)
        except UnauthenticatedError:
            return False
        return True

    def _open(self, principal: Principal, digest: str | None, replaces: str | None) -> OpenedSession:
        now_ms, cookie = self._now_ms(), _new_cookie()
        expires_ms = now_ms + self.limits.total_seconds * 1000
        row = _Row(
            session_id=_session_id(cookie),
            sign_in_id=self._ids.ulid().lower(),
            principal=principal.name,
            roles=tuple(sorted(principal.roles)),
            scopes=principal.scopes,
            credential=principal.kind,
            csrf_token=secrets.token_hex(_SECRET_BYTES),
            signed_in_at=instant(now_ms),
            issued_at=instant(now_ms),
            last_seen_at=instant(now_ms),
            expires_at=instant(expires_ms),
            ttl=expires_ms // 1000 + 1,
            key_id=principal.key_id,
            key_digest=digest,
        )
        before, seen = self._replaced(replaces), self._heed_peers()
        writes: list[Write] = [Put(SESSIONS, row.item(), absent()), *([] if before is None else _deletions(before))]
        self._audit.commit(writes, _entry(row, "session.sign_in", before=None, after=row.version))
        if before is not None:
            self._forget(before)
        self._changed(row, seen)
        return OpenedSession(Secret(cookie), self._valid(row, principal))

    def _replaced(self, cookie: str | None) -> _Row | None:
        """Return the row of the cookie that a new session replaces, if there is one."""
        try:
            return None if cookie is None else self._lookup(_session_id(cookie))
        except UnauthenticatedError:
            return None

    def _live(self, row: _Row | None) -> _Row:
        now_ms = self._now_ms()
        now = instant(now_ms)
        if row is None or row.expires_at <= now or (row.replaced_until is not None and row.replaced_until <= now):
            raise UnauthenticatedError(_ENDED)
        if row.last_seen_at <= instant(now_ms - self.limits.idle_seconds * 1000):
            raise UnauthenticatedError(_ENDED)
        return row

    def _valid(self, row: _Row, principal: Principal) -> Session:
        rotates_before = instant(self._now_ms() - self.limits.rotate_seconds * 1000)
        is_due = row.replaced_until is None and row.issued_at <= rotates_before
        return Session(principal, row.csrf_token, is_due, row)

    def _lookup(self, session_id: str) -> _Row | None:
        now, seen = self._clock.monotonic(), self._heed_peers()
        with self._lock:
            known = self._known.get(session_id)
        if known is not None and now < known[0]:
            return known[1]
        item = self._store.get(SESSIONS, Key(session_id), consistent=True)
        row = None if item is None else _read(item)
        self._remember(session_id, row, now, seen)
        return row

    def _heed_peers(self) -> int:
        """Forget what other serving processes of this server have changed. Return the changes that were seen."""
        seen = self._peer_changes.by_others(_CHANGES)
        if seen != self._seen:
            with self._lock:
                self._known.clear()
                self._seen = seen
        return seen

    def _changed(self, row: _Row, seen: int) -> None:
        """Count a change and cache its row. `seen` are the changes by other processes before it was written."""
        self._peer_changes.count(_CHANGES)
        self._remember(row.session_id, row, self._clock.monotonic(), seen)
        if self._heed_peers() != seen:
            # Another process may have ended the session since.
            self._lookup(row.session_id)

    def _remember(self, session_id: str, row: _Row | None, at: float, seen: int) -> None:
        """Cache a row as of the time, and of the changes by other processes, before it was read or written."""
        with self._lock:
            if seen != self._seen:
                return
            known = self._known.get(session_id)
            is_fresh = known is not None and at < known[0]
            # A read that started before a change by this process must not replace the result of the change: what was
            # ended stays ended, and a newer version stays.
            if row is not None and known is not None and is_fresh:
                newer = known[1]
                if newer is None or row.version < newer.version:
                    return
            self._known[session_id] = (at + CACHE_SECONDS, row)
            self._known.move_to_end(session_id)
            while len(self._known) > CACHE_SESSIONS_MAX:
                self._known.popitem(last=False)

    def _forget(self, row: _Row) -> None:
        self._peer_changes.count(_CHANGES)
        for session_id in _ids(row):
            # An id that has ended does not come back.
            self._remember(session_id, None, self._clock.monotonic(), self._heed_peers())

    def _note_seen(self, row: _Row) -> None:
        now_ms = self._now_ms()
        if row.last_seen_at > instant(now_ms - SEEN_NOTED_SECONDS * 1000):
            return
        seen = msgspec.structs.replace(row, last_seen_at=instant(now_ms))
        with self._lock:
            known = self._known.get(row.session_id)
            if known is not None and known[1] is row:
                self._known[row.session_id] = (known[0], seen)
        try:
            self._store.update(
                SESSIONS, Key(row.session_id), set={"last_seen_at": seen.last_seen_at}, condition=exists()
            )
        except (ConflictError, TransientError):
            # Not worth failing the request.
            return

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def is_csrf_token(session: Session, given: str) -> bool:
    """Whether this is the token of the session."""
    return hmac.compare_digest(session.csrf_token.encode(), given.encode("utf-8", "surrogateescape"))


def _new_cookie() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def _session_id(cookie: str) -> str:
    if not _COOKIE.fullmatch(cookie):
        raise UnauthenticatedError(_ENDED)
    # A fast hash is enough: the cookie has 256 random bits.
    return hashlib.sha256(cookie.encode()).hexdigest()


def _principal(row: _Row) -> Principal:
    return Principal(row.principal, frozenset(row.roles), row.scopes, row.credential, row.key_id)


def _ids(row: _Row) -> list[str]:
    return [each for each in (row.session_id, row.previous_id, row.next_id) if each is not None]


def _deletions(row: _Row) -> list[Write]:
    return [Delete(SESSIONS, Key(each)) for each in _ids(row)]


def _entry(row: _Row, action: str, *, before: int | None, after: int | None) -> AuditEntry:
    return AuditEntry(row.principal, action, f"session {row.sign_in_id}", before, after)


def _read(item: Item) -> _Row:
    try:
        fields: dict[str, Any] = {name: item[name] for name in _Row.__struct_fields__ if name in item}
        return typed_decode.convert(fields, _Row)
    except msgspec.ValidationError as exc:
        raise CorruptionError(f"session {item.get('sign_in_id')}: its row is corrupt ({exc})") from exc
