"""A real Redis for tests: Debian's `redis-server` on a free port of the loopback, keeping nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.ports import free_port

START_SECONDS_MAX: Final = 10.0


class RedisServer:
    """One server process. It can be stopped, killed, paused as if the machine hung, and started again on its port."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, folder: Path) -> RedisServer:
        """Start a server that keeps its files in `folder`, and wait until it answers."""
        server = cls(folder, free_port())
        server.restart()
        return server

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def restart(self) -> None:
        """Start the server again on the same port, empty."""
        assert self._process is None, "the server is still running"
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = ["--bind", "127.0.0.1", "--port", str(self._port), "--save", "", "--appendonly", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["redis-server", *arguments, "--dir", str(self._folder)], stdout=log, stderr=log
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """End the server, whatever state it is in. Stopping twice is allowed."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let the server hang: connections stay open and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It keeps nothing, so there is nothing to wait for.
        self.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(with_signal)
        self._process.wait(10)
        self._process = None

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert self._running().poll() is None, f"redis-server ended; see {self._folder / 'redis.log'}"
            assert time.monotonic() < deadline, f"redis-server does not answer on port {self._port}"
            time.sleep(0.01)
