"""Shared cache layer on Redis: entries are hashes under the cache's keys, invalidations go over publish/subscribe.

Atomic operations are Lua scripts. Each entry has a *mark* of its last change, and so has each group of keys. A load
remembers both marks and its fill is refused if either has changed; an entry is valid only under the current mark of its
group, so that one write invalidates a group of any size. A group has a mark as long as one of its entries is valid, so
Redis may evict either.

Ages are measured by Redis's clock only. It needs a single primary, with or without replicas, not a cluster, where the
two keys of a script could be in different slots.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import InvalidItemError, SettingsError, TransientError
from headgate.store.cache.keys import Group, Key, group_of, is_group, kind_of
from headgate.store.cache.read_through import FLOOR_SECONDS, POLICIES, VERSION_MAX
from headgate.store.cache.shared import Invalidation, InvalidationListener, SharedEntry, SharedRead

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.client import PubSub
    from redis.retry import Retry
except ImportError as exc:
    raise SettingsError("the shared cache needs the Redis client; run: pip install 'headgate[redis]'") from exc

TIMEOUT_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 1.0
SILENCE_SECONDS_MAX: Final = 10.0
RECONNECT_SECONDS_MIN: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 5.0
JOIN_SECONDS_MAX: Final = 5.0
# A server that is not Redis may send anything, so unpacking a reply may fail as well.
_FAULTS: Final = (redis.RedisError, OSError, ValueError, TypeError, AttributeError, LookupError)
# Outlives every entry stored under the mark. If it expired earlier, these entries would merely become invalid.
_GROUP_MARK_SECONDS: Final = 2 * max(policy.hard_seconds for policy in POLICIES.values())

# KEYS: the entry, its group. A key of another type or with malformed fields counts as absent.
_PRELUDE: Final = f"""
local function number(text)
  local value = text and string.match(text, '^%d+$') and tonumber(text)
  return value and value <= {VERSION_MAX} and value or nil
end
local function type_of(key) return redis.call('TYPE', key).ok end
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function group_mark() return type_of(KEYS[2]) == 'string' and redis.call('GET', KEYS[2]) or '' end
local function held(group)
  if type_of(KEYS[1]) ~= 'hash' then return {{mark = ''}} end
  local fields = redis.call('HMGET', KEYS[1], 'group', 'mark', 'version', 'at_ms', 'fresh_ms', 'body')
  local version = number(fields[3])
  if fields[1] ~= group or (fields[6] and not version) then return {{mark = ''}} end
  return {{mark = fields[2] or '', version = version, at_ms = number(fields[4]),
          fresh_ms = number(fields[5]), body = fields[6]}}
end
local function keep_group(group, new_mark)
  if group == '' then group = new_mark end
  return group, redis.pcall('SET', KEYS[2], group, 'PX', {int(_GROUP_MARK_SECONDS * 1000)}).err
