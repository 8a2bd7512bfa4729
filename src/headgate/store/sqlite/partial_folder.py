"""Partial folders: private folders for unfinished files, which later runs delete after a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headgate.errors import HeadgateError, ReadOnlyStoreError, StoreFullError, StoreIOError

PREFIX: Final = ".headgate-partial-"


@contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """Create a private folder in `parent`, and delete it at the end, also with its content.

    The process holds a lock on its folder; folders of processes that died are deleted first.
    """
    with disk_errors(parent):
        _delete_abandoned(parent)
        folder, lock = _create(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Translate an `OSError` into the error that names `path`, the fact and the remedy."""
    try:
        yield
    except OSError as exc:
        raise _translated(exc, path) from exc


def _translated(exc: OSError, path: Path) -> HeadgateError:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"{path}: no space left; free some and try again, nothing was changed")
    if exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ReadOnlyStoreError(f"{path}: cannot be written: {exc.strerror}; make it writable or name another folder")
    return StoreIOError(f"{path}: cannot be used: {exc.strerror or exc}; check the path, the disk and its permissions")


def _create(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Another process may have deleted it before it was locked.
        if folder.exists():
            return folder, lock
        os.close(lock)


def _delete_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
