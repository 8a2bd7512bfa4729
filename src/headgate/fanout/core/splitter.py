"""Splitter: creates a fan-out and its chunk rows from a source of items.

The fan-out's row is written first; then each transaction adds chunk rows and advances `split_through`; the last sets
the status to RUNNING. An interrupted split leaves the fan-out SPLITTING and resumes when the same fan-out is requested
again. Concurrent splitters of one fan-out are fenced by the row's version. Requesting an existing fan-out is a no-op.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    DefinitionError,
    HeadgateError,
    InvalidIdError,
    OutcomeUnknownError,
    TransientError,
)
from headgate.fanout.core.attempts import with_disposition
from headgate.fanout.core.campaigns import member_put
from headgate.fanout.core.maintenance import FanoutMaintenance, worker_name
from headgate.fanout.core.observer import ANY_QUEUE, NO_OBSERVER, FanoutObserver, MessageSender, QueueChoice
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.counts import counter_add, counter_puts
from headgate.fanout.model.rows import (
    ACTIVE,
    ERROR_CHARS_MAX,
    HEAL_ACTIONS,
    NO_TOKEN,
    RETENTION_DAYS,
    WIDTH_MIN,
    WIDTH_UNKNOWN,
    Chunk,
    Fanout,
    Policy,
    chunk_id_at,
    dump_policy,
    shard_of,
    sort_key,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.sources import BytesSource, Piece, Source
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.model.tolerance import FAILURES_ACTIONS
from headgate.ids import IdMaker, check_new_id
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put, Write
from headgate.store.port import Store
from headgate.telemetry import traceparent

# Of a transaction's 100 writes, the rest is for the fan-out's row and one counter per shard.
PIECES_MAX: Final = 80
BYTES_MAX: Final = 2 * 1024 * 1024
ID_CHARS_MAX: Final = 200
_log = structlog.get_logger(__name__)


class Order(Struct, frozen=True):
    """A request for a fan-out: its group, how to split the items, and how to run the chunks."""

    group: str
    chunk_size: int
    handler: str | None = None
    params: dict[str, Any] = {}
    policy: Policy = Policy()
    queue_url: str | None = None
    campaign: str | None = None
    submitted_by: str | None = None
    waiter: str | None = None
    waiter_signal: str | None = None


class Splitter:
    """Creates fan-outs."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        shards: int = 1,
        send: MessageSender | None = None,
        observer: FanoutObserver = NO_OBSERVER,
        maintenance: FanoutMaintenance | None = None,
        retention_days: float = RETENTION_DAYS,
        queues: QueueChoice = ANY_QUEUE,
    ) -> None:
        """`retention_days` is that of fan-outs that name none."""
        self._store = store
        self._ids = ids
        self._queries = FanoutQueries(store, clock)
        self._shards = shards
        self._retention_days = retention_days
        self._send = send
        self._queues = queues
        self._observer = observer
        self._maintenance = maintenance or FanoutMaintenance(store, clock, ids)
        self._name = worker_name(os.getpid(), ids.ulid())

    def split(self, order: Order, source: Source, *, run_id: str | None = None) -> Fanout:
        """Create the fan-out with all its chunks, or resume an interrupted split, and return it.

        Raises `AlreadyStartedError` if the id belongs to a fan-out with another input or policy, `DefinitionError` for
        an invalid order, and errors of the source; the fan-out then stays SPLITTING with `split_error` set, and can be
        resumed.
        """
        check_order(order)
        run_id = run_id if run_id is not None else self._ids.make("fan")
        check_run_id(run_id)
        if order.policy.each and isinstance(source, BytesSource):
            raise DefinitionError("each: a range of bytes is a single item; omit it, or split the file by lines")
        fanout = self._create(order, source, run_id)
        while fanout.status is FanoutStatus.SPLITTING and fanout.cancelled_at is None:
            try:
                fanout = self._split(fanout, order, source)
            except _SplitMovedError as exc:
                # Another process splits it too, or our own write was committed without an answer: resume from the row.
                fanout = exc.fanout
            except HeadgateError as exc:
                self.store_error(run_id, str(exc))
                raise
        return fanout

    def _split(self, fanout: Fanout, order: Order, source: Source) -> Fanout:
        for pieces in _batches(source.pieces(order.chunk_size, fanout.split_through)):
            fanout = self._add(fanout, pieces)
            self._observer.on_work_available(fanout.run_id)
        self._send_messages(fanout)
        done = {
            "status": FanoutStatus.RUNNING,
            "is_cut_short": False,
            "split_error": None,
            "updated_at": self._queries.now(),
            "splitter": None,
        }
        fanout = self._advance(fanout, done, [])
        # All chunks may have ended during the split, or the source was empty.
        self._maintenance.chunk_ended(fanout.run_id)
        return self._queries.fanout(fanout.run_id, consistent=True)

    def _send_messages(self, fanout: Fanout) -> None:
        """Send the messages of all chunks. What a busy queue did not accept, maintenance sends later."""
        if self._send is None or fanout.queue_url is None:
            return
        try:
            self._send(fanout)
        except TransientError as exc:
            _log.warning("messages not sent yet", run_id=fanout.run_id, queue_url=fanout.queue_url, error=str(exc))

    def _create(self, order: Order, source: Source, run_id: str) -> Fanout:
        described = source.describe()
        digest = digest_of(order, described)
        found = self._queries.find(run_id)
        if found is not None:
            return _check_same(found, order, described, digest)
        if order.queue_url is None:
            order = replace(order, queue_url=self._queues.default_url)
        elif self._queues.check is not None and order.queue_url != self._queues.default_url:
            self._queues.check(order.queue_url)
        if order.queue_url is not None and self._send is None:
            raise DefinitionError(
                f"queue_url: nothing here can send the chunks of {run_id} to SQS; set store.aws_region"
            )
        # An id that exists stays usable, whatever its form.
        check_new_id("fan-out id", run_id)
        if order.campaign is not None:
            check_new_id("campaign", order.campaign)
        now = timestamp(self._queries.now_ms())
        total = source.total()
        fanout = Fanout(
            run_id=run_id,
            sk="RUN",
            group=order.group,
            gsi1_pk=order.group,
            gsi1_sk=now,
            created_at=now,
            status=FanoutStatus.SPLITTING,
            version=1,
            width=WIDTH_UNKNOWN if total is None else max(WIDTH_MIN, len(str(max(0, total - 1)))),
            shards=self._shards,
            chunk_size=order.chunk_size,
            source=msgspec.json.encode(described).decode(),
            digest=digest,
            policy_digest=_policy_digest(order),
            policy=dump_policy(self._with_retention(order.policy)),
            params=msgspec.json.encode(order.params).decode() if order.params else None,
            handler=order.handler,
            queue_url=order.queue_url,
            campaign=order.campaign,
            submitted_by=order.submitted_by,
            waiter=order.waiter,
            waiter_signal=order.waiter_signal,
            traceparent=traceparent(),
            updated_at=now,
            splitter=self._name,
            lists_cancelled=True,
            lists_completed=True,
            lists_unsent=True,
            attention_pk=ACTIVE,
            attention_sk=f"{now}#{run_id}",
        )
        put = Put(FANOUT, fanout.item(), absent())
        try:
            member = member_put(fanout)
            self._store.transact([put, *counter_puts(run_id, self._shards), *([] if member is None else [member])])
        except ConflictError:
            found = self._queries.fanout(run_id, consistent=True)
            return _check_same(found, order, described, digest)
        return fanout

    def _with_retention(self, policy: Policy) -> Policy:
        """Return the policy with its retention, so that a later change of the default leaves the fan-out as it is."""
        return policy if policy.retention_days is not None else replace(policy, retention_days=self._retention_days)

    def _add(self, fanout: Fanout, pieces: Sequence[Piece]) -> Fanout:
        chunks = [_chunk(fanout, piece, self._queries.now_ms()) for piece in pieces]
        last = pieces[-1]
        change = {
            "split_through": last.start + last.items,
            "split_error": None,
            "splitter": self._name,
            "chunks_total": fanout.chunks_total + len(chunks),
            "chunks": fanout.chunks + len(chunks),
            "items_total": fanout.items_total + sum(piece.items for piece in pieces),
            "updated_at": timestamp(self._queries.now_ms()),
        }
        deltas: dict[int, dict[str, int]] = {}
        for chunk in chunks:
            delta = deltas.setdefault(chunk.shard, {})
            for name, amount in (("total", 1), (chunk.disposition.bucket, 1), ("items_total", chunk.items)):
                delta[name] = delta.get(name, 0) + amount
        writes: list[Write] = [chunk.put(None) for chunk in chunks]
        writes += [counter_add(fanout.run_id, shard, delta) for shard, delta in deltas.items()]
        return self._advance(fanout, change, writes)

    def _advance(self, fanout: Fanout, change: dict[str, Any], writes: Sequence[Write]) -> Fanout:
        """Commit a step of the split. Retries if the row changed in other ways: folded counts, a pause."""
        base = fanout
        while True:
            after = replace(base, version=base.version + 1, **change)
            try:
                self._store.transact([after.replacing(base.version), *writes])
            except OutcomeUnknownError:
                raise _SplitMovedError(self._queries.fanout(fanout.run_id, consistent=True)) from None
            except ConflictError:
                base = self._queries.fanout(fanout.run_id, consistent=True)
                is_ours = base.status is FanoutStatus.SPLITTING and base.split_through == fanout.split_through
                if not is_ours or base.cancelled_at is not None:
                    raise _SplitMovedError(base) from None
            else:
                return after

    def store_error(self, run_id: str, error: str) -> None:
        """Store why the split stopped. Nothing happens if it has ended."""
        fanout = self._queries.find(run_id)
        if fanout is None or fanout.status is not FanoutStatus.SPLITTING:
            return
        try:
            self._advance(fanout, {"split_error": error[:ERROR_CHARS_MAX]}, [])
        except _SplitMovedError:
            return


