"""Loops: the threads that keep pipelines going: one hears of changes, one watches the clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from headgate.errors import HeadgateError, StreamTrimmedError, TransientError
from headgate.pipelines.lifecycle.scheduler import Defined
from headgate.pipelines.readiness.poller import is_of_waiter
from headgate.pipelines.schedule.timetables import timetables
from headgate.pipelines.service import PipelineService
from headgate.store.catalogue.tables import PIPELINES, STREAM_CHECKPOINTS
from headgate.store.model.requests import Change, StreamStart
from headgate.store.model.schema import Key
from headgate.store.topics import Topic

CONSUMER: Final = "stream-router"
_BATCH: Final = 100
_PAUSE_SECONDS: Final = 1.0
_WAIT_SECONDS: Final = 5.0
_LOOK_SECONDS_MAX: Final = 5.0
# Looks that are due soon after each other are made together, and are kept with one commit.
_PACE_SECONDS: Final = 0.25
_ALSO_SECONDS: Final = 1.0
# How often definitions are read although nothing was heard of them: another server may have heard it, and be gone.
LEARN_SECONDS: Final = 300.0
# Most changes ask for nothing, and to remember each by itself would be a commit in the way of those who work. So some
# are remembered together; whoever comes after a crash hears them again, which does no harm.
_UNMARKED_MAX: Final = 8
_UNMARKED_SECONDS_MAX: Final = 0.2
# A run commits several times in a row, and most of it asks for nothing: that is heard together.
_BURST_SECONDS: Final = 0.003
_log = structlog.get_logger(__name__)


class PipelineLoops:
    """Runs what a service of pipelines has to do by itself. `stop` waits for what is under way."""

    def __init__(self, service: PipelineService, *, also: Callable[[], object] = lambda: None) -> None:
        """Take `also`, which is called every few seconds beside the clock: backfills, alerts that are grouped."""
        self._service = service
        self._also = also
        self._stopping = threading.Event()
        # Whether definitions have changed, and whether the clock is to be looked at now.
        self._is_stale = True
        self._rung = threading.Event()
        self._learn_at = self._also_at = self._wakes_at = 0.0
        # The changes that were heard since the last checkpoint, and when there is to be another.
        self._heard: set[str] = set()
        self._mark_at = 0.0
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("headgate-router", self.route), ("headgate-clockwork", self.tick))
        ]

    def start(self) -> None:
        """Begin."""
        self._service.put_machine()
        for thread in self._threads:
            thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """End."""
        self._stopping.set()
        self._rung.set()
        self._service.parts.store.wake()
        for thread in self._threads:
            thread.join(grace_seconds)

    def route(self) -> float:
        """Act on the next changes, and return for how many seconds nothing more needs to be looked at."""
        store = self._service.parts.store
        seen = store.generation(Topic.PIPELINES)
        if self._stopping.is_set():
            # Whoever stops it has woken it before, and will not do so again.
            return 0.0
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
            store.wait(seen, _WAIT_SECONDS, Topic.PIPELINES)
        elif len(self._heard) >= _UNMARKED_MAX or self._service.parts.clock.monotonic() >= self._mark_at:
            store.checkpoint(PIPELINES, CONSUMER, batch.position)
            self._heard.clear()
        elif not news:
            store.wait(seen, _UNMARKED_SECONDS_MAX, Topic.PIPELINES)
        return _BURST_SECONDS if news else 0.0

    def _hear(self, change: Change) -> None:
        try:
            self._service.hear(change)
        except TransientError:
            raise
        except HeadgateError as exc:
            # It would fail again, and must not hold up what comes after it.
            _log.error("change passed over", key=str(change.key), error=str(exc))
        if str(change.key.sort) == "CONFIG":
            self._is_stale = True
            self._rung.set()
        elif is_of_waiter(change) and self._is_asleep_for_long():
            self._rung.set()
        if not self._heard:
            self._mark_at = self._service.parts.clock.monotonic() + _UNMARKED_SECONDS_MAX
        self._heard.add(change.id)

    def tick(self) -> float:
        """Do what is due, and return for how many seconds nothing will be, as far as is known."""
        service = self._service
        self._rung.clear()
        now = service.parts.clock.monotonic()
        if self._is_stale or now >= self._learn_at:
            self._learn()
            self._learn_at = now + LEARN_SECONDS
        service.tick()
        if now >= self._also_at:
            self._also_at = now + _ALSO_SECONDS
            self._also()
        # Until that is known, whoever is heard of rings.
        self._wakes_at = math.inf
        wait_seconds = min(service.clockwork.seconds_left(), self._until_look(), _LOOK_SECONDS_MAX)
        self._wakes_at = service.parts.clock.monotonic() + wait_seconds
        return wait_seconds

    def _until_look(self) -> float:
        """Return in how many seconds to look again at what runs wait for: at several at once, if none is late."""
        lookout = self._service.lookout
        return 0.0 if lookout.is_behind else max(lookout.seconds_left(), _PACE_SECONDS)

    def _is_asleep_for_long(self) -> bool:
        """Whether whoever watches the clock would look too late by itself at who has just begun to wait."""
        now = self._service.parts.clock.monotonic()
        return self._wakes_at > now + max(self._service.lookout.seconds_left(), _PACE_SECONDS)

    def _learn(self) -> None:
        # Before it reads: what changes while it does is read again.
        self._is_stale = False
        try:
            self._know()
        except HeadgateError:
            self._is_stale = True
            raise

    def _know(self) -> None:
        page = self._service.definitions.all()
        calendars = self._service.parts.calendars()
        defined = [
            Defined(stored.pipeline, stored.version, datetime.fromisoformat(stored.at).astimezone(UTC))
            for stored in page.pipelines
        ]
        self._service.clockwork.know(defined, lambda pipeline: timetables(pipeline, calendars))
        schedules = (each for stored in page.pipelines for each in stored.pipeline.schedules)
        self._service.event_schedules.follow(each.event for each in schedules if each.event is not None)

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
            if self._stopping.is_set():
                return
            if wait_seconds and work == self.tick:
                self._rung.wait(wait_seconds)
            elif wait_seconds:
                self._stopping.wait(wait_seconds)
