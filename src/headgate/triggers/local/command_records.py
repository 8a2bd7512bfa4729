"""Command records: the files of each command, from its start to the end of its retention.

A command has a folder with its start, its end, its output and its lock. The lock is held by the supervisor, the command
and its descendants. A file in `open` lists each command whose end the run has not taken note of yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.triggers.contract import FailureCategory
from headgate.triggers.local.command_fate import Begun, Ended, Sighting
from headgate.triggers.local.command_supervisor import boot_id, process_start, write_record

T = TypeVar("T")

# Longer than a command may run.
KEPT_SECONDS: Final = 14 * 86_400.0
OPEN: Final = "open"
FIFO: Final = "ended.fifo"


class Dropped(Struct, frozen=True):
    """The range of an output that was dropped because the output grew beyond its limit."""

    start: int
    end: int


class FlatEnded(Struct, frozen=True, omit_defaults=True):
    """The end of a command as recorded before supervisors; without a category it succeeded."""

    exit_code: int
    output: str = ""
    category: FailureCategory | None = None
    reason: str = ""


class FlatBegun(Struct, frozen=True):
    """The process group of a command as recorded before supervisors."""

    group: int


class CommandRecord:
    """The files of one command."""

    def __init__(self, folder: Path, key: str) -> None:
        self.key = key
        # A hash, because a run id may contain any character.
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        self.folder = folder / name
        self.output = self.folder / "output"
        self._open = folder / OPEN / name
        self._lock = self.folder / "lock"
        self._begun = self.folder / "begun"
        self._ended = self.folder / "ended"
        self._cancel = self.folder / "cancel"
        self._dropped = self.folder / "dropped"
        # Files of a command that a server ran itself, before supervisors.
        self._flat_lock = folder / f"{name}.lock"
        self._flat_begun = folder / f"{name}.begun"
        self._flat_ended = folder / f"{name}.ended"

    def create(self) -> None:
        """Create the folder, and list the command as open."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._open.parent.mkdir(mode=0o700, exist_ok=True)
        self._open.write_text(self.key)

    def exists(self) -> bool:
        """Whether the command has a folder."""
        return self.folder.is_dir()

    def close(self) -> None:
        """Note that the run knows the end."""
        self._open.unlink(missing_ok=True)

    @contextmanager
    def try_lock(self) -> Iterator[int | None]:
        """Yield the lock as a file descriptor for the supervisor to inherit, or None if another process holds it."""
        with _locked(self._lock) as lock:
            yield lock

    def is_locked(self) -> bool:
        """Whether a process of the command, or one that is about to start it, has the lock."""
        with self.try_lock() as lock:
            return lock is None

    def begun(self) -> Begun | None:
        """Return the start, or None. An empty one, which only a power cut leaves, is of another boot."""
        begun = _read(self._begun, Begun)
        return _OF_ANOTHER_BOOT if begun is None and self._begun.exists() else begun

    def heartbeat_ms(self) -> int | None:
        """Return the last heartbeat of the supervisor, or None."""
        try:
            return int(self._begun.stat().st_mtime * 1000)
        except FileNotFoundError:
            return None

    def ended(self) -> Ended | None:
        """Return the end, or None."""
        return _read(self._ended, Ended)

    def end(self, ended: Ended) -> None:
        """Record the end of a command whose supervisor is gone."""
        write_record(str(self._ended), msgspec.to_builtins(ended))

    def dropped(self) -> Dropped | None:
        """Return the range that was dropped from the output, or None."""
        return _read(self._dropped, Dropped)

    def request_cancel(self) -> None:
        """Record that the command is to end, or not to start."""
        self._cancel.touch(mode=0o600)

    def is_cancelled(self) -> bool:
        """Whether a cancel was requested."""
        return self._cancel.exists()

    def sighting(self, begun: Begun | None) -> Sighting:
        """Return the boot, the processes on record and the lock as they are now."""
        return Sighting(
            boot_id=boot_id(),
            pid_start=None if begun is None else process_start(begun.pid),
            supervisor_start=None if begun is None else process_start(begun.supervisor),
            is_locked=self.is_locked(),
        )

    # Commands that a server ran itself, before supervisors.

    def flat_ended(self) -> FlatEnded | None:
        """Return the end as an earlier build recorded it, or None."""
        return _read(self._flat_ended, FlatEnded)

    def is_flat_begun(self) -> bool:
        """Whether an earlier build started the command."""
        return self._flat_begun.exists()

    def flat_group(self) -> int | None:
        """Return the process group of a command that an earlier build started, or None."""
        begun = _read(self._flat_begun, FlatBegun)
        return None if begun is None else begun.group

    def is_flat_locked(self) -> bool:
        """Whether a command that an earlier build started is running."""
        if not self._flat_lock.exists():
            return False
        with _locked(self._flat_lock) as lock:
            return lock is None


def open_keys(folder: Path) -> list[str]:
    """Return the keys of the commands whose end was not taken note of."""
    try:
        paths = list((folder / OPEN).iterdir())
    except FileNotFoundError:
        return []
    keys = []
    for path in paths:
        with suppress(FileNotFoundError):
            keys.append(path.read_text())
    return [key for key in keys if key]


def sweep(folder: Path, now_seconds: float) -> None:
    """Delete records past their retention."""
    for path in folder.iterdir():
        # Another process deletes them too.
        with suppress(FileNotFoundError):
            if path.name == OPEN or path.name == FIFO or _touched_at(path) >= now_seconds - KEPT_SECONDS:
                continue
            if path.is_dir():
                (folder / OPEN / path.name).unlink(missing_ok=True)
                shutil.rmtree(path)
            else:
                path.unlink()


def _touched_at(path: Path) -> float:
    """Return when a record was last written. The heartbeat touches a file, not the folder."""
    paths = [path, *path.iterdir()] if path.is_dir() else [path]
    return max(each.stat().st_mtime for each in paths)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield lock
    finally:
        # Closed, not unlocked: the supervisor and the command may still hold it.
        os.close(lock)


def _read(path: Path, kind: type[T]) -> T | None:
    """Return a record, or None if there is none or a power cut left it empty."""
    try:
        return typed_decode.from_json(path.read_bytes(), kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


_OF_ANOTHER_BOOT: Final = Begun(
    pid=0, pid_start=None, supervisor=0, supervisor_start=None, boot_id="unknown", started_at_ms=0, ends_by_ms=0
)
