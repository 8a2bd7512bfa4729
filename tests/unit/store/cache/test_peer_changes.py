"""The caches of several serving processes: what one has answered, no other answers with an older value."""

from __future__ import annotations

import mmap
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from headgate.clock import VirtualClock
from headgate.store.cache.keys import CacheKind, Key, dataset_config, signal_state, signal_states_of
from headgate.store.cache.read_through import Cache, CacheLayer, Loaded
from headgate.store.peer_changes import NO_PEERS, SharedChanges, memory_bytes

URN = "urn:dp:orders:created:v1"
KEY = signal_state(URN, "FRESHNESS")
OTHER = signal_state(URN, "VOLUME")
DEADLINE_SECONDS = 10.0


class Rows:
    """The store that both processes read and write."""

    def __init__(self) -> None:
        self.version = 1
        self.loads = 0
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def load(self) -> Loaded[str] | None:
        self.loads += 1
        version = self.version
        self.entered.release()
        assert self.gate.wait(DEADLINE_SECONDS)
        return Loaded(f"value {version}", version)

    def write(self, cache: Cache, key: Key = KEY) -> None:
        """Commit a new version in the process of `cache`, and answer the caller."""
        self.version += 1
        cache.wrote(key, f"value {self.version}", self.version)


def changes(count: int = 2) -> list[SharedChanges]:
    memory = mmap.mmap(-1, memory_bytes(count))
    return [SharedChanges(memory, process=number, processes=count) for number in range(count)]


def caches(count: int = 2) -> list[Cache]:
    return [Cache(clock=VirtualClock(), peer_changes=each) for each in changes(count)]


def read(cache: Cache, rows: Rows, key: Key = KEY) -> int | None:
    return cache.get(key, rows.load, str).version


def test_changes__counted_by_one_process__differ_for_every_other_one_and_not_for_itself() -> None:
    first, second, third = changes(3)
    before = [each.by_others("a") for each in (first, second, third)]
    first.count("a")
    assert first.by_others("a") == before[0]
    assert second.by_others("a") == before[1] + 1
    assert third.by_others("a") == before[2] + 1
    assert third.by_others("b") == 0


def test_changes__of_everything__differ_for_every_name() -> None:
    first, second = changes()
    first.count_everything()
    assert (second.by_others("a"), second.by_others("b"), second.by_others()) == (1, 1, 1)


def test_changes__process_restarted__its_column_continues() -> None:
    memory = mmap.mmap(-1, memory_bytes(2))
    reader = SharedChanges(memory, process=0, processes=2)
    SharedChanges(memory, process=1, processes=2).count("a")
    SharedChanges(memory, process=1, processes=2).count("a")
    assert reader.by_others("a") == 2


def test_changes__counted_by_many_threads__none_is_lost() -> None:
    reader, writer = changes()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: writer.count("a"), range(2000)))
    assert reader.by_others("a") == 2000


def test_cache__entry_changed_by_a_peer__is_read_again() -> None:
    [ours, theirs], rows = caches(), Rows()
    assert [read(ours, rows), read(ours, rows), rows.loads] == [1, 1, 1]
    rows.write(theirs)
    assert [read(ours, rows), rows.loads] == [2, 2]
    assert [read(ours, rows), rows.loads] == [2, 2], "and is fresh again"


def test_cache__group_invalidated_by_a_peer__its_entries_are_read_again() -> None:
    [ours, theirs], rows = caches(), Rows()
    read(ours, rows)
    read(ours, rows, OTHER)
    rows.version = 2
    theirs.invalidate(signal_states_of(URN))
    assert [read(ours, rows), read(ours, rows, OTHER)] == [2, 2]


def test_cache__absence_ended_by_a_peer__is_read_again() -> None:
    ours, theirs = caches()
    assert ours.get(KEY, lambda: None, str).value is None
    theirs.wrote(KEY, "value 1", 1)
    assert ours.get(KEY, lambda: Loaded("value 1", 1), str).value == "value 1"


def test_cache__write_overtaken_by_a_peer_before_it_was_published__is_not_served() -> None:
    [ours, theirs], rows = caches(), Rows()
    read(ours, rows)
    # Ours has committed version 2; before it publishes that, theirs commits and publishes version 3.
    rows.version = 3
    theirs.wrote(KEY, "value 3", 3)
    ours.wrote(KEY, "value 2", 2)
    assert read(ours, rows) == 3


def test_cache__own_write__is_at_hand_for_the_next_decision_and_confirmed_by_the_next_read() -> None:
    [ours, theirs], rows = caches(), Rows()
    rows.write(ours)
    assert ours.peek(KEY, str) == "value 2"
    assert ours.get(KEY, rows.load, str).layer is CacheLayer.STORE
    assert ours.get(KEY, rows.load, str).layer is CacheLayer.L1
    rows.write(theirs)
    assert ours.peek(KEY, str) is None


def test_cache__load_in_progress_when_a_peer_writes__is_not_joined_by_later_readers() -> None:
    [ours, theirs], rows = caches(), Rows()
    rows.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(read, ours, rows)
        assert rows.entered.acquire(timeout=DEADLINE_SECONDS)
        rows.write(theirs)
        threading.Timer(0.0, rows.gate.set).start()
        assert read(ours, rows) == 2
        assert early.result(DEADLINE_SECONDS) in (1, 2), "it began before the write was answered"
    assert read(ours, rows) == 2


def test_cache__configs_changed_by_a_peer__are_changes_elsewhere() -> None:
    ours, theirs = caches()
    before = ours.changes_elsewhere(CacheKind.DATASET_CONFIG)
    theirs.wrote(dataset_config(URN), "config", 1)
    assert ours.changes_elsewhere(CacheKind.DATASET_CONFIG) != before
    assert theirs.changes_elsewhere(CacheKind.DATASET_CONFIG) == 0, "its own"


def test_cache__peer_ended_between_commit_and_count__everything_is_read_again() -> None:
    primary, second = changes()
    cache, rows = Cache(clock=VirtualClock(), peer_changes=second), Rows()
    read(cache, rows)
    rows.version = 2
    primary.count_everything()
    assert read(cache, rows) == 2


def test_no_peers__changes__count_nothing() -> None:
    NO_PEERS.count("a")
    assert NO_PEERS.by_others("a") == 0


def test_caches__writes_and_reads_by_all_processes_at_once__no_read_is_older_than_an_acknowledged_write() -> None:
    processes, threads, steps = 3, 6, 400
    keys = [signal_state(URN, name) for name in ("FRESHNESS", "VOLUME")]
    everyone, table = caches(processes), dict.fromkeys(keys, 0)
    acknowledged = dict(table)
    committing, failures = threading.Lock(), list[str]()

    def work(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(steps):
            key, cache = draw.choice(keys), draw.choice(everyone)
            if draw.random() < 0.3:
                with committing:
                    version = table[key] = table[key] + 1
                if draw.random() < 0.1:
                    cache.invalidate(signal_states_of(URN))
                else:
                    cache.wrote(key, f"value {version}", version)
                with committing:
                    acknowledged[key] = max(acknowledged[key], version)
            else:
                known = acknowledged[key]
                found = cache.get(key, partial(_loaded, table, key), str).version or 0
                if found < known:
                    failures.append(f"{key}: {found} after {known} was acknowledged")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert not failures, failures[:3]
    assert sum(table.values()) > threads * steps // 10


def _loaded(table: dict[Key, int], key: Key) -> Loaded[str] | None:
    version = table[key]
    return Loaded(f"value {version}", version) if version else None
