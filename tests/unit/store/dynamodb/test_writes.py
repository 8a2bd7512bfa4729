from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue import tables
from headgate.store.dynamodb.client import CONDITION_FAILED, Refusal
from headgate.store.dynamodb.marshalling import to_attributes
from headgate.store.dynamodb.writes import PreparedWrite, WriteRequests, applied_item, is_repeatable
from headgate.store.model import conditions as c
from headgate.store.model.requests import Delete, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.table_names import TableNames

KEY = Key("e", "m")
INBOXES = msgspec.structs.replace(tables.INBOXES, ttl_attribute=None)
ROW = {"execution_id": "e", "message_id": "m"}


@pytest.fixture
def requests(tmp_path: Path) -> WriteRequests:
    return WriteRequests(TableNames("test-"), Spill(FolderBlobs(tmp_path), VirtualClock()))


def lost(item: Item | None) -> Refusal:
    return Refusal(CONDITION_FAILED, {0: None if item is None else to_attributes(item)}, after_doubt=True)


@pytest.mark.parametrize(
    "write",
    [
        Put(INBOXES, ROW),
        Delete(INBOXES, KEY),
        Update(INBOXES, KEY, {"a": 1}),
        Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.version_is(1)),
        Update(INBOXES, KEY, {}, {"n": 1, "version": 1}, (), c.version_is(1)),
        Update(INBOXES, KEY, {"version": 9}, {"n": 1}, (), c.any_of(c.version_is(1), c.version_is(2))),
        Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.all_of(c.has("a"), c.version_is(1))),
    ],
)
def test_is_repeatable__twice_is_once__yes(write: Write) -> None:
    assert is_repeatable(write)


@pytest.mark.parametrize(
    "write",
    [
        Update(INBOXES, KEY, {}, {"n": 1}, (), c.version_is(1)),
        Update(INBOXES, KEY, {"version": 1}, {"n": 1}, (), c.version_is(1)),
        Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.any_of(c.version_is(1), c.version_is(2))),
        Update(INBOXES, KEY, {}, {"n": 1, "version": 1}, (), c.any_of(c.version_is(1), c.version_is(2))),
        Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.any_of(c.version_is(1), c.has("a"))),
        Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), None),
    ],
)
def test_is_repeatable__could_count_twice__no(write: Write) -> None:
    assert not is_repeatable(write)


APPLIED = [
    (Put(INBOXES, {**ROW, "a": 1.0}), {**ROW, "a": 1}),
    (Update(INBOXES, KEY, {"a": 1}), {**ROW, "a": 1, "b": 2}),
    (Update(INBOXES, KEY, {}, {}, ("a",)), ROW),
    (Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.version_is(1)), {**ROW, "version": 2, "n": 7}),
    (Update(INBOXES, KEY, {}, {"version": 1}, (), c.version_is(1)), {**ROW, "version": 2}),
]
NOT_APPLIED = [
    (Put(INBOXES, {**ROW, "a": 1}), {**ROW, "a": 1, "b": 2}),
    (Put(INBOXES, {**ROW, "a": 1}), {**ROW, "a": True}),
    (Put(INBOXES, ROW), None),
    (Delete(INBOXES, KEY, c.has("a")), None),
    (Delete(INBOXES, KEY, c.has("a")), ROW),
    (Update(INBOXES, KEY, {"a": 1}), {**ROW, "a": 2}),
    (Update(INBOXES, KEY, {"a": 1}), ROW),
    (Update(INBOXES, KEY, {"a": 1}, {}, ("b",)), {**ROW, "a": 1, "b": 2}),
    (Update(INBOXES, KEY, {"version": 2}, {"n": 1}, (), c.version_is(1)), {**ROW, "version": 3, "n": 7}),
    (Update(INBOXES, KEY, {}, {"version": 1}, (), c.version_is(1)), {**ROW, "version": 3}),
]


@pytest.mark.parametrize(("write", "current"), APPLIED)
def test_applied_item__item_as_written__is_returned(requests: WriteRequests, write: Write, current: Item) -> None:
    assert applied_item(requests.prepare(write, 0.0), lost(current)) == current


@pytest.mark.parametrize(("write", "current"), NOT_APPLIED)
def test_applied_item__anything_else__is_none(requests: WriteRequests, write: Write, current: Item | None) -> None:
    assert applied_item(requests.prepare(write, 0.0), lost(current)) is None


@pytest.mark.parametrize(("write", "current"), APPLIED)
def test_applied_item__no_answer_was_lost__is_none(requests: WriteRequests, write: Write, current: Item) -> None:
    refusal = Refusal(CONDITION_FAILED, {0: to_attributes(current)}, after_doubt=False)

    assert applied_item(requests.prepare(write, 0.0), refusal) is None


def test_applied_item__put_with_spilled_attribute__is_compared_as_stored(requests: WriteRequests) -> None:
    prepared = requests.prepare(Put(INBOXES, {**ROW, "a": "x" * 500_000}), 0.0)

    assert "$blob" in prepared.stored["a"]
    assert applied_item(prepared, lost(prepared.stored)) == prepared.stored


def test_prepare__write_without_condition__asks_nothing(requests: WriteRequests) -> None:
    prepared = requests.prepare(Put(INBOXES, ROW), 0.0)

    assert prepared == PreparedWrite(
        Put(INBOXES, ROW),
        None,
        {"TableName": "test-headgate-inboxes", "Item": {"execution_id": {"S": "e"}, "message_id": {"S": "m"}}},
        ROW,
        prepared.size_bytes,
    )


def test_prepare__update__requires_that_the_item_exists(requests: WriteRequests) -> None:
    prepared = requests.prepare(Update(INBOXES, KEY, {"a": 1}), 0.0)

    assert prepared.condition == c.exists()
    assert prepared.request["ConditionExpression"] == "attribute_exists(#1)"
    assert prepared.request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
