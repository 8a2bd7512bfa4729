"""The process of the watchdog: its own, so that it sees when everything else has stopped."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

import structlog

from headgate.clock import Clock
from headgate.durable.app import App
from headgate.pipeline_wiring import open_engine, open_pipelines
from headgate.serve.stop import Stop
from headgate.settings import Settings
from headgate.wiring import join_fanouts, open_fanouts, open_service, open_store

RESTART_SECONDS: Final = 5.0
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
    """Make ticks until a signal asks to stop, or one. Returns whether the last could look at everything."""
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock)
    with closing(opened.store):
        opened.store.check_health()
        service = open_service(App("headgate"), opened, clock)
        fanouts = open_fanouts(opened, clock, service.ids)
        join_fanouts(service, opened, fanouts)
        engine = open_engine(settings, clock, service.ids)
        watchdog = open_pipelines(service, opened, fanouts, clock, environ=environ, engine=engine).watchdog
        announce(f"headgate watchdog ready  home={settings.home}")
        while True:
            report = watchdog.tick()
            if once or stopping.wait(watchdog.seconds_until_next()):
                return not report.is_degraded


class WatchdogChild:
    """Keeps a watchdog running as a child of the server, and starts it again if it ends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
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
        while not self._stopping.is_set():
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            status = self._process.wait()
            if self._stopping.wait(RESTART_SECONDS):
                return
            _log.warning("the watchdog ended", action="watchdog.restart", status=status)
