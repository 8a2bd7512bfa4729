"""Hangup handling: SIGHUP reloads the project folder, and stops a server whose terminal was closed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog

from headgate.errors import HeadgateError

_log = structlog.get_logger(__name__)


@contextmanager
def on_hangup(reload: Callable[[], object], *, stop: Callable[[], None]) -> Iterator[None]:
    """Call `reload` in a thread on each SIGHUP. If the server's terminal is gone, call `stop` instead."""
    loop = asyncio.get_running_loop()
    has_terminal = _is_terminal()
    reloads: set[asyncio.Task[None]] = set()

    async def run() -> None:
        try:
            await asyncio.to_thread(reload)
        except HeadgateError as exc:
            _log.error("definitions not reloaded", action="definitions.reload", error=exc.message)

    def on_signal() -> None:
        if has_terminal and not _is_terminal():
            stop()
            return
        task = loop.create_task(run())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, on_signal)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in reloads:
            task.cancel()


def _is_terminal() -> bool:
    with suppress(OSError):
        return os.isatty(0)
    return False
