"""Authentication: resolves the caller once per request, before routing, and limits failed logins and writes.

A browser is authenticated by the cookie of its session, if the request has no credentials. Browsers send a cookie
whichever page causes the request; one that changes something therefore needs the token of the session as well, which
only our own pages contain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from headgate.auth.authenticator import Authenticator
from headgate.auth.principals import LOCAL, Principal
from headgate.auth.sessions import Session, is_csrf_token
from headgate.errors import ForbiddenError, HeadgateError, TransientError, UnauthenticatedError
from headgate.serve.http.limits.caller_limits import CallerLimits
from headgate.serve.http.problem import CHALLENGE, Problem, retry_after, send_problem
from headgate.serve.http.session_cookies import SessionCookies
from headgate.serve.http.websocket import socket_of
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.settings import is_loopback

_CREDENTIALS: Final = "authorization"
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Answers queries only, whatever the method.
_GRAPHQL: Final = "/graphql"
CSRF_HEADER: Final = "headgate-csrf"
# Forms, which cannot send a header: their handlers check the token of the session in the form, where there is one.
_FORMS: Final = frozenset({"/ui/sign-in", "/ui/sign-out"})


class Authentication:
    """ASGI middleware that sets `scope["principal"]`.

    Invalid credentials are refused here. Without credentials the principal is None, and each route decides.
    """

    def __init__(
        self,
        app: ASGIApp,
        authenticator: Authenticator,
        pool: WorkPool,
        *,
        is_tls: bool = False,
        limits: CallerLimits | None = None,
        cookies: SessionCookies | None = None,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._pool = pool
        self._is_tls = is_tls
        self._limits = limits
        self._cookies = SessionCookies(is_tls=is_tls) if cookies is None else cookies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
            client: Any = scope.get("client")
            # The address of a client that has reset its connection is unknown, and so not local.
            is_local_peer = client is not None and is_loopback(client[0])
            peer = "" if client is None else f"{client[0]}:{client[1]}"
            try:
                principal = await self.principal(headers, peer, is_local_peer=is_local_peer)
                session = None
                socket = socket_of(scope)
                if principal is None and (socket is None or socket.is_own_page):
                    session = await self.session(headers, is_local_peer=is_local_peer)
                if session is not None:
                    _check_csrf(session, scope["method"], scope["path"], dict(headers))
                    principal = session.principal
                if self._limits is not None and scope["method"] not in READS and scope["path"] != _GRAPHQL:
                    self._limits.check_write(principal, peer, dict(headers))
            except HeadgateError as exc:
                await send_problem(send, Problem.of(exc.http_status, exc.code, exc.message), _headers(exc))
                return
            scope["principal"] = principal  # type: ignore[typeddict-unknown-key]  # ours
            scope["browser_session"] = session  # type: ignore[typeddict-unknown-key]  # ours
            if self._limits is not None:
                # For operations that authenticate by a token in the request.
                record = partial(self._limits.on_failed_login, peer, dict(headers))
                scope["on_failed_login"] = record  # type: ignore[typeddict-unknown-key]  # ours
            if socket is not None or (principal is not None and principal is not LOCAL):
                # For streams, which outlast this check. A local program without credentials has none to lose.
                takes_cookie = socket is None or socket.is_own_page
                kept = CallerCredentials(self, headers, peer, is_local_peer=is_local_peer, takes_cookie=takes_cookie)
                scope["credentials"] = kept  # type: ignore[typeddict-unknown-key]  # ours
        await self._app(scope, receive, send)

    async def principal(
        self, headers: list[tuple[str, str]], peer: str, *, is_local_peer: bool, is_login: bool = True
    ) -> Principal | None:
        """Return the caller with these headers, or None without credentials. A failed login is counted.

        Raises `UnauthenticatedError`, `RateLimitedError`, and `TransientError` if it cannot be decided now.
        """
        has_credentials = any(name == _CREDENTIALS for name, _ in headers)
        try:
            known = self._authenticator.remembered(headers, is_loopback_peer=is_local_peer, is_tls=self._is_tls)
            if known is not None:
                return known
            return await self._pool.run(
                lambda: self._authenticator.principal(headers, is_loopback_peer=is_local_peer, is_tls=self._is_tls)
            )
        except UnauthenticatedError:
            if not has_credentials:
                return None
            if self._limits is not None and is_login:
                self._limits.on_failed_login(peer, dict(headers))
            raise

    async def session(self, headers: list[tuple[str, str]], *, is_local_peer: bool) -> Session | None:
        """Return the session of the request's cookie; None if it has none or the session has ended."""
        cookie = self._cookies.read(headers)
        if cookie is None:
            return None
        try:
            known = self._authenticator.remembered_session(
                cookie, headers, is_loopback_peer=is_local_peer, is_tls=self._is_tls
            )
            if known is not None:
                return known
            return await self._pool.run(
                lambda: self._authenticator.session(
                    cookie, headers, is_loopback_peer=is_local_peer, is_tls=self._is_tls
                )
            )
        except UnauthenticatedError:
            # Not a failed login: open pages repeat their requests after a session has ended.
            return None


