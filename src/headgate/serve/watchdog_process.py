"""The process of the watchdog: its own, so that it sees when everything else has stopped.

It outlives its server, and ends with the database: nobody could ever read what it says of one that is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Final

import structlog

from headgate.bootstrap.pipelines import open_engine, open_pipelines
from headgate.bootstrap.store import database_path, join_fanouts, open_service, open_store
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.serve.process import Stop
from headgate.settings import Settings

RESTART_SECONDS: Final = 5.0
# Between a tick that could not look at everything and the next, at least.
DEGRADED_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 3.0
_log = structlog.get_logger(__name__)


def run(
    settings: Settings,
    *,
    clock: Clock,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    once: bool = False,
) -> bool:
    """Make ticks until a signal asks to stop or the database is gone, or one.

    Returns whether the last could look at everything.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock)
    with closing(opened.store):
        opened.store.check_health()
        database = _Database(settings)
        service = open_service(App("headgate"), opened, clock)
        fanouts = join_fanouts(service, opened, clock)
        engine = open_engine(settings, clock, service.ids)
        watchdog = open_pipelines(service, opened, fanouts, clock, environ=environ, engine=engine).watchdog
        announce(f"headgate watchdog ready  home={settings.home}")
        while not database.is_gone():
            report = watchdog.tick()
            if once or stopping.wait(rest_seconds(report, watchdog.seconds_until_next())):
                return not report.is_degraded
    return True


def rest_seconds(report: TickReport, until_next_seconds: float) -> float:
    """Return how long to rest after a tick. What it could not look at stays due, and is not tried every second."""
    return max(until_next_seconds, DEGRADED_SECONDS) if report.is_degraded else until_next_seconds


class _Database:
    """The database as it was at first. Only one that is a file can be gone."""

    def __init__(self, settings: Settings) -> None:
        self._path = database_path(settings) if settings.store.backend == "sqlite" else None
        self._first: os.stat_result | None = None
        if self._path is not None:
            # What is lost already is gone at the first question.
            with suppress(OSError):
                self._first = self._path.stat()

    def is_gone(self) -> bool:
        """Whether it was deleted or replaced; if so, that is logged."""
        if self._path is None:
            return False
        try:
            is_same = self._first is not None and os.path.samestat(self._path.stat(), self._first)
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        except OSError:
            # Out of reach may be for a while, and the checks tell of it.
            return False
        if not is_same:
            _log.warning("the database was deleted or replaced", action="watchdog.end", database=str(self._path))
        return not is_same


class WatchdogChild:
    """Keeps a watchdog running as a child of the server, and starts it again if it ends.

    Not on a database that is gone, of which it would make a new one. To be made while the store is open.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = _Database(settings)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="headgate-watchdog-child", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def _keep(self) -> None:
        command = [sys.executable, "-m", "headgate", "watchdog", "--home", str(self._settings.home)]
        while not self._stopping.is_set() and not self._database.is_gone():
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            status = self._process.wait()
            if self._stopping.wait(RESTART_SECONDS):
                return
            _log.warning("the watchdog ended", action="watchdog.restart", status=status)
