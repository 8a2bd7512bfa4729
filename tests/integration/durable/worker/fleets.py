"""A fleet for tests: workers with different builds of an app on one store, driven step by step in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.client.client import Client
from headgate.durable.model.history import Status
from headgate.durable.model.worker_limits import DEFAULT_LIMITS, WorkerLimits
from headgate.durable.service import Service
from headgate.durable.worker.worker import Worker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from tests.stores import open_sqlite

Declare = Callable[[hg.App], None]


class Fleet:
    """Workers that share a store. Nothing runs but in `run` and `advance`."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self._keyring = Keyring.open(folder / "keys.json", self.clock)
        self._blobs = FolderBlobs(folder / "blobs")
        self.workers: dict[str, Worker] = {}
        self.services: dict[str, Service] = {}
        self.client: Client = self._service(hg.App("outside"), "").client

    def _service(self, app: hg.App, build: str) -> Service:
        return Service(app, self.store, self.clock, self._keyring, self._blobs, build=build)

    def join(
        self,
        name: str,
        declare: Declare,
        *,
        build: str | None = None,
        app: str = "shop",
        limits: WorkerLimits = DEFAULT_LIMITS,
    ) -> Worker:
        """Add a worker. Its build is its name unless one is given."""
        declared = hg.App(app)
        declare(declared)
        service = self._service(declared, name if build is None else build)
        # Another host for each, so that no worker looks at the process of another.
        worker = service.worker(host=name, limits=limits)
        worker.join()
        self.workers[name], self.services[name] = worker, service
        self.refresh()
        return worker

    def leave(self, name: str) -> None:
        """Remove a worker as SIGTERM does."""
        self.workers.pop(name).leave()
        self.refresh()

    def refresh(self) -> None:
        """Have every worker read the rows of the others, as a renewal of its lease does."""
        for worker in self.workers.values():
            worker.fleet.refresh()

    def run(self) -> None:
        """Let every worker work until nothing is left to do."""
        is_busy = True
        while is_busy:
            is_busy = False
            for worker in self.workers.values():
                worker.poll()
                while worker.engine.has_work or worker.queue:
                    is_busy = True
                    worker.turn()
                    while worker.queue:
                        worker.perform(worker.queue.popleft())

    def advance(self, seconds: float) -> None:
        """Let time pass in steps of half a second."""
        self.run()
        for _ in range(round(2 * seconds)):
            self.clock.advance(0.5)
            self.run()

    def status(self, execution_id: str) -> Status:
        return self.client.get(execution_id).status

    def result(self, execution_id: str) -> Any:
        return self.client.handle(execution_id).result(0)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.leave()
        self.store.close()
