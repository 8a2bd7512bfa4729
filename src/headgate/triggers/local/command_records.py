"""Command records: files that record which command runs for a run, and how it ended.

The lock of a command is inherited by the command and all its descendants. After a server was killed, the lock therefore
shows whether the command is still running, and is released at its end.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.triggers.contract import FailureCategory

T = TypeVar("T")

# Longer than a command may run.
KEPT_SECONDS: Final = 14 * 86_400.0


class Ended(Struct, frozen=True, omit_defaults=True):
    """How a command ended; without a category it succeeded."""

    exit_code: int
    output: str = ""
    category: FailureCategory | None = None
    reason: str = ""


class Begun(Struct, frozen=True):
    """The process group of a command, and its deadline by the wall clock."""

    group: int
    ends_by_seconds: float


class CommandRecord:
    """The files of one command."""

    def __init__(self, folder: Path, key: str) -> None:
        # A hash, because a run id may contain any character.
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self._lock = folder / f"{name}.lock"
        self._begun = folder / f"{name}.begun"
        self._ended = folder / f"{name}.ended"
        self._cancelled = folder / f"{name}.cancelled"

    @contextmanager
    def try_lock(self) -> Iterator[int | None]:
        """Yield the lock as a file descriptor for the command to inherit, or None if another process holds it."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield lock
        finally:
            # Closed, not unlocked: descendants of the command may still hold it.
            os.close(lock)

    def begin(self, begun: Begun) -> None:
        """Record the processes of the command."""
        # Not synced: a power cut ends the command too.
        _write(self._begun, begun, is_synced=False)

    def begun(self) -> Begun | None:
        """Return the process group of the latest command."""
        return _read(self._begun, Begun)

    def end(self, ended: Ended) -> None:
        """Record how the command ended."""
        _write(self._ended, ended, is_synced=True)

    def ended(self) -> Ended | None:
        """Return how the command ended, or None."""
        return _read(self._ended, Ended)

    def cancel(self) -> None:
        """Record that the command was cancelled."""
        self._cancelled.touch(mode=0o600)

    def is_cancelled(self) -> bool:
        """Whether the command was cancelled."""
        return self._cancelled.exists()


def sweep(folder: Path, now_seconds: float) -> None:
    """Delete records past their retention."""
    for path in folder.iterdir():
        # Another process deletes them too.
        with suppress(FileNotFoundError):
            if path.stat().st_mtime < now_seconds - KEPT_SECONDS:
                path.unlink()


def _write(path: Path, value: Struct, *, is_synced: bool) -> None:
    beside = path.with_suffix(f"{path.suffix}.{os.getpid()}.part")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(value))
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    beside.replace(path)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return typed_decode.from_json(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
