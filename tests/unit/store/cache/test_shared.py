"""The cache with a shared layer: what it answers, what its faults cost, and what processes learn from each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import VirtualClock
from headgate.errors import TransientError
from headgate.store.cache.keys import CacheKind, Key, dataset_config, dataset_configs_of, signal_state, signal_states_of
from headgate.store.cache.read_through import FILL_SECONDS_MAX, Cache, Cached, CacheLayer, Loaded
from headgate.store.cache.shared import (
    FAILURES_MAX,
    PAUSE_SECONDS,
    PENDING_MAX,
    GuardedLayer,
    Invalidation,
    SharedEntry,
)
from headgate.store.cache.stats import CacheStats
from tests.shared_layer import MemoryLayer, MemoryServer

KEY = signal_state("urn:dp:orders:created:v1", "FRESHNESS")
KIND = CacheKind.SIGNAL_STATE


class State(msgspec.Struct, frozen=True):
    """A value as the domain would cache it."""

    value: str


class Site:
    """Some processes with one shared layer and one store, whose clock is the test's."""

    def __init__(self, processes: int = 2) -> None:
        self.clock = VirtualClock()
        self.server = MemoryServer(self.clock)
        self.layers = [MemoryLayer(self.server) for _ in range(processes)]
        self.caches = [Cache(clock=self.clock, shared=layer, jitter=lambda: 0.0) for layer in self.layers]
        self.version = 1
        self.store_down = False
        self.loads = 0

    def load(self) -> Loaded[State] | None:
        self.loads += 1
        if self.store_down:
            raise TransientError("the store is down")
        return Loaded(State(str(self.version)), self.version)

    def get(self, process: int, key: Key = KEY) -> Cached[State]:
        return self.caches[process].get(key, self.load, State)

    def write(self, process: int) -> None:
        self.version += 1
        self.caches[process].wrote(KEY, State(str(self.version)), self.version)


def _answer(read: Cached[Any]) -> tuple[int | None, CacheLayer, bool]:
    return read.version, read.layer, read.stale


def _entry(value: object, version: int | None, age_seconds: float = 0.0) -> SharedEntry:
    body = None if value is None else msgspec.msgpack.encode(value)
    return SharedEntry(body=body, version=version, age_seconds=age_seconds, fresh_seconds=300.0)


# Reads through L2


def test_get__another_process_has_loaded__is_answered_by_l2_with_its_type_and_age() -> None:
    site = Site()
    site.get(0)
    site.clock.advance(100)

    read = site.get(1)

    assert read == Cached(State("1"), 1, 100.0, stale=False, layer=CacheLayer.L2)
    assert site.loads == 1


def test_get__l2_is_past_its_soft_limit__loads_and_refreshes_it() -> None:
    site = Site()
    site.get(0)
    site.version = 2
    site.clock.advance(300)

    refreshed = site.get(0)
    other = site.get(1)

    assert _answer(refreshed) == (2, CacheLayer.STORE, False)
    assert _answer(other) == (2, CacheLayer.L2, False)


def test_get__l2_is_about_to_expire__l1_does_not_keep_it_for_longer() -> None:
    site = Site()
    key = dataset_config("urn:dp:a")
    site.get(0, key)
    site.clock.advance(299)
    site.get(1, key)
    site.version = 2

    site.clock.advance(1)

    assert _answer(site.get(1, key)) == (2, CacheLayer.STORE, False)


def test_get__there_is_none_in_l2__is_an_answer() -> None:
    site = Site()
    key = dataset_config("urn:dp:unknown")
    site.caches[0].get(key, lambda: None, State)
    site.clock.advance(59)

    read = site.get(1, key)
    site.clock.advance(1)
    later = site.get(1, key)

    assert (read.value, read.layer) == (None, CacheLayer.L2)
    assert _answer(later) == (1, CacheLayer.STORE, False)


def test_get__store_is_down_and_only_l2_has_an_old_answer__serves_that_flagged() -> None:
    site = Site()
    site.get(0)
    site.clock.advance(3600)
    site.store_down = True

    read = site.get(1)

    assert read == Cached(State("1"), 1, 3600.0, stale=True, layer=CacheLayer.L2)


def test_get__everything_is_down__raises_the_error_of_the_store() -> None:
    site = Site()
    site.layers[0].down = site.store_down = True

    with pytest.raises(TransientError, match="the store is down"):
        site.get(0)


def test_get__l2_holds_an_older_version_than_l1__asks_the_store() -> None:
    site = Site()
    site.version = 5
    site.caches[0].get(KEY, site.load, State, consistent=True)
    site.layers[0].put(KEY, _entry(State("4"), 4))
    site.clock.advance(1)

    assert _answer(site.get(0)) == (5, CacheLayer.STORE, False)


