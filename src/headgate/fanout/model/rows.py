"""Rows: fan-outs, chunks and attempts as they are stored.

The attributes keep the names that queries outside of Headgate go by (`survey`, `n_spectra`, `jobs_total`, `chunk_key`);
the fields have our own.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from headgate import typed_decode
from headgate.durable.model.records import instant
from headgate.errors import CorruptionError, InvalidIdError
from headgate.fanout.model.states import AttemptOutcome, ChunkStatus, Disposition, FanoutStatus
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import AllOf, Compare, Comparison, Condition, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

WIDTH_MIN: Final = 7
WIDTH_UNKNOWN: Final = 12
ERROR_CHARS_MAX: Final = 1024
HEAL_ACTIONS: Final = ("retry", "slow-lane", "split", "quarantine")
# The partition of the attention index that lists fan-outs which have not ended.
ACTIVE: Final = "ACTIVE"
MAIN_LANE: Final = "main"
SLOW_LANE: Final = "slow"
NO_TOKEN: Final = "-"
_RUN: Final = "RUN"
R = TypeVar("R")
_CHUNK_PREFIX: Final = "CHUNK#"
_SLOW_PREFIX: Final = "SLOW#"


class Policy(Struct, frozen=True, omit_defaults=True):
    """How the chunks of a fan-out are run. Stored with it, so that every worker goes by the same."""

    max_attempts: int = 3
    timeout_seconds: float = 900.0
    # In the slow lane; four times as long unless it is said.
    slow_timeout_seconds: float | None = None
    # Longest silence of a worker; without it a chunk is its worker's for the whole time-out.
    heartbeat_seconds: float | None = None
    backoff_seconds: float = 1.0
    backoff_factor: float = 2.0
    backoff_seconds_max: float = 300.0
    concurrency: int | None = None
    # 1 to 9; the share that a fan-out has of the workers goes by it.
    priority: int = 5
    memory_mb: int | None = None
    # Whether the handler is called for each item, and how long it may take for one before that is deferred.
    each: bool = False
    item_timeout_seconds: float | None = None
    # What to do about dead chunks without being asked (see `healing`).
    heal_redrives_max: int = 0
    heal_on: tuple[str, ...] = ()
    heal_action: str = "retry"
    retention_days: float = 90.0
    # Of a worker: what a gigabyte for a second costs, and how many gigabytes it has.
    price_per_gb_second: float = 0.0000133334
    worker_gb: float = 1.0
    budget: float | None = None


def slow_timeout(policy: Policy) -> float:
    """Return how long a chunk may take in the slow lane."""
    return policy.slow_timeout_seconds if policy.slow_timeout_seconds is not None else 4 * policy.timeout_seconds


class Fanout(Struct, frozen=True, omit_defaults=True):
    """One fan-out. Counts are folded onto it about once a second, and exactly when it ends."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    group: str = field(name="survey")
    gsi1_pk: str = field(name="GSI1_PK")
    gsi1_sk: str = field(name="GSI1_SK")
    created_at: str
    status: FanoutStatus
    version: int
    # As many digits as every chunk of it has in its id.
    width: int
    shards: int
    chunk_size: int
    source: str
    digest: str
    policy: str
    chunks_total: int = field(name="jobs_total", default=0)
    chunks_completed: int = field(name="jobs_completed", default=0)
    chunks_failed: int = field(name="jobs_failed", default=0)
    chunks: int = field(name="n_chunks", default=0)
    items_total: int = field(name="n_spectra", default=0)
    params: str | None = None
    handler: str | None = None
    queue_url: str | None = None
    campaign: str | None = None
    submitted_by: str | None = None
    counts: dict[str, int] = {}
    # How many items have their chunk.
    split_through: int = 0
    split_error: str | None = None
    # It was cancelled before all its items had their chunk, and ended so.
    is_cut_short: bool = False
    started_at: str | None = None
    updated_at: str | None = None
    progressed_at: str | None = None
    finished_at: str | None = None
    paused_at: str | None = None
    cancelled_at: str | None = None
    reason: str | None = None
    # The execution that waits for the end, and under which name.
    waiter: str | None = None
    waiter_signal: str | None = None
    attention_pk: str | None = None
    attention_sk: str | None = None
    ttl: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.finished_at is not None

    def rules(self) -> Policy:
        """Return the policy it was made with. Raises `CorruptionError` if its row does not hold one."""
        try:
            return load_policy(self.policy)
        except msgspec.DecodeError as exc:
            raise CorruptionError(f"fan-out {self.run_id}: its policy cannot be read ({exc})") from exc

    def replacing(self, version: int) -> Put:
        """Return the write that stores this row over the one of that version."""
        return Put(FANOUT, msgspec.to_builtins(self), version_is(version))


