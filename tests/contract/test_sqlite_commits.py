"""Group commit: one commit for many, one conflict failing alone, and no caller left behind."""

from __future__ import annotations

import gc
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import pytest

from headgate.errors import ConflictError, StoreBusyError, StoreClosedError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.sqlite.file_lock import FileLock
from headgate.store.sqlite.group_commit import CHECKPOINT_PAGES, CHECKPOINT_ROWS, rows_until_checkpoint
from headgate.store.sqlite.store import SqliteStore
from tests.stores import create_sqlite


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = create_sqlite(tmp_path)
    yield opened
    opened.close()


def row(name: str) -> dict[str, object]:
    return {"PK": f"DEDUP#{name}", "SK": "DEDUP", "name": name}


def key(name: str) -> Key:
    return Key(f"DEDUP#{name}", "DEDUP")


def hold_write_lock(folder: Path) -> sqlite3.Connection:
    other = sqlite3.connect(folder / "headgate.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def in_threads(store: SqliteStore, folder: Path, puts: list[Put]) -> list[BaseException | None]:
    """Make all puts while the file is locked by another program, so that they must meet in one queue."""
    outcome: list[BaseException | None] = [None] * len(puts)

    def put(place: int) -> None:
        try:
            store.put(puts[place].table, puts[place].item, condition=puts[place].condition)
        except ConflictError as exc:
            outcome[place] = exc

    other = hold_write_lock(folder)
    threads = [threading.Thread(target=put, args=(place,)) for place in range(len(puts))]
    for thread in threads:
        thread.start()
    queued = store._commits._queue
    while len(queued) < len(puts):
        threading.Event().wait(0.001)
    other.execute("COMMIT")
    other.close()
    for thread in threads:
        thread.join()
    return outcome


def test_put__30_callers_while_the_file_is_busy__one_commit_for_all(store: SqliteStore, tmp_path: Path) -> None:
    before = store.stats.commits

    outcome = in_threads(store, tmp_path, [Put(CONTROL, row(str(number))) for number in range(30)])

    assert outcome == [None] * 30
    assert store.stats.commits == before + 1
    assert all(store.get(CONTROL, key(str(number))) for number in range(30))


def test_put__one_of_the_group_conflicts__it_fails_alone(store: SqliteStore, tmp_path: Path) -> None:
    store.put(CONTROL, row("7"))

    puts = [Put(CONTROL, row(str(number)), absent()) for number in range(20)]
    outcome = in_threads(store, tmp_path, puts)

    refused = [place for place, error in enumerate(outcome) if error is not None]
    assert refused == [7]
    conflict = outcome[7]
    assert isinstance(conflict, ConflictError)
    assert conflict.current == row("7")
    assert all(store.get(CONTROL, key(str(number))) for number in range(20))


def test_put__same_key_twice_in_one_group__exactly_one_wins(store: SqliteStore, tmp_path: Path) -> None:
    puts = [Put(CONTROL, {**row("same"), "by": number}, absent()) for number in range(10)]

    outcome = in_threads(store, tmp_path, puts)

    winners = [place for place, error in enumerate(outcome) if error is None]
    assert len(winners) == 1
    item = store.get(CONTROL, key("same"))
    assert item is not None
    assert item["by"] == winners[0]


def test_put__row_sqlite_cannot_take__fails_alone_and_the_rest_of_the_group_commits(
    store: SqliteStore, tmp_path: Path
) -> None:
    # A trigger stands in for whatever makes SQLite refuse one row of a group in the middle of a transaction.
    rigged = sqlite3.connect(tmp_path / "headgate.db")
    rigged.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON \"headgate-control\" WHEN new.pk = 'DEDUP#5' "
        "BEGIN SELECT raise(ABORT, 'not this one'); END"
    )
    rigged.commit()
    rigged.close()
    store.close()
    reopened = create_sqlite(tmp_path)
    outcome: list[BaseException | None] = [None] * 12

    def put(place: int) -> None:
        try:
            reopened.put(CONTROL, row(str(place)))
        except Exception as exc:
            outcome[place] = exc

    other = hold_write_lock(tmp_path)
    threads = [threading.Thread(target=put, args=(place,)) for place in range(12)]
    for thread in threads:
        thread.start()
    while len(reopened._commits._queue) < 12:
        threading.Event().wait(0.001)
    other.execute("COMMIT")
    other.close()
    for thread in threads:
        thread.join()

    assert [place for place, error in enumerate(outcome) if error is not None] == [5]
    assert "not this one" in str(outcome[5])
    assert [reopened.get(CONTROL, key(str(place))) is not None for place in range(12)] == [n != 5 for n in range(12)]
    reopened.close()


