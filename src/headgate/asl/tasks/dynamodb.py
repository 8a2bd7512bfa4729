"""Calls of DynamoDB: items of the catalogue's tables, read and written in the words of its API.

A write reads the item, decides as DynamoDB would, and writes on the condition that nothing it looked at has changed;
if something has, it decides anew. With the write goes its answer, under the id of the activity: an attempt that
follows one whose worker died gives that answer, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import CallParameters
from headgate.asl.tasks.attribute_values import read_item, read_value, write_item
from headgate.asl.tasks.dynamodb_expressions import (
    Change,
    Condition,
    Placeholders,
    parse_condition,
    parse_projection,
    parse_update,
)
from headgate.asl.tasks.dynamodb_items import ItemView, key_range
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import (
    ConflictError,
    CursorError,
    InvalidItemError,
    ItemTooLargeError,
    TransactionLimitError,
)
from headgate.store.catalogue.tables import (
    ALL_TABLES,
    COLUMN_READERS,
    COLUMN_WRITERS,
    CONTROL,
    DATASET_READERS,
    DATASET_REGISTRY,
    DATASET_RESOLUTION,
    DATASET_WRITERS,
    DEFINITIONS,
    EVENTS,
    EVIDENCE_CACHE,
    FANOUT,
    IDEMPOTENCY,
    INCIDENT_INDEX,
    PIPELINES,
    SCHEDULES,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.model import conditions
from headgate.store.model.conditions import CLAUSES_MAX, VALUE_BYTES_MAX, absent, all_of, equals, exists, has, lacks
from headgate.store.model.requests import Check, Delete, Put, Query, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item, canonical_item
from headgate.store.port import Store
from headgate.store.table_names import TableNames

# The one table in which a machine may write. The others are kept in step with each other, with the audit log or with
# the engine's own work by whoever writes them, and an item put in from aside would break what they promise.
WRITABLE: Final = frozenset({PIPELINES.name})
# What a machine may read: nothing that the engine runs on, and nothing that has secrets or what others were answered.
READABLE: Final = WRITABLE | frozenset(
    table.name
    for table in (
        SIGNAL_STATE, SIGNAL_HISTORY, INCIDENT_INDEX, DATASET_REGISTRY, DATASET_RESOLUTION, EVIDENCE_CACHE,
        DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS,
        FANOUT, EVENTS, SCHEDULES, DEFINITIONS, CONTROL,
    )
)  # fmt: skip

ANSWER_SECONDS: Final = 24 * 3600
QUERY_ITEMS_MAX: Final = 1000
# How often a write decides anew before it gives up against others who write the same item.
TRIES_MAX: Final = 50
CURSOR: Final = "headgate.cursor"
_IGNORED: Final = ("ReturnConsumedCapacity", "ReturnItemCollectionMetrics")
_PLACES: Final = ("ExpressionAttributeNames", "ExpressionAttributeValues")
# Beside what a write had to look at there is room for so many attributes that it only returns.
_RETURNED_GUARDS_MAX: Final = CLAUSES_MAX // 2
_INVALID: Final = (InvalidItemError, ItemTooLargeError, TransactionLimitError, CursorError)


class Dialect(Struct, frozen=True):
    """What the errors of DynamoDB are called: its optimised integration and that of the SDK differ."""

    prefix: str
    # Stands for every error that has no name of its own, first of all for a request that is not valid.
    other: str

    def error(self, code: str, fact: str, *, is_named: bool = True) -> StateError:
        """Return the error of a code of DynamoDB's."""
        cause = f"{fact} (Service: AmazonDynamoDBv2; Status Code: 400; Error Code: {code})"
        return StateError(f"{self.prefix}.{code if is_named else self.other}", cause)

    def invalid(self, fact: str) -> StateError:
        """Return the error of a request that is not valid."""
        return self.error("ValidationException", fact, is_named=False)


OPTIMISED: Final = Dialect("DynamoDB", "AmazonDynamoDBException")
SDK: Final = Dialect("DynamoDb", "DynamoDbException")


class _Decision(Struct, frozen=True):
    """What a write does to an item that it has read, and what it then answers."""

    write: Write
    answer: Json


class _Answered(Struct, frozen=True):
    """An answer that was given before. It may be an empty one."""

    answer: Json


