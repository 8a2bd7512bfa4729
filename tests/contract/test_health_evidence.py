"""Evidence on every backend: conditions, expiry, pins in another's transaction, and the index that may lag."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import AlreadyExistsError
from headgate.health.evidence.cache import Decision, EvidenceCache
from headgate.health.evidence.rows import Evidence, Producer, Result, Source, Validation
from headgate.health.evidence.sampling import Rates, ResultRates
from headgate.health.model.timestamps import instant
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.model.schema import Key
from tests.contract.conftest import AnyStore, Eventually, OpenStore

TABLES = (EVIDENCE_CACHE, CONTROL)
URN = "urn:dp:orders:order_created:v1"
DAY = 86_400
EVERYTHING = Rates(usual=ResultRates(passed=1.0))


class Rig:
    """A cache on the backend of the test."""

    def __init__(self, store: AnyStore, clock: VirtualClock, folder: Path, rates: Rates = EVERYTHING) -> None:
        self.store = store
        self.clock = clock
        self.cache = EvidenceCache(store, clock, IdMaker(clock), FolderBlobs(folder / "archived"), rates=rates)

    def evidence(self, said: Result = Result.FAIL) -> Evidence:
        self.clock.advance(0.001)
        return Evidence(
            evidence_id=self.cache.new_id(),
            dataset_urn=URN,
            created_at=instant(self.now_ms()),
            producer=Producer(producer_id="orders-svc"),
            source=Source(topic="raw.orders", partition=0, offset=2**62),
            validation=Validation(result=said, reason_codes=("MISSING_FIELD:customer_id",)),
        )

    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)


@pytest.fixture
def rig(store: AnyStore, clock: VirtualClock, tmp_path: Path) -> Rig:
    return Rig(store, clock, tmp_path)


def test_put_many__given_new_known_and_conflicting__then_each_is_distinguished(rig: Rig) -> None:
    offered = [rig.evidence() for _ in range(95)]
    assert {answer.decision for answer in rig.cache.put_many(offered)} == {Decision.STORED}

    new = rig.evidence()
    again = rig.cache.put_many([offered[0], new, replace(offered[1], payload_size_bytes=1)])

    assert [answer.decision for answer in again] == [Decision.DUPLICATE, Decision.STORED, Decision.REFUSED]
    with pytest.raises(AlreadyExistsError):
        rig.cache.put(replace(new, payload_ref="s3://elsewhere"))
    found = rig.cache.get_many([each.evidence_id for each in [*offered, new]])
    assert list(found.evidence.values()) == [*offered, new]


def test_evidence__given_a_day_passes__then_it_is_invisible_and_the_archive_has_it(rig: Rig) -> None:
    evidence = rig.evidence()
    rig.cache.put(evidence)
    assert rig.cache.archive(wait_seconds=0) == 1
    rig.clock.advance(DAY)

    assert rig.store.get_raw(EVIDENCE_CACHE, Key(evidence.evidence_id)) is not None
    assert rig.cache.get(evidence.evidence_id, include_archived=False) is None
    assert rig.cache.get(evidence.evidence_id) == replace(evidence, archived=True)
    # What has expired is absent to a new put as well, though its row is still there.
    assert rig.cache.put(evidence).decision is Decision.STORED


def test_pins__given_another_s_transaction__then_what_is_pinned_outlives_the_rest(rig: Rig) -> None:
    kept, gone, restored = rig.evidence(), rig.evidence(), rig.evidence()
    rig.cache.put(restored)
    rig.cache.archive(wait_seconds=0)
    rig.clock.advance(DAY)
    rig.cache.put_many([kept, gone])
    ids = [kept.evidence_id, rig.cache.new_id(), restored.evidence_id]

    writes = rig.cache.pin_writes(ids, "INC-1", rig.now_ms())
    other = rig.cache.pin_writes([kept.evidence_id], "INC-2", rig.now_ms())
    rig.store.transact([*writes, Put(CONTROL, {"PK": "INC-1", "SK": "META"})])
    rig.store.transact(other)
    rig.clock.advance(DAY)

    found = rig.cache.get_many([kept.evidence_id, gone.evidence_id, restored.evidence_id])
    assert {each.evidence_id: each.pinned_by for each in found.evidence.values()} == {
        kept.evidence_id: ("INC-1", "INC-2"),
        restored.evidence_id: ("INC-1",),
    }
    rig.cache.unpin(ids, "INC-1", keep_seconds=60)
    rig.cache.unpin(ids, "INC-1", keep_seconds=60)
    rig.clock.advance(60)
    assert rig.cache.get(restored.evidence_id) == replace(restored, archived=True)
    assert rig.cache.get(kept.evidence_id) == replace(kept, pinned_by=("INC-2",))


def test_index__given_the_query_as_it_is_documented__then_it_answers_by_dataset_and_time(
    rig: Rig, eventually: Eventually
) -> None:
    put = [rig.evidence() for _ in range(5)]
    rig.cache.put_many(put)
    sort = Sort(Range.BETWEEN, put[1].created_at, put[3].created_at)
    query = Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition=URN, sort=sort)

    items = eventually(lambda: rig.store.query(query).items, lambda items: len(items) == 3)

    assert [item["evidence_id"] for item in items] == [each.evidence_id for each in put[1:4]]
    assert items[0].keys() == {
        "evidence_id", "dataset_urn", "created_at", "producer", "source", "validation", "ttl",
    }  # fmt: skip
    assert rig.cache.of_dataset(URN, put[1].created_at, put[3].created_at).evidence == put[3:0:-1]


def test_last_good__given_other_processes_and_late_news__then_the_newest_stays_on_record(
    rig: Rig, open_store: OpenStore, clock: VirtualClock, tmp_path: Path, eventually: Eventually
) -> None:
    only_failures = Rates(usual=ResultRates(passed=0.0))
    late = rig.evidence(Result.PASS)
    good = rig.evidence(Result.PASS)
    for evidence in (good, late):
        # Each by a process of its own, which keeps the first that it sees.
        Rig(rig.store, clock, tmp_path, only_failures).cache.put(evidence)
    other = Rig(open_store(), clock, tmp_path, only_failures)
    other.cache.archive(wait_seconds=0)
    clock.advance(2 * DAY)
    bad = other.evidence()
    other.cache.put(bad)

    contrast = eventually(lambda: other.cache.first_bad_and_last_good(URN), lambda found: found.first_bad is not None)

    assert contrast.first_bad == bad
    assert contrast.last_good == replace(good, archived=True)
