"""A server under attack: the installed program with required authentication, and callers of several roles."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.acceptance.program import PROGRAM, START_SECONDS_MAX, until, watchdogs_of

_READY = re.compile(r"headgate ready  http=(https?://\S+)  grpc=(\S+)  home=(\S+)\n")


class Reply(NamedTuple):
    """Status and decoded body of a response."""

    status: int
    body: Any

    @property
    def text(self) -> str:
        return json.dumps(self.body)


class Target:
    """A running server, started in `cwd`, with one API key for each role."""

    def __init__(self, folder: Path, *, cwd: Path, roles: Sequence[str], **environ: str) -> None:
        self.home = folder / "home"
        self.folder = folder
        self._environ = {
            "PATH": os.environ["PATH"],
            "COLUMNS": "400",
            "HEADGATE_HOME": str(self.home),
            "HEADGATE_AUTH_REQUIRED": "true",
            **environ,
        }
        self.keys = {"admin": self._first_key()}
        out, err = folder / "stdout", folder / "stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self.process = subprocess.Popen(
                [PROGRAM, "up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
                cwd=cwd,
                env=self._environ,
                stdout=stdout,
                stderr=stderr,
            )
        until(lambda: "\n" in out.read_text() or self.process.poll() is not None, "the server", START_SECONDS_MAX)
        ready = _READY.fullmatch(out.read_text())
        assert ready is not None, err.read_text()
        self.url = ready.group(1)
        for role in roles:
            issued = self.call("admin", "POST", "/api-keys", {"principal": role, "roles": [role]})
            self.keys[role] = issued.body["text"]

    def call(
        self,
        role: str,
        method: str,
        path: str,
        body: object = None,
        more: Mapping[str, str] | None = None,
        *,
        prefix: str = "/api/v1",
    ) -> Reply:
        content = None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.keys[role]}", "content-type": "application/json", **(more or {})}
        request = urllib.request.Request(f"{self.url}{prefix}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return Reply(response.status, json.loads(response.read() or b"null"))
        except urllib.error.HTTPError as exc:
            return Reply(exc.code, json.loads(exc.read() or b"null"))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pid in watchdogs_of(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _first_key(self) -> str:
        made = subprocess.run(
            [PROGRAM, "api-key", "first", "--json"],
            cwd=self.folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return str(json.loads(made.stdout)["text"])
