"""DynamoDB streams: reads the changes of a table, and stores consumer checkpoints by compare-and-swap.

A stream is a forest of shards: a closed shard is followed by its children, and a key moves from parent to child.
Reading a parent to its end before its children keeps the changes of a key in order.

A position is a JSON object with the progress of each shard: a sequence number, `TRIM_HORIZON` (not read yet), `DONE`
(closed and read to its end), or `NEW:…` (open when a consumer started at the newest change; earlier records are
skipped). An unnamed shard has not been started. A finished shard stays in the position while the stream lists it, so
that it is not read again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    InvalidItemError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreIOError,
    StreamTrimmedError,
)
from headgate.store.catalogue.tables import STREAM_CHECKPOINTS
from headgate.store.dynamodb.client import NOT_FOUND, Calls, Refusal
from headgate.store.dynamodb.marshalling import from_attributes
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Change, ChangeKind
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient
    from mypy_boto3_dynamodbstreams.type_defs import GetRecordsOutputTypeDef, RecordTypeDef


ATTEMPTS_MAX: Final = 5


class Checkpoints:
    """The rows of `STREAM_CHECKPOINTS`. Each has a version, so that a late writer does not overwrite a newer one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, table: Table, consumer: str) -> Item | None:
        """Return the consumer's row, or None if it has no checkpoint."""
        return self._store.get(STREAM_CHECKPOINTS, Key(consumer, table.name), consistent=True)

    def move(self, table: Table, consumer: str, position: str, row: Item | None) -> Item | None:
        """Move the checkpoint to `position` if it is still `row`. Returns the current row, moved or not."""
        version = 0 if row is None else row["version"]
        moved = {"consumer": consumer, "stream": table.name, "position": position, "version": version + 1}
        try:
            self._store.put(STREAM_CHECKPOINTS, moved, condition=absent() if row is None else version_is(version))
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            return exc.current
        return moved

    def set(self, table: Table, consumer: str, position: str) -> None:
        """Move the checkpoint to `position` unconditionally. Raises `StoreBusyError` under constant contention."""
        row = self.find(table, consumer)
        for _ in range(ATTEMPTS_MAX):
            row = self.move(table, consumer, position, row)
            if row is not None and row["position"] == position:
                return
        raise StoreBusyError(
            f"stream of {table.name}: other processes keep moving the checkpoint of {consumer!r}; try again"
        )


TTL_PRINCIPAL: Final = "dynamodb.amazonaws.com"
HORIZON: Final = "TRIM_HORIZON"
DONE: Final = "DONE"
_NEW: Final = "NEW"
_EXPIRED_ITERATOR: Final = "ExpiredIteratorException"
_TRIMMED: Final = "TrimmedDataAccessException"
# A record's time is rounded down to the second and may differ from the time of the shard listing.
_NEW_MARGIN_SECONDS: Final = 60
_ITERATORS_MAX: Final = 5

Position = dict[str, str]


class Shard(msgspec.Struct, frozen=True):
    """One shard as the stream lists it."""

    id: str
    parent: str | None
    is_open: bool


class Listing(msgspec.Struct, frozen=True):
    """A listing of a stream's shards."""

    arn: str
    shards: dict[str, Shard]

    def is_behind(self, position: Position) -> bool:
        """Whether shards are missing from the listing: one in the position, or the children of a finished one."""
        parents = {shard.parent for shard in self.shards.values()}
        return any(id_ not in self.shards or (state == DONE and id_ not in parents) for id_, state in position.items())


class ShardReader(msgspec.Struct):
    """The progress of this process in one shard, to continue with the next call.

    It is valid only while the consumer's position has the same `state`. Continuing matters: a page can be empty
    although records follow, and a shard opened at its newest record has no sequence number yet. Records before
    `since_seconds` are skipped.
    """

    state: str
    iterator: str | None = None
    since_seconds: float | None = None


