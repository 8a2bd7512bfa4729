"""Group commit: one leading thread commits the transactions of every thread that queued meanwhile.

A single caller commits inline without a thread hop; under load one COMMIT, and one disk sync, serves many callers.
Between processes the file lock orders the groups fairly. ADR-0003 has the figures.

The WAL is checkpointed into the database file between commits, because a checkpoint takes as long as many commits. It
runs under the same locks as a commit: on all but the newest SQLite versions, a commit that restarts the WAL during
another connection's checkpoint may lose frames.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from headgate.errors import HeadgateError, StoreClosedError
from headgate.store.sqlite.file import DatabaseFile
from headgate.store.sqlite.row_cache import RecentRows
from headgate.store.sqlite.wakeups import Wakeups
from headgate.store.stats import StoreStats
from headgate.store.topics import ANYTHING, Topics

T = TypeVar("T")

# A group takes this many requests, or half of a longer queue, within `GROUP_SECONDS_MAX`.
GROUP_MIN: Final = 32
GROUP_SECONDS_MAX: Final = 0.005
# The WAL is checkpointed at about this many pages. The number of rows that fill them is measured at each checkpoint
# and starts at `CHECKPOINT_ROWS`.
CHECKPOINT_PAGES: Final = 1_000
CHECKPOINT_ROWS: Final = 500
_CHECKPOINT_ROWS_MIN: Final = 100
_CHECKPOINT_ROWS_MAX: Final = 2_000
# Fallback: SQLite checkpoints inline at the end of a commit from this many pages on.
_AUTOCHECKPOINT_PAGES: Final = 4_000

_MAIN_THREAD: Final = threading.main_thread().ident


def rows_until_checkpoint(rows: int, pages: int, before: int) -> int:
    """Return the rows until the next checkpoint, given that `rows` filled `pages`; `before` if `pages` is unknown."""
    if pages <= 0:
        # SQLite could not read the WAL, or another connection has restarted it.
        return before
    return min(max(_CHECKPOINT_ROWS_MIN, rows * CHECKPOINT_PAGES // pages), _CHECKPOINT_ROWS_MAX)


class CommitRequest(Struct, Generic[T], eq=False):
    """A queued transaction.

    `wake` unblocks the waiting thread, which may become leader if `leads`. Without a waiting thread, `on_done`
    receives the outcome. The commit wakes the waiters of its `topics`.
    """

    work: Callable[[sqlite3.Connection], T]
    on_done: Callable[[BaseException | None], None] | None = None
    topics: Topics = ANYTHING
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    wake: threading.Lock | None = None
    leads: bool = False


class GroupCommitter:
    """Runs transactions in groups; each behaves as if it were committed alone.

    A transaction's `work` receives the writing connection. It either raises a `HeadgateError` before its first write,
    which fails it alone, or performs all of its writes.

    The main thread never leads: a signal handler may raise in it at any instruction, and a lost leader would block
    everyone. A committer thread leads for the main thread and for submitted transactions.
    """

    def __init__(
        self, file: DatabaseFile, wakeups: Wakeups, stats: StoreStats, recent: Sequence[RecentRows] = ()
    ) -> None:
        self._file = file
        self._wakeups = wakeups
        self._stats = stats
        self._recent = recent
        self._connection = file.connect()
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTOCHECKPOINT_PAGES}")
        # The connection's change count at the last checkpoint, the rows until the next one, and whether it is due.
        self._checkpointed_rows = 0
        self._checkpoint_rows = CHECKPOINT_ROWS
        self._checkpoint_due = False
        # Reused: `connection.execute` would create a new cursor for each statement.
        self._cursor = self._connection.cursor()
        self._schema = self._schema_version()
        # SQLite's data_version at the last transaction; None before the first.
        self._data_version: int | None = None
        self._queue: deque[CommitRequest[Any]] = deque()
        self._committed: list[CommitRequest[Any]] = []  # The last group, whose threads are not woken yet.
        self._leading = threading.Lock()
        self._closed = False
        self._starting = threading.Lock()
        self._committer: threading.Thread | None = None
        self._committer_wakeup: SimpleQueue[None] = SimpleQueue()

    def run(self, work: Callable[[sqlite3.Connection], T], *, topics: Topics = ANYTHING) -> T:
        """Run `work` in a transaction and return its result once it is durable. Raises the errors of `work`."""
        request = CommitRequest(work, topics=topics)
        if threading.get_ident() == _MAIN_THREAD:
            self._queue_and_wait_without_leading(request)
        elif self._leading.acquire(blocking=False):
            # At the head of the queue, so that the leader's own request is in the group it commits.
            self._queue.appendleft(request)
            self._lead()
        else:
            self._queue_and_wait(request)
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]  # set whenever there is no error

    def submit(
        self,
        work: Callable[[sqlite3.Connection], Any],
        on_done: Callable[[BaseException | None], None],
        topics: Topics = ANYTHING,
    ) -> None:
        """Queue `work` without waiting; the committing thread calls `on_done` with the outcome."""
        self._queue_for_committer(CommitRequest(work, on_done, topics=topics))

    def close(self) -> None:
        """Commit the queued requests, then refuse new ones."""
        with suppress(HeadgateError):
            while self._queue and not self._closed:
                # An empty transaction commits the queue with it.
                self.run(lambda _: None)
        with self._leading:
            if self._closed:
                return
            self._closed = True
            self._connection.close()
        self._committer_wakeup.put(None)
        if self._committer is not None:
            self._committer.join()
        self._fail_late_requests()

    def _queue_for_committer(self, request: CommitRequest[Any]) -> None:
        self._start_committer()
        self._queue.append(request)
        # A current leader checks the queue again after releasing the lead.
        if not self._leading.locked():
            self._committer_wakeup.put(None)
        if self._closed:
            self._fail_late_requests()

    def _start_committer(self) -> None:
        if self._committer is None:
            with self._starting:
                if self._committer is None:
                    thread = threading.Thread(target=self._run_committer, name="headgate-commits", daemon=True)
                    thread.start()
                    self._committer = thread

    def _run_committer(self) -> None:
        """Committer thread: lead for requests that have no thread able to lead, and checkpoint the WAL in between."""
        while not self._closed:
            self._committer_wakeup.get()
            if self._queue and self._leading.acquire(blocking=False):
                self._lead()
            if self._checkpoint_due:
                # Blocks: a thread that commits without a pause has the lead most of the time, and would have to wake
                # this one after every commit to try again.
                self._leading.acquire()
                self._checkpoint_wal()
        # An interrupt while the committer starts can leave a second committer, which must end as well.
        self._committer_wakeup.put(None)

    def _checkpoint_wal(self) -> None:
        """Checkpoint the WAL. The caller holds `_leading`; this releases it."""
        try:
            if self._checkpoint_due and not self._closed:
                rows = self._connection.total_changes - self._checkpointed_rows
                self._checkpointed_rows += rows
                self._checkpoint_due = False
                self._file.lock.acquire()
                try:
                    _, pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self._checkpoint_rows = rows_until_checkpoint(rows, pages, self._checkpoint_rows)
                finally:
                    self._file.lock.release()
        except Exception:  # noqa: BLE001 - it would end the committer, and submitted commits would wait for ever
            # Nothing is lost: the WAL still holds the commits, and the next commit reports a disk error.
            return
        finally:
            self._pass_lead([])

    def _fail_late_requests(self) -> None:
        """Fail the requests that were queued while the store was closing."""
        while self._queue and self._leading.acquire(blocking=False):
            self._pass_lead([])

    def _queue_and_wait_without_leading(self, request: CommitRequest[Any]) -> None:
        request.wake = threading.Lock()
        request.wake.acquire()
        self._queue_for_committer(request)
        self._wait(request)

    def _queue_and_wait(self, request: CommitRequest[Any]) -> None:
        request.wake = threading.Lock()
        request.wake.acquire()
        request.leads = True
        self._queue.append(request)
        # The leader may have made its last check of the queue before this append.
        if self._leading.acquire(blocking=False):
            self._lead()
        self._wait(request)

    def _wait(self, request: CommitRequest[Any]) -> None:
        assert request.wake is not None
        interrupt: BaseException | None = None
        while not request.done:
            try:
                request.wake.acquire()
            except BaseException as exc:  # noqa: BLE001 - raised by a signal handler, and re-raised below
                # Keep waiting: the outcome is milliseconds away and must not stay unknown.
                interrupt = exc
                continue
            if not request.done:
                # Woken without a result: the last leader has passed the lead to this thread.
                self._lead()
        if interrupt is not None:
            raise interrupt

    def _lead(self) -> None:
        """Commit one group, then pass the lead. The caller holds `_leading`; this releases it."""
        group: list[CommitRequest[Any]] = []
        try:
            self._commit_group(group)
        except Exception as exc:  # noqa: BLE001 - re-raised in every waiting thread
            # No transaction could be started, so every queued request fails with the same error.
            self._fail_queue(group, exc)
            self._file.faults.record(exc, len(group))
        finally:
            self._pass_lead(group)

    def _pass_lead(self, group: list[CommitRequest[Any]]) -> None:
        if self._committed:
            self._wake_committed()
        # No one waits for the request of a lone leader, which is this thread's own.
        if len(group) != 1 or group[0].wake is not None or group[0].on_done is not None:
            self._committed = group
        while True:
            if self._closed:
                closed = StoreClosedError(f"{self._file.path}: the store was closed; open it again")
                self._fail_queue(self._committed, closed)
            elif self._queue and self._queue[0].leads and self._queue[0].wake is not None:
                # The next leader wakes this group while its own COMMIT waits for the disk.
                self._queue[0].wake.release()
                return
            elif self._queue:
                # The committer, or a faster thread, leads and wakes this group.
                self._leading.release()
                self._committer_wakeup.put(None)
                return
            if self._committed:
                self._wake_committed()
            self._leading.release()
            if not self._queue or not self._leading.acquire(blocking=False):
                return

    def _fail_queue(self, group: list[CommitRequest[Any]], error: Exception) -> None:
        """Fail all queued requests and the unfinished ones of `group`; add them to `group`."""
        # One by one, because other threads may be appending.
        while self._queue:
            group.append(self._queue.popleft())
        for request in group:
            if not request.done:
                request.error = error
                request.done = True

    def _wake_committed(self) -> None:
        committed, self._committed = self._committed, []
        for request in committed:
            if request.wake is not None:
                request.wake.release()
            elif request.on_done is not None:
                try:
                    request.on_done(request.error)
                except Exception as exc:  # noqa: BLE001 - a faulty callback must not stop the committer
                    thread = threading.current_thread()
                    threading.excepthook(threading.ExceptHookArgs((type(exc), exc, exc.__traceback__, thread)))

    def _commit_group(self, group: list[CommitRequest[Any]]) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._file.path}: the store was closed; open it again")
        if not self._file.lock.try_acquire():
            # Another process holds the lock: wake the last group before waiting for it.
            self._wake_committed()
            self._file.lock.acquire()
        try:
            self._commit_queue(group)
        except Exception as exc:
            if not group and isinstance(exc, sqlite3.Error):
                raise self._file.error_of(exc) from exc
            if not group:
                raise
            # An unexpected error must fail its own transaction only.
            self._retry_singly(group)
        finally:
            self._file.lock.release()
        rows = self._connection.total_changes - self._checkpointed_rows
        if rows >= self._checkpoint_rows and not self._checkpoint_due:
            self._checkpoint_due = True
            self._start_committer()
            self._committer_wakeup.put(None)
        topics = 0
        for request in group:
            topics |= request.topics
        if topics:
            self._wakeups.on_committed(topics)

    def _commit_queue(self, group: list[CommitRequest[Any]]) -> None:
        rows = self._connection.total_changes
        try:
            self._begin()
            self._apply_queue(group)
            # Woken only now: earlier they would compete for the GIL, which COMMIT releases while it waits for the disk.
            if self._committed:
                self._wake_committed()
            self._cursor.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        for request in group:
            request.done = True
        self._stats.commits += 1
        if self._file.faults.is_active and self._connection.total_changes > rows:
            self._file.faults.on_written()

    def _apply_queue(self, group: list[CommitRequest[Any]]) -> None:
        # Drained with the write lock held, so that requests queued during the wait join the group. Half of a long
        # queue is left for the next group, so that these threads prepare new requests while the other half is written.
        queue = self._queue
        group_max = max(GROUP_MIN, len(queue) // 2)
        closes_at = 0.0
        while queue:
            request = queue.popleft()
            group.append(request)
            try:
                request.result = request.work(self._connection)
            except HeadgateError as exc:
                request.error = exc
            if queue:
                # A lone request needs no limits.
                closes_at = closes_at or monotonic() + GROUP_SECONDS_MAX
                if len(group) >= group_max or monotonic() >= closes_at:
                    return

    def _retry_singly(self, group: list[CommitRequest[Any]]) -> None:
        """Run each request in a transaction of its own, so that only the faulty one fails.

        Requests that had conflicted run again too, because the writes they conflicted with were rolled back.
        """
        for request in group:
            request.error = None
            try:
                self._begin()
                request.result = request.work(self._connection)
                self._connection.execute("COMMIT")
            except sqlite3.Error as exc:
                self._roll_back()
                request.error = self._file.error_of(exc)
                request.error.__cause__ = exc
                self._file.faults.record(request.error)
            except Exception as exc:  # noqa: BLE001 - re-raised in the requesting thread
                self._roll_back()
                request.error = exc
            request.done = True
            self._stats.commits += 1

    def _begin(self) -> None:
        self._file.check_writable()
        self._cursor.execute("BEGIN IMMEDIATE")
        # data_version changes when another connection commits, in any process. While it is unchanged, neither rows nor
        # the schema have changed.
        (version,) = self._cursor.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._clear_row_caches()
            self._check_schema()
            self._data_version = version

    def _check_schema(self) -> None:
        if self._schema_version() != self._schema:
            self._roll_back()
            raise StoreClosedError(
                f"{self._file.path}: another build of Headgate has changed the schema; restart this process"
            )

    def _schema_version(self) -> int:
        version: int = self._connection.execute("PRAGMA schema_version").fetchone()[0]
        return version

    def _roll_back(self) -> None:
        self._clear_row_caches()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _clear_row_caches(self) -> None:
        for rows in self._recent:
            rows.forget()
