"""HTTP connection to a server, on the standard library to keep the start of a command fast."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from msgspec import Struct

from headgate.errors import SettingsError, TransientError

_ANSWER_SECONDS: Final = 90.0
_PREFIX: Final = "/api/v1"
_CLOSED_BY_SERVER: Final = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


def shown_url(url: str) -> str:
    """Return an address without the user and the password that it may contain."""
    return re.sub("//[^?#]*@", "//", url, count=1)


class Reply(Struct, frozen=True):
    """Response of a server."""

    url: str
    status: int
    content: bytes

    @property
    def is_error(self) -> bool:
        """Whether the status is not 2xx."""
        return self.status >= 300


class Connection:
    """HTTP client of one server. `key` authenticates every request; `ca` verifies the server's certificate.

    Raises `SettingsError` for an invalid address, and for a key over plain HTTP to another machine.
    """

    def __init__(self, url: str, *, key: str | None = None, ca: Path | None = None) -> None:
        from headgate.settings import is_loopback

        self._url = url
        # Without a password, for messages.
        self._shown = shown_url(url)
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as exc:
            raise self._invalid_address() from exc
        if parts.scheme not in {"http", "https"} or not host:
            raise self._invalid_address()
        is_local = is_loopback(f"[{host}]" if ":" in host else host)
        if key is not None and parts.scheme != "https" and not is_local:
            raise SettingsError(f"--server {url}: the API key would be sent unencrypted; use https://")
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._opener = _opener(is_local=is_local, context=_tls_context(ca) if parts.scheme == "https" else None)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any],
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request. Raises `TransientError` without a response, `SettingsError` for an untrusted certificate."""
        with self._open(self._prepare(method, path, query, content, headers or {})) as response:
            return self._reply(path, response)

    @contextmanager
    def lines(
        self, path: str, *, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Iterator[Reply | Iterator[str]]:
        """Stream the lines of a response, or return it whole if it is an error. Raises as `request` does."""
        with self._open(self._prepare("GET", path, query, None, headers)) as response:
            yield self._lines(response) if response.status == HTTPStatus.OK else self._reply(path, response)

    def _prepare(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None, headers: Mapping[str, str]
    ) -> Request:
        encoded = urlencode({name: _text(value) for name, value in query.items()}, doseq=True)
        url = f"{self._url}{_PREFIX}{path}" + (f"?{encoded}" if encoded else "")
        return Request(url, data=content, headers={**self._headers, **headers}, method=method)

    def _open(self, request: Request) -> Any:  # noqa: ANN401 - an HTTPResponse or HTTPError
        try:
            with self._connection_errors():
                return self._opener.open(request, timeout=_ANSWER_SECONDS)
        except HTTPError as exc:
            return exc
        except URLError as exc:
            raise self._unreachable(exc) from exc
        except (http.client.InvalidURL, ValueError) as exc:
            raise self._invalid_address() from exc

    def _reply(self, path: str, response: Any) -> Reply:  # noqa: ANN401 - as `_open` returns it
        with self._connection_errors():
            return Reply(f"{self._shown}{_PREFIX}{path}", response.status, response.read())

    def _lines(self, response: Any) -> Iterator[str]:  # noqa: ANN401 - as `_open` returns it
        while True:
            # Only around the read: errors raised by the consumer of the lines pass through.
            with self._connection_errors():
                line: bytes = response.readline()
            if not line:
                return
            yield line.decode().rstrip("\r\n")

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (URLError, http.client.InvalidURL):
            raise
        except (OSError, http.client.HTTPException) as exc:
            raise self._connection_lost(exc) from exc

    def _unreachable(self, error: URLError) -> Exception:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            return SettingsError(f"{self._shown}: certificate not trusted; name a CA bundle with --ca")
        if isinstance(error.reason, BrokenPipeError | ConnectionResetError):
            return self._connection_lost(error.reason)
        return TransientError(
            f"{self._shown}: no server is running there; start one with 'headgate up', or select one with --server"
        )

    def _connection_lost(self, error: Exception) -> TransientError:
        return TransientError(f"{self._shown}: connection lost ({type(error).__name__}); try again")

    def _invalid_address(self) -> SettingsError:
        return SettingsError(f"--server {self._shown}: invalid address; write it as http://127.0.0.1:8400")


class _EarlyResponseConnection(http.client.HTTPConnection):
    """Connection that reads the response even if the server closes it during the upload.

    A server that rejects a large body responds and closes the connection before it is sent completely.
    """

    _has_sent = False

    def send(self, data: Any) -> None:  # noqa: ANN401 - as the standard library declares it
        try:
            super().send(data)
        except _CLOSED_BY_SERVER:
            if not self._has_sent:
                raise
        self._has_sent = True


class _EarlyResponseTlsConnection(_EarlyResponseConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class _HttpHandler(HTTPHandler):
    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyResponseConnection, request)


class _HttpsHandler(HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls_context = context

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyResponseTlsConnection, request, context=self._tls_context)


def _opener(*, is_local: bool, context: ssl.SSLContext | None) -> OpenerDirector:
    """Return an opener that follows no redirects: the key is for this server only."""
    opener = OpenerDirector()
    # Loopback addresses bypass the proxy.
    opener.add_handler(ProxyHandler({} if is_local else None))
    opener.add_handler(_HttpHandler() if context is None else _HttpsHandler(context))
    opener.add_handler(HTTPErrorProcessor())
    opener.add_handler(HTTPDefaultErrorHandler())
    return opener


def _tls_context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as exc:
        # SSLError is an OSError.
        raise SettingsError(f"--ca {ca}: no readable PEM certificates") from exc


def _text(value: Any) -> Any:  # noqa: ANN401 - any query value
    if isinstance(value, bool):
        return "true" if value else "false"
    return [_text(each) for each in value] if isinstance(value, list | tuple) else value