class Chunk(Struct, frozen=True, omit_defaults=True):
    """One chunk of a fan-out, or the items of one that the slow lane has.

    `token` is the fence: each claim gives the chunk a new one, and whoever holds an old one has lost it.
    """

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    status: ChunkStatus
    disposition: Disposition
    created_at: str
    # The index of the first item, and how many there are.
    start: int
    items: int = field(name="n_spectra")
    token: str
    input_key: str = field(name="chunk_key", default="")
    # The items themselves as JSON text, where they are kept in the row.
    input: str | None = None
    shard: int = 0
    attempt: int = 0
    # How many attempts there were when it was last redriven: the policy counts from there.
    tried: int = 0
    redrives: int = 0
    heals: int = 0
    worker: str | None = None
    lease_expires_at: str | None = None
    heartbeat_at: str | None = None
    items_done: int = 0
    receive_count: int = 0
    message_id: str | None = None
    # The message as it was found among the dead letters.
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    duration_ms: int | None = None
    output_key: str | None = None
    output: str | None = None
    error: str | None = None
    error_class: str | None = None
    error_fingerprint: str | None = None
    items_ok: int = 0
    items_failed: int = 0
    items_deferred: int = 0
    # JSON: {"3": "ValueError: …"} by index within the fan-out, and [7, 9] for what was deferred.
    item_errors: str | None = None
    deferred: str | None = None
    log_ref: str | None = None
    memory_mb: int | None = None
    attention_pk: str | None = None
    attention_sk: str | None = None
    queue_pk: str | None = None
    queue_sk: str | None = None
    ttl: int | None = None

    @property
    def chunk_id(self) -> str:
        """The id that people see: `chunk-0000500`, or `slow-0000500`."""
        return self.sk.partition("#")[2]

    @property
    def lane(self) -> str:
        """The lane it runs in."""
        return SLOW_LANE if self.sk.startswith(_SLOW_PREFIX) else MAIN_LANE

    @property
    def key(self) -> Key:
        """The key of its row."""
        return Key(self.run_id, self.sk)

    def fence(self) -> AllOf:
        """Return the condition that the row is where this one was read."""
        # Made without the checks of `all_of` and `equals`: it is done for every move of every chunk.
        token = Compare("token", Comparison.EQUALS, self.token)
        return AllOf((token, Compare("disposition", Comparison.EQUALS, self.disposition.value)))

    def put(self, condition: Condition | None) -> Put:
        """Return the write that stores this row."""
        return Put(FANOUT, msgspec.to_builtins(self), condition)


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One try at a chunk that ended otherwise than with a first success, which the chunk's own row tells."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    attempt: int
    outcome: AttemptOutcome
    ended_at: str
    started_at: str | None = None
    duration_ms: int | None = None
    worker: str | None = None
    error: str | None = None
    error_class: str | None = None
    error_fingerprint: str | None = None
    receive_count: int = 0
    ttl: int | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(FANOUT, msgspec.to_builtins(self))


def fanout_of(item: Item) -> Fanout:
    """Return the fan-out that an item holds. Rows made by other programs may lack what only we write."""
    known = {"SK": _RUN, "version": 0, "width": WIDTH_MIN, "shards": 0, "chunk_size": 0, "source": "", "digest": ""}
    group = item.get("survey", item.get("GSI1_PK", ""))
    known |= {"survey": group, "GSI1_PK": group, "GSI1_SK": item.get("created_at", ""), "created_at": ""}
    known |= {"policy": "{}", "status": FanoutStatus.RUNNING}
    return _converted({**known, **item}, Fanout)


def chunk_of(item: Item) -> Chunk:
    """Return the chunk that an item holds. Rows made by other programs may lack what only we write."""
    if "disposition" in item:
        return _converted(item, Chunk)
    status = item.get("status", ChunkStatus.PENDING.value)
    known = {"status": status, "disposition": _FOREIGN.get(status, ""), "n_spectra": 0, "created_at": ""}
    known |= {"token": NO_TOKEN, "start": start_of(item["SK"])}
    return _converted({**known, **item}, Chunk)


