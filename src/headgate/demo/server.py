"""The server of the demo: found if it is still running, else started, and called over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from headgate.clock import Clock
from headgate.errors import FatalError

READY_SECONDS_MAX: Final = 60.0
_CALL_SECONDS_MAX: Final = 30.0
_PAUSE_SECONDS: Final = 0.2
_GONE: Final = 404
_BUSY: Final = frozenset({429, 502, 503, 504})


class Api:
    """Calls the API of the demo's server. A call is repeated while the server is starting or busy."""

    def __init__(self, url: str, clock: Clock) -> None:
        self.url = url
        self._clock = clock
        self._http = httpx.Client(base_url=f"{url}/api/v1", timeout=10, trust_env=False)

    def get(self, path: str, **query: Any) -> Any:  # noqa: ANN401 - JSON of the API
        """Return an answer, or None if it does not exist."""
        answer = self._call("GET", path, params=query)
        return None if answer.status_code == _GONE else self._read(answer)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON of the API
        """Post a request."""
        return self._read(self._call("POST", path, json=body))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON of the API
        """Put a value."""
        return self._read(self._call("PUT", path, json=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON of the API
        """Change a part of something."""
        return self._read(self._call("PATCH", path, json=body))

    def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create something, unless it exists already: a repeated step of the story changes nothing."""
        answer = self._call("POST", path, json=body)
        if answer.status_code != httpx.codes.CONFLICT:
            self._read(answer)

    def is_ready(self) -> bool:
        """Whether the server answers and is ready."""
        try:
            return httpx.get(f"{self.url}/health/ready", timeout=2, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _call(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own
        ends_at = self._clock.monotonic() + _CALL_SECONDS_MAX
        while True:
            try:
                answer = self._http.request(method, quote(path, safe="/:?=&-._~"), **more)
            except httpx.HTTPError as exc:
                if self._clock.monotonic() > ends_at:
                    raise FatalError(f"{self.url}: the demo's server does not answer: {exc}") from exc
            else:
                if answer.status_code not in _BUSY or self._clock.monotonic() > ends_at:
                    return answer
            self._clock.sleep(_PAUSE_SECONDS)

    @staticmethod
    def _read(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON of the API
        if not answer.is_success:
            raise FatalError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None


class DemoServer:
    """The server process of a demo home."""

    def __init__(self, home: Path, project: Path, clock: Clock, *, http: str, environ: Mapping[str, str]) -> None:
        self._clock = clock
        self._home = home
        self._project = project
        self._http = http
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Api:
        """Return the API of the server that serves the home; start one if none does. Raises `FatalError`."""
        running = self._running()
        if running is not None:
            return running
        command = [
            sys.executable, "-m", "headgate", "up", "--home", str(self._home), "--http", self._http,
            "--grpc", "127.0.0.1:0", "--app", "shop_app:app", "--pipelines", "pipelines",
        ]  # fmt: skip
        environ = {**self._environ, "HEADGATE_PROJECT": str(self._project)}
        log = (self._home / "server.log").open("ab")
        self._process = subprocess.Popen(
            command, cwd=self._project, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        log.close()
        ends_at = self._clock.monotonic() + READY_SECONDS_MAX
        while self._clock.monotonic() < ends_at:
            if self._process.poll() is not None:
                raise FatalError(f"the server ended with exit code {self._process.returncode}:\n{self._log_end()}")
            found = self._running()
            if found is not None:
                return found
            self._clock.sleep(_PAUSE_SECONDS)
        raise FatalError(f"the server is not ready after {READY_SECONDS_MAX:g} s:\n{self._log_end()}")

    def stop(self) -> None:
        """Stop the server if this process started it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)

    def is_running(self) -> bool:
        """Whether the server has not ended, as far as this process knows."""
        return self._process is None or self._process.poll() is None

    def _running(self) -> Api | None:
        try:
            url = json.loads((self._home / "server.json").read_text())["http"]
        except (OSError, ValueError, KeyError):
            return None
        api = Api(url, self._clock)
        return api if api.is_ready() else None

    def _log_end(self) -> str:
        return (self._home / "server.log").read_text(errors="replace")[-2_000:]
