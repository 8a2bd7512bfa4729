"""Fan-out rows: fan-outs, chunks and attempts as they are stored.

Attribute names in the table follow an external layout (`survey`, `n_spectra`, `jobs_total`, `chunk_key`); the fields
have their own names.
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
from headgate.store.model.values import Item, trusted_item

WIDTH_MIN: Final = 7
WIDTH_UNKNOWN: Final = 12
ERROR_CHARS_MAX: Final = 1024
RETENTION_DAYS: Final = 90.0
HEAL_ACTIONS: Final = ("retry", "slow-lane", "split", "quarantine")
# The partition of the attention index that lists open fan-outs.
ACTIVE: Final = "ACTIVE"
MAIN_LANE: Final = "main"
SLOW_LANE: Final = "slow"
NO_TOKEN: Final = "-"
# How `submitted_by` of a pipeline's fan-outs begins; the name of the pipeline follows.
PIPELINE_CALLER: Final = "pipeline "
_RUN: Final = "RUN"
_ZERO_COUNTERS: Final[Item] = dict.fromkeys(("jobs_total", "jobs_completed", "jobs_failed", "n_chunks", "n_spectra"), 0)
_WORD: Final = 1 << 63
_encode: Final = msgspec.json.Encoder().encode
R = TypeVar("R")
_CHUNK_PREFIX: Final = "CHUNK#"
_SLOW_PREFIX: Final = "SLOW#"


class Policy(Struct, frozen=True, omit_defaults=True):
    """How the chunks of a fan-out are run. Stored on its row, so that every worker applies the same policy."""

    max_attempts: int = 3
    # Maximum of attempts lost with their worker, which do not count as attempts; beyond it the chunk fails.
    lost_attempts_max: int = 20
    timeout_seconds: float = 900.0
    # Time-out in the slow lane; four times `timeout_seconds` by default.
    slow_timeout_seconds: float | None = None
    # Longest time between heartbeats; without it the lease is the whole time-out.
    heartbeat_seconds: float | None = None
    backoff_seconds: float = 1.0
    backoff_factor: float = 2.0
    backoff_seconds_max: float = 300.0
    concurrency: int | None = None
    # From 1 to 9; workers share their capacity in proportion to it.
    priority: int = 5
    memory_mb: int | None = None
    # Call the handler per item; an item that exceeds the time-out is deferred to the slow lane.
    each: bool = False
    item_timeout_seconds: float | None = None
    # Automatic healing of dead chunks, see `fanout.repair.auto_heal`.
    heal_redrives_max: int = 0
    heal_on: tuple[str, ...] = ()
    heal_action: str = "retry"
    # Failed chunks that are tolerated (with `each`: items), as a number and as a share from 0 to 1, and what happens
    # beyond that: "fail" or "pause". See `fanout.model.tolerance`.
    tolerated_failures: int | None = None
    tolerated_failure_share: float | None = None
    failures_action: str = "fail"
    # Counted from the end. The splitter stores the server's default; rows of earlier releases may lack it.
    retention_days: float | None = None
    # Cost of a worker: the price of one gigabyte-second (see `fanout.core.costs`), and its memory in gigabytes.
    price_per_gb_second: float | None = None
    worker_gb: float = 1.0
    budget: float | None = None


def kept_days(policy: Policy) -> float:
    """Return how long a fan-out is kept after its end."""
    return policy.retention_days if policy.retention_days is not None else RETENTION_DAYS


def slow_timeout(policy: Policy) -> float:
    """Return the time-out of a chunk in the slow lane."""
    return policy.slow_timeout_seconds if policy.slow_timeout_seconds is not None else 4 * policy.timeout_seconds


class Fanout(Struct, frozen=True, omit_defaults=True):
    """A fan-out. Counts are folded onto the row about once a second, and exactly at the end."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    group: str = field(name="survey")
    gsi1_pk: str = field(name="GSI1_PK")
    gsi1_sk: str = field(name="GSI1_SK")
    created_at: str
    status: FanoutStatus
    version: int
    # Digits in the ids of its chunks.
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
    # Whether chunks of it are split until their failing item is alone, whatever the heal policy is.
    is_isolating: bool = False
    # Of the policy as it was requested; `tune` changes the policy, not this.
    policy_digest: str | None = None
    handler: str | None = None
    queue_url: str | None = None
    campaign: str | None = None
    submitted_by: str | None = None
    counts: dict[str, int] = {}
    # Number of items that have a chunk row.
    split_through: int = 0
    split_error: str | None = None
    # Why messages of its chunks could not be sent to its queue; they are sent again.
    send_error: str | None = None
    # The process that splits it, until that has ended.
    splitter: str | None = None
    # Whether the attention index lists its cancelled and skipped chunks. Rows of earlier builds lack it.
    lists_cancelled: bool = False
    # Whether it lists completed chunks that a search would find late, see `core.completed_index`.
    lists_completed: bool = False
    # Whether it lists chunks that were made WAITING after the split, see `FanoutQueries.every_unsent`.
    lists_unsent: bool = False
    # Number of items whose chunks had their message sent once.
    sent_through: int = 0
    # Cancelled and ended before every item had a chunk row.
    is_cut_short: bool = False
    started_at: str | None = None
    updated_at: str | None = None
    progressed_at: str | None = None
    finished_at: str | None = None
    paused_at: str | None = None
    cancelled_at: str | None = None
    # When more chunks had failed than tolerated; `reason` says how many. Decided once, until a redrive.
    exceeded_at: str | None = None
    # When it was found without progress, and when it was found failing; see `fanout.insight.fanout_watch`.
    stalled_at: str | None = None
    failing_at: str | None = None
    reason: str | None = None
    # The execution to signal at the end, and the signal's name.
    waiter: str | None = None
    waiter_signal: str | None = None
    # The W3C trace context of the call that submitted it.
    traceparent: str = ""
    attention_pk: str | None = None
    attention_sk: str | None = None
    ttl: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the fan-out has ended. A redrive opens it again."""
        return self.finished_at is not None

    def rules(self) -> Policy:
        """Return the decoded policy. Raises `CorruptionError` if it cannot be decoded."""
        try:
            return load_policy(self.policy)
        except msgspec.DecodeError as exc:
            raise CorruptionError(f"fan-out {self.run_id}: its policy cannot be read ({exc})") from exc

    def item(self) -> Item:
        """Return the row. Programs that read the external layout expect its counters, also while they are zero."""
        return {**_ZERO_COUNTERS, **msgspec.to_builtins(self)}

    def replacing(self, version: int) -> Put:
        """Return the put of this row, conditional on the stored version."""
        return Put(FANOUT, self.item(), version_is(version))


class Chunk(Struct, frozen=True, omit_defaults=True):
    """A chunk of a fan-out, or the slow-lane chunk of its deferred items.

    `token` is the fencing token: each claim sets a new one, and writes with an old one are refused.
    """

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    status: ChunkStatus
    disposition: Disposition
    created_at: str
    # Index of the first item, and number of items.
    start: int
    items: int = field(name="n_spectra")
    token: str
    input_key: str = field(name="chunk_key", default="")
    # The items as JSON text, if they are stored in the row.
    input: str | None = None
    shard: int = 0
    attempt: int = 0
    # The attempt number at the last redrive; `max_attempts` counts from there.
    tried: int = 0
    # Attempts since then whose worker vanished; they do not count against `max_attempts`.
    lost_attempts: int = 0
    redrives: int = 0
    heals: int = 0
    worker: str | None = None
    lease_expires_at: str | None = None
    heartbeat_at: str | None = None
    items_done: int = 0
    # Number of the worker's process that ran it, from 1, once it has ended.
    process: int | None = None
    receive_count: int = 0
    message_id: str | None = None
    # Body of its dead letter.
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
    # JSON: {"3": "ValueError: …"} by index within the fan-out, see `item_errors`; deferred indexes as [7, 9].
    item_errors: str | None = None
    further_item_errors: str | None = None
    deferred: str | None = None
    # Indexes of the items that run again, if the others are not to: [3].
    rerun_items: str | None = None
    # Of a slow-lane chunk: whether items of the chunk that deferred its items have failed.
    has_failed_siblings: bool = False
    # Whether it is split in two each time it dies, until its failing item is alone.
    is_isolating: bool = False
    log_ref: str | None = None
    # Short output of the attempt that completed it. Longer output, and that of other attempts, is in rows of its own.
    printed: str | None = None
    memory_mb: int | None = None
    attention_pk: str | None = None
    attention_sk: str | None = None
    queue_pk: str | None = None
    queue_sk: str | None = None
    ttl: int | None = None

    @property
    def chunk_id(self) -> str:
        """The public id: `chunk-0000500`, or `slow-0000500`."""
        return self.sk.partition("#")[2]

    @property
    def lane(self) -> str:
        """The lane it runs in."""
        return SLOW_LANE if self.sk.startswith(_SLOW_PREFIX) else MAIN_LANE

    @property
    def retry_at(self) -> str | None:
        """When its next attempt is due, while it waits for one."""
        if self.disposition is not Disposition.RETRYING or self.queue_sk is None:
            return None
        return timestamp(int(self.queue_sk.partition("#")[0]))

    @property
    def key(self) -> Key:
        """The key of its row."""
        return Key(self.run_id, self.sk)

    def fence(self) -> AllOf:
        """Return the condition that the row has not changed hands since it was read."""
        # Built without the validation of `all_of` and `equals`, since every transition needs one.
        token = Compare("token", Comparison.EQUALS, self.token)
        return AllOf((token, Compare("disposition", Comparison.EQUALS, self.disposition.value)))

    def put(self, condition: Condition | None) -> Put:
        """Return the write that stores this row."""
        item: Item = msgspec.to_builtins(self)
        try:
            text = _encode(self).decode()
        except UnicodeEncodeError:
            # A lone surrogate: the store refuses the row and names the attribute.
            return Put(FANOUT, item, condition)
        # ASCII text and numbers of a word: the store need not check the values of every row again.
        is_plain = text.isascii() and self.start + self.items < _WORD
        return Put(FANOUT, trusted_item(item, text) if is_plain else item, condition)


class Attempt(Struct, frozen=True, omit_defaults=True):
    """An attempt at a chunk. A successful first attempt has no row; the chunk's own row records it."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    attempt: int
    outcome: AttemptOutcome
    ended_at: str
    started_at: str | None = None
    duration_ms: int | None = None
    worker: str | None = None
    process: int | None = None
    error: str | None = None
    error_class: str | None = None
    error_fingerprint: str | None = None
    receive_count: int = 0
    memory_mb: int | None = None
    log_ref: str | None = None
    # Of an attempt that completed before failed items of its chunk ran again.
    output_key: str | None = None
    output: str | None = None
    ttl: int | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(FANOUT, msgspec.to_builtins(self))


