"""Background work of the server: durable worker, pipeline loops, fan-out workers, watchdog process and sweepers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from headgate.bootstrap.health import OpenRegion
from headgate.bootstrap.manifests import manifest_folder
from headgate.bootstrap.pipelines import COMMANDS_FOLDER, OpenPipelines
from headgate.bootstrap.store import AppService, OpenedStore, ensure_space_reserve, worker_limits
from headgate.checks.poller import CheckThread
from headgate.clock import Clock
from headgate.errors import StoreUnavailableError
from headgate.fanout.background_threads import Background
from headgate.fanout.service import FanoutService
from headgate.health.regions.agent import KEEP_SECONDS
from headgate.health.service import HealthService
from headgate.notify.deliverer import QUEUE as ALERTS
from headgate.pipelines.background_threads import TICK_SECONDS_MAX, PipelineLoops
from headgate.pipelines.probes.poller import ProbeThread
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource
from headgate.serve.sweeper import Sweeper
from headgate.serve.watchdog_process import WatchdogChild
from headgate.settings import Settings
from headgate.triggers.local.command_ends import CommandEnds

ROWS_SWEPT_EVERY_SECONDS: Final = 60.0
# A sweep for unreferenced blobs lists every old blob; once an hour is enough.
BLOBS_SWEPT_EVERY_SECONDS: Final = 3600.0
INCIDENTS_EVERY_SECONDS: Final = 5.0
EVENTS_EVERY_SECONDS: Final = 1.0
ARCHIVED_EVERY_SECONDS: Final = 60.0
TIDIED_EVERY_SECONDS: Final = 6 * 3600.0
RUNS_PRUNED_EVERY_SECONDS: Final = 3600.0
LEASE_EVERY_SECONDS: Final = 60.0
# Interval of attempts to start the workers while the store cannot be written.
_LATE_START_SECONDS: Final = 1.0
RESERVED_EVERY_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class Workers:
    """Runs the app's workflows and activities, pipelines and fan-outs, in threads and child processes."""

    def __init__(
        self,
        settings: Settings,
        *,
        service: AppService,
        fanouts: FanoutService,
        pipelines: OpenPipelines,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._service = service
        self._fanouts = fanouts
        self._pipelines = pipelines
        self._clock = clock
        self._watchdog = WatchdogChild(settings)
        self._heartbeat_at = 0.0
        # With a state machine on AWS, Lambda functions start and watch the pipelines.
        runs_pipelines = settings.pipelines.state_machine_arn is None
        tick_seconds_max = min(TICK_SECONDS_MAX, pipelines.heartbeats.interval_seconds)
        self._loops = (
            PipelineLoops(pipelines.service, also=self._on_pipeline_tick, tick_seconds_max=tick_seconds_max)
            if runs_pipelines
            else None
        )
        self._command_ends = CommandEnds(settings.home / COMMANDS_FOLDER, clock, pipelines.service.job_ends.wake)
        self._probes = ProbeThread(pipelines.probes.poller) if runs_pipelines else None
        self._checks = CheckThread(pipelines.checks.poller) if runs_pipelines and pipelines.checks is not None else None
        self._chunks: Background | None = None
        self._stopping = threading.Event()
        self._late_start: threading.Thread | None = None

    def start(self, on_fatal: Callable[[], None], first: Sequence[Callable[[], None]] = ()) -> None:
        """Start all workers, after the calls of `first`. `on_fatal` is called from a worker that cannot continue.

        If the store cannot be written, what remains is started by a thread as soon as it can.
        """
        steps = deque[Callable[[], None]]([*first, partial(self._start_service, on_fatal)])
        if self._loops is not None:
            steps += [self._loops.start, self._command_ends.start]
        if self._probes is not None:
            steps.append(self._probes.start)
        if self._checks is not None:
            steps.append(self._checks.start)
        steps.append(partial(self._start_chunks, on_fatal))
        try:
            _run_all(steps)
        except StoreUnavailableError as exc:
            _log.warning("workers wait for the store", action="server.start", error=exc.message)
            self._late_start = threading.Thread(
                target=self._start_late, args=(steps, on_fatal), name="headgate-late-start", daemon=True
            )
            self._late_start.start()

    def _start_late(self, steps: deque[Callable[[], None]], on_fatal: Callable[[], None]) -> None:
        while not self._stopping.wait(_LATE_START_SECONDS):
            try:
                _run_all(steps)
            except StoreUnavailableError:
                continue
            except Exception:  # noqa: BLE001 - top of a thread: the server ends
                _log.exception("workers cannot be started", action="server.start")
                on_fatal()
            else:
                _log.warning("workers started", action="server.start")
            return

    def request_stop(self) -> None:
        """Start no more workers. Waits for a start in progress."""
        self._stopping.set()
        if self._late_start is not None:
            self._late_start.join()

    def _start_service(self, on_fatal: Callable[[], None]) -> None:
        worker = self._settings.worker
        if self._service.app.workflows or self._service.app.activity_names():
            self._service.start(
                queues=("default", ALERTS) if self._pipelines.delivers_alerts else ("default",),
                limits=worker_limits(worker),
                lease_seconds=worker.lease_seconds,
                turn_seconds=worker.turn_seconds,
                on_fatal=lambda _error: on_fatal(),
            )

    def _start_chunks(self, on_fatal: Callable[[], None]) -> None:
        fanout = self._settings.fanout
        self._chunks = Background(
            self._fanouts,
            processes=fanout.processes,
            trusted=fanout.handlers,
            on_fatal=lambda _error: on_fatal(),
            manifests=manifest_folder(self._settings),
        )
        self._chunks.start()

    def stop_service(self, grace_seconds: float) -> None:
        """Stop the durable worker."""
        self._service.stop(grace_seconds)

    def stop_chunks(self, grace_seconds: float = 0.0) -> None:
        """Stop the chunk workers."""
        if self._chunks is not None:
            self._chunks.stop(grace_seconds)

    def stop_pipelines(self, grace_seconds: float) -> None:
        """Stop the watchdog process and the pipeline loops."""
        self._watchdog.stop()
        self._command_ends.stop(grace_seconds)
        if self._probes is not None:
            self._probes.stop(grace_seconds)
        if self._checks is not None:
            self._checks.stop(grace_seconds)
        if self._loops is not None:
            self._loops.stop(grace_seconds)

    def unusable_handlers(self) -> dict[str, str]:
        """Return the chunk handlers that could not be loaded, with the reason."""
        return {} if self._chunks is None else self._chunks.unusable

    def _on_pipeline_tick(self) -> None:
        """Deliver alerts, advance backfills, keep the watchdog running and exchange heartbeats with it."""
        self._pipelines.notifier.tick()
        self._pipelines.backfilling.tick()
        if not self._settings.pipelines.watchdog or not self._pipelines.service.cron_scheduler.has_pipelines:
            return
        self._watchdog.start()
        now = self._clock.monotonic()
        if now >= self._heartbeat_at:
            self._heartbeat_at = now + self._pipelines.heartbeats.interval_seconds
            own = self._pipelines.heartbeats.beat(HeartbeatSource.SERVER)
            self._pipelines.heartbeats.watch(own, HeartbeatSource.WATCHDOG)


def _run_all(steps: deque[Callable[[], None]]) -> None:
    """Run the steps in order, and remove each that succeeded."""
    while steps:
        steps[0]()
        steps.popleft()


def sweepers(
    opened: OpenedStore, health: HealthService, pipelines: OpenPipelines, region: OpenRegion | None
) -> list[Sweeper]:
    """Return the sweepers of the store, of health, of pipeline runs and of the region lease."""
    runs = Sweeper(
        "old runs", lambda limit: pipelines.retention.prune(limit=limit), interval_seconds=RUNS_PRUNED_EVERY_SECONDS
    )
    return [
        *store_sweepers(opened),
        *_space_reserve(opened),
        *_health_sweepers(health),
        *_alert_sweepers(opened.settings, pipelines),
        runs,
        *_region_sweepers(region),
    ]


def store_sweepers(opened: OpenedStore) -> list[Sweeper]:
    """Return the sweepers that delete expired rows and unreferenced blobs."""
    store, spill = opened.store, opened.spill
    rows = Sweeper("expired rows", lambda limit: store.sweep(limit=limit), interval_seconds=ROWS_SWEPT_EVERY_SECONDS)
    blobs: Sweeper = Sweeper(
        "unreferenced blobs",
        # There may be very many; a stopping server must not finish the listing first.
        lambda limit: spill.sweep(store, limit=limit, stop=lambda: blobs.is_stopping),
        interval_seconds=BLOBS_SWEPT_EVERY_SECONDS,
    )
    return [rows, blobs]


def _space_reserve(opened: OpenedStore) -> list[Sweeper]:
    if opened.settings.store.backend != "sqlite":
        return []

    def ensure(_limit: int) -> int:
        ensure_space_reserve(opened.settings)
        return 0

    return [Sweeper("space reserve", ensure, interval_seconds=RESERVED_EVERY_SECONDS)]


def _health_sweepers(health: HealthService) -> list[Sweeper]:
    return [
        Sweeper("incidents", lambda limit: health.sweep(limit=limit), interval_seconds=INCIDENTS_EVERY_SECONDS),
        Sweeper("openlineage events", lambda limit: health.drain(limit=limit), interval_seconds=EVENTS_EVERY_SECONDS),
        Sweeper("old evidence and secrets", lambda _limit: health.purge(), interval_seconds=TIDIED_EVERY_SECONDS),
        Sweeper("evidence to archive", lambda _limit: health.archive(), interval_seconds=ARCHIVED_EVERY_SECONDS),
    ]


def _alert_sweepers(settings: Settings, pipelines: OpenPipelines) -> list[Sweeper]:
    """Return the sweepers that keep the delivery lease, and send digests and escalations beside a state machine."""
    if not pipelines.delivers_alerts:
        return []

    def keep(_limit: int) -> int:
        pipelines.alert_duty.take()
        return 0

    def tick(_limit: int) -> int:
        pipelines.notifier.tick()
        return 0

    found = []
    if settings.store.backend != "sqlite":
        found.append(Sweeper("delivery lease", keep, interval_seconds=LEASE_EVERY_SECONDS))
    if settings.pipelines.state_machine_arn is not None:
        # Elsewhere the pipeline loops do it.
        found.append(Sweeper("alert digests", tick, interval_seconds=TICK_SECONDS_MAX))
    return found


def _region_sweepers(region: OpenRegion | None) -> list[Sweeper]:
    if region is None:
        return []
    duty = region.duty

    def tend(_limit: int) -> int:
        decision = duty.run_due()
        return int(decision is not None and decision.move_to is not None)

    return [Sweeper("regions", tend, interval_seconds=KEEP_SECONDS)]