def test_get__l2_holds_the_same_version_confirmed_longer_ago__the_later_confirmation_counts() -> None:
    site = Site()
    site.caches[0].get(KEY, site.load, State, consistent=True)
    site.layers[0].put(KEY, _entry(State("1"), 1, age_seconds=200.0))
    site.clock.advance(31)

    read = site.get(0)

    assert read == Cached(State("1"), 1, 31.0, stale=False, layer=CacheLayer.L2)


def test_get__l2_holds_the_same_version_and_the_store_is_down__the_later_hard_limit_counts() -> None:
    site = Site()
    site.caches[0].get(KEY, site.load, State, consistent=True)
    site.layers[0].put(KEY, _entry(State("1"), 1, age_seconds=80_000.0))
    site.clock.advance(7000)
    site.store_down = True

    read = site.get(0)

    assert (read.version, read.stale, read.age_seconds) == (1, True, 7000.0)


@pytest.mark.parametrize("by_group", [False, True])
def test_get__invalidated_while_the_answer_of_l2_is_on_its_way__is_not_kept(by_group: bool) -> None:
    site = Site()
    site.get(0)
    target = signal_states_of("urn:dp:orders:created:v1") if by_group else KEY

    def overtake() -> None:
        site.layers[1].after_get = lambda: None
        site.version = 2
        site.caches[0].invalidate(target)
        site.layers[1].deliver()

    site.layers[1].after_get = overtake
    reads = [site.get(1), site.get(1)]

    assert [read.version for read in reads] == [2, 2]


def test_get__consistent__does_not_touch_l2() -> None:
    site = Site()
    site.get(0)
    before = site.layers[0].calls

    read = site.caches[0].get(KEY, site.load, State, consistent=True)

    assert read.layer is CacheLayer.STORE
    assert site.layers[0].calls == before


def test_get__two_processes_miss_at_once__the_second_fill_is_refused_and_its_caller_still_answered() -> None:
    site = Site()

    def load_while_the_other_fills() -> Loaded[State] | None:
        site.get(1)
        return site.load()

    slower = site.caches[0].get(KEY, load_while_the_other_fills, State)
    after = site.get(0)

    assert _answer(slower) == (1, CacheLayer.STORE, False)
    assert _answer(after) == (1, CacheLayer.L2, False)


def test_get__load_took_too_long__is_not_offered_to_l2() -> None:
    site = Site()

    def load_slowly() -> Loaded[State] | None:
        site.clock.advance(FILL_SECONDS_MAX + 1)
        return site.load()

    read = site.caches[0].get(KEY, load_slowly, State)

    assert _answer(read) == (1, CacheLayer.STORE, False)
    assert site.server.held == {}


# Writes and invalidations between processes


def test_wrote__another_process_holds_the_old_answer__it_reads_the_new_one_from_l2() -> None:
    site = Site()
    site.get(1)

    site.write(0)
    site.layers[1].deliver()

    assert _answer(site.get(1)) == (2, CacheLayer.L2, False)


def test_wrote__message_arrives_after_a_newer_write__the_newer_answer_stays() -> None:
    site = Site()
    site.write(0)
    site.write(1)

    site.layers[1].deliver()

    assert _answer(site.get(1)) == (3, CacheLayer.L1, False)


def test_wrote__while_another_process_loads_the_old_version__neither_layer_keeps_that() -> None:
    site = Site()

    def load_while_the_other_writes() -> Loaded[State] | None:
        seen = site.load()
        site.write(0)
        return seen

    overtaken = site.caches[1].get(KEY, load_while_the_other_writes, State)
    after = site.get(1)

    assert overtaken.version == 1
    assert _answer(after) == (2, CacheLayer.L2, False)


def test_wrote__deleted__other_processes_see_that_there_is_none() -> None:
    site = Site()
    site.get(1)

    site.caches[0].wrote(KEY, None, 2)
    site.layers[1].deliver()

    assert (site.get(1).value, site.get(1).layer) == (None, CacheLayer.L1)


@pytest.mark.parametrize("by_group", [False, True])
def test_invalidate__while_another_process_loads__neither_layer_keeps_the_answer(by_group: bool) -> None:
    site = Site()
    target = signal_states_of("urn:dp:orders:created:v1") if by_group else KEY

    def load_while_the_other_invalidates() -> Loaded[State] | None:
        seen = site.load()
        site.version += 1
        site.caches[0].invalidate(target)
        return seen

    site.caches[1].get(KEY, load_while_the_other_invalidates, State)

    assert _answer(site.get(1)) == (2, CacheLayer.STORE, False)


