"""Loops: the threads that keep pipelines going: one hears of changes, one watches the clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from headgate.errors import HeadgateError, StreamTrimmedError, TransientError
from headgate.pipelines.clockwork import Defined
from headgate.pipelines.due_slots import timetables
from headgate.pipelines.service import PipelineService
from headgate.store.schema import Key
from headgate.store.tables import PIPELINES, STREAM_CHECKPOINTS
from headgate.store.writes import Change, StreamStart

CONSUMER: Final = "stream-router"
_BATCH: Final = 100
_PAUSE_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 5.0
_LOOK_SECONDS_MAX: Final = 5.0
# Most changes ask for nothing, and to remember each by itself would be a commit in the way of those who work. So some
# are remembered together; whoever comes after a crash hears them again, which does no harm.
_UNMARKED_MAX: Final = 8
_UNMARKED_SECONDS_MAX: Final = 0.2
_log = structlog.get_logger(__name__)


class PipelineLoops:
    """Runs what a service of pipelines has to do by itself. `stop` waits for what is under way."""

    def __init__(self, service: PipelineService, *, also: Callable[[], object] = lambda: None) -> None:
        """Take `also`, which is called every few seconds beside the clock: backfills, alerts that are grouped."""
        self._service = service
        self._also = also
        self._stopping = threading.Event()
        self._changed = threading.Event()
        # The changes that were heard since the last checkpoint, and when there is to be another.
        self._heard: set[str] = set()
        self._mark_at = 0.0
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("headgate-router", self.route), ("headgate-clockwork", self._tick))
        ]

    def start(self) -> None:
        """Begin."""
        self._service.put_machine()
        for thread in self._threads:
            thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """End."""
        self._stopping.set()
        self._changed.set()
        for thread in self._threads:
            thread.join(grace_seconds)

    def route(self) -> float:
        """Act on the next changes, and return for how many seconds nothing more needs to be looked at."""
        store = self._service.parts.store
        seen = store.generation()
        try:
            batch = store.changes(PIPELINES, CONSUMER, limit=_BATCH, start=StreamStart.NEWEST)
        except StreamTrimmedError as exc:
            # What was missed is found by the watchdog, which looks at rows and not at changes.
            _log.warning("changes were missed", action="router", error=str(exc))
            store.delete(STREAM_CHECKPOINTS, Key(CONSUMER, PIPELINES.name))
            return 0.0
        news = [change for change in batch.changes if change.id not in self._heard]
        for change in news:
            self._hear(change)
        if not self._heard:
            store.wait(seen, _WAIT_SECONDS)
        elif len(self._heard) >= _UNMARKED_MAX or self._service.parts.clock.monotonic() >= self._mark_at:
            store.checkpoint(PIPELINES, CONSUMER, batch.position)
            self._heard.clear()
        elif not news:
            store.wait(seen, _UNMARKED_SECONDS_MAX)
        return 0.0

    def _hear(self, change: Change) -> None:
        try:
            self._service.router.hear(change)
        except TransientError:
            raise
        except HeadgateError as exc:
            # It would fail again, and must not hold up what comes after it.
            _log.error("change passed over", key=str(change.key), error=str(exc))
        if str(change.key.sort) == "CONFIG":
            self._changed.set()
        if not self._heard:
            self._mark_at = self._service.parts.clock.monotonic() + _UNMARKED_SECONDS_MAX
        self._heard.add(change.id)

    def _tick(self) -> float:
        service = self._service
        if self._changed.is_set() or not self._is_known:
            self._changed.clear()
            self._learn()
        service.clockwork.tick()
        self._also()
        return min(service.clockwork.seconds_left(), _LOOK_SECONDS_MAX)

    _is_known = False

    def _learn(self) -> None:
        page = self._service.definitions.all()
        calendars = self._service.parts.calendars()
        defined = [
            Defined(stored.pipeline, stored.version, datetime.fromisoformat(stored.at).astimezone(UTC))
            for stored in page.pipelines
        ]
        self._service.clockwork.know(defined, lambda pipeline: timetables(pipeline, calendars))
        self._is_known = True

    def _run(self, work: Callable[[], float]) -> None:
        while not self._stopping.is_set():
            try:
                wait_seconds = work()
            except TransientError as exc:
                _log.warning("the store is busy", error=str(exc))
                wait_seconds = _PAUSE_SECONDS
            except HeadgateError as exc:
                # Pipelines that nobody begins any more would be worse than one error a second in the log.
                _log.critical("pipelines cannot go on", action="pipelines.loop", error=str(exc))
                wait_seconds = _PAUSE_SECONDS
            if wait_seconds and work == self._tick:
                self._changed.wait(wait_seconds)
            elif wait_seconds:
                self._stopping.wait(wait_seconds)
