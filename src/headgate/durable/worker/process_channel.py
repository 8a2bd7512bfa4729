"""The channel between a process and one that it has started to run code of users: messages that arrive whole.

Each is JSON with its length in front. That code can write into the same descriptor, and copy its process: whatever is
no message is the end of what can be heard, and takes nothing with it that was said before.
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


def packed(message: Struct) -> bytes:
    """Return a message as it travels."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class ProcessChannel(Generic[_M]):
    """One end of the connection. One thread hears what `decoder` reads, any may send."""

    def __init__(self, end: socket.socket, decoder: msgspec.json.Decoder[_M]) -> None:
        # Whether something was heard that is no message: nobody knows where the next one would begin.
        self.is_garbled = False
        self._end = end
        self._decoder = decoder
        self._in = bytearray()
        self._out = bytearray()
        self._sending = threading.Lock()
        self._is_copy = False

    def keep_to_this_process(self) -> None:
        """Have no copy of this process speak in its name, nor hide from the other end that this one is gone."""
        self._end.set_inheritable(False)
        os.register_at_fork(after_in_child=self._forget)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._end.fileno()

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent until the other end has read more."""
        return bool(self._out)

    def send(self, *messages: Struct) -> None:
        """Send messages, waiting as long as it takes. Raises `OSError` if the other end is gone, or this is a fork."""
        if self._is_copy:
            # Before the lock, which the original may have held when it was copied.
            raise OSError("a fork of the process that runs the code: only the process itself can speak with its worker")
        # Code of users may speak from several threads, and a message must not be cut by another.
        with self._sending:
            self._end.sendall(b"".join(map(packed, messages)))

    def post(self, *messages: Struct) -> None:
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

    def heard(self) -> list[_M]:
        """Return the messages that are whole, maybe none, after waiting for something to be said.

        Raises `EOFError` if the other end is gone or makes no sense, once all that it had said is returned, and
        `OSError`.
        """
        messages = []
        for body in self._bodies():
            try:
                messages.append(self._decoder.decode(body))
            except (ValueError, RecursionError):
                self.is_garbled = True
                break
        if self.is_garbled and not messages:
            raise EOFError
        return messages

    def _bodies(self) -> list[bytes]:
        read = b"" if self.is_garbled else self._end.recv(_READ_BYTES)
        if not read:
            raise EOFError
        self._in += read
        bodies, at = [], 0
        while len(self._in) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, at)
            if length > _MESSAGE_BYTES_MAX:
                self.is_garbled = True
                break
            if len(self._in) - at - _LENGTH.size < length:
                break
            bodies.append(bytes(self._in[at + _LENGTH.size : at + _LENGTH.size + length]))
            at += _LENGTH.size + length
        del self._in[:at]
        return bodies

    def _forget(self) -> None:
        self._is_copy = True
        self.close()

    def close(self) -> None:
        """Let go of this end."""
        self._end.close()