def test_invalidate__group__other_processes_drop_that_dataset_alone() -> None:
    site = Site()
    own, other = dataset_config("urn:dp:a"), dataset_config("urn:dp:a:b")
    for key in (own, other):
        site.get(1, key)
    site.version = 2

    site.caches[0].invalidate(dataset_configs_of("urn:dp:a"))
    site.layers[1].deliver()

    assert _answer(site.get(1, own)) == (2, CacheLayer.STORE, False)
    assert _answer(site.get(1, other)) == (1, CacheLayer.L1, False)


def test_missed__messages_were_lost__nothing_in_l1_passes_as_fresh() -> None:
    site = Site()
    site.get(1)
    site.write(0)

    site.layers[1].reconnect()

    assert _answer(site.get(1)) == (2, CacheLayer.L2, False)


def test_missed__store_and_l2_are_down_then__the_old_answer_is_served_flagged() -> None:
    site = Site()
    site.get(1)
    site.store_down = site.layers[1].down = True

    site.layers[1].reconnect()

    assert _answer(site.get(1)) == (1, CacheLayer.L1, True)


def test_missed__while_a_load_is_under_way__its_answer_is_not_kept() -> None:
    site = Site()

    def load_while_reconnecting() -> Loaded[State] | None:
        seen = site.load()
        site.layers[0].reconnect()
        return seen

    site.caches[0].get(KEY, load_while_reconnecting, State)

    assert site.get(0).layer is CacheLayer.L2


# Faults of L2


def test_get__l2_is_down__answers_from_the_store_and_counts_the_fault() -> None:
    site = Site()
    site.layers[0].down = True

    read = site.get(0)

    assert _answer(read) == (1, CacheLayer.STORE, False)
    assert site.caches[0].stats.of(KIND).l2_errors == 1


def test_get__l2_fails_when_the_answer_is_put_there__returns_the_answer() -> None:
    site = Site()

    def load_as_l2_goes_down() -> Loaded[State] | None:
        site.layers[0].down = True
        return site.load()

    read = site.caches[0].get(KEY, load_as_l2_goes_down, State)

    assert _answer(read) == (1, CacheLayer.STORE, False)
    assert _answer(site.get(0)) == (1, CacheLayer.L1, False)


def test_get__there_is_none_and_l2_is_down__is_still_the_answer() -> None:
    site = Site()
    site.layers[0].down = True

    assert site.caches[0].get(KEY, lambda: None, State).value is None


@pytest.mark.parametrize(
    "body", [b"", b"\xc1garbage", msgspec.msgpack.encode({"value": 7}), b"\x91" * 100_000, b"\x80"], ids=repr
)
def test_get__l2_holds_garbage__answers_from_the_store_and_repairs_it(body: bytes) -> None:
    site = Site()
    site.layers[0].put(KEY, SharedEntry(body=body, version=99, age_seconds=0.0, fresh_seconds=300.0))

    first = site.get(0)
    site.clock.advance(1)
    second = site.get(0)
    other = site.get(1)

    assert _answer(first) == (1, CacheLayer.STORE, False)
    assert _answer(second) == (1, CacheLayer.STORE, False)
    assert _answer(other) == (1, CacheLayer.L2, False)
    assert site.caches[0].stats.of(KIND).l2_errors == 1


@pytest.mark.parametrize("value", [object(), 2**70, [1, {object()}]], ids=["type", "size", "nested"])
def test_get__value_has_no_form_in_l2__is_answered_all_the_same(value: object) -> None:
    site = Site()

    read = site.caches[0].get(KEY, lambda: Loaded(value, 1), object)

    assert read.value is value
    assert site.server.held == {}
    assert site.caches[0].stats.of(KIND).l2_errors == 1


def test_wrote__value_has_no_form_in_l2__other_processes_drop_the_old_one() -> None:
    site = Site()
    site.get(1)
    site.version = 2

    site.caches[0].wrote(KEY, 2**70, 2)
    site.layers[1].deliver()

    assert _answer(site.get(1)) == (2, CacheLayer.STORE, False)


def test_breaker__l2_keeps_failing__is_asked_once_a_pause_until_it_answers() -> None:
    site = Site(processes=1)
    layer = site.layers[0]
    layer.down = True
    keys = [signal_state("urn:dp:a", str(number)) for number in range(20)]

    for key in keys[:10]:
        site.get(0, key)
    while_open = layer.calls
    site.clock.advance(PAUSE_SECONDS)
    for key in keys[:10]:
        site.get(0, key)
    probed = layer.calls
    layer.down = False
    site.clock.advance(PAUSE_SECONDS)
    for key in keys[10:]:
        site.get(0, key)

    assert while_open == FAILURES_MAX
    assert probed == FAILURES_MAX + 1
    assert layer.calls == probed + 20