def test_put__another_program_keeps_the_file_locked__busy_and_later_writes_go_through(
    store: SqliteStore, tmp_path: Path
) -> None:
    other = hold_write_lock(tmp_path)

    with pytest.raises(StoreBusyError, match="another program"):
        store.put(CONTROL, row("a"))

    other.execute("COMMIT")
    other.close()
    store.put(CONTROL, row("b"))
    assert store.get(CONTROL, key("a")) is None
    assert store.get(CONTROL, key("b")) == row("b")


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_put__main_thread_interrupted_while_waiting__outcome_first_and_others_are_served(
    store: SqliteStore, tmp_path: Path, raised: type[BaseException]
) -> None:
    other = hold_write_lock(tmp_path)
    served = threading.Event()

    def follow() -> None:
        store.put(CONTROL, row("follower"))
        served.set()

    def interrupt_once_queued() -> None:
        while len(store._commits._queue) < 1:
            threading.Event().wait(0.001)
        follower.start()
        while len(store._commits._queue) < 2:
            threading.Event().wait(0.001)
        signal.raise_signal(signal.SIGUSR1)
        other.execute("COMMIT")

    def handle(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, handle)
    follower = threading.Thread(target=follow)
    helper = threading.Thread(target=interrupt_once_queued)
    helper.start()
    with pytest.raises(raised):
        store.put(CONTROL, row("main"))
    helper.join()
    follower.join(10)
    other.close()
    signal.signal(signal.SIGUSR1, before)

    assert served.is_set()
    assert store.get(CONTROL, key("main")) == row("main")
    assert store.get(CONTROL, key("follower")) == row("follower")
    store.put(CONTROL, row("later"))


def test_put__main_thread_interrupted_at_random_moments__the_store_goes_on(store: SqliteStore) -> None:
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.002):
            signal.raise_signal(signal.SIGUSR1)

    is_armed = False

    def handle(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            # Once for each put: an interrupt while the last one is dealt with would end the test, or the whole run.
            is_armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handle)
    interrupter = threading.Thread(target=interrupt)
    # What others have the collector call cannot be interrupted: that would be reported as an error of theirs.
    gc.disable()
    interrupter.start()
    interrupted = written = 0
    give_up_at = time.monotonic() + 2
    while time.monotonic() < give_up_at:
        try:
            is_armed = True
            store.put(CONTROL, row(str(written)))
            is_armed = False
            written += 1
        except KeyboardInterrupt:
            interrupted += 1
    stop.set()
    interrupter.join()
    gc.enable()
    signal.signal(signal.SIGUSR1, before)

    assert interrupted > 10
    assert written > 10
    other = threading.Thread(target=store.put, args=(CONTROL, row("after")))
    other.start()
    other.join(10)
    assert not other.is_alive()
    assert store.get(CONTROL, key("after")) == row("after")


