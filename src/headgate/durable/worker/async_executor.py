"""Async executor: runs every `async` activity of a worker on one event loop, in a dedicated thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.failures import Cancelled
from headgate.durable.model.records import Activity
from headgate.durable.worker.executor import RunningAttempt, failed, perform_async
from headgate.durable.worker.worker import Worker
from headgate.errors import SealedPayloadError

STOP_SECONDS: Final = 1.0


class AsyncExecutor:
    """Runs `async` activities. The event loop starts with the first activity."""

    def __init__(self, worker: Worker, *, on_ended: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        self._worker = worker
        self._on_ended = on_ended
        self._on_failed = on_failed
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def perform(self, activity: Activity) -> None:
        """Start an activity, and return without waiting for its end."""
        if not self._worker.may_start(activity):
            return
        running = self._worker.begin(activity)
        asyncio.run_coroutine_threadsafe(self._perform(activity, running), self._running_loop())

    def stop(self) -> None:
        """Cancel all running activities and stop the loop. An activity that resists cancellation keeps its loop."""
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

    async def _perform(self, activity: Activity, running: RunningAttempt) -> None:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None, "a coroutine on a loop runs in a task"

        def cancel() -> None:
            # Its own heartbeat raises in it, and a second cancellation would interrupt how it cleans up.
            if not _is_current(task):
                loop.call_soon_threadsafe(task.cancel)

        running.cancel = cancel
        result: AttemptResult | None = None
        # Checked after `cancel` is set: an earlier `abandon` or `request_cancel` had nothing to cancel.
        if running.activity.is_cancel_requested:
            result = failed(Cancelled(), running.context)
        elif not running.is_abandoned:
            definition = self._worker.definition(activity)
            try:
                input = self._worker.input_of(activity)
            except SealedPayloadError as exc:
                result = failed(exc, running.context)
            else:
                result = await perform_async(definition, input, running.context)
        # In a thread, because recording waits for the disk; shielded, so that a cancellation does not lose the result.
        await asyncio.shield(loop.run_in_executor(None, self._finish, activity, result))

    def _finish(self, activity: Activity, result: AttemptResult | None) -> None:
        try:
            self._worker.finish(activity, result)
        except Exception as exc:  # noqa: BLE001 - no caller awaits this; the worker stops and logs the error
            self._on_failed(exc)
        self._on_ended()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-async", daemon=True)
                self._thread.start()
            return self._loop


def _is_current(task: asyncio.Task[None]) -> bool:
    """Whether the caller is this task; False in a thread without a loop."""
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_SECONDS / 2)
    await asyncio.get_running_loop().shutdown_default_executor()
