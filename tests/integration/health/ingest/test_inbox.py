"""The inbox of OpenLineage events: nothing accepted is lost, nothing counts twice, and each job keeps its order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import (
    ConflictError,
    CorruptionError,
    HeadgateError,
    InvalidPayloadError,
    NotFoundError,
    PayloadTooLargeError,
    StoreBusyError,
    ThrottledError,
)
from headgate.health.ingest import runs as openlineage_runs
from headgate.health.ingest.drain import ATTEMPTS_MAX, DrainResult, Handlers
from headgate.health.ingest.effects import ResultEffect
from headgate.health.ingest.events import EVENT_BYTES_MAX
from headgate.health.ingest.inbox import BEHIND_SECONDS_MAX, LEASE_MS, BatchReceipt, OpenLineageInbox
from headgate.health.ingest.names import NameResolver
from headgate.health.lineage.service import Lineage
from headgate.health.observer import NullObserver
from headgate.ids import IdMaker
from headgate.store import deadlines
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.health.ingest.test_translate import GOLDEN, JOB, TABLE, TOPIC

START: Final = 1_768_471_200.0  # 2026-01-15T10:00:00Z


class Rig:
    """An inbox, a lineage that is fed from it, and a list of everything else that came out."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock(START)
        self.store: SqliteStore = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.ids = IdMaker(self.clock)
        self.inbox = OpenLineageInbox(self.store, self.clock, self.ids)
        self.lineage = Lineage(self.store, self.clock)
        self.seen: list[Any] = []
        # What goes wrong the next times that lineage is to be taken over, by producer.
        self.faults: dict[str, list[HeadgateError]] = {}
        self.handlers = Handlers(
            names=NameResolver(),
            configs=lambda _urn: None,
            lineage=self._lineage,
            signal=self.seen.append,
            results=self.seen.extend,
            discovered=self.seen.append,
            alias=self.seen.append,
            lifecycle=self.seen.append,
            oddity=self.seen.append,
        )

    def _lineage(self, spec: Any) -> None:
        faults = self.faults.get(spec.producer_id)
        if faults:
            raise faults.pop(0)
        self.seen.append(spec.producer_id)
        self.lineage.update(spec)

    def send(self, state: str, job: str = "j", *, seconds: float = 0, run: str = "r1", **more: Any) -> str:
        self.clock.advance(0.01)
        event = {**run_event(job, state, run), "eventTime": self.clock.now().isoformat(), **more}
        if seconds:
            event["eventTime"] = f"2026-01-15T09:00:{seconds:06.3f}Z"
        return self.inbox.accept(json.dumps(event).encode()).event_id

    def drain(self, **options: Any) -> DrainResult:
        return self.inbox.drain(self.handlers, **options)

    def known(self, job: str = "j") -> tuple[list[str], list[str]]:
        found = self.lineage.by_producer(f"job:ns.{job}")
        return [_name(urn) for urn in found.dataset_reads], [_name(urn) for urn in found.dataset_writes]


def run_event(job: str, state: str = "START", run: str = "r1") -> dict[str, Any]:
    return {
        "eventType": state, "eventTime": "2026-01-15T09:00:00Z", "producer": "p", "schemaURL": "s",
        "run": {"runId": run}, "job": {"namespace": "ns", "name": job},
    }  # fmt: skip


def _name(urn: str) -> str:
    return urn.rpartition(":")[2]


def refs(*names: str) -> list[dict[str, Any]]:
    return [{"namespace": "pg", "name": name} for name in names]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


# Accepting.


def test_accept__events_of_a_shard_wait_for_too_long__others_are_taken_and_those_are_reported_when_to_come_again(
    rig: Rig,
) -> None:
    rig.faults["job:ns.j"] = [StoreBusyError("down")] * 100
    rig.send("START", outputs=refs("out"))
    rig.clock.advance(BEHIND_SECONDS_MAX + 1)
    rig.drain()

    with pytest.raises(ThrottledError, match="backlog of 901 s") as refused:
        rig.send("COMPLETE", outputs=refs("out"))
    assert (refused.value.http_status, refused.value.retry_after_seconds) == (429, 30.0)
    body = json.dumps([run_event(f"other{number}") for number in range(40)]).encode()
    batch = rig.inbox.accept_batch(body)
    # Those of one shard of eight.
    assert 0 < len(batch.refusals) < 15
    assert all(each.is_retriable for each in batch.refusals)

    rig.faults.clear()
    rig.drain()
    rig.drain()
    rig.send("COMPLETE", outputs=refs("out"))


