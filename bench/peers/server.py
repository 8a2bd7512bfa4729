"""A server that a peer's script runs beside itself. Standard library only: it runs in the peers' environment."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

START_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02
HOST = "127.0.0.1"


class StartError(Exception):
    """A server did not come up. The message has the last line that it wrote."""


def free_ports(count: int) -> list[int]:
    """Return free ports. All are bound until the last is found, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def server(
    command: Sequence[str], *, port: int, log: Path, settings: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run `command` until the block ends. It accepts connections on `port` when the block begins.

    Raises `StartError` if it ends first or takes too long.
    """
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(settings or {})},
        )
    try:
        _await_port(process, port, log)
        yield
    finally:
        # Its folder is thrown away, so there is nothing that an orderly end would save.
        process.kill()
        process.wait()


def _await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError(f"{log.stem} ended with code {process.returncode}: {_last_line(log)}")
        with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(POLL_SECONDS)
    raise StartError(f"{log.stem} did not listen within {START_SECONDS_MAX:.0f} s: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "it wrote nothing"
