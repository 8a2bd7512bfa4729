"""Background threads of the pipelines layer: one follows the change stream, one runs timed work."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from headgate.errors import HeadgateError, StreamTrimmedError, TransientError
from headgate.outage_log import OutageLog
from headgate.pipelines.lifecycle.scheduler import ScheduledPipeline
from headgate.pipelines.readiness.poller import is_waiter_row
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
TICK_SECONDS_MAX: Final = 5.0
# Evaluations that are due close together are done in one tick, and stored with one commit.
_PACE_SECONDS: Final = 0.25
_ALSO_SECONDS: Final = 1.0
# How often definitions are reloaded without a change, because another server may have consumed it and died.
RELOAD_SECONDS: Final = 300.0
# Most changes cause no work, and a checkpoint for each would contend with the writers. One checkpoint covers several;
# after a crash some changes are handled again, which is idempotent.
_UNMARKED_MAX: Final = 8
_UNMARKED_SECONDS_MAX: Final = 0.2
# A run commits several times in a row: this pause reads those changes as one batch.
_BURST_SECONDS: Final = 0.003
_log = structlog.get_logger(__name__)


class PipelineLoops:
    """Runs the change stream consumer and the timed work of a pipeline service. `stop` waits for work in progress."""

    def __init__(
        self,
        service: PipelineService,
        *,
        also: Callable[[], object] = lambda: None,
        tick_seconds_max: float = TICK_SECONDS_MAX,
    ) -> None:
        """`also` is called about once a second, and at least every `tick_seconds_max`: backfills, grouped alerts."""
        self._service = service
        self._tick_seconds_max = tick_seconds_max
        self._also = also
        self._stopping = threading.Event()
        # Whether definitions have changed, and whether the tick thread is to wake up now.
        self._is_stale = True
        self._wakeup = threading.Event()
        self._reload_at = self._also_at = self._wakes_at = 0.0
        # Ids of changes handled since the last stream checkpoint, and when the next checkpoint is due.
        self._handled: set[str] = set()
        self._checkpoint_at = 0.0
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            for name, work in (("headgate-router", self.route), ("headgate-scheduler", self.tick))
        ]

    def start(self) -> None:
        """Store the state machine and start the threads."""
        self._service.put_machine()
        for thread in self._threads:
            thread.start()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop the threads and wait for them."""
        self._stopping.set()
        self._wakeup.set()
        self._service.store.wake()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(grace_seconds)

    def route(self) -> float:
        """Handle the next changes of the stream, and return the seconds to pause."""
        store = self._service.store
        seen = store.generation(Topic.PIPELINES)
        if self._stopping.is_set():
            # `stop` has woken the store already, and does not do it again.
            return 0.0
        try:
            batch = store.changes(PIPELINES, CONSUMER, limit=_BATCH, start=StreamStart.NEWEST)
        except StreamTrimmedError as exc:
            # The watchdog finds the consequences: it reads rows, not changes.
            _log.warning("changes were missed", action="router", error=str(exc))
            store.delete(STREAM_CHECKPOINTS, Key(CONSUMER, PIPELINES.name))
            return 0.0
        new = [change for change in batch.changes if change.id not in self._handled]
        for change in new:
            self._handle(change)
        if not self._handled:
            store.wait(seen, _WAIT_SECONDS, Topic.PIPELINES)
        elif len(self._handled) >= _UNMARKED_MAX or self._service.clock.monotonic() >= self._checkpoint_at:
            store.checkpoint(PIPELINES, CONSUMER, batch.position)
            self._handled.clear()
        elif not new:
            store.wait(seen, _UNMARKED_SECONDS_MAX, Topic.PIPELINES)
        return _BURST_SECONDS if new else 0.0

    def _handle(self, change: Change) -> None:
        try:
            self._service.on_change(change)
        except TransientError:
            raise
        except HeadgateError as exc:
            # A retry would fail too, and must not block the changes after it.
            _log.error("change skipped", key=str(change.key), error=str(exc))
        if str(change.key.sort) == "CONFIG":
            self._is_stale = True
            self._wakeup.set()
        elif is_waiter_row(change) and self._is_asleep_for_long():
            self._wakeup.set()
        if not self._handled:
            self._checkpoint_at = self._service.clock.monotonic() + _UNMARKED_SECONDS_MAX
        self._handled.add(change.id)

    def tick(self) -> float:
        """Run everything that is due, and return the seconds until the next work."""
        service = self._service
        self._wakeup.clear()
        now = service.clock.monotonic()
        if self._is_stale or now >= self._reload_at:
            self._reload()
            self._reload_at = now + RELOAD_SECONDS
        service.tick()
        if now >= self._also_at:
            self._also_at = now + _ALSO_SECONDS
            self._also()
        # Until the wait is computed, every new waiter wakes this thread.
        self._wakes_at = math.inf
        wait_seconds = min(service.cron_scheduler.seconds_left(), self._until_poll(), self._tick_seconds_max)
        self._wakes_at = service.clock.monotonic() + wait_seconds
        return wait_seconds

    def _until_poll(self) -> float:
        """Return the seconds until the next readiness poll: paced to batch evaluations, unless the poller is behind."""
        poller = self._service.readiness_poller
        return 0.0 if poller.is_behind else max(poller.seconds_left(), _PACE_SECONDS)

    def _is_asleep_for_long(self) -> bool:
        """Whether the tick thread would wake too late for a new waiter."""
        now = self._service.clock.monotonic()
        return self._wakes_at > now + max(self._service.readiness_poller.seconds_left(), _PACE_SECONDS)

    def _reload(self) -> None:
        # Cleared first: a change during the read causes another reload.
        self._is_stale = False
        try:
            self._load_definitions()
        except HeadgateError:
            self._is_stale = True
            raise

    def _load_definitions(self) -> None:
        page = self._service.definitions.all()
        calendars = self._service.reader.calendars()
        defined = [
            ScheduledPipeline(stored.pipeline, stored.version, datetime.fromisoformat(stored.at).astimezone(UTC))
            for stored in page.pipelines
        ]
        self._service.cron_scheduler.load(defined, lambda pipeline: timetables(pipeline, calendars))
        schedules = (each for stored in page.pipelines for each in stored.pipeline.schedules)
        self._service.event_schedules.follow(each.event for each in schedules if each.event is not None)

    def _run(self, work: Callable[[], float]) -> None:
        outage = OutageLog(_log, "pipeline background thread failed", pause_seconds=_PAUSE_SECONDS)
        while not self._stopping.is_set():
            try:
                wait_seconds = work()
                outage.succeeded()
            except HeadgateError as exc:
                # Keep going: pipelines must start again when the cause is gone.
                self._stopping.wait(outage.failed(exc, action="pipelines.loop", code=exc.code))
                continue
            if self._stopping.is_set():
                return
            if wait_seconds and work == self.tick:
                self._wakeup.wait(wait_seconds)
            elif wait_seconds:
                self._stopping.wait(wait_seconds)