def test_accept__store_that_does_not_answer__is_not_waited_for_past_the_patience_of_clients(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[float | None] = []
    transact = rig.store.transact

    def noting(*given: Any, **more: Any) -> None:
        known.append(deadlines.current_deadline())
        transact(*given, **more)

    monkeypatch.setattr(rig.store, "transact", noting)
    rig.send("START")
    assert [None if each is None else each - rig.clock.monotonic() for each in known] == [pytest.approx(4.0, abs=0.1)]


def test_accept__the_golden_event__is_carried_out_once(rig: Rig) -> None:
    body = json.dumps(GOLDEN).encode()
    first = rig.inbox.accept(body)
    again = rig.inbox.accept(body)

    assert (again.event_id, again.is_duplicate, first.is_duplicate) == (first.event_id, True, False)
    assert rig.drain() == DrainResult(done=1)
    assert rig.drain() == DrainResult()
    assert [entry.entity_id for entry in rig.lineage.writers(TABLE).entries] == [JOB]
    assert [entry.entity_id for entry in rig.lineage.readers(TOPIC).entries] == [JOB]
    assert [entry.commit for entry in rig.lineage.column_readers(f"urn:col:{TOPIC}:customer_id").entries] == [None]
    assert rig.inbox.accept(body).is_duplicate, "also after it was carried out"


def test_accept__by_a_process_that_is_gone__is_carried_out_by_another(rig: Rig, tmp_path: Path) -> None:
    rig.send("COMPLETE", outputs=refs("a"))
    rig.store.close()

    other = Rig(tmp_path)

    assert other.drain() == DrainResult(done=1)
    assert other.known() == ([], ["a"])
    other.store.close()


def test_accept__what_is_no_event__is_refused_and_not_kept(rig: Rig) -> None:
    with pytest.raises(InvalidPayloadError):
        rig.inbox.accept(b'{"eventTime":"2026-01-15T10:00:00Z"}')
    with pytest.raises(PayloadTooLargeError):
        rig.inbox.accept(b" " * (EVENT_BYTES_MAX + 1))
    assert rig.drain() == DrainResult()


def test_accept__megabytes_of_facets__are_kept_and_carried_out(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=[{"namespace": "pg", "name": "a", "facets": {"custom": {"x": "y" * 4_000_000}}}])

    assert rig.drain() == DrainResult(done=1)
    assert rig.known() == ([], ["a"])


def test_accept_batch__good_and_bad_events__keeps_the_good_ones(rig: Rig) -> None:
    good = {**GOLDEN, "run": {"runId": "other"}}
    receipt = rig.inbox.accept_batch(json.dumps([GOLDEN, {"eventTime": 1}, good, GOLDEN]).encode())

    assert (receipt.received, receipt.accepted) == (4, 3)
    assert [(each.index, each.is_retriable) for each in receipt.refusals] == [(1, False)]
    assert rig.drain().done == 2
    assert rig.inbox.accept_batch(b"[]") == BatchReceipt(0, 0)


def test_oldest_seconds__events_that_wait__is_how_long_the_first_did_until_none_is_left(rig: Rig) -> None:
    rig.send("START", "a")
    rig.clock.advance(60)
    rig.send("START", "b")

    rig.drain()
    assert rig.inbox.oldest_seconds == pytest.approx(60, abs=1)
    rig.drain()
    assert rig.inbox.oldest_seconds == 0


def test_accept__an_event__calls_the_observer(rig: Rig) -> None:
    calls: list[int] = []

    class Listener(NullObserver):
        def on_lineage_event_accepted(self) -> None:
            calls.append(1)

    rig.inbox = OpenLineageInbox(rig.store, rig.clock, rig.ids, Listener())
    rig.send("START")

    assert calls == [1]


# Runs add up.


def test_drain__inputs_at_the_start_and_outputs_at_the_end__are_one_lineage(rig: Rig) -> None:
    rig.send("START", inputs=refs("a"))
    rig.send("COMPLETE", outputs=refs("b"))
    rig.drain()

    assert rig.known() == (["a"], ["b"])


def test_drain__the_start_of_the_next_run__removes_nothing(rig: Rig) -> None:
    rig.send("COMPLETE", inputs=refs("a"), outputs=refs("b"))
    rig.send("START", run="r2", inputs=refs("a"))
    rig.drain()
    assert rig.known() == (["a"], ["b"])

    rig.send("COMPLETE", run="r2", outputs=refs("c"))
    rig.drain()
    assert rig.known() == (["a"], ["c"]), "the complete run no longer writes b"


def test_drain__the_end_before_the_start__comes_to_the_same(rig: Rig) -> None:
    rig.send("COMPLETE", seconds=20, outputs=refs("b"))
    rig.send("START", seconds=10, inputs=refs("a"))
    rig.drain()

    assert rig.known() == (["a"], ["b"])


def test_drain__a_late_event_of_an_earlier_run__changes_nothing(rig: Rig) -> None:
    rig.send("COMPLETE", seconds=20, run="r2", inputs=refs("a"), outputs=refs("b"))
    rig.send("COMPLETE", seconds=10, run="r1", inputs=refs("old"), outputs=refs("b"))
    rig.drain()

    assert rig.known() == (["a"], ["b"])


@pytest.mark.parametrize("state", ["FAIL", "ABORT", "RUNNING", "OTHER"])
def test_drain__a_run_that_is_not_complete__removes_nothing(rig: Rig, state: str) -> None:
    rig.send("COMPLETE", inputs=refs("a"), outputs=refs("b"))
    rig.send(state, run="r2", inputs=refs("c"))
    rig.drain()

    assert rig.known() == (["a", "c"], ["b"])


def test_drain__a_run_that_names_no_dataset__says_nothing_of_lineage(rig: Rig) -> None:
    rig.send("COMPLETE", inputs=refs("a"), outputs=refs("b"))
    rig.send("COMPLETE", run="r2")
    rig.drain()

    assert rig.known() == (["a"], ["b"])


def test_drain__a_job_declared_without_datasets__has_none(rig: Rig) -> None:
    rig.send("COMPLETE", inputs=refs("a"), outputs=refs("b"))
    rig.clock.advance(1)
    declared = {
        "eventTime": rig.clock.now().isoformat(), "producer": "p", "schemaURL": "s",
        "job": {"namespace": "ns", "name": "j"}, "inputs": [], "outputs": [],
    }  # fmt: skip
    rig.inbox.accept(json.dumps(declared).encode())
    rig.drain()

    assert rig.known() == ([], [])


def test_drain__the_same_lineage_every_five_minutes__is_one_spec(rig: Rig) -> None:
    for number in range(20):
        rig.clock.advance(300)
        rig.send("START", run=f"r{number}", inputs=refs("a"))
        rig.send("COMPLETE", run=f"r{number}", outputs=refs("b"))
        rig.drain()

    assert len(rig.lineage.specs("job:ns.j").specs) == 2, "of a start, and of a whole run"


def test_drain__a_failure_that_names_no_output__is_a_result_of_those_named_before(rig: Rig) -> None:
    rig.send("START", outputs=refs("b", "c"))
    rig.send("FAIL")
    rig.drain()

    proofs = [effect for effect in rig.seen if isinstance(effect, ResultEffect)]
    assert [_name(proof.dataset_urn or "") for proof in proofs] == ["b", "c"]
    assert len({proof.evidence_id for proof in proofs}) == 2


def test_drain__more_columns_than_are_kept__reports_the_datasets_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openlineage_runs, "EDGES_MAX", 50)
    for part in range(3):
        fields: dict[str, Any] = {f"c{part}_{number}": {"inputFields": []} for number in range(20)}
        output = {**refs("b")[0], "facets": {"columnLineage": {"fields": fields}}}
        rig.send("COMPLETE" if part == 2 else "RUNNING", inputs=refs("a"), outputs=[output])

    assert rig.drain() == DrainResult(done=3)
    assert rig.known() == (["a"], ["b"])
    assert rig.lineage.column_writers("urn:col:urn:dp:pg:b:c2_0").entries == []


