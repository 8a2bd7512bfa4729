"""Watch hub: one thread polls the store for all requests that wait for changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headgate.durable.model.records import Execution, execution_of
from headgate.errors import HeadgateError, NotFoundError, ServerBusyError
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.schema import Key
from headgate.store.port import Store

WATCHES_MAX: Final = 2_000
# Minimum time between two polls, so that a busy store is not read after every commit.
_PAUSE_SECONDS: Final = 0.02
# Maximum wait for a commit notification; also bounds how late a shutdown is noticed.
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True, eq=False)
class _Watch:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Execution | None]
    # None: any commit is a change.
    execution_id: str | None
    # Of the execution; without one, the generation of the store after which a commit counts, or None for now.
    version: int | None

    def settle(self, row: Execution | None) -> None:
        self._call(lambda: self.future.set_result(row))

    def fail(self, error: HeadgateError) -> None:
        self._call(lambda: self.future.set_exception(error))

    def _call(self, settle: Callable[[], None]) -> None:
        def settle_once() -> None:
            if not self.future.done():
                settle()

        with suppress(RuntimeError):  # The loop is closed; there is no waiter left.
            self.loop.call_soon_threadsafe(settle_once)


class WatchHub:
    """Wakes requests that wait for a change of an execution, or for any commit. Its thread runs while requests wait.

    Once `stopping` returns True all waits end, so that watchers do not delay a drain.
    """

    def __init__(self, store: Store, *, stopping: Callable[[], bool] = lambda: False) -> None:
        self._store = store
        self._stopping = stopping
        self._lock = threading.Lock()
        self._watches: set[_Watch] = set()
        self._is_running = False
        self._pause = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether waiting requests should end."""
        return self._stopping()

    async def changed(self, execution_id: str, version: int, timeout_seconds: float) -> Execution | None:
        """Return the execution once its version differs, or None on timeout or shutdown.

        Raises `NotFoundError` if it was deleted, `ServerBusyError` at the limit of watches, and errors of the store.
        """
        return await self._wait(execution_id, version, timeout_seconds)

    async def committed(self, timeout_seconds: float, *, after: int | None = None) -> None:
        """Return soon after any commit, on timeout, or on shutdown. Raises as `changed`.

        With `after`, a commit since that generation of the store counts too, if it was before the call.
        """
        await self._wait(None, after, timeout_seconds)

    async def _wait(self, execution_id: str | None, version: int | None, timeout_seconds: float) -> Execution | None:
        loop = asyncio.get_running_loop()
        watch = _Watch(loop, loop.create_future(), execution_id, version)
        self._add(watch)
        try:
            return await asyncio.wait_for(watch.future, max(0.0, timeout_seconds))
        except TimeoutError:
            return None
        finally:
            with self._lock:
                self._watches.discard(watch)

    def _add(self, watch: _Watch) -> None:
        with self._lock:
            if len(self._watches) >= WATCHES_MAX:
                raise ServerBusyError(f"{WATCHES_MAX} requests already wait for changes; retry in a moment")
            self._watches.add(watch)
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="headgate-watches", daemon=True).start()

    def _run(self) -> None:
        generation: int | None = None
        while watches := self._current():
            try:
                generation = self._poll(watches, generation)
            except HeadgateError as exc:
                for watch in watches:
                    watch.fail(exc)
            self._pause.wait(_PAUSE_SECONDS)

    def _current(self) -> list[_Watch]:
        with self._lock:
            self._is_running = bool(self._watches)
            return list(self._watches)

    def _poll(self, watches: list[_Watch], generation: int | None) -> int:
        """Settle the watches with a change since `generation`, wait for a commit, and return the generation read."""
        seen = self._store.generation()
        if self._stopping():
            for watch in watches:
                watch.settle(None)
            return seen
        rows = self._read({watch.execution_id for watch in watches if watch.execution_id is not None})
        for watch in watches:
            if watch.execution_id is None:
                since = generation if watch.version is None else watch.version
                if since not in (None, seen):
                    watch.settle(None)
                continue
            row = rows[watch.execution_id]
            if row is None:
                watch.fail(NotFoundError(f"execution {watch.execution_id}: no longer retained"))
            elif row.version != watch.version:
                watch.settle(row)
        self._store.wait(seen, _POLL_SECONDS)
        return seen

    def _read(self, execution_ids: set[str]) -> dict[str, Execution | None]:
        ids = sorted(execution_ids)
        items = self._store.get_many(EXECUTIONS, [Key(each) for each in ids], consistent=True)
        return {each: None if item is None else execution_of(item) for each, item in zip(ids, items, strict=True)}
