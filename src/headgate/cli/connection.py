"""A connection to a server: what is asked of it and what it answers, whether or not that is an error.

By the standard library: a command is mostly waited for while its modules are loaded.
"""

from __future__ import annotations

import http.client
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
_HUNG_UP: Final = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)


class Reply(Struct, frozen=True):
    """What a server answered."""

    url: str
    status: int
    content: bytes

    @property
    def is_error(self) -> bool:
        """Whether it is anything but what was asked for."""
        return self.status >= 300


class Connection:
    """Asks one server. `key` is sent with every call, and `ca` vouches for the server.

    Raises `SettingsError` for an address that cannot be asked, also because others could read the key on the way.
    """

    def __init__(self, url: str, *, key: str | None = None, ca: Path | None = None) -> None:
        from headgate.settings import is_loopback

        self._url = url
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as exc:
            raise self._no_address() from exc
        if parts.scheme not in {"http", "https"} or not host:
            raise self._no_address()
        is_near = is_loopback(f"[{host}]" if ":" in host else host)
        if key is not None and parts.scheme != "https" and not is_near:
            raise SettingsError(
                f"--server {url}: others could read the API key on the way; name the server with https://"
            )
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._opener = _opener(is_near=is_near, context=_trust(ca) if parts.scheme == "https" else None)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any],
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the answer. Raises `TransientError` if there is none, and `SettingsError` if it is not trusted."""
        with self._open(self._request(method, path, query, content, headers or {})) as answer:
            return self._reply(path, answer)

    @contextmanager
    def lines(
        self, path: str, *, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Iterator[Reply | Iterator[str]]:
        """Give the lines of an answer as they come, or the answer itself if it is an error. Raises as `ask` does."""
        with self._open(self._request("GET", path, query, None, headers)) as answer:
            yield self._lines(answer) if answer.status == HTTPStatus.OK else self._reply(path, answer)

    def _request(
        self, method: str, path: str, query: Mapping[str, Any], content: bytes | None, headers: Mapping[str, str]
    ) -> Request:
        asked = urlencode({name: _text(value) for name, value in query.items()}, doseq=True)
        url = f"{self._url}{_PREFIX}{path}" + (f"?{asked}" if asked else "")
        return Request(url, data=content, headers={**self._headers, **headers}, method=method)

    def _open(self, request: Request) -> Any:  # noqa: ANN401 - an HTTPResponse, or an error that is one
        try:
            with self._unbroken():
                return self._opener.open(request, timeout=_ANSWER_SECONDS)
        except HTTPError as exc:
            return exc
        except URLError as exc:
            raise self._unreached(exc) from exc
        except (http.client.InvalidURL, ValueError) as exc:
            raise self._no_address() from exc

    def _reply(self, path: str, answer: Any) -> Reply:  # noqa: ANN401 - as `_open` returns it
        with self._unbroken():
            return Reply(f"{self._url}{_PREFIX}{path}", answer.status, answer.read())

    def _lines(self, answer: Any) -> Iterator[str]:  # noqa: ANN401 - as `_open` returns it
        while True:
            # Around the reading alone: what those raise who are given the lines is theirs.
            with self._unbroken():
                line: bytes = answer.readline()
            if not line:
                return
            yield line.decode().rstrip("\r\n")

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        try:
            yield
        except (URLError, http.client.InvalidURL):
            raise
        except (OSError, http.client.HTTPException) as exc:
            raise self._broken(exc) from exc

    def _unreached(self, error: URLError) -> Exception:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            return SettingsError(
                f"{self._url}: its certificate is not trusted here; name the file that vouches for it with --ca"
            )
        if isinstance(error.reason, BrokenPipeError | ConnectionResetError):
            return self._broken(error.reason)
        return TransientError(f"{self._url}: no server answers; start one with 'headgate up', or name it with --server")

    def _broken(self, error: Exception) -> TransientError:
        return TransientError(f"{self._url}: the connection broke off ({type(error).__name__}); try again")

    def _no_address(self) -> SettingsError:
        return SettingsError(f"--server {self._url}: not an address such as http://127.0.0.1:8400")


class _Heard(http.client.HTTPConnection):
    """A connection that is listened to although the other side has stopped reading: it may have said why.

    A server that refuses a large body answers at once and hangs up, while we still send.
    """

    _is_begun = False

    def send(self, data: Any) -> None:  # noqa: ANN401 - as the standard library declares it
        try:
            super().send(data)
        except _HUNG_UP:
            if not self._is_begun:
                raise
        self._is_begun = True


class _HeardSafely(_Heard, http.client.HTTPSConnection):
    """The same with TLS."""


class _HeardHandler(HTTPHandler):
    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(_Heard, request)


class _HeardSafelyHandler(HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trusted = context

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(_HeardSafely, request, context=self._trusted)


def _opener(*, is_near: bool, context: ssl.SSLContext | None) -> OpenerDirector:
    """Return what opens requests. It follows nobody elsewhere: the key is for this server alone."""
    opener = OpenerDirector()
    # A proxy is for what is elsewhere.
    opener.add_handler(ProxyHandler({} if is_near else None))
    opener.add_handler(_HeardHandler() if context is None else _HeardSafelyHandler(context))
    opener.add_handler(HTTPErrorProcessor())
    opener.add_handler(HTTPDefaultErrorHandler())
    return opener


def _trust(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as exc:
        # An SSLError is one, too.
        raise SettingsError(f"--ca {ca}: it holds no certificates in PEM that can be read") from exc


def _text(value: Any) -> Any:  # noqa: ANN401 - what a query can hold
    if isinstance(value, bool):
        return "true" if value else "false"
    return [_text(each) for each in value] if isinstance(value, list | tuple) else value
