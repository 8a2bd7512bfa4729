"""Jobs: what a worker and its child processes say to each other, and how it travels.

Each message is JSON with its length in front. A child is told of jobs and works them off in order; it answers each with
how it ended, and says in between how far it is.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Final

import msgspec
from msgspec import Struct

_LENGTH: Final = struct.Struct("!I")
_READ_BYTES: Final = 1 << 18
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024


class Job(Struct, frozen=True, tag="job", omit_defaults=True):
    """A chunk to work on."""

    key: int
    run_id: str
    chunk_id: str
    group: str
    lane: str
    attempt: int
    start: int
    items: int
    source: str
    input_key: str
    input: str | None = None
    deferred: str | None = None
    params: str | None = None
    each: bool = False
    item_timeout_seconds: float | None = None


class Ready(Struct, frozen=True, tag="ready"):
    """The handler is loaded, from this file."""

    file: str = ""


class Unusable(Struct, frozen=True, tag="unusable"):
    """The handler cannot be loaded."""

    message: str


class Progress(Struct, frozen=True, tag="progress"):
    """How many items of a job are done."""

    key: int
    items_done: int


class Done(Struct, frozen=True, tag="done", omit_defaults=True):
    """A job that went well."""

    key: int
    duration_ms: int
    memory_mb: int
    output: str | None = None
    output_key: str | None = None
    item_errors: dict[int, str] = {}
    deferred: list[int] = []


class Failed(Struct, frozen=True, tag="failed", omit_defaults=True):
    """A job that did not."""

    key: int
    duration_ms: int
    error_class: str
    message: str
    is_final: bool = False
    item_errors: dict[int, str] = {}


Answer = Ready | Unusable | Progress | Done | Failed
_encoder: Final = msgspec.json.Encoder()
_jobs: Final = msgspec.json.Decoder(Job)
_answers: Final = msgspec.json.Decoder(Answer)


def packed(message: Job | Answer) -> bytes:
    """Return a message as it travels."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Channel:
    """One end of the connection between a worker and a child."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._in = bytearray()
        self._out = bytearray()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._end.fileno()

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent until the other end has read more."""
        return bool(self._out)

    def send(self, *messages: Job | Answer) -> None:
        """Send messages, waiting as long as it takes. Raises `OSError` if the other end is gone."""
        # Handlers may speak from several threads, and a message must not be cut by another.
        with self._sending:
            self._end.sendall(b"".join(map(packed, messages)))

    def post(self, *messages: Job | Answer) -> None:
        """Send messages as far as the other end takes them now; `flush` sends the rest. Raises `OSError`."""
        for message in messages:
            self._out += packed(message)
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the other end takes it now. Raises `OSError` if it is gone."""
        while self._out:
            try:
                sent = self._end.send(self._out, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._out[:sent]

    def answers(self) -> list[Answer]:
        """Return what a child has said since. Raises `EOFError` if it is gone and has said all."""
        return [_answers.decode(body) for body in self._bodies()]

    def jobs(self) -> list[Job]:
        """Return the jobs that have come, waiting for the first. Raises `EOFError` if the worker is gone."""
        while True:
            found = [_jobs.decode(body) for body in self._bodies()]
            if found:
                return found

    def _bodies(self) -> list[bytes]:
        read = self._end.recv(_READ_BYTES)
        if not read:
            raise EOFError
        self._in += read
        bodies, at = [], 0
        while len(self._in) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, at)
            if length > MESSAGE_BYTES_MAX:
                raise msgspec.DecodeError(f"a message of {length} bytes: something else has been written here")
            if len(self._in) - at - _LENGTH.size < length:
                break
            bodies.append(bytes(self._in[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        del self._in[:at]
        return bodies

    def close(self) -> None:
        """Let go of this end."""
        self._end.close()
