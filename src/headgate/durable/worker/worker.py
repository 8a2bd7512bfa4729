"""Worker: advances executions and runs activities for one process, one step at a time and without threads of its own.

`poll` reads pending work from the store, `turn` runs one cycle of the engine, `perform` runs one activity.
`WorkerThreads` calls them from threads; tests and simulations call them in any order they choose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
import structlog
from msgspec import Raw

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.dead_letters import RETENTION_DAYS as DEAD_LETTERS_DAYS
from headgate.durable.bus.events import TRACEPARENT, Event, Mode
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.bus.subscriptions import HandlerSignature
from headgate.durable.client.sealing import Sealing
from headgate.durable.engine.activity_store import Activities, AttemptResult, deadline, options_of
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.function_apps import FunctionApps
from headgate.durable.engine.membership import MEMBER, Fleet
from headgate.durable.engine.ready_queue import ReadyList
from headgate.durable.engine.turn_spans import EXECUTION_ID
from headgate.durable.model.activity_tokens import sign_token
from headgate.durable.model.archive import Archiver
from headgate.durable.model.declarations import pinned_workflows
from headgate.durable.model.failures import is_cancellation
from headgate.durable.model.history import ActivityOptions, EmitEvent
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.durable.model.payload_codec import is_sealed_text
from headgate.durable.model.records import NEVER_MS, Activity, Execution
from headgate.durable.model.worker_limits import DEFAULT_LIMITS, WorkerLimits, WorkerUsage
from headgate.durable.replay.determinism_lint import lint
from headgate.durable.schedules.declared import DeclaredSchedules
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.activity_sealing import ActivitySealing
from headgate.durable.worker.claims import HeldClaims, LostClaimFinder
from headgate.durable.worker.deadlines import CancellationReaper, DeadlineReaper
from headgate.durable.worker.executor import RunningAttempt, failed, perform
from headgate.durable.worker.poll_schedule import (
    ARCHIVE,
    ARCHIVE_SECONDS,
    DECLARED,
    DECLARED_SECONDS,
    LOOK,
    RENEW,
    SWEEP,
    SWEEP_SECONDS,
    UNDECLARED,
    UNDECLARED_SECONDS,
    PollSchedule,
)
from headgate.durable.worker.poller import PAGE, WorkPoller
from headgate.durable.worker.result_recorder import ResultRecorder
from headgate.durable.worker.slots import SlotKind, Slots
from headgate.durable.worker.stuck_sweep import StuckSweep
from headgate.durable.worker.subprocess_executor import perform_isolated
from headgate.errors import NotFoundError, SealedPayloadError, StaleClaimError
from headgate.ids import IdMaker
from headgate.span_export import Attribute, SpanRecord
from headgate.store.catalogue.tables import WORKERS
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Check, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.telemetry import Tracing

HEARTBEATS_RECORDED_SHARE: Final = 0.3
# The patches of workflow functions. Their modules are loaded when a worker joins, so that a function keeps its patches.
_patches: Final[WeakKeyDictionary[Callable[..., object], list[str]]] = WeakKeyDictionary()
_PAUSE_MS: Final = 100
_SLOT_PAUSE_MS: Final = 1_000
_log = structlog.get_logger(__name__)


class Worker:
    """The worker of one process, and the host of its engine. `poll` and `turn` need one thread at a time."""

    def __init__(  # noqa: PLR0913 - the components and the settings of a worker
        self,
        app: App,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        keyring: Keyring,
        bus: Bus,
        *,
        archiver: Archiver | None = None,
        queues: Sequence[str] = ("default",),
        activities_only: bool = False,
        threads: int = 1,
        limits: WorkerLimits = DEFAULT_LIMITS,
        replay_always: bool = False,
        lease_seconds: float = 10.0,
        host: str | None = None,
        worker_id: str = "",
        build: str = "",
        ready: ReadyList | None = None,
        forwarder: Forwarder | None = None,
        dead_letters_days: int = DEAD_LETTERS_DAYS,
        draw: Callable[[], float] = random.random,
        observer: DurableObserver = NULL_OBSERVER,
        meters: ExecutionMeters | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.app = app
        self.queues = tuple(queues)
        # It declares no subscription and owns no execution.
        self._activities_only = activities_only
        self.bus = bus
        self.fleet = Fleet(
            store,
            clock,
            ids,
            lease_seconds=lease_seconds,
            host=host,
            worker_id=worker_id,
            build=build,
            limits=limits,
            usage=self.usage,
        )
        self.limits = limits
        self.claims = HeldClaims(clock, threads=threads, prefetch_max=limits.prefetch_max)
        self.queue = self.claims.queue
        self.running = self.claims.running
        self.slots = Slots(limits, self.queue, self.running, self._slot_kind)
        self.schedule = PollSchedule(clock, self.claims, self.slots, limits.poll_seconds)
        self.activities = Activities(
            store,
            clock,
            ids,
            worker_id=lambda: self.fleet.worker_id,
            draw=draw,
            membership=self.membership,
            dead_letters_days=dead_letters_days,
        )
        self.engine = Engine(
            app.workflows,
            store,
            clock,
            ids,
            host=self,
            live_max=limits.cached_max,
            replay_always=replay_always,
            ready=ready,
            meters=meters,
            archive=None if archiver is None else archiver.archive,
            tracing=tracing,
        )
        # Test doubles that are called instead of an activity, by its name.
        self.stand_ins: dict[str, Definition[..., Any]] = {}
        self._meters = meters
        self._tracing = tracing if tracing is not None and tracing.is_on else None
        self._recorder = ResultRecorder(
            self.activities, self.fleet, self.engine, self.claims, self.schedule, meters=meters
        )
        self.deadlines = DeadlineReaper(self.activities, self.claims, self._recorder)
        self.cancellations = CancellationReaper(self.activities, self.claims, self._recorder)
        self._lost_claims = LostClaimFinder(self.activities, self.claims, self.engine)
        self._poller = WorkPoller(store, clock, self.fleet, self.engine)
        self._stuck = StuckSweep(store, clock, ids, self.fleet, self.engine)
        self._schedules = Schedules(store, clock, ids, seal=Sealing(app.workflows).start)
        declarations = () if activities_only else tuple(app.schedules.values())
        self._declared = DeclaredSchedules(self._schedules, clock, app.name, declarations)
        self._function_apps = FunctionApps(store)
        self._archiver = archiver
        self._forwarder = forwarder
        self._sealing = ActivitySealing(app.codec)
        self._observer = observer
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._is_lease_lost = False
        self._is_stopping = False
        self._membership = Check(WORKERS, Key(self.worker_id), MEMBER)

    @property
    def worker_id(self) -> str:
        return self.fleet.worker_id

    def join(self) -> None:
        """Register as a worker of the store under a new id."""
        self._is_lease_lost = False
        if self._activities_only:
            served = [each.name for each in self.app.subscriptions.values() if each.queue in self.queues]
            self.fleet.join(self.app.name, (), served, self.queues)
            return
        self.bus.register(list(self.app.subscriptions.values()), self.app.name)
        pinned = pinned_workflows(self.app.workflows.values())
        self.fleet.join(
            self.app.name,
            self.app.workflows,
            self.app.activity_names(),
            self.queues,
            pinned=pinned,
            patches=self.patches(),
            schedules=self._declared.entries(),
        )
        self.reconcile_schedules()
        self._stuck.restart()

    def patches(self) -> dict[str, list[str]]:
        """Return the patches in the code of the workflows that have any."""
        found = {name: _patches_of(each.function) for name, each in self.app.workflows.items()}
        return {name: patches for name, patches in found.items() if patches}

    def announce_stop(self) -> None:
        """Let running activities know that this worker is about to stop, and claim nothing more."""
        self._is_stopping = True
        self._recorder.announce_stop()
        for running in list(self.running.values()):
            running.context.is_worker_stopping = True

    def interrupt_running(self) -> None:
        """Cancel running activities where that is possible: async ones now, others at their next heartbeat."""
        for running in list(self.running.values()):
            if not running.is_abandoned and not running.context.is_interrupted:
                running.interrupt()

    def keep_lease(self) -> None:
        """Renew the lease if that is due: until the drain has ended, no other worker may take the claims."""
        if self.schedule.take(RENEW, self.fleet.lease_seconds / 3):
            self.fleet.renew()

    def leave(self) -> None:
        """Release every claim, count the attempts that have not finished, store what has ended, and deregister.

        Raises what the store raises; other workers then reclaim the rest when the lease expires.
        """
        while self.queue:
            self._release(self.queue.popleft())
        for running in list(self.running.values()):
            # Its thread cannot be stopped and may run on; the store refuses its result.
            was_abandoned = running.is_abandoned
            running.abandon()
            if not was_abandoned:
                self._interrupt(running.activity)
        self._recorder.retry_buffered()
        self.engine.store_events()
        self.engine.drop()
        if self.activities.held(limit=1):
            # Only the row of a worker leads others to its claims.
            _log.warning("claims are left; other workers reclaim them when the lease expires", worker_id=self.worker_id)
            return
        self.fleet.leave()

    def abandon_all(self) -> None:
        """Drop every claim and every execution in memory: the lease is lost, and other workers own them now."""
        self.claims.abandon_all()
        self.engine.drop()

    # The host of the engine.

    @property
    def build(self) -> str:
        return self.fleet.build

    @property
    def is_fleet_mixed(self) -> bool:
        return self.fleet.is_mixed

    def pins(self, workflow: str) -> bool:
        """Whether the first turn of an execution pins it to the build of this worker."""
        return self.fleet.pins(workflow)

    def may_advance(self, row: Execution) -> bool:
        """Whether this worker may take the next turn of an execution."""
        return self.fleet.may_advance(row)

    def has_untried_build(self, row: Execution) -> bool:
        """Whether a live worker has code that has not failed at the next turn of an execution."""
        return self.fleet.has_untried_build(row)

    def claim(self, activity: Activity) -> Activity | None:
        """Return the activity as claimed by this worker; None if it is not its own to run, or there is no room."""
        if (
            self._is_lease_lost
            or self._is_stopping
            or options_of(activity).queue not in self.queues
            or not self.can_perform(activity)
        ):
            return None
        if not self.claims.has_room():
            self.schedule.on_claim_rejected()
            return None
        if not self.slots.take(activity):
            return None
        return self.claims.reserve(self.activities.claimed(activity))

    def membership(self) -> Check:
        """Return the check that this worker is registered, for every transaction that claims something.

        A worker whose lease was revoked may not know it yet, and no other worker would reclaim a later claim of it.
        """
        if self._membership.key.partition != self.worker_id:
            self._membership = Check(WORKERS, Key(self.worker_id), MEMBER)
        return self._membership

    def event_writes(self, execution: Execution, command: EmitEvent) -> list[Write]:
        """Return the writes that emit an event of an execution."""
        event = Event(
            id=command.id or self._ids.make("evt"),
            type=command.type,
            source=f"/headgate/{self.app.name}/{execution.execution_id}",
            subject=command.subject,
            data=command.data,
            extensions={TRACEPARENT: execution.traceparent} if execution.traceparent else {},
        )
        if command.id:
            return self.bus.unique_event_writes(event, self.activities.now_ms())
        return self.bus.event_writes(event, self.activities.now_ms())

    def on_lease_lost(self) -> None:
        """Claim nothing until this worker has joined again."""
        self._is_lease_lost = True
        self.schedule.renew_soon()

    def on_claims_discarded(self, claims: Sequence[Activity]) -> None:
        """Free the room of claims that were not committed."""
        self.claims.unreserve(len(claims))

    def on_timers_scheduled(self, due_ms: Sequence[int]) -> None:
        """Poll when the first of these timers is due."""
        self.schedule.on_timers_scheduled(due_ms)

    def on_activities_cancelled(self, activity_ids: Sequence[str]) -> None:
        """Stop these activities if they run or wait here."""
        self.cancellations.cancel(activity_ids)

    def on_cancel_requested(self, activity_ids: Sequence[str]) -> None:
        """Have these activities end themselves if they run here, and end those that wait here."""
        self.cancellations.request(activity_ids)

    def on_execution_closed(self, execution: Execution) -> None:
        """Pass the end of an execution on to the observer."""
        self._observer.on_execution_closed(execution)

    # Turns and polls.

    def turn(self) -> int:
        """Run one cycle of the engine, and return how many activities it added to the queue."""
        self.claims.begin_turn()
        self.slots.begin()
        try:
            claims = self.engine.cycle()
            self.claims.enqueue(claims)
        finally:
            self.claims.end_turn()
            self.slots.begin()
        self.claims.watch_deadlines(claims)
        return len(claims)

    @property
    def is_due(self) -> bool:
        """Whether a poll is due now."""
        return bool(self.claims.unrecorded) or self.schedule.seconds_left() <= 0

    def poll(self) -> float:
        """Read and process all pending work, and return the seconds until the next poll is due."""
        self._recorder.retry_buffered()
        self.deadlines.end_running()
        if self.schedule.take(RENEW, self.fleet.lease_seconds / 3):
            self._renew()
        self.schedule.begin_poll()
        self._poller.poll_inboxes()
        due_ms = [
            self._poller.fire_timers(),
            self.deadlines.end_unclaimed(),
            self._claim_queued(),
            self._fire_schedules(),
        ]
        if self.schedule.take(SWEEP, SWEEP_SECONDS):
            self._poller.resume_dispatches()
            self.bus.sweep()
            self.adopt_lost_claims()
            self.cancellations.find()
        self.release_stuck()
        if self._archiver is not None and self.schedule.take(ARCHIVE, ARCHIVE_SECONDS):
            self._archiver.archive_due()
        self.reconcile_schedules()
        self.schedule.end_poll(min(due_ms))
        self.deadlines.end_queued()
        self._release_surplus()
        return self.schedule.seconds_left()

    def poll_activities(self) -> None:
        """Claim activities of the queues only: executions, timers and schedules are left to other workers."""
        self._recorder.retry_buffered()
        self.deadlines.end_running()
        if self.schedule.take(RENEW, self.fleet.lease_seconds / 3):
            self._renew()
        self._claim_queued()
        if self.schedule.take(SWEEP, SWEEP_SECONDS):
            self.bus.sweep()
            self.adopt_lost_claims()

    def release_stuck(self) -> None:
        """Release stuck executions that the build of this worker has not tried yet, if a sweep is due."""
        self._stuck.release_due()

    def adopt_lost_claims(self) -> None:
        """Queue claims of this worker that the process does not hold: the answer to a claim was lost."""
        self.queue.extend(self._lost_claims.find())

    def _renew(self) -> None:
        """Renew the lease, or join again if it is lost; then reclaim the activities of dead workers."""
        if not self.fleet.renew():
            _log.warning("lease lost; joining again", worker_id=self.worker_id)
            if self._meters is not None:
                self._meters.on_lease_lost()
            self.abandon_all()
            self.join()
        # A worker that is alone has no leases to watch. It looks for new workers once a lease.
        if not self.fleet.is_alone or self.schedule.take(LOOK, self.fleet.lease_seconds):
            self.fleet.refresh()
        for member in self.fleet.dead():
            if not self.fleet.revoke(member):
                continue
            reclaimed = self.activities.reclaim(member.worker_id)
            if reclaimed == 0 and self.fleet.remove(member):
                _log.info("dead worker removed", worker_id=member.worker_id)
            if reclaimed:
                _log.warning("activities of a dead worker reclaimed", worker_id=member.worker_id, activities=reclaimed)
                # There may be more than one page.
                self.schedule.renew_soon()

    def _claim_queued(self) -> int:
        """Claim queued activities while there is room, and return when to try again."""
        room = self.claims.room()
        self.schedule.set_claim_rejected(is_rejected=room <= 0)
        if room <= 0:
            return NEVER_MS
        self.slots.begin_poll()
        try:
            claimed = self.activities.claim(self.queues, self._accepts, room)
            self.claims.enqueue(claimed)
        finally:
            self.slots.end_poll()
        if claimed:
            return 0
        # An activity that is available and was not claimed waits for a slot of its limit, or for another worker. A slot
        # of this worker that is freed makes a poll due by itself.
        pause_ms = _SLOT_PAUSE_MS if self.slots.is_lacking else _PAUSE_MS
        return max(self.activities.next_available_ms(self.queues), self.activities.now_ms() + pause_ms)

    @property
    def declared_schedules(self) -> tuple[str, ...]:
        """The schedules that the app declares, with the digest of each."""
        return self._declared.entries()

    def reconcile_schedules(self) -> None:
        """Have the stored schedules agree with those that the app declares, if that is due."""
        if self.schedule.take(DECLARED, DECLARED_SECONDS):
            self._declared.reconcile(self._declared_elsewhere())
        if self.schedule.take(UNDECLARED, UNDECLARED_SECONDS):
            self._declared.remove_undeclared(self._declared_elsewhere())

    def _declared_elsewhere(self) -> set[str]:
        """Return the schedules that other live workers of the app and its functions declare."""
        return {*self.fleet.declared_schedules(self.app.name), *self._function_apps.schedules(self.app.name)}

    def _fire_schedules(self) -> int:
        """Start the executions of due schedules, and return when the next schedule is due."""
        for execution_id in self._schedules.fire_due(self.activities.now_ms(), PAGE):
            self.engine.read_inbox(execution_id)
        due_ms = self._schedules.next_due_ms()
        return NEVER_MS if due_ms is None else due_ms

    # Activities.

    def begin(self, activity: Activity) -> RunningAttempt:
        """Register an attempt that starts now."""
        self.claims.prefetch.on_progress()
        options = options_of(activity)
        # The time limit of the attempt counts from here, not from the claim.
        now_ms = self.activities.now_ms()
        if activity.started_at_ms != now_ms:
            activity = msgspec.structs.replace(activity, started_at_ms=now_ms)
        at_ms, kind = deadline(activity, options)
        context = ActivityContext(
            activity_id=activity.key or activity.activity_id,
            row_id=activity.activity_id,
            name=activity.name,
            attempt=activity.attempt,
            sign=partial(sign_token, self._keyring, activity),
            execution_id=activity.execution_id,
            details=None if activity.details is None else self._sealing.details_of(activity),
            clock_ms=self.activities.now_ms,
            beat=self._heartbeat,
            put_event=self._put_event,
            is_worker_stopping=self._is_stopping,
            headers=activity.headers or {},
            traceparent=activity.traceparent,
        )
        running = RunningAttempt(activity, context, at_ms, kind)
        if self._tracing is not None:
            context.traceparent = self._tracing.child_of(activity.traceparent)
            running.began_ns = int(self._clock.seconds() * 1_000_000_000)
        if self._meters is not None:
            running.began = perf_counter()
            if activity.attempt == 1:
                self._meters.on_begun(activity.name, (activity.started_at_ms - activity.scheduled_at_ms) / 1000)
        self.running[activity.activity_id] = running
        return running

    def still_holds(self, activity: Activity) -> bool:
        """Whether a claim is certainly this worker's, before its activity starts.

        A process that was suspended for longer than its lease may have lost the claim to another worker.
        """
        if self.fleet.has_lease():
            return True
        with self.claims.in_use(activity):
            return self.fleet.renew() and self.activities.is_held(activity)

    def may_start(self, activity: Activity) -> bool:
        """Whether a claim may start now: it is certainly this worker's, and its rate limit has room at this moment.

        One that waited too long for its thread, so that its rate is reached, is queued again.
        """
        if not self.fleet.has_lease() and not self.still_holds(activity):
            return False
        if options_of(activity).rate is None:
            return True
        with self.claims.in_use(activity):
            if self.activities.may_start(activity):
                return True
            self._release(activity)
        self.schedule.poll_soon()
        return False

    def perform(self, activity: Activity, definition: Definition[..., Any] | None = None) -> None:
        """Run an activity that is not async in this thread, and record its result."""
        if not self.may_start(activity):
            return
        running = self.begin(activity)
        try:
            if definition is None:
                definition = self.definition(activity)
            input = self.input_of(activity)
        except (NotFoundError, SealedPayloadError) as exc:
            self.finish(activity, failed(exc, running.context))
            return
        started = self._clock.monotonic()
        if definition.isolate:
            limit = options_of(activity).start_to_close
            result: AttemptResult | None = perform_isolated(definition, input, running.context, limit)
        else:
            result = perform(definition, input, running.context)
        self.claims.prefetch.on_finished(self._clock.monotonic() - started)
        self.finish(activity, result)

    def can_perform(self, activity: Activity) -> bool:
        """Whether the app of this worker has the activity, or the handler of the delivery, and can read its input."""
        if is_sealed_text(activity.input) and not self._sealing.can_open(activity):
            return False
        return self.app.has_activity(activity.name, is_delivery=activity.subscription is not None)

    def input_of(self, activity: Activity) -> Raw:
        """Return the input of an activity as JSON. Raises `SealedPayloadError`."""
        return self._sealing.input_of(activity)

    def _accepts(self, activity: Activity) -> bool:
        return self.can_perform(activity) and self.slots.take(activity, is_poll=True)

    def _slot_kind(self, activity: Activity) -> SlotKind:
        declared = self.app.activities if activity.subscription is None else self.app.handlers
        definition = self.stand_ins.get(activity.name) or declared.get(activity.name)
        if definition is None:
            return SlotKind.THREAD
        if definition.is_async:
            return SlotKind.ASYNC
        return SlotKind.ISOLATED if definition.isolate else SlotKind.THREAD

    def usage(self) -> WorkerUsage:
        """Return what is in use now."""
        in_use = self.slots.in_use()
        return WorkerUsage(
            in_threads=in_use[SlotKind.THREAD],
            in_async=in_use[SlotKind.ASYNC],
            in_isolated=in_use[SlotKind.ISOLATED],
            cached=self.engine.live_count,
            queued=len(self.queue),
        )

    def definition(self, activity: Activity) -> Definition[..., Any]:
        """Return the definition of an activity, or of the delivery of an event. Raises `NotFoundError`."""
        stand_in = self.stand_ins.get(activity.name)
        if stand_in is not None:
            return stand_in
        if activity.subscription is None:
            return self.app.activity_named(activity.name, is_delivery=False)
        subscription = self.app.subscriptions.get(activity.name)
        if subscription is not None and subscription.forward_to is not None:
            return self._forwarding(subscription.forward_to, subscription.mode, activity)
        return self.app.activity_named(activity.name, is_delivery=True)

    def _forwarding(self, url: str, mode: Mode, activity: Activity) -> Definition[..., Any]:
        if self._forwarder is None:
            self._forwarder = Forwarder(self._clock)
        forwarder = self._forwarder

        def send(event: Event) -> None:
            forwarder.send(url, event, message_id=activity.activity_id, mode=mode)

        definition = Definition(send, name=activity.name, options=ActivityOptions(), is_handler=True)
        definition.signature = HandlerSignature.of(send)
        return definition

    def finish(self, activity: Activity, result: AttemptResult | None) -> None:
        """Record the result of an attempt; None if the activity is completed from outside."""
        if result is not None and is_sealed_text(activity.input):
            result = self._sealing.sealed(activity, result)
        # As `in_use` does, without its calls: every activity passes here.
        tokens, token = self.claims.tokens_in_use, activity.token
        tokens.add(token)
        try:
            running = self.running.get(activity.activity_id)
            if running is not None and running.activity.token == activity.token:
                del self.running[activity.activity_id]
                if self._tracing is not None:
                    self._end_span(self._tracing, running, result)
                if self._meters is not None:
                    self._meters.on_ran(activity.name, perf_counter() - running.began)
                if running.is_abandoned:
                    return
                activity = running.activity
                if running.context.is_interrupted and result is not None and _is_cancelled(result):
                    self._interrupt(activity)
                    return
            self._recorder.record_or_buffer(activity, result)
        finally:
            tokens.discard(token)

    def _end_span(self, tracing: Tracing, running: RunningAttempt, result: AttemptResult | None) -> None:
        activity, error = running.activity, None if result is None else result.error
        attributes: dict[str, Attribute] = {"headgate.attempt": activity.attempt}
        if error is not None:
            attributes["error.type"] = error.type
        execution = (EXECUTION_ID, activity.execution_id) if activity.execution_id else ()
        tracing.finish(
            SpanRecord(
                "activity.run" if activity.subscription is None else "event.deliver",
                running.context.traceparent,
                activity.traceparent,
                running.began_ns,
                int(self._clock.seconds() * 1_000_000_000),
                attributes,
                error is not None,
                (),
                ("headgate.activity", activity.name, *execution),
            )
        )

    def _heartbeat(self, context: ActivityContext, details: Raw | None) -> None:
        running = self.running.get(context.row_id)
        if running is None or running.is_abandoned or running.context is not context:
            context.cancelled = True
            return
        now_ms = self.activities.now_ms()
        options = options_of(running.activity)
        silent_ms = now_ms - max(running.activity.heartbeat_at_ms, running.activity.started_at_ms)
        interval_ms = 1000 * HEARTBEATS_RECORDED_SHARE * (options.heartbeat or 10.0)
        if options.heartbeat is not None:
            running.deadline_ms, running.timeout = deadline(
                msgspec.structs.replace(running.activity, heartbeat_at_ms=now_ms), options
            )
        if silent_ms < interval_ms and details is None:
            return
        if details is not None and is_sealed_text(running.activity.input):
            details = self._sealing.sealed_details(running.activity, details)
        try:
            running.activity = self.activities.record_heartbeat(running.activity, details)
        except StaleClaimError:
            context.cancelled = True
        else:
            if running.activity.is_cancel_requested and not context.cancelled:
                # The sweep takes this request for delivered, so that a coroutine is cancelled here.
                running.request_cancel()

    def _put_event(self, id: str, type: str, data: Raw, subject: str) -> None:
        source = f"/headgate/{self.app.name}"
        self.bus.emit(Event(id=id, type=type, source=source, subject=subject, data=data))
        self.schedule.poll_soon()

    def _release_surplus(self) -> None:
        """Release claims that wait while every thread is busy, so that other workers run them."""
        with suppress(IndexError):  # A thread has just started the last one.
            for _ in range(self.claims.prefetch.surplus(len(self.queue), self.claims.threads)):
                self._release(self.queue.pop())

    def _release(self, activity: Activity) -> None:
        with suppress(StaleClaimError):
            self.activities.release(activity)

    def _interrupt(self, activity: Activity) -> None:
        _log.warning(
            "activity interrupted; its worker stops",
            activity_id=activity.activity_id,
            name=activity.name,
            attempt=activity.attempt,
        )
        with suppress(StaleClaimError):
            self.activities.interrupt(activity)


def _is_cancelled(result: AttemptResult) -> bool:
    return result.error is not None and is_cancellation(result.error)


def _patches_of(function: Callable[..., object]) -> list[str]:
    """Return the patches in the code of a workflow. Every worker of an app asks when it joins."""
    found = _patches.get(function)
    if found is None:
        found = _patches[function] = lint(function).patches
    return found