class ChangeStreams:
    """Reads streams for consumers. Its state between calls is a cache only."""

    def __init__(
        self,
        client: DynamoDBClient,
        streams: DynamoDBStreamsClient,
        calls: Calls,
        *,
        names: TableNames,
        clock: Clock,
    ) -> None:
        self._client = client
        self._streams = streams
        self._calls = calls
        self._names = names
        self._clock = clock
        self._listings: dict[str, Listing] = {}
        self._readers: dict[tuple[str, str], dict[str, ShardReader]] = {}
        self._turn = 0

    def newest(self, table: Table, consumer: str) -> Position:
        """Return the position after everything written before this call."""
        listing = self._listings[table.name] = self._list(table)
        readers: dict[str, ShardReader] = {}
        position: Position = {}
        for shard in listing.shards.values():
            position[shard.id] = DONE
            if shard.is_open:
                readers[shard.id] = reader = self._newest_reader(table, listing.arn, shard.id)
                position[shard.id] = reader.state
        self._readers[table.name, consumer] = readers
        return position

    def read(self, table: Table, consumer: str, position: Position, limit: int) -> tuple[list[Change], Position]:
        """Return up to `limit` changes after `position`, with blob references, and the position after them.

        Raises `StreamTrimmedError` if changes after `position` were trimmed.
        """
        listing = self._listed(table, position)
        states = _states(position, listing)
        readers = dict(self._readers.get((table.name, consumer), {}))
        changes: list[Change] = []
        visited: set[str] = set()
        self._turn += 1
        while len(changes) < limit:
            shard_id = next((id_ for id_ in _ready(states, listing, self._turn) if id_ not in visited), None)
            if shard_id is None:
                break
            visited.add(shard_id)
            reader = _resumed(readers.get(shard_id), states[shard_id])
            changes += self._read_shard(table, listing.arn, shard_id, reader, limit - len(changes))
            readers[shard_id], states[shard_id] = reader, reader.state
            if reader.state == DONE:
                listing = self._listed(table, {shard_id: DONE})
                states = _states(states, listing)
        self._readers[table.name, consumer] = {id_: readers[id_] for id_ in readers if states.get(id_, DONE) != DONE}
        return changes, states

    def _read_shard(self, table: Table, arn: str, shard_id: str, reader: ShardReader, limit: int) -> list[Change]:
        changes: list[Change] = []
        while len(changes) < limit:
            page = self._page(table, arn, shard_id, reader, limit - len(changes))
            records = page["Records"]
            selected = [record for record in records if _is_selected(record, reader.since_seconds)]
            if selected:
                reader.state, reader.since_seconds = selected[-1]["dynamodb"]["SequenceNumber"], None
            changes += [_change(table, record) for record in selected]
            reader.iterator = page.get("NextShardIterator")
            if reader.iterator is None:
                reader.state = DONE
                break
            if not records:
                break
        return changes

    def _page(self, table: Table, arn: str, shard_id: str, reader: ShardReader, limit: int) -> GetRecordsOutputTypeDef:
        for _ in range(_ITERATORS_MAX):
            is_first = reader.iterator is None
            if reader.iterator is None:
                reader.iterator = self._iterator(table, arn, shard_id, reader)
            request = {"ShardIterator": reader.iterator, "Limit": limit}
            answer = self._calls.ask(
                self._streams.get_records, request, _about(table), refusals=(_EXPIRED_ITERATOR, _TRIMMED, NOT_FOUND)
            )
            if not isinstance(answer, Refusal):
                return answer
            if answer.code != _EXPIRED_ITERATOR and not (is_first and reader.state == HORIZON):
                break
            # An iterator expires after 15 minutes, and the oldest record may be trimmed between two calls.
            reader.iterator = None
        raise self._trimmed(table, shard_id)

    def _iterator(self, table: Table, arn: str, shard_id: str, reader: ShardReader) -> str:
        request: dict[str, Any] = {"StreamArn": arn, "ShardId": shard_id, "ShardIteratorType": HORIZON}
        if reader.state.startswith(_NEW):
            # The iterator at the newest record is lost, so records are filtered by their time.
            reader.since_seconds = float(reader.state.split(":")[1]) - _NEW_MARGIN_SECONDS
        elif reader.state != HORIZON:
            request |= {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": reader.state}
        answer = self._calls.ask(
            self._streams.get_shard_iterator, request, _about(table), refusals=(_TRIMMED, NOT_FOUND)
        )
        if isinstance(answer, Refusal):
            raise self._trimmed(table, shard_id)
        return answer["ShardIterator"]

    def _trimmed(self, table: Table, shard_id: str) -> StreamTrimmedError:
        self._listings.pop(table.name, None)
        return StreamTrimmedError(
            f"stream of {table.name}, shard {shard_id}: changes after the consumer's position were trimmed after "
            "24 hours; rebuild from the table, then delete the consumer's row in headgate-stream-checkpoints"
        )

    def _newest_reader(self, table: Table, arn: str, shard_id: str) -> ShardReader:
        request = {"StreamArn": arn, "ShardId": shard_id, "ShardIteratorType": "LATEST"}
        answer = self._calls.read(self._streams.get_shard_iterator, request, _about(table))
        # DynamoDB's clock, which also dates the records; the local clock may differ.
        date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        seconds = self._clock.seconds() if date is None else parsedate_to_datetime(date).timestamp()
        # The random part distinguishes this iterator from another process's of the same second.
        return ShardReader(f"{_NEW}:{int(seconds)}:{secrets.token_hex(4)}", answer["ShardIterator"])

    def _listed(self, table: Table, position: Position) -> Listing:
        """Return a listing that covers `position`, from the cache if possible."""
        listing = self._listings.get(table.name)
        if listing is None or listing.is_behind(position):
            listing = self._listings[table.name] = self._list(table)
        return listing

    def _list(self, table: Table) -> Listing:
        physical = self._names.physical(table)
        described = self._calls.read(self._client.describe_table, {"TableName": physical}, f"table {physical}")["Table"]
        arn = described.get("LatestStreamArn")
        # A disabled stream keeps its ARN and can be read for a day, but gets no new records.
        if arn is None or not described.get("StreamSpecification", {"StreamEnabled": False})["StreamEnabled"]:
            raise StoreIOError(f"table {physical}: its stream is not enabled; enable it with NEW_AND_OLD_IMAGES")
        shards: dict[str, Shard] = {}
        request = {"StreamArn": arn}
        while True:
            page = self._calls.read(self._streams.describe_stream, request, _about(table))["StreamDescription"]
            for shard in page["Shards"]:
                is_open = "EndingSequenceNumber" not in shard.get("SequenceNumberRange", {})
                shards[shard["ShardId"]] = Shard(shard["ShardId"], shard.get("ParentShardId"), is_open)
            last = page.get("LastEvaluatedShardId")
            if last is None:
                return Listing(arn, shards)
            request = {"StreamArn": arn, "ExclusiveStartShardId": last}


def dump_position(position: Position) -> str:
    """Return a position as text."""
    return msgspec.json.encode(position, order="deterministic").decode()


def load_position(table: Table, text: str) -> Position:
    """Parse a position. Raises `InvalidItemError` for a text that `changes` did not return."""
    try:
        return typed_decode.from_json(text, Position)
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError) as exc:
        raise InvalidItemError(f"stream of {table.name}: {text!r} is not a position returned by `changes`") from exc


