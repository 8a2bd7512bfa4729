"""Backup files: one tar with the database, blobs and keys, and a manifest with their digests as its last part."""

from __future__ import annotations

import errno
import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Final

import msgspec

from headgate import typed_decode
from headgate.errors import AlreadyExistsError, CorruptionError, NotFoundError, UserError
from headgate.store.blobs.folder import check_blob_name
from headgate.store.durable_files import sync_folder
from headgate.store.sqlite.partial_folder import disk_errors, partial_folder

FORMAT: Final = 1
DATABASE: Final = "headgate.db"
KEYS: Final = "keys.json"
BLOBS: Final = "blobs/"
MANIFEST: Final = "manifest.json"
MANIFEST_DIGEST: Final = "manifest.sha256"
_CHUNK_BYTES: Final = 1 << 20
_MANIFEST_BYTES_MAX: Final = 1 << 30


class StoredFile(msgspec.Struct, frozen=True):
    """Size and SHA-256 digest of one part of a backup."""

    bytes: int
    sha256: str


class AuditHead(msgspec.Struct, frozen=True):
    """The end of one audit chain at the time of the backup."""

    chain: int
    sequence: int
    hash: str
    at: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a backup, from which a restore verifies it.

    `rows` has the number of rows of each table, `files` every other part, `missing_blobs` the referenced blobs that the
    home did not have. `blobs_in` is the bucket of the blobs, if they are not in the backup.
    """

    format: int
    build: str
    schema_format: int
    created_at: str
    table_names: dict[str, str]
    rows: dict[str, int]
    audit_heads: list[AuditHead]
    key_ids: list[str]
    with_keys: bool
    files: dict[str, StoredFile]
    blobs_in: str | None = None
    missing_blobs: list[str] = []


class BackupWriter:
    """Writes the parts of a backup one after the other, and records their digests."""

    def __init__(self, file: IO[bytes], *, at_seconds: float) -> None:
        self.files: dict[str, StoredFile] = {}
        self._at_seconds = int(at_seconds)
        self._tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by finish

    def add_file(self, name: str, path: Path) -> None:
        """Add the content of a file."""
        with path.open("rb") as source:
            self._add(name, source, os.fstat(source.fileno()).st_size)

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a part from memory."""
        self._add(name, BytesIO(content), len(content))

    def finish(self, manifest: Manifest) -> None:
        """Add the manifest and its digest, and end the tar."""
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        self.add_bytes(MANIFEST, content)
        self.add_bytes(MANIFEST_DIGEST, hashlib.sha256(content).hexdigest().encode())
        self._tar.close()

    def _add(self, name: str, source: IO[bytes], size: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode, entry.mtime = size, 0o600, self._at_seconds
        hashed = _HashedReader(source)
        self._tar.addfile(entry, hashed)
        self.files[name] = StoredFile(size, hashed.digest.hexdigest())


class _HashedReader:
    """Reads from a file and hashes what it read."""

    def __init__(self, source: IO[bytes]) -> None:
        self.digest = hashlib.sha256()
        self._source = source

    def read(self, size: int = -1, /) -> bytes:
        content = self._source.read(size)
        self.digest.update(content)
        return content


def checked_target(path: Path, home: Path, name: str) -> Path:
    """Return the file to write: `path`, or a file called `name` if it is a folder.

    Raises `AlreadyExistsError` if the file exists, `UserError` for a path inside the home or without its folder.
    """
    path = _absolute(path)
    with disk_errors(path):
        target = path / name if path.is_dir() else path
        folder = target.parent
        if not folder.is_dir():
            raise NotFoundError(f"{folder}: no such folder; create it or name another file")
        if folder.resolve().is_relative_to(home.resolve()):
            raise UserError(f"{target}: inside the home {home}, so one disk failure loses both; name another folder")
        if target.exists() or target.is_symlink():
            raise AlreadyExistsError(f"{target}: exists already, and a backup overwrites nothing; name another file")
    return target


@contextmanager
def new_file(target: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Write a private file that appears under its name when it is complete and on disk, or not at all.

    Yields the file, and a private folder for the time being. Raises `AlreadyExistsError` if the name was taken
    meanwhile.
    """
    with partial_folder(target.parent) as folder, disk_errors(target):
        draft = folder / "backup.tar"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file, folder
            file.flush()
            os.fsync(file.fileno())
        _publish(draft, target)


def _publish(draft: Path, target: Path) -> None:
    try:
        os.link(draft, target)
    except FileExistsError as exc:
        raise AlreadyExistsError(f"{target}: was created meanwhile; name another file") from exc
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links.
        draft.rename(target)
    sync_folder(target.parent)


def extract(source: Path, folder: Path) -> Manifest:
    """Extract a backup into an empty folder and verify every digest. Returns its manifest.

    Raises `NotFoundError` without the file, and `CorruptionError` if it is damaged, incomplete or has unknown parts.
    """
    source = _absolute(source)
    if not source.is_file():
        raise NotFoundError(f"{source}: no such file; name a file that 'headgate backup' wrote")
    found: dict[str, StoredFile] = {}
    texts: dict[str, bytes] = {}
    try:
        with disk_errors(folder), tarfile.open(source, mode="r:") as tar:
            for entry in tar:
                _check_entry(source, entry, found)
                content = tar.extractfile(entry)
                assert content is not None, "a regular file has content"
                if entry.name in (MANIFEST, MANIFEST_DIGEST):
                    texts[entry.name] = content.read()
                    found[entry.name] = StoredFile(entry.size, hashlib.sha256(texts[entry.name]).hexdigest())
                else:
                    found[entry.name] = _written(content, folder / entry.name)
            _sync_folders(folder)
    except (tarfile.TarError, EOFError, ValueError, UnicodeError) as exc:
        raise _damaged(source, f"not a whole tar file: {exc}") from exc
    manifest = _manifest(source, texts)
    _compare(source, manifest.files, {name: each for name, each in found.items() if name not in texts})
    return manifest


def _check_entry(source: Path, entry: tarfile.TarInfo, found: Mapping[str, StoredFile]) -> None:
    name = entry.name
    if entry.type != tarfile.REGTYPE or name in found:
        raise _damaged(source, f"its part {name!r} is repeated or not a regular file")
    if name in (DATABASE, KEYS):
        return
    if name in (MANIFEST, MANIFEST_DIGEST) and entry.size <= _MANIFEST_BYTES_MAX:
        return
    if not name.startswith(BLOBS):
        raise _damaged(source, f"its part {name!r} is unknown")
    try:
        check_blob_name(name.removeprefix(BLOBS))
    except UserError as exc:
        raise _damaged(source, exc.message) from exc


def _written(content: IO[bytes], path: Path) -> StoredFile:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        while piece := content.read(_CHUNK_BYTES):
            digest.update(piece)
            size += len(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return StoredFile(size, digest.hexdigest())


def _sync_folders(folder: Path) -> None:
    for parent, _, _ in os.walk(folder):
        sync_folder(Path(parent))


def _manifest(source: Path, texts: Mapping[str, bytes]) -> Manifest:
    content = texts.get(MANIFEST)
    if content is None or MANIFEST_DIGEST not in texts:
        raise _damaged(source, "its manifest, which is written last, is missing")
    if texts[MANIFEST_DIGEST] != hashlib.sha256(content).hexdigest().encode():
        raise _damaged(source, "its manifest does not match its digest")
    with suppress(msgspec.DecodeError):
        stated = msgspec.json.decode(content)
        if isinstance(stated, dict) and isinstance(stated.get("format"), int) and stated["format"] > FORMAT:
            raise UserError(
                f"{source}: written by a newer Headgate (backup format {stated['format']}, this one reads {FORMAT}); "
                "restore it with that version"
            )
    try:
        return typed_decode.from_json(content, Manifest)
    except msgspec.DecodeError as exc:
        raise _damaged(source, f"its manifest is invalid: {exc}") from exc


def _compare(source: Path, stated: Mapping[str, StoredFile], found: Mapping[str, StoredFile]) -> None:
    if DATABASE not in stated:
        raise _damaged(source, "it has no database")
    for name in sorted({*stated, *found}):
        if stated.get(name) != found.get(name):
            fact = "is missing" if name not in found else "does not match its digest"
            raise _damaged(source, f"{name} {fact}")


def _damaged(source: Path, fact: str) -> CorruptionError:
    return CorruptionError(f"{source}: not a usable backup: {fact}; use another backup, nothing was restored")


def _absolute(path: Path) -> Path:
    try:
        if "\0" in str(path) or not str(path).strip():
            raise UserError(f"path {str(path)!r}: not a usable path; name a file")
        return path.expanduser().absolute()
    except RuntimeError as exc:
        raise UserError(f"path {path}: not a usable path: {exc}; use an absolute path") from exc
