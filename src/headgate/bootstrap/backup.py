"""Backup, restore, upgrade and vacuum of a home on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.bootstrap.backup_record import RECORD_FILE, BackupRecord, record_backup
from headgate.bootstrap.store import BLOBS, OpenedStore, database_path, keys_path, open_store
from headgate.clock import Clock
from headgate.errors import AlreadyExistsError, CorruptionError, NotFoundError, StoreIOError, UserError
from headgate.health.audit.hash_chain import CHAINS, Head, head_key
from headgate.health.audit.verify import Report, Verifier
from headgate.settings import Settings
from headgate.store.blobs.folder import Blobs, FolderBlobs
from headgate.store.blobs.spill import CONDEMNED, PREFIX
from headgate.store.catalogue.tables import ALL_TABLES, AUDIT
from headgate.store.durable_files import sync_folder, write_private
from headgate.store.keyring import Keyring, Purpose
from headgate.store.sqlite import backup_file
from headgate.store.sqlite.backup_file import AuditHead, BackupWriter, Manifest
from headgate.store.sqlite.doctor import inspect
from headgate.store.sqlite.file import FORMAT, catalogue_of, current_catalogue
from headgate.store.sqlite.partial_folder import disk_errors, partial_folder
from headgate.store.sqlite.snapshot import blob_references, row_counts, take_snapshot
from headgate.store.sqlite.vacuum import VacuumResult, vacuum
from headgate.store.table_names import TableNames

# Parts of a home that a backup has, or that a server creates again.
_COVERED: Final = {"headgate.db", "keys.json", "blobs", "server.json", "last-known-datasets.json", RECORD_FILE}


class BackupResult(Struct, frozen=True):
    """A written backup. `not_included` are the files of the home that are configuration and not in it."""

    file: str
    bytes: int
    manifest: Manifest
    not_included: list[str]


class RestoreResult(Struct, frozen=True):
    """A verified backup, and the report on its audit chains. `is_dry_run`: the home was not created."""

    home: str
    manifest: Manifest
    audit: Report
    is_dry_run: bool


class UpgradeResult(Struct, frozen=True):
    """The outcome of an upgrade. `copy` is the database as it was before; None if nothing had to change."""

    database: str
    before_format: int
    after_format: int
    is_current: bool
    copy: str | None = None


def back_up(settings: Settings, clock: Clock, target: Path, *, build: str, with_keys: bool) -> BackupResult:
    """Write a consistent backup of a home to one file, also while servers write to it.

    Every write acknowledged before the call is in it. A killed backup leaves no file of this name.
    """
    _refuse_dynamodb(settings, "backup")
    database = database_path(settings)
    if not database.exists():
        raise NotFoundError(f"{database}: no database yet; choose another home with --home")
    at_seconds = clock.seconds()
    stamp = datetime.fromtimestamp(at_seconds, UTC)
    target = backup_file.checked_target(target, settings.home, f"headgate-{stamp:%Y%m%dT%H%M%SZ}.tar")
    with backup_file.new_file(target) as (file, folder):
        copy = replace(settings, home=folder / "home")
        copy.home.mkdir(mode=0o700)
        schema_format = take_snapshot(database, database_path(copy))
        keys = _private_copy(keys_path(settings), keys_path(copy))
        rows, references = row_counts(database_path(copy)), blob_references(database_path(copy))
        writer = BackupWriter(file, at_seconds=at_seconds)
        writer.add_file(backup_file.DATABASE, database_path(copy))
        if with_keys:
            writer.add_bytes(backup_file.KEYS, keys)
        with _opened(copy, clock) as opened:
            has_blobs = settings.store.blob_bucket is None
            missing = _add_blobs(writer, FolderBlobs(settings.home / BLOBS), references) if has_blobs else []
            manifest = Manifest(
                format=backup_file.FORMAT,
                build=build,
                schema_format=schema_format,
                created_at=stamp.isoformat(timespec="seconds").replace("+00:00", "Z"),
                table_names=_physical_names(settings),
                rows=rows,
                audit_heads=_heads(opened),
                key_ids=_field_keys(opened.keyring),
                with_keys=with_keys,
                files=dict(writer.files),
                blobs_in=settings.store.blob_bucket,
                missing_blobs=missing,
            )
        writer.finish(manifest)
    size_bytes = target.stat().st_size
    record_backup(settings.home, BackupRecord(manifest.created_at, str(target), size_bytes))
    return BackupResult(str(target), size_bytes, manifest, _not_included(settings.home))


def restore(
    settings: Settings, clock: Clock, source: Path, *, keys: Path | None, allow_audit_faults: bool, dry_run: bool
) -> RestoreResult:
    """Create a home from a backup. The home is put in place whole, after everything was verified.

    Raises `AlreadyExistsError` if the home is not empty, `CorruptionError` if the backup does not verify, and
    `UserError` without the keys of the backed-up home.
    """
    _refuse_dynamodb(settings, "restore")
    home = settings.home
    if not dry_run:
        _check_empty(home)
    with disk_errors(home.parent):
        home.parent.mkdir(parents=True, exist_ok=True)
    with partial_folder(home.parent) as folder:
        staged = replace(settings, home=folder / "home")
        staged.home.mkdir(mode=0o700)
        manifest = backup_file.extract(source, staged.home)
        _check_tables(settings, manifest)
        _place_keys(keys_path(staged), manifest, keys)
        _check_rows(database_path(staged), manifest)
        with _opened(staged, clock) as opened:
            _check_keys(opened.keyring, manifest)
            heads = [Head(each.chain, each.sequence, each.hash, each.at) for each in manifest.audit_heads]
            report = Verifier(opened.store, opened.keyring).verify(heads)
        if report.problems and not allow_audit_faults:
            raise CorruptionError(
                f"{source}: its audit log does not verify: {report.problems[0].fact}; use another backup, or restore "
                "this one with --allow-audit-faults and investigate"
            )
        if not dry_run:
            _put_in_place(staged.home, home)
    return RestoreResult(str(home), manifest, report, dry_run)


def upgrade(settings: Settings, clock: Clock, *, dry_run: bool) -> UpgradeResult:
    """Migrate the database to this build, after copying it beside itself.

    Raises `NewerStoreError` if a newer build wrote it.
    """
    _refuse_dynamodb(settings, "upgrade")
    database = database_path(settings)
    if not database.exists():
        raise NotFoundError(f"{database}: no database yet; choose another home with --home")
    before = inspect(database)
    if before.damages:
        raise CorruptionError(f"{database}: the database is damaged ({before.damages[0]}); restore a backup")
    is_current = before.format == FORMAT and catalogue_of(database) == current_catalogue(_names(settings))
    if is_current or dry_run:
        return UpgradeResult(str(database), before.format, FORMAT, is_current)
    stamp = datetime.fromtimestamp(clock.seconds(), UTC)
    copy = database.with_name(f"{database.name}.before-upgrade-{stamp:%Y%m%dT%H%M%SZ}")
    with partial_folder(database.parent) as folder, disk_errors(copy):
        draft = folder / database.name
        take_snapshot(database, draft)
        draft.rename(copy)
        sync_folder(copy.parent)
    open_store(settings, clock).store.close()
    return UpgradeResult(str(database), before.format, FORMAT, is_current=False, copy=str(copy))


def reclaim_space(settings: Settings, *, full: bool) -> VacuumResult:
    """Give the free space of the database file back to the file system."""
    _refuse_dynamodb(settings, "vacuum")
    return vacuum(database_path(settings), full=full)


def _refuse_dynamodb(settings: Settings, command: str) -> None:
    if settings.store.backend == "dynamodb":
        raise UserError(
            f"{command}: store.backend is dynamodb, whose tables are not files. Use DynamoDB's point-in-time recovery "
            "and S3 versioning; restore tables with AWS, then 'headgate table compare', 'repair' and 'swap' them. "
            "'headgate table create' adds missing tables after an upgrade"
        )


def _names(settings: Settings) -> TableNames:
    return TableNames(settings.store.table_prefix, settings.store.table_names)


def _physical_names(settings: Settings) -> dict[str, str]:
    names = _names(settings)
    return {table.name: names.physical(table) for table in ALL_TABLES}


@contextmanager
def _opened(settings: Settings, clock: Clock) -> Iterator[OpenedStore]:
    opened = open_store(settings, clock)
    with closing(opened.store):
        yield opened


def _private_copy(source: Path, target: Path) -> bytes:
    with disk_errors(source):
        content = source.read_bytes()
    write_private(target, content)
    return content


def _add_blobs(writer: BackupWriter, blobs: Blobs, references: set[str]) -> list[str]:
    """Add the blobs; return the referenced ones that do not exist.

    Blobs are immutable, written before the rows that reference them, and deleted a day after the last reference: the
    blobs of a snapshot can be copied after it.
    """
    others = [name for name in blobs.list("") if not name.startswith((PREFIX, CONDEMNED))]
    missing = []
    for name in [*others, *sorted(references)]:
        try:
            content = blobs.get(name)
        except NotFoundError:
            if name in references:
                missing.append(name)
            continue
        writer.add_bytes(backup_file.BLOBS + name, content)
    return missing


def _heads(opened: OpenedStore) -> list[AuditHead]:
    """Return the heads as stored. A restore verifies them."""
    rows = opened.store.get_many(AUDIT, [head_key(chain) for chain in range(CHAINS)], consistent=True)
    return [
        AuditHead(chain, int(row["sequence"]), str(row["hash"]), str(row["at"]))
        for chain, row in enumerate(rows)
        if row is not None and isinstance(row.get("sequence"), int)
    ]


def _field_keys(keyring: Keyring) -> list[str]:
    return [key.id for key in keyring.keys(Purpose.FIELD)]


def _not_included(home: Path) -> list[str]:
    names = (each.name + ("/" if each.is_dir() else "") for each in home.iterdir())
    return sorted(
        name for name in names if name.strip("/") not in _COVERED and not name.startswith((".", "headgate.db"))
    )


def _check_empty(home: Path) -> None:
    with disk_errors(home):
        if home.is_symlink() or (home.exists() and (not home.is_dir() or any(home.iterdir()))):
            raise AlreadyExistsError(f"home {home}: not an empty folder; restore into an empty one with --home")


def _check_tables(settings: Settings, manifest: Manifest) -> None:
    names = _physical_names(settings)
    for name, physical in manifest.table_names.items():
        if names.get(name, physical) != physical:
            raise UserError(
                f"table {name}: the backup calls it {physical}, the settings {names[name]}; restore with the "
                "store.table_prefix and store.table_names of the backed-up home"
            )


def _place_keys(path: Path, manifest: Manifest, keys: Path | None) -> None:
    if manifest.with_keys and keys is not None:
        raise UserError(f"--keys {keys}: the backup has its own keys; leave the option out")
    if manifest.with_keys:
        return
    if keys is None:
        raise UserError(
            "the backup has no keys, and without them encrypted fields and the audit log cannot be read; name the "
            "keys.json of the backed-up home with --keys"
        )
    if not keys.is_file():
        raise NotFoundError(f"--keys {keys}: no such file; name the keys.json of the backed-up home")
    with disk_errors(keys):
        _private_copy(keys, path)


def _check_keys(keyring: Keyring, manifest: Manifest) -> None:
    lacking = set(manifest.key_ids) - set(_field_keys(keyring))
    if lacking:
        raise UserError(
            f"keys: {sorted(lacking)[0]!r} of the backed-up home is not among them; name its keys.json with --keys"
        )


def _check_rows(database: Path, manifest: Manifest) -> None:
    facts = inspect(database)
    if facts.damages:
        raise CorruptionError(f"the database of the backup is damaged ({facts.damages[0]}); use another backup")
    found = row_counts(database)
    for name in sorted({*found, *manifest.rows}):
        if found.get(name) != manifest.rows.get(name):
            raise CorruptionError(
                f"table {name} of the backup has {found.get(name, 0)} rows, its manifest says "
                f"{manifest.rows.get(name, 0)}; use another backup, nothing was restored"
            )


def _put_in_place(staged: Path, home: Path) -> None:
    sync_folder(staged)
    try:
        # Atomic, and refused if the folder is no longer empty.
        staged.rename(home)
        sync_folder(home.parent)
    except OSError as exc:
        if home.exists() and any(home.iterdir()):
            raise AlreadyExistsError(f"home {home}: was filled meanwhile; nothing was restored") from exc
        raise StoreIOError(
            f"home {home}: cannot be created: {exc.strerror}; a mount point cannot be replaced, so name a folder "
            "inside it with --home"
        ) from exc