class AttemptLog(Struct, frozen=True, omit_defaults=True):
    """What an attempt printed, and the traceback of its failure. Apart from the attempt, because it may be long."""

    run_id: str = field(name="PK")
    sk: str = field(name="SK")
    attempt: int
    ended_at: str
    traceback: str = ""
    printed: str = ""
    ttl: int | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(FANOUT, msgspec.to_builtins(self))


def fanout_of(item: Item) -> Fanout:
    """Decode a fan-out. Rows written by other programs may lack attributes; defaults are filled in."""
    known = {"SK": _RUN, "version": 0, "width": WIDTH_MIN, "shards": 0, "chunk_size": 0, "source": "", "digest": ""}
    group = item.get("survey", item.get("GSI1_PK", ""))
    known |= {"survey": group, "GSI1_PK": group, "GSI1_SK": item.get("created_at", ""), "created_at": ""}
    known |= {"policy": "{}", "status": FanoutStatus.RUNNING}
    return _converted({**known, **item}, Fanout)


def chunk_of(item: Item) -> Chunk:
    """Decode a chunk. Rows written by other programs may lack attributes; defaults are filled in."""
    if "disposition" in item:
        return _converted(item, Chunk)
    status = item.get("status", ChunkStatus.PENDING.value)
    known = {"status": status, "disposition": _FOREIGN.get(status, ""), "n_spectra": 0, "created_at": ""}
    known |= {"token": NO_TOKEN, "start": start_of(item["SK"])}
    return _converted({**known, **item}, Chunk)


