"""Worker process: runs workflows and activities of an app, without ports, with the same drain as the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing

import structlog

from headgate.bootstrap.key_check import check_keys
from headgate.bootstrap.store import AppService, open_store, worker_limits
from headgate.clock import Clock
from headgate.durable.sdk.app import App
from headgate.serve.process import Stop, freeze_heap
from headgate.settings import Settings

_GRACE_SHARE = 0.7
_log = structlog.get_logger(__name__)


def run(settings: Settings, app: App, *, clock: Clock, queues: Sequence[str], announce: Callable[[str], None]) -> int:
    """Work until a signal requests the stop, and return the exit code once all work is finished or released.

    The exit code is not 0 if the worker has stopped because of an error.
    """
    stop = Stop(deadline_seconds=settings.drain_seconds)
    stop.install()
    stopping = threading.Event()
    stop.on_request(stopping.set)
    opened = open_store(settings, clock)
    with closing(opened.store):
        opened.store.check_health()
        check_keys(opened)
        service = AppService(app, opened, clock)
        service.start(
            queues=queues,
            limits=worker_limits(settings.worker),
            lease_seconds=settings.worker.lease_seconds,
            turn_seconds=settings.worker.turn_seconds,
            on_fatal=lambda _error: stop.fail(),
        )
        freeze_heap()
        try:
            announce(f"headgate worker ready  app={app.name}  home={settings.home}")
            # With a timeout: on some platforms an unbounded wait blocks the signal handler.
            while not stopping.wait(1.0):
                continue
        finally:
            service.stop(settings.drain_seconds * _GRACE_SHARE)
    _log.info("stopped", action="worker.stop", exit_code=stop.exit_code)
    return stop.exit_code