class _SplitMovedError(Exception):
    """Another process has continued the split, or the fan-out was cancelled."""

    def __init__(self, fanout: Fanout) -> None:
        super().__init__(fanout.run_id)
        self.fanout = fanout


def check_order(order: Order) -> None:
    """Raise `DefinitionError` for an invalid order, naming the field and the allowed values."""
    policy = order.policy
    for name in policy.__struct_fields__:
        value = getattr(policy, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise DefinitionError(f"{name} is {value!r}: it must be finite")
    ranges = {
        "group": (
            0 < len(order.group) <= ID_CHARS_MAX and order.group.isprintable(),
            f"1 to {ID_CHARS_MAX} printable characters",
        ),
        "campaign": (
            order.campaign is None or (0 < len(order.campaign) <= ID_CHARS_MAX and order.campaign.isprintable()),
            f"1 to {ID_CHARS_MAX} printable characters",
        ),
        "chunk_size": (1 <= order.chunk_size <= 1_000_000_000, "from 1 to 1,000,000,000"),
        "max_attempts": (1 <= policy.max_attempts <= 1000, "from 1 to 1000"),
        "lost_attempts_max": (1 <= policy.lost_attempts_max <= 1000, "from 1 to 1000"),
        "timeout_seconds": (0 < policy.timeout_seconds <= 7 * 86_400, "more than 0, at most 7 days"),
        "heartbeat_seconds": (policy.heartbeat_seconds is None or policy.heartbeat_seconds > 0, "more than 0"),
        "concurrency": (policy.concurrency is None or policy.concurrency >= 1, "at least 1"),
        "priority": (1 <= policy.priority <= 9, "from 1 to 9"),
        "memory_mb": (policy.memory_mb is None or policy.memory_mb >= 16, "at least 16"),
        "item_timeout_seconds": (policy.item_timeout_seconds is None or policy.item_timeout_seconds > 0, "more than 0"),
        "backoff_factor": (policy.backoff_factor >= 1, "at least 1"),
        "backoff_seconds": (policy.backoff_seconds >= 0, "at least 0"),
        "backoff_seconds_max": (0 <= policy.backoff_seconds_max <= 7 * 86_400, "from 0 to 7 days"),
        "price_per_gb_second": (policy.price_per_gb_second is None or policy.price_per_gb_second >= 0, "at least 0"),
        "worker_gb": (policy.worker_gb > 0, "more than 0"),
        "heal_action": (policy.heal_action in HEAL_ACTIONS, f"one of {', '.join(HEAL_ACTIONS)}"),
        "tolerated_failures": (policy.tolerated_failures is None or policy.tolerated_failures >= 0, "at least 0"),
        "tolerated_failure_share": (
            policy.tolerated_failure_share is None or 0 <= policy.tolerated_failure_share <= 1,
            "from 0 to 1",
        ),
        "failures_action": (policy.failures_action in FAILURES_ACTIONS, f"one of {', '.join(FAILURES_ACTIONS)}"),
        "slow_timeout_seconds": (
            policy.slow_timeout_seconds is None or 0 < policy.slow_timeout_seconds <= 7 * 86_400,
            "more than 0, at most 7 days",
        ),
        "heal_redrives_max": (policy.heal_redrives_max >= 0, "at least 0"),
        "retention_days": (
            policy.retention_days is None or 0 < policy.retention_days <= 36_500,
            "more than 0, at most 36,500",
        ),
    }
    for name, (is_allowed, allowed) in ranges.items():
        if not is_allowed:
            value = getattr(order, name, None) if hasattr(order, name) else getattr(policy, name)
            raise DefinitionError(f"{name} is {value!r}: it must be {allowed}")


def check_run_id(run_id: str) -> None:
    """Raise `InvalidIdError` for an invalid fan-out id."""
    if not 1 <= len(run_id) <= ID_CHARS_MAX or not run_id.isprintable() or run_id.startswith("CAMPAIGN#"):
        raise InvalidIdError(
            f"fan-out id {run_id[:60]!r}: use 1 to {ID_CHARS_MAX} printable characters, not beginning with CAMPAIGN#"
        )


def digest_of(order: Order, source: dict[str, Any]) -> str:
    """Return a digest that is equal for equal work: group, chunk size, handler, parameters and source."""
    parts = [order.group, order.chunk_size, order.handler, order.params, source]
    encoded = msgspec.json.Encoder(order="deterministic").encode(parts)
    return hashlib.sha256(encoded).hexdigest()[:32]


def _policy_digest(order: Order) -> str:
    """Return a digest of the policy that an order requests, before the default retention is filled in."""
    return hashlib.sha256(dump_policy(order.policy).encode()).hexdigest()[:32]


def _check_same(found: Fanout, order: Order, described: dict[str, Any], digest: str) -> Fanout:
    """Return the fan-out if it was requested by an equal order. Raises `AlreadyStartedError`, naming what differs."""
    # An order without a queue may have been given the default one.
    if order.queue_url is not None and found.queue_url != order.queue_url:
        own = "no queue" if found.queue_url is None else f"queue {found.queue_url}"
        raise AlreadyStartedError(f"fan-out {found.run_id}: it exists with {own}; choose another id, or the same queue")
    if found.digest != digest:
        names = ", ".join(_differences(found, order, described)) or "input"
        raise AlreadyStartedError(
            f"fan-out {found.run_id}: it exists with another {names}; choose another id, or request the same"
        )
    # Fan-outs of earlier versions have no digest. The resumption of a split requests the policy of the row, which may
    # have been tuned meanwhile.
    rules = found.rules()
    if found.policy_digest not in (None, _policy_digest(order)) and order.policy != rules:
        pairs = {name: (getattr(rules, name), getattr(order.policy, name)) for name in Policy.__struct_fields__}
        # A request without a retention gets the default.
        if order.policy.retention_days is None:
            del pairs["retention_days"]
        names = ", ".join(f"{name} {has!r} (yours {asked!r})" for name, (has, asked) in pairs.items() if has != asked)
        raise AlreadyStartedError(
            f"fan-out {found.run_id}: it exists with another policy{names and f': {names}'}; choose another id, "
            f"request the same, or change it with 'headgate fanout tune {found.run_id}'"
        )
    return found


def _differences(found: Fanout, order: Order, described: dict[str, Any]) -> list[str]:
    """Return the names of the parts in which an order differs from that of a fan-out."""
    params = msgspec.json.decode(found.params) if found.params else {}
    source = msgspec.json.decode(found.source) if found.source else {}
    pairs = {
        "group": (found.group, order.group),
        "chunk_size": (found.chunk_size, order.chunk_size),
        "handler": (found.handler, order.handler),
        "params": (params, order.params),
        "source": (source, described),
    }
    return [name for name, (own, other) in pairs.items() if own != other]


def _chunk(fanout: Fanout, piece: Piece, now_ms: int) -> Chunk:
    disposition = Disposition.QUEUED if fanout.queue_url is None else Disposition.WAITING
    chunk = Chunk(
        run_id=fanout.run_id,
        sk=sort_key(chunk_id_at(piece.start, fanout.width)),
        status=disposition.status,
        disposition=disposition,
        created_at=timestamp(now_ms),
        start=piece.start,
        items=piece.items,
        token=NO_TOKEN,
        input_key=piece.input_key,
        input=piece.input,
        shard=shard_of(piece.start, fanout.shards),
    )
    # All chunks are queued at the time of creation, so that the queue holds them in item order.
    made = with_disposition(chunk, disposition, chunk.created_at, timestamp_ms(fanout.created_at))
    return made if disposition is Disposition.QUEUED else replace(made, attention_pk=None, attention_sk=None)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces in batches that fit into a transaction."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        weight = len((piece.input or "").encode()) + 2_000
        if batch and (len(batch) >= PIECES_MAX or size + weight > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += weight
    if batch:
        yield batch
