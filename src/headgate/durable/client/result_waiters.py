"""Result waiters: callers that block until an execution or an update has ended, woken by notifications."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from headgate.clock import Clock
from headgate.durable.model.records import Execution
from headgate.store.port import Store

T = TypeVar("T")

# How often a waiter reads the store without a notification.
POLL_SECONDS: Final = 0.5


class LocalWorker(Protocol):
    """The worker of this process, as its client and bus see it."""

    @property
    def notifies_waiters(self) -> bool:
        """Whether it reports the end of every execution of the store, its own and those of other processes."""

    def wake(self, execution_id: str) -> None:
        """Advance an execution that has a new message."""

    def poll_soon(self) -> None:
        """Poll the store for new work."""

    def run_inline(self) -> bool:
        """Do all pending work in the calling thread; False if other threads do it."""


class ResultWaiters:
    """The waiting callers of this process. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._worker: LocalWorker | None = None
        self._mutex = threading.Lock()
        self._wakeups: dict[str, list[threading.Event]] = {}

    def attach(self, worker: LocalWorker | None) -> None:
        """Set the worker of this process; without one, waiters listen to the store."""
        self._worker = worker

    def notify(self, name: str) -> None:
        """Wake the waiters of this name."""
        if not self._wakeups:
            return
        with self._mutex:
            wakeups = list(self._wakeups.get(name, ()))
        for wakeup in wakeups:
            wakeup.set()

    def notify_all(self) -> None:
        """Wake every waiter: another process has committed something."""
        with self._mutex:
            wakeups = [wakeup for waiting in self._wakeups.values() for wakeup in waiting]
        for wakeup in wakeups:
            wakeup.set()

    def wait(self, read: Callable[[], T | None], timeout_seconds: float | None, *, name: str | None = None) -> T | None:
        """Return the first value of `read` that is not None, or None at the time-out. `notify(name)` has it read."""
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        wakeup = threading.Event()
        if name is not None:
            with self._mutex:
                self._wakeups.setdefault(name, []).append(wakeup)
        try:
            while True:
                generation = self._store.generation()
                value = read()
                left = POLL_SECONDS if deadline is None else min(deadline - self._clock.monotonic(), POLL_SECONDS)
                if value is not None or left <= 0:
                    return value
                worker = self._worker
                if worker is not None and worker.run_inline():
                    return read()
                if name is not None and worker is not None and worker.notifies_waiters:
                    wakeup.wait(left)
                    wakeup.clear()
                else:
                    self._store.wait(generation, left)
        finally:
            if name is not None:
                self._remove(name, wakeup)

    def _remove(self, name: str, wakeup: threading.Event) -> None:
        with self._mutex:
            self._wakeups[name].remove(wakeup)
            if not self._wakeups[name]:
                del self._wakeups[name]


class LocalNotifier:
    """The observer of a process: passes new work to its worker, if it has one, and results to its waiters."""

    def __init__(self, waiters: ResultWaiters) -> None:
        self._waiters = waiters
        self._worker: LocalWorker | None = None

    def attach(self, worker: LocalWorker | None) -> None:
        """Set the worker of this process, or None once it has stopped."""
        self._worker = worker
        self._waiters.attach(worker)

    def on_message_stored(self, execution_id: str) -> None:
        """Have the worker advance the execution."""
        if self._worker is not None:
            self._worker.wake(execution_id)

    def on_work_stored(self) -> None:
        """Have the worker poll the store."""
        if self._worker is not None:
            self._worker.poll_soon()

    def on_execution_closed(self, execution: Execution) -> None:
        """Wake the waiters of the execution."""
        self._waiters.notify(execution.execution_id)

    def on_remote_commit(self) -> None:
        """Wake all waiters."""
        self._waiters.notify_all()