class DynamodbCalls:
    """Performs calls of DynamoDB on a store."""

    def __init__(self, store: Store, names: TableNames | None = None) -> None:
        self._store = store
        names = names or TableNames()
        self._tables = {table.name: table for table in ALL_TABLES} | {names.physical(each): each for each in ALL_TABLES}

    def call(self, action: str, given: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        """Return what an action answers. Raises `StateError`."""
        perform: dict[str, Callable[[], Json]] = {
            "getItem": lambda: self._get(given, dialect),
            "query": lambda: self._query(given, dialect),
            "putItem": lambda: self._put(given, context, dialect),
            "updateItem": lambda: self._update(given, context, dialect),
            "deleteItem": lambda: self._delete(given, context, dialect),
        }
        try:
            return perform[action]()
        except _INVALID as exc:
            raise dialect.invalid(str(exc)) from exc

    # Reads.

    def _get(self, given: CallParameters, dialect: Dialect) -> Json:
        given.allow(("TableName", "Key", "ConsistentRead", "ProjectionExpression", _PLACES[0], *_IGNORED))
        table = self._table(given, READABLE, dialect)
        places = _places(given)
        wanted = _projection(given, places)
        places.check_used()
        key = _key(table, given)
        item = self._store.get(table, key, consistent=given.find("ConsistentRead", bool) or False)
        return {} if item is None else {"Item": write_item(_projected(item, wanted))}

    def _query(self, given: CallParameters, dialect: Dialect) -> Json:
        given.allow(
            ("TableName", "IndexName", "KeyConditionExpression", "FilterExpression", "ProjectionExpression", "Limit",
             "ScanIndexForward", "ConsistentRead", "ExclusiveStartKey", "Select", *_PLACES, *_IGNORED)
        )  # fmt: skip
        table = self._table(given, READABLE, dialect)
        places = _places(given)
        key = parse_condition(given.get("KeyConditionExpression", str), places, "KeyConditionExpression")
        kept = _condition(given, places, "FilterExpression")
        wanted = _projection(given, places)
        places.check_used()
        index = given.find("IndexName", str)
        partition, sort = key_range(table if index is None else table.index(index), key)
        limit = given.find("Limit", int)
        if limit is not None and limit < 1:
            raise InvalidItemError(f"Limit is {limit}: it must be at least 1")
        page = self._store.query(
            Query(
                table=table,
                index=index,
                partition=partition,
                sort=sort,
                limit=min(limit or QUERY_ITEMS_MAX, QUERY_ITEMS_MAX),
                cursor=_cursor(given),
                descending=given.find("ScanIndexForward", bool) is False,
                consistent=given.find("ConsistentRead", bool) or False,
            )
        )
        found = [item for item in page.items if kept is None or ItemView(item).holds(kept)]
        answer: dict[str, Json] = {"Count": len(found), "ScannedCount": len(page.items)}
        if given.choice("Select", ("ALL_ATTRIBUTES", "SPECIFIC_ATTRIBUTES", "COUNT")) != "COUNT":
            answer["Items"] = [write_item(_projected(item, wanted)) for item in found]
        if page.cursor is not None:
            answer["LastEvaluatedKey"] = {CURSOR: {"S": page.cursor}}
        return answer

    # Writes.

    def _put(self, given: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        given.allow(("TableName", "Item", "ConditionExpression", "ReturnValues", *_PLACES, *_IGNORED))
        table = self._table(given, WRITABLE, dialect)
        item, _ = canonical_item(read_item(given.get("Item", dict), "Item"))
        key = _key_of(table, item, "Item")
        returned = given.choice("ReturnValues", ("NONE", "ALL_OLD"))

        def decide(view: ItemView, before: Item | None) -> _Decision:
            guard = _whole_guard(table, view, before, is_returned=returned == "ALL_OLD")
            return _Decision(Put(table, item, guard), _attributes(before if returned == "ALL_OLD" else None))

        return self._write(table, key, given, context, dialect, decide)

    def _delete(self, given: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        given.allow(("TableName", "Key", "ConditionExpression", "ReturnValues", *_PLACES, *_IGNORED))
        table = self._table(given, WRITABLE, dialect)
        key = _key(table, given)
        returned = given.choice("ReturnValues", ("NONE", "ALL_OLD"))

        def decide(view: ItemView, before: Item | None) -> _Decision:
            guard = _whole_guard(table, view, before, is_returned=returned == "ALL_OLD")
            return _Decision(Delete(table, key, guard), _attributes(before if returned == "ALL_OLD" else None))

        return self._write(table, key, given, context, dialect, decide)

    def _update(self, given: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        given.allow(
            ("TableName", "Key", "UpdateExpression", "ConditionExpression", "ReturnValues", *_PLACES, *_IGNORED)
        )
        table = self._table(given, WRITABLE, dialect)
        key = _key(table, given)
        returned = given.choice("ReturnValues", ("NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"))
        places = _places(given)
        text = given.find("UpdateExpression", str)
        change = Change() if text is None else parse_update(text, places)
        touched = {*change.set, *change.add, *change.remove}
        for name in table.key_names:
            if name in touched:
                raise InvalidItemError(f"Cannot update attribute {name}. This attribute is part of the key")

        def decide(view: ItemView, before: Item | None) -> _Decision:
            sets, _ = canonical_item(view.changed(change))
            after = {**(before or table.key_attributes(key)), **sets}
            for name in change.remove:
                after.pop(name, None)
            shown = {"ALL_OLD": before or {}, "ALL_NEW": after, "UPDATED_OLD": before or {}, "UPDATED_NEW": after}
            attributes = shown.get(returned, {})
            if returned.startswith("UPDATED"):
                attributes = {name: value for name, value in attributes.items() if name in touched}
            kept = {name: value for name, value in attributes.items() if before and name in before}
            guard = _guard(table, view, before, {name: before[name] for name in kept} if before else None)
            return _Decision(_updating(table, key, before, after, sets, change, guard), _attributes(attributes))

        return self._write(table, key, given, context, dialect, decide, places)

    def _write(
        self,
        table: Table,
        key: Key,
        given: CallParameters,
        context: ActivityContext,
        dialect: Dialect,
        decide: Callable[[ItemView, Item | None], _Decision],
        places: Placeholders | None = None,
    ) -> Json:
        places = places or _places(given)
        condition = _condition(given, places, "ConditionExpression")
        places.check_used()
        earlier = self._earlier(context) if context.attempt > 1 else None
        if earlier is not None:
            return earlier.answer
        for _ in range(TRIES_MAX):
            item = self._store.get(table, key, consistent=True)
            view = ItemView(item)
            if condition is not None and not view.holds(condition):
                raise dialect.error("ConditionalCheckFailedException", "The conditional request failed")
            decision = decide(view, item)
            try:
                self._store.transact([decision.write, _answer_put(context, decision.answer)])
            except ConflictError:
                # With an answer, this write or that of an earlier attempt was made; without one, somebody else's.
                earlier = self._earlier(context)
                if earlier is not None:
                    return earlier.answer
            else:
                return decision.answer
        fact = f"{table.name} {tuple(key)}: others changed the item {TRIES_MAX} times while this call tried to"
        raise dialect.error("TransactionConflictException", fact)

    def _earlier(self, context: ActivityContext) -> _Answered | None:
        """Return what was answered in this activity, if its write was made."""
        row = self._store.get(IDEMPOTENCY, Key(_answer_key(context)), consistent=True)
        return None if row is None else _Answered(msgspec.json.decode(row["answer"]))

    def _table(self, given: CallParameters, allowed: frozenset[str], dialect: Dialect) -> Table:
        name = given.get("TableName", str)
        table = self._tables.get(name.rpartition(":table/")[2])
        if table is None:
            raise dialect.error("ResourceNotFoundException", f"Requested resource not found: Table: {name} not found")
        if table.name not in allowed:
            fact = f"{given.resource}: a machine may not do this to {name}; it may to {', '.join(sorted(allowed))}"
            raise dialect.error("AccessDeniedException", fact)
        return table


def _updating(
    table: Table, key: Key, before: Item | None, after: Item, sets: Item, change: Change, guard: conditions.Condition
) -> Write:
    if before is None:
        return Put(table, after, guard)
    removed = tuple(name for name in change.remove if name in before)
    if not sets and not removed:
        return Check(table, key, guard)
    return Update(table, key, set=sets, remove=removed, condition=guard)


def _whole_guard(table: Table, view: ItemView, item: Item | None, *, is_returned: bool) -> conditions.Condition | None:
    """Return the condition under which a whole item is replaced or deleted: none, if nothing was asked of it."""
    if not view.looked_at and not is_returned:
        return None
    return _guard(table, view, item, item if is_returned else None)


def _guard(table: Table, view: ItemView, item: Item | None, returned: Item | None) -> conditions.Condition:
    """Return the condition that an item is as it was, as far as it was looked at or is given back."""
    if item is None:
        return absent()
    clauses: list[conditions.Condition] = [exists()]
    for name, is_needed in view.looked_at.items():
        if name in table.key_names:
            continue
        if name not in item:
            clauses.append(lacks(name))
        elif not is_needed:
            clauses.append(has(name))
        elif _is_comparable(item[name]):
            clauses.append(equals(name, item[name]))
        else:
            raise InvalidItemError(
                f"{name} is a list, a map, a set or longer than {VALUE_BYTES_MAX} bytes: the expressions of a write "
                "can ask whether it is there, and set or remove it, but not look into it"
            )
    rest = [name for name in returned or () if name not in view.looked_at and name not in table.key_names]
    for name in rest[:_RETURNED_GUARDS_MAX]:
        value = item[name]
        clauses.append(equals(name, value) if _is_comparable(value) else has(name))
    return all_of(*clauses)


def _is_comparable(value: object) -> bool:
    if isinstance(value, str):
        return len(value.encode()) <= VALUE_BYTES_MAX
    if isinstance(value, bytes):
        return len(value) <= VALUE_BYTES_MAX
    return value is None or isinstance(value, bool | int | float)


def _answer_put(context: ActivityContext, answer: Json) -> Put:
    row = {
        "idempotency_key": _answer_key(context),
        "answer": msgspec.json.encode(answer).decode(),
        "ttl": context.clock_ms() // 1000 + ANSWER_SECONDS,
    }
    return Put(IDEMPOTENCY, row, absent())


def _answer_key(context: ActivityContext) -> str:
    return f"asl#{context.activity_id}"


def _attributes(item: Mapping[str, Any] | None) -> Json:
    return {"Attributes": write_item(item)} if item else {}


def _places(given: CallParameters) -> Placeholders:
    names = given.find(_PLACES[0], dict) or {}
    values = given.find(_PLACES[1], dict) or {}
    for name, stands_for in names.items():
        if not name.startswith("#") or not isinstance(stands_for, str) or not stands_for:
            raise InvalidItemError(f"{_PLACES[0]}.{name}: write '#name', and as its value the name of an attribute")
    for name in values:
        if not name.startswith(":"):
            raise InvalidItemError(f"{_PLACES[1]}.{name}: write ':name'")
    read, _ = canonical_item({name: read_value(value, f"{_PLACES[1]}.{name}") for name, value in values.items()})
    return Placeholders(names, read)


def _condition(given: CallParameters, places: Placeholders, name: str) -> Condition | None:
    text = given.find(name, str)
    return None if text is None else parse_condition(text, places, name)


def _projection(given: CallParameters, places: Placeholders) -> tuple[str, ...] | None:
    text = given.find("ProjectionExpression", str)
    return None if text is None else parse_projection(text, places)


def _projected(item: Item, wanted: Iterable[str] | None) -> Item:
    return item if wanted is None else {name: item[name] for name in wanted if name in item}


def _key(table: Table, given: CallParameters) -> Key:
    attributes = read_item(given.get("Key", dict), "Key")
    key = _key_of(table, attributes, "Key")
    if attributes.keys() != set(table.key_names):
        raise InvalidItemError(
            f"The provided key element does not match the schema: it is {' and '.join(table.key_names)}"
        )
    return key


def _key_of(table: Table, attributes: Item, where: str) -> Key:
    for attribute in table.own_keys:
        if attribute.name not in attributes:
            raise InvalidItemError(f"{where}: One of the required keys was not given a value: {attribute.name}")
    return table.key_of(attributes)


def _cursor(given: CallParameters) -> str | None:
    start = given.find("ExclusiveStartKey", dict)
    if start is None:
        return None
    cursor = read_item(start, "ExclusiveStartKey").get(CURSOR)
    if not isinstance(cursor, str):
        raise runtime_error(
            f"The field 'ExclusiveStartKey' of {given.resource} must be the LastEvaluatedKey of an answer"
        )
    return cursor
