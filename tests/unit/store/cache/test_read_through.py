"""The cache without a shared layer: freshness, staleness, one load at a time, and never an older answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.errors import (
    CorruptionError,
    FatalError,
    HeadgateError,
    InvalidItemError,
    NotFoundError,
    StoreBusyError,
    ThrottledError,
    TransientError,
)
from headgate.store.cache.keys import (
    CacheKind,
    Key,
    all_resolution_rules,
    dataset_config,
    dataset_configs_of,
    resolution_rules,
    signal_state,
    signal_states_of,
)
from headgate.store.cache.read_through import FLOOR_SECONDS, POLICIES, VERSION_MAX, Cache, Cached, CacheLayer, Loaded

KEY = dataset_config("urn:dp:orders:created:v1")
DEADLINE_SECONDS = 10.0


class Config(msgspec.Struct, frozen=True):
    """A value as the domain would cache it."""

    tier: str
    owner: str = "orders"


class Table:
    """The store behind the cache, as one loader sees it: a row, a fault, and a gate to hold a load at."""

    def __init__(self, row: Loaded[Config] | None = None) -> None:
        self.row = row
        self.error: BaseException | None = None
        self.loads = 0
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def load(self) -> Loaded[Config] | None:
        # Read before the gate, answered after it: a load that is overtaken returns what it saw.
        row, error = self.row, self.error
        self.loads += 1
        self.entered.release()
        assert self.gate.wait(DEADLINE_SECONDS), "the gate was never opened"
        if error is not None:
            raise error
        return row


def _row(version: int, tier: str = "TIER_1") -> Loaded[Config]:
    return Loaded(Config(tier), version)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cache(clock: VirtualClock) -> Cache:
    return Cache(clock=clock, jitter=lambda: 0.0)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def slow(threads: ThreadPoolExecutor) -> Iterator[Callable[[Cache, Table], Future[Cached[Config]]]]:
    """Start a read in a thread and return once its load is under way, held at the gate."""
    tables: list[Table] = []

    def start(cache: Cache, table: Table) -> Future[Cached[Config]]:
        tables.append(table)
        table.gate.clear()
        future = threads.submit(_get, cache, table)
        assert table.entered.acquire(timeout=DEADLINE_SECONDS)
        return future

    yield start
    for table in tables:
        table.gate.set()


def _get(cache: Cache, table: Table, key: Key = KEY, *, consistent: bool = False) -> Cached[Config]:
    return cache.get(key, table.load, Config, consistent=consistent)


def _answer(read: Cached[Config]) -> tuple[int | None, CacheLayer, bool]:
    return read.version, read.layer, read.stale


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.001)


# Freshness


def test_get__first_read__loads_and_keeps(cache: Cache, clock: VirtualClock) -> None:
    table = Table(_row(3))

    first = _get(cache, table)
    clock.advance(10)
    second = _get(cache, table)

    assert first == Cached(Config("TIER_1"), 3, 0.0, stale=False, layer=CacheLayer.STORE)
    assert second == Cached(Config("TIER_1"), 3, 10.0, stale=False, layer=CacheLayer.L1)
    assert table.loads == 1


@pytest.mark.parametrize(
    ("key", "soft_seconds"),
    [
        (signal_state("urn:dp:a", "FRESHNESS"), 0.5),
        (dataset_config("urn:dp:a"), 30.0),
        (resolution_rules("raw.*"), 60.0),
    ],
)
def test_get__past_the_soft_limit_of_its_kind__loads_again(
    cache: Cache, clock: VirtualClock, key: Key, soft_seconds: float
) -> None:
    table = Table(_row(1))
    _get(cache, table, key)
    table.row = _row(2)

    clock.advance(soft_seconds - 0.001)
    before = _get(cache, table, key)
    clock.advance(0.001)
    after = _get(cache, table, key)

    assert _answer(before) == (1, CacheLayer.L1, False)
    assert _answer(after) == (2, CacheLayer.STORE, False)


def test_get__jitter__shortens_the_soft_limit_by_a_tenth_at_most(clock: VirtualClock) -> None:
    table, cache = Table(_row(1)), Cache(clock=clock, jitter=lambda: 1.0)
    _get(cache, table)

    clock.advance(26.999)
    before = _get(cache, table)
    clock.advance(0.001)
    after = _get(cache, table)

    assert before.layer is CacheLayer.L1
    assert after.layer is CacheLayer.STORE


def test_get__wall_clock_steps_back__changes_nothing(cache: Cache, clock: VirtualClock) -> None:
    table = Table(_row(1))
    _get(cache, table)

    clock.step(-86_400)
    clock.advance(30)

    assert _get(cache, table).layer is CacheLayer.STORE


def test_get__there_is_none__is_an_answer_for_its_own_time(cache: Cache, clock: VirtualClock) -> None:
    table = Table(None)

    first = _get(cache, table)
    clock.advance(59.999)
    kept = _get(cache, table)
    clock.advance(0.001)
    again = _get(cache, table)

    assert (first.value, first.version, first.layer) == (None, None, CacheLayer.STORE)
    assert (kept.value, kept.layer, kept.stale) == (None, CacheLayer.L1, False)
    assert again.layer is CacheLayer.STORE


def test_get__signal_that_does_not_exist_yet__is_asked_for_again_within_a_second(
    cache: Cache, clock: VirtualClock
) -> None:
    table, key = Table(None), signal_state("urn:dp:a", "FRESHNESS")
    _get(cache, table, key)
    table.row = _row(1)

    clock.advance(1.0)

    assert _get(cache, table, key).version == 1


def test_policies__every_kind__has_one_with_a_hard_limit_of_a_day() -> None:
    assert {kind: POLICIES[kind].hard_seconds for kind in CacheKind} == dict.fromkeys(CacheKind, 86_400.0)
    assert {kind: POLICIES[kind].shared_seconds for kind in CacheKind} == dict.fromkeys(CacheKind, 300.0)


# Staleness


@pytest.mark.parametrize("error", [TransientError("down"), ThrottledError("less"), StoreBusyError("busy")])
def test_get__store_is_unreachable__serves_the_old_answer_flagged_with_its_age(
    cache: Cache, clock: VirtualClock, error: TransientError
) -> None:
    table = Table(_row(7))
    _get(cache, table)
    table.error = error
    clock.advance(3600)

    stale = _get(cache, table)

    assert stale == Cached(Config("TIER_1"), 7, 3600.0, stale=True, layer=CacheLayer.L1)


def test_get__store_is_unreachable_past_the_hard_limit__raises_its_error(cache: Cache, clock: VirtualClock) -> None:
    table = Table(_row(7))
    _get(cache, table)
    table.error = TransientError("down")

    clock.advance(86_399)
    within = _get(cache, table)
    clock.advance(1)
    with pytest.raises(TransientError, match="down"):
        _get(cache, table)

    assert within.stale


def test_get__nothing_is_known_and_the_store_is_down__raises_its_error(cache: Cache) -> None:
    table = Table()
    table.error = TransientError("down")

    with pytest.raises(TransientError, match="down"):
        _get(cache, table)


def test_get__stale_was_served__leaves_the_store_alone_until_it_asked_to_be_tried_again(
    cache: Cache, clock: VirtualClock
) -> None:
    table = Table(_row(7))
    _get(cache, table)
    table.error = TransientError("down")
    clock.advance(60)
    _get(cache, table)
    table.error = None

    clock.advance(0.999)
    paused = _get(cache, table)
    clock.advance(0.001)
    recovered = _get(cache, table)

    assert _answer(paused) == (7, CacheLayer.L1, True)
    assert _answer(recovered) == (7, CacheLayer.STORE, False)
    assert recovered.age_seconds == 0.0


@pytest.mark.parametrize(
    "error", [FatalError("stop"), CorruptionError("torn"), NotFoundError("gone"), ValueError("bug")]
)
def test_get__error_that_is_not_transient__is_never_papered_over(
    cache: Cache, clock: VirtualClock, error: Exception
) -> None:
    table = Table(_row(7))
    _get(cache, table)
    table.error = error
    clock.advance(60)

    with pytest.raises(type(error), match=str(error)):
        _get(cache, table)


def test_get__thing_was_deleted_in_the_store__is_not_served_from_before(cache: Cache, clock: VirtualClock) -> None:
    table = Table(_row(7))
    _get(cache, table)
    table.row = None
    clock.advance(60)

    assert _get(cache, table).value is None


def test_get__there_was_none_and_the_store_is_down__raises_rather_than_deny(cache: Cache, clock: VirtualClock) -> None:
    table = Table(None)
    _get(cache, table)
    table.error = TransientError("down")
    clock.advance(60)

    with pytest.raises(TransientError, match="down"):
        _get(cache, table)


# One load at a time


def test_get__many_readers_miss_at_once__one_loads_for_all(
    cache: Cache, threads: ThreadPoolExecutor, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    table = Table(_row(1))
    leader = slow(cache, table)
    waiters = [threads.submit(_get, cache, table) for _ in range(7)]
    _until(lambda: cache.stats.of(CacheKind.DATASET_CONFIG).misses_l1 == 8)

    table.gate.set()
    answers = [future.result(DEADLINE_SECONDS) for future in [leader, *waiters]]

    assert table.loads == 1
    assert [answer.version for answer in answers] == [1] * 8


def test_get__load_fails_while_others_wait__all_get_its_error(
    cache: Cache, threads: ThreadPoolExecutor, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    table = Table()
    table.error = TransientError("down")
    leader = slow(cache, table)
    waiters = [threads.submit(_get, cache, table) for _ in range(3)]
    _until(lambda: cache.stats.of(CacheKind.DATASET_CONFIG).misses_l1 == 4)

    table.gate.set()

    assert [type(future.exception(DEADLINE_SECONDS)) for future in [leader, *waiters]] == [TransientError] * 4
    assert table.loads == 1


def test_get__load_of_one_key_is_slow__does_not_hold_another(
    cache: Cache, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    slow(cache, Table(_row(1)))

    assert _get(cache, Table(_row(2)), dataset_config("urn:dp:other")).version == 2


def test_get__load_never_ends__waiters_give_up_and_the_next_reader_loads(
    clock: VirtualClock, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    cache = Cache(clock=clock, wait_seconds_max=0.02)
    slow(cache, Table(_row(1)))
    other = Table(_row(2))

    with pytest.raises(StoreBusyError, match="has not ended within"):
        _get(cache, other)
    later = _get(cache, other)

    assert _answer(later) == (2, CacheLayer.STORE, False)


def test_get__load_never_ends_but_there_is_an_old_answer__waiters_get_that(
    clock: VirtualClock, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    cache, table = Cache(clock=clock, wait_seconds_max=0.02), Table(_row(1))
    _get(cache, table)
    clock.advance(60)
    slow(cache, table)

    waited = _get(cache, table)

    assert (waited.version, waited.stale, waited.age_seconds) == (1, True, 60.0)


def test_get__leader_is_interrupted__a_waiter_loads_itself(
    cache: Cache, threads: ThreadPoolExecutor, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    interrupted, table = Table(), Table(_row(4))
    interrupted.error = KeyboardInterrupt()
    leader = slow(cache, interrupted)
    waiter = threads.submit(_get, cache, table)
    _until(lambda: cache.stats.of(CacheKind.DATASET_CONFIG).misses_l1 == 2)

    interrupted.gate.set()

    assert isinstance(leader.exception(DEADLINE_SECONDS), KeyboardInterrupt)
    assert waiter.result(DEADLINE_SECONDS).version == 4


# Never an older answer


def test_wrote__fresh_answer_is_held__replaces_it_at_once(cache: Cache) -> None:
    table = Table(_row(1))
    _get(cache, table)

    cache.wrote(KEY, Config("TIER_2"), 2)

    assert _get(cache, table) == Cached(Config("TIER_2"), 2, 0.0, stale=False, layer=CacheLayer.L1)


def test_wrote__older_than_what_is_held__changes_nothing(cache: Cache) -> None:
    cache.wrote(KEY, Config("TIER_2"), 2)

    cache.wrote(KEY, Config("TIER_1"), 1)

    assert _get(cache, Table()).version == 2


@pytest.mark.parametrize("row", [_row(1), None], ids=["older version", "there is none"])
def test_wrote__while_a_load_is_under_way__wins_over_what_the_load_saw(
    cache: Cache, slow: Callable[[Cache, Table], Future[Cached[Config]]], row: Loaded[Config] | None
) -> None:
    table = Table(row)
    overtaken = slow(cache, table)

    cache.wrote(KEY, Config("TIER_2"), 2)
    during = _get(cache, table)
    table.gate.set()
    leader = overtaken.result(DEADLINE_SECONDS)
    after = _get(cache, table)

    assert [_answer(read) for read in (during, leader, after)] == [(2, CacheLayer.L1, False)] * 3
    assert table.loads == 1


def test_wrote__while_a_load_is_under_way_and_evicted_since__the_load_is_not_kept_and_not_joined(
    clock: VirtualClock, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    cache, table = Cache(clock=clock, entries_max=1), Table(_row(1))
    overtaken = slow(cache, table)

    cache.wrote(KEY, Config("TIER_2"), 2)
    _get(cache, Table(_row(1)), dataset_config("urn:dp:other"))
    during = _get(cache, Table(_row(2)))
    _get(cache, Table(_row(1)), dataset_config("urn:dp:other"))
    table.gate.set()
    overtaken.result(DEADLINE_SECONDS)
    after = _get(cache, Table(_row(2)))

    assert [_answer(read) for read in (during, after)] == [(2, CacheLayer.STORE, False)] * 2


def test_get__store_answers_with_an_older_version__returns_the_newer_one_known(
    cache: Cache, clock: VirtualClock
) -> None:
    cache.wrote(KEY, Config("TIER_2"), 2)
    clock.advance(60)

    lagging = _get(cache, Table(_row(1)))

    assert (lagging.version, lagging.stale, lagging.age_seconds) == (2, False, 60.0)


def test_wrote__deleted__is_an_answer_and_an_older_load_cannot_undo_it(
    cache: Cache, clock: VirtualClock, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    table = Table(_row(5))
    overtaken = slow(cache, table)

    cache.wrote(KEY, None, 6)
    table.gate.set()
    leader = overtaken.result(DEADLINE_SECONDS)
    after = _get(cache, table)

    assert (leader.value, after.value, after.layer) == (None, None, CacheLayer.L1)


def test_wrote__deleted_and_the_store_lags__the_older_answer_is_flagged_and_not_kept(
    cache: Cache, clock: VirtualClock
) -> None:
    key = signal_state("urn:dp:a", "FRESHNESS")
    cache.wrote(key, None, 6)
    clock.advance(2)

    reads = [_get(cache, Table(_row(5)), key) for _ in range(2)]

    assert [_answer(read) for read in reads] == [(5, CacheLayer.STORE, True)] * 2


def test_wrote__created_again_after_a_deletion__is_seen_at_once(cache: Cache) -> None:
    cache.wrote(KEY, None, 6)

    cache.wrote(KEY, Config("TIER_1"), 7)

    assert _get(cache, Table()).version == 7


def test_invalidate__answer_is_held__is_loaded_again(cache: Cache) -> None:
    table = Table(_row(1))
    _get(cache, table)
    table.row = _row(2)

    cache.invalidate(KEY)

    assert _answer(_get(cache, table)) == (2, CacheLayer.STORE, False)


def test_invalidate__store_is_down_afterwards__does_not_serve_what_is_known_to_be_wrong(cache: Cache) -> None:
    table = Table(_row(1))
    _get(cache, table)
    table.error = TransientError("down")

    cache.invalidate(KEY)

    with pytest.raises(TransientError, match="down"):
        _get(cache, table)


def test_invalidate__while_a_load_is_under_way__its_answer_is_not_kept_and_later_readers_do_not_join(
    cache: Cache, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    table, fresh = Table(_row(1)), Table(_row(2))
    overtaken = slow(cache, table)

    cache.invalidate(KEY)
    during = _get(cache, fresh)
    cache.invalidate(KEY)
    table.gate.set()
    leader = overtaken.result(DEADLINE_SECONDS)
    after = _get(cache, fresh)

    assert _answer(during) == (2, CacheLayer.STORE, False)
    assert leader.version == 1
    assert _answer(after) == (2, CacheLayer.STORE, False)


def test_invalidate__with_a_version__keeps_what_is_as_new_and_drops_what_is_older(cache: Cache) -> None:
    table = Table(_row(5))
    _get(cache, table)

    cache.invalidate(KEY, 5)
    kept = _get(cache, table)
    cache.invalidate(KEY, 6)
    table.row = _row(6)
    dropped = _get(cache, table)

    assert _answer(kept) == (5, CacheLayer.L1, False)
    assert _answer(dropped) == (6, CacheLayer.STORE, False)


def test_invalidate__with_a_version_and_a_lagging_store__flags_the_older_answer_and_does_not_keep_it(
    cache: Cache, clock: VirtualClock
) -> None:
    table = Table(_row(1))

    cache.invalidate(KEY, 2)
    lagging = _get(cache, table)
    table.row = _row(2)
    caught_up = _get(cache, table)

    assert _answer(lagging) == (1, CacheLayer.STORE, True)
    assert _answer(caught_up) == (2, CacheLayer.STORE, False)


def test_invalidate__long_ago__no_longer_refuses_versions(cache: Cache, clock: VirtualClock) -> None:
    cache.invalidate(KEY, 9)

    clock.advance(FLOOR_SECONDS)

    assert _answer(_get(cache, Table(_row(1)))) == (1, CacheLayer.STORE, False)


def test_invalidate__without_a_version_after_a_restore__takes_lower_versions_again(cache: Cache) -> None:
    cache.wrote(KEY, Config("TIER_1"), 9)
    cache.invalidate(KEY, 10)

    cache.invalidate(KEY)

    assert _answer(_get(cache, Table(_row(1)))) == (1, CacheLayer.STORE, False)


def test_invalidate__group_of_a_dataset__drops_its_keys_and_no_others(cache: Cache) -> None:
    own = [dataset_config("urn:dp:a"), dataset_config("urn:dp:a", 3)]
    others = [dataset_config("urn:dp:a:b"), dataset_config("urn:dp"), signal_state("urn:dp:a", "LATEST")]
    for key in [*own, *others]:
        _get(cache, Table(_row(1)), key)

    cache.invalidate(dataset_configs_of("urn:dp:a"))

    assert [_get(cache, Table(_row(2)), key).layer for key in own] == [CacheLayer.STORE] * 2
    assert [_get(cache, Table(_row(2)), key).layer for key in others] == [CacheLayer.L1] * 3


def test_invalidate__group_while_a_load_is_under_way__its_answer_is_not_kept(
    cache: Cache, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    table = Table(_row(1))
    overtaken = slow(cache, table)

    cache.invalidate(dataset_configs_of("urn:dp:orders:created:v1"))
    table.gate.set()
    overtaken.result(DEADLINE_SECONDS)

    assert _get(cache, table).layer is CacheLayer.STORE


def test_invalidate__all_rules__drops_every_pattern(cache: Cache) -> None:
    keys = [resolution_rules("raw.*"), resolution_rules("raw:orders")]
    for key in keys:
        _get(cache, Table(_row(1)), key)

    cache.invalidate(all_resolution_rules())

    assert [_get(cache, Table(_row(1)), key).layer for key in keys] == [CacheLayer.STORE] * 2


@pytest.mark.parametrize("version", [-1, VERSION_MAX + 1])
def test_version__out_of_range__is_refused_everywhere(cache: Cache, version: int) -> None:
    with pytest.raises(InvalidItemError, match="version"):
        cache.wrote(KEY, Config("TIER_1"), version)
    with pytest.raises(InvalidItemError, match="version"):
        cache.invalidate(KEY, version)
    with pytest.raises(InvalidItemError, match="version"):
        _get(cache, Table(_row(version)))


def test_wrote__many_threads__the_highest_version_stays(cache: Cache, threads: ThreadPoolExecutor) -> None:
    def write(first: int) -> None:
        for version in range(first, 1600, 8):
            cache.wrote(KEY, Config(str(version)), version)

    list(threads.map(write, range(8)))

    assert _get(cache, Table()) == Cached(Config("1599"), 1599, 0.0, stale=False, layer=CacheLayer.L1)


# Consistent reads


def test_get__consistent__asks_the_store_and_refreshes_l1(cache: Cache) -> None:
    table = Table(_row(1))
    _get(cache, table)
    table.row = _row(2)

    consistent = _get(cache, table, consistent=True)
    after = _get(cache, table)

    assert _answer(consistent) == (2, CacheLayer.STORE, False)
    assert _answer(after) == (2, CacheLayer.L1, False)


@pytest.mark.parametrize("error", [TransientError("down"), FatalError("stop")])
def test_get__consistent_and_the_store_is_down__raises_although_an_answer_is_held(
    cache: Cache, error: HeadgateError
) -> None:
    table = Table(_row(1))
    _get(cache, table)
    table.error = error

    with pytest.raises(type(error), match=str(error)):
        _get(cache, table, consistent=True)


def test_get__consistent_while_a_load_is_under_way__does_not_join_it(
    cache: Cache, slow: Callable[[Cache, Table], Future[Cached[Config]]]
) -> None:
    slow(cache, Table(_row(1)))

    assert _get(cache, Table(_row(2)), consistent=True).version == 2


def test_get__consistent_read_is_overtaken_by_an_invalidation__is_not_kept(
    cache: Cache, threads: ThreadPoolExecutor
) -> None:
    table = Table(_row(1))
    table.gate.clear()
    reading = threads.submit(_get, cache, table, KEY, consistent=True)
    assert table.entered.acquire(timeout=DEADLINE_SECONDS)

    cache.invalidate(KEY)
    table.gate.set()
    reading.result(DEADLINE_SECONDS)

    assert _get(cache, Table(_row(2))).version == 2


# Bounds and counts


def test_l1__more_keys_than_it_may_hold__drops_the_least_recently_used(clock: VirtualClock) -> None:
    cache = Cache(clock=clock, entries_max=2)
    one, two, three = (dataset_config(f"urn:dp:{name}") for name in ("one", "two", "three"))
    for key in (one, two, one, three):
        _get(cache, Table(_row(1)), key)

    layers = [_get(cache, Table(_row(1)), key).layer for key in (one, three, two)]

    assert layers == [CacheLayer.L1, CacheLayer.L1, CacheLayer.STORE]
    assert cache.stats.of(CacheKind.DATASET_CONFIG).evictions == 2


def test_l1__more_invalidations_than_it_may_hold__remembers_the_latest(clock: VirtualClock) -> None:
    cache = Cache(clock=clock, entries_max=2)
    keys = [dataset_config(f"urn:dp:{number}") for number in range(3)]
    for key in keys:
        cache.invalidate(key, 5)

    stale = [_get(cache, Table(_row(1)), key).stale for key in keys]

    assert stale == [False, True, True]


def test_stats__a_mixed_history__counts_each_part(cache: Cache, clock: VirtualClock) -> None:
    table = Table(_row(1))
    for _ in range(4):
        _get(cache, table)
    clock.advance(60)
    table.error = TransientError("down")
    _get(cache, table)
    cache.invalidate(signal_states_of("urn:dp:a"))

    counts = cache.stats.snapshot()

    assert counts[CacheKind.DATASET_CONFIG] == {
        "hits_l1": 3, "hits_l2": 0, "misses_l1": 2, "misses_l2": 0, "stale_served": 1, "loads": 2, "load_errors": 1,
        "l2_errors": 0, "invalidations": 0, "evictions": 0,
    }  # fmt: skip
    assert counts[CacheKind.SIGNAL_STATE]["invalidations"] == 1
    assert cache.stats.hit_rate(CacheKind.DATASET_CONFIG) == 3 / 5
    assert cache.stats.hit_rate(CacheKind.RESOLUTION_RULE) == 0.0


def test_close__no_shared_layer__may_be_called_twice(cache: Cache) -> None:
    cache.close()
    cache.close()

    assert _get(cache, Table(_row(1))).version == 1


def test_get__value_of_a_generic_type__is_returned_as_it_is(cache: Cache) -> None:
    rules: list[dict[str, Any]] = [{"topic": "raw.orders"}]

    read = cache.get(resolution_rules("raw.*"), lambda: Loaded(rules, 1), list[dict[str, Any]])

    assert read.value is rules


def test_wrote_many__each_is_seen_as_if_written_alone(cache: Cache) -> None:
    keys = [signal_state("urn:dp:a:b", name) for name in ("X", "Y", "Z")]
    cache.wrote(keys[1], Config("TIER_1"), 5)

    cache.wrote_many([(keys[0], Config("TIER_2"), 1), (keys[1], Config("TIER_3"), 4), (keys[2], None, 2)])

    # The older one did not take the place of the newer one.
    assert cache.peek_many(keys, Config) == [Config("TIER_2"), Config("TIER_1"), None]
    assert cache.peek(keys[0], Config) == Config("TIER_2")
    assert cache.peek_many([], Config) == []


def test_wrote_many__one_version_is_impossible__nothing_is_taken(cache: Cache) -> None:
    first, second = signal_state("urn:dp:a:b", "X"), signal_state("urn:dp:a:b", "Y")
    with pytest.raises(InvalidItemError):
        cache.wrote_many([(first, Config("TIER_1"), 1), (second, Config("TIER_1"), VERSION_MAX + 1)])
    assert cache.peek_many([first, second], Config) == [None, None]
