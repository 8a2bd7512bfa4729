"""The shared layer on a real Redis: what is atomic there, what processes send each other, and every way it fails."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
import redis

from headgate.clock import SystemClock
from headgate.errors import SettingsError, TransientError
from headgate.store.cache import redis as redis_cache
from headgate.store.cache import shared as cache_shared
from headgate.store.cache.keys import CacheKind, Key, dataset_config, dataset_configs_of, signal_state, signal_states_of
from headgate.store.cache.read_through import VERSION_MAX, Cache, Cached, CacheLayer, Loaded
from headgate.store.cache.redis import RedisLayer
from headgate.store.cache.shared import Invalidation, SharedEntry
from tests.redis_server import RedisServer

KEY = dataset_config("urn:dp:orders:created:v1")
GROUP = dataset_configs_of("urn:dp:orders:created:v1")
CLOCK = SystemClock()
DEADLINE_SECONDS = 15.0
# Long enough for a busy machine; a hang would take until the test's own time-out.
PROMPT_SECONDS = 2.0


class OpenCache(Protocol):
    """Opens a cache that listens before it is returned."""

    def __call__(self, timeout_seconds: float = PROMPT_SECONDS) -> Cache: ...


class Config(msgspec.Struct, frozen=True):
    """A value as the domain would cache it."""

    tier: str
    topics: tuple[str, ...] = ()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer.start(tmp_path / "redis") as running:
        yield running


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def layer(server: RedisServer) -> Iterator[RedisLayer]:
    opened = RedisLayer(url=server.url, clock=CLOCK, timeout_seconds=PROMPT_SECONDS)
    yield opened
    opened.close()


@pytest.fixture
def open_cache(server: RedisServer, admin: redis.Redis) -> Iterator[OpenCache]:
    """Open caches as separate processes would, each listening before it is returned."""
    opened: list[Cache] = []

    def open_one(timeout_seconds: float = PROMPT_SECONDS) -> Cache:
        cache = Cache(clock=CLOCK, shared=RedisLayer(url=server.url, clock=CLOCK, timeout_seconds=timeout_seconds))
        opened.append(cache)
        _until(lambda: admin.pubsub_numsub("headgate:invalidations")[0][1] == len(opened))
        return cache

    yield open_one
    # Together: each waits until its listener looks up.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(Cache.close, opened))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


def _entry(
    value: object | None, version: int | None, *, age_seconds: float = 0.0, keep_seconds: float = 3600.0
) -> SharedEntry:
    body = None if value is None else msgspec.msgpack.encode(value)
    return SharedEntry(
        body=body, version=version, age_seconds=age_seconds, fresh_seconds=300.0, keep_seconds=keep_seconds
    )


def _held(layer: RedisLayer, key: Key = KEY) -> tuple[object, int | None] | None:
    entry = layer.get(key).entry
    return None if entry is None else (entry.body and msgspec.msgpack.decode(entry.body), entry.version)


def _get(cache: Cache, version: int, key: Key = KEY) -> Cached[Config]:
    return cache.get(key, lambda: Loaded(Config(f"TIER_{version}"), version), Config)


def _down() -> Loaded[Config] | None:
    raise TransientError("the store is down")


def _answer(read: Cached[Any]) -> tuple[int | None, CacheLayer, bool]:
    return read.version, read.layer, read.stale


@contextmanager
def _promptly() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < PROMPT_SECONDS


# What is atomic on the server


def test_get__nothing_is_held__has_a_mark_that_a_fill_may_use(layer: RedisLayer) -> None:
    read = layer.get(KEY)

    filled = layer.fill(KEY, _entry("one", 1), read.mark)

    assert read.entry is None
    assert filled
    assert _held(layer) == ("one", 1)


@pytest.mark.parametrize("version", [0, 1, 10**15 + 1, VERSION_MAX])
def test_get__what_was_filled__comes_back_whole(layer: RedisLayer, version: int) -> None:
    sent = SharedEntry(
        body=bytes(range(256)), version=version, age_seconds=2.5, fresh_seconds=120.0, keep_seconds=600.0
    )

    layer.fill(KEY, sent, layer.get(KEY).mark)
    held = layer.get(KEY).entry

    assert held is not None
    assert (held.body, held.version, held.fresh_seconds) == (sent.body, version, 120.0)
    assert 2.4 < held.age_seconds < 2.5 + PROMPT_SECONDS


def test_get__there_is_none__comes_back_as_an_answer(layer: RedisLayer) -> None:
    layer.fill(KEY, _entry(None, None), layer.get(KEY).mark)

    assert _held(layer) == (None, None)


def test_fill__expires__when_it_need_not_be_kept_any_longer(layer: RedisLayer, admin: redis.Redis) -> None:
    layer.fill(KEY, _entry("one", 1, keep_seconds=86_400.0), layer.get(KEY).mark)
    kept_ms = admin.pttl(f"headgate:{KEY}")
    layer.fill(KEY, _entry("two", 2, keep_seconds=0.01), layer.get(KEY).mark)

    _until(lambda: admin.exists(f"headgate:{KEY}") == 0)

    assert 86_390_000 < kept_ms <= 86_400_000
    assert layer.get(KEY).entry is None


def test_write__older_than_what_is_held__is_refused_and_not_reported(layer: RedisLayer, admin: redis.Redis) -> None:
    layer.write(KEY, _entry("two", 10))
    with admin.pubsub() as channel:  # type: ignore[no-untyped-call]
        channel.subscribe("headgate:invalidations")
        assert channel.get_message(timeout=5) is not None

        refused = layer.write(KEY, _entry("one", 9))
        taken = layer.write(KEY, _entry("three", 11))
        message = channel.get_message(timeout=5)

    assert (refused, taken) == (False, True)
    assert _held(layer) == ("three", 11)
    assert message is not None
    assert msgspec.json.decode(message["data"])[1:] == [KEY, 11]


@pytest.mark.parametrize(
    "overtake",
    [
        lambda layer: layer.write(KEY, _entry("new", 2)),
        lambda layer: layer.write(KEY, _entry(None, 2)),
        lambda layer: layer.invalidate([Invalidation(KEY)]),
        lambda layer: layer.invalidate([Invalidation(KEY, 2)]),
        lambda layer: layer.invalidate([Invalidation(GROUP)]),
    ],
    ids=["written", "deleted", "invalidated", "invalidated below a version", "group invalidated"],
)
@pytest.mark.parametrize("before", [None, _entry("old", 1)], ids=["nothing held", "something held"])
@pytest.mark.parametrize("late", [_entry("old", 1), _entry(None, None)], ids=["older version", "there is none"])
def test_fill__overtaken_since_its_load_began__is_refused(
    layer: RedisLayer, before: SharedEntry | None, overtake: Callable[[RedisLayer], bool], late: SharedEntry
) -> None:
    if before is not None:
        layer.write(KEY, before)
    mark = layer.get(KEY).mark

    overtake(layer)
    held = _held(layer)

    assert layer.fill(KEY, late, mark) is False
    assert _held(layer) == held
    assert held != ("old", 1)


def test_fill__load_began_after_an_invalidation_below_a_version__must_reach_that_version(layer: RedisLayer) -> None:
    layer.write(KEY, _entry("one", 1))
    layer.invalidate([Invalidation(KEY, 2)])
    mark = layer.get(KEY).mark

    lagging = layer.fill(KEY, _entry("one", 1), mark)
    caught_up = layer.fill(KEY, _entry("two", 2), mark)

    assert (lagging, caught_up) == (False, True)
    assert _held(layer) == ("two", 2)


def test_invalidate__below_a_version_that_is_held__keeps_it(layer: RedisLayer) -> None:
    layer.write(KEY, _entry("two", 2))

    layer.invalidate([Invalidation(KEY, 2)])

    assert _held(layer) == ("two", 2)


def test_invalidate__what_it_leaves_behind__goes_away_by_itself(layer: RedisLayer, admin: redis.Redis) -> None:
    layer.invalidate([Invalidation(KEY, 2)])

    assert 50_000 < admin.pttl(f"headgate:{KEY}") <= 60_000


def test_invalidate__group__touches_that_dataset_alone(layer: RedisLayer) -> None:
    own = [dataset_config("urn:dp:a"), dataset_config("urn:dp:a", 7)]
    others = [dataset_config("urn:dp:a:b"), dataset_config("urn:dp"), signal_state("urn:dp:a", "LATEST")]
    for key in [*own, *others]:
        layer.write(key, _entry("one", 1))

    layer.invalidate([Invalidation(dataset_configs_of("urn:dp:a"))])

    assert [_held(layer, key) for key in own] == [None, None]
    assert [_held(layer, key) for key in others] == [("one", 1)] * 3


def test_invalidate__many_at_once__all_are_dropped(layer: RedisLayer) -> None:
    keys = [signal_state("urn:dp:a", str(number)) for number in range(50)]
    for key in keys:
        layer.write(key, _entry("one", 1))

    layer.invalidate([Invalidation(key, 2) for key in keys])

    assert [_held(layer, key) for key in keys] == [None] * 50


def test_get__redis_has_evicted_the_mark_of_the_group__nothing_old_counts_again(
    layer: RedisLayer, admin: redis.Redis
) -> None:
    layer.write(KEY, _entry("old", 1))
    layer.invalidate([Invalidation(GROUP)])

    admin.delete(f"headgate:{GROUP}")
    evicted = _held(layer)
    layer.write(dataset_config("urn:dp:orders:created:v1", 3), _entry("sibling", 1))

    assert evicted is None
    assert _held(layer) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda admin: admin.set(f"headgate:{KEY}", b"\x00garbage"),
        lambda admin: (admin.delete(f"headgate:{KEY}"), admin.rpush(f"headgate:{KEY}", "garbage")),
        lambda admin: admin.hset(f"headgate:{KEY}", mapping={"version": "9" * 30, "at_ms": "then"}),
        lambda admin: admin.hset(f"headgate:{KEY}", mapping={"version": "-1", "fresh_ms": "1e9"}),
        lambda admin: admin.hset(f"headgate:{KEY}", mapping={"version": "0x10", "mark": b"\xff"}),
        lambda admin: admin.hset(f"headgate:{KEY}", mapping={"body": b"\xc1", "version": 99}),
        lambda admin: (admin.delete(f"headgate:{GROUP}"), admin.rpush(f"headgate:{GROUP}", "garbage")),
        lambda admin: admin.set(f"headgate:{GROUP}", b"\xff"),
    ],
    ids=["string", "list", "fields", "negative", "hexadecimal", "body", "group is a list", "group is not text"],
)
def test_get__garbage_in_redis__is_answered_from_the_store_and_repaired(
    open_cache: OpenCache, admin: redis.Redis, spoil: Callable[[redis.Redis], object]
) -> None:
    writer, reader, witness = open_cache(), open_cache(), open_cache()
    _get(writer, 1)
    spoil(admin)

    first = _get(reader, 2)
    reader.invalidate(KEY)
    second = _get(reader, 2)

    assert _answer(first) == (2, CacheLayer.STORE, False)
    assert _answer(second) == (2, CacheLayer.STORE, False)
    # Its own listener may still be busy with the invalidation, and then it does not trust what it reads.
    _until(lambda: not witness.get(KEY, _down, Config).stale)
    assert witness.get(KEY, _down, Config).version == 2


# What processes tell each other


def test_get__another_cache_has_loaded__typed_values_come_back_typed(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    config = Config("TIER_1", ("raw.orders", "raw.payments"))
    one.get(KEY, lambda: Loaded(config, 1), Config)

    read = other.get(KEY, _down, Config)

    assert read.value == config
    assert isinstance(read.value, Config)
    assert read.layer is CacheLayer.L2


def test_wrote__another_cache_holds_the_old_answer__it_sees_the_new_one(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)

    one.wrote(KEY, Config("TIER_2"), 2)

    _until(lambda: other.get(KEY, _down, Config).version == 2)


def test_wrote__deleted__another_cache_sees_that_there_is_none(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)

    one.wrote(KEY, None, 2)

    _until(lambda: other.get(KEY, _down, Config).value is None)


def test_wrote__own_message_comes_back__is_ignored(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)

    one.wrote(KEY, Config("TIER_2"), 2)
    _until(lambda: other.stats.of(CacheKind.DATASET_CONFIG).invalidations == 1)

    assert one.stats.of(CacheKind.DATASET_CONFIG).invalidations == 0
    assert _answer(one.get(KEY, _down, Config)) == (2, CacheLayer.L1, False)


def test_invalidate__group__another_cache_drops_that_dataset_alone(open_cache: OpenCache) -> None:
    one, other = open_cache(), open_cache()
    near = dataset_config("urn:dp:orders:created:v1:b")
    for key in (KEY, near):
        _get(other, 1, key)

    one.invalidate(GROUP)

    _until(lambda: _get(other, 2).version == 2)
    assert _get(other, 2, near).version == 1


def test_listener__message_that_is_garbage__makes_l1_doubtful_and_goes_on(
    open_cache: OpenCache, admin: redis.Redis
) -> None:
    one, other = open_cache(), open_cache()
    for number, garbage in enumerate([b"", b"\xff", b"[1,2]", b'["x","nonsense",1]', b'["x","ss:a:F","y"]'], start=1):
        _get(other, number)
        _until(lambda: _get(other, 0).layer is CacheLayer.L1)
        admin.delete(f"headgate:{KEY}")

        admin.publish("headgate:invalidations", garbage)

        _until(lambda number=number: _get(other, number + 1).version == number + 1)  # type: ignore[misc]
    one.wrote(KEY, Config("TIER_9"), 9)
    _until(lambda: other.get(KEY, _down, Config).version == 9)


CHILD = """
import sys
import msgspec
from headgate.clock import SystemClock
from headgate.store.cache.read_through import Cache, Loaded
from headgate.store.cache.keys import dataset_config
from headgate.store.cache.redis import RedisLayer

