"""Session cookies: how the id of a session travels between the server and a browser.

Over HTTPS the name begins with `__Host-`, which browsers accept from this host alone, encrypted and for every path: no
other host of the domain can set it. `SameSite=Strict` keeps it from requests that other sites cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_NAME: Final = "headgate-session"
_HOST_PREFIX: Final = "__Host-"
_FORWARDED_PROTO: Final = "x-forwarded-proto"
_HTTPS: Final = "https"


class SessionCookies:
    """Reads and writes cookies. If a proxy does not state the protocol, `public_url` says whether it encrypts."""

    def __init__(self, *, is_tls: bool = False, is_behind_proxy: bool = False, public_url: str | None = None) -> None:
        self._is_tls = is_tls
        self._is_behind_proxy = is_behind_proxy
        self._public_url = public_url or ""

    def is_secure(self, headers: Iterable[tuple[str, str]]) -> bool:
        """Whether the browser reaches this server over HTTPS."""
        if self._is_tls or not self._is_behind_proxy:
            return self._is_tls
        forwarded = [value.strip().lower() for name, value in headers if name == _FORWARDED_PROTO]
        return forwarded[0] == _HTTPS if forwarded else self._public_url.startswith(f"{_HTTPS}://")

    def read(self, headers: list[tuple[str, str]], name: str = _NAME) -> str | None:
        """Return the value of a cookie; None if it is missing or, because another page added one, ambiguous."""
        full = self.name(headers, name)
        found = [
            value.strip()
            for key, line in headers
            if key == "cookie"
            for each, _, value in (pair.partition("=") for pair in line.split(";"))
            if each.strip() == full
        ]
        return found[0] if len(found) == 1 else None

    def written(
        self,
        headers: list[tuple[str, str]],
        value: str,
        *,
        seconds: int,
        name: str = _NAME,
        same_site: str = "Strict",
    ) -> str:
        """Return the `Set-Cookie` header of a value; zero seconds delete the cookie."""
        secure = "; Secure" if self.is_secure(headers) else ""
        full = self.name(headers, name)
        return f"{full}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}"

    def name(self, headers: Iterable[tuple[str, str]], name: str) -> str:
        """Return the full name of a cookie."""
        return f"{_HOST_PREFIX}{name}" if self.is_secure(headers) else name