def test_breaker__faults_between_successes__stays_closed() -> None:
    site = Site(processes=1)
    layer = site.layers[0]

    for number in range(10):
        layer.down = number % 2 == 0
        site.get(0, signal_state("urn:dp:a", str(number)))

    # A failed read is not followed by a fill, a good one is.
    assert layer.calls == 5 + 10


# Debts to L2


def test_wrote__l2_was_down__other_processes_are_reported_once_it_is_back() -> None:
    site = Site()
    site.get(1)
    site.layers[0].down = True
    site.write(0)
    before = site.get(1)

    site.layers[0].down = False
    site.layers[0].tick()
    site.layers[1].deliver()
    after = site.get(1)

    assert before.version == 1
    assert _answer(after) == (2, CacheLayer.STORE, False)


def test_get__l2_was_down_for_a_write_and_is_back__its_old_answer_is_not_trusted_here() -> None:
    site = Site()
    site.get(0)
    site.layers[0].down = True
    site.caches[0].invalidate(KEY)
    site.layers[0].down = False
    site.version = 2

    assert _answer(site.get(0)) == (2, CacheLayer.STORE, False)


def test_get__l2_was_down_for_a_group_and_is_back__its_old_answers_are_not_trusted_here() -> None:
    site = Site()
    site.get(0)
    site.layers[0].down = True
    site.caches[0].invalidate(signal_states_of("urn:dp:orders:created:v1"))
    site.layers[0].down = False
    site.version = 2

    assert _answer(site.get(0)) == (2, CacheLayer.STORE, False)


def _guarded() -> tuple[GuardedLayer, MemoryLayer, VirtualClock]:
    clock = VirtualClock()
    layer = MemoryLayer(MemoryServer(clock))
    return GuardedLayer(layer, clock=clock, stats=CacheStats()), layer, clock


def test_settle__l2_is_still_down__keeps_what_is_owed() -> None:
    guarded, layer, _ = _guarded()
    layer.down = True
    guarded.write(KEY, _entry("v", 1))

    guarded.send_pending()

    assert guarded.pending_count() == 1


def test_settle__many_debts__are_paid_in_batches() -> None:
    guarded, layer, clock = _guarded()
    layer.down = True
    for number in range(250):
        guarded.invalidate(Invalidation(signal_state("urn:dp:a", str(number)), 1))
    layer.down, layer.calls = False, 0

    # The breaker is open by now.
    guarded.send_pending()
    refused = guarded.pending_count()
    clock.advance(PAUSE_SECONDS)
    guarded.send_pending()

    assert refused == 250
    assert guarded.pending_count() == 0
    assert layer.calls == 3


def test_write__arrives_later_with_a_newer_version__pays_the_debt() -> None:
    guarded, layer, _ = _guarded()
    layer.down = True
    guarded.write(KEY, _entry("v", 1))

    layer.down = False
    guarded.write(KEY, _entry("w", 2))

    assert guarded.pending_count() == 0


def test_write__arrives_later_with_an_older_version__leaves_the_debt() -> None:
    guarded, layer, _ = _guarded()
    layer.down = True
    guarded.write(KEY, _entry("w", 2))

    layer.down = False
    guarded.write(KEY, _entry("v", 1))

    assert guarded.pending_count() == 1


@pytest.mark.parametrize(("versions", "expected"), [((3, 5, 4), [5]), ((3, None, 4), [None])])
def test_owe__several_debts_of_one_key__become_the_strictest(
    versions: tuple[int | None, ...], expected: list[int | None]
) -> None:
    clock = VirtualClock()
    server = MemoryServer(clock)
    layer, other = MemoryLayer(server), MemoryLayer(server)
    guarded = GuardedLayer(layer, clock=clock, stats=CacheStats())
    received: list[Invalidation] = []
    other.listen(RecordingListener(received.append))
    layer.down = True
    for version in versions[: FAILURES_MAX - 1]:
        guarded.invalidate(Invalidation(KEY, version))
    guarded.invalidate(Invalidation(KEY, versions[-1]))

    layer.down = False
    clock.advance(PAUSE_SECONDS)
    guarded.send_pending()
    other.deliver()

    assert [invalidation.version for invalidation in received] == expected


