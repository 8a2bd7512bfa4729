"""The installed program as a subprocess: run once, or served until asked to stop."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import pytest

PROGRAM: Final = Path(sys.executable).parent / "headgate"
START_SECONDS_MAX: Final = 30.0
# A machine with more programs than cores takes its time.
READY_SECONDS_MAX: Final = 180.0
# Where programs keep their state, if it is not in their folder: `conftest.py` fills it.
STORE: Final[dict[str, str]] = {}
IS_ON_DYNAMODB: Final = os.environ.get("HEADGATE_TEST_ACCEPTANCE_STORE") == "dynamodb"
# For a test that alters the state behind the back of the programs.
OPENS_SQLITE_FILE: Final = pytest.mark.skipif(IS_ON_DYNAMODB, reason="it alters the file of SQLite, and none is there")
_READY: Final = re.compile(r"headgate ready  http=(https?://\S+)  grpc=(\S+)  home=(\S+)\n")


def run(*arguments: str | Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `headgate` in `folder` until it ends."""
    return subprocess.run(
        [PROGRAM, *arguments],
        cwd=folder,
        env=_environ(environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


_AS_NOBODY: Final = """
import os, sys
from headgate.cli.main import load, main
from headgate.cli.session import Session
# Loads every module while they can still be read.
load()(["doctor", "--json", "--home", sys.argv.pop(1)], obj=Session({}), standalone_mode=False)
print(flush=True)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
main()
"""


def run_as_nobody(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `headgate` as a user who is not root, who may do anything. Others are let into `folder`."""
    for parent in (folder, *folder.parents):
        if parent != Path("/") and parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    ended = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, folder / "none", *arguments],
        cwd=folder,
        env=_environ({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ended.stdout = ended.stdout.split("\n\n", 1)[1]
    return ended


def until(condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS_MAX) -> None:
    """Wait for `condition`, and fail with `what` if it does not come true in time."""
    begun_at = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun_at
        assert waited < seconds_max, f"{what}: not within {seconds_max:g} s"
        # Who asks all the time takes the processor from who is to do it.
        time.sleep(min(max(0.01, waited / 10), 0.05))


class Server:
    """A running `headgate up` on free ports, with its files in `folder`."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        # For programs beside a server that several tests share: `STORE` is that of the present test.
        self.store: Final = dict(STORE)
        ports = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [PROGRAM, "up", *ports, *arguments], cwd=folder, env=_environ(environ), stdout=out, stderr=err
            )
        until(
            lambda: "\n" in self.stdout or self.process.poll() is not None,
            "the line that says it is ready",
            READY_SECONDS_MAX,
        )
        ready = _READY.fullmatch(self.stdout)
        assert ready is not None, f"not ready: {self.stdout!r}\n{self.stderr}"
        self.url, self.grpc, self.home = ready.group(1), ready.group(2), Path(ready.group(3))

    @property
    def stdout(self) -> str:
        return self._stdout.read_text()

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def get(self, path: str) -> Any:
        """Return what the API answers. To poll it costs far less than to run the program again and again."""
        answer = httpx.get(f"{self.url}/api/v1{path}", timeout=20.0)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self, seconds_max: float = 15.0) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self.process.wait(seconds_max)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        # A watchdog outlives a server that is killed.
        for pid in watchdogs_of(self.home):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def watchdogs_of(home: Path) -> list[int]:
    """Return the processes that are the watchdog of a home."""
    wanted = [b"--home", os.fsencode(home)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # It may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            arguments = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if b"watchdog" in arguments and arguments[-2:] == wanted:
                found.append(int(process.name))
    return found


def _environ(more: dict[str, str]) -> dict[str, str]:
    # Wide enough that no sentence is broken over two lines.
    return {"PATH": os.environ["PATH"], "COLUMNS": "400", **STORE, **more}
