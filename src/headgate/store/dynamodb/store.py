"""DynamoDB store: the backend for many machines."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.exceptions import BotoCoreError

from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    HeadgateError,
    OutcomeUnknownError,
    StoreClosedError,
    StoreIOError,
)
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import ALL_TABLES, HEALTH_CHECK
from headgate.store.dynamodb.client import CONDITION_FAILED, Calls, Refusal, client_config, require_whole_answers
from headgate.store.dynamodb.commits import CommitGenerations
from headgate.store.dynamodb.marshalling import from_attributes
from headgate.store.dynamodb.notices import CommitNotices
from headgate.store.dynamodb.reads import ItemReads, live
from headgate.store.dynamodb.streams import ChangeStreams, Checkpoints, dump_position, load_position
from headgate.store.dynamodb.tables import RestoredTables, Tables
from headgate.store.dynamodb.writes import BatchWrites, PreparedWrite, WriteRequests, applied_item, is_repeatable
from headgate.store.model.conditions import Condition
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import ChangeBatch, Check, Delete, Page, Put, Query, StreamStart, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import (
    check_batch,
    check_count,
    check_key,
    check_query,
    check_stream,
    check_transaction,
    check_transaction_bytes,
)
from headgate.store.model.values import Item
from headgate.store.stats import AttemptObserver, StoreStats
from headgate.store.table_names import TableNames
from headgate.store.topics import ANYTHING, Topics, are_quiet, topics_of
from headgate.store.transactions import allows_add, check_replay, conflict_error, token_row

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

__all__ = ["DynamoStore"]

THREADS_MAX: Final = 16
HEALTH_SECONDS: Final = 2.0

R = TypeVar("R")

_MEMBERS: Final = {Put: "Put", Update: "Update", Delete: "Delete", Check: "ConditionCheck"}


class DynamoStore:
    """Implements `headgate.store.port.Store`. Index queries and reads without `consistent` may lag.

    Commits of other processes are not pushed: while this process works, `wait` assumes one every second; while it is
    idle, it reads the notices of the others, if the store has them. `changes` checkpoints a consumer that starts at the
    newest change, and empty batches, because neither leaves anything to process. An unconditional delete that was
    retried returns None, because its first attempt may have removed the item.
    """

    def __init__(
        self,
        *,
        client: DynamoDBClient,
        streams: DynamoDBStreamsClient,
        names: TableNames,
        clock: Clock,
        cursors: Cursors,
        spill: Spill,
        deadline_seconds: float = 10.0,
        observer: AttemptObserver | None = None,
        has_notices: bool = False,
    ) -> None:
        require_whole_answers(client)
        require_whole_answers(streams)
        self.stats = StoreStats(spill.faults)
        self._client = client
        self._streams_client = streams
        self._names = names
        self._clock = clock
        self._cursors = cursors
        self._spill = spill
        self._calls = Calls(clock, self.stats, deadline_seconds, observer)
        self._reads = ItemReads(client, self._calls, names=names, clock=clock)
        self._requests = WriteRequests(names, spill)
        self._batches = BatchWrites(client, self._calls)
        self._streams = ChangeStreams(client, streams, self._calls, names=names, clock=clock)
        self._tables = Tables(client, self._calls, names=names, clock=clock)
        self._checkpoints = Checkpoints(self)
        notices = CommitNotices(client, names=names, clock=clock) if has_notices else None
        self._notices = notices
        self._generations = CommitGenerations(notices=notices)
        # Two pools, so that blocked writes do not block reads.
        self._query_pool = ThreadPoolExecutor(THREADS_MAX, "dynamodb-query")
        self._submit_pool = ThreadPoolExecutor(THREADS_MAX, "dynamodb-submit")
        self._closed = False
        self._process_id = os.getpid()

    @classmethod
    def connect(
        cls,
        *,
        region: str,
        endpoint_url: str | None,
        names: TableNames,
        clock: Clock,
        cursors: Cursors,
        spill: Spill,
        deadline_seconds: float = 10.0,
        observer: AttemptObserver | None = None,
    ) -> DynamoStore:
        """Build the clients with AWS's default credential chain. Sends nothing yet."""
        config = client_config(deadline_seconds)
        try:
            session = boto3.session.Session(region_name=region)
            client = session.client("dynamodb", endpoint_url=endpoint_url, config=config)
            streams = session.client("dynamodbstreams", endpoint_url=endpoint_url, config=config)
        except (BotoCoreError, ValueError) as exc:
            raise StoreIOError(
                f"DynamoDB in {region}: no client can be built: {exc}; check region and endpoint"
            ) from exc
        return cls(
            client=client,
            streams=streams,
            names=names,
            clock=clock,
            cursors=cursors,
            spill=spill,
            deadline_seconds=deadline_seconds,
            observer=observer,
            has_notices=True,
        )

    def create_tables(self, catalogue: Sequence[Table] = ALL_TABLES) -> list[str]:
        """Create the missing tables, wait until they are active, and return their physical names."""
        self._refuse_if_closed()
        return self._tables.create_missing(catalogue)

    def check_tables(self, catalogue: Sequence[Table] = ALL_TABLES) -> list[str]:
        """Return one sentence for each difference between the tables and the catalogue."""
        self._refuse_if_closed()
        return self._tables.differences(catalogue)

    def restored(self) -> RestoredTables:
        """Return this store's tables as restored tables, to complete and scan them."""
        return RestoredTables(self._client, self._calls, names=self._names, clock=self._clock)

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        self._refuse_if_closed()
        check_key(table, key)
        self.stats.reads += 1
        item = self._reads.get(table, key, consistent=consistent)
        return item and self._spill.restore(item)

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored: also if expired, and with blob references instead of spilled attributes."""
        self._refuse_if_closed()
        check_key(table, key)
        self.stats.reads += 1
        attributes = self._reads.attributes(table, key, consistent=True)
        return None if attributes is None else from_attributes(attributes)

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        self._refuse_if_closed()
        for key in keys:
            check_key(table, key)
        # DynamoDB refuses duplicate keys.
        distinct = list(dict.fromkeys(keys))
        self.stats.reads += len(distinct)
        items = self._reads.get_many(table, distinct, consistent=consistent)
        restored = {table.key_of(item): self._spill.restore(item) for item in items}
        return [restored.get(key) for key in keys]

    def query(self, query: Query) -> Page:
        self._refuse_if_closed()
        check_query(query)
        position = self._cursors.position(query)
        self.stats.queries += 1
        # One extra item shows whether there is another page.
        items = self._reads.query(query, position, query.limit + 1)
        page = [self._spill.restore(item) for item in items[: query.limit]]
        return Page(page, self._cursors.after(query, page[-1]) if len(items) > query.limit else None)

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        self._refuse_if_closed()
        check_count(query, by, most)
        self.stats.queries += 1
        return self._reads.count(query, by, most)

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        self._refuse_if_closed()
        if len(queries) <= 1:
            return [self.query(query) for query in queries]
        return list(self._in_pool(lambda: self._query_pool.map(self.query, queries)))

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        prepared, now = self._prepared(Put(table, item, condition))
        self._write_single(self._client.put_item, prepared, now)

    def update(
        self,
        table: Table,
        key: Key,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, int | float] | None = None,
        remove: Sequence[str] = (),
        condition: Condition | None = None,
    ) -> Item:
        prepared, now = self._prepared(Update(table, key, set or {}, add or {}, tuple(remove), condition))
        request = {**prepared.request, "ReturnValues": "ALL_NEW"}
        repeatable = is_repeatable(prepared.write)
        answer = self._calls.write(self._client.update_item, request, self._about(prepared), repeatable=repeatable)
        if not isinstance(answer, Refusal):
            item = from_attributes(answer["Attributes"])
        elif (applied := applied_item(prepared, answer)) is not None:
            item = applied
        else:
            raise self._conflict([prepared], answer, now)
        self._committed([prepared.write])
        return self._spill.restore(item)

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        prepared, now = self._prepared(Delete(table, key, condition))
        request = {**prepared.request, "ReturnValues": "ALL_OLD"}
        answer = self._calls.write(self._client.delete_item, request, self._about(prepared))
        if isinstance(answer, Refusal):
            raise self._conflict([prepared], answer, now)
        self._committed([prepared.write])
        return self._seen(table, answer.get("Attributes"), now)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        prepared, now = self._prepared_transaction(writes, token)
        if token is None:
            self._transact(prepared, now)
            return
        # The caller's token is not sent as DynamoDB's own, which compares whole requests, and a later repetition has
        # another timestamp. It is a row of the transaction instead, as on every backend.
        row = token_row(token, writes, now)
        try:
            self._transact([*prepared, self._requests.prepare(row, now)], now)
        except ConflictError as exc:
            check_replay(exc, row, len(writes))

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        prepared = [self._prepared_transaction(writes, None) for writes in transactions]
        outcomes: list[HeadgateError | None] = []
        for pieces, now in prepared:
            try:
                self._transact(pieces, now)
            except ConflictError as exc:
                outcomes.append(exc)
            else:
                outcomes.append(None)
        return outcomes

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        prepared, now = self._prepared_transaction(writes, None)

        def commit() -> None:
            error: BaseException | None = None
            try:
                self._transact(prepared, now)
            except BaseException as exc:  # noqa: BLE001 - passed to `done`
                error = exc
            done(error)

        self._in_pool(lambda: self._submit_pool.submit(commit))

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        self._refuse_if_closed()
        check_batch(writes)
        now = self._clock.seconds()
        prepared = [self._requests.prepare(write, now) for write in writes]
        self.stats.batches += 1
        self.stats.writes += len(writes)
        self._batches.write(prepared)
        self._committed(writes)

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        self._refuse_if_closed()
        check_stream(table, limit)
        row = self._checkpoints.find(table, consumer)
        if row is None and start is StreamStart.NEWEST:
            # Checkpointed before the first read, so that changes that are never checkpointed are returned again.
            newest = dump_position(self._streams.newest(table, consumer))
            row = self._checkpoints.move(table, consumer, newest, None)
        before = {} if row is None else load_position(table, row["position"])
        changes, after = self._streams.read(table, consumer, before, limit)
        if not changes and after != before:
            # There is nothing to process in between. A consumer may not checkpoint an empty batch, and on a quiet table
            # its position would eventually name only trimmed shards.
            self._checkpoints.move(table, consumer, dump_position(after), row)
        return ChangeBatch([self._spill.restore_change(change) for change in changes], dump_position(after))

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        self._refuse_if_closed()
        check_stream(table)
        load_position(table, position)
        self._checkpoints.set(table, consumer, position)

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        self._refuse_if_closed()
        return self._generations.generation(topics, others=others)

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        self._refuse_if_closed()
        return self._generations.wait(generation, timeout_seconds, topics, others=others)

    def wake(self) -> None:
        self._generations.wake()

    def sweep(self, *, limit: int = 1000) -> int:
        """Return 0: DynamoDB expires items by itself."""
        del limit
        self._refuse_if_closed()
        return 0

    def check_health(self) -> None:
        self._refuse_if_closed()
        self._reads.get(HEALTH_CHECK, Key("health"), consistent=True, backoff=self._calls.backoff(HEALTH_SECONDS))

    def close(self) -> None:
        self._closed = True
        self._generations.wake()
        self._submit_pool.shutdown()
        self._query_pool.shutdown()
        self._client.close()
        self._streams_client.close()

    def _prepared(self, write: Put | Update | Delete) -> tuple[PreparedWrite, float]:
        self._refuse_if_closed()
        now = self._clock.seconds()
        prepared = self._requests.prepare(write, now)
        self.stats.writes += 1
        return prepared, now

    def _prepared_transaction(self, writes: Sequence[Write], token: str | None) -> tuple[list[PreparedWrite], float]:
        self._refuse_if_closed()
        check_transaction(writes, token)
        now = self._clock.seconds()
        counts = allows_add(writes, token)
        prepared = [self._requests.prepare(write, now, cannot_repeat=counts) for write in writes]
        check_transaction_bytes(write.size_bytes for write in prepared)
        self.stats.transactions += 1
        self.stats.writes += len(writes)
        return prepared, now

    def _write_single(self, call: Callable[..., Any], prepared: PreparedWrite, now: float) -> None:
        answer = self._calls.write(call, prepared.request, self._about(prepared))
        if isinstance(answer, Refusal) and applied_item(prepared, answer) is None:
            raise self._conflict([prepared], answer, now)
        self._committed([prepared.write])

    def _transact(self, prepared: Sequence[PreparedWrite], now: float) -> None:
        if len(prepared) == 1 and (call := self._single_call(prepared[0].write)) is not None:
            self._write_single(call, prepared[0], now)
            return
        request = {
            "TransactItems": [{_MEMBERS[type(member.write)]: member.request} for member in prepared],
            # DynamoDB's own token makes the retries of this call idempotent.
            "ClientRequestToken": secrets.token_hex(16),
        }
        answer = self._calls.write(self._client.transact_write_items, request, self._about(*prepared))
        if isinstance(answer, Refusal):
            raise self._conflict(prepared, answer, now)
        self._committed([member.write for member in prepared])

    def _committed(self, writes: Sequence[Write]) -> None:
        self.stats.commits += 1
        topics = 0 if are_quiet(writes) else topics_of(writes)
        is_notice_due = self._generations.on_committed(topics, (write.table for write in writes))
        if is_notice_due and self._notices is not None and not self._closed:
            # After `close` there is no pool. The write is committed, and must not seem to have failed.
            with suppress(RuntimeError):
                self._submit_pool.submit(self._notices.send)

    def _single_call(self, write: Write) -> Callable[..., Any] | None:
        """Return the call that writes one item, at half the price of a transaction; None if only that is safe.

        If its response is lost, the item shows whether a put or update was applied; not so after a conditional delete.
        """
        match write:
            case Put():
                return self._client.put_item
            case Update() if is_repeatable(write):
                return self._client.update_item
            case Delete(condition=None):
                return self._client.delete_item
        return None

    def _in_pool(self, enter: Callable[[], R]) -> R:
        try:
            return enter()
        except RuntimeError as exc:
            # The pool was shut down by a concurrent `close`.
            raise StoreClosedError("the store was closed; open it again") from exc

    def _conflict(self, prepared: Sequence[PreparedWrite], refusal: Refusal, now: float) -> ConflictError:
        self.stats.conflicts += 1
        failures = {
            place: self._seen(prepared[place].table, attributes, now) for place, attributes in refusal.items.items()
        }
        place = min(failures)
        first, current = prepared[place], failures[place]
        # A transaction has DynamoDB's token: a retry of an applied one is not refused.
        if refusal.after_doubt and refusal.code == CONDITION_FAILED:
            return OutcomeUnknownError(
                f"table {first.table.name}, item {tuple(first.key)}: the connection broke during the write, "
                "and the item differs from the result of the write; read the current item and decide again",
                current=current,
            )
        return conflict_error(first.table, first.key, first.condition, failures)

    def _seen(self, table: Table, attributes: Mapping[str, Any] | None, now: float) -> Item | None:
        item = live(table, attributes, now)
        return item and self._spill.restore(item)

    def _about(self, *prepared: PreparedWrite) -> str:
        physical = sorted({self._names.physical(member.table) for member in prepared})
        return f"table {physical[0]}" if len(physical) == 1 else f"tables {', '.join(physical)}"

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise StoreClosedError("the store was closed; open it again")
        if os.getpid() != self._process_id:
            raise StoreClosedError("the store was opened before a fork; open it in the new process")
