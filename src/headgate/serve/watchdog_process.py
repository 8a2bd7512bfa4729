"""Watchdog process: runs the pipeline watchdog on its own, so that it detects a stopped server.

It outlives the server and exits when the database file is deleted or replaced.
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
from headgate.bootstrap.store import AppService, database_path, open_store
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.serve.process import Stop
from headgate.settings import Settings

RESTART_SECONDS: Final = 5.0
# Minimum pause after a tick that could not evaluate everything.
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
    """Run ticks until a signal requests the stop or the database is gone; with `once`, run one tick.

    Returns whether the last tick could evaluate everything.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock)
    with closing(opened.store):
        opened.store.check_health()
        database = _Database(settings)
        service = AppService(App("headgate"), opened, clock)
        engine = open_engine(settings, clock, service.ids)
        watchdog = open_pipelines(service, opened, clock, environ=environ, engine=engine).watchdog
        announce(f"headgate watchdog ready  home={settings.home}")
        while not database.is_gone():
            report = watchdog.tick()
            if once or stopping.wait(pause_seconds(report, watchdog.seconds_until_next())):
                return not report.is_degraded
    return True


def pause_seconds(report: TickReport, until_next_seconds: float) -> float:
    """Return the pause after a tick. A degraded tick is not retried every second."""
    return max(until_next_seconds, DEGRADED_SECONDS) if report.is_degraded else until_next_seconds


class _Database:
    """Detects a deleted or replaced database file. Other backends are never gone."""

    def __init__(self, settings: Settings) -> None:
        self._path = database_path(settings) if settings.store.backend == "sqlite" else None
        self._initial: os.stat_result | None = None
        if self._path is not None:
            # A missing file is reported by the first `is_gone`.
            with suppress(OSError):
                self._initial = self._path.stat()

    def is_gone(self) -> bool:
        """Whether the file was deleted or replaced. Logs it."""
        if self._path is None:
            return False
        try:
            is_same = self._initial is not None and os.path.samestat(self._path.stat(), self._initial)
        except (FileNotFoundError, NotADirectoryError):
            is_same = False
        except OSError:
            # Temporarily unreachable: the health checks report it.
            return False
        if not is_same:
            _log.warning("database deleted or replaced", action="watchdog.end", database=str(self._path))
        return not is_same


class WatchdogChild:
    """Runs the watchdog as a child process of the server, and restarts it when it exits.

    It is not restarted on a deleted database, which it would create anew. Construct it while the store is open.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._database = _Database(settings)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the supervising thread, once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._supervise, name="headgate-watchdog-child", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Terminate the child process."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    def _supervise(self) -> None:
        command = [sys.executable, "-m", "headgate", "watchdog", "--home", str(self._settings.home)]
        while not self._stopping.is_set() and not self._database.is_gone():
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            status = self._process.wait()
            if self._stopping.wait(RESTART_SECONDS):
                return
            _log.warning("watchdog exited; restarting", action="watchdog.restart", status=status)
