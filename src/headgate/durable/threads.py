"""Worker threads: one polling thread, one listener, and as many executor threads as the activities need.

An executor thread that ends an activity runs the next engine cycle itself if no other thread does, and takes one of the
activities that the cycle claims: a serial workflow runs in one thread without a hand-over. Threads of the client never
run a cycle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import structlog

from headgate.durable.model.failures import describe
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.durable.model.records import Activity
from headgate.durable.replay.turn_timeout import TURN_SECONDS, each_turn, overdue
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.async_executor import AsyncExecutor
from headgate.durable.worker.status import WorkerStatus
from headgate.durable.worker.worker import Worker
from headgate.errors import NotFoundError, OutcomeUnknownError, TransientError
from headgate.outage_log import OutageLog
from headgate.store.port import Store
from headgate.store.topics import WORK

# While activities are queued and none ends, a thread is added this often.
GROW_SECONDS: Final = 0.005
# The polling thread polls no more often than this, however much other processes commit.
POLL_SECONDS_MIN: Final = 0.01
LISTEN_SECONDS: Final = 0.5
CYCLES_SECONDS_MAX: Final = 0.1
# Running activities are cancelled after this share of the grace period.
NOTICE_SHARE: Final = 0.5
DRAIN_SECONDS: Final = 0.01
CLOCK_GRAIN_SECONDS: Final = 0.003
_PAUSE_SECONDS: Final = 0.5
_log = structlog.get_logger(__name__)


class WorkerThreads:
    """Runs a worker until `stop`, and is the local worker of the client and the bus."""

    def __init__(
        self,
        worker: Worker,
        store: Store,
        *,
        turn_seconds: float = TURN_SECONDS,
        on_fatal: Callable[[BaseException], None] | None = None,
        observer: DurableObserver = NULL_OBSERVER,
    ) -> None:
        self._worker = worker
        self._store = store
        self._threads_max = worker.limits.threads_max
        self._turn_seconds = turn_seconds
        self._on_fatal = on_fatal
        self._observer = observer
        self._cycle_lock = threading.Lock()
        self._wakeup = threading.Event()
        self._work = threading.Condition()
        self._idle = 0
        self._ended = 0
        self._stopping = False
        self._wakes_at = 0.0
        self._polled_at: float | None = None
        self._turned_at: float | None = None
        self._executors: list[threading.Thread] = []
        self._failed = False
        self._poll_thread = threading.Thread(target=self._guarded(self._run_poller), name="headgate-pump", daemon=True)
        listen = self._guarded(self._run_listener)
        self._listener = threading.Thread(target=listen, name="headgate-listener", daemon=True)
        self._poll_outage = OutageLog(_log, "store unavailable to the poll", pause_seconds=_PAUSE_SECONDS)
        self._cycle_outage = OutageLog(_log, "store unavailable to a cycle", pause_seconds=_PAUSE_SECONDS)
        self._async = AsyncExecutor(worker, on_ended=self._wakeup.set, on_failed=self._fail)

    def start(self) -> None:
        """Register the worker, and start the threads."""
        self._worker.join()
        self._poll_thread.start()
        self._listener.start()

    # The local worker.

    @property
    def notifies_waiters(self) -> bool:
        return True

    def wake(self, execution_id: str) -> None:
        """Advance an execution that has a new message."""
        self._worker.engine.read_inbox(execution_id)
        self._wakeup.set()

    def poll_soon(self) -> None:
        """Poll the store now: this process has stored work that only a poll finds."""
        self._worker.schedule.poll_soon()
        self._wakeup.set()

    def run_inline(self) -> bool:
        """Return False: the threads do the work."""
        return False

    def status(self) -> WorkerStatus:
        """Return the status of the worker, without blocking."""
        now = monotonic()
        worker = self._worker
        return WorkerStatus(
            has_failed=self._failed,
            has_lease=worker.fleet.has_lease(),
            polled_seconds=None if self._polled_at is None else now - self._polled_at,
            turned_seconds=None if self._turned_at is None else now - self._turned_at,
            queued=len(worker.queue),
            running=len(worker.running),
            hung=worker.claims.hung_count(),
            limits=worker.limits,
            usage=worker.usage(),
            overdue=overdue(),
        )

    def stop(self, grace_seconds: float) -> None:
        """Claim nothing more, wait for running activities up to the grace period, and release or end the rest.

        Running activities get notice at once, and are cancelled after half of the grace period.
        """
        self._stopping = True
        self._worker.announce_stop()
        self._wakeup.set()
        with self._work:
            self._work.notify_all()
        self._store.wake()
        deadline = _Deadline(grace_seconds)
        self._drain(_Deadline(grace_seconds * NOTICE_SHARE))
        self._worker.interrupt_running()
        self._drain(deadline)
        try:
            self._run_last_cycles(deadline)
        finally:
            if self._failed:
                # The store may be the cause; the lease expires by itself.
                self._worker.abandon_all()
            else:
                self._leave()
            self._async.stop()

    def _drain(self, deadline: _Deadline) -> None:
        """Wait until nothing runs and every thread has ended, or until the deadline. The lease is kept meanwhile."""
        threads = (self._poll_thread, self._listener, *self._executors)
        while deadline.left() > 0:
            alive = [each for each in threads if each.is_alive()]
            if not alive and not self._worker.running:
                return
            if alive:
                alive[0].join(min(deadline.left(), DRAIN_SECONDS))
            else:
                threading.Event().wait(min(deadline.left(), DRAIN_SECONDS))
            if not self._poll_thread.is_alive() and not self._failed:
                # The poll thread has kept it so far.
                with suppress(TransientError, OutcomeUnknownError):
                    self._worker.keep_lease()

    def _leave(self) -> None:
        try:
            self._worker.leave()
        except (TransientError, OutcomeUnknownError) as exc:
            # Its claims are reclaimed when its lease expires, or as soon as this process is gone.
            _log.warning("store unavailable; claims not released", error=str(exc))
            self._worker.abandon_all()

    # The polling thread.

    def _run_poller(self) -> None:
        while not self._stopping:
            try:
                # Most wake-ups have given the engine its events already, and a poll would find nothing.
                if self._worker.is_due:
                    self._worker.poll()
                self._polled_at = monotonic()
                self.run_cycles(take_one=False)
                # Only now: the cycles may have scheduled earlier timers.
                wait_seconds = self._worker.schedule.plan_wait()
                self._poll_outage.succeeded()
            except (TransientError, OutcomeUnknownError) as exc:
                self._pause_poller(self._poll_outage.failed(exc))
                continue
            if self._worker.queue and self._grow():
                wait_seconds = min(wait_seconds, GROW_SECONDS)
            self._wakes_at = monotonic() + wait_seconds
            if self._wakeup.wait(max(wait_seconds, 0.001)):
                self._wakeup.clear()

    def _pause_poller(self, seconds: float) -> None:
        """Pause after a failed poll. Wake-ups do not end the pause, or a busy process would poll without one."""
        until = monotonic() + seconds
        while not self._stopping and monotonic() < until:
            threading.Event().wait(min(_PAUSE_SECONDS, seconds))

    def _run_listener(self) -> None:
        """Wake the polling thread when another process has committed something."""
        seen: int | None = None
        while not self._stopping:
            try:
                if seen is None:
                    seen = self._store.generation(WORK, others=True)
                now = self._store.wait(seen, LISTEN_SECONDS, WORK, others=True)
            except TransientError:
                threading.Event().wait(_PAUSE_SECONDS)
                continue
            if now != seen and not self._stopping:
                seen = now
                self.poll_soon()
                self._observer.on_remote_commit()
                threading.Event().wait(POLL_SECONDS_MIN)

    def run_cycles(self, *, take_one: bool) -> Activity | None:
        """Run engine cycles until no execution is ready. With `take_one`, stop at the first activity and return it.

        The time is limited: an execution that is always ready must not keep the polling thread from other timers.
        """
        worker, ready = self._worker, self._worker.engine.ready
        now = monotonic()
        deadline = now + CYCLES_SECONDS_MAX
        while ready and not self._stopping:
            if now > deadline:
                self._wakeup.set()
                return None
            # The thread that runs a cycle checks the ready list again after it releases the lock.
            if not self._cycle_lock.acquire(blocking=False):
                return None
            try:
                claimed = worker.turn()
                self._turned_at = now = monotonic()
            finally:
                self._cycle_lock.release()
            if not claimed:
                continue
            activity = self._next() if take_one else None
            if worker.queue:
                self._wake_executors(len(worker.queue))
            if activity is not None:
                if ready:
                    self._wakeup.set()
                return activity
        return None

    def _wake_poller_in_time(self) -> None:
        """Wake the polling thread if work is now due before it would wake by itself."""
        schedule = self._worker.schedule
        if not schedule.may_be_due_in(self._wakes_at - monotonic()):
            return
        # By more than the clock's grain, or it would wake and poll after every step.
        if monotonic() + schedule.seconds_left() + CLOCK_GRAIN_SECONDS < self._wakes_at:
            self._wakeup.set()

    # The executor threads.

    def _run_executor(self) -> None:
        activity: Activity | None = None
        while True:
            if activity is None:
                activity = self._await_work()
                if activity is None:
                    return
            try:
                self._perform(activity)
                self._ended += 1
                activity = self.run_cycles(take_one=True) if not self._stopping else None
                self._wake_poller_in_time()
                self._cycle_outage.succeeded()
            except (TransientError, OutcomeUnknownError) as exc:
                self._cycle_outage.failed(exc)
                self._wakeup.set()
                activity = None
            if activity is None and not self._stopping:
                activity = self._next()

    def _perform(self, activity: Activity) -> None:
        definition = known_definition(self._worker, activity)
        if definition is not None and definition.is_async:
            self._async.perform(activity)
        else:
            self._worker.perform(activity, definition)

    def _await_work(self) -> Activity | None:
        with self._work:
            self._idle += 1
            try:
                while True:
                    if self._stopping:
                        return None
                    activity = self._next()
                    if activity is not None:
                        return activity
                    self._work.wait()
            finally:
                self._idle -= 1

    def _next(self) -> Activity | None:
        try:
            return self._worker.queue.popleft()
        except IndexError:
            return None

    def _wake_executors(self, count: int) -> None:
        if count == 0:
            return
        if not self._executors:
            self._grow()
        if self._idle:
            with self._work:
                self._work.notify(count)
        else:
            # Every thread is busy; the polling thread adds one if needed.
            self._wakeup.set()

    def _grow(self) -> bool:
        """Add a thread if none has ended an activity since the last call. Returns whether to call again soon."""
        if self._idle:
            with self._work:
                self._work.notify(len(self._worker.queue))
            return True
        ended, self._ended = self._ended, 0
        # A thread whose activity hangs is lost until the activity returns, and is replaced, within bounds.
        if len(self._executors) >= self._threads_max + min(self._worker.claims.hung_count(), self._threads_max):
            return False
        if not ended or not self._executors:
            run = self._guarded(self._run_executor)
            thread = threading.Thread(target=run, name="headgate-performer", daemon=True)
            self._executors.append(thread)
            self._worker.claims.threads = len(self._executors)
            thread.start()
        return True

    def _run_last_cycles(self, deadline: _Deadline) -> None:
        """Commit the results of the last activities, if there is time."""
        if self._failed or not self._cycle_lock.acquire(timeout=max(0.1, deadline.left())):
            return
        try:
            with each_turn(self._turn_seconds):
                while self._worker.engine.has_work and deadline.left() > 0:
                    self._worker.turn()
        except (TransientError, OutcomeUnknownError) as exc:
            _log.warning("store unavailable; last results not committed", error=str(exc))
        finally:
            self._cycle_lock.release()

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run` as the target of a thread: an unexpected error stops the worker and is reported once."""

        def guarded() -> None:
            try:
                with each_turn(self._turn_seconds):
                    run()
            except Exception as exc:  # noqa: BLE001 - the top of a thread; a worker must not run on with some of its threads
                self._fail(exc)

        return guarded

    def _fail(self, error: Exception) -> None:
        with self._work:
            if self._failed:
                return
            self._failed = True
            self._stopping = True
            self._work.notify_all()
        # Not `exc_info`: it may include local variables, and payloads are confidential.
        info = describe(error)
        _log.critical("worker stopped by an error", error=info.message, kind=info.type, trace=info.trace)
        self._wakeup.set()
        if self._on_fatal is not None:
            self._on_fatal(error)


def known_definition(worker: Worker, activity: Activity) -> Definition[..., Any] | None:
    """Return the definition of an activity; None if the app has lost it since it was claimed, which fails it alone."""
    try:
        return worker.definition(activity)
    except NotFoundError:
        return None


def is_async(worker: Worker, activity: Activity) -> bool:
    """Whether an activity runs on the event loop, and not in an executor thread."""
    definition = known_definition(worker, activity)
    return definition is not None and definition.is_async


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._at - monotonic())