def test_close__after_two_committers_were_started__ends_both(tmp_path: Path) -> None:
    opened = create_sqlite(tmp_path)
    opened._commits._start_committer()
    first = opened._commits._committer
    # As if an interrupt had come between starting the first and noting it.
    opened._commits._committer = None
    opened._commits._start_committer()
    closing = threading.Thread(target=opened.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert first is not None
    first.join(10)
    assert not first.is_alive()


def test_submit__many_without_a_thread_each__all_settled_and_conflicts_reported(store: SqliteStore) -> None:
    store.put(CONTROL, row("taken"))
    settled: dict[str, BaseException | None] = {}
    everyone = threading.Event()

    def done(name: str, error: BaseException | None) -> None:
        settled[name] = error
        if len(settled) == 201:
            everyone.set()

    for number in range(200):
        store.submit([Put(CONTROL, row(str(number)))], partial(done, str(number)))
    store.submit([Put(CONTROL, row("taken"), absent())], partial(done, "taken"))

    assert everyone.wait(30)
    assert [name for name, error in settled.items() if error is not None] == ["taken"]
    conflict = settled["taken"]
    assert isinstance(conflict, ConflictError)
    assert conflict.current == row("taken")
    assert all(store.get(CONTROL, key(str(number))) for number in range(200))


def test_close__while_64_threads_write__each_is_committed_or_refused(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    written: list[str] = []
    started = threading.Barrier(65)

    def write(thread: int) -> None:
        started.wait()
        for number in range(1000):
            try:
                store.put(CONTROL, row(f"{thread}-{number}"))
            except StoreClosedError:
                return
            written.append(f"{thread}-{number}")

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(64)]
    for thread in threads:
        thread.start()
    started.wait()
    while len(written) < 100:
        threading.Event().wait(0.001)

    store.close()

    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    reopened = create_sqlite(tmp_path)
    assert all(reopened.get(CONTROL, key(name)) for name in written)
    reopened.close()


def test_run__work_fails_in_the_middle_of_writing__none_of_it_is_there_and_the_group_commits(
    store: SqliteStore, tmp_path: Path
) -> None:
    failed: list[Exception] = []

    def half_done(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO \"headgate-control\" (pk, sk, body) VALUES ('DEDUP#half', 'DEDUP', '{}')")
        raise OverflowError("in the middle")

    def run_half_done() -> None:
        try:
            store._commits.run(half_done)
        except OverflowError as exc:
            failed.append(exc)

    other = hold_write_lock(tmp_path)
    threads = [threading.Thread(target=store.put, args=(CONTROL, row(str(number)))) for number in range(6)]
    threads.insert(3, threading.Thread(target=run_half_done))
    for thread in threads:
        thread.start()
    while len(store._commits._queue) < 7:
        threading.Event().wait(0.001)
    other.execute("COMMIT")
    other.close()
    for thread in threads:
        thread.join()

    assert len(failed) == 1
    assert store.get(CONTROL, key("half")) is None
    assert all(store.get(CONTROL, key(str(number))) for number in range(6))


def test_submit__done_raises__reported_and_everyone_else_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: reported.append(hook.exc_type))

    def broken(_: BaseException | None) -> None:
        raise RuntimeError("the loop is closed")

    store.submit([Put(CONTROL, row("broken"))], broken)
    settled = threading.Event()
    store.submit([Put(CONTROL, row("fine"))], lambda _: settled.set())

    assert settled.wait(10)
    store.put(CONTROL, row("later"))
    assert reported == [RuntimeError]
    assert store.get(CONTROL, key("broken")) == row("broken")