def _states(position: Mapping[str, str], listing: Listing) -> Position:
    """Return the progress of each shard, with new shards added and finished unlisted ones removed."""
    known = {id_: state for id_, state in position.items() if id_ in listing.shards or state != DONE}
    return {**dict.fromkeys(listing.shards, HORIZON), **known}


def _ready(states: Position, listing: Listing, turn: int) -> Iterable[str]:
    """Yield the readable shards, starting with another one each turn so that a busy shard starves none."""
    ids = sorted(states)
    start = turn % len(ids) if ids else 0
    for id_ in ids[start:] + ids[:start]:
        shard = listing.shards.get(id_)
        parent = None if shard is None else shard.parent
        if states[id_] != DONE and (parent is None or states.get(parent, DONE) == DONE):
            yield id_


def _resumed(reader: ShardReader | None, state: str) -> ShardReader:
    # A copy, because another thread may read for the same consumer.
    return msgspec.structs.replace(reader) if reader is not None and reader.state == state else ShardReader(state)


def _is_selected(record: RecordTypeDef, since_seconds: float | None) -> bool:
    return since_seconds is None or _at_seconds(record) >= since_seconds


def _change(table: Table, record: RecordTypeDef) -> Change:
    body = record["dynamodb"]
    old, new = _image(body.get("OldImage")), _image(body.get("NewImage"))
    # Derived from the images: emulators use other names for removals by TTL.
    kind = ChangeKind.INSERT if old is None else ChangeKind.REMOVE if new is None else ChangeKind.MODIFY
    key = table.key_of(from_attributes(body["Keys"]))
    expired = record.get("userIdentity", {}).get("PrincipalId") == TTL_PRINCIPAL
    return Change(record["eventID"], table, kind, key, old, new, _at_seconds(record), expired)


def _image(attributes: Mapping[str, Mapping[str, Any]] | None) -> Item | None:
    return None if attributes is None else from_attributes(attributes)


def _at_seconds(record: RecordTypeDef) -> float:
    return record["dynamodb"]["ApproximateCreationDateTime"].timestamp()


def _about(table: Table) -> str:
    return f"stream of {table.name}"
