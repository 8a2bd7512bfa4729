"""Manifest folder: splits the fan-out of each manifest that is put into a folder.

A manifest that was split moves to `accepted`; an invalid one moves to `refused`, beside a text with the reason. It
moves after the split: a process that dies in between finds it again, with the same id, and splits nothing twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import ConflictError, InvalidPayloadError, OutcomeUnknownError, UserError
from headgate.fanout.core.splitter import Splitter
from headgate.fanout.submissions import MANIFEST_BYTES_MAX, Asked, manifest_id, read_manifest
from headgate.file_roots import FileRoots

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"
REASON: Final = ".reason.txt"
SUFFIX: Final = ".json"
_log = structlog.get_logger(__name__)


class _Found(Struct, frozen=True):
    """A manifest as it was read. A file that is still being written changes afterwards."""

    name: str
    content: bytes
    mtime_ns: int

    @property
    def version(self) -> str:
        return f"{self.name}\0{self.mtime_ns}\0{hashlib.sha256(self.content).hexdigest()}"


class ManifestFolder:
    """Splits the manifests of a folder. For one thread; several processes may watch the same folder."""

    def __init__(self, folder: Path, splitter: Splitter, files: FileRoots | None) -> None:
        """Input files that a manifest names must be below `files`; None: anywhere."""
        self._folder = folder
        self._splitter = splitter
        self._files = files
        # Versions of manifests that could not be parsed when they were last read.
        self._incomplete: dict[str, str] = {}

    def run_once(self) -> int:
        """Split every manifest that is there, and return their number. Raises transient errors of the store."""
        try:
            names = sorted(path.name for path in self._folder.iterdir() if _is_manifest(path.name))
        except FileNotFoundError:
            return 0
        return sum(self._take(name) for name in names)

    def _take(self, name: str) -> bool:
        found = _read(self._folder / name)
        if found is None:
            return False
        location = str(self._folder / name)
        try:
            if len(found.content) > MANIFEST_BYTES_MAX:
                raise InvalidPayloadError(f"manifest {location}: larger than {MANIFEST_BYTES_MAX:,} bytes")
            asked = read_manifest(found.content, location, self._files)
            run_id = self._split(found, asked)
        except OutcomeUnknownError:
            raise
        except (UserError, ConflictError) as exc:
            return self._refuse(found, str(exc))
        self._incomplete.pop(name, None)
        self._move(found, ACCEPTED)
        _log.info("manifest split", manifest=location, run_id=run_id)
        return True

    def _split(self, found: _Found, asked: Asked) -> str:
        run_id = asked.run_id or manifest_id(found.name, found.version)
        order = asked.order
        if order.submitted_by is None:
            order = replace(order, submitted_by=f"manifest {found.name}"[:200])
        return self._splitter.split(order, asked.source, run_id=run_id).run_id

    def _refuse(self, found: _Found, reason: str) -> bool:
        if self._incomplete.get(found.name) != found.version:
            # It may still be written: it is refused if it is the same the next time.
            self._incomplete[found.name] = found.version
            return False
        del self._incomplete[found.name]
        _log.warning("manifest refused", manifest=str(self._folder / found.name), error=reason)
        folder = self._folder / REFUSED
        folder.mkdir(exist_ok=True)
        (folder / f"{found.name}{REASON}").write_text(f"{reason}\n")
        self._move(found, REFUSED)
        return False

    def _move(self, found: _Found, to: str) -> None:
        path, target = self._folder / found.name, self._folder / to
        target.mkdir(exist_ok=True)
        current = _read(path)
        if current is None or current.version != found.version:
            # Moved by another process that watches the folder, or replaced: the new one is split next.
            return
        with contextlib.suppress(FileNotFoundError):
            path.replace(target / found.name)


def _is_manifest(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


def _read(path: Path) -> _Found | None:
    """Return a manifest; None if it is gone, or not a file of its own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return _Found(path.name, file.read(MANIFEST_BYTES_MAX + 1), found.st_mtime_ns)
