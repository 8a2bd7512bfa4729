"""The threads of a worker: one pump that looks and leads, and as many performers as the activities need.

A performer that ends an activity leads the next cycle itself if nobody does, and keeps one of the activities that it
claims: a serial workflow runs in one thread without a hand-over. Callers of the client never lead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from headgate.durable.model.failures import describe
from headgate.durable.model.records import Activity
from headgate.durable.replay.turn_timeout import TURN_SECONDS, each_turn, overdue
from headgate.durable.worker.async_executor import AsyncPerformers
from headgate.durable.worker.status import Pulse
from headgate.durable.worker.worker import Worker
from headgate.errors import NotFoundError, OutcomeUnknownError, TransientError
from headgate.store.port import Store
from headgate.store.topics import WORK

THREADS_MAX: Final = 64
# While activities wait and none ends, another thread is added this often.
GROW_SECONDS: Final = 0.005
# The pump looks into the store no more often than this, however much others commit.
LOOK_SECONDS_MIN: Final = 0.01
LISTEN_SECONDS: Final = 0.5
LEAD_SECONDS_MAX: Final = 0.1
CLOCK_GRAIN_SECONDS: Final = 0.003
_PAUSE_SECONDS: Final = 0.5
_log = structlog.get_logger(__name__)


class WorkerThreads:
    """Runs a worker until it is told to stop."""

    def __init__(
        self,
        worker: Worker,
        store: Store,
        *,
        threads_max: int = THREADS_MAX,
        turn_seconds: float = TURN_SECONDS,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._worker = worker
        self._store = store
        self._threads_max = threads_max
        self._turn_seconds = turn_seconds
        self._on_fatal = on_fatal
        # Set by whoever waits in this process for what another may do.
        self.others_committed: Callable[[], None] = lambda: None
        self._lead = threading.Lock()
        self._bell = threading.Event()
        self._work = threading.Condition()
        self._idle = 0
        self._ended = 0
        self._stopping = False
        self._wakes_at = 0.0
        self._looked_at: float | None = None
        self._turned_at: float | None = None
        self._performers: list[threading.Thread] = []
        self._failed = False
        self._pump = threading.Thread(target=self._guarded(self._run_pump), name="headgate-pump", daemon=True)
        listen = self._guarded(self._run_listener)
        self._listener = threading.Thread(target=listen, name="headgate-listener", daemon=True)
        self._async = AsyncPerformers(worker, ended=self._bell.set, failed=self._fail)

    def start(self) -> None:
        """Join the fleet and begin."""
        self._worker.join()
        self._pump.start()
        self._listener.start()

    def notify(self, execution_id: str) -> None:
        """Something was put into an execution's inbox in this process."""
        self._worker.engine.look(execution_id)
        self._bell.set()

    def look(self) -> None:
        """Something was put into the store in this process that only a look will find."""
        self._worker.agenda.look_again()
        self._bell.set()

    def pulse(self) -> Pulse:
        """Return what the worker is seen to do, without waiting for anyone."""
        now = monotonic()
        worker = self._worker
        return Pulse(
            has_failed=self._failed,
            has_lease=worker.fleet.has_lease(),
            looked_seconds=None if self._looked_at is None else now - self._looked_at,
            turned_seconds=None if self._turned_at is None else now - self._turned_at,
            queued=len(worker.queue),
            running=len(worker.running),
            hung=worker.hung(),
            overdue=overdue(),
        )

    def stop(self, grace_seconds: float) -> None:
        """Take on nothing new, let what runs end for so long, give back the rest, and return."""
        self._stopping = True
        self._bell.set()
        with self._work:
            self._work.notify_all()
        self._store.wake()
        deadline = _Deadline(grace_seconds)
        for thread in (self._pump, self._listener, *self._performers):
            thread.join(deadline.left())
        while self._worker.running and deadline.left() > 0:
            threading.Event().wait(0.01)
        try:
            self._settle_last(deadline)
        finally:
            if self._failed:
                # The store is not to be trusted with a good-bye; the lease runs out by itself.
                self._worker.abandon_all()
            else:
                self._worker.leave()
            self._async.stop()

    # The pump.

    def _run_pump(self) -> None:
        while not self._stopping:
            try:
                # Most who ring have told the engine what there is, and a look at every table would find nothing.
                if self._worker.is_due:
                    self._worker.poll()
                self._looked_at = monotonic()
                self.lead(keep=False)
                # Only now: leading may have made timers that are due before all others.
                wait_seconds = self._worker.agenda.rest_seconds()
            except (TransientError, OutcomeUnknownError) as exc:
                _log.warning("the store is busy", error=str(exc))
                wait_seconds = _PAUSE_SECONDS
            if self._worker.queue and self._grow():
                wait_seconds = min(wait_seconds, GROW_SECONDS)
            self._wakes_at = monotonic() + wait_seconds
            if self._bell.wait(max(wait_seconds, 0.001)):
                self._bell.clear()

    def _run_listener(self) -> None:
        """Ring the bell when another process has committed something."""
        seen = self._store.generation(WORK, others=True)
        while not self._stopping:
            try:
                now = self._store.wait(seen, LISTEN_SECONDS, WORK, others=True)
            except TransientError:
                threading.Event().wait(_PAUSE_SECONDS)
                continue
            if now != seen and not self._stopping:
                seen = now
                self._worker.agenda.look_again()
                self._bell.set()
                self.others_committed()
                threading.Event().wait(LOOK_SECONDS_MIN)

    def lead(self, *, keep: bool) -> Activity | None:
        """Lead cycles until nobody is ready, and keep one activity of the first that claims any, if asked to.

        Not for long: an execution that is always ready must not keep the pump from everyone else's timers.
        """
        worker, ready = self._worker, self._worker.engine.ready
        now = monotonic()
        give_up_at = now + LEAD_SECONDS_MAX
        while ready and not self._stopping:
            if now > give_up_at:
                self._bell.set()
                return None
            # Whoever leads now looks again after letting go, so that nobody is left ready and unseen.
            if not self._lead.acquire(blocking=False):
                return None
            try:
                claimed = worker.turn()
                self._turned_at = now = monotonic()
            finally:
                self._lead.release()
            if not claimed:
                continue
            kept = self._next() if keep else None
            self._wake(len(worker.queue))
            if kept is not None:
                if ready:
                    self._bell.set()
                return kept
        return None

    def _wake_pump_in_time(self) -> None:
        """Ring if something is now due before the pump means to wake."""
        agenda = self._worker.agenda
        if not agenda.is_overtaken:
            return
        # By more than the clocks' grain: ringing after every step would have the pump look after every step.
        if monotonic() + agenda.seconds_left() + CLOCK_GRAIN_SECONDS < self._wakes_at:
            self._bell.set()

    # The performers.

    def _run_performer(self) -> None:
        activity: Activity | None = None
        while True:
            if activity is None:
                activity = self._await_work()
                if activity is None:
                    return
            try:
                self._perform(activity)
                self._ended += 1
                activity = self.lead(keep=True) if not self._stopping else None
                self._wake_pump_in_time()
            except (TransientError, OutcomeUnknownError) as exc:
                _log.warning("the store is busy", error=str(exc))
                self._bell.set()
                activity = None
            if activity is None and not self._stopping:
                activity = self._next()

    def _perform(self, activity: Activity) -> None:
        if is_async(self._worker, activity):
            self._async.perform(activity)
        else:
            self._worker.perform(activity)

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

    def _wake(self, count: int) -> None:
        if count == 0:
            return
        if not self._performers:
            self._grow()
        if self._idle:
            with self._work:
                self._work.notify(count)
        else:
            # Everyone is busy; the pump sees to it that they are enough.
            self._bell.set()

    def _grow(self) -> bool:
        """Add a thread if activities wait and nobody has ended one for a moment. Returns whether to ask again soon."""
        if self._idle:
            with self._work:
                self._work.notify(len(self._worker.queue))
            return True
        ended, self._ended = self._ended, 0
        # A thread whose activity hangs is lost to the others until it returns, and is made up for, within bounds.
        if len(self._performers) >= self._threads_max + min(self._worker.hung(), self._threads_max):
            return False
        if not ended or not self._performers:
            perform = self._guarded(self._run_performer)
            thread = threading.Thread(target=perform, name="headgate-performer", daemon=True)
            self._performers.append(thread)
            self._worker.threads = len(self._performers)
            thread.start()
        return True

    def _settle_last(self, deadline: _Deadline) -> None:
        """Let what ended during the last moments be heard, as far as there is time."""
        if self._failed or not self._lead.acquire(timeout=max(0.1, deadline.left())):
            return
        try:
            with each_turn(self._turn_seconds):
                while self._worker.engine.has_work and deadline.left() > 0:
                    self._worker.turn()
        except (TransientError, OutcomeUnknownError) as exc:
            _log.warning("the store is busy", error=str(exc))
        finally:
            self._lead.release()

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run` as the whole of a thread: what it cannot deal with stops the worker and is told, once."""

        def guarded() -> None:
            try:
                with each_turn(self._turn_seconds):
                    run()
            except Exception as exc:  # noqa: BLE001 - the top of a thread; a worker that is half dead helps nobody
                self._fail(exc)

        return guarded

    def _fail(self, error: Exception) -> None:
        with self._work:
            if self._failed:
                return
            self._failed = True
            self._stopping = True
            self._work.notify_all()
        # Not `exc_info`: it may show the values of local variables, and payloads are users' secrets.
        info = describe(error)
        _log.critical("the worker stops", error=info.message, kind=info.type, trace=info.trace)
        self._bell.set()
        if self._on_fatal is not None:
            self._on_fatal(error)


def is_async(worker: Worker, activity: Activity) -> bool:
    """Whether an activity runs on an event loop, and not in a thread that performs it alone."""
    try:
        return worker.definition(activity).is_async
    except NotFoundError:
        # It is gone from the app since it was claimed, which is that activity's failure alone.
        return False


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self._at = monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._at - monotonic())
