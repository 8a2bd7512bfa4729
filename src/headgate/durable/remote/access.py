"""Access to a server: its address, the API key and the CA bundle, from arguments or from the environment."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from headgate.errors import SettingsError
from headgate.settings import Secret, is_loopback

DEFAULT_URL: Final = "http://127.0.0.1:8400"
# The same variables as those of the commands.
_URL_VARIABLE: Final = "HEADGATE_SERVER"
_KEY_VARIABLE: Final = "HEADGATE_API_KEY"
_CA_VARIABLE: Final = "HEADGATE_CA"
_environment: Final = os.environ  # noqa: TID251 - variables of a client, not settings of a server


@dataclass(frozen=True)
class Access:
    """Where a server is, and how to authenticate to it."""

    url: str
    api_key: Secret | None = None
    ca: Path | None = None
    # Requests to this machine use no proxy.
    is_local: bool = False

    @classmethod
    def of(
        cls, url: str | None, api_key: str | None, ca: Path | str | None, environ: Mapping[str, str] = _environment
    ) -> Access:
        """Return the access of these arguments; what is None comes from the environment.

        Raises `SettingsError` for an invalid address, and for a key over plain HTTP to another machine.
        """
        url = (url or environ.get(_URL_VARIABLE) or DEFAULT_URL).rstrip("/")
        key = api_key or environ.get(_KEY_VARIABLE) or None
        bundle = ca or environ.get(_CA_VARIABLE) or None
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as exc:
            raise _invalid(url) from exc
        if parts.scheme not in {"http", "https"} or not host or parts.query or parts.username:
            raise _invalid(url)
        is_local = is_loopback(host)
        if key is not None and parts.scheme != "https" and not is_local:
            raise SettingsError(f"server {url}: the API key would be sent unencrypted; use https://")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise SettingsError("api_key: it has characters that no API key has; pass the key as it was issued")
        secret = None if key is None else Secret(key)
        return cls(url, secret, None if bundle is None else Path(bundle), is_local)

    def headers(self) -> dict[str, str]:
        """Return the headers of every request."""
        own = {"accept": "application/json", "user-agent": "headgate-client"}
        return own if self.api_key is None else {**own, "authorization": f"Bearer {self.api_key.reveal()}"}

    def tls(self) -> ssl.SSLContext | bool:
        """Return how to verify the server. Raises `SettingsError` if the CA bundle cannot be read."""
        if not self.url.startswith("https:"):
            return False
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as exc:
            # SSLError is an OSError.
            raise SettingsError(f"ca {self.ca}: no readable PEM certificates") from exc


def _invalid(url: str) -> SettingsError:
    # What is before an @ may be a password.
    shown = url.rpartition("@")[2]
    return SettingsError(f"server {shown}: invalid address; write it as {DEFAULT_URL}")
