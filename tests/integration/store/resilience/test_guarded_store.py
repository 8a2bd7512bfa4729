"""The guarded store: a table that is ill is left alone, one that is overloaded gets less, and all else goes through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.errors import (
    BreakerOpenError,
    ConflictError,
    HeadgateError,
    InvalidItemError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    StoreFullError,
    ThrottledError,
)
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, SIGNAL_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Check, Delete, Put, Query, StreamStart
from headgate.store.model.schema import Key, Table
from headgate.store.port import Store
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerState
from headgate.store.resilience.guarded_store import GuardedStore
from headgate.store.resilience.rate_limiter import Priority, prioritised
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

KEY = Key("p", "s")
ROW = {"PK": "p", "SK": "s"}
CALLS = {
    "get", "get_raw", "get_many", "query", "query_many", "put", "update", "delete", "transact", "transact_many",
    "batch_write", "changes", "checkpoint",
}  # fmt: skip


class FailingStore:
    """A store whose calls fail when a test wants it, instead of being made or after it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls = 0
        self.failing: Callable[[int], BaseException | None] = lambda _call: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in CALLS:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            error = self.failing(self.calls)
            if error is not None:
                raise error
            return found(*args, **options)

        return call

    def submit(self, writes: Any, done: Callable[[BaseException | None], None]) -> None:
        self.calls += 1
        error = self.failing(self.calls)
        if error is None:
            self._store.submit(writes, done)
        else:
            done(error)


