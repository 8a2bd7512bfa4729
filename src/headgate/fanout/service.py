"""The service: everything a process offers of fan-outs, around one open store."""

from __future__ import annotations

from collections.abc import Callable

from headgate.clock import Clock
from headgate.fanout.core.maintenance import Tender
from headgate.fanout.core.queries import Library
from headgate.fanout.core.splitter import Splitter
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.local.worker import LocalWorker, Options
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout
from headgate.fanout.remote.dead_letters import DeadLetters
from headgate.fanout.repair.auto_heal import Healer
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.control import Steering
from headgate.fanout.repair.reconcile import Reconciler
from headgate.fanout.repair.redrive import Redriver
from headgate.ids import IdMaker
from headgate.store.model.requests import Write
from headgate.store.port import Store


class FanoutService:
    """Fan-outs of one store. It starts no thread by itself."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, *, shards: int = 1) -> None:
        self.library = Library(store, clock)
        self.splitter = Splitter(store, clock, ids, shards=shards)
        self.tracker = Tracker(store, clock, ids)
        self.steering = Steering(store, clock, ids)
        self.redriver = Redriver(store, clock, ids)
        self.healer = Healer(store, clock, ids)
        self.bisector = Bisector(store, clock, ids)
        self.reconciler = Reconciler(store, clock, ids)
        self.dead_letters = DeadLetters(store, clock)
        # Told of a fan-out that has ended, once that is durable.
        self.closed: Callable[[Fanout], None] = lambda _: None
        self.send: Callable[[Fanout], Fanout] | None = None
        # Says that a fan-out has ended, in the transaction that closes it.
        self.announce: Callable[[Fanout, Counts], list[Write]] = lambda _, __: []
        # Told of a fan-out that may have chunks to run.
        self.changed: Callable[[str], None] = lambda _: None
        self.splitter.told = self.steering.told = self.redriver.told = lambda run_id: self.changed(run_id)
        self.store = store
        self.clock = clock
        self.ids = ids
        ended = self.tender().ended
        self.splitter.ended = self.tracker.ended = self.steering.ended = self.dead_letters.ended = ended

    def tender(self) -> Tender:
        """Return someone to tend the fan-outs: one for each thread that does."""
        tender = Tender(self.store, self.clock, self.ids)
        tender.closed = lambda fanout: self.closed(fanout)
        tender.announce = lambda fanout, counts: self.announce(fanout, counts)
        tender.heal = self._heal
        tender.send = self.send
        return tender

    def send_with(self, send: Callable[[Fanout], Fanout]) -> None:
        """Have messages of fan-outs with a queue of their own sent by this."""
        self.send = send
        self.splitter.send = self.redriver.send = self.healer.send = self.bisector.send = send

    def _heal(self, fanout: Fanout) -> int:
        found = self.healer.heal(fanout.run_id)
        return found.healed + found.unseen

    def worker(self, options: Options) -> LocalWorker:
        """Return a worker of this machine, which does nothing until it is run."""
        return LocalWorker(self.store, self.clock, self.ids, options, tender=self.tender())
