"""A whole server in virtual time: definitions from a folder, real triggers, the stream, the clock, watchdog and alerts.

It is wired as `headgate up` wires it; only its threads are one, and its time is the test's.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, cast

from headgate.bootstrap.pipelines import OpenPipelines, open_pipelines
from headgate.bootstrap.project_folder import apply_folder
from headgate.bootstrap.store import OpenedStore
from headgate.durable.model.duration import Duration, seconds
from headgate.durable.sdk.app import App
from headgate.notify.alert_rows import Alert
from headgate.pipelines.events.outbox import StoredPipelineEvent
from headgate.pipelines.lifecycle.scheduler import ScheduledPipeline
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.schedule.timetables import timetables
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource
from headgate.pipelines.watchdog.verdicts import StoredVerdict
from headgate.settings import PipelineSettings, Settings
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Change
from headgate.testing import Environment
from tests.pipeline_rig import CONSUMER, Rig

# Longer than by default, so that a simulated week has fewer ticks.
TICK_SECONDS: Final = 300.0
SILENT_SECONDS: Final = 900.0
_PAGE: Final = 500
_ROUNDS_MAX: Final = 200


class World(Rig):
    """One server with its watchdog. Who uses it lets time pass; everything happens at its time."""

    open: OpenPipelines

    def __init__(self, start: str, app: App, home: Path) -> None:
        super().__init__(start)
        self.app = app
        self.env = Environment(app, replay_always=False, start_seconds=datetime.fromisoformat(start).timestamp())
        self._home = home
        self._watchdog_at = self._looked_at = 0.0

    def __enter__(self) -> Self:
        self.env.__enter__()
        service = self.env.service
        # Of what was opened, pipelines use the store and the settings alone.
        nothing = cast("Any", None)
        paced = PipelineSettings(watchdog_tick_seconds=TICK_SECONDS, watchdog_silent_seconds=SILENT_SECONDS)
        settings = Settings(home=self._home, pipelines=paced)
        opened = OpenedStore(cast("Any", service.store), nothing, nothing, nothing, settings)
        self.open = open_pipelines(service, opened, service.clock, environ={})
        self.store = service.store
        self.pipelines = self.open.service
        self.stores = self.pipelines.stores
        self.clock = self.pipelines.clock
        self.reader = self.pipelines.reader
        self.known = self.pipelines.known
        self.evaluations = self.pipelines.evaluations
        self.event_writer = self.pipelines.event_writer
        self.pipelines.put_machine()
        self.pipelines.tick()
        # Again: the subscriptions of alerts are new.
        service.bus.register(list(self.app.subscriptions.values()), self.app.name)
        self.heartbeats = self.open.heartbeats
        self.manual = self.pipelines.manual
        return self

    def apply(self, folder: Path) -> None:
        """Take over the definitions of a folder, as the server does when it starts."""
        apply_folder(self.open, folder)
        self.learn()

    def learn(self) -> None:
        """Have the clockwork know the definitions as they are stored."""
        calendars = self.reader.calendars()
        defined = [
            ScheduledPipeline(stored.pipeline, stored.version, datetime.fromisoformat(stored.at))
            for stored in self.pipelines.definitions.all().pipelines
        ]
        self.pipelines.cron_scheduler.load(defined, lambda pipeline: timetables(pipeline, calendars))

    # Time.

    def advance(self, duration: Duration) -> None:
        until = self.env.clock.seconds() + seconds(duration, name="advance")
        self.pump()
        while True:
            due = min(self.env.worker.schedule.next_due_ms / 1000, self._next_tick(), self._watchdog_at)
            moment = min(max(due, self.env.clock.seconds()), until)
            self.env.clock.advance(moment - self.env.clock.seconds())
            self.pipelines.tick()
            self.pump()
            if moment >= self._watchdog_at:
                self._look()
            if moment >= until:
                return

    def sleep_until(self, text: str) -> None:
        """Let time pass with no process there: no server, no watchdog, only the clock."""
        self.env.clock.advance(datetime.fromisoformat(text).timestamp() - self.env.clock.seconds())

    def pump(self) -> None:
        for _ in range(_ROUNDS_MAX):
            self.env.run()
            changes = self.read_stream()
            if not changes:
                return
            for change in changes:
                self.pipelines.on_change(change)
        raise AssertionError("no rest: something asks for itself again and again")

    def read_stream(self) -> list[Change]:
        batch = self.store.changes(PIPELINES, CONSUMER, limit=_PAGE)
        if batch.changes:
            self.store.checkpoint(PIPELINES, CONSUMER, batch.position)
        return batch.changes

    def _look(self) -> None:
        """Have the watchdog look; if nothing is due, as it does when it is asked to rest twice as long."""
        now_seconds = self.env.clock.seconds()
        rests = self.open.watchdog.seconds_until_next()
        if rests >= TICK_SECONDS and now_seconds < self._looked_at + 2 * TICK_SECONDS:
            self._watchdog_at = now_seconds + TICK_SECONDS
            return
        self._looked_at = now_seconds
        self.heartbeats.beat(HeartbeatSource.SERVER)
        report = self.open.watchdog.tick()
        assert not report.failed, report.failed
        self.open.notifier.tick()
        self.pump()
        self._watchdog_at = self.env.clock.seconds() + self.open.watchdog.seconds_until_next()

    # Looking.

    def all_runs(self, pipeline_id: str) -> list[Run]:
        """Return the runs of a pipeline, the first first."""
        found: list[Run] = []
        cursor: str | None = None
        while True:
            page = self.stores.runs.ls(pipeline_id, limit=_PAGE, cursor=cursor)
            found += page.runs
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda run: run.created_at_ms)

    def all_events(self, pipeline_id: str) -> list[StoredPipelineEvent]:
        """Return what was reported of a pipeline, in order."""
        found: list[StoredPipelineEvent] = []
        cursor: str | None = None
        while True:
            page = self.pipelines.events.ls(pipeline_id, limit=_PAGE, cursor=cursor, descending=False)
            found += page.events
            cursor = page.cursor
            if cursor is None:
                return found

    def all_verdicts(self, pipeline_id: str) -> list[StoredVerdict]:
        found: list[StoredVerdict] = []
        cursor: str | None = None
        while True:
            page = self.open.verdicts.ls(pipeline_id, limit=_PAGE, cursor=cursor)
            found += page.verdicts
            cursor = page.cursor
            if cursor is None:
                return found

    def all_alerts(self) -> list[Alert]:
        found: list[Alert] = []
        cursor: str | None = None
        while True:
            page = self.open.alerts.ls(limit=_PAGE, cursor=cursor)
            found += page.alerts
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda alert: alert.at_ms)
