"""The service: an app with its client, bus, schedules and worker around one open store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from headgate.clock import Clock
from headgate.durable.bus.bus import Bus
from headgate.durable.bus.forwarding import Forwarder
from headgate.durable.client.client import Client
from headgate.durable.model.archive import Archive, Archiver
from headgate.durable.model.declarations import Declarations, Limits
from headgate.durable.replay import sandbox as guard
from headgate.durable.replay.turn_timeout import TURN_SECONDS
from headgate.durable.schedules.schedules import Schedules
from headgate.durable.sdk.activity_context import NotesHandler
from headgate.durable.sdk.app import App
from headgate.durable.threads import THREADS_MAX, WorkerThreads
from headgate.durable.worker.status import Pulse
from headgate.durable.worker.worker import Worker
from headgate.ids import IdMaker
from headgate.store.blobs.folder import Blobs
from headgate.store.keyring import Keyring
from headgate.store.port import Store


class Service:
    """What one process offers of durable execution. It starts no thread until `start`."""

    def __init__(self, app: App, store: Store, clock: Clock, keyring: Keyring, blobs: Blobs) -> None:
        self.app = app
        self.ids = IdMaker(clock)
        self.bus = Bus(store, clock, self.ids)
        self.schedules = Schedules(store, clock, self.ids, limits_of=self._limits_of)
        self.archive = Archive(blobs)
        self.client = Client(store, clock, self.ids, keyring, self.archive, workflows=app.workflows)
        self.store = store
        self.clock = clock
        self._keyring = keyring
        self._threads: WorkerThreads | None = None
        # How to reach the services that events are forwarded to, where settings say more than the default.
        self.open_forwarder: Callable[[], Forwarder] = lambda: Forwarder(clock)
        app.bind(self.client, self.bus)

    def _limits_of(self, workflow: str) -> tuple[float | None, float | None]:
        declared = self.app.workflows.get(workflow)
        return (None, None) if declared is None else (declared.timeout_seconds, declared.retention_seconds)

    def worker(
        self, *, queues: Sequence[str] = ("default",), replay_always: bool = False, lease_seconds: float = 10.0
    ) -> Worker:
        """Return a worker for the app, which does nothing by itself; its workflows' limits are made known to others.

        Raises what `open_forwarder` does, if the app forwards events, and `DefinitionError` if a workflow calls what
        cannot be replayed and was defined after it.
        """
        guard.install()
        self.app.check_again()
        forwards = any(each.forward_to is not None for each in self.app.subscriptions.values())
        limits = {
            name: Limits(each.timeout_seconds, each.retention_seconds) for name, each in self.app.workflows.items()
        }
        Declarations(self.store).declare(self.app.name, limits)
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
            forwarder=self.open_forwarder() if forwards else None,
        )

    def start(
        self,
        *,
        queues: Sequence[str] = ("default",),
        threads_max: int = THREADS_MAX,
        lease_seconds: float = 10.0,
        turn_seconds: float = TURN_SECONDS,
        replay_always: bool = False,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Begin to work."""
        worker = self.worker(queues=queues, lease_seconds=lease_seconds, replay_always=replay_always)
        worker.engine.closed = self.client.closed
        self._threads = WorkerThreads(
            worker, self.store, threads_max=threads_max, turn_seconds=turn_seconds, on_fatal=on_fatal
        )
        install_notes()
        self._threads.start()
        self.client.notify = self._threads.notify
        self.client.waits.is_rung = True
        self._threads.others_committed = self.client.waits.ring_all
        self.bus.look = self._threads.look
        self.schedules.told = self._threads.look

    def pulse(self) -> Pulse | None:
        """Return what the worker of this process is seen to do, or None if there is none."""
        threads = self._threads
        return None if threads is None else threads.pulse()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop working: what runs may end, the rest is given back."""
        if self._threads is not None:
            self.client.notify = None
            self.client.waits.is_rung = False
            self._threads.stop(grace_seconds)
            self._threads = None


def install_notes() -> None:
    """Keep what workflows and activities log, once for the process."""
    root = logging.getLogger()
    if not any(isinstance(handler, NotesHandler) for handler in root.handlers):
        root.addHandler(NotesHandler(logging.INFO))
