"""Process channel: exchanges whole messages between a process and a child process that runs user code.

A message is JSON with a length prefix. User code can write to the same descriptor or fork its process: the first
corrupt frame ends the channel, and every message before it is still delivered.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

_M = TypeVar("_M")
_LENGTH: Final = struct.Struct("!I")
_READ_BYTES: Final = 1 << 18
_MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_encoder: Final = msgspec.json.Encoder()


def pack(message: Struct) -> bytes:
    """Return a message as a frame: its length, then its JSON."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class ProcessChannel(Generic[_M]):
    """One end of the connection. One thread receives messages, decoded by `decoder`; any thread may send."""

    def __init__(self, end: socket.socket, decoder: msgspec.json.Decoder[_M]) -> None:
        # Whether a corrupt frame was received, after which the start of the next one is unknown.
        self.is_corrupt = False
        self._end = end
        self._decoder = decoder
        self._in = bytearray()
        self._out = bytearray()
        self._sending = threading.Lock()
        self._is_fork = False

    def close_on_fork(self) -> None:
        """Close this end in every fork, so that a fork can neither send nor keep the connection open."""
        self._end.set_inheritable(False)
        os.register_at_fork(after_in_child=self._close_in_fork)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._end.fileno()

    @property
    def is_full(self) -> bool:
        """Whether messages are buffered until the other end has read more."""
        return bool(self._out)

    def send(self, *messages: Struct) -> None:
        """Send messages, and block until they are sent. Raises `OSError` if the other end is gone, or in a fork."""
        if self._is_fork:
            # Before the lock, which the parent may have held during the fork.
            raise OSError("a fork of the process that runs the code; only the process itself can message its worker")
        # User code may send from several threads, and frames must not interleave.
        with self._sending:
            self._end.sendall(b"".join(map(pack, messages)))

    def post(self, *messages: Struct) -> None:
        """Send messages without blocking, and buffer the rest for `flush`. Raises `OSError`."""
        for message in messages:
            self._out += pack(message)
        self.flush()

    def flush(self) -> None:
        """Send buffered messages without blocking. Raises `OSError` if the other end is gone."""
        while self._out:
            try:
                sent = self._end.send(self._out, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            del self._out[:sent]

    def receive(self) -> list[_M]:
        """Block until there is input, and return the complete messages, maybe none.

        Raises `EOFError` once all messages were returned and the other end is gone or has sent a corrupt frame, and
        `OSError`.
        """
        messages = []
        for body in self._bodies():
            try:
                messages.append(self._decoder.decode(body))
            except (ValueError, RecursionError):
                self.is_corrupt = True
                break
        if self.is_corrupt and not messages:
            raise EOFError
        return messages

    def _bodies(self) -> list[bytes]:
        read = b"" if self.is_corrupt else self._end.recv(_READ_BYTES)
        if not read:
            raise EOFError
        self._in += read
        bodies, at = [], 0
        while len(self._in) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, at)
            if length > _MESSAGE_BYTES_MAX:
                self.is_corrupt = True
                break
            if len(self._in) - at - _LENGTH.size < length:
                break
            bodies.append(bytes(self._in[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        del self._in[:at]
        return bodies

    def _close_in_fork(self) -> None:
        self._is_fork = True
        self.close()

    def close(self) -> None:
        """Close this end."""
        self._end.close()
