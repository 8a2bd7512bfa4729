"""Commits for all: the first caller that finds nobody committing does it for everyone who has queued since.

A lone caller pays for its own commit and no thread hop; under load one commit, and one wait for the
disk, serves many. Between processes the file lock gives each its turn. See ADR-0003 for the figures.

Now and then what was committed is brought from SQLite's log into the file itself, which takes as long as many commits.
That is done between commits, so that none does it while its callers wait, and in turn like them: with all but the
newest builds of SQLite, a commit that begins the log anew while others bring it home may lose what was there before.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from headgate.errors import HeadgateError, StoreBusyError, StoreClosedError
from headgate.store.sqlite.errors import translated
from headgate.store.sqlite.file import DatabaseFile
from headgate.store.sqlite.row_cache import RecentRows
from headgate.store.sqlite.wakeups import Wakeups
from headgate.store.stats import StoreStats
from headgate.store.topics import ANYTHING, Topics

T = TypeVar("T")

# A group takes this many requests, or half of a longer queue, and closes early when it grows old.
GROUP_MIN: Final = 32
GROUP_SECONDS_MAX: Final = 0.005
# The log is brought home when it has about so many pages. How many rows that are is only known afterwards: so many at
# first.
HOMING_PAGES: Final = 500
HOMING_ROWS: Final = 500
_HOMING_ROWS_MIN: Final = 100
_HOMING_ROWS_MAX: Final = 2_000
# SQLite does it itself, at the end of a commit, if nobody has come to do it before.
_LOG_PAGES_MAX: Final = 4_000

_MAIN_THREAD: Final = threading.main_thread().ident


def homing_rows(rows: int, pages: int, before: int) -> int:
    """Return after how many rows to bring the log home if so many were so many pages; without pages, as `before`."""
    if pages <= 0:
        # SQLite could not look at it just now, or someone has begun it anew.
        return before
    return min(max(_HOMING_ROWS_MIN, rows * HOMING_PAGES // pages), _HOMING_ROWS_MAX)


class Request(Struct, Generic[T], eq=False):
    """One transaction on its way to the disk.

    Whoever waits for it is woken by `wake`; `leads` says whether that thread can take the lead. Without a thread
    that waits, `settle` is told the outcome. It is news to those who wait for one of its `topics`; without any, to
    nobody.
    """

    work: Callable[[sqlite3.Connection], T]
    settle: Callable[[BaseException | None], None] | None = None
    topics: Topics = ANYTHING
    result: T | None = None
    error: BaseException | None = None
    done: bool = False
    wake: threading.Lock | None = None
    leads: bool = False


class Commits:
    """Runs pieces of work, each in a transaction of its own as far as anyone can tell.

    Work is given the writing connection inside a transaction. It either raises a `HeadgateError` before
    its first write, which fails it alone, or writes everything it has to write.

    The main thread never leads: a signal handler may raise in it between any two instructions, and a leader
    that is gone would stop everyone. A committer thread leads for it, and for what was submitted.
    """

    def __init__(
        self, file: DatabaseFile, wakeups: Wakeups, stats: StoreStats, recent: Sequence[RecentRows] = ()
    ) -> None:
        self._file = file
        self._wakeups = wakeups
        self._stats = stats
        self._recent = recent
        self._connection = file.connect()
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES_MAX}")
        # Rows that had been changed when the log was last brought home, after how many more that is to be done again,
        # and whether they are there.
        self._home_rows = 0
        self._homing_rows = HOMING_ROWS
        self._is_log_long = False
        # One for all that is asked around a transaction: a connection makes a new one each time it is asked itself.
        self._cursor = self._connection.cursor()
        self._schema = self._schema_version()
        # Of what others had written when this connection last looked; the first transaction looks.
        self._others_version: int | None = None
        self._queue: deque[Request[Any]] = deque()
        self._served: list[Request[Any]] = []  # Committed by the last leader, and not woken yet.
        self._leading = threading.Lock()
        self._closed = False
        self._starting = threading.Lock()
        self._committer: threading.Thread | None = None
        self._bell: SimpleQueue[None] = SimpleQueue()

    def run(self, work: Callable[[sqlite3.Connection], T], *, topics: Topics = ANYTHING) -> T:
        """Return what `work` returned, once it is durable, or raise what it raised."""
        request = Request(work, topics=topics)
        if threading.get_ident() == _MAIN_THREAD:
            self._wait_without_leading(request)
        elif self._leading.acquire(blocking=False):
            # At the head, so that whoever leads is always served by the group it commits.
            self._queue.appendleft(request)
            self._lead()
        else:
            self._queue_up(request)
        if request.error is not None:
            raise request.error
        return request.result  # type: ignore[return-value]  # set whenever there is no error

    def submit(
        self,
        work: Callable[[sqlite3.Connection], Any],
        settle: Callable[[BaseException | None], None],
        topics: Topics = ANYTHING,
    ) -> None:
        """Have `work` committed without waiting; `settle` is told how it went, from the thread that committed."""
        self._call_committer(Request(work, settle, topics=topics))

    def close(self) -> None:
        """Finish what was accepted, then refuse everyone else."""
        with suppress(HeadgateError):
            while self._queue and not self._closed:
                # A commit of nothing, which takes along whoever has queued.
                self.run(lambda _: None)
        with self._leading:
            if self._closed:
                return
            self._closed = True
            self._connection.close()
        self._bell.put(None)
        if self._committer is not None:
            self._committer.join()
        self._refuse_late_comers()

    def _call_committer(self, request: Request[Any]) -> None:
        self._start_committer()
        self._queue.append(request)
        # Whoever leads now looks at the queue once more after letting go.
        if not self._leading.locked():
            self._bell.put(None)
        if self._closed:
            self._refuse_late_comers()

    def _start_committer(self) -> None:
        if self._committer is None:
            with self._starting:
                if self._committer is None:
                    thread = threading.Thread(target=self._lead_when_called, name="headgate-commits", daemon=True)
                    thread.start()
                    self._committer = thread

    def _lead_when_called(self) -> None:
        """Lead whenever the next in the queue has no thread of its own to do it, and bring the log home in between."""
        while not self._closed:
            self._bell.get()
            if self._queue and self._leading.acquire(blocking=False):
                self._lead()
            if self._is_log_long and self._leading.acquire(blocking=False):
                self._bring_home()
        # An interrupt between starting a committer and noting it makes a second one, which must end as well.
        self._bell.put(None)

    def _bring_home(self) -> None:
        """Copy what is in the log to the file. The caller holds `_leading`, and it is let go here."""
        try:
            if not self._closed:
                rows = self._connection.total_changes - self._home_rows
                self._home_rows += rows
                self._is_log_long = False
                self._file.lock.acquire()
                try:
                    _, pages, _ = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    self._homing_rows = homing_rows(rows, pages, self._homing_rows)
                finally:
                    self._file.lock.release()
        except (sqlite3.Error, StoreBusyError):
            # The log keeps it all, and what ails the disk is said by the next commit.
            return
        finally:
            self._pass_on([])

    def _refuse_late_comers(self) -> None:
        """Answer those who queued up when the store was being closed."""
        while self._queue and self._leading.acquire(blocking=False):
            self._pass_on([])

    def _wait_without_leading(self, request: Request[Any]) -> None:
        request.wake = threading.Lock()
        request.wake.acquire()
        self._call_committer(request)
        self._wait(request)

    def _queue_up(self, request: Request[Any]) -> None:
        request.wake = threading.Lock()
        request.wake.acquire()
        request.leads = True
        self._queue.append(request)
        # The leader may have looked at the queue for the last time just before: then nobody would wake us.
        if self._leading.acquire(blocking=False):
            self._lead()
        self._wait(request)

    def _wait(self, request: Request[Any]) -> None:
        assert request.wake is not None
        interrupt: BaseException | None = None
        while not request.done:
            try:
                request.wake.acquire()
            except BaseException as exc:  # noqa: BLE001 - raised by a signal handler, and raised again below
                # The outcome is milliseconds away, and the caller should know it.
                interrupt = exc
                continue
            if not request.done:
                # Woken without an answer: the last leader has passed the lead on to us.
                self._lead()
        if interrupt is not None:
            raise interrupt

    def _lead(self) -> None:
        """Commit one group, then pass the lead on. The caller holds `_leading`, and it is let go here."""
        group: list[Request[Any]] = []
        try:
            self._commit_group(group)
        except Exception as exc:  # noqa: BLE001 - raised again, in every thread that waits
            # The database let nobody in, so everyone who waits for it hears the same.
            self._refuse_queue(group, exc)
        finally:
            self._pass_on(group)

    def _pass_on(self, group: list[Request[Any]]) -> None:
        self._wake_served()
        self._served = group
        while True:
            if self._closed:
                closed = StoreClosedError(f"{self._file.path}: the store was closed; open it again")
                self._refuse_queue(self._served, closed)
            elif self._queue and self._queue[0].leads and self._queue[0].wake is not None:
                # The heir wakes this group, at the moment it has no use for the interpreter itself.
                self._queue[0].wake.release()
                return
            elif self._queue:
                # So does the committer, or whoever is quicker to lead: the queue is not empty, so someone will.
                self._leading.release()
                self._bell.put(None)
                return
            self._wake_served()
            self._leading.release()
            if not self._queue or not self._leading.acquire(blocking=False):
                return

    def _refuse_queue(self, group: list[Request[Any]], error: Exception) -> None:
        """Give everyone who has no answer yet this one, and add them to `group`."""
        # One by one, because others may be queueing up at this moment.
        while self._queue:
            group.append(self._queue.popleft())
        for request in group:
            if not request.done:
                request.error = error
                request.done = True

    def _wake_served(self) -> None:
        if not self._served:
            return
        served, self._served = self._served, []
        for request in served:
            if request.wake is not None:
                request.wake.release()
            elif request.settle is not None:
                try:
                    request.settle(request.error)
                except Exception as exc:  # noqa: BLE001 - a caller's mistake must not stop everyone's commits
                    thread = threading.current_thread()
                    threading.excepthook(threading.ExceptHookArgs((type(exc), exc, exc.__traceback__, thread)))

    def _commit_group(self, group: list[Request[Any]]) -> None:
        if self._closed:
            raise StoreClosedError(f"{self._file.path}: the store was closed; open it again")
        if not self._file.lock.try_acquire():
            # Another process has its turn: those served by the last group need not wait for that.
            self._wake_served()
            self._file.lock.acquire()
        try:
            self._commit_queue(group)
        except Exception as exc:
            if not group and isinstance(exc, sqlite3.Error):
                raise translated(exc, self._file.path) from exc
            if not group:
                raise
            # Whatever one piece of work raises must fail that one alone.
            self._retry_singly(group)
        finally:
            self._file.lock.release()
        if self._connection.total_changes - self._home_rows >= self._homing_rows:
            self._is_log_long = True
            self._start_committer()
            self._bell.put(None)
        topics = reduce(or_, (request.topics for request in group), 0)
        if topics:
            self._wakeups.committed(topics)

    def _commit_queue(self, group: list[Request[Any]]) -> None:
        try:
            self._begin()
            self._apply_queue(group)
            # Only now, because each of them would have wanted the interpreter while rows were being
            # applied; the commit leaves it to them for as long as the disk takes.
            self._wake_served()
            self._cursor.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._settle(group)

    def _settle(self, group: list[Request[Any]]) -> None:
        for request in group:
            request.done = True
        self._stats.commits += 1

    def _apply_queue(self, group: list[Request[Any]]) -> None:
        # Drained only now, with the write lock held: whoever arrived during the wait rides along. But half
        # of a long queue is left for the next group, so that its callers prepare while this one is written.
        group_max = max(GROUP_MIN, len(self._queue) // 2)
        give_up_at = monotonic() + GROUP_SECONDS_MAX
        while self._queue and len(group) < group_max and (not group or monotonic() < give_up_at):
            request = self._queue.popleft()
            group.append(request)
            self._apply(request)

    def _apply(self, request: Request[Any]) -> None:
        try:
            request.result = request.work(self._connection)
        except HeadgateError as exc:
            request.error = exc

    def _retry_singly(self, group: list[Request[Any]]) -> None:
        """Give each request a transaction of its own, so that only the one at fault fails.

        Even those that had lost a race are run again: what they lost to was rolled back.
        """
        for request in group:
            request.error = None
            try:
                self._begin()
                self._apply(request)
                self._connection.execute("COMMIT")
            except sqlite3.Error as exc:
                self._roll_back()
                request.error = translated(exc, self._file.path)
                request.error.__cause__ = exc
            except Exception as exc:  # noqa: BLE001 - it is raised again, in the thread whose work it was
                self._roll_back()
                request.error = exc
            self._settle([request])

    def _begin(self) -> None:
        self._file.check_in_place()
        self._cursor.execute("BEGIN IMMEDIATE")
        # SQLite's number for what other connections have committed, here or elsewhere. Nobody can add to it before
        # this transaction ends, and while it stays the same they have changed no row, and the schema neither.
        (version,) = self._cursor.execute("PRAGMA data_version").fetchone()
        if version != self._others_version:
            self._forget_rows()
            self._check_schema()
            self._others_version = version

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
        self._forget_rows()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _forget_rows(self) -> None:
        for rows in self._recent:
            rows.forget()
