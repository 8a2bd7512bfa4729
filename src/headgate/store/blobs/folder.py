"""Blob port and folder backend: large immutable payloads under a name."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from headgate.errors import (
    NotFoundError,
    ReadOnlyStoreError,
    StoreFullError,
    StoreIOError,
    StoreMovedError,
    UserError,
)
from headgate.store.durable_files import sync_folder, write_private

_NAME: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")


class Blobs(Protocol):
    """Payloads by name. A name always has the same content, so writing it again is harmless."""

    def put(self, name: str, content: bytes) -> None:
        """Store `content` durably before returning."""

    def get(self, name: str) -> bytes:
        """Return the content. Raises `NotFoundError` if the blob does not exist."""

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with `prefix`, in order."""

    def delete(self, name: str) -> None:
        """Remove the blob if it exists."""


class FolderBlobs:
    """Blobs as files below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        if not self._folder.parent.is_dir():
            # Creating it would keep a home that was moved away from being moved back.
            raise StoreMovedError(f"blob {name}: {self._folder.parent} was moved or deleted; move it back")
        try:
            _make_folder(path.parent)
            write_private(draft, content)
            draft.replace(path)
            # The folder must be synced before returning, because a row may then reference the name.
            sync_folder(path.parent)
        except OSError as exc:
            with suppress(OSError):
                draft.unlink()
            if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreFullError(f"blob {name}: no space left in {self._folder}; free space and try again") from exc
            if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise ReadOnlyStoreError(f"blob {name}: {self._folder} cannot be written; make it writable") from exc
            raise StoreIOError(f"blob {name}: cannot be written to {self._folder}: {exc.strerror}") from exc

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
            if not self._folder.parent.is_dir():
                raise StoreMovedError(f"blob {name}: {self._folder.parent} was moved or deleted; move it back") from exc
            raise NotFoundError(f"blob {name}: not in {self._folder}") from exc
        except OSError as exc:
            raise StoreIOError(f"blob {name}: cannot be read from {self._folder}: {exc.strerror}") from exc

    def list(self, prefix: str) -> Iterator[str]:
        check_blob_prefix(prefix)
        folder = self._folder / prefix.rpartition("/")[0]
        names = (
            (Path(parent) / file).relative_to(self._folder).as_posix()
            for parent, _, files in os.walk(folder)
            for file in files
            if not file.startswith(".")
        )
        yield from sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        try:
            self._path(name).unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return
        except OSError as exc:
            raise StoreIOError(f"blob {name}: cannot be deleted from {self._folder}: {exc.strerror}") from exc

    def _path(self, name: str) -> Path:
        check_blob_name(name)
        return self._folder / name


def check_blob_name(name: str) -> None:
    """Refuse a name that could leave its folder or bucket prefix. Raises `UserError`."""
    if not _NAME.fullmatch(name) or len(name) > 900:
        raise UserError(
            f"blob name {name!r}: use letters, digits and _ = . - in parts joined by '/', no part starting with '.'"
        )


def check_blob_prefix(prefix: str) -> None:
    """Refuse a prefix that could leave its folder or bucket prefix. Raises `UserError`."""
    if prefix.startswith("/") or any(part in (".", "..") for part in prefix.split("/")):
        raise UserError(f"blob prefix {prefix[:80]!r}: use parts joined by '/', without '.' and '..' as parts")


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents, each synced before a blob is written."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
