"""Reading changes from DynamoDB Streams: shards that close and split, trimmed records, restarts.

MiniStack's streams have one shard that never closes, so a small server of our own answers here where shards
matter. Checkpoints are kept in MiniStack as ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from mypy_boto3_dynamodb import DynamoDBClient
from mypy_boto3_dynamodbstreams import DynamoDBStreamsClient

from headgate.clock import SystemClock
from headgate.errors import InvalidItemError, StoreIOError, StreamTrimmedError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import CONTROL, SIGNAL_STATE, STREAM_CHECKPOINTS
from headgate.store.dynamodb.client import client_config
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Change, ChangeKind, StreamStart
from headgate.store.model.schema import Key
from headgate.store.table_names import TableNames
from tests.aws_faults import refused
from tests.ministack import fresh_account

NOW = 1_800_000_000
NEWEST = StreamStart.NEWEST


class ShardedStream:
    """A stream with as many shards as a test wants, answering the four operations as AWS documents them."""

    def __init__(self) -> None:
        self.shards: dict[str, dict[str, Any]] = {}
        self.now = NOW
        self.calls: list[str] = []
        self._sequence = 1000

    def open(self, shard: str, parent: str | None = None) -> None:
        self.shards[shard] = {"parent": parent, "closed": False, "records": [], "trimmed": 0, "empty_pages": 0}

    def close(self, shard: str, *children: str) -> None:
        self.shards[shard]["closed"] = True
        for child in children:
            self.open(child, shard)

    def write(self, shard: str, *names: str, **fields: object) -> None:
        for name in names:
            self._sequence += 1
            body = {
                "ApproximateCreationDateTime": self.now,
                "Keys": {"PK": {"S": "p"}, "SK": {"S": name}},
                "NewImage": {"PK": {"S": "p"}, "SK": {"S": name}},
                "SequenceNumber": str(self._sequence),
            }
            record = {"eventID": f"event-{self._sequence}", "eventName": "INSERT", "dynamodb": body, **fields}
            self.shards[shard]["records"].append(record)

    def answer(self, request: AWSPreparedRequest, event_name: str, **_: object) -> AWSResponse | None:
        operation = event_name.rpartition(".")[2]
        self.calls.append(operation)
        assert isinstance(request.body, bytes | str)
        answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | str]] = {
            "DescribeStream": self._describe,
            "GetShardIterator": self._iterator,
            "GetRecords": self._records,
        }
        answer = answers[operation](json.loads(request.body))
        if isinstance(answer, str):
            return refused(answer)(request)
        headers = {"content-type": "application/x-amz-json-1.0", "date": formatdate(self.now, usegmt=True)}
        return AWSResponse(request.url, 200, headers, _Body(json.dumps(answer).encode()))  # type: ignore[arg-type]

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        ids = list(self.shards)
        after = request.get("ExclusiveStartShardId")
        rest = ids[ids.index(after) + 1 :] if after else ids
        description: dict[str, Any] = {
            "StreamArn": request["StreamArn"],
            "Shards": [self._shard(id_) for id_ in rest[:2]],
        }
        if len(rest) > 2:
            description["LastEvaluatedShardId"] = rest[1]
        return {"StreamDescription": description}

    def _shard(self, id_: str) -> dict[str, Any]:
        shard = self.shards[id_]
        numbers = {"StartingSequenceNumber": "1", **({"EndingSequenceNumber": "2"} if shard["closed"] else {})}
        parent = {"ParentShardId": shard["parent"]} if shard["parent"] else {}
        return {"ShardId": id_, "SequenceNumberRange": numbers, **parent}

    def _iterator(self, request: dict[str, Any]) -> dict[str, Any] | str:
        shard = self.shards.get(request["ShardId"])
        if shard is None:
            return "ResourceNotFoundException"
        place = {"TRIM_HORIZON": shard["trimmed"], "LATEST": len(shard["records"])}.get(request["ShardIteratorType"])
        if place is None:
            numbers = [record["dynamodb"]["SequenceNumber"] for record in shard["records"]]
            place = numbers.index(request["SequenceNumber"]) + 1
            if place <= shard["trimmed"]:
                return "TrimmedDataAccessException"
        return {"ShardIterator": f"{request['ShardId']}|{place}"}

    def _records(self, request: dict[str, Any]) -> dict[str, Any] | str:
        id_, _, text = request["ShardIterator"].partition("|")
        shard, place = self.shards.get(id_), int(text)
        if shard is None:
            return "ResourceNotFoundException"
        if place < shard["trimmed"]:
            return "TrimmedDataAccessException"
        if shard["empty_pages"]:
            shard["empty_pages"] -= 1
            # The page is empty and the next one is not: the iterator, and it alone, has moved on.
            return {"Records": [], "NextShardIterator": f"{id_}|{place}"}
        page = shard["records"][place : place + request["Limit"]]
        end = place + len(page)
        more = {} if shard["closed"] and end == len(shard["records"]) else {"NextShardIterator": f"{id_}|{end}"}
        return {"Records": page, **more}


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield self._content


class Rig:
    """Stores on one fresh account. Each has a memory of its own, as a process that was started anew."""

    def __init__(self, session: boto3.Session, endpoint: str, folder: Path) -> None:
        self.stream = ShardedStream()
        self._session = session
        self._folder = folder
        self._open: list[DynamoStore] = []
        self._options: dict[str, Any] = {
            "endpoint_url": endpoint,
            "aws_access_key_id": fresh_account(),
            "aws_secret_access_key": "-",
            "config": client_config(10.0),
        }
        self.real = self.open(sharded=False)
        self.real.create_tables((SIGNAL_STATE, STREAM_CHECKPOINTS))
        self.store = self.open()

    def open(self, *, sharded: bool = True) -> DynamoStore:
        clock = SystemClock()
        client: DynamoDBClient = self._session.client("dynamodb", **self._options)
        streams: DynamoDBStreamsClient = self._session.client("dynamodbstreams", **self._options)
        if sharded:
            answer: Any = self.stream.answer
            streams.meta.events.register("before-send.dynamodb-streams", answer)
        store = DynamoStore(
            client=client,
            streams=streams,
            names=TableNames(),
            clock=clock,
            cursors=Cursors(Keyring.generate(clock)),
            spill=Spill(FolderBlobs(self._folder), clock),
        )
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()


@pytest.fixture
def rig(ministack: str, aws_session: boto3.Session, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(aws_session, ministack, tmp_path)
    yield rig
    rig.close()


def names(changes: list[Change]) -> list[object]:
    return [change.key.sort for change in changes]


def take(store: DynamoStore, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST) -> list[object]:
    """Read a batch and checkpoint it, as a consumer does that has dealt with it."""
    batch = store.changes(SIGNAL_STATE, "reader", limit=limit, start=start)
    if batch.changes:
        store.checkpoint(SIGNAL_STATE, "reader", batch.position)
    return names(batch.changes)


def position_of(store: DynamoStore) -> dict[str, str]:
    row = store.get(STREAM_CHECKPOINTS, Key("reader", SIGNAL_STATE.name), consistent=True)
    assert row is not None
    position: dict[str, str] = json.loads(row["position"])
    return position


# Shards.


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("restart", [False, True])
def test_changes__family_of_shards__parents_come_before_children(rig: Rig, limit: int, restart: bool) -> None:
    # Listed youngest first, and named so that neither order nor name gives the family away.
    rig.stream.open("c-grandchild", "a-child")
    rig.stream.open("a-child", "b-root")
    rig.stream.open("b-root")
    rig.stream.write("b-root", "1", "2", "3")
    rig.stream.write("a-child", "4", "5")
    rig.stream.write("c-grandchild", "6")
    rig.stream.close("b-root")
    rig.stream.close("a-child")

    found: list[object] = []
    for _ in range(12):
        found += take(rig.open() if restart else rig.store, limit=limit)

    assert found == ["1", "2", "3", "4", "5", "6"]


def test_changes__shard_splits_while_it_is_read__children_follow(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.open("other")
    rig.stream.write("root", "1")
    assert take(rig.store) == ["1"]

    rig.stream.write("root", "2")
    rig.stream.close("root", "left", "right")
    rig.stream.write("left", "3")
    rig.stream.write("right", "4")

    found = take(rig.store) + take(rig.store)
    assert found[0] == "2"
    assert sorted(map(str, found)) == ["2", "3", "4"]


def test_changes__finished_shard__is_kept_in_the_position_until_the_stream_forgets_it(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1")
    rig.stream.close("root", "child")
    assert take(rig.store) == ["1"]
    assert position_of(rig.store) == {"root": "DONE", "child": "TRIM_HORIZON"}

    rig.stream.write("child", "2")
    assert take(rig.open()) == ["2"]
    assert position_of(rig.store)["root"] == "DONE"

    del rig.stream.shards["root"]
    rig.stream.write("child", "3")
    assert take(rig.open()) == ["3"]
    assert list(position_of(rig.store)) == ["child"]


def test_changes__many_shards__are_all_listed(rig: Rig) -> None:
    for number in range(7):
        rig.stream.open(f"shard-{number}")
        rig.stream.write(f"shard-{number}", str(number))

    assert sorted(map(str, take(rig.store))) == [str(number) for number in range(7)]


def test_changes__one_busy_shard__does_not_starve_the_others(rig: Rig) -> None:
    rig.stream.open("a-busy")
    rig.stream.open("b-quiet")
    rig.stream.write("a-busy", *(f"{number}" for number in range(50)))
    rig.stream.write("b-quiet", "quiet")

    assert "quiet" in take(rig.store, limit=5) + take(rig.store, limit=5)


def test_changes__nothing_checkpointed__come_again_under_the_same_ids(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", "2")

    first = rig.store.changes(SIGNAL_STATE, "reader")
    again = rig.store.changes(SIGNAL_STATE, "reader")
    elsewhere = rig.open().changes(SIGNAL_STATE, "reader")

    assert names(first.changes) == ["1", "2"]
    assert [change.id for change in first.changes] == ["event-1001", "event-1002"]
    assert first == again == elsewhere


def test_changes__two_consumers__have_checkpoints_of_their_own(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1")
    assert take(rig.store) == ["1"]

    assert names(rig.store.changes(SIGNAL_STATE, "other").changes) == ["1"]


def test_changes__empty_pages_before_records__goes_on_from_where_it_was(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1")
    rig.stream.shards["root"]["empty_pages"] = 3

    assert [take(rig.store) for _ in range(5)] == [[], [], [], ["1"], []]
    assert rig.stream.calls.count("GetShardIterator") == 1


def test_changes__iterator_expired__takes_a_new_one(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1")
    assert take(rig.store) == ["1"]
    records, calls = rig.stream._records, []

    def expire_once(request: dict[str, Any]) -> dict[str, Any] | str:
        calls.append(request)
        return "ExpiredIteratorException" if len(calls) == 1 else records(request)

    rig.stream._records = expire_once  # type: ignore[method-assign]
    rig.stream.write("root", "2")

    assert take(rig.store) == ["2"]


def test_changes__removed_by_ttl__is_marked_expired(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", userIdentity={"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"})
    rig.stream.write("root", "2", userIdentity={"PrincipalId": "AROAEXAMPLE", "Type": "User"})
    body = rig.stream.shards["root"]["records"][0]["dynamodb"]
    body["OldImage"] = body.pop("NewImage")

    first, second = rig.store.changes(SIGNAL_STATE, "reader").changes

    assert (first.kind, first.expired, first.new) == (ChangeKind.REMOVE, True, None)
    assert first.at_seconds == NOW
    assert second.expired is False


# Away for too long.


def test_changes__checkpoint_older_than_the_oldest_record__says_that_changes_are_lost(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", "2", "3")
    take(rig.store, limit=1)
    rig.stream.shards["root"]["trimmed"] = 2

    for store in (rig.store, rig.open()):
        with pytest.raises(StreamTrimmedError, match=r"root.*rebuild from the table"):
            take(store)


def test_changes__shard_gone_before_it_was_read_to_its_end__says_that_changes_are_lost(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1")
    take(rig.store)
    rig.stream.close("root", "child")
    del rig.stream.shards["root"]

    with pytest.raises(StreamTrimmedError, match="root"):
        take(rig.open())


def test_changes__oldest_record_trimmed_under_the_first_read__reads_on_from_the_next(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", "2")
    iterator = rig.stream._iterator

    def trimmed_after(request: dict[str, Any]) -> dict[str, Any] | str:
        answer = iterator(request)
        rig.stream.shards["root"]["trimmed"] = 1
        return answer

    rig.stream._iterator = trimmed_after  # type: ignore[method-assign]

    assert take(rig.store) == ["2"]


def test_changes__quiet_for_days_and_empty_batches_never_checkpointed__loses_nothing(rig: Rig) -> None:
    rig.stream.open("day-0")
    rig.stream.write("day-0", "1")
    assert take(rig.store) == ["1"]
    for day in range(1, 4):
        rig.stream.close(f"day-{day - 1}", f"day-{day}")
        assert take(rig.store) == []
        del rig.stream.shards[f"day-{day - 1}"]

    rig.stream.write("day-3", "2")
    assert take(rig.open()) == ["2"]


# Beginning with the newest.


def test_changes__newest__skips_what_was_before_and_nothing_after(rig: Rig) -> None:
    rig.stream.open("closed")
    rig.stream.write("closed", "old")
    rig.stream.close("closed", "open")
    rig.stream.write("open", "older")

    assert take(rig.store, start=NEWEST) == []
    rig.stream.write("open", "1")
    rig.stream.close("open", "child")
    rig.stream.write("child", "2")

    assert take(rig.store, start=NEWEST) == ["1", "2"]
    assert take(rig.store, start=NEWEST) == []


def test_changes__newest_and_restarted_before_the_first_change__misses_nothing(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.now = NOW - 600
    rig.stream.write("root", *(f"old {number}" for number in range(1500)))
    rig.stream.now = NOW
    assert take(rig.store, start=NEWEST) == []
    rig.stream.write("root", "1")

    assert take(rig.open(), start=NEWEST) == ["1"]


def test_changes__newest_and_never_checkpointed__come_again_after_a_restart(rig: Rig) -> None:
    rig.stream.open("root")
    assert take(rig.store, start=NEWEST) == []
    rig.stream.write("root", "1")

    assert names(rig.store.changes(SIGNAL_STATE, "reader", start=NEWEST).changes) == ["1"]
    assert names(rig.store.changes(SIGNAL_STATE, "reader", start=NEWEST).changes) == ["1"]
    assert names(rig.open().changes(SIGNAL_STATE, "reader", start=NEWEST).changes) == ["1"]


def test_changes__newest_for_a_consumer_with_a_checkpoint__goes_on_from_there(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", "2")
    take(rig.store, limit=1)

    assert take(rig.store, start=NEWEST) == ["2"]


# The emulator's own stream.


def test_changes__writes_of_all_kinds__carry_both_images(rig: Rig) -> None:
    item = {"PK": "p", "SK": "s", "n": 1.5, "set": frozenset({1, 2}), "text": "x" * 500_000}
    rig.real.put(SIGNAL_STATE, item)
    rig.real.update(SIGNAL_STATE, Key("p", "s"), set={"n": 2}, remove=["set", "text"])
    rig.real.put(SIGNAL_STATE, {"PK": "p", "SK": "s", "n": 2})
    rig.real.delete(SIGNAL_STATE, Key("p", "s"))

    batch = rig.real.changes(SIGNAL_STATE, "reader")

    after = {"PK": "p", "SK": "s", "n": 2}
    assert [(change.kind, change.key, change.old, change.new) for change in batch.changes] == [
        (ChangeKind.INSERT, Key("p", "s"), None, item),
        (ChangeKind.MODIFY, Key("p", "s"), item, after),
        (ChangeKind.REMOVE, Key("p", "s"), after, None),
    ]
    assert not any(change.expired for change in batch.changes)


def test_changes__newest_on_the_emulator__sees_what_is_written_next(rig: Rig) -> None:
    rig.real.put(SIGNAL_STATE, {"PK": "p", "SK": "old"})
    assert take(rig.real, start=NEWEST) == []
    rig.real.put(SIGNAL_STATE, {"PK": "p", "SK": "new"})

    assert take(rig.real, start=NEWEST) == ["new"]


def test_changes__checkpoint_that_the_emulator_has_trimmed__says_so(rig: Rig) -> None:
    rig.real.put(SIGNAL_STATE, {"PK": "p", "SK": "s"})
    (shard,) = json.loads(rig.real.changes(SIGNAL_STATE, "reader").position)
    rig.real.checkpoint(SIGNAL_STATE, "reader", json.dumps({shard: "1"}))

    with pytest.raises(StreamTrimmedError):
        rig.real.changes(SIGNAL_STATE, "reader")


def test_checkpoint__moved_by_another_process_meanwhile__the_last_one_counts(rig: Rig) -> None:
    rig.stream.open("root")
    rig.stream.write("root", "1", "2", "3")
    first = rig.store.changes(SIGNAL_STATE, "reader", limit=1)
    other = rig.open()
    second = other.changes(SIGNAL_STATE, "reader", limit=2)

    other.checkpoint(SIGNAL_STATE, "reader", second.position)
    rig.store.checkpoint(SIGNAL_STATE, "reader", first.position)

    assert take(other) == ["2", "3"]


@pytest.mark.parametrize("position", ["", "7", "[]", '{"shard": 1}', '{"shard"', "\ud800"])
def test_checkpoint__not_a_position__is_refused(rig: Rig, position: str) -> None:
    with pytest.raises(InvalidItemError, match="position"):
        rig.store.checkpoint(SIGNAL_STATE, "reader", position)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_changes__limit_out_of_bounds__is_refused(rig: Rig, limit: int) -> None:
    with pytest.raises(InvalidItemError, match="limit"):
        rig.store.changes(SIGNAL_STATE, "reader", limit=limit)


def test_changes__table_without_a_stream__is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidItemError, match="no change stream"):
        rig.store.changes(CONTROL, "reader")
    with pytest.raises(InvalidItemError, match="no change stream"):
        rig.store.checkpoint(CONTROL, "reader", "{}")


def test_changes__stream_not_enabled_in_dynamodb__names_the_remedy(rig: Rig) -> None:
    client: Any = rig._session.client("dynamodb", **rig._options)
    client.update_table(TableName=SIGNAL_STATE.name, StreamSpecification={"StreamEnabled": False})
    client.close()

    with pytest.raises(StoreIOError, match="enable it with NEW_AND_OLD_IMAGES"):
        rig.open().changes(SIGNAL_STATE, "reader")
