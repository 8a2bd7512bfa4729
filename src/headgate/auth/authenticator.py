"""The authenticator: from what a request carries to who sent it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headgate.auth.api_keys import PREFIX, ApiKeys
from headgate.auth.principals import LOCAL, Principal
from headgate.errors import UnauthenticatedError

if TYPE_CHECKING:
    # Only who takes tokens needs what checks them.
    from headgate.auth.tokens import Tokens

_BEARER: Final = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_SCHEME: Final = "bearer"
_AUTHORIZATION: Final = "authorization"
_FORWARDED_PROTO: Final = "x-forwarded-proto"


class Authenticator:
    """Says who calls, by `Authorization: Bearer` with an API key or a token. Safe to use from many threads.

    Without credentials a program on this machine is LOCAL, unless they are required; so is whoever a reverse proxy lets
    through that the settings say checks callers. Credentials that are given must be good, wherever they come from.
    """

    def __init__(
        self,
        keys: ApiKeys | None = None,
        tokens: Tokens | None = None,
        *,
        is_required: bool = False,
        is_behind_proxy: bool = False,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._is_required = is_required
        self._is_behind_proxy = is_behind_proxy

    def principal(
        self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Principal:
        """Return who sent a request with these headers, or metadata.

        Raises `UnauthenticatedError`; `TransientError` if that cannot be found out now. It may read the store or ask
        the issuer of tokens: where that must not happen, ask `remembered` first.
        """
        credential = self._credential(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls)
        if credential is None:
            return LOCAL
        source = self._source(credential)
        return source.principal(credential)

    def remembered(
        self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool = False
    ) -> Principal | None:
        """Return who sent a request if that is known without waiting for anything, else None.

        Raises `UnauthenticatedError`.
        """
        credential = self._credential(headers, is_loopback_peer=is_loopback_peer, is_tls=is_tls)
        if credential is None:
            return LOCAL
        return self._source(credential).remembered(credential)

    def admits_anonymous(self, *, is_loopback_peer: bool) -> bool:
        """Whether one without credentials is LOCAL."""
        return not self._is_required and (is_loopback_peer or self._is_behind_proxy)

    def _credential(self, headers: Iterable[tuple[str, str]], *, is_loopback_peer: bool, is_tls: bool) -> str | None:
        """Return the key or token, or None for one who needs none. Raises `UnauthenticatedError`."""
        wanted = [(name.lower(), value) for name, value in headers]
        given = [value for name, value in wanted if name == _AUTHORIZATION]
        if not given:
            self._refuse_anonymous(is_loopback_peer=is_loopback_peer)
            return None
        if len(given) == 1 and given[0].strip().lower() == _SCHEME:
            raise UnauthenticatedError(self._without_key(is_loopback_peer=is_loopback_peer))
        match = _BEARER.fullmatch(given[0].strip())
        if len(given) > 1 or match is None:
            raise UnauthenticatedError("authorization: send it once, as 'Bearer' and then an API key or a token")
        protocols = {value.strip().lower() for name, value in wanted if name == _FORWARDED_PROTO}
        if not self._is_private(protocols, is_loopback_peer=is_loopback_peer, is_tls=is_tls):
            raise UnauthenticatedError(
                "authorization: it came unencrypted, and others may have read it; revoke it, and use https"
            )
        return match.group(1)

    def _without_key(self, *, is_loopback_peer: bool) -> str:
        """Return what to tell someone whose key is empty, as where the variable that holds it is not set."""
        try:
            self._refuse_anonymous(is_loopback_peer=is_loopback_peer)
        except UnauthenticatedError:
            return "authorization: nothing follows 'Bearer'; send an API key or a token, and see that yours is set"
        return "authorization: nothing follows 'Bearer'; programs on this machine need no key: leave the header out"

    def _refuse_anonymous(self, *, is_loopback_peer: bool) -> None:
        if self.admits_anonymous(is_loopback_peer=is_loopback_peer):
            return
        if self._is_required:
            raise UnauthenticatedError(
                "who calls is not known; send 'Authorization: Bearer' with an API key ('headgate api-key first' makes "
                "the first) or a token of the issuer that is set"
            )
        raise UnauthenticatedError("who calls is not known; programs on other machines send an API key or a token")

    def _is_private(self, protocols: set[str], *, is_loopback_peer: bool, is_tls: bool) -> bool:
        if self._is_behind_proxy:
            # The proxy tells how it was called; one that does not tell is trusted, as the settings ask.
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
