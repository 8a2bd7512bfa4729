"""An evidence cache on a store of its own, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgate.clock import VirtualClock
from headgate.errors import StoreBusyError
from headgate.health.evidence.cache import EvidenceCache
from headgate.health.evidence.limits import Limits
from headgate.health.evidence.rows import Evidence, Producer, Result, Validation
from headgate.health.evidence.sampling import Rates, ResultRates
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import EVIDENCE_CACHE
from headgate.store.model.requests import Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

URN = "urn:dp:orders:order_created:v1"
REASON = "MISSING_FIELD:customer_id"
EVERYTHING = Rates(usual=ResultRates(passed=1.0, skipped=1.0))
NOTHING_BUT_FAILURES = Rates(usual=ResultRates(passed=0.0), refresh_seconds=1e9)
DAY = 86_400


class BrokenStore:
    """A store that fails as often as asked to, either before a write or after it was done."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.failures = 0
        self.after = 0
        self.is_applied = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> Any:
        if self.failures == 0 or self.after:
            self.after = max(0, self.after - 1)
            return self._store.transact_many(transactions)
        self.failures -= 1
        if self.is_applied:
            self._store.transact_many(transactions)
        raise StoreBusyError("the test says so")


class Rig:
    """What a test of evidence needs. Another one on the same folder is another process."""

    def __init__(
        self,
        folder: Path,
        *,
        rates: Rates = EVERYTHING,
        limits: Limits | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.ids = IdMaker(self.clock)
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.broken = BrokenStore(self.sqlite)
        self.archived = folder / "archived"
        self.blobs = FolderBlobs(self.archived)
        self.cache = EvidenceCache(self.broken, self.clock, self.ids, self.blobs, limits=limits, rates=rates)

    def evidence(self, said: Result = Result.FAIL, *, urn: str = URN, reason: str = REASON, **fields: Any) -> Evidence:
        """Return evidence of now with an id of its own."""
        reasons = (reason,) if said is Result.FAIL else ()
        fields.setdefault("evidence_id", self.cache.new_id())
        fields.setdefault("created_at", self.now())
        producer = Producer(producer_id="orders-svc", version="v3.17")
        return Evidence(
            dataset_urn=urn, validation=Validation(result=said, reason_codes=reasons), producer=producer, **fields
        )

    def put(self, said: Result = Result.FAIL, **fields: Any) -> Evidence:
        """Put evidence of now a millisecond after what came before, and return it."""
        self.clock.advance(0.001)
        evidence = self.evidence(said, **fields)
        self.cache.put(evidence)
        return evidence

    def now(self) -> str:
        return instant(self.now_ms())

    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def raw(self, evidence_id: str) -> Item | None:
        """The row as it is stored, expired or not."""
        return self.sqlite.get_raw(EVIDENCE_CACHE, Key(evidence_id))

    def pin(self, evidence_ids: Sequence[str], incident_id: str) -> int:
        """Pin evidence in a transaction, and return how many writes that took."""
        writes = self.cache.pin_writes(evidence_ids, incident_id, self.now_ms())
        if writes:
            self.sqlite.transact(writes)
        return len(writes)

    def archive_all(self) -> int:
        return self.cache.archive(wait_seconds=0)