# What goes wrong.


def _busy() -> HeadgateError:
    return StoreBusyError("the store is busy")


def test_drain__a_job_that_has_to_wait__keeps_its_order_and_holds_up_no_other(rig: Rig) -> None:
    rig.send("START", "j", inputs=refs("a"))
    rig.send("COMPLETE", "j", outputs=refs("b"))
    others = [rig.send("COMPLETE", f"k{number}", outputs=refs("x")) for number in range(20)]
    rig.faults["job:ns.j"] = [_busy()]

    assert rig.drain() == DrainResult(done=len(others), deferred=2)
    assert rig.drain() == DrainResult(done=2)
    assert rig.known() == (["a"], ["b"])
    assert rig.seen.count("job:ns.j") == 2


def test_drain__an_event_that_cannot_be_carried_out__is_put_aside_and_can_be_sent_in_again(rig: Rig) -> None:
    event_id = rig.send("COMPLETE", outputs=refs("a"))
    rig.faults["job:ns.j"] = [InvalidPayloadError("producer job:ns.j: it has too many edges")]

    assert rig.drain() == DrainResult(dead=1)
    (dead,) = rig.inbox.dead().events
    assert (dead.event_id, dead.about) == (event_id, "ns j")
    assert dead.reason == "bad_payload: producer job:ns.j: it has too many edges"
    assert rig.drain() == DrainResult()

    rig.inbox.redrive(event_id)
    assert rig.inbox.dead().events == []
    assert rig.drain() == DrainResult(done=1)
    assert rig.known() == ([], ["a"])
    with pytest.raises(NotFoundError):
        rig.inbox.redrive(event_id)