def attempt_of(item: Item) -> Attempt:
    """Decode an attempt."""
    return _converted(item, Attempt)


def log_of(item: Item) -> AttemptLog:
    """Decode the log of an attempt."""
    return _converted(item, AttemptLog)


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
    """Return the key of a chunk's row. Raises `InvalidIdError` for a malformed id."""
    return Key(run_id, sort_key(chunk_id))


def sort_key(chunk_id: str) -> str:
    """Return the sort key of a chunk. Raises `InvalidIdError` for a malformed id."""
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


_LOG: Final = "LOG#"


def log_key(run_id: str, chunk_id: str, attempt: int) -> Key:
    """Return the key of the row with the log of an attempt."""
    return Key(run_id, f"{_LOG}{chunk_id}#{attempt:04d}")


def printed_log(chunk: Chunk) -> AttemptLog | None:
    """Return the log of the attempt that completed a chunk, if its output is in the chunk's own row."""
    if chunk.printed is None:
        return None
    key = log_key(chunk.run_id, chunk.chunk_id, chunk.attempt)
    return AttemptLog(
        chunk.run_id, str(key.sort), chunk.attempt, chunk.completed_at or "", printed=chunk.printed, ttl=chunk.ttl
    )


def is_log_ref(reference: str) -> bool:
    """Whether a log reference names the log of an attempt, and not one that another program keeps."""
    return reference.startswith(_LOG)


