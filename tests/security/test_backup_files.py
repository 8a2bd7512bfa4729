"""Crafted backup files: a restore writes nothing outside its folder and refuses what a backup never has."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from headgate.errors import CorruptionError
from headgate.store.sqlite import backup_file
from headgate.store.sqlite.backup_file import BackupWriter, Manifest, extract


def write_backup(path: Path, *names: str) -> None:
    """Write a backup with correct digests whose parts have these names."""
    with path.open("wb") as file:
        writer = BackupWriter(file, at_seconds=0)
        for name in names:
            writer.add_bytes(name, b"content")
        writer.finish(manifest(writer))


def manifest(writer: BackupWriter) -> Manifest:
    return Manifest(
        format=1,
        build="1",
        schema_format=1,
        created_at="2026-01-01T00:00:00Z",
        table_names={},
        rows={},
        audit_heads=[],
        key_ids=[],
        with_keys=False,
        files=dict(writer.files),
    )


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/tmp/headgate-outside",
        "blobs/../../outside",
        "blobs/../headgate.db",
        "blobs//etc/passwd",
        "blobs/.hidden",
        "blobs/",
        "headgate.db-wal",
        "keys.json/x",
        "notify.toml",
    ],
)
def test_extract__name_outside_the_folder_or_unknown__refused(tmp_path: Path, name: str) -> None:
    write_backup(tmp_path / "crafted.tar", backup_file.DATABASE, name)
    folder = tmp_path / "home"
    folder.mkdir()

    with pytest.raises(CorruptionError, match="not a usable backup"):
        extract(tmp_path / "crafted.tar", folder)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["crafted.tar", "home"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_extract__link_device_or_folder__refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "crafted.tar"
    with tarfile.open(path, "w") as tar:
        entry = tarfile.TarInfo("blobs/link")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    folder = tmp_path / "home"
    folder.mkdir()

    with pytest.raises(CorruptionError, match="not a regular file"):
        extract(path, folder)

    assert list(folder.iterdir()) == []


def test_extract__part_twice__refused(tmp_path: Path) -> None:
    write_backup(tmp_path / "crafted.tar", backup_file.DATABASE, backup_file.DATABASE)
    (tmp_path / "home").mkdir()

    with pytest.raises(CorruptionError, match="repeated"):
        extract(tmp_path / "crafted.tar", tmp_path / "home")


def test_extract__part_that_the_manifest_lacks__refused(tmp_path: Path) -> None:
    path = tmp_path / "crafted.tar"
    write_backup(path, backup_file.DATABASE)
    with tarfile.open(path, "a") as tar:
        entry = tarfile.TarInfo("keys.json")
        entry.size = 2
        tar.addfile(entry, io.BytesIO(b"{}"))
    (tmp_path / "home").mkdir()

    with pytest.raises(CorruptionError, match=r"keys\.json"):
        extract(path, tmp_path / "home")


def test_extract__as_written__has_the_content_and_is_private(tmp_path: Path) -> None:
    write_backup(tmp_path / "plain.tar", backup_file.DATABASE, "blobs/spill/2026010100/aa")
    folder = tmp_path / "home"
    folder.mkdir()

    found = extract(tmp_path / "plain.tar", folder)

    assert (folder / "blobs/spill/2026010100/aa").read_bytes() == b"content"
    assert found.files["headgate.db"].sha256 == hashlib.sha256(b"content").hexdigest()
    assert (folder / "headgate.db").stat().st_mode & 0o077 == 0
