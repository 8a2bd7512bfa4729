"""Blocked-on report: what an open execution waits for: activities, timers, signals, children, workers, operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.durable.engine.activity_store import options_of
from headgate.durable.engine.build_routing import obstacle
from headgate.durable.engine.deployments import Deployments
from headgate.durable.engine.function_apps import serving_members
from headgate.durable.engine.membership import Member
from headgate.durable.model.history import Status
from headgate.durable.model.history_reader import ArchivedHistories, read_run
from headgate.durable.model.records import (
    Activity,
    Execution,
    activity_id,
    activity_of,
    execution_of,
    instant,
    timer_id,
)
from headgate.durable.model.starts import ANY_RUN, START_SEQ
from headgate.durable.replay.open_work import OpenWork, open_work
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, TIMERS
from headgate.store.model.schema import Key
from headgate.store.port import Store

# An execution may wait for thousands of activities; the report has this many of each kind.
REPORTED_MAX: Final = 200


class WaitsForActivity(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="activity"):
    """An activity that has not ended. `state` is queued, running, external, or ending (its end is stored)."""

    name: str
    activity_id: str
    state: str
    attempt: int
    # How many attempts its retry policy allows; 0 is no limit.
    attempts_max: int = 0
    queue: str = ""
    scheduled_at: str = ""
    started_at: str = ""
    heartbeat_at: str = ""
    next_try_at: str = ""
    worker: str = ""
    last_error: str = ""
    # Whether no live worker serves a queued activity.
    no_worker: bool = False


class WaitsForTimer(Struct, frozen=True, tag_field="kind", tag="timer"):
    """A timer that has not fired."""

    due_at: str


class WaitsForSignal(Struct, frozen=True, tag_field="kind", tag="signal"):
    """A signal that has not arrived."""

    name: str


class WaitsForChild(Struct, frozen=True, tag_field="kind", tag="child"):
    """A child that has not ended. Its status is empty until it is started."""

    execution_id: str
    workflow: str
    status: str


class WaitsForWorker(Struct, frozen=True, tag_field="kind", tag="worker"):
    """A worker that serves the workflow, with the build that the execution needs."""

    fact: str


class WaitsForRetry(Struct, frozen=True, tag_field="kind", tag="retry"):
    """The retry of a failed turn."""

    failures: int
    error: str
    next_try_at: str


class WaitsForRedrive(Struct, frozen=True, tag_field="kind", tag="redrive"):
    """An operator's redrive of a stuck execution."""

    failures: int
    error: str


class WaitsForStart(Struct, frozen=True, tag_field="kind", tag="start"):
    """The delayed start of the execution."""

    due_at: str


class WaitsForMessage(Struct, frozen=True, tag_field="kind", tag="message"):
    """A signal, an update or a cancellation: none of its commands is open."""

    fact: str


Wait = (
    WaitsForActivity
    | WaitsForTimer
    | WaitsForSignal
    | WaitsForChild
    | WaitsForWorker
    | WaitsForRetry
    | WaitsForRedrive
    | WaitsForStart
    | WaitsForMessage
)


class BlockedOn:
    """Reports what the executions of a store wait for."""

    def __init__(self, store: Store, clock: Clock, archive: ArchivedHistories | None = None) -> None:
        self._store = store
        self._clock = clock
        self._archive = archive

    def waits(self, row: Execution) -> list[Wait]:
        """Return everything that an execution waits for; waits that need an operator come first."""
        if row.status.is_closed:
            return []
        waits = self._obstacles(row)
        if row.turn < row.first_turn:
            return waits + self._start(row)
        work = open_work(read_run(self._store, row, self._archive))
        signals = [WaitsForSignal(name) for name in row.awaits]
        due = sorted(timer.due_at_ms for timer in work.timers.values())[:REPORTED_MAX]
        timers = [WaitsForTimer(instant(each)) for each in due]
        open_waits = [*self._activities(row, work), *signals, *timers, *self._children(work)]
        if not open_waits and not waits and row.dispatched is None:
            return [WaitsForMessage("an update, a cancellation or a signal; nothing that it asked for is open")]
        return waits + open_waits

    def _obstacles(self, row: Execution) -> list[Wait]:
        obstacles: list[Wait] = []
        if row.status is Status.STUCK:
            obstacles.append(WaitsForRedrive(row.failures, error_line(row.failure)))
        elif row.failures:
            due = "" if row.retry_at_ms is None else instant(row.retry_at_ms)
            obstacles.append(WaitsForRetry(row.failures, error_line(row.failure), due))
        fact = obstacle(self._alive(), row, Deployments(self._store).all())
        if fact is not None:
            obstacles.append(WaitsForWorker(fact))
        return obstacles

    def _start(self, row: Execution) -> list[Wait]:
        keys = [Key(timer_id(row.execution_id, run, START_SEQ)) for run in (ANY_RUN, row.run)]
        timers = [each for each in self._store.get_many(TIMERS, keys) if each is not None]
        return [WaitsForStart(instant(timer["due_at_ms"])) for timer in timers]

    def _activities(self, row: Execution, work: OpenWork) -> list[Wait]:
        seqs = list(work.activities)[:REPORTED_MAX]
        if not seqs:
            return []
        ids = [activity_id(row.execution_id, row.run, seq) for seq in seqs]
        items = self._store.get_many(ACTIVITIES, [Key(each) for each in ids], consistent=True)
        alive = self._alive()
        return [
            # Without a row it has ended, and no turn has consumed its end yet.
            WaitsForActivity(work.activities[seq].name, identifier, "ending", 0)
            if item is None
            else _activity(activity_of(item), alive)
            for seq, identifier, item in zip(seqs, ids, items, strict=True)
        ]

    def _children(self, work: OpenWork) -> list[Wait]:
        children = list(work.children.values())[:REPORTED_MAX]
        if not children:
            return []
        items = self._store.get_many(EXECUTIONS, [Key(child.child_id) for child in children])
        statuses = ["" if item is None else execution_of(item).status.value for item in items]
        return [
            WaitsForChild(child.child_id, child.workflow, status)
            for child, status in zip(children, statuses, strict=True)
        ]

    def _alive(self) -> list[Member]:
        now_ms = int(self._clock.seconds() * 1000)
        return serving_members(self._store, now_ms)


def error_line(stored: str | None) -> str:
    """Return a stored error as one line: its type and its message."""
    if stored is None:
        return ""
    error = typed_decode.from_json(stored, _StoredError)
    return f"{error.type}: {error.message}" if error.message else error.type


class _StoredError(Struct):
    type: str
    message: str = ""


def _activity(activity: Activity, alive: Sequence[Member]) -> WaitsForActivity:
    options = options_of(activity)
    queue = options.queue
    is_queued = activity.queue_pk is not None
    serving = [member for member in alive if queue in member.queues and activity.name in member.activities]
    state = "queued" if is_queued else "external" if activity.is_external else "running"
    return WaitsForActivity(
        name=activity.name,
        activity_id=activity.activity_id,
        state=state,
        attempt=activity.attempt,
        attempts_max=options.retry.attempts,
        queue=queue,
        scheduled_at=instant(activity.scheduled_at_ms),
        started_at=instant(activity.started_at_ms) if activity.started_at_ms and not is_queued else "",
        heartbeat_at=instant(activity.heartbeat_at_ms) if activity.heartbeat_at_ms else "",
        next_try_at=instant(activity.available_at_ms) if is_queued and activity.available_at_ms is not None else "",
        worker=activity.worker,
        last_error=error_line(activity.last_error),
        no_worker=is_queued and not serving,
    )