def attempt_of(item: Item) -> Attempt:
    """Return the attempt that an item holds."""
    return _converted(item, Attempt)


_FOREIGN: Final[dict[str, str]] = {
    ChunkStatus.PENDING: Disposition.QUEUED,
    ChunkStatus.IN_PROGRESS: Disposition.RUNNING,
    ChunkStatus.COMPLETED: Disposition.DONE,
    ChunkStatus.FAILED: Disposition.DEAD,
    ChunkStatus.CANCELLED: Disposition.CANCELLED,
    ChunkStatus.SKIPPED: Disposition.SKIPPED,
}


def _converted(item: dict[str, Any], kind: type[R]) -> R:
    try:
        return typed_decode.convert(item, kind)
    except msgspec.ValidationError as exc:
        raise CorruptionError(
            f"fan-out {item.get('PK')}, row {item.get('SK')}: {exc}; it was not written by Headgate, or was damaged"
        ) from exc


def run_key(run_id: str) -> Key:
    """Return the key of a fan-out's row."""
    return Key(run_id, _RUN)


def chunk_key(run_id: str, chunk_id: str) -> Key:
    """Return the key of a chunk's row. Raises `InvalidIdError` for what is no id of a chunk."""
    return Key(run_id, sort_key(chunk_id))


def sort_key(chunk_id: str) -> str:
    """Return the sort key of a chunk. Raises `InvalidIdError` for what is no id of a chunk."""
    lane, _, digits = chunk_id.partition("-")
    if lane not in ("chunk", "slow") or len(digits) < WIDTH_MIN or not (digits.isascii() and digits.isdigit()):
        raise InvalidIdError(f"chunk {chunk_id!r}: an id looks like chunk-0000500, or slow-0000500 in the slow lane")
    return f"{_SLOW_PREFIX if lane == 'slow' else _CHUNK_PREFIX}{chunk_id}"


def chunk_id_at(start: int, width: int, *, slow: bool = False) -> str:
    """Return the id of the chunk whose first item has this index."""
    return f"{'slow' if slow else 'chunk'}-{start:0{width}d}"


def start_of(sk: str) -> int:
    """Return the index of the first item of the chunk with this sort key."""
    return int(sk.rpartition("-")[2])


def attempt_key(run_id: str, chunk_id: str, attempt: int) -> Key:
    """Return the key of an attempt's row."""
    return Key(run_id, f"ATT#{chunk_id}#{attempt:04d}")


def counter_key(run_id: str, shard: int) -> Key:
    """Return the key of one of the counters of a fan-out."""
    return Key(run_id, f"CTR#{shard:02d}")


def shard_of(start: int, shards: int) -> int:
    """Return which counter counts the chunk that starts here."""
    return 0 if shards <= 1 else zlib.crc32(str(start).encode()) % shards


def attention(run_id: str, about: Disposition) -> str:
    """Return the partition of the attention index for the chunks of a fan-out that are in this disposition."""
    return f"{run_id}#{about.value}"


def queue(run_id: str, lane: str) -> str:
    """Return the partition of the queue index for a lane of a fan-out."""
    return f"{run_id}#{lane}"


_QUEUED_MS_MAX: Final = 9_999_999_999_999


def queue_place(available_at_ms: int, sk: str) -> str:
    """Return where in its queue a chunk is. Thirteen digits last until 2286; what is for later is last in line."""
    return f"{min(available_at_ms, _QUEUED_MS_MAX):013d}#{sk.rpartition('-')[2]}"


@lru_cache(maxsize=512)
def load_policy(text: str) -> Policy:
    """Return the policy that a fan-out's row holds."""
    return typed_decode.from_json(text, Policy)


def dump_policy(policy: Policy) -> str:
    """Return the text that `load_policy` reads."""
    return msgspec.json.encode(policy).decode()


@lru_cache(maxsize=256)
def moment(ms: int) -> str:
    """Return a moment as people and indexes read it. Kept for a while: the chunks of one commit share it."""
    return instant(ms)


def moment_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a stored moment, with or without a fraction or an offset."""
    read = datetime.fromisoformat(text)
    return round((read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp() * 1000)
