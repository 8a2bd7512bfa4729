"""The state store's methods on a real store, for conversations over both ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from headgate.bootstrap.store import OpenedStore
from headgate.clock import SystemClock
from headgate.durable.bus.bus import Bus
from headgate.health.model.datasets import DatasetSpec
from headgate.health.model.enums import Tier
from headgate.health.reporter import HealthReporter
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.serve.rpc.methods import Method
from headgate.serve.rpc.statestore import proto as pb
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.store.cache.read_through import Cache

URN = "urn:dp:orders:created:v1"
NOW = SystemClock().now().replace(microsecond=0)


class HealthRpcs:
    """Health of a store with one dataset in it, and its methods."""

    def __init__(self, opened: OpenedStore, pool: WorkPool) -> None:
        clock = SystemClock()
        ids = IdMaker(clock)
        bus = Bus(opened.store, clock, ids)
        self.health = HealthService(
            opened.store,
            clock,
            ids,
            Cache(clock=clock),
            opened.keyring,
            opened.blobs,
            event_writes=bus.event_writes,
            observer=HealthReporter(wake_bus=lambda: bus.on_committed()),
        )
        self.health.registry.create(URN, DatasetSpec(tier=Tier.TIER_2, owner_team="orders"), actor="test")
        self.watches = WatchHub(opened.store)
        self.methods: list[Method] = statestore_methods(
            self.health, bus, watches=self.watches, pool=pool, local_reads=True
        )


@contextmanager
def health_rpcs(opened: OpenedStore) -> Iterator[HealthRpcs]:
    pool = WorkPool(threads_max=4)
    rpcs = HealthRpcs(opened, pool)
    yield rpcs
    rpcs.health.close()
    pool.close()


def update(
    state: str = "OK", *, minutes: float = 0, expected: int = -1, urn: str = URN, kind: str = "FRESHNESS"
) -> pb.UpdateSignalStateRequest:
    """Return an update whose window ends so many minutes from now (before now, if they are negative)."""
    ended: datetime = NOW + timedelta(minutes=minutes)
    return pb.UpdateSignalStateRequest(
        dataset_urn=urn,
        signal_type=kind,
        expected_version=expected,
        state=pb.SignalStateValue(
            state=state,
            score=0.5,
            slo_threshold=0.95,
            window_start=ended - timedelta(minutes=5),
            window_end=ended,
            window_type="TUMBLING_5MIN",
            metrics=pb.SignalMetrics(evidence_count=10, pass_count=5, fail_count=5),
            failure_signature="" if state == "OK" else "MISSING_FIELD:customer_id",
            top_producer=pb.ProducerInfo(producer_id="job:orders", version="1.2", confidence="HIGH"),
        ),
    )
