"""Blobs: large immutable payloads under a name, in a folder here or in S3 (`s3`)."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from headgate.errors import NotFoundError, StoreFullError, StoreIOError, UserError

_NAME: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*")


class Blobs(Protocol):
    """Whole payloads by name. A name is written with one content only, so writing it again is harmless."""

    def put(self, name: str, content: bytes) -> None:
        """Store `content` durably before returning."""

    def get(self, name: str) -> bytes:
        """Return the content. Raises `NotFoundError` if there is no such blob."""

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with `prefix`, in order."""

    def delete(self, name: str) -> None:
        """Remove the blob, if it is there."""


class FolderBlobs:
    """Blobs as files below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            _make_folder(path.parent)
            # Payloads may be confidential: for the owner alone, whatever the folder around them allows.
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
            # The name is durable only once its folder is: a row may point to it the moment we return.
            sync_folder(path.parent)
        except OSError as exc:
            with suppress(OSError):
                draft.unlink()
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"blob {name}: no space left in {self._folder}; free some and try again") from exc
            raise StoreIOError(f"blob {name}: cannot be written to {self._folder}: {exc.strerror}") from exc

    def get(self, name: str) -> bytes:
        try:
            return self._path(name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
            raise NotFoundError(f"blob {name}: not in {self._folder}") from exc
        except OSError as exc:
            raise StoreIOError(f"blob {name}: cannot be read from {self._folder}: {exc.strerror}") from exc

    def list(self, prefix: str) -> Iterator[str]:
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


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each durable before a blob is in it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, as syncing a file does for its content."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
