"""Durable service: an app with its client, bus, schedules and worker on one open store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.dead_letters import RETENTION_DAYS as DEAD_LETTERS_DAYS
from headgate.durable.bus.event_log import RETENTION_DAYS
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.client.client import Client
from headgate.durable.client.result_waiters import LocalNotifier, ResultWaiters
from headgate.durable.client.sealing import Sealing
from headgate.durable.engine.ready_queue import ReadyList
from headgate.durable.model.archive import KEPT_SECONDS, Archive, Archiver
from headgate.durable.model.declarations import Declarations, Limits
from headgate.durable.model.input_specs import input_spec
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.model.worker_limits import DEFAULT_LIMITS, WorkerLimits
from headgate.durable.replay import sandbox
from headgate.durable.replay.turn_timeout import TURN_SECONDS
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.sdk.activity_context import NotesHandler
from headgate.durable.sdk.app import App
from headgate.durable.sdk.build_digest import build_of
from headgate.durable.threads import WorkerThreads
from headgate.durable.worker.query_responder import QueryResponder
from headgate.durable.worker.standby import THREADS, StandbyWorker
from headgate.durable.worker.status import WorkerStatus
from headgate.durable.worker.worker import Worker
from headgate.errors import IllegalTransitionError
from headgate.ids import IdMaker
from headgate.store.blobs.folder import Blobs
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.telemetry import Tracing


class Service:
    """Durable execution for one process. It starts no thread until `start`."""

    def __init__(  # noqa: PLR0913 - the components of a process
        self,
        app: App,
        store: Store,
        clock: Clock,
        keyring: Keyring,
        blobs: Blobs,
        *,
        archive_seconds: float | None = KEPT_SECONDS,
        events_days: int = RETENTION_DAYS,
        dead_letters_days: int = DEAD_LETTERS_DAYS,
        open_forwarder: Callable[[], Forwarder] | None = None,
        meters: ExecutionMeters | None = None,
        build: str = "",
        tracing: Tracing | None = None,
    ) -> None:
        """Wire the components. Events are kept for `events_days`, dead letters for `dead_letters_days`.

        `open_forwarder` opens the sender of forwarded events, if the app forwards any. `meters` count what the worker
        does, `tracing` records the spans of executions. `build` names the code of the app, by default its source.
        """
        self.app = app
        self._build = build
        self.ids = IdMaker(clock)
        waiters = ResultWaiters(store, clock)
        self.notifier = LocalNotifier(waiters)
        self.bus = Bus(store, clock, self.ids, observer=self.notifier, retention_days=events_days)
        self.schedules = Schedules(
            store, clock, self.ids, limits_of=self._limits_of, observer=self.notifier, seal=Sealing(app.workflows).start
        )
        self.archive = Archive(blobs, kept_seconds=archive_seconds)
        self.client = Client(
            store,
            clock,
            self.ids,
            keyring,
            self.archive,
            workflows=app.workflows,
            waiters=waiters,
            observer=self.notifier,
            interceptors=app.interceptors,
            tracing=tracing,
        )
        self.store = store
        self.clock = clock
        self._keyring = keyring
        self._open_forwarder = open_forwarder
        self._dead_letters_days = dead_letters_days
        self.meters = meters
        self.tracing = tracing
        self._threads: WorkerThreads | None = None
        self._responder: QueryResponder | None = None
        app.bind(self.client, self.bus)

    @property
    def build(self) -> str:
        """The build of this app: as given, or the digest of its source."""
        return self._build or build_of(self.app)

    def _limits_of(self, workflow: str) -> tuple[float | None, float | None]:
        declared = self.app.workflows.get(workflow)
        return (None, None) if declared is None else (declared.timeout_seconds, declared.retention_seconds)

    def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        replay_always: bool = False,
        lease_seconds: float = 10.0,
        host: str | None = None,
        worker_id: str = "",
        ready: ReadyList | None = None,
        limits: WorkerLimits = DEFAULT_LIMITS,
    ) -> Worker:
        """Return a worker for the app, without threads, and publish the limits of the app's workflows.

        `host` replaces the name of this machine: workers with the same one check each other's process id. `worker_id`
        is for a worker that does not join the fleet. `ready` replaces the list of executions that have events.

        Raises what `open_forwarder` raises if the app forwards events, and `DefinitionError` if a workflow calls a
        function that cannot be replayed and was defined after it.
        """
        sandbox.install()
        self.app.check_again()
        forwards = any(each.forward_to is not None for each in self.app.subscriptions.values())
        declared = {
            name: Limits(each.timeout_seconds, each.retention_seconds) for name, each in self.app.workflows.items()
        }
        specs = {name: input_spec(each.signature) for name, each in self.app.workflows.items()}
        Declarations(self.store).declare(self.app.name, declared, specs)
        return Worker(
            self.app,
            self.store,
            self.clock,
            self.ids,
            self._keyring,
            self.bus,
            archiver=Archiver(self.store, self.clock, self.archive),
            queues=queues,
            replay_always=replay_always,
            lease_seconds=lease_seconds,
            host=host,
            worker_id=worker_id,
            build=self.build,
            ready=ready,
            limits=limits,
            dead_letters_days=self._dead_letters_days,
            forwarder=self._open_forwarder() if forwards and self._open_forwarder is not None else None,
            observer=self.notifier,
            meters=self.meters,
            tracing=self.tracing,
        )

    def standby_worker(self, *, queues: Sequence[str], lease_seconds: float = 10.0) -> StandbyWorker:
        """Return a worker that runs the deliveries of these queues which no other worker claims.

        It declares nothing: the regular workers own the subscriptions.
        """
        worker = Worker(
            self.app,
            self.store,
            self.clock,
            self.ids,
            self._keyring,
            self.bus,
            queues=queues,
            activities_only=True,
            threads=THREADS,
            lease_seconds=lease_seconds,
            dead_letters_days=self._dead_letters_days,
        )
        return StandbyWorker(worker, self.clock)

    def start(
        self,
        *,
        queues: Sequence[str] = ("default",),
        limits: WorkerLimits = DEFAULT_LIMITS,
        lease_seconds: float = 10.0,
        turn_seconds: float = TURN_SECONDS,
        replay_always: bool = False,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Start a worker with its threads. Raises `IllegalTransitionError` if this service has one already."""
        if self._threads is not None:
            raise IllegalTransitionError(
                f"app {self.app.name}: the worker of this service has been started already, by hg.connect() or "
                "start(); stop() it first, or run another process"
            )
        worker = self.worker(queues=queues, lease_seconds=lease_seconds, replay_always=replay_always, limits=limits)
        threads = WorkerThreads(
            worker,
            self.store,
            turn_seconds=turn_seconds,
            on_fatal=on_fatal,
            observer=self.notifier,
        )
        install_notes()
        threads.start()
        self._threads = threads
        self.notifier.attach(threads)
        self._responder = QueryResponder(self.store, self.clock, self.app.workflows, self.client)
        self._responder.start()

    def worker_status(self) -> WorkerStatus | None:
        """Return the status of the worker of this process, or None if there is none."""
        threads = self._threads
        return None if threads is None else threads.status()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop the worker: running activities get the grace period, the other claims are released."""
        if self._responder is not None:
            self._responder.stop()
            self._responder = None
        if self._threads is not None:
            self.notifier.attach(None)
            self._threads.stop(grace_seconds)
            self._threads = None


def install_notes() -> None:
    """Record the log lines of workflows and activities in their executions, from now on in this process."""
    root = logging.getLogger()
    if not any(isinstance(handler, NotesHandler) for handler in root.handlers):
        root.addHandler(NotesHandler(logging.INFO))