def test_drain__an_event_of_the_future__is_put_aside_with_the_reason(rig: Rig) -> None:
    event = {**GOLDEN, "eventTime": "2030-01-01T00:00:00Z"}
    rig.inbox.accept(json.dumps(event).encode())

    assert rig.drain() == DrainResult(dead=1)
    assert "is in the future" in rig.inbox.dead().events[0].reason


def test_drain__conflicts_again_and_again__end_with_the_event_put_aside(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=refs("a"))
    rig.faults["job:ns.j"] = [ConflictError("changed") for _ in range(ATTEMPTS_MAX)]

    drained = [rig.drain() for _ in range(ATTEMPTS_MAX)]

    assert drained == [DrainResult(deferred=1)] * (ATTEMPTS_MAX - 1) + [DrainResult(dead=1)]


def test_drain__something_fatal__is_raised_and_the_event_stays(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=refs("a"))
    rig.faults["job:ns.j"] = [CorruptionError("bad bytes")]

    with pytest.raises(CorruptionError):
        rig.drain()

    assert rig.drain() == DrainResult(done=1)


def test_discard__an_event_put_aside__is_gone(rig: Rig) -> None:
    event_id = rig.send("COMPLETE", outputs=refs("a"))
    rig.faults["job:ns.j"] = [InvalidPayloadError("no")]
    rig.drain()

    rig.inbox.discard(event_id)

    assert rig.inbox.dead().events == []
    with pytest.raises(NotFoundError):
        rig.inbox.discard(event_id)


class CrashError(Exception):
    """The process is gone."""


def _crash_at(number: int, call: Callable[[Any], object], counted: list[int]) -> Callable[[Any], None]:
    def handler(effect: Any) -> None:
        counted.append(1)
        call(effect)
        if len(counted) == number:
            raise CrashError

    return handler


@pytest.mark.parametrize("number", range(1, 10))
def test_drain__a_crash_after_any_effect__leaves_nothing_undone(rig: Rig, number: int) -> None:
    rig.inbox.accept(json.dumps({**GOLDEN, "eventType": "FAIL"}).encode())
    rig.inbox.accept(json.dumps(GOLDEN).encode())
    counted: list[int] = []
    names = ("lineage", "signal", "results", "discovered")
    calls = {name: _crash_at(number, getattr(rig.handlers, name), counted) for name in names}
    try:
        rig.inbox.drain(replace(rig.handlers, **calls))
    except CrashError:
        pass
    else:
        pytest.fail(f"there are only {len(counted)} effects")
    # The lease of the process that is gone was let go, as `finally` does; had it been killed, it would run out.
    rig.clock.advance(LEASE_MS / 1000 + 1)

    assert rig.drain().done >= 1
    assert rig.drain() == DrainResult(), "nothing is left"
    kinds = {type(effect).__name__ for effect in rig.seen}
    assert kinds == {"str", "SignalEffect", "ResultEffect", "DatasetDiscovered"}
    assert [entry.entity_id for entry in rig.lineage.writers(TABLE).entries] == [JOB]


def test_drain__while_another_process_is_at_it__leaves_the_shard_alone(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=refs("a"))
    other = OpenLineageInbox(rig.store, rig.clock, rig.ids)
    inner: list[DrainResult] = []

    def while_draining(spec: Any) -> None:
        inner.append(other.drain(rig.handlers))
        rig.lineage.update(spec)

    assert rig.inbox.drain(replace(rig.handlers, lineage=while_draining)) == DrainResult(done=1)
    assert inner == [DrainResult()]


def test_drain__a_process_killed_while_at_it__is_followed_by_another_after_a_minute(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=refs("a"))
    shard = rig.inbox._busy_shards()[0]
    assert rig.inbox._lease(shard) is not None
    other = OpenLineageInbox(rig.store, rig.clock, rig.ids)

    assert other.drain(rig.handlers) == DrainResult()
    rig.clock.advance(LEASE_MS / 1000)
    assert other.drain(rig.handlers) == DrainResult(done=1)


def test_drain__when_the_lease_runs_out__stops_before_the_next_event(rig: Rig) -> None:
    rig.send("START", inputs=refs("a"))
    rig.send("COMPLETE", outputs=refs("b"))

    def slow(_spec: Any) -> None:
        rig.clock.advance(LEASE_MS / 1000)

    assert rig.inbox.drain(replace(rig.handlers, lineage=slow)) == DrainResult(done=1, deferred=1)
    assert rig.drain() == DrainResult(done=1)


def test_drain__with_a_limit__does_about_as_many_and_the_rest_later(rig: Rig) -> None:
    for number in range(50):
        rig.send("RUNNING", run=f"r{number}", inputs=refs("a"))

    assert rig.drain(limit=30).done == 30
    assert rig.drain().done == 20