class Config(msgspec.Struct, frozen=True):
    tier: str
    topics: tuple[str, ...] = ()

clock = SystemClock()
cache = Cache(clock=clock, shared=RedisLayer(url=sys.argv[1], clock=clock, timeout_seconds=2.0))
key = dataset_config("urn:dp:orders:created:v1")
for line in sys.stdin:
    action, version = line.split()
    if action == "get":
        read = cache.get(key, lambda: Loaded(Config("TIER_" + version), int(version)), Config)
        print(read.version, read.value.tier, read.layer.value, flush=True)
    elif action == "wrote":
        cache.wrote(key, Config("TIER_" + version), int(version))
        print("done", flush=True)
cache.close()
print("closed", flush=True)
"""


def test_two_processes__writes_and_invalidations__are_seen_by_each_other(
    server: RedisServer, open_cache: OpenCache, admin: redis.Redis
) -> None:
    parent = open_cache()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        commands, answers = child.stdin, child.stdout

        def ask(line: str) -> str:
            commands.write(f"{line}\n")
            commands.flush()
            return answers.readline().strip()

        _until(lambda: admin.pubsub_numsub("headgate:invalidations")[0][1] == 2)
        assert ask("get 1") == "1 TIER_1 store"
        assert _answer(_get(parent, 0)) == (1, CacheLayer.L2, False)

        parent.wrote(KEY, Config("TIER_2"), 2)
        _until(lambda: ask("get 0").startswith("2 TIER_2"))

        assert ask("wrote 3") == "done"
        _until(lambda: _get(parent, 0).version == 3)

        parent.invalidate(GROUP)
        _until(lambda: ask("get 4") == "4 TIER_4 store")
        commands.close()

        assert answers.readline().strip() == "closed"
        assert child.wait(DEADLINE_SECONDS) == 0


def test_wrote__eight_threads_two_caches_two_hundred_versions_each__the_highest_is_everywhere(
    open_cache: OpenCache, layer: RedisLayer
) -> None:
    caches = [open_cache(), open_cache()]
    third = open_cache()
    lock = threading.Lock()
    committed = 0

    def load() -> Loaded[Config] | None:
        seen = committed
        return Loaded(Config(f"TIER_{seen}"), seen)

    def write(thread: int) -> None:
        nonlocal committed
        for _ in range(200):
            with lock:
                version = committed = committed + 1
            # The lock is not held from here on, so that neighbouring versions overtake each other.
            caches[thread % 2].wrote(KEY, Config(f"TIER_{version}"), version)
            read = caches[thread % 2].get(KEY, load, Config)
            assert read.version is not None
            assert read.version >= version

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))

    _until(lambda: _held(layer) == ({"tier": "TIER_1600", "topics": []}, 1600))
    _until(lambda: [cache.get(KEY, _down, Config).version for cache in [*caches, third]] == [1600] * 3)


# Every way it fails


def test_redis_down__from_the_start__reads_go_on_and_cost_next_to_nothing(server: RedisServer) -> None:
    server.kill()
    cache = Cache(clock=CLOCK, shared=RedisLayer(url=server.url, clock=CLOCK))

    with _promptly():
        reads = [_get(cache, 1, signal_state("urn:dp:a", str(number))) for number in range(500)]
        cache.wrote(KEY, Config("TIER_2"), 2)
        cache.invalidate(KEY, 3)
    cache.close()

    assert {_answer(read) for read in reads} == {(1, CacheLayer.STORE, False)}
    # Three failures, and one probe at the most in the time this took.
    assert cache.stats.of(CacheKind.SIGNAL_STATE).l2_errors <= 4


def test_redis_down__there_is_none_in_the_store__is_the_answer(server: RedisServer) -> None:
    server.kill()
    cache = Cache(clock=CLOCK, shared=RedisLayer(url=server.url, clock=CLOCK))

    read = cache.get(KEY, lambda: None, Config)
    cache.close()

    assert (read.value, read.stale) == (None, False)


def test_redis_and_store_down__nothing_is_known__raises_the_error_of_the_store(server: RedisServer) -> None:
    server.kill()
    cache = Cache(clock=CLOCK, shared=RedisLayer(url=server.url, clock=CLOCK))

    with pytest.raises(TransientError, match="the store is down"):
        cache.get(KEY, _down, Config)
    cache.close()


def test_store_down__only_redis_has_an_old_answer__is_served_flagged_with_its_age(
    open_cache: OpenCache, layer: RedisLayer
) -> None:
    layer.write(KEY, _entry(Config("TIER_1"), 7, age_seconds=4000.0))

    read = open_cache().get(KEY, _down, Config)

    assert (read.value, read.version, read.stale, read.layer) == (Config("TIER_1"), 7, True, CacheLayer.L2)
    assert 4000 <= read.age_seconds < 4000 + PROMPT_SECONDS


def test_redis_killed_and_started_again__l1_is_not_trusted_and_messages_flow(
    server: RedisServer, open_cache: OpenCache, admin: redis.Redis
) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)

    server.kill()
    # From memory, or from the store if it was quick to see that its connection is gone.
    assert _answer(_get(other, 2)) in ((1, CacheLayer.L1, False), (2, CacheLayer.STORE, False))
    one.wrote(KEY, Config("TIER_2"), 2)
    server.restart()

    # The message was lost with the server; that the connection was lost is what tells.
    _until(lambda: _get(other, 2).version == 2)
    _until(lambda: admin.pubsub_numsub("headgate:invalidations")[0][1] == 2)
    one.wrote(KEY, Config("TIER_3"), 3)
    _until(lambda: _get(other, 3).version == 3)


def test_redis_paused__reads_are_bounded_and_what_was_owed_arrives_afterwards(
    server: RedisServer, open_cache: OpenCache, layer: RedisLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_shared, "PAUSE_SECONDS", 1.0)
    one, other = open_cache(timeout_seconds=0.1), open_cache()
    _get(other, 1)

    server.pause()
    with _promptly():
        one.wrote(KEY, Config("TIER_2"), 2)
        reads = [_get(one, 1, signal_state("urn:dp:a", str(number))) for number in range(100)]
    server.resume()

    assert {_answer(read) for read in reads} == {(1, CacheLayer.STORE, False)}
    _until(lambda: _held(layer) != ({"tier": "TIER_1", "topics": []}, 1))
    _until(lambda: _get(other, 2).version == 2)


def test_listener__connection_falls_silent__connects_again_and_says_that_messages_may_be_lost(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_cache, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(redis_cache, "SILENCE_SECONDS_MAX", 0.3)
    ear = _Ear()
    layer = RedisLayer(url=server.url, clock=CLOCK)
    layer.listen(ear)
    _until(lambda: ear.misses == 1)

    def after_a_silence() -> bool:
        # The connection itself survives this: only the silence can tell.
        server.pause()
        time.sleep(0.6)
        server.resume()
        time.sleep(0.2)
        return ear.misses > 1

    _until(after_a_silence)
    layer.close()


class _Ear:
    """Counts how often messages may have been lost."""

    def __init__(self) -> None:
        self.misses = 0

    def on_invalidated(self, invalidation: Invalidation) -> None:
        raise AssertionError("nothing was said")

    def on_messages_lost(self) -> None:
        self.misses += 1

    def on_idle(self) -> None:
        pass


def test_redis_full__answers_are_not_lost_and_replaced_ones_are_not_served(
    open_cache: OpenCache, admin: redis.Redis
) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)
    admin.config_set("maxmemory-policy", "noeviction")
    admin.config_set("maxmemory", 1)

    one.wrote(KEY, Config("TIER_2"), 2)
    unkept = _get(one, 5, dataset_config("urn:dp:new"))

    assert _answer(one.get(KEY, _down, Config)) == (2, CacheLayer.L1, False)
    assert _answer(unkept) == (5, CacheLayer.STORE, False)
    _until(lambda: _get(other, 2).version == 2)
    assert one.stats.of(CacheKind.DATASET_CONFIG).l2_errors >= 2


def test_write__redis_is_full__what_it_replaces_is_gone_at_once(layer: RedisLayer, admin: redis.Redis) -> None:
    layer.write(KEY, _entry("old", 1))
    mark = layer.get(KEY).mark
    admin.config_set("maxmemory", 1)

    with pytest.raises(TransientError, match="maxmemory"):
        layer.fill(KEY, _entry("new", 2), mark)
    kept = _held(layer)
    with pytest.raises(TransientError, match="maxmemory"):
        layer.write(KEY, _entry("new", 2))

    assert kept == ("old", 1)
    assert _held(layer) is None


def test_invalidate__redis_is_full__works_all_the_same(layer: RedisLayer, admin: redis.Redis) -> None:
    layer.write(KEY, _entry("old", 1))
    mark = layer.get(KEY).mark
    admin.config_set("maxmemory", 1)

    layer.invalidate([Invalidation(KEY, 2)])
    admin.config_set("maxmemory", 0)

    assert _held(layer) is None
    assert layer.fill(KEY, _entry("old", 1), mark) is False


def test_redis_read_only__answers_are_not_lost_and_what_is_owed_arrives_afterwards(
    open_cache: OpenCache, admin: redis.Redis, layer: RedisLayer
) -> None:
    one, other = open_cache(), open_cache()
    _get(other, 1)
    admin.replicaof("127.0.0.1", "1")

    one.wrote(KEY, Config("TIER_2"), 2)
    owed = _held(layer)
    admin.replicaof("NO", "ONE")

    assert owed == ({"tier": "TIER_1", "topics": []}, 1)
    assert _answer(one.get(KEY, _down, Config)) == (2, CacheLayer.L1, False)
    _until(lambda: _held(layer) is None)
    _until(lambda: _get(other, 2).version == 2)


def test_server_that_is_not_redis__reads_go_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        ended = threading.Event()

        def answer_nonsense() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listening.accept()
                except TimeoutError:
                    continue
                with connection:
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3)

        thread = threading.Thread(target=answer_nonsense)
        thread.start()
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        cache = Cache(clock=CLOCK, shared=RedisLayer(url=url, clock=CLOCK))
        with _promptly():
            reads = [_get(cache, 1, signal_state("urn:dp:a", str(number))) for number in range(20)]
        cache.close()
        ended.set()
        thread.join(DEADLINE_SECONDS)

    assert {_answer(read) for read in reads} == {(1, CacheLayer.STORE, False)}


@pytest.mark.parametrize(
    "call",
    [
        lambda layer: layer.get(KEY),
        lambda layer: layer.fill(KEY, _entry("one", 1), b"/"),
        lambda layer: layer.write(KEY, _entry("one", 1)),
        lambda layer: layer.invalidate([Invalidation(KEY), Invalidation(GROUP)]),
    ],
    ids=["get", "fill", "write", "invalidate"],
)
def test_layer__redis_is_down__every_call_raises_a_transient_error(
    server: RedisServer, call: Callable[[RedisLayer], object]
) -> None:
    layer = RedisLayer(url=server.url, clock=CLOCK)
    server.kill()

    with pytest.raises(TransientError, match="redis: "):
        call(layer)
    layer.close()


def test_layer__redis_is_paused__gives_up_after_one_time_out(server: RedisServer) -> None:
    layer = RedisLayer(url=server.url, clock=CLOCK, timeout_seconds=0.5)
    server.pause()

    with _promptly(), pytest.raises(TransientError, match="Timeout"):
        layer.get(KEY)
    server.resume()
    layer.close()


def test_layer__redis_was_started_again__scripts_are_loaded_again(server: RedisServer) -> None:
    layer = RedisLayer(url=server.url, clock=CLOCK, timeout_seconds=PROMPT_SECONDS)
    layer.write(KEY, _entry("one", 1))
    server.kill()
    server.restart()

    layer.write(KEY, _entry("two", 2))
    layer.invalidate([Invalidation(signal_states_of("urn:dp:a"))])

    assert _held(layer) == ("two", 2)
    layer.close()


def test_layer__two_namespaces_on_one_redis__do_not_see_each_other(server: RedisServer) -> None:
    one = RedisLayer(url=server.url, clock=CLOCK, namespace="one:", timeout_seconds=PROMPT_SECONDS)
    other = RedisLayer(url=server.url, clock=CLOCK, namespace="other:", timeout_seconds=PROMPT_SECONDS)

    one.write(KEY, _entry("one", 1))

    assert _held(other) is None
    one.close()
    other.close()


def test_close__twice_and_while_redis_is_paused__ends_the_listener(server: RedisServer, open_cache: OpenCache) -> None:
    cache = open_cache()
    server.pause()

    with _promptly():
        cache.close()
        cache.close()
    server.resume()

    assert not [thread for thread in threading.enumerate() if thread.name == "headgate-cache-listener"]


@pytest.mark.parametrize("url", ["http://host/0", "redis://:swordfish:x@host:port/0", "nonsense"])
def test_layer__url_is_not_one_of_redis__is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError, match="not a valid Redis URL") as caught:
        RedisLayer(url=url, clock=CLOCK)

    assert url not in str(caught.value)
    assert caught.value.__suppress_context__


def test_module__redis_client_is_not_installed__says_how_to_install_it() -> None:
    code = "import sys; sys.modules['redis'] = None; import headgate.store.cache.redis"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert "SettingsError" in ended.stderr
    assert "pip install 'headgate[redis]'" in ended.stderr
