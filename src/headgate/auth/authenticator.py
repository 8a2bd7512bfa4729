"""Authenticator: turns the credentials of a request into a principal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headgate.auth.api_keys import PREFIX, ApiKeys
from headgate.auth.principals import LOCAL, Principal
from headgate.auth.sessions import Session, Sessions
from headgate.errors import UnauthenticatedError

if TYPE_CHECKING:
    # Imported only where tokens are accepted: the JWT libraries are slow to load.
    from headgate.auth.tokens import Tokens

_BEARER: Final = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_SCHEME: Final = "bearer"
_AUTHORIZATION: Final = "authorization"
_FORWARDED_PROTO: Final = "x-forwarded-proto"


class Authenticator:
    """Authenticates callers by `Authorization: Bearer` with an API key or a token. Thread-safe.

    Without credentials a loopback caller is LOCAL unless authentication is required; so is every caller behind a
    reverse proxy that the settings trust to authenticate. Credentials that are sent must be valid.
    """

    def __init__(
        self,
        keys: ApiKeys | None = None,
        tokens: Tokens | None = None,
        sessions: Sessions | None = None,
        *,
        is_required: bool = False,
        is_behind_proxy: bool = False,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._sessions = sessions
        self._is_required = is_required
        self._is_behind_proxy = is_behind_proxy

    def principal(
        self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Principal:
        """Return the principal of a request with these headers or gRPC metadata.

        Raises `UnauthenticatedError`, or `TransientError` if the credentials cannot be verified now. It may read the
        store or fetch the issuer's keys; on an event loop, call `remembered` first.
        """
        credential = self._credential(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls)
        if credential is None:
            return LOCAL
        source = self._source(credential)
        return source.principal(credential)

    def remembered(
        self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Principal | None:
        """Return the principal of a request if it is cached, else None. Does no I/O.

        Raises `UnauthenticatedError`.
        """
        credential = self._credential(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls)
        if credential is None:
            return LOCAL
        return self._source(credential).remembered(credential)

    def session(
        self, cookie: str, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Session | None:
        """Return the session of a request with this cookie, or None if it has credentials or needs none.

        Raises `UnauthenticatedError` for a cookie that is not valid, and the errors of reading the store.
        """
        if self._has_session(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls):
            assert self._sessions is not None
            return self._sessions.session(cookie)
        return None

    def remembered_session(
        self, cookie: str, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Session | None:
        """Return the session of a request if it is cached, else None. Does no I/O. Raises `UnauthenticatedError`."""
        if self._has_session(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls):
            assert self._sessions is not None
            return self._sessions.remembered(cookie)
        return None

    def _has_session(self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool) -> bool:
        """Whether a request is authenticated by its cookie. Raises `UnauthenticatedError` if it came unencrypted."""
        lowered = [(name.lower(), value) for name, value in headers]
        if self._sessions is None or self.admits_anonymous(is_loopback_peer=is_loopback_peer):
            return False
        if any(name == _AUTHORIZATION for name, _ in lowered):
            return False
        protocols = {value.strip().lower() for name, value in lowered if name == _FORWARDED_PROTO}
        if not self._is_encrypted(protocols, is_loopback_peer=is_loopback_peer, is_tls=is_tls):
            raise UnauthenticatedError("cookie: it was sent unencrypted and may have been read; use https")
        return True

    def admits_anonymous(self, *, is_loopback_peer: bool) -> bool:
        """Whether a caller without credentials is LOCAL."""
        return not self._is_required and (is_loopback_peer or self._is_behind_proxy)

    def _credential(self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool) -> str | None:
        """Return the key or token, or None for an anonymous caller. Raises `UnauthenticatedError`."""
        lowered = [(name.lower(), value) for name, value in headers]
        authorizations = [value for name, value in lowered if name == _AUTHORIZATION]
        if not authorizations:
            self._refuse_anonymous(is_loopback_peer=is_loopback_peer)
            return None
        if len(authorizations) == 1 and authorizations[0].strip().lower() == _SCHEME:
            raise UnauthenticatedError(self._empty_key_message(is_loopback_peer=is_loopback_peer))
        match = _BEARER.fullmatch(authorizations[0].strip())
        if len(authorizations) > 1 or match is None:
            raise UnauthenticatedError("authorization: send one header, 'Bearer' followed by an API key or a token")
        protocols = {value.strip().lower() for name, value in lowered if name == _FORWARDED_PROTO}
        if not self._is_encrypted(protocols, is_loopback_peer=is_loopback_peer, is_tls=is_tls):
            raise UnauthenticatedError(
                "authorization: it was sent unencrypted and may have been read; revoke it, and use https"
            )
        return match.group(1)

    def _empty_key_message(self, *, is_loopback_peer: bool) -> str:
        """Return the message for an empty key, as when the caller's environment variable is not set."""
        try:
            self._refuse_anonymous(is_loopback_peer=is_loopback_peer)
        except UnauthenticatedError:
            return "authorization: nothing follows 'Bearer'; send an API key or a token, and check that yours is set"
        return "authorization: nothing follows 'Bearer'; programs on this machine need no key: leave the header out"

    def _refuse_anonymous(self, *, is_loopback_peer: bool) -> None:
        if self.admits_anonymous(is_loopback_peer=is_loopback_peer):
            return
        if self._is_required:
            raise UnauthenticatedError(
                "not authenticated; send 'Authorization: Bearer' with an API key ('headgate api-key first' creates "
                "the first) or a token of the configured issuer"
            )
        raise UnauthenticatedError("not authenticated; programs on other machines must send an API key or a token")

    def _is_encrypted(self, protocols: set[str], *, is_loopback_peer: bool, is_tls: bool) -> bool:
        if self._is_behind_proxy:
            # A proxy that does not send X-Forwarded-Proto is trusted, as the settings say.
            return is_tls or protocols <= {"https", "grpcs"}
        return is_tls or is_loopback_peer

    def _source(self, credential: str) -> ApiKeys | Tokens:
        if credential.startswith(PREFIX):
            if self._keys is not None:
                return self._keys
            raise UnauthenticatedError("API key: keys are not accepted here; send a token")
        if self._tokens is not None:
            return self._tokens
        raise UnauthenticatedError("token: tokens are not accepted here; send an API key, or set auth.oidc_issuer")
