"""Watchdog process: runs the pipeline watchdog on its own, so that it detects a stopped server.

It also delivers alerts that the server does not claim: those of a silent server, and everything it finds meanwhile.
It outlives the server. It exits when a newer watchdog of the same home takes over, and when the home or the database
file is moved, deleted or replaced.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from time import monotonic
from typing import Final

import structlog

from headgate.bootstrap.key_check import check_keys
from headgate.bootstrap.pipelines import OpenPipelines, open_engine, open_pipelines
from headgate.bootstrap.store import AppService, database_path, open_store
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.durable.worker.standby import StandbyWorker
from headgate.errors import HeadgateError
from headgate.notify.deliverer import QUEUE as ALERTS
from headgate.outage_log import OutageLog
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.serve.process import Stop
from headgate.serve.watchdog_lock import WatchdogLock, has_watchdog
from headgate.settings import Settings

RESTART_SECONDS: Final = 2.0
# Minimum pause after a tick that could not evaluate everything.
DEGRADED_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 3.0
# Interval of the checks for a newer watchdog and for a missing home.
_CHECK_SECONDS: Final = 1.0
_RESTART_SECONDS_MAX: Final = 60.0
_log = structlog.get_logger(__name__)


def run(
    settings: Settings,
    *,
    clock: Clock,
    environ: Mapping[str, str],
    announce: Callable[[str], None],
    once: bool = False,
    create: bool = True,
) -> bool:
    """Run ticks until a signal requests the stop, a newer watchdog takes over or the home is gone.

    With `once`, run one tick, beside a running watchdog, and deliver nothing. Without `create`, a missing home raises
    `StoreMovedError`. Returns whether the last tick could evaluate everything.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock, create=create)
    with ExitStack() as stack:
        stack.enter_context(closing(opened.store))
        opened.store.check_health()
        check_keys(opened)
        database = _Database(settings)
        lock = None if once else stack.enter_context(closing(WatchdogLock(settings.home)))
        service = AppService(App("headgate"), opened, clock)
        engine = open_engine(settings, clock, service.ids)
        pipelines = open_pipelines(service, opened, clock, environ=environ, engine=engine)
        watchdog = pipelines.watchdog
        if lock is None:
            return not watchdog.tick().is_degraded
        standby = stack.enter_context(
            closing(
                service.standby_worker(
                    queues=(ALERTS,) if pipelines.delivers_alerts else (), lease_seconds=settings.worker.lease_seconds
                )
            )
        )
        between = _BetweenTicks(pipelines, standby, clock)
        announce(f"headgate watchdog ready  home={settings.home}")
        while _is_wanted(database, lock):
            report = watchdog.tick()
            until = clock.monotonic() + pause_seconds(report, watchdog.seconds_until_next())
            while clock.monotonic() < until and _is_in_place(database, lock):
                between.run()
                if stopping.wait(min(_CHECK_SECONDS, max(0.0, until - clock.monotonic()))):
                    return not report.is_degraded
    return True


class _BetweenTicks:
    """The work between two ticks: heartbeats, and the alerts that the server does not deliver."""

    def __init__(self, pipelines: OpenPipelines, standby: StandbyWorker, clock: Clock) -> None:
        self._pipelines = pipelines
        self._standby = standby
        self._clock = clock
        self._beat_at = clock.monotonic() + pipelines.heartbeats.interval_seconds
        self._outage = OutageLog(_log, "watchdog cannot deliver alerts", pause_seconds=_CHECK_SECONDS)

    def run(self) -> None:
        """Do what is due. A store that is unavailable is logged; the next call tries again."""
        try:
            if self._clock.monotonic() >= self._beat_at:
                self._beat_at = self._clock.monotonic() + self._pipelines.heartbeats.interval_seconds
                self._pipelines.watchdog.exchange_heartbeats()
            self._standby.poll()
            if self._standby.is_member:
                # Digests and escalations, which the server sends while it is there.
                self._pipelines.notifier.tick()
            self._outage.succeeded()
        except HeadgateError as exc:
            self._outage.failed(exc)


def _is_in_place(database: _Database, lock: WatchdogLock) -> bool:
    return lock.is_held() and database.is_in_place()


def _is_wanted(database: _Database, lock: WatchdogLock) -> bool:
    """Whether the watchdog continues. Logs the reason if it does not."""
    if database.is_gone():
        return False
    if not lock.is_held():
        _log.info("a newer watchdog has taken over", action="watchdog.end")
        return False
    return True


def read_settings() -> Settings:
    """Return the settings that a server has written to the standard input of its watchdog."""
    # Trusted: written by the parent server over a private pipe.
    settings: Settings = pickle.load(sys.stdin.buffer)
    return settings


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

    def is_in_place(self) -> bool:
        """Whether the file is the one that was opened. True if that cannot be checked now."""
        if self._path is None:
            return True
        try:
            return self._initial is not None and os.path.samestat(self._path.stat(), self._initial)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            # Temporarily unreachable: the health checks report it.
            return True

    def is_gone(self) -> bool:
        """Whether the file was deleted or replaced. Logs it."""
        is_gone = not self.is_in_place()
        if is_gone:
            _log.warning("database deleted or replaced", action="watchdog.end", database=str(self._path))
        return is_gone


class WatchdogChild:
    """Runs the watchdog as a child process of the server, and restarts it when it exits.

    It is not restarted while the database is gone or another process is the watchdog of the home. Construct it while
    the store is open.
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
        pause_seconds = RESTART_SECONDS
        while self._wait_for_database():
            started_at = monotonic()
            status = self._run()
            if monotonic() - started_at > _RESTART_SECONDS_MAX:
                pause_seconds = RESTART_SECONDS
            if self._stopping.wait(pause_seconds):
                return
            while has_watchdog(self._settings.home):
                # Started by another server or by an operator, after this one.
                if self._stopping.wait(_RESTART_SECONDS_MAX / 10):
                    return
            if pause_seconds == RESTART_SECONDS:
                _log.warning("watchdog exited; restarting", action="watchdog.restart", status=status)
            pause_seconds = min(2 * pause_seconds, _RESTART_SECONDS_MAX)

    def _wait_for_database(self) -> bool:
        """Wait while the database is gone, and return whether to go on."""
        if not self._stopping.is_set() and self._database.is_gone():
            while not self._database.is_in_place():
                if self._stopping.wait(_CHECK_SECONDS):
                    break
        return not self._stopping.is_set()

    def _run(self) -> int | None:
        """Start the process with the settings of this server, and return its status at its end; None: not started."""
        options = ["--settings-from-stdin", "--home", str(self._settings.home)]
        command = [sys.executable, "-m", "headgate", "watchdog", *options]
        try:
            self._process = process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        except OSError as exc:
            # The machine has no memory, process or file descriptor left; a later start may succeed.
            _log.error("watchdog cannot be started", action="watchdog.start", error=str(exc))
            return None
        assert process.stdin is not None, "a pipe was requested"
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(pickle.dumps(self._settings))
        return process.wait()
