"""Supervisor client: asks the fork server of this process for a supervisor, and starts the fork server when needed."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.triggers.local import command_supervisor

# How long a start may take, on a machine that is short of everything.
REPLY_SECONDS: Final = 30.0
_HEADER_BYTES: Final = 4


class SupervisedCommand(Struct, frozen=True, kw_only=True):
    """A command as its supervisor gets it. It holds secrets, and is neither stored nor shown."""

    key: str
    # The folder of its record, and the FIFO that gets its end.
    folder: str
    notify: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: str | None
    timeout: float
    grace: float
    # 0: no limit.
    memory_max: int
    output_bytes_max: int
    secrets: Sequence[str]


class StartReply(Struct, frozen=True):
    """The answer of a supervisor: the process id of the command, or why the system refused it."""

    pid: int | None = None
    errno: int | None = None
    filename: str | None = None


class SupervisorClient:
    """Starts supervisors. Thread-safe. The fork server ends with this object or this process; supervisors do not."""

    def __init__(self) -> None:
        self._sending = threading.Lock()
        self._channel: socket.socket | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def start(self, command: SupervisedCommand, lock: int) -> StartReply | None:
        """Have a command started under a supervisor, which inherits the lock.

        None: no supervisor has answered; the record of the command shows whether it was started. Raises `OSError` if
        the fork server cannot be started.
        """
        # The standard library's encoder: an environment may hold bytes that are no text.
        body = json.dumps(msgspec.to_builtins(command)).encode()
        answer, reply = os.pipe()
        try:
            try:
                self._send(body, [lock, reply])
            finally:
                os.close(reply)
            return _received(answer)
        finally:
            os.close(answer)

    def _send(self, body: bytes, descriptors: list[int]) -> None:
        with self._sending:
            try:
                self._send_once(body, descriptors)
            except (BrokenPipeError, ConnectionResetError):
                # The fork server was killed; it had read no whole request.
                self._close()
                self._send_once(body, descriptors)

    def _send_once(self, body: bytes, descriptors: list[int]) -> None:
        if self._channel is None:
            self._open()
        channel = self._channel
        assert channel is not None, "it was opened"
        head = len(body).to_bytes(_HEADER_BYTES, "big")
        socket.send_fds(channel, [head], descriptors)
        channel.sendall(body)

    def _open(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(REPLY_SECONDS)
        command = [sys.executable, "-I", "-S", command_supervisor.__file__, str(theirs.fileno())]
        with theirs:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self._channel = ours
        self._finalizer = weakref.finalize(self, _end, ours, process)

    def _close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._channel = None


def _received(answer: int) -> StartReply | None:
    content = b""
    while select.select([answer], [], [], REPLY_SECONDS)[0]:
        part = os.read(answer, 65_536)
        if not part:
            break
        content += part
    with suppress(msgspec.DecodeError):
        return typed_decode.from_json(content, StartReply)
    return None


def _end(channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    channel.close()
    # It exits when the channel is closed.
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
