"""DynamoDB actions: writes, rejections, and idempotent retries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.errors import StateError
from headgate.asl.tasks.user_tables import UserTables
from headgate.errors import SettingsError
from headgate.store.catalogue import tables
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.schema import Key
from headgate.store.table_names import TableNames
from tests.integration.asl.task_rig import ITEMS, Rig, key
from tests.integration.fanout.worlds import CrashError, once

VALID = "DynamoDB.AmazonDynamoDBException"
CHECK_FAILED = "DynamoDB.ConditionalCheckFailedException"
COUNT = "SET n = if_not_exists(n, :zero) + :one"
COUNT_VALUES = {":zero": {"N": "0"}, ":one": {"N": "1"}}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def put(rig: Rig, **attributes: Any) -> None:
    rig.dynamodb("putItem", Item={**key(), **attributes})


def item(rig: Rig) -> Any:
    found = rig.dynamodb("getItem", Key=key(), ConsistentRead=True).get("Item")
    return None if found is None else {name: value for name, value in found.items() if name not in ("PK", "SK")}


@pytest.mark.parametrize(
    "value",
    [
        {"S": "täxt"},
        {"S": ""},
        {"N": "12"},
        {"N": "-0.5"},
        {"BOOL": False},
        {"NULL": True},
        {"B": "aGVsbG8="},
        {"SS": ["a", "b"]},
        {"NS": ["1", "2.5"]},
        {"L": [{"S": "a"}, {"M": {"deep": {"L": []}}}]},
        {"M": {"a": {"N": "1"}, "b": {"B": "aGk="}}},
    ],
)
def test_put_and_get__a_value_of_each_type__comes_back_as_it_was(rig: Rig, value: Any) -> None:
    assert rig.dynamodb("putItem", Item={**key(), "v": value}) == {}
    assert item(rig) == {"v": value}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"N": 12}, "must be text"),
        ({"N": "twelve"}, "is not a number"),
        ({"N": "1e999"}, "v"),
        ({"S": "a", "N": "1"}, "one member"),
        ("plain", "one member"),
        ({"B": "***"}, "base64"),
        ({"NULL": False}, "NULL"),
        ({"SS": []}, "empty set"),
        ({"X": "a"}, "'X'"),
    ],
)
def test_put__what_is_no_attribute_value__is_refused_with_its_place(rig: Rig, value: Any, message: str) -> None:
    refused = rig.refused("putItem", Item={**key(), "v": value})
    assert refused.error == VALID
    assert message in refused.cause
    assert "ValidationException" in refused.cause
    assert item(rig) is None


def test_get__of_an_item_that_is_not_there__has_no_item(rig: Rig) -> None:
    assert rig.dynamodb("getItem", Key=key()) == {}


def test_get__with_a_projection__has_those_attributes(rig: Rig) -> None:
    put(rig, a={"S": "1"}, b={"S": "2"})
    answer = rig.dynamodb(
        "getItem", Key=key(), ProjectionExpression="#a, missing", ExpressionAttributeNames={"#a": "a"}
    )
    assert answer == {"Item": {"a": {"S": "1"}}}


# Conditions, each on an item with these attributes.
ATTRIBUTES = {
    "n": {"N": "5"},
    "s": {"S": "hello"},
    "t": {"BOOL": True},
    "z": {"NULL": True},
    "low": {"N": "1"},
}
VALUES = {
    ":one": {"N": "1"}, ":five": {"N": "5"}, ":nine": {"N": "9"}, ":hello": {"S": "hello"}, ":he": {"S": "he"},
    ":true": {"BOOL": True}, ":null": {"NULL": True}, ":S": {"S": "S"}, ":N": {"S": "N"}, ":zoo": {"S": "zoo"},
}  # fmt: skip
HOLD = [
    "n = :five",
    "n <> :one",
    "missing <> :one",
    "n <> :hello",
    "n < :nine",
    "n <= :five",
    "n > :one",
    "n >= :five",
    "low < n",
    "n BETWEEN :one AND :nine",
    "n between :five and :five",
    "n IN (:one, :five)",
    "s = :hello AND n = :five",
    "s = :zoo OR n = :five",
    "NOT n = :one",
    "NOT n < :one",
    "NOT missing < :one",
    "NOT s < :nine",
    "NOT (n = :one OR s = :zoo)",
    "NOT NOT n = :five",
    "n = :one AND s = :zoo OR t = :true",
    "attribute_exists(n)",
    "attribute_exists(PK)",
    "attribute_not_exists(missing)",
    "attribute_type(s, :S)",
    "begins_with(s, :he)",
    "contains(s, :he)",
    "size(s) = :five",
    "t = :true",
    "z = :null",
    "(n = :five)",
]
FAIL = [
    "n = :one",
    "n = :hello",
    "n <> :five",
    "missing = :five",
    "missing < :nine",
    "s < :nine",
    "t < :nine",
    "n > :nine",
    "n BETWEEN :one AND :one",
    "n IN (:one, :nine)",
    "missing IN (:one, :nine)",
    "n = :five AND s = :zoo",
    "NOT n = :five",
    "NOT (n = :five OR s = :zoo)",
    "attribute_exists(missing)",
    "attribute_not_exists(PK)",
    "attribute_type(s, :N)",
    "begins_with(s, :zoo)",
    "begins_with(n, :he)",
    "contains(missing, :he)",
    "size(n) = :five",
    "missing = missing",
]


def _used(expression: str) -> dict[str, Any]:
    words = expression.replace("(", " ").replace(")", " ").replace(",", " ").split()
    return {name: value for name, value in VALUES.items() if name in words}


@pytest.mark.parametrize("condition", HOLD)
def test_condition__that_holds__lets_the_write_through(rig: Rig, condition: str) -> None:
    put(rig, **ATTRIBUTES)
    given: dict[str, Any] = {"ExpressionAttributeValues": _used(condition)} if _used(condition) else {}
    rig.dynamodb("putItem", Item={**key(), "new": {"S": "yes"}}, ConditionExpression=condition, **given)
    assert item(rig) == {"new": {"S": "yes"}}


@pytest.mark.parametrize("condition", FAIL)
def test_condition__that_does_not_hold__changes_nothing(rig: Rig, condition: str) -> None:
    put(rig, **ATTRIBUTES)
    given: dict[str, Any] = {"ExpressionAttributeValues": _used(condition)} if _used(condition) else {}
    refused = rig.refused("deleteItem", Key=key(), ConditionExpression=condition, **given)
    assert refused.error == CHECK_FAILED
    assert item(rig) == ATTRIBUTES


def test_condition__that_the_item_is_not_there__lets_only_the_first_put_it(rig: Rig) -> None:
    first: dict[str, Any] = {"Item": {**key(), "by": {"S": "first"}}, "ConditionExpression": "attribute_not_exists(PK)"}
    assert rig.dynamodb("putItem", **first) == {}
    assert rig.refused("putItem", **first).error == CHECK_FAILED
    assert item(rig) == {"by": {"S": "first"}}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("n ==", "syntax error"),
        ("n = :five AND", "syntax error"),
        ("(n = :five", "')'"),
        ("n = :five extra", "the end"),
        ("n = :five ; 1", "not understood"),
        ("n = :unknown", ":unknown"),
        ("#x = :five", "#x"),
        ("", "empty"),
        ("(" * 200 + "n = :five" + ")" * 200, "nested"),
        ("n = :five OR " * 400 + "n = :five", "4096"),
        ("n IN ()", "the name of an attribute"),
        ("attribute_exists(:five)", "the name of an attribute"),
    ],
)
def test_condition__that_cannot_be_read__is_refused_and_reported(rig: Rig, condition: str, message: str) -> None:
    put(rig, **ATTRIBUTES)
    refused = rig.refused(
        "deleteItem", Key=key(), ConditionExpression=condition, ExpressionAttributeValues={":five": {"N": "5"}}
    )
    assert refused.error == VALID
    assert message in refused.cause
    assert item(rig) == ATTRIBUTES


def test_condition__placeholder_that_nothing_uses__is_refused(rig: Rig) -> None:
    refused = rig.refused(
        "putItem",
        Item=key(),
        ConditionExpression="attribute_not_exists(PK)",
        ExpressionAttributeValues={":idle": {"N": "5"}},
    )
    assert refused.error == VALID
    assert ":idle" in refused.cause


@pytest.mark.parametrize("condition", ["tags.inner = :one", "contains(tags, :one)", "tags = :one"])
def test_condition__that_looks_into_a_list_or_map__is_refused_by_name(rig: Rig, condition: str) -> None:
    put(rig, tags={"M": {"inner": {"N": "1"}}})
    refused = rig.refused(
        "deleteItem", Key=key(), ConditionExpression=condition + " OR attribute_exists(SK)",
        ExpressionAttributeValues={":one": {"N": "1"}},
    )  # fmt: skip
    assert refused.error == VALID
    assert "tags is a list, a map" in refused.cause


@pytest.mark.parametrize(
    ("before", "update", "after"),
    [
        (None, "SET a = :one", {"a": {"N": "1"}}),
        (None, "REMOVE a", {}),
        (None, "ADD n :one", {"n": {"N": "1"}}),
        (None, "SET a = if_not_exists(a, :one)", {"a": {"N": "1"}}),
        ({"a": {"S": "x"}, "b": {"S": "y"}}, "SET a = :one REMOVE b", {"a": {"N": "1"}}),
        ({"a": {"S": "x"}}, "SET b = a", {"a": {"S": "x"}, "b": {"S": "x"}}),
        ({"n": {"N": "5"}}, "SET n = n + :one", {"n": {"N": "6"}}),
        ({"n": {"N": "5"}}, "SET n = n - :one", {"n": {"N": "4"}}),
        ({"n": {"N": "0.1"}}, "ADD n :tenth", {"n": {"N": "0.3"}}),
        ({"n": {"N": "5"}}, "ADD n :one SET a = n", {"n": {"N": "6"}, "a": {"N": "5"}}),
        ({"a": {"L": []}}, "SET a = if_not_exists(a, :one)", {"a": {"L": []}}),
        ({"a": {"L": [{"S": "x"}]}}, "SET a = :one", {"a": {"N": "1"}}),
        ({"a": {"S": "x"}}, "set c = if_not_exists(b, :one) remove a", {"c": {"N": "1"}}),
    ],
)
def test_update__each_form__changes_the_item_as_dynamodb_does(rig: Rig, before: Any, update: str, after: Any) -> None:
    if before is not None:
        put(rig, **before)
    values = {":one": {"N": "1"}, ":tenth": {"N": "0.2"}}
    used = {name: value for name, value in values.items() if name in update.replace(")", " ").split()}
    given: dict[str, Any] = {"ExpressionAttributeValues": used} if used else {}
    assert rig.dynamodb("updateItem", Key=key(), UpdateExpression=update, **given) == {}
    assert item(rig) == after


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("SET l = list_append(l, :l)", "list_append"),
        ("DELETE l :l", "DELETE"),
        ("ADD l :l", "sets cannot be added to"),
        ("SET l[0] = :l", "only whole attributes"),
        ("SET m.a = :l", "only whole attributes"),
        ("SET b = l", "l is a list"),
        ("SET b = missing", "does not exist in the item"),
        ("SET b = n + s, a = :l", "incorrect data type"),
        ("SET a = :l, a = :l", "overlap"),
        ("SET a = :l REMOVE a", "overlap"),
        ("SET a = :l SET b = :l", "twice"),
        ("SET PK = :l", "part of the key"),
        ("PUT a = :l", "SET, ADD or REMOVE"),
    ],
)
def test_update__that_the_store_cannot_make__is_refused_by_name(rig: Rig, update: str, message: str) -> None:
    before = {"l": {"L": []}, "n": {"N": "1"}, "s": {"S": "a"}}
    put(rig, **before)
    given: dict[str, Any] = {"ExpressionAttributeValues": {":l": {"L": []}}} if ":l" in update else {}
    refused = rig.refused("updateItem", Key=key(), UpdateExpression=update, **given)
    assert refused.error == VALID
    assert message in refused.cause
    assert item(rig) == before


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("NONE", None),
        ("ALL_OLD", {**key(), "a": {"N": "1"}, "b": {"S": "x"}}),
        ("ALL_NEW", {**key(), "a": {"N": "2"}, "b": {"S": "x"}, "c": {"N": "2"}}),
        ("UPDATED_OLD", {"a": {"N": "1"}}),
        ("UPDATED_NEW", {"a": {"N": "2"}, "c": {"N": "2"}}),
    ],
)
def test_update__return_values__are_of_before_and_after(rig: Rig, returned: str, expected: Any) -> None:
    put(rig, a={"N": "1"}, b={"S": "x"})
    answer = rig.dynamodb(
        "updateItem",
        Key=key(),
        UpdateExpression="SET a = :two, c = :two",
        ExpressionAttributeValues={":two": {"N": "2"}},
        ReturnValues=returned,
    )
    assert answer == ({} if expected is None else {"Attributes": expected})


def test_put_and_delete__return_values__are_what_was_there(rig: Rig) -> None:
    assert rig.dynamodb("putItem", Item={**key(), "a": {"N": "1"}}, ReturnValues="ALL_OLD") == {}
    old = {"Attributes": {**key(), "a": {"N": "1"}}}
    assert rig.dynamodb("putItem", Item={**key(), "a": {"N": "2"}}, ReturnValues="ALL_OLD") == old
    old = {"Attributes": {**key(), "a": {"N": "2"}}}
    assert rig.dynamodb("deleteItem", Key=key(), ReturnValues="ALL_OLD") == old
    assert rig.dynamodb("deleteItem", Key=key(), ReturnValues="ALL_OLD") == {}


def test_update__a_semaphore_as_aws_shows_it__has_the_errors_that_its_catchers_name(rig: Rig) -> None:
    """The row is not there, then it is; then this owner has the lock already; then the limit is reached."""

    def acquire(owner: str) -> dict[str, Any]:
        return {
            "Key": key(),
            "ExpressionAttributeNames": {"#count": "currentlockcount", "#owner": owner},
            "ExpressionAttributeValues": {":increase": {"N": "1"}, ":limit": {"N": "2"}, ":at": {"S": "now"}},
            "UpdateExpression": "SET #count = #count + :increase, #owner = :at",
            "ConditionExpression": "#count <> :limit and attribute_not_exists(#owner)",
        }

    assert rig.refused("updateItem", **acquire("a")).error == VALID
    put(rig, currentlockcount={"N": "0"})
    rig.dynamodb("updateItem", **acquire("a"))
    assert rig.refused("updateItem", **acquire("a")).error == CHECK_FAILED
    rig.dynamodb("updateItem", **acquire("b"))
    assert rig.refused("updateItem", **acquire("c")).error == CHECK_FAILED
    assert item(rig) == {"currentlockcount": {"N": "2"}, "a": {"S": "now"}, "b": {"S": "now"}}


# Others, and crashes.


def test_update__another_counts_between_read_and_write__both_are_counted(rig: Rig) -> None:
    put(rig, n={"N": "1"})

    def other() -> None:
        rig.sqlite.update(tables.TASK_ITEMS, Key(f"{ITEMS}#app", "one"), set={"n": 10})

    rig.crashing.before_write = once(other)
    answer = rig.dynamodb(
        "updateItem", Key=key(), UpdateExpression=COUNT, ExpressionAttributeValues=COUNT_VALUES,
        ReturnValues="UPDATED_NEW",
    )  # fmt: skip
    assert answer == {"Attributes": {"n": {"N": "11"}}}


def test_condition__made_false_between_read_and_write__is_decided_anew(rig: Rig) -> None:
    put(rig, owner={"S": "nobody"})
    rig.crashing.before_write = once(
        lambda: rig.sqlite.update(tables.TASK_ITEMS, Key(f"{ITEMS}#app", "one"), set={"owner": "other"})
    )
    refused = rig.refused(
        "putItem",
        Item={**key(), "owner": {"S": "me"}},
        ConditionExpression="#o = :nobody",
        ExpressionAttributeNames={"#o": "owner"},
        ExpressionAttributeValues={":nobody": {"S": "nobody"}},
    )
    assert refused.error == CHECK_FAILED
    assert item(rig) == {"owner": {"S": "other"}}


def test_update__others_never_let_it_through__gives_up_with_a_name_to_retry(rig: Rig) -> None:
    put(rig, n={"N": "1"})
    counts = iter(range(2, 10_000))

    def other() -> None:
        rig.sqlite.update(tables.TASK_ITEMS, Key(f"{ITEMS}#app", "one"), set={"n": next(counts)})

    rig.crashing.before_write = other
    refused = rig.refused("updateItem", Key=key(), UpdateExpression=COUNT, ExpressionAttributeValues=COUNT_VALUES)
    assert refused.error == "DynamoDB.TransactionConflictException"


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize(
    ("action", "given", "answer", "after"),
    [
        (
            "updateItem",
            {
                "Key": key(),
                "UpdateExpression": COUNT,
                "ExpressionAttributeValues": COUNT_VALUES,
                "ReturnValues": "UPDATED_OLD",
            },
            {"Attributes": {"n": {"N": "1"}}},
            {"n": {"N": "2"}},
        ),
        (
            "putItem",
            {
                "Item": {**key(), "by": {"S": "me"}},
                "ConditionExpression": "attribute_exists(n)",
                "ReturnValues": "ALL_OLD",
            },
            {"Attributes": {**key(), "n": {"N": "1"}}},
            {"by": {"S": "me"}},
        ),
        ("deleteItem", {"Key": key(), "ReturnValues": "ALL_OLD"}, {"Attributes": {**key(), "n": {"N": "1"}}}, None),
    ],
)
def test_write__worker_dies_at_the_write__second_attempt_answers_as_the_first_would(
    rig: Rig, is_applied: bool, action: str, given: dict[str, Any], answer: Any, after: Any
) -> None:
    put(rig, n={"N": "1"})
    rig.crashing.crash_at, rig.crashing.is_applied = rig.crashing.writes + 1, is_applied
    parameters = {"TableName": ITEMS, **given}
    with pytest.raises(CrashError):
        rig.call("dynamodb", action, parameters, id="machine:one#7#000001")
    assert rig.call("dynamodb", action, parameters, id="machine:one#7#000001", attempt=2) == answer
    assert item(rig) == after


# Queries.


def _rows(rig: Rig) -> None:
    for number in range(5):
        rig.dynamodb("putItem", Item={**key("app", f"row#{number}"), "n": {"N": str(number)}})
    rig.dynamodb("putItem", Item=key("app", "zeta"))
    rig.dynamodb("putItem", Item=key("other", "row#9"))


@pytest.mark.parametrize(
    ("condition", "values", "sorts"),
    [
        ("PK = :p", {}, ["row#0", "row#1", "row#2", "row#3", "row#4", "zeta"]),
        ("PK = :p AND begins_with(SK, :s)", {":s": {"S": "row#"}}, ["row#0", "row#1", "row#2", "row#3", "row#4"]),
        ("PK = :p AND SK BETWEEN :a AND :b", {":a": {"S": "row#1"}, ":b": {"S": "row#2"}}, ["row#1", "row#2"]),
        ("SK > :a AND PK = :p", {":a": {"S": "row#3"}}, ["row#4", "zeta"]),
        ("PK = :p AND SK = :a", {":a": {"S": "row#3"}}, ["row#3"]),
    ],
)
def test_query__ranges_of_keys__gives_the_items_in_order(
    rig: Rig, condition: str, values: dict[str, Any], sorts: list[str]
) -> None:
    _rows(rig)
    answer = rig.dynamodb(
        "query", KeyConditionExpression=condition, ExpressionAttributeValues={":p": {"S": "app"}, **values}
    )
    assert [each["SK"]["S"] for each in answer["Items"]] == sorts
    assert answer["Count"] == answer["ScannedCount"] == len(sorts)
    assert "LastEvaluatedKey" not in answer


def test_query__in_pages_with_a_filter__goes_on_where_the_last_ended(rig: Rig) -> None:
    _rows(rig)
    given: dict[str, Any] = {
        "KeyConditionExpression": "PK = :p",
        "FilterExpression": "n >= :two AND n <> :three",
        "ProjectionExpression": "n",
        "ExpressionAttributeValues": {":p": {"S": "app"}, ":two": {"N": "2"}, ":three": {"N": "3"}},
        "Limit": 3,
        "ScanIndexForward": False,
    }
    first = rig.dynamodb("query", **given)
    assert (first["Items"], first["Count"], first["ScannedCount"]) == ([{"n": {"N": "4"}}], 1, 3)
    second = rig.dynamodb("query", **given, ExclusiveStartKey=first["LastEvaluatedKey"])
    assert second == {"Items": [{"n": {"N": "2"}}], "Count": 1, "ScannedCount": 3}


def test_query__only_the_count__has_no_items(rig: Rig) -> None:
    _rows(rig)
    answer = rig.dynamodb(
        "query", KeyConditionExpression="PK = :p", ExpressionAttributeValues={":p": {"S": "app"}}, Select="COUNT"
    )
    assert answer == {"Count": 6, "ScannedCount": 6}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"KeyConditionExpression": "SK = :p"}, "PK = :value"),
        ({"KeyConditionExpression": "PK > :p"}, "PK = :value"),
        ({"KeyConditionExpression": "PK = :p AND n = :p"}, "begins_with on SK"),
        ({"KeyConditionExpression": "PK = SK AND SK = :p"}, "a value such as :id"),
        ({"KeyConditionExpression": "PK = :p", "IndexName": "none"}, "no index"),
        ({"KeyConditionExpression": "PK = :p", "Limit": 0}, "Limit"),
        ({"KeyConditionExpression": "PK = :p", "ExclusiveStartKey": {"headgate.cursor": {"S": "x"}}}, "cursor"),
    ],
)
def test_query__that_no_index_can_answer__is_refused(rig: Rig, given: dict[str, Any], message: str) -> None:
    refused = rig.refused("query", ExpressionAttributeValues={":p": {"S": "app"}}, **given)
    assert refused.error == VALID
    assert message in refused.cause


# Tables and parameters.


@pytest.mark.parametrize("table", [table.name for table in ALL_TABLES])
def test_call__on_a_table_of_headgate__is_denied(rig: Rig, table: str) -> None:
    query = {"KeyConditionExpression": "PK = :p", "ExpressionAttributeValues": {":p": {"S": "app"}}}
    for action, given in (
        ("putItem", {"Item": key()}),
        ("deleteItem", {"Key": key()}),
        ("updateItem", {"Key": key()}),
        ("getItem", {"Key": key()}),
        ("query", query),
    ):
        assert rig.refused(action, table=table, **given).error == "DynamoDB.AccessDeniedException"


@pytest.mark.parametrize(
    "name",
    [
        "headgate-pipelines",
        "HEADGATE-pipelines",
        " headgate-pipelines",
        "prod-headgate-pipelines",
        "arn:aws:dynamodb:eu-west-1:123456789012:table/headgate-pipelines",
        "arn:aws:dynamodb:eu-west-1:123456789012:table/prod-headgate-pipelines/index/GSI1",
        f"{ITEMS}:table/headgate-pipelines",
    ],
)
def test_table_of_headgate__by_any_form_of_its_name__is_denied(tmp_path: Path, name: str) -> None:
    with Rig(tmp_path, names=TableNames("prod-")) as rig:
        assert rig.refused("putItem", table=name, Item=key()).error == "DynamoDB.AccessDeniedException"


@pytest.mark.parametrize("name", [ITEMS, f"arn:aws:dynamodb:eu-west-1:123456789012:table/{ITEMS}"])
def test_declared_table__by_its_name_or_its_arn__is_found(rig: Rig, name: str) -> None:
    rig.dynamodb("putItem", table=name, Item=key())
    assert item(rig) == {}


@pytest.mark.parametrize(
    "name",
    ["orders", ITEMS.upper(), f"arn:aws:dynamodb:eu-west-1:123456789012:table/{ITEMS}/index/x", f"x:table/{ITEMS}"],
)
def test_table__that_is_not_declared__is_not_found(rig: Rig, name: str) -> None:
    assert rig.refused("getItem", table=name, Key=key()).error == "DynamoDB.ResourceNotFoundException"


def test_items__of_two_tables_under_one_key__are_apart(tmp_path: Path) -> None:
    with Rig(tmp_path, declared=["orders:id", "lines:order:line"]) as rig:
        rig.dynamodb("putItem", table="orders", Item={"id": {"S": "7"}, "n": {"N": "1"}})
        rig.dynamodb("putItem", table="lines", Item={"order": {"S": "7"}, "line": {"S": "1"}, "n": {"N": "2"}})
        query = {"KeyConditionExpression": "id = :i", "ExpressionAttributeValues": {":i": {"S": "7"}}}
        found = rig.dynamodb("query", table="orders", **query)
        assert found["Items"] == [{"id": {"S": "7"}, "n": {"N": "1"}}]
        query = {
            "KeyConditionExpression": "#o = :o AND line > :l",
            "ExpressionAttributeNames": {"#o": "order"},
            "ExpressionAttributeValues": {":o": {"S": "7"}, ":l": {"S": "0"}},
        }
        assert rig.dynamodb("query", table="lines", **query)["Count"] == 1


def test_item__with_an_attribute_of_the_stored_key__is_refused(rig: Rig) -> None:
    assert rig.refused("putItem", Item={**key(), "task_pk": {"S": "other#app"}}).error == VALID
    put(rig)
    refused = rig.refused(
        "updateItem",
        Key=key(),
        UpdateExpression="SET task_pk = :v",
        ExpressionAttributeValues={":v": {"S": "other#app"}},
    )
    assert refused.error == VALID


@pytest.mark.parametrize(
    "declaration",
    [
        "orders",
        "headgate-pipelines:PK:SK",
        "Headgate-Events:PK",
        "prod-headgate-pipelines:PK",
        "orders:a:a",
        "o:task_pk",
    ],
)
def test_declaration__invalid_or_of_a_table_of_headgate__is_refused(rig: Rig, declaration: str) -> None:
    with pytest.raises(SettingsError, match=r"tasks\.tables"):
        UserTables(rig.sqlite, [declaration], TableNames("prod-"))


@pytest.mark.parametrize(
    ("action", "given", "message"),
    [
        ("getItem", {}, "'Key'"),
        ("getItem", {"Key": "text"}, "an OBJECT"),
        ("getItem", {"Key": key(), "Expected": {}}, "'Expected'"),
        ("putItem", {"Item": key(), "ReturnValues": "ALL_NEW"}, "one of NONE, ALL_OLD"),
        ("query", {"KeyConditionExpression": "PK = :p", "Limit": True}, "a whole NUMBER"),
        ("query", {"KeyConditionExpression": "PK = :p", "ExclusiveStartKey": {"PK": {"S": "x"}}}, "LastEvaluatedKey"),
    ],
)
def test_parameters__that_the_call_does_not_take__end_the_execution(
    rig: Rig, action: str, given: dict[str, Any], message: str
) -> None:
    if "KeyConditionExpression" in given:
        given = {**given, "ExpressionAttributeValues": {":p": {"S": "app"}}}
    refused = rig.refused(action, **given)
    assert refused.error == "States.Runtime"
    assert message in refused.cause


@pytest.mark.parametrize("given", [{"PK": {"S": "a"}}, {**key(), "more": {"S": "a"}}, {**key(), "SK": {"N": "1"}}])
def test_key__that_is_not_the_tables__is_refused(rig: Rig, given: Any) -> None:
    assert rig.refused("getItem", Key=given).error == VALID


def test_sdk__its_names_of_parameters_and_errors__are_its_own(rig: Rig) -> None:
    parameters = {"tableName": ITEMS, "item": key(), "conditionExpression": "attribute_exists(PK)"}
    with pytest.raises(StateError) as failed:
        rig.call("aws-sdk:dynamodb", "PutItem", parameters)
    assert failed.value.error == "DynamoDb.ConditionalCheckFailedException"
    with pytest.raises(StateError) as failed:
        rig.call("aws-sdk:dynamodb", "putItem", {**parameters, "conditionExpression": "?"})
    assert failed.value.error == "DynamoDb.DynamoDbException"
