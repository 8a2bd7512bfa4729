"""File channel: appends one JSON object per line to a file, and rotates it by size."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import msgspec

from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.enums import AlertAction
from headgate.notify.messages import Message

BYTES_MAX: Final = 10_000_000
KEPT: Final = 5
_MODE: Final = 0o600


class FileChannel:
    """Appends to a file. `kept` rotated files stay beside it as `.1`, `.2` …, newest first.

    Several processes may write to the same file: each line is one write at its end.
    """

    actions = frozenset(AlertAction)

    def __init__(self, name: str, path: Path, *, bytes_max: int = BYTES_MAX, kept: int = KEPT) -> None:
        self.name = name
        self._path = path.expanduser().absolute()
        self._bytes_max = bytes_max
        self._kept = kept
        self._lock = threading.Lock()

    def send(self, message: Message) -> str:
        """Append the message. Raises `TransientError` if the file cannot be written."""
        record = {"at": instant(message.at_ms), **msgspec.to_builtins(message)}
        written = msgspec.json.encode(record) + b"\n"
        try:
            with self._lock:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._rotate(len(written))
                self._append(written)
        except OSError as exc:
            raise TransientError(
                f"channel {self.name}: {self._path}: {exc.strerror}; free some space or correct the path"
            ) from exc
        return ""

    def _append(self, written: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            left = memoryview(written)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)

    def _rotate(self, more_bytes: int) -> None:
        """Rotate the file if it would grow too large."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if not size or size + more_bytes <= self._bytes_max:
            return
        for number in range(self._kept, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if not self._kept:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
