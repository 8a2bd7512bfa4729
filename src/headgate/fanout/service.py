"""Fan-out service: builds every fan-out component around one open store."""

from __future__ import annotations

from headgate.clock import Clock
from headgate.fanout.core.chunk_workers import ChunkWorkers
from headgate.fanout.core.costs import NO_PRICES, Prices
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.observer import ANY_QUEUE, NO_OBSERVER, FanoutObserver, MessageSender, QueueChoice
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Splitter
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.local.worker import LocalWorker, Options
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.local_access import NO_ACCESS, LocalAccess
from headgate.fanout.model.rows import RETENTION_DAYS, Fanout
from headgate.fanout.remote.dead_letters import DeadLetters
from headgate.fanout.repair.auto_heal import Healer
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.control import FanoutControl
from headgate.fanout.repair.reconcile import Reconciler
from headgate.fanout.repair.redrive import Redriver
from headgate.ids import IdMaker
from headgate.store.model.requests import Write
from headgate.store.port import Store


class FanoutService:
    """The fan-outs of one store. It starts no thread.

    `send` sends the queue messages of fan-outs that have a queue; without it, such fan-outs are refused. `queues` says
    which queues they may have. `access` says which modules and files of this machine a fan-out may name.
    """

    def __init__(  # noqa: PLR0913 - what surrounds the fan-outs is joined here
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        shards: int = 1,
        send: MessageSender | None = None,
        observer: FanoutObserver = NO_OBSERVER,
        access: LocalAccess = NO_ACCESS,
        retention_days: float = RETENTION_DAYS,
        queues: QueueChoice = ANY_QUEUE,
        prices: Prices = NO_PRICES,
    ) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.access = access
        self.prices = prices
        self.retention_days = retention_days
        self.observer = _WorkerWakeup(observer)
        self._send = send
        self.queries = FanoutQueries(store, clock)
        self.chunk_workers = ChunkWorkers(store, clock)
        # Maintenance sends the messages of healed chunks: a queue that fails must not end the healing thread.
        self.healer = Healer(store, clock, ids)
        self.bisector = Bisector(store, clock, ids, send=send)
        self.redriver = Redriver(store, clock, ids, send=send, observer=self.observer)
        self.reconciler = Reconciler(store, clock, ids)
        self.maintenance = self.new_maintenance()
        self.splitter = Splitter(
            store,
            clock,
            ids,
            shards=shards,
            send=send,
            observer=self.observer,
            maintenance=self.maintenance,
            retention_days=retention_days,
            queues=queues,
        )
        self.tracker = Tracker(store, clock, ids, maintenance=self.maintenance)
        self.control = FanoutControl(store, clock, ids, observer=self.observer, maintenance=self.maintenance)
        self.dead_letters = DeadLetters(store, clock, maintenance=self.maintenance)

    def new_maintenance(self) -> FanoutMaintenance:
        """Return maintenance for one more thread, with its own limit on how often counts are folded."""
        return FanoutMaintenance(
            self.store, self.clock, self.ids, send=self._send, heal=self._heal, observer=self.observer
        )

    def worker(self, options: Options) -> LocalWorker:
        """Return a worker that runs chunks in child processes of this machine. It is idle until `run`."""
        worker = LocalWorker(
            self.store, self.clock, self.ids, options, maintenance=self.new_maintenance(), access=self.access
        )
        self.observer.workers.append(worker)
        return worker

    def _heal(self, fanout: Fanout) -> int:
        report = self.healer.heal(fanout.run_id)
        return report.healed + report.unseen


class _WorkerWakeup:
    """Wakes the local workers when there is work, and forwards every event to the injected observer."""

    def __init__(self, observer: FanoutObserver) -> None:
        self.workers: list[LocalWorker] = []
        self._observer = observer

    def on_work_available(self, run_id: str) -> None:
        for worker in self.workers:
            worker.wake()
        self._observer.on_work_available(run_id)

    def closing_writes(self, fanout: Fanout, counts: Counts) -> list[Write]:
        return self._observer.closing_writes(fanout, counts)

    def on_closed(self, fanout: Fanout) -> None:
        self._observer.on_closed(fanout)

    def notice_writes(self, event_type: str, fanout: Fanout, counts: Counts) -> list[Write]:
        return self._observer.notice_writes(event_type, fanout, counts)

    def on_noticed(self) -> None:
        self._observer.on_noticed()
