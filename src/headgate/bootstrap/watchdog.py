"""Watchdog wiring: builds the watchdog and the SLA monitor of a pipeline service."""

from __future__ import annotations

from datetime import datetime

from headgate.bootstrap.store import database_path
from headgate.pipelines.enums import ExpectationKind
from headgate.pipelines.service import PipelineService
from headgate.pipelines.watchdog.cursors import Cursors, ScheduleQueue
from headgate.pipelines.watchdog.feed import ChangeFeed
from headgate.pipelines.watchdog.followups import FollowupKind, Followups
from headgate.pipelines.watchdog.heartbeats import Heartbeat, Heartbeats, HeartbeatSource, heartbeat_key, heartbeat_of
from headgate.pipelines.watchdog.liveness_check import STUCK, Lifecycle, LivenessCheck
from headgate.pipelines.watchdog.period_facts import PeriodFactReader
from headgate.pipelines.watchdog.roster import CheckBudget, CheckTally, ScheduleLoader
from headgate.pipelines.watchdog.run_checks import (
    FAILED_RUNS,
    SENSOR_TRIGGERS,
    AnchoredCheck,
    ArrivalCheck,
    FailureCheck,
    check_due,
)
from headgate.pipelines.watchdog.schedule_check import CHECK as SCHEDULES
from headgate.pipelines.watchdog.schedule_check import CHECKS, ScheduleCheck
from headgate.pipelines.watchdog.sla_monitor import SlaMonitor
from headgate.pipelines.watchdog.thresholds import DEFAULTS, Thresholds
from headgate.pipelines.watchdog.verdicts import Verdicts
from headgate.pipelines.watchdog.watchdog import FEED, LIMIT_SECONDS, TICK_SECONDS, Check, Run, Watchdog
from headgate.settings import Settings
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.values import load
from headgate.store.table_names import TableNames


def heartbeats_in_file(settings: Settings) -> dict[HeartbeatSource, Heartbeat]:
    """Return the heartbeats in a SQLite store without changing anything. Raises `StoreIOError` and its like."""
    from headgate.store.sqlite.doctor import read_bodies

    path = database_path(settings)
    if not path.exists() or not path.stat().st_size:
        return {}
    names = TableNames(settings.store.table_prefix, settings.store.table_names)
    bodies = read_bodies(path, names.physical(PIPELINES), [heartbeat_key(each) for each in HeartbeatSource])
    found = zip(HeartbeatSource, bodies, strict=True)
    return {source: heartbeat_of(load(body)) for source, body in found if body is not None}


def build_sla_monitor(pipelines: PipelineService, verdicts: Verdicts) -> SlaMonitor:
    """Return the function behind the SLA states of the lifecycle."""
    followups = Followups(pipelines.store)
    facts = PeriodFactReader(pipelines.stores, pipelines.sensors, pipelines.evaluations, followups)
    cursors = Cursors(pipelines.store)
    return SlaMonitor(pipelines.clock, pipelines.stores.runs, pipelines.reader, verdicts, followups, cursors, facts)


def build_watchdog(
    pipelines: PipelineService,
    lifecycle: Lifecycle,
    *,
    heartbeats: Heartbeats | None = None,
    tick_seconds: float = TICK_SECONDS,
    thresholds: Thresholds = DEFAULTS,
    limit_seconds: float = LIMIT_SECONDS,
) -> Watchdog:
    """Return a watchdog with all its checks."""
    store, clock, stores = pipelines.store, pipelines.clock, pipelines.stores
    reader, events, starter = pipelines.reader, pipelines.event_writer, pipelines.starter
    followups, cursors, queue = Followups(store), Cursors(store), ScheduleQueue()
    verdicts = Verdicts(store, clock, events)
    facts = PeriodFactReader(stores, pipelines.sensors, pipelines.evaluations, followups)
    loader = ScheduleLoader(pipelines.definitions, cursors, queue)
    feed = ChangeFeed(
        store, pipelines.ids, stores.runs, pipelines.sensors, followups, queue, loader, thresholds=thresholds
    )
    liveness = LivenessCheck(stores, reader, pipelines.evaluations, events, followups, lifecycle, starter, thresholds)
    failures = FailureCheck(
        stores, reader, events, followups, starter, lifecycle.is_open, pipelines.recovery, thresholds
    )
    arrivals = ArrivalCheck(stores, reader, pipelines.sensors, events, followups, starter, thresholds)
    anchored = AnchoredCheck(reader, followups, verdicts, facts)

    def follow(now: datetime, budget: CheckBudget, tally: CheckTally) -> None:
        feed.follow(now, budget)
        loader.report(tally)

    relative, post_run = CHECKS[ExpectationKind.RELATIVE_SLA], CHECKS[ExpectationKind.POST_RUN_SENSOR]
    runs: dict[str, Run] = {
        FEED: follow,
        SCHEDULES: ScheduleCheck(stores.runs, reader, verdicts, facts, cursors, queue, thresholds),
        STUCK: check_due(followups, FollowupKind.LIVENESS, STUCK, liveness.check),
        FAILED_RUNS: check_due(followups, FollowupKind.FAILURE, FAILED_RUNS, failures.check),
        SENSOR_TRIGGERS: check_due(followups, FollowupKind.ARRIVAL, SENSOR_TRIGGERS, arrivals.check),
        relative: check_due(followups, FollowupKind.RELATIVE_SLA, relative, anchored.check),
        post_run: check_due(followups, FollowupKind.POST_RUN, post_run, anchored.check),
    }
    checks = [Check(name, run, limit_seconds) for name, run in runs.items()]
    heartbeats = Heartbeats(store, clock, events) if heartbeats is None else heartbeats
    return Watchdog(clock, checks, heartbeats, queue, followups, tick_seconds=tick_seconds)
