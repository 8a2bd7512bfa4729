"""File roots: the folders below which the server reads files that callers of the API name.

A path is checked twice: resolved before it is opened, and by the path of the open descriptor, so that a link that is
exchanged in between leads nowhere. Headgate's home, hidden files, devices and the kernel's file systems are never read.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from msgspec import Struct

from headgate.errors import NotFoundError

# Devices in /dev are refused as such.
_KERNEL: Final = ("/proc", "/sys")
# Settings may hold secrets.
_SETTINGS_FILE: Final = "headgate.toml"
_F_GETPATH: Final = 50
_PATH_BYTES_MAX: Final = 1024


class FileRoots(Struct, frozen=True):
    """Folders below which files may be read, except in the denied ones. Both are resolved; `file_roots` makes them."""

    roots: tuple[str, ...]
    denied: tuple[str, ...] = ()
    # The project folder, which relative paths mean; empty if there is none.
    project: str = ""

    def absolute(self, given: str) -> Path:
        """Return a path, a relative one below the project folder. Without a project it stays relative."""
        base = self.project or (self.roots[0] if self.roots else "")
        return Path(base, given)

    def open(self, path: Path) -> BinaryIO:
        """Open a file for reading. Raises `NotFoundError` unless it is a file below a root, and `OSError`.

        The error is the same for missing and existing files outside of the roots.
        """
        given = str(path)
        if not path.is_absolute() or ".." in path.parts or "\0" in given:
            raise NotFoundError(f"input {given[:200]!r}: give an absolute path without '..'")
        self._check(path, os.path.realpath(given))
        # Opening a pipe without a writer must not block.
        descriptor = os.open(given, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(descriptor)
            self._check(path, _path_of(descriptor, given, found))
            if not stat.S_ISREG(found.st_mode):
                raise NotFoundError(f"input {path}: it is not a file")
            if found.st_nlink > 1:
                self._refuse_links(path, found)
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "rb")

    def contains(self, real: str) -> bool:
        """Whether a resolved path is below a root and not denied."""
        path = Path(real)
        if path.name == _SETTINGS_FILE or any(path.is_relative_to(folder) for folder in (*self.denied, *_KERNEL)):
            return False
        below = [path.relative_to(root) for root in self.roots if path.is_relative_to(root)]
        return any(not any(part.startswith(".") for part in parts.parts) for parts in below)

    def _check(self, path: Path, real: str) -> None:
        if not self.contains(real):
            allowed = ", ".join(self.roots) or "no folder"
            raise NotFoundError(
                f"input {path}: it is outside of what may be read here ({allowed}, without hidden files, settings and "
                "Headgate's home); move the file there, or add its folder to files.roots"
            )

    def _refuse_links(self, path: Path, found: os.stat_result) -> None:
        """Refuse a hard link to a file of a denied folder."""
        for folder in self.denied:
            for entry in _entries(folder):
                if os.path.samestat(entry, found):
                    raise NotFoundError(f"input {path}: it is a hard link to a file of Headgate's own")


def file_roots(
    roots: Iterable[str | Path], denied: Iterable[str | Path] = (), *, project: Path | None = None
) -> FileRoots:
    """Return roots with every link in them resolved. Relative paths mean the `project` folder."""
    return FileRoots(_resolved(roots), _resolved(denied), "" if project is None else os.path.realpath(project))


def usable_project(configured: Path | None) -> Path | None:
    """Return the project folder: the configured one, or the current folder.

    None if it is the root of the file system, a folder that contains the user's home, or an installation of Python:
    a server that was started there has no project.
    """
    folder = Path(os.path.realpath(Path.cwd() if configured is None else configured))
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    if folder == Path(folder.anchor) or str(folder) in prefixes:
        return None
    try:
        home = Path(os.path.realpath(Path.home()))
    except RuntimeError:
        return folder
    return None if home.is_relative_to(folder) and home != Path(home.anchor) else folder


def _resolved(folders: Iterable[str | Path]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))


def _path_of(descriptor: int, given: str, found: os.stat_result) -> str:
    """Return the real path of an open file."""
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(descriptor, _F_GETPATH, bytes(_PATH_BYTES_MAX)).rstrip(b"\0").decode()
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        # Without /proc: the resolved path must be the same file.
        real = os.path.realpath(given)
        same = os.path.samestat(Path(real).stat(), found)
        return real if same else ""


def _entries(folder: str) -> list[os.stat_result]:
    try:
        path = Path(folder)
        names = [entry.path for entry in os.scandir(folder)] if path.is_dir() else [folder]
        return [os.lstat(name) for name in names]
    except OSError:
        return []
