"""Waiting: a commit after the generation was read is never slept through."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Put, Update
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import OpenStore

READS_INDEXES = False

TABLES = (CONTROL, IDEMPOTENCY)
FAR_SECONDS = 600.0
SOON_SECONDS = 10.0


class Waiter:
    """Waits in a thread of its own, and remembers what `wait` returned."""

    def __init__(self, store: Store, clock: VirtualClock, generation: int, timeout_seconds: float) -> None:
        self._clock = clock
        self._returned: list[int] = []
        self._thread = threading.Thread(
            target=lambda: self._returned.append(store.wait(generation, timeout_seconds)), daemon=True
        )
        self._thread.start()

    def returns_within(self, seconds: float) -> bool:
        """Whether the wait ends within `seconds`, which pass on the machine's clock and on the test's alike."""
        _let_time_pass(self._clock, self._thread, seconds)
        return bool(self._returned)

    def answer(self) -> int:
        """What the wait returned, which it must have done soon."""
        assert self.returns_within(SOON_SECONDS)
        return self._returned[0]


def _let_time_pass(clock: VirtualClock, thread: threading.Thread, seconds: float) -> None:
    """Let up to `seconds` pass on both clocks, until the thread has ended."""
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(0.005)
        clock.advance(0.02)


@pytest.fixture
def waiting(clock: VirtualClock) -> Iterator[Callable[[Store, int, float], Waiter]]:
    waiters: list[Waiter] = []

    def start(store: Store, generation: int, timeout_seconds: float) -> Waiter:
        waiters.append(Waiter(store, clock, generation, timeout_seconds))
        return waiters[-1]

    yield start
    # Remaining waiters time out, so that no thread outlives its store.
    clock.advance(2 * FAR_SECONDS)
    for waiter in waiters:
        waiter.returns_within(SOON_SECONDS)


Waiting = Callable[[Store, int, float], Waiter]

COMMITS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put(CONTROL, {"PK": "p", "SK": "s"}),
    "update": lambda store: store.update(CONTROL, Key("p", "there"), set={"n": 2}),
    "delete": lambda store: store.delete(CONTROL, Key("p", "there")),
    "transaction": lambda store: store.transact([Put(CONTROL, {"PK": "p", "SK": "s"})]),
    "transaction with a token": lambda store: store.transact(
        [Update(CONTROL, Key("p", "there"), add={"n": 1})], token="t"
    ),
    "batch": lambda store: store.batch_write([Put(CONTROL, {"PK": "p", "SK": "s"})]),
}


@pytest.mark.parametrize("commit", COMMITS)
def test_wait__commit_before_it_began__returns_at_once(store: Store, waiting: Waiting, commit: str) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "there", "n": 1})
    generation = store.generation()
    COMMITS[commit](store)

    assert waiting(store, generation, FAR_SECONDS).returns_within(SOON_SECONDS)


@pytest.mark.parametrize("commit", COMMITS)
def test_wait__commit_while_it_waits__returns(store: Store, waiting: Waiting, commit: str) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "there", "n": 1})
    waiter = waiting(store, store.generation(), FAR_SECONDS)

    COMMITS[commit](store)

    assert waiter.returns_within(SOON_SECONDS)


def test_wait__commit_through_another_handle__returns(store: Store, open_store: OpenStore, waiting: Waiting) -> None:
    other = open_store()
    waiter = waiting(store, store.generation(), FAR_SECONDS)

    other.put(CONTROL, {"PK": "p", "SK": "s"})

    assert waiter.returns_within(SOON_SECONDS)


def test_wait__several_waiters__are_all_woken(store: Store, waiting: Waiting) -> None:
    generation = store.generation()
    waiters = [waiting(store, generation, FAR_SECONDS) for _ in range(5)]

    store.put(CONTROL, {"PK": "p", "SK": "s"})

    assert all(waiter.returns_within(SOON_SECONDS) for waiter in waiters)


def test_wake__nothing_committed__who_waits_returns(store: Store, waiting: Waiting) -> None:
    waiters = [waiting(store, store.generation(), FAR_SECONDS) for _ in range(3)]

    store.wake()

    assert all(waiter.returns_within(SOON_SECONDS) for waiter in waiters)


def test_wake__before_it_began_to_wait__returns_at_once(store: Store, waiting: Waiting) -> None:
    generation = store.generation()

    store.wake()

    assert waiting(store, generation, FAR_SECONDS).returns_within(SOON_SECONDS)


def test_wait__nothing_committed__returns_at_the_time_out(store: Store, waiting: Waiting) -> None:
    assert waiting(store, store.generation(), 0.2).returns_within(SOON_SECONDS)


@pytest.mark.parametrize("timeout_seconds", [0.0, -1.0])
def test_wait__no_time_to_wait__returns_at_once(store: Store, waiting: Waiting, timeout_seconds: float) -> None:
    assert waiting(store, store.generation(), timeout_seconds).returns_within(SOON_SECONDS)


def test_wait__its_answer__can_be_waited_on_for_the_next_commit(store: Store, waiting: Waiting) -> None:
    generation = store.generation()
    for number in range(3):
        store.put(CONTROL, {"PK": "p", "SK": f"{number}"})
        generation = waiting(store, generation, FAR_SECONDS).answer()

    waiter = waiting(store, generation, FAR_SECONDS)
    store.put(CONTROL, {"PK": "p", "SK": "next"})

    assert waiter.returns_within(SOON_SECONDS)


def test_generation__read_before_the_work_is_looked_for__misses_nothing(store: Store, clock: VirtualClock) -> None:
    taken: list[str] = []

    def work() -> None:
        while len(taken) < 20:
            generation = store.generation()
            job = store.delete(CONTROL, Key("queue", f"{len(taken)}"))
            if job is not None:
                taken.append(job["SK"])
            else:
                store.wait(generation, FAR_SECONDS)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    for number in range(20):
        store.put(CONTROL, {"PK": "queue", "SK": f"{number}"})
    _let_time_pass(clock, worker, SOON_SECONDS)

    assert taken == [f"{number}" for number in range(20)]


def test_wait__only_a_refused_write__may_go_on_waiting_and_still_ends(store: Store, waiting: Waiting) -> None:
    waiter = waiting(store, store.generation(), 0.3)
    with pytest.raises(ConflictError):
        store.put(CONTROL, {"PK": "p", "SK": "s"}, condition=exists())

    assert waiter.returns_within(SOON_SECONDS)