def test_close__with_submissions_under_way__each_is_reported(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    received: list[BaseException | None] = []

    for number in range(300):
        store.submit([Put(CONTROL, row(str(number)))], received.append)
    store.close()

    assert len(received) == 300
    reopened = create_sqlite(tmp_path)
    found = [reopened.get(CONTROL, key(str(number))) is not None for number in range(300)]
    assert found.count(True) == received.count(None)
    reopened.close()


def test_generation__writes_that_are_no_news__wake_no_one(store: SqliteStore) -> None:
    before = store.generation()
    quiet = [Put(CONTROL, row("a"), quiet=True)]
    news = [Put(CONTROL, row("b"), quiet=True), Put(CONTROL, row("c"))]
    assert store.transact_many([quiet, quiet]) == [None, None]
    assert store.generation() == before
    assert store.transact_many([quiet, news]) == [None, None]
    assert store.generation() > before


def test_commits__many_rows__reach_the_file_itself_while_the_store_is_open(store: SqliteStore, tmp_path: Path) -> None:
    rows = CHECKPOINT_ROWS
    store.batch_write([Put(CONTROL, row(f"row-{number}")) for number in range(rows)])

    # What does not look at the log sees what was brought home.
    def in_file() -> int:
        with closing(sqlite3.connect(f"file:{tmp_path / 'headgate.db'}?immutable=1", uri=True)) as connection:
            try:
                (count,) = connection.execute(f'SELECT count(*) FROM "{CONTROL.name}"').fetchone()
            except sqlite3.DatabaseError:
                return -1  # It is being copied.
        return int(count)

    give_up_at = time.monotonic() + 30
    while (found := in_file()) != rows:
        assert time.monotonic() < give_up_at, found
        time.sleep(0.01)


def test_commits__few_rows__stay_in_the_log(store: SqliteStore) -> None:
    statements: list[str] = []
    store._commits._connection.set_trace_callback(statements.append)

    for number in range(3):
        store.put(CONTROL, row(f"row-{number}"))

    assert statements
    assert not [each for each in statements if "wal_checkpoint" in each]


def test_commits__log_is_brought_home__while_no_other_process_may_commit(store: SqliteStore, tmp_path: Path) -> None:
    """SQLite up to 3.51.2 could lose what is committed at that moment."""
    another = FileLock(tmp_path / "headgate.db.lock")
    was_free: SimpleQueue[bool] = SimpleQueue()

    def traced(statement: str) -> None:
        if "wal_checkpoint" in statement:
            was_free.put(another.try_acquire())

    store._commits._connection.set_trace_callback(traced)
    with closing(another):
        store.batch_write([Put(CONTROL, row(f"row-{number}")) for number in range(CHECKPOINT_ROWS)])
        assert was_free.get(timeout=30) is False


def test_commits__who_commits_while_the_log_is_brought_home__is_served_after_it(store: SqliteStore) -> None:
    for number in range(4):
        store.batch_write([Put(CONTROL, row(f"row-{number}-{place}")) for place in range(CHECKPOINT_ROWS)])
        store.put(CONTROL, row(f"after-{number}"))

    assert all(store.get(CONTROL, key(f"after-{number}")) is not None for number in range(4))


def test_commits__thread_that_commits_without_a_pause__wakes_the_committer_once_for_each_checkpoint(
    store: SqliteStore,
) -> None:
    committer = store._commits
    checkpoints: list[str] = []
    committer._connection.set_trace_callback(lambda each: checkpoints.append(each) if "checkpoint" in each else None)
    wakeups: list[None] = []

    class Counted(SimpleQueue[None]):
        def put(self, item: None, block: bool = True, timeout: float | None = None) -> None:
            wakeups.append(item)
            super().put(item, block, timeout)

    committer._committer_wakeup = Counted()

    def write() -> None:
        for number in range(3 * CHECKPOINT_ROWS):
            store.put(CONTROL, row(f"row-{number}"))

    # The main thread never leads.
    writer = threading.Thread(target=write)
    writer.start()
    writer.join()

    assert wakeups
    # The last one may still wait for its turn.
    assert len(wakeups) <= len(checkpoints) + 1


@pytest.mark.parametrize(
    ("rows", "pages", "after"),
    [
        (400, CHECKPOINT_PAGES, 400),
        (400, 2 * CHECKPOINT_PAGES, 200),
        # Neither after every few rows nor only when SQLite itself would do it.
        (400, 100 * CHECKPOINT_PAGES, 100),
        (400, 1, 2_000),
        # It does not know how many there are.
        (400, -1, 300),
        (400, 0, 300),
    ],
)
def test_homing_rows__by_what_the_last_ones_took(rows: int, pages: int, after: int) -> None:
    assert rows_until_checkpoint(rows, pages, before=300) == after