class RecordingObserver:
    def __init__(self) -> None:
        self.answers: list[tuple[str, str]] = []
        self.failures: list[tuple[str, str, type[BaseException]]] = []
        self.conflicts: list[BaseException] = []
        self.changes: list[BreakerChange] = []

    def on_answered(self, tables: str, operation: str, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((tables, operation))

    def on_failed(self, tables: str, operation: str, error: BaseException) -> None:
        self.failures.append((tables, operation, type(error)))

    def on_conflicted(self, error: BaseException) -> None:
        self.conflicts.append(error)

    def on_breaker_changed(self, change: BreakerChange) -> None:
        self.changes.append(change)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.failing = FailingStore(self.sqlite)
        self.observer = RecordingObserver()
        self.store = GuardedStore(self.failing, self.clock, observer=self.observer)
        self.sqlite.put(CONTROL, {**ROW, "version": 1})

    def close(self) -> None:
        self.sqlite.close()

    def fail_with(self, error: BaseException | None) -> None:
        self.failing.failing = lambda _call: error

    def get(self, table: Table = CONTROL) -> type[BaseException] | None:
        """Read, and return the kind of error that came of it."""
        try:
            self.store.get(table, KEY)
        except HeadgateError as exc:
            return type(exc)
        return None


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig


def test_guarded__is_a_store(rig: Rig) -> None:
    store: Store = rig.store

    store.put(SIGNAL_STATE, {**ROW, "version": 1}, condition=absent())
    store.update(SIGNAL_STATE, KEY, set={"version": 2}, condition=version_is(1))
    store.transact([Put(SIGNAL_STATE, {"PK": "p", "SK": "t"}), Check(CONTROL, KEY, version_is(1))], token="once")
    assert store.transact_many([[Delete(SIGNAL_STATE, Key("p", "t"))]]) == [None]
    store.batch_write([Put(SIGNAL_STATE, {"PK": "p", "SK": "u"})])
    assert store.get_many(SIGNAL_STATE, [KEY, Key("p", "t")]) == [{**ROW, "version": 2}, None]
    query = Query(table=SIGNAL_STATE, partition="p")
    assert [item["SK"] for item in store.query(query).items] == ["s", "u"]
    assert len(store.query_many([query, query])) == 2
    batch = store.changes(SIGNAL_STATE, "reader", start=StreamStart.OLDEST)
    store.checkpoint(SIGNAL_STATE, "reader", batch.position)
    assert [change.kind.value for change in batch.changes] == ["INSERT", "MODIFY", "INSERT", "REMOVE", "INSERT"]
    assert store.delete(SIGNAL_STATE, KEY) == {**ROW, "version": 2}
    generation = store.generation()
    assert store.wait(generation - 1, 0.1) >= generation
    assert store.sweep() == 0
    store.check_health()
    store.close()

    with pytest.raises(StoreClosedError):
        store.get(CONTROL, KEY)


def test_guarded__submit__reports_the_outcome(rig: Rig) -> None:
    received: list[BaseException | None] = []
    ended = threading.Event()

    def done(error: BaseException | None) -> None:
        received.append(error)
        ended.set()

    rig.store.submit([Put(CONTROL, {"PK": "p", "SK": "t"})], done)
    assert ended.wait(10)
    ended.clear()
    rig.store.submit([Put(CONTROL, ROW, absent())], done)
    assert ended.wait(10)
    with pytest.raises(InvalidItemError):
        rig.store.submit([Put(CONTROL, {"PK": "p"})], done)

    assert received[0] is None
    assert isinstance(received[1], ConflictError)
    assert len(received) == 2


def test_guarded__submit_to_a_table_that_is_ill__is_reported_and_not_raised(rig: Rig) -> None:
    received: list[BaseException | None] = []
    rig.fail_with(StoreBusyError("x"))
    for _ in range(12):
        rig.store.submit([Put(CONTROL, ROW)], received.append)

    assert [type(error) for error in received] == [StoreBusyError] * 10 + [BreakerOpenError] * 2
    assert rig.failing.calls == 10


def test_guarded__conflicts_and_bad_requests__never_open_a_breaker(rig: Rig) -> None:
    for _ in range(50):
        with pytest.raises(ConflictError):
            rig.store.put(CONTROL, ROW, condition=absent())
        with pytest.raises(InvalidItemError):
            rig.store.put(CONTROL, {"PK": "p"})

    assert {breaker.state for breaker in rig.store.breakers()} == {BreakerState.CLOSED}


def test_guarded__table_is_ill__fails_at_once_and_others_go_on(rig: Rig) -> None:
    rig.failing.failing = lambda _call: StoreBusyError("no answer")
    assert [rig.get() for _ in range(12)] == [StoreBusyError] * 10 + [BreakerOpenError] * 2
    rig.fail_with(None)

    assert rig.get(SIGNAL_STATE) is None, "another table"
    rig.store.put(CONTROL, ROW)
    assert rig.get() is BreakerOpenError, "the same table and operation"
    assert rig.observer.changes[-1].name == "get on headgate-control"


def test_guarded__comes_back__after_three_good_probes(rig: Rig) -> None:
    rig.fail_with(StoreBusyError("x"))
    for _ in range(10):
        rig.get()
    rig.clock.advance(30)
    assert rig.get() is StoreBusyError
    rig.fail_with(None)
    assert rig.get() is BreakerOpenError
    rig.clock.advance(30)

    assert [rig.get() for _ in range(4)] == [None] * 4
    states = [change.after.value for change in rig.observer.changes]
    assert states == ["OPEN", "HALF_OPEN", "OPEN", "HALF_OPEN", "CLOSED"]


@pytest.mark.parametrize("error", [StoreBusyError("x"), ThrottledError("x"), OutcomeUnknownError("x")])
def test_guarded__what_the_backend_is_to_blame_for__counts(rig: Rig, error: HeadgateError) -> None:
    rig.fail_with(error)
    for _ in range(10):
        rig.clock.advance(1)
        with pytest.raises(type(error)):
            rig.store.put(CONTROL, ROW)

    with pytest.raises(BreakerOpenError):
        rig.store.put(CONTROL, ROW)


def test_guarded__what_is_fatal__is_seen_as_such_every_time(rig: Rig) -> None:
    rig.fail_with(StoreFullError("no space"))

    assert [rig.get() for _ in range(30)] == [StoreFullError] * 30


@pytest.mark.parametrize(("every", "opens"), [(2, True), (3, False), (10, False)])
def test_guarded__every_nth_call_fails__opens_if_half_do(rig: Rig, every: int, opens: bool) -> None:
    rig.failing.failing = lambda call: StoreBusyError("x") if call % every == 0 else None

    outcomes = [rig.get() for _ in range(200)]

    assert (BreakerOpenError in outcomes) is opens
    assert outcomes.count(StoreBusyError) == (10 if opens else 200 // every)


def test_guarded__transaction_over_two_tables__has_a_breaker_of_its_own(rig: Rig) -> None:
    writes = [Put(CONTROL, ROW), Put(SIGNAL_STATE, ROW)]
    rig.fail_with(StoreBusyError("x"))
    for _ in range(10):
        with pytest.raises(StoreBusyError):
            rig.store.transact(writes)
    rig.fail_with(None)

    with pytest.raises(BreakerOpenError, match=r"transact on headgate-control\+observability-signal-state"):
        rig.store.transact(list(reversed(writes)))
    rig.store.transact(writes[:1])
    rig.store.transact(writes[1:])


def test_guarded__throttled__sheds_evidence_and_keeps_transitions(rig: Rig) -> None:
    for _ in range(200):
        rig.clock.advance(0.01)
        rig.store.put(EVIDENCE_CACHE, {"evidence_id": "e"})
    rig.fail_with(ThrottledError("less"))
    with pytest.raises(ThrottledError, match="less"):
        rig.store.put(EVIDENCE_CACHE, {"evidence_id": "e"})
    rig.fail_with(None)
    sent = rig.failing.calls

    with prioritised(Priority.EVIDENCE), pytest.raises(ThrottledError, match="try again in") as caught:
        rig.store.put(EVIDENCE_CACHE, {"evidence_id": "e"})

    assert caught.value.retry_after_seconds > 0
    assert rig.failing.calls == sent, "nothing was sent"
    received: list[BaseException | None] = []
    with prioritised(Priority.TRANSITION):
        rig.store.submit([Put(EVIDENCE_CACHE, {"evidence_id": "e"})], received.append)
    _until(lambda: received == [None])
    rig.store.put(CONTROL, ROW)
    assert [limiter.name for limiter in rig.store.limiters() if limiter.rate is not None] == [EVIDENCE_CACHE.name]


def test_guarded__shed_calls__do_not_open_the_breaker(rig: Rig) -> None:
    rig.store.put(CONTROL, ROW)
    rig.fail_with(ThrottledError("less"))
    with pytest.raises(ThrottledError):
        rig.store.put(CONTROL, ROW)
    rig.fail_with(None)
    with prioritised(Priority.EVIDENCE):
        for _ in range(100):
            with pytest.raises(ThrottledError):
                rig.store.put(CONTROL, ROW)

    rig.clock.advance(5)
    rig.store.put(CONTROL, ROW)


def test_guarded__interrupted_probe__frees_its_place(rig: Rig) -> None:
    rig.fail_with(StoreBusyError("x"))
    for _ in range(10):
        rig.get()
    rig.clock.advance(30)
    rig.fail_with(KeyboardInterrupt())
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            rig.store.get(CONTROL, KEY)
    rig.fail_with(None)

    assert [rig.get() for _ in range(3)] == [None] * 3


def test_guarded__watcher__is_reported_each_call(rig: Rig) -> None:
    rig.store.get(CONTROL, KEY)
    rig.store.put(CONTROL, ROW)
    rig.fail_with(StoreBusyError("x"))
    rig.get()

    assert rig.observer.answers == [(CONTROL.name, "get"), (CONTROL.name, "put")]
    assert rig.observer.failures == [(CONTROL.name, "get", StoreBusyError)]


def test_guarded__many_threads_and_an_outage__all_agree_and_all_recover(tmp_path: Path) -> None:
    with closing(Rig(tmp_path)) as rig:
        is_down = threading.Event()
        rig.failing.failing = lambda _call: StoreBusyError("x") if is_down.is_set() else None
        stop = threading.Event()
        kinds: set[type[BaseException] | None] = set()

        def work() -> None:
            while not stop.is_set():
                kinds.add(rig.get())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        is_down.set()
        _until(lambda: BreakerOpenError in kinds)
        is_down.clear()
        rig.clock.advance(31)
        _until(lambda: rig.store.breakers()[0].state is BreakerState.CLOSED)
        stop.set()
        for thread in threads:
            thread.join(10)

        assert kinds <= {None, StoreBusyError, BreakerOpenError}
        assert rig.get() is None


def test_guarded__point_read_when_all_is_well__costs_little(tmp_path: Path) -> None:
    clock = SystemClock()
    with closing(open_sqlite(tmp_path, clock=clock)) as sqlite:
        sqlite.put(CONTROL, ROW)
        guarded = GuardedStore(sqlite, clock)

        def seconds(store: Store) -> float:
            began_at = time.perf_counter()
            for _ in range(500):
                store.get(CONTROL, KEY)
            return (time.perf_counter() - began_at) / 500

        pairs = [(seconds(sqlite), seconds(guarded)) for _ in range(15)]
        added = min(after for _, after in pairs) - min(before for before, _ in pairs)

    print(f"a guard adds {added * 1e6:.2f} us to a point read of {min(pairs)[0] * 1e6:.1f} us")
    # The promise is 3 us, which the benchmark measures; here it must not be a multiple of a read, busy machine or not.
    assert added < 50e-6


def _until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.001)
