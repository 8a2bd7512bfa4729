"""Server: sends requests to the REST API of Headgate, again if a failure is transient."""

from __future__ import annotations

import ipaddress
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from headgate_airflow.rulings import GateAnswer, Question, answer_of

TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.2
_PAUSE_SECONDS_MAX: Final = 5.0
_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})


class ServerUnavailableError(Exception):
    """The server did not answer, or asked for a later attempt."""


class RequestRefusedError(Exception):
    """The server refused the request; it will refuse it again."""


class AddressError(Exception):
    """The connection has no usable address, or would send the key unencrypted."""


@dataclass(frozen=True)
class Address:
    """Address of a server, and how to authenticate to it."""

    url: str
    api_key: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
            raise AddressError(f"address {self.url.rpartition('@')[2]!r}: write http://HOST:PORT or https://HOST:PORT")
        if self.api_key and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise AddressError(f"address {self.url}: the API key would be sent unencrypted; use https")

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(host: str | None, port: int | None, scheme: str | None, key: str | None, ca: str | None) -> Address:
    """Return the address that the fields of an Airflow connection give. `scheme` is https unless the host is local."""
    if not host:
        raise AddressError("the connection has no host; set it to the host of the Headgate server")
    if "://" in host:
        return Address(host.rstrip("/") if port is None else f"{host.rstrip('/')}:{port}", key or None, ca)
    chosen = scheme or ("http" if is_loopback(host) else "https")
    return Address(f"{chosen}://{host}" if port is None else f"{chosen}://{host}:{port}", key or None, ca)


class HeadgateServer:
    """A Headgate server. Every request may be repeated: it reads, or has the same content each time."""

    def __init__(
        self,
        address: Address,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._sleep = sleep
        self._monotonic = monotonic

    def gate(self, question: Question) -> GateAnswer:
        """Return the answer of the gate. Raises `ServerUnavailableError`, `RequestRefusedError`."""
        found = self._post("/api/v1/gate", question.body())
        try:
            return answer_of(found)
        except ValueError as exc:
            raise RequestRefusedError(f"{self._address.url}: {exc}") from exc

    def report(self, event: Mapping[str, Any]) -> None:
        """Send an OpenLineage event. Raises `ServerUnavailableError`, `RequestRefusedError`."""
        self._post("/api/v1/lineage", event)

    def status(self) -> str:
        """Return the name and version of the server. Raises `ServerUnavailableError`, `RequestRefusedError`."""
        found = self._send("GET", "/api", None)
        return f"{found.get('name', 'unknown')} {found.get('version', '')}".strip()

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method: str, path: str, content: bytes | None) -> Any:  # noqa: ANN401 - JSON
        headers = {"accept": "application/json", "user-agent": "headgate-airflow"}
        if content is not None:
            headers["content-type"] = "application/json"
        if self._address.api_key:
            headers["authorization"] = f"Bearer {self._address.api_key}"
        began = self._monotonic()
        attempt = 0
        # Redirects are not followed, and no proxy is used for this machine: the key is for this server only.
        with httpx.Client(
            base_url=self._address.url,
            headers=headers,
            timeout=self._timeout_seconds,
            verify=self._tls(),
            trust_env=not is_loopback(urlsplit(self._address.url).hostname or ""),
        ) as client:
            while True:
                fact, least_seconds = "", 0.0
                try:
                    response = client.request(method, path, content=content)
                except httpx.HTTPError as exc:
                    fact = f"{type(exc).__name__}: {exc}"
                else:
                    if response.is_success:
                        return _json(response, self._address.url)
                    fact = _problem(response)
                    if response.status_code not in _TRANSIENT:
                        raise RequestRefusedError(f"{self._address.url}{path}: {fact}")
                    least_seconds = _retry_after_seconds(response)
                pause_seconds = max(
                    least_seconds,
                    min(_PAUSE_SECONDS_MAX, _FIRST_PAUSE_SECONDS * 2**attempt) * random.uniform(0.5, 1.0),
                )
                if self._monotonic() - began + pause_seconds > self._retry_seconds:
                    raise ServerUnavailableError(f"{self._address.url}{path}: {fact}")
                attempt += 1
                self._sleep(pause_seconds)

    def _tls(self) -> ssl.SSLContext | bool:
        if not self._address.url.startswith("https:"):
            return False
        try:
            return ssl.create_default_context(cafile=self._address.ca)
        except OSError as exc:
            raise AddressError(f"ca {self._address.ca}: no readable PEM certificates") from exc


def _json(response: httpx.Response, url: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return response.json()
    except ValueError as exc:
        raise RequestRefusedError(f"{url}: the response is not JSON; is it a Headgate server?") from exc


def _problem(response: httpx.Response) -> str:
    """Return what a problem document says, or the status alone."""
    try:
        found = response.json()
        return f"{response.status_code} {found['code']}: {found['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"


def _retry_after_seconds(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
