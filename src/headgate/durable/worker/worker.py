"""A worker: everything one process does for executions and activities, a step at a time and without threads.

`poll` looks for what the store has for it, `turn` leads one cycle of the engine, `perform` runs one activity. Threads
around it call these; tests and simulations call them in an order of their own.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog
from msgspec import Raw

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.events import Event, Mode
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.bus.subscriptions import HandlerSignature
from headgate.durable.engine.activity_store import Activities, Ended, Timeout, deadline, options_of
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.membership import MEMBER, Fleet
from headgate.durable.engine.turn_commit import Source
from headgate.durable.model.activity_tokens import sign_token
from headgate.durable.model.archive import Archiver
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import ActivityOptions, EmitEvent
from headgate.durable.model.records import NEVER_MS, Activity, Execution
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.deadlines import Expiry, Unwanted
from headgate.durable.worker.executor import Running, failed, perform
from headgate.durable.worker.lost_claims import Orphans
from headgate.durable.worker.poller import Agenda
from headgate.durable.worker.prefetch import Prefetch
from headgate.durable.worker.subprocess_executor import perform_isolated
from headgate.errors import NotFoundError, OutcomeUnknownError, StaleClaimError, TransientError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import WORKERS
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Check, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

RUNNING_MAX: Final = 1_000
HEARTBEATS_RECORDED_SHARE: Final = 0.3
_log = structlog.get_logger(__name__)


class Worker:
    """One process's share of the work. `poll` and `turn` are for one thread at a time, `perform` for any."""

    def __init__(  # noqa: PLR0913 - the parts it is made of
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
        threads: int = 1,
        live_max: int = 2_000,
        replay_always: bool = False,
        lease_seconds: float = 10.0,
        forwarder: Forwarder | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.app = app
        self.queues = tuple(queues)
        self.threads = threads
        self.fleet = Fleet(store, clock, ids, lease_seconds=lease_seconds)
        self.activities = Activities(
            store, clock, ids, worker_id=lambda: self.fleet.worker_id, draw=draw, membership=self.membership
        )
        self.engine = Engine(
            app.workflows,
            store,
            clock,
            ids,
            claims=self,
            emit=self._emit,
            live_max=live_max,
            replay_always=replay_always,
        )
        self.schedules = Schedules(store, clock, ids)
        self.agenda = Agenda(self, store, clock, archiver)
        self.engine.timers_made = self.agenda.timers_made
        self.queue: deque[Activity] = deque()
        # What tests have called in place of an activity.
        self.stand_ins: dict[str, Definition[..., Any]] = {}
        self.running: dict[str, Running] = {}
        self.bus = bus
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._mutex = threading.Lock()
        self._claiming = 0
        self._prefetch = Prefetch(clock)
        self._forwarder = forwarder
        # How attempts ended that the store did not let us record yet.
        self.unfinished: deque[tuple[Activity, Ended | None]] = deque()
        self._orphans = Orphans(self)
        self._is_expelled = False
        self._membership = Check(WORKERS, Key(self.worker_id), MEMBER)
        self._expiry = Expiry(self)
        self.unwanted = Unwanted(self)
        self.engine.cancelled = self.unwanted.cancelled

    @property
    def worker_id(self) -> str:
        return self.fleet.worker_id

    def join(self) -> None:
        """Become one of the workers of the store."""
        self._is_expelled = False
        self.bus.register(list(self.app.subscriptions.values()), self.app.name)
        self.fleet.join(self.app.name, self.app.workflows, self.app.activity_names(), self.queues)

    def leave(self) -> None:
        """Give back what was claimed and not begun, and say good-bye."""
        while self.queue:
            self._release(self.queue.popleft())
        for running in list(self.running.values()):
            # It may still be going on in a thread that cannot be stopped; its result will not be taken.
            running.abandon()
            self._release(running.activity)
        self.engine.drop()
        self.fleet.leave()

    # Engine: whom to give activities to.

    def claim(self, activity: Activity) -> Activity | None:
        """Return the activity as claimed, if this worker knows it and has room for it."""
        options = options_of(activity)
        if self._is_expelled or options.queue not in self.queues or not self.can_perform(activity):
            return None
        if not self.room():
            self.agenda.turned_away()
            return None
        self._claiming += 1
        return self._orphans.claimed(self.activities.claimed(activity))

    def membership(self) -> Check:
        """Return the check that this worker is one of the fleet, for every transaction that claims something.

        Whoever was given up may not know it yet, and a claim in its name would be nobody's to take over.
        """
        if self._membership.key.partition != self.worker_id:
            self._membership = Check(WORKERS, Key(self.worker_id), MEMBER)
        return self._membership

    def expelled(self) -> None:
        """The others have given this worker up: it claims nothing until it has joined anew."""
        self._is_expelled = True
        self.agenda.renew_soon()

    def give_back(self, activities: Sequence[Activity]) -> None:
        """Forget claims that were not committed."""
        self._claiming -= len(activities)

    def room(self) -> int:
        """Return how many more activities this worker should take on."""
        room = self._prefetch.room(len(self.queue) + self._claiming, self.threads)
        return max(0, min(room, RUNNING_MAX - len(self.running)))

    def take_on(self, claims: Sequence[Activity]) -> None:
        """Have claimed activities wait here for a thread."""
        if not self.queue:
            self._prefetch.moved()
        self.queue.extend(claims)

    def unqueue(self, activity: Activity) -> bool:
        """Take a claim out of the queue. False if somebody has begun it in this moment."""
        try:
            self.queue.remove(activity)
        except ValueError:
            return False
        return True

    def hung(self) -> int:
        """Return how many activities were given up and have not returned yet."""
        return sum(running.is_abandoned for running in list(self.running.values()))

    # Leading.

    def turn(self) -> int:
        """Lead one cycle of the engine, and return how many activities it added to the queue."""
        self._claiming = 0
        try:
            claims = self.engine.cycle()
            self.take_on(claims)
        finally:
            self._claiming = 0
            self._orphans.turn_is_over()
        self._expiry.waits(claims)
        return len(claims)

    @property
    def is_due(self) -> bool:
        """Whether a poll would find something to do, as far as is known."""
        return bool(self.unfinished) or self.agenda.seconds_left() <= 0

    def poll(self) -> float:
        """Look for everything that is due, and return for how many seconds nothing else will be."""
        for _ in range(len(self.unfinished)):
            self.record_or_keep(*self.unfinished.popleft())
        self._expiry.end_running()
        self.agenda.poll()
        self._expiry.end_waiting()
        self._give_back_surplus()
        return self.agenda.seconds_left()

    # Performing.

    def begin(self, activity: Activity) -> Running:
        """Note that an activity is being performed from now on."""
        self._prefetch.moved()
        options = options_of(activity)
        # The limit of the attempt counts from here, not from when the activity was claimed.
        activity = msgspec.structs.replace(activity, started_at_ms=self.activities.now_ms())
        at_ms, kind = deadline(activity, options)
        context = ActivityContext(
            activity_id=activity.activity_id,
            name=activity.name,
            attempt=activity.attempt,
            sign=lambda: sign_token(self._keyring, activity),
            execution_id=activity.execution_id,
            details=None if activity.details is None else Raw(activity.details.encode()),
            clock_ms=self.activities.now_ms,
            beat=self._beat,
            put_event=self._put_event,
        )
        running = Running(activity, context, at_ms, kind)
        self.running[activity.activity_id] = running
        return running

    def still_holds(self, activity: Activity) -> bool:
        """Whether a claim is this worker's for certain, before anything is done about it.

        A process that was stopped for longer than its lease may find that others have taken over and finished.
        """
        if self.fleet.has_lease():
            return True
        with self._orphans.in_hand(activity):
            return self.fleet.renew() and self.is_held(activity)

    def is_held(self, activity: Activity) -> bool:
        """Whether the store has this very claim."""
        try:
            self.activities.get(activity.activity_id, activity.token)
        except (StaleClaimError, NotFoundError):
            return False
        return True

    def adopt(self) -> None:
        """Take on what is claimed under this worker's name and nobody here knows of: the answer to a claim was lost."""
        self.queue.extend(self._orphans.found())

    def perform(self, activity: Activity) -> None:
        """Run an activity that is not async to its end in this thread."""
        if not self.still_holds(activity):
            return
        running = self.begin(activity)
        try:
            definition = self.definition(activity)
        except NotFoundError as exc:
            self.finish(activity, failed(exc, running.context))
            return
        input = Raw(activity.input.encode())
        started = self._clock.monotonic()
        if definition.isolate:
            limit = options_of(activity).start_to_close
            outcome: Ended | None = perform_isolated(definition, input, running.context, limit)
        else:
            outcome = perform(definition, input, running.context)
        self._prefetch.took(self._clock.monotonic() - started)
        self.finish(activity, outcome)

    def can_perform(self, activity: Activity) -> bool:
        """Whether the app of this worker has what an activity or a delivery needs."""
        return self.app.has_activity(activity.name, is_delivery=activity.subscription is not None)

    def definition(self, activity: Activity) -> Definition[..., Any]:
        """Return what to call for an activity or the delivery of an event."""
        stand_in = self.stand_ins.get(activity.name)
        if stand_in is not None:
            return stand_in
        subscription = self.app.subscriptions.get(activity.name) if activity.subscription is not None else None
        if subscription is not None and subscription.forward_to is not None:
            return self._forwarding(subscription.forward_to, subscription.mode, activity)
        return self.app.activity_named(activity.name, is_delivery=activity.subscription is not None)

    def _forwarding(self, url: str, mode: Mode, activity: Activity) -> Definition[..., Any]:
        if self._forwarder is None:
            self._forwarder = Forwarder(self._clock)
        forwarder = self._forwarder

        def send(event: Event) -> None:
            forwarder.send(url, event, message_id=activity.activity_id, mode=mode)

        definition = Definition(send, name=activity.name, options=ActivityOptions(), is_handler=True)
        definition.signature = HandlerSignature.of(send)
        return definition

    def finish(self, activity: Activity, outcome: Ended | None) -> None:
        """Record how an attempt ended: None if someone else will complete it."""
        with self._orphans.in_hand(activity):
            running = self.running.get(activity.activity_id)
            if running is not None and running.activity.token == activity.token:
                del self.running[activity.activity_id]
                if running.is_abandoned:
                    return
                activity = running.activity
            self.record_or_keep(activity, outcome)

    def record_or_keep(self, activity: Activity, outcome: Ended | None) -> None:
        """Store how an attempt ended, now or with the next look; drop it if it is no longer this worker's to say."""
        try:
            self._record(activity, outcome)
        except StaleClaimError as exc:
            _log.info("result dropped", activity_id=activity.activity_id, fact=str(exc))
        except (TransientError, OutcomeUnknownError) as exc:
            # Recording it again is refused if it was done.
            _log.warning("result kept for later", activity_id=activity.activity_id, error=str(exc))
            self.unfinished.append((activity, outcome))

    def _record(self, activity: Activity, outcome: Ended | None) -> None:
        if outcome is None:
            self.activities.hand_over(activity)
            self.agenda.look_again()
        elif activity.subscription is not None:
            self.activities.delivered(activity, outcome)
            if outcome.error is not None:
                self.agenda.look_again()
        else:
            source = self.activities.ended(activity, outcome)
            if source is None:
                self.agenda.look_again()
            else:
                self.tell(activity, source)

    def tell(self, activity: Activity, source: Source) -> None:
        """Have an execution hear how an activity ended, here if it is this worker's to advance."""
        if activity.limit_slot is None and self.fleet.owns(activity.execution_id):
            self.engine.tell(activity.execution_id, source)
        else:
            self.activities.deliver(activity, source)
            self.agenda.look_again()

    def abandon_all(self) -> None:
        """Everything that was claimed is someone else's now: this worker was taken for dead."""
        self.queue.clear()
        for running in list(self.running.values()):
            running.abandon()
        self.engine.drop()

    def _beat(self, context: ActivityContext, details: Raw | None) -> None:
        running = self.running.get(context.activity_id)
        if running is None or running.is_abandoned or running.context is not context:
            context.cancelled = True
            return
        now_ms = self.activities.now_ms()
        options = options_of(running.activity)
        quiet_ms = now_ms - max(running.activity.heartbeat_at_ms, running.activity.started_at_ms)
        every_ms = 1000 * HEARTBEATS_RECORDED_SHARE * (options.heartbeat or 10.0)
        if options.heartbeat is not None:
            running.deadline_ms, running.timeout = deadline(
                msgspec.structs.replace(running.activity, heartbeat_at_ms=now_ms), options
            )
        if quiet_ms < every_ms and details is None:
            return
        try:
            running.activity = self.activities.beat(running.activity, details)
        except StaleClaimError:
            context.cancelled = True

    def _give_back_surplus(self) -> None:
        """Let others have what waits behind threads that are all held up."""
        with suppress(IndexError):  # Somebody has begun the last one in this moment.
            for _ in range(self._prefetch.surplus(len(self.queue), self.threads)):
                self._release(self.queue.pop())

    def time_out(self, activity: Activity, error: ErrorInfo, kind: Timeout) -> None:
        """End an activity that no worker has and whose limit has passed. Raises `StaleClaimError`."""
        self._record(activity, Ended(error=error, timeout=kind))

    def next_timeout_ms(self) -> int | None:
        """Return when the first of the activities that run or wait here runs out of time, or should be given back."""
        held_up = self._prefetch.seconds_left(len(self.queue), self.threads)
        surplus_ms = NEVER_MS if held_up is None else self.activities.now_ms() + int(1000 * held_up)
        due_ms = min(self._expiry.next_ms(), surplus_ms)
        return None if due_ms >= NEVER_MS else due_ms

    def _release(self, activity: Activity) -> None:
        try:
            self.activities.release(activity)
        except StaleClaimError:
            return

    def _put_event(self, id: str, type: str, data: Raw, subject: str) -> None:
        source = f"/headgate/{self.app.name}"
        self.bus.emit(Event(id=id, type=type, source=source, subject=subject, data=data))
        self.agenda.look_again()

    def _emit(self, execution: Execution, command: EmitEvent) -> list[Write]:
        event = Event(
            id=self._ids.make("evt"),
            type=command.type,
            source=f"/headgate/{self.app.name}/{execution.execution_id}",
            subject=command.subject,
            data=command.data,
        )
        return self.bus.event_writes(event, self.activities.now_ms())
