"""Backup record: a file in the home that names its last backup, so that the server can show its age."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode

RECORD_FILE: Final = "last-backup.json"


class BackupRecord(Struct, frozen=True):
    """The last backup of a home."""

    at: str
    file: str
    bytes: int


def record_backup(home: Path, record: BackupRecord) -> None:
    """Store the record. A home that cannot be written is left as it is: the backup itself is complete."""
    draft = home / f".{RECORD_FILE}.tmp"
    try:
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(home / RECORD_FILE)
    except OSError:
        return


def last_backup(home: Path) -> BackupRecord | None:
    """Return the record of the last backup; None if there is none, or none that can be read."""
    try:
        return typed_decode.from_json((home / RECORD_FILE).read_bytes(), BackupRecord)
    except (OSError, msgspec.DecodeError):
        return None