end
"""

_GET: Final = """
local group = group_mark()
local entry = held(group)
local mark = group .. '/' .. entry.mark
if not (entry.at_ms and entry.fresh_ms) then return {mark} end
local age_ms = math.max(0, now_ms() - entry.at_ms)
return {mark, entry.version and string.format('%.0f', entry.version) or '', age_ms, entry.fresh_ms, entry.body}
"""

# ARGV: new mark, version, age_ms, fresh_ms, keep_ms, has body, body. A full Redis refuses the first write of a script
# and none after it; the group's mark is written first, so that nothing is stored in a full Redis.
_STORE: Final = """
local function store(group)
  local group, failure = keep_group(group, ARGV[1])
  if failure then return redis.error_reply(failure) end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'group', group, 'mark', ARGV[1], 'at_ms', now_ms() - ARGV[3], 'fresh_ms', ARGV[4])
  if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'version', ARGV[2]) end
  if ARGV[6] == '1' then redis.call('HSET', KEYS[1], 'body', ARGV[7]) end
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  return 1
end
local group = group_mark()
local entry = held(group)
local version = number(ARGV[2])
if entry.version and version and entry.version > version then return 0 end
"""

_FILL: Final = """
if group .. '/' .. entry.mark ~= ARGV[8] then return 0 end
return store(group)
"""

# The replaced entry must be deleted even if a full Redis refuses the new one.
_WRITE: Final = """
redis.call('PUBLISH', ARGV[8], ARGV[9])
local stored = store(group)
if stored ~= 1 then redis.call('DEL', KEYS[1]) end
return stored
"""

# ARGV: new mark, version, keep_ms, channel, message. DEL comes first: a full Redis accepts it, and then the rest.
_INVALIDATE_KEY: Final = """
redis.call('PUBLISH', ARGV[4], ARGV[5])
local group = group_mark()
local entry = held(group)
local version = number(ARGV[2])
if version and entry.version and entry.version >= version then return 1 end
redis.call('DEL', KEYS[1])
group = keep_group(group, ARGV[1])
redis.call('HSET', KEYS[1], 'group', group, 'mark', ARGV[1])
if version then redis.call('HSET', KEYS[1], 'version', ARGV[2]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

_INVALIDATE_GROUP: Final = """
redis.call('PUBLISH', ARGV[4], ARGV[5])
redis.call('DEL', KEYS[2])
keep_group('', ARGV[1])
return 1
"""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    target: str
    version: int | None


class RedisLayer:
    """A `SharedLayer` on one Redis. Installations that share it need different `namespace`s."""

    def __init__(
        self, *, url: str, clock: Clock, namespace: str = "headgate:", timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        """Raises `SettingsError` for an invalid URL. Does not connect yet."""
        try:
            self._client = redis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=timeout_seconds,
                socket_connect_timeout=timeout_seconds,
                # A second attempt would double the timeout; the circuit breaker decides when to try again.
                retry=Retry(NoBackoff(), 0),
            )
            # Unknown URL options only fail when a connection object is made; this does not connect.
            self._client.connection_pool.make_connection()
        except (ValueError, TypeError):
            # Not chained: the parser's message can quote part of the password.
            raise SettingsError(
                "not a valid Redis URL, or it has an unknown option; write redis://user:password@host:6379/0"
            ) from None
        self._clock = clock
        self._namespace = namespace
        self._channel = f"{namespace}invalidations"
        self._sender = secrets.token_hex(8)
        self._get = self._client.register_script(_PRELUDE + _GET)
        self._fill = self._client.register_script(_PRELUDE + _STORE + _FILL)
        self._write = self._client.register_script(_PRELUDE + _STORE + _WRITE)
        self._invalidate_key = self._client.register_script(_PRELUDE + _INVALIDATE_KEY)
        self._invalidate_group = self._client.register_script(_PRELUDE + _INVALIDATE_GROUP)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def get(self, key: Key) -> SharedRead:
        with _redis_errors(f"get {key}"):
            mark, *fields = self._get(self._keys(key))
            if not fields:
                return SharedRead(None, mark)
            version, age_ms, fresh_ms, body = fields
            entry = SharedEntry(
                body=body,
                version=int(version) if version else None,
                age_seconds=age_ms / 1000,
                fresh_seconds=fresh_ms / 1000,
            )
            return SharedRead(entry, mark)

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        with _redis_errors(f"fill {key}"):
            return bool(self._fill(self._keys(key), [*_arguments(entry), mark]))

    def write(self, key: Key, entry: SharedEntry) -> bool:
        message = self._message(Invalidation(key, entry.version))
        with _redis_errors(f"write {key}"):
            return bool(self._write(self._keys(key), [*_arguments(entry), self._channel, message]))

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        with (
            _redis_errors(f"invalidate {len(invalidations)} keys"),
            self._client.pipeline(transaction=False) as pipeline,
        ):
            for invalidation in invalidations:
                target = invalidation.target
                script = self._invalidate_group if is_group(target) else self._invalidate_key
                version = "" if invalidation.version is None else invalidation.version
                message = self._message(invalidation)
                script(
                    self._keys(target),
                    [_new_mark(), version, int(FLOOR_SECONDS * 1000), self._channel, message],
                    client=pipeline,
                )
            pipeline.execute()
            return True

    def listen(self, listener: InvalidationListener) -> None:
        self._thread = threading.Thread(
            target=self._listen, args=(listener,), name="headgate-cache-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS_MAX)
        self._client.close()

    def _keys(self, target: Key | Group) -> list[str]:
        group = target if is_group(target) else group_of(Key(target))
        return [self._namespace + target, self._namespace + group]

    def _message(self, invalidation: Invalidation) -> bytes:
        return msgspec.json.encode(_Message(self._sender, invalidation.target, invalidation.version))

    def _listen(self, listener: InvalidationListener) -> None:
        """Listener thread: read the channel until closed, reconnecting after every failure."""
        pause_seconds = RECONNECT_SECONDS_MIN

        def connected() -> None:
            nonlocal pause_seconds
            pause_seconds = RECONNECT_SECONDS_MIN
            listener.on_messages_lost()

        while not self._closing.is_set():
            try:
                with self._client.pubsub() as channel:  # type: ignore[no-untyped-call]
                    channel.subscribe(self._channel)
                    self._follow(channel, listener, connected)
            except _FAULTS:
                self._closing.wait(pause_seconds * random.uniform(0.5, 1.0))
                pause_seconds = min(2 * pause_seconds, RECONNECT_SECONDS_MAX)

    def _follow(self, channel: PubSub, listener: InvalidationListener, connected: Callable[[], None]) -> None:
        last_message_at = last_idle_at = self._clock.monotonic()
        while not self._closing.is_set():
            message = channel.get_message(timeout=IDLE_SECONDS / 4)
            now = self._clock.monotonic()
            if message is not None:
                last_message_at = now
                self._deliver(message, listener, connected)
            if now - last_idle_at >= IDLE_SECONDS:
                last_idle_at = now
                # Detects a connection that was dropped silently.
                channel.ping()
                listener.on_idle()
            if now - last_message_at > SILENCE_SECONDS_MAX:
                raise redis.TimeoutError("no answer to any ping")

    def _deliver(self, message: dict[str, Any], listener: InvalidationListener, connected: Callable[[], None]) -> None:
        if message["type"] == "subscribe":
            connected()
        elif message["type"] == "message":
            try:
                sent = typed_decode.from_json(message["data"], _Message)
                target = Key(sent.target)
                kind_of(target)
            except (msgspec.DecodeError, InvalidItemError):
                # A malformed message may have been about any key.
                listener.on_messages_lost()
                return
            if sent.sender != self._sender:
                listener.on_invalidated(Invalidation(target, sent.version))


def _arguments(entry: SharedEntry) -> list[str | int | bytes]:
    return [
        _new_mark(),
        "" if entry.version is None else entry.version,
        int(entry.age_seconds * 1000),
        int(entry.fresh_seconds * 1000),
        int(entry.keep_seconds * 1000),
        int(entry.body is not None),
        entry.body or b"",
    ]


def _new_mark() -> str:
    return secrets.token_hex(8)


@contextmanager
def _redis_errors(action: str) -> Iterator[None]:
    try:
        yield
    except _FAULTS as exc:
        raise TransientError(f"redis: {action}: {type(exc).__name__}: {exc}; continuing without it") from exc