class CallerCredentials:
    """The credentials of a stream or a WebSocket: those of its request, or those that its first message has."""

    def __init__(
        self,
        authentication: Authentication,
        headers: list[tuple[str, str]],
        peer: str,
        *,
        is_local_peer: bool,
        takes_cookie: bool,
    ) -> None:
        self._authentication = authentication
        self._headers = headers
        self._peer = peer
        self._is_local_peer = is_local_peer
        self._takes_cookie = takes_cookie

    async def sign_in(self, authorization: str) -> Principal | None:
        """Return the caller with this header in place of the handshake's. Raises as `Authentication.principal`."""
        others = [pair for pair in self._headers if pair[0] != _CREDENTIALS]
        self._headers = [*others, (_CREDENTIALS, authorization)]
        return await self._authentication.principal(self._headers, self._peer, is_local_peer=self._is_local_peer)

    async def check(self) -> Principal | None:
        """Return the caller as of now: None, or `UnauthenticatedError`, if the credentials have ended."""
        found = await self._authentication.principal(
            self._headers, self._peer, is_local_peer=self._is_local_peer, is_login=False
        )
        if found is None and self._takes_cookie:
            session = await self._authentication.session(self._headers, is_local_peer=self._is_local_peer)
            return None if session is None else session.principal
        return found


def session_of(scope: Any) -> Session | None:  # noqa: ANN401 - of any kind of connection
    """Return the session by which the caller was authenticated, if it was."""
    session: Session | None = scope.get("browser_session")
    return session


def _check_csrf(session: Session, method: str, path: str, headers: Mapping[str, str]) -> None:
    if method in READS or path in _FORMS or is_csrf_token(session, headers.get(CSRF_HEADER, "")):
        return
    raise ForbiddenError(
        f"{CSRF_HEADER}: a request by the cookie of a session needs the token that its pages contain; reload the page"
    )


def caller(
    authenticator: Authenticator,
    headers: Mapping[str, str],
    peer: str,
    *,
    is_tls: bool,
    limits: CallerLimits | None = None,
) -> Principal | None:
    """Return the caller of an RPC, or None without credentials. Raises `UnauthenticatedError` and `RateLimitedError`.

    `peer` is in gRPC's form (`ipv4:127.0.0.1:5000`, `ipv6:[::1]:5000`, `unix:...`), or without the prefix.
    """
    is_local_peer = _is_local_peer(peer)
    if _CREDENTIALS in headers:
        try:
            return authenticator.principal(headers.items(), is_loopback_peer=is_local_peer, is_tls=is_tls)
        except UnauthenticatedError:
            if limits is not None:
                limits.on_failed_login(peer, headers)
            raise
    # Most callers are local programs without credentials.
    return LOCAL if authenticator.admits_anonymous(is_loopback_peer=is_local_peer) else None


def cached_caller(
    authenticator: Authenticator, headers: Mapping[str, str], peer: str, *, is_tls: bool
) -> Principal | None:
    """Return the caller if no blocking lookup is needed, else None: `caller` judges invalid credentials."""
    is_local_peer = _is_local_peer(peer)
    if _CREDENTIALS in headers:
        try:
            return authenticator.remembered(headers.items(), is_loopback_peer=is_local_peer, is_tls=is_tls)
        except UnauthenticatedError:
            return None
    return LOCAL if authenticator.admits_anonymous(is_loopback_peer=is_local_peer) else None


@lru_cache(maxsize=1024)
def _is_local_peer(peer: str) -> bool:
    # Called for every RPC, with few distinct peers.
    if peer.startswith("unix:"):
        return True
    address = peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")
    return is_loopback(address.rpartition(":")[0])


def _headers(error: HeadgateError) -> dict[str, str]:
    if isinstance(error, TransientError):
        return retry_after(error.retry_after_seconds)
    if isinstance(error, UnauthenticatedError):
        return {**CHALLENGE, "connection": "close"}
    return {"connection": "close"}
