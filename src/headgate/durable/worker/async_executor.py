"""Async performers: one event loop in a thread of its own, on which every `async` activity of a worker runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from headgate.durable.engine.activity_store import Ended
from headgate.durable.model.records import Activity
from headgate.durable.worker.executor import Running, perform_async
from headgate.durable.worker.worker import Worker

STOP_SECONDS: Final = 1.0


class AsyncPerformers:
    """Performs activities on a loop that is started with the first of them."""

    def __init__(self, worker: Worker, *, ended: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._worker = worker
        self._ended = ended
        self._failed = failed
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def perform(self, activity: Activity) -> None:
        """Begin an activity, and return without waiting for its end."""
        if not self._worker.still_holds(activity):
            return
        running = self._worker.begin(activity)
        asyncio.run_coroutine_threadsafe(self._perform(activity, running), self._running_loop())

    def stop(self) -> None:
        """Cancel what still runs, and let go of the loop. One that does not let itself be cancelled is left behind."""
        if self._loop is None or self._thread is None:
            return
        loop = self._loop
        cancelled = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        try:
            cancelled.result(STOP_SECONDS)
        except TimeoutError:
            return
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            loop.close()

    async def _perform(self, activity: Activity, running: Running) -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None, "a coroutine on a loop runs in a task"
        running.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        outcome: Ended | None = None
        # Only now: whoever gave it up before had nothing to cancel.
        if not running.is_abandoned:
            definition = self._worker.definition(activity)
            outcome = await perform_async(definition, Raw(activity.input.encode()), running.context)
        # Recording may wait for the disk, and the loop has other activities to run. It is done, whoever cancels.
        await asyncio.shield(loop.run_in_executor(None, self._finish, activity, outcome))

    def _finish(self, activity: Activity, outcome: Ended | None) -> None:
        try:
            self._worker.finish(activity, outcome)
        except Exception as exc:  # noqa: BLE001 - nobody awaits this; the worker stops and says why
            self._failed(exc)
        self._ended()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-async", daemon=True)
                self._thread.start()
            return self._loop


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS / 2)
    await asyncio.get_running_loop().shutdown_default_executor()
