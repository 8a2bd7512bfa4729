"""The database file: what is refused, what is repaired, and that nothing foreign is touched."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headgate.errors import (
    ConflictError,
    ForeignFileError,
    NewerStoreError,
    StoreClosedError,
    StoreDamagedError,
    StoreMovedError,
)
from headgate.store.catalogue.tables import CONTROL, EXECUTIONS, FANOUT, SIGNAL_STATE
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import TrustedItem
from headgate.store.sqlite.store import Synchronous
from headgate.store.table_names import TableNames
from tests.stores import create_sqlite

ROW = {"PK": "DEDUP#a", "SK": "DEDUP", "note": "kept"}
ROW_KEY = Key("DEDUP#a", "DEDUP")


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip


def as_another_catalogue_left_it(folder: Path, *statements: str) -> None:
    """Change the schema as another build would have it, and say that another catalogue opened the file last."""
    connection = sqlite3.connect(folder / "headgate.db")
    for statement in statements:
        connection.execute(statement)
    connection.execute("UPDATE \"headgate:meta\" SET value = 'another catalogue' WHERE key = 'catalogue'")
    connection.commit()
    connection.close()


def test_open__foreign_text_file__refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "headgate.db"
    path.write_text("these are somebody's notes, not a database\n" * 10)

    with pytest.raises(ForeignFileError, match="move the file away"):
        create_sqlite(tmp_path)

    assert path.read_text() == "these are somebody's notes, not a database\n" * 10


def test_open__database_of_another_program__refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "headgate.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(ForeignFileError, match="another program"):
        create_sqlite(tmp_path)

    assert path.read_bytes() == before


def test_open__folder_in_its_place__refused(tmp_path: Path) -> None:
    (tmp_path / "headgate.db").mkdir()

    with pytest.raises(ForeignFileError, match="is a folder"):
        create_sqlite(tmp_path)


def test_open__newer_format__refused_with_the_remedy_and_untouched(tmp_path: Path) -> None:
    create_sqlite(tmp_path).close()
    path = tmp_path / "headgate.db"
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 999")
    newer.close()
    before = path.read_bytes()

    with pytest.raises(NewerStoreError, match=r"format 999.*upgrade"):
        create_sqlite(tmp_path)

    assert path.read_bytes() == before


def test_open__empty_file__becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "headgate.db").touch()

    store = create_sqlite(tmp_path)

    store.put(CONTROL, ROW)
    assert store.get(CONTROL, ROW_KEY) == ROW
    store.close()


def test_read__damaged_page__says_corrupt_and_what_to_do(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    for number in range(300):
        store.put(CONTROL, {"PK": f"DEDUP#{number:04d}", "SK": "DEDUP", "pad": "x" * 500})
    store.close()
    path = tmp_path / "headgate.db"
    content = bytearray(path.read_bytes())
    for page in range(0, len(content), 4096):
        if b"DEDUP#01" in content[page : page + 4096]:
            content[page : page + 8] = b"\xff" * 8
    path.write_bytes(content)

    store = create_sqlite(tmp_path)

    with pytest.raises(StoreDamagedError, match="headgate doctor"):
        for number in range(300):
            store.get(CONTROL, Key(f"DEDUP#{number:04d}", "DEDUP"))
    store.close()


def test_write__file_may_not_grow__store_full_and_everything_before_is_there(tmp_path: Path) -> None:
    # A limit on the size of files, set in a process of its own, makes the operating system refuse as a full disk does.
    script = """
        import resource, signal, sys
        from pathlib import Path
        from headgate.errors import StoreFullError
        from headgate.store.catalogue.tables import CONTROL
        from tests.stores import create_sqlite
        folder = Path(sys.argv[1])
        store = create_sqlite(folder)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = (folder / "headgate.db").stat().st_size + 400_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        written = 0
        try:
            while written < 5000:
                store.put(CONTROL, {"PK": f"DEDUP#{written:05d}", "SK": "DEDUP", "pad": "x" * 2000})
                written += 1
        except StoreFullError as exc:
            print(written, exc)
        try:
            store.put(CONTROL, {"PK": "DEDUP#again", "SK": "DEDUP", "pad": "x" * 2000})
        except StoreFullError:
            print("still full")
    """
    done = run_python(script, str(tmp_path))

    assert done.returncode == 0, done.stderr
    began, first, second = done.stdout.splitlines()
    assert "store condition began" in began
    assert "free some and try again" in first
    assert second == "still full"
    acknowledged = int(first.split()[0])
    assert acknowledged > 10
    store = create_sqlite(tmp_path)
    found = [store.get(CONTROL, Key(f"DEDUP#{number:05d}", "DEDUP")) for number in range(acknowledged)]
    assert all(item is not None for item in found)
    assert store.get(CONTROL, Key("DEDUP#again", "DEDUP")) is None
    assert integrity(tmp_path) == "ok"
    store.put(CONTROL, ROW)
    store.close()


def test_write__read_only_to_this_user__refused_and_readable(tmp_path: Path) -> None:
    # Root may write anything, so the store is opened by a process that has become nobody.
    store = create_sqlite(tmp_path)
    store.put(CONTROL, ROW)
    store.close()
    for path in tmp_path.iterdir():
        path.chmod(0o444)
    script = """
        import os, sys
        from pathlib import Path
        from headgate.errors import ReadOnlyStoreError
        from headgate.clock import SystemClock
        from headgate.store.sqlite.file import DatabaseFile, Synchronous
        if os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)
        try:
            DatabaseFile(Path(sys.argv[1]) / "headgate.db", [], Synchronous.FULL)
        except ReadOnlyStoreError as exc:
            print(exc)
    """
    tmp_path.chmod(0o555)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        done = run_python(script, str(tmp_path))
    finally:
        tmp_path.chmod(0o755)

    assert done.returncode == 0, done.stderr
    assert "writable" in done.stdout


def test_open__twice_in_one_process__both_see_every_commit(tmp_path: Path) -> None:
    one, other = create_sqlite(tmp_path), create_sqlite(tmp_path)

    one.put(CONTROL, ROW)

    assert other.get(CONTROL, ROW_KEY) == ROW
    one.close()
    other.close()


def test_open__synchronous_is_selectable__normal_reads_back(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path, synchronous=Synchronous.NORMAL)

    store.put(CONTROL, ROW)

    assert store.get(CONTROL, ROW_KEY) == ROW
    store.close()


def test_open__physical_names__kept_beside_the_catalogue_names(tmp_path: Path) -> None:
    names = TableNames("prod-", {FANOUT.name: "phspectra-runs"})
    store = create_sqlite(tmp_path, names=names)

    store.put(FANOUT, {"PK": "run-1", "SK": "RUN"})

    store.close()
    raw = sqlite3.connect(tmp_path / "headgate.db")
    tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert {"phspectra-runs", "prod-headgate-control"} <= tables
    assert raw.execute('SELECT count(*) FROM "phspectra-runs"').fetchone() == (1,)
    raw.close()


def test_migrate__older_file_lacks_an_index__rows_written_before_are_found_by_it(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    store.put(EXECUTIONS, {"execution_id": "e1", "status": "RUNNING", "started_at": "2026-01-01", "version": 1})
    store.close()
    as_another_catalogue_left_it(
        tmp_path,
        'DROP INDEX "headgate-executions:status-index"',
        'ALTER TABLE "headgate-executions" DROP COLUMN i_status',
    )

    store = create_sqlite(tmp_path)

    page = store.query(Query(table=EXECUTIONS, index="status-index", partition="RUNNING"))
    assert [item["execution_id"] for item in page.items] == ["e1"]
    store.close()


@pytest.mark.parametrize(
    "left",
    [
        'ALTER TABLE "observability-signal-state" DROP COLUMN version',
        # An older build does not write the column.
        "UPDATE \"observability-signal-state\" SET version = 4, body = json_replace(body, '$.version', 5)",
    ],
)
def test_migrate__older_file_lacks_versions__rows_written_before_are_refreshed(tmp_path: Path, left: str) -> None:
    item = {"PK": "urn:dp:a", "SK": "FRESHNESS", "state": "OK", "version": 5}
    store = create_sqlite(tmp_path)
    store.put(SIGNAL_STATE, item)
    store.close()
    as_another_catalogue_left_it(tmp_path, left)

    store = create_sqlite(tmp_path)

    early = Put(SIGNAL_STATE, TrustedItem(item), version_is(4), quiet=True)
    current = Put(SIGNAL_STATE, TrustedItem(item, version=6), version_is(5), quiet=True)
    refusal, written = store.transact_many([[early], [current]])
    assert isinstance(refusal, ConflictError)
    assert written is None
    assert store.get(SIGNAL_STATE, Key("urn:dp:a", "FRESHNESS")) == {**item, "version": 6}
    store.close()


def test_migrate__another_build_changes_the_schema_under_us__writes_stop_with_the_remedy(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    store.put(CONTROL, ROW)
    newer = sqlite3.connect(tmp_path / "headgate.db")
    newer.execute('ALTER TABLE "headgate-control" ADD COLUMN i_tomorrow')
    newer.close()

    with pytest.raises(StoreClosedError, match="restart this process"):
        store.put(CONTROL, ROW)

    store.close()


def test_fork__store_used_in_the_child__refused_and_parent_unharmed(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    reader, writer = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            store.put(CONTROL, ROW)
            os.write(writer, b"written")
        except StoreClosedError as exc:
            os.write(writer, str(exc).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)

    assert b"before a fork" in os.read(reader, 1000)
    os.close(reader)
    store.put(CONTROL, ROW)
    assert store.get(CONTROL, ROW_KEY) == ROW
    store.close()


def test_body__plain_item__readable_with_the_sqlite_shell(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:a", "SK": "FRESHNESS", "state": "OK", "version": 3})
    store.close()

    raw = sqlite3.connect(tmp_path / "headgate.db")
    found = raw.execute(
        "SELECT body ->> '$.state', body ->> '$.version' FROM \"observability-signal-state\""
    ).fetchall()
    raw.close()

    assert found == [("OK", 3)]


def integrity(folder: Path) -> str:
    connection = sqlite3.connect(folder / "headgate.db")
    try:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])
    finally:
        connection.close()


def test_open__twice_here_while_another_process_comes_and_goes__no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    # Closing any descriptor of a file drops this process's locks on it; SQLite then takes the file for unused.
    visitor = """
        import sys
        from pathlib import Path
        from tests.stores import create_sqlite
        create_sqlite(Path(sys.argv[1])).close()
    """
    store = create_sqlite(tmp_path)
    store.put(CONTROL, {**ROW, "PK": "DEDUP#first"})
    create_sqlite(tmp_path).close()
    assert run_python(visitor, str(tmp_path)).returncode == 0

    for number in range(20):
        store.put(CONTROL, {**ROW, "PK": f"DEDUP#{number}"})
    assert run_python(visitor, str(tmp_path)).returncode == 0
    store.close()

    reopened = create_sqlite(tmp_path)
    assert all(reopened.get(CONTROL, Key(f"DEDUP#{number}", "DEDUP")) for number in [*range(20), "first"])
    reopened.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_write__file_deleted_or_replaced_under_us__refused_with_the_remedy(tmp_path: Path, replaced: bool) -> None:
    store = create_sqlite(tmp_path)
    store.put(CONTROL, ROW)
    path = tmp_path / "headgate.db"
    content = path.read_bytes()
    path.unlink()
    if replaced:
        path.write_bytes(content)

    with pytest.raises(StoreMovedError, match="restart this process"):
        store.put(CONTROL, ROW)
    with pytest.raises(StoreMovedError, match="restart this process"):
        store.check_health()
    assert store.get(CONTROL, ROW_KEY) == ROW

    store.close()


def test_migrate__index_with_other_keys_under_the_same_name__made_anew(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    store.put(EXECUTIONS, {"execution_id": "e1", "status": "RUNNING", "started_at": "2026-01-01"})
    store.close()
    as_another_catalogue_left_it(
        tmp_path,
        'DROP INDEX "headgate-executions:status-index"',
        'CREATE INDEX "headgate-executions:status-index" ON "headgate-executions" (i_workflow)',
    )

    store = create_sqlite(tmp_path)

    page = store.query(Query(table=EXECUTIONS, index="status-index", partition="RUNNING"))
    assert [item["execution_id"] for item in page.items] == ["e1"]
    store.close()


def test_migrate__another_catalogue_opens_the_file__running_process_is_asked_to_restart(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    store.put(CONTROL, ROW)
    as_another_catalogue_left_it(tmp_path)

    create_sqlite(tmp_path).close()

    with pytest.raises(StoreClosedError, match="restart this process"):
        store.put(CONTROL, ROW)
    store.close()


def test_fork__parent_killed_and_child_lives_on__others_can_write(tmp_path: Path) -> None:
    script = """
        import os, signal, sys, time
        from pathlib import Path
        from headgate.store.catalogue.tables import CONTROL
        from tests.stores import create_sqlite
        store = create_sqlite(Path(sys.argv[1]))
        store._file.lock.acquire()
        if os.fork() == 0:
            os.close(1); os.close(2)
            time.sleep(20)
            os._exit(0)
        print("forked", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = run_python(script, str(tmp_path))
    assert ended.stdout == "forked\n"
    store = create_sqlite(tmp_path)

    store.put(CONTROL, ROW)

    assert store.get(CONTROL, ROW_KEY) == ROW
    store.close()