def test_owe__more_than_can_be_remembered__forgets_the_oldest() -> None:
    guarded, layer, _ = _guarded()
    layer.down = True

    for number in range(PENDING_MAX + 5):
        guarded.invalidate(Invalidation(signal_state("urn:dp:a", str(number)), 1))

    assert guarded.pending_count() == PENDING_MAX


def test_close__twice__closes_the_layer() -> None:
    site = Site()

    site.caches[0].close()
    site.caches[0].close()

    assert site.layers[0].closed


class RecordingListener:
    """A listener that expects invalidations only."""

    def __init__(self, on_invalidated: Callable[[Invalidation], None]) -> None:
        self.on_invalidated = on_invalidated

    def on_messages_lost(self) -> None:
        raise AssertionError("nothing was lost")

    def on_idle(self) -> None:
        raise AssertionError("no time has passed")


# Any history


PROCESSES = st.integers(0, 1)
STEPS = st.recursive(
    st.one_of(
        st.tuples(st.just("write"), PROCESSES),
        st.tuples(st.just("delete"), PROCESSES),
        st.tuples(st.just("invalidate"), PROCESSES),
        st.tuples(st.just("invalidate group"), PROCESSES),
        st.tuples(st.just("deliver"), PROCESSES),
        st.tuples(st.just("reconnect"), PROCESSES),
        st.tuples(st.just("tick"), PROCESSES),
        st.tuples(st.just("advance"), st.sampled_from([0.1, 0.6, 5.0, 40.0])),
        st.tuples(st.just("fault"), PROCESSES),
    ),
    # A read whose load is overtaken by the steps within it.
    lambda inner: st.tuples(st.just("read"), PROCESSES, st.lists(inner, max_size=4)),
    max_leaves=12,
)


class History:
    """Runs steps, and checks each read against what its own process had written before the read began."""

    def __init__(self) -> None:
        self.site = Site()
        self.exists = True
        self.written = [0, 0]
        self.deleted = -1
        self.loading: set[int] = set()

    def run(self, steps: list[Any]) -> None:
        for step in steps:
            getattr(self, f"_{step[0].replace(' ', '_')}")(*step[1:])

    def _read(self, process: int, within: list[Any]) -> None:
        if process in self.loading:
            return  # It would wait for the load further up, which ends after this step does.
        floor = self.written[process]

        def load() -> Loaded[State] | None:
            seen = Loaded(State(str(self.site.version)), self.site.version) if self.exists else None
            self.loading.add(process)
            self.run(within)
            self.loading.remove(process)
            return seen

        read = self.site.caches[process].get(KEY, load, State)
        if read.stale:
            assert within, "the store is always there and never lags, so only an overtaken load is flagged"
        elif read.value is None:
            assert self.deleted >= floor, "gone, although it was never deleted since this process wrote it"
        else:
            assert read.value == State(str(read.version))
            assert read.version is not None
            assert read.version >= floor, "older than what this process had written"

    def _write(self, process: int) -> None:
        self.exists = True
        self.site.write(process)
        self.written[process] = self.site.version

    def _delete(self, process: int) -> None:
        self.exists = False
        self.site.version += 1
        self.site.caches[process].wrote(KEY, None, self.site.version)
        self.written[process] = self.deleted = self.site.version

    def _invalidate(self, process: int) -> None:
        self.site.caches[process].invalidate(KEY, self.site.version)
        self.written[process] = self.site.version

    def _invalidate_group(self, process: int) -> None:
        self.site.caches[process].invalidate(signal_states_of("urn:dp:orders:created:v1"))
        self.written[process] = self.site.version

    def _deliver(self, process: int) -> None:
        self.site.layers[process].deliver()

    def _reconnect(self, process: int) -> None:
        self.site.layers[process].reconnect()

    def _tick(self, process: int) -> None:
        self.site.layers[process].tick()

    def _advance(self, seconds: float) -> None:
        self.site.clock.advance(seconds)

    def _fault(self, process: int) -> None:
        self.site.layers[process].down = not self.site.layers[process].down


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=12))
def test_any_history__a_process_never_reads_older_than_it_wrote_and_all_agree_in_the_end(steps: list[Any]) -> None:
    history = History()
    history.run(steps)

    site = history.site
    for layer in site.layers:
        layer.down = False
    site.clock.advance(PAUSE_SECONDS)
    for layer in site.layers:
        layer.tick()
    for layer in site.layers:
        layer.deliver()
    current = Loaded(State(str(site.version)), site.version) if history.exists else None
    ends = [cache.get(KEY, lambda: current, State) for cache in site.caches]

    assert [read.value for read in ends] == [current.value if current else None] * 2
