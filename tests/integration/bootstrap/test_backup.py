"""Upgrade of an older file, and what backup and restore refuse."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate.bootstrap.backup import back_up, restore, upgrade
from headgate.bootstrap.backup_record import BackupRecord, last_backup
from headgate.bootstrap.store import open_store
from headgate.clock import VirtualClock
from headgate.errors import (
    AlreadyExistsError,
    CorruptionError,
    NewerStoreError,
    NotFoundError,
    StoreDamagedError,
    UserError,
)
from headgate.health.audit.log import Audit, AuditEntry
from headgate.ids import IdMaker
from headgate.settings import Settings
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.schema import Key

ROW = {"PK": "DEDUP#a", "SK": "DEDUP", "due_pk": "A", "due_at_ms": 1}


def settings_of(home: Path, **flags: str) -> Settings:
    return Settings.load({}, None, {"home": str(home), **flags})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    clock = VirtualClock()
    opened = open_store(settings_of(tmp_path / "home"), clock)
    with closing(opened.store):
        opened.store.put(CONTROL, ROW)
        audit = Audit(opened.store, clock, IdMaker(clock), opened.keyring)
        for number in range(3):
            audit.commit([], AuditEntry("ada", "test", "entity", None, number))
    return tmp_path / "home"


def test_upgrade__file_of_an_older_build__is_migrated_and_a_copy_is_kept(home: Path) -> None:
    with closing(sqlite3.connect(home / "headgate.db")) as connection:
        connection.execute('DROP INDEX "headgate-control:due-index"')
        connection.execute("UPDATE \"headgate:meta\" SET value = 'older' WHERE key = 'catalogue'")
        connection.commit()
    clock = VirtualClock()

    assert not upgrade(settings_of(home), clock, dry_run=True).is_current
    done = upgrade(settings_of(home), clock, dry_run=False)

    assert done.copy is not None
    assert Path(done.copy).stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(done.copy)) as copy:
        assert copy.execute("SELECT value FROM \"headgate:meta\" WHERE key = 'catalogue'").fetchone() == ("older",)
    with closing(sqlite3.connect(home / "headgate.db")) as migrated:
        names = {name for (name,) in migrated.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert "headgate-control:due-index" in names
    with closing(open_store(settings_of(home), clock).store) as store:
        assert store.get(CONTROL, Key("DEDUP#a", "DEDUP")) == ROW
    assert upgrade(settings_of(home), clock, dry_run=False).is_current


def test_upgrade__file_of_a_newer_build__refused_and_unchanged(home: Path) -> None:
    with closing(sqlite3.connect(home / "headgate.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = (home / "headgate.db").read_bytes()

    with pytest.raises(NewerStoreError):
        upgrade(settings_of(home), VirtualClock(), dry_run=False)

    assert (home / "headgate.db").read_bytes() == before


def test_backup__written__is_recorded_in_the_home(home: Path, tmp_path: Path) -> None:
    assert last_backup(home) is None

    made = back_up(settings_of(home), VirtualClock(), tmp_path / "a.tar", build="1", with_keys=False)

    assert last_backup(home) == BackupRecord(made.manifest.created_at, str(tmp_path / "a.tar"), made.bytes)
    assert "last-backup.json" not in made.not_included
    (home / "last-backup.json").write_text("not JSON")
    assert last_backup(home) is None


def test_backup__damaged_database__is_refused_with_a_remedy_that_works(home: Path, tmp_path: Path) -> None:
    content = bytearray((home / "headgate.db").read_bytes())
    for offset in range(len(content) // 2, len(content), 4096):
        content[offset : offset + 512] = b"\xa5" * 512
    (home / "headgate.db").write_bytes(content)

    with pytest.raises((CorruptionError, StoreDamagedError), match="damaged") as caught:
        back_up(settings_of(home), VirtualClock(), tmp_path / "new.tar", build="1", with_keys=True)

    assert "headgate backup" not in caught.value.message
    assert "copy the home" in caught.value.message


def test_backup__unusable_target__refused(home: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken.tar"
    taken.write_text("mine")
    (tmp_path / "dangling.tar").symlink_to(tmp_path / "nowhere")
    targets: dict[Path, type[Exception]] = {
        taken: AlreadyExistsError,
        tmp_path / "dangling.tar": AlreadyExistsError,
        tmp_path / "none" / "x.tar": NotFoundError,
        home / "x.tar": UserError,
        Path("a\0b"): UserError,
    }

    for target, error in targets.items():
        with pytest.raises(error):
            back_up(settings_of(home), VirtualClock(), target, build="1", with_keys=True)

    assert taken.read_text() == "mine"


def test_backup__no_database__refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        back_up(settings_of(tmp_path / "none"), VirtualClock(), tmp_path / "x.tar", build="1", with_keys=True)

    assert list(tmp_path.iterdir()) == []


def test_restore__audit_entry_altered_before_the_backup__refused_unless_allowed(home: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(home / "headgate.db")) as connection:
        connection.execute(
            # With the quotes: digests in hexadecimal contain the letters, too.
            "UPDATE \"observability-audit\" SET body = replace(body, '\"ada\"', '\"eve\"') WHERE sk = '000000000002'"
        )
        connection.commit()
    file, clock = tmp_path / "x.tar", VirtualClock()
    back_up(settings_of(home), clock, file, build="1", with_keys=True)
    target = settings_of(tmp_path / "restored")

    with pytest.raises(CorruptionError, match="audit log does not verify"):
        restore(target, clock, file, keys=None, allow_audit_faults=False, dry_run=False)
    assert not target.home.exists()

    done = restore(target, clock, file, keys=None, allow_audit_faults=True, dry_run=False)
    assert [problem.sequence for problem in done.audit.problems] == [2]
    assert target.home.exists()


def test_restore__other_table_names__refused(home: Path, tmp_path: Path) -> None:
    back_up(settings_of(home), VirtualClock(), tmp_path / "x.tar", build="1", with_keys=True)
    target = settings_of(tmp_path / "restored", **{"store.table_prefix": "other-"})

    with pytest.raises(UserError, match=r"store\.table_prefix"):
        restore(target, VirtualClock(), tmp_path / "x.tar", keys=None, allow_audit_faults=False, dry_run=False)

    assert not target.home.exists()


def test_restore__dry_run__creates_nothing(home: Path, tmp_path: Path) -> None:
    back_up(settings_of(home), VirtualClock(), tmp_path / "x.tar", build="1", with_keys=True)

    done = restore(
        settings_of(home), VirtualClock(), tmp_path / "x.tar", keys=None, allow_audit_faults=False, dry_run=True
    )

    assert done.audit.entries == 3
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "x.tar"]