def counter_key(run_id: str, shard: int) -> Key:
    """Return the key of a counter row."""
    return Key(run_id, f"CTR#{shard:02d}")


def shard_of(start: int, shards: int) -> int:
    """Return the counter shard of the chunk that starts at this item."""
    return 0 if shards <= 1 else zlib.crc32(str(start).encode()) % shards


def attention_partition(run_id: str, about: Disposition) -> str:
    """Return the attention-index partition of a fan-out's chunks in this disposition."""
    return f"{run_id}#{about.value}"


def failed_items_partition(run_id: str) -> str:
    """Return the attention-index partition of a fan-out's completed chunks with failed items."""
    return f"{run_id}#FAILED_ITEMS"


def is_listed_completed(chunk: Chunk) -> bool:
    """Whether the attention index lists a chunk of the main lane that is done."""
    if chunk.disposition is not Disposition.DONE or chunk.lane != MAIN_LANE:
        return False
    # That of a chunk with failed items may be missing, and is then repaired.
    return chunk.item_errors is not None or chunk.attention_pk == attention_partition(chunk.run_id, Disposition.DONE)


def is_unsent_since_split(chunk: Chunk) -> bool:
    """Whether a chunk waits for its first message: the attention index does not list it."""
    return chunk.disposition is Disposition.WAITING and chunk.attention_pk is None


def queue_partition(run_id: str, lane: str) -> str:
    """Return the queue-index partition of a lane of a fan-out."""
    return f"{run_id}#{lane}"


_QUEUED_MS_MAX: Final = 9_999_999_999_999


def queue_position(available_at_ms: int, sk: str) -> str:
    """Return a chunk's position in its queue: the due time in 13 digits (until 2286), then its number."""
    return f"{min(available_at_ms, _QUEUED_MS_MAX):013d}#{sk.rpartition('-')[2]}"


@lru_cache(maxsize=512)
def load_policy(text: str) -> Policy:
    """Decode a stored policy."""
    return typed_decode.from_json(text, Policy)


def dump_policy(policy: Policy) -> str:
    """Encode a policy for `load_policy`."""
    return msgspec.json.encode(policy).decode()


@lru_cache(maxsize=256)
def timestamp(ms: int) -> str:
    """Return a time as rows and indexes store it. Cached, since all chunks of a commit share it."""
    return instant(ms)


def timestamp_ms(text: str) -> int:
    """Parse a stored time, with or without fraction or offset, to milliseconds since 1970."""
    read = datetime.fromisoformat(text)
    return round((read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp() * 1000)
