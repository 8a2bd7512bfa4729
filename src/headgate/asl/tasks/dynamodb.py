"""DynamoDB actions: read and write items of the tables that settings declare, with the API of DynamoDB.

A write reads the item, evaluates its expressions, and writes under the condition that the attributes it read are
unchanged; on a conflict it starts over. Its response is stored in the same transaction under the activity's id: a retry
after a crash returns that response and writes nothing.
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
    Condition,
    ItemUpdate,
    Placeholders,
    parse_condition,
    parse_projection,
    parse_update,
)
from headgate.asl.tasks.dynamodb_items import ItemView, key_range
from headgate.asl.tasks.user_tables import UserTables
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import (
    ConflictError,
    CursorError,
    InvalidItemError,
    ItemTooLargeError,
    TransactionLimitError,
)
from headgate.store.catalogue.tables import IDEMPOTENCY
from headgate.store.model import conditions
from headgate.store.model.conditions import CLAUSES_MAX, VALUE_BYTES_MAX, absent, all_of, equals, exists, has, lacks
from headgate.store.model.requests import Check, Delete, Put, Query, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item, canonical_item
from headgate.store.port import Store

RESPONSE_TTL_SECONDS: Final = 24 * 3600
QUERY_ITEMS_MAX: Final = 1000
# Attempts of a write under contention.
TRIES_MAX: Final = 50
CURSOR: Final = "headgate.cursor"
_IGNORED: Final = ("ReturnConsumedCapacity", "ReturnItemCollectionMetrics")
_PLACEHOLDERS: Final = ("ExpressionAttributeNames", "ExpressionAttributeValues")
# The most attributes that are guarded only because they are returned.
_RETURNED_GUARDS_MAX: Final = CLAUSES_MAX // 2
_INVALID: Final = (InvalidItemError, ItemTooLargeError, TransactionLimitError, CursorError)


class Dialect(Struct, frozen=True):
    """Names of DynamoDB errors, which differ between the optimised and the SDK integration."""

    prefix: str
    # The name of every other error, such as an invalid request.
    other: str

    def error(self, code: str, fact: str, *, is_named: bool = True) -> StateError:
        """Return the `StateError` of a DynamoDB error code."""
        cause = f"{fact} (Service: AmazonDynamoDBv2; Status Code: 400; Error Code: {code})"
        return StateError(f"{self.prefix}.{code if is_named else self.other}", cause)

    def invalid(self, fact: str) -> StateError:
        """Return the error of an invalid request."""
        return self.error("ValidationException", fact, is_named=False)


OPTIMISED: Final = Dialect("DynamoDB", "AmazonDynamoDBException")
SDK: Final = Dialect("DynamoDb", "DynamoDbException")


class _PlannedWrite(Struct, frozen=True):
    """A write for an item as it was read, and the response to it."""

    write: Write
    response: Json


class _StoredResponse(Struct, frozen=True):
    """The response of an earlier attempt, which may be empty."""

    response: Json


class DynamodbCalls:
    """Runs DynamoDB actions on the tables of users in a store."""

    def __init__(self, store: Store, tables: UserTables) -> None:
        self._store = store
        self._tables = tables

    def call(self, action: str, parameters: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        """Run an action and return its response. Raises `StateError`."""
        perform: dict[str, Callable[[], Json]] = {
            "getItem": lambda: self._get(parameters, dialect),
            "query": lambda: self._query(parameters, dialect),
            "putItem": lambda: self._put(parameters, context, dialect),
            "updateItem": lambda: self._update(parameters, context, dialect),
            "deleteItem": lambda: self._delete(parameters, context, dialect),
        }
        try:
            return perform[action]()
        except _INVALID as exc:
            raise dialect.invalid(str(exc)) from exc

    # Reads.

    def _get(self, parameters: CallParameters, dialect: Dialect) -> Json:
        parameters.allow(("TableName", "Key", "ConsistentRead", "ProjectionExpression", _PLACEHOLDERS[0], *_IGNORED))
        table = self._table(parameters, dialect)
        placeholders = _placeholders_of(parameters)
        attribute_names = _projection(parameters, placeholders)
        placeholders.check_used()
        key = _key(table, parameters)
        item = self._tables.get(table, key, consistent=parameters.find("ConsistentRead", bool) or False)
        return {} if item is None else {"Item": write_item(_projected(item, attribute_names))}

    def _query(self, parameters: CallParameters, dialect: Dialect) -> Json:
        parameters.allow(
            ("TableName", "IndexName", "KeyConditionExpression", "FilterExpression", "ProjectionExpression", "Limit",
             "ScanIndexForward", "ConsistentRead", "ExclusiveStartKey", "Select", *_PLACEHOLDERS, *_IGNORED)
        )  # fmt: skip
        table = self._table(parameters, dialect)
        placeholders = _placeholders_of(parameters)
        key = parse_condition(parameters.get("KeyConditionExpression", str), placeholders, "KeyConditionExpression")
        item_filter = _condition(parameters, placeholders, "FilterExpression")
        attribute_names = _projection(parameters, placeholders)
        placeholders.check_used()
        index = parameters.find("IndexName", str)
        # Raises: these tables have no index.
        partition, sort = key_range(table if index is None else table.index(index), key)
        limit = parameters.find("Limit", int)
        if limit is not None and limit < 1:
            raise InvalidItemError(f"Limit is {limit}: it must be at least 1")
        page = self._tables.query(
            table,
            partition,
            sort,
            Query(
                table=table,
                partition=partition,
                limit=min(limit or QUERY_ITEMS_MAX, QUERY_ITEMS_MAX),
                cursor=_cursor(parameters),
                descending=parameters.find("ScanIndexForward", bool) is False,
                consistent=parameters.find("ConsistentRead", bool) or False,
            ),
        )
        found = [item for item in page.items if item_filter is None or ItemView(item).holds(item_filter)]
        response: dict[str, Json] = {"Count": len(found), "ScannedCount": len(page.items)}
        if parameters.choice("Select", ("ALL_ATTRIBUTES", "SPECIFIC_ATTRIBUTES", "COUNT")) != "COUNT":
            response["Items"] = [write_item(_projected(item, attribute_names)) for item in found]
        if page.cursor is not None:
            response["LastEvaluatedKey"] = {CURSOR: {"S": page.cursor}}
        return response

    # Writes.

    def _put(self, parameters: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        parameters.allow(("TableName", "Item", "ConditionExpression", "ReturnValues", *_PLACEHOLDERS, *_IGNORED))
        table = self._table(parameters, dialect)
        item, _ = canonical_item(read_item(parameters.get("Item", dict), "Item"))
        key = _key_of(table, item, "Item")
        returned = parameters.choice("ReturnValues", ("NONE", "ALL_OLD"))

        def plan(view: ItemView, before: Item | None) -> _PlannedWrite:
            guard = _whole_guard(table, view, before, is_returned=returned == "ALL_OLD")
            return _PlannedWrite(Put(table, item, guard), _attributes(before if returned == "ALL_OLD" else None))

        return self._write(table, key, parameters, context, dialect, plan)

    def _delete(self, parameters: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        parameters.allow(("TableName", "Key", "ConditionExpression", "ReturnValues", *_PLACEHOLDERS, *_IGNORED))
        table = self._table(parameters, dialect)
        key = _key(table, parameters)
        returned = parameters.choice("ReturnValues", ("NONE", "ALL_OLD"))

        def plan(view: ItemView, before: Item | None) -> _PlannedWrite:
            guard = _whole_guard(table, view, before, is_returned=returned == "ALL_OLD")
            return _PlannedWrite(Delete(table, key, guard), _attributes(before if returned == "ALL_OLD" else None))

        return self._write(table, key, parameters, context, dialect, plan)

    def _update(self, parameters: CallParameters, context: ActivityContext, dialect: Dialect) -> Json:
        parameters.allow(
            ("TableName", "Key", "UpdateExpression", "ConditionExpression", "ReturnValues", *_PLACEHOLDERS, *_IGNORED)
        )
        table = self._table(parameters, dialect)
        key = _key(table, parameters)
        returned = parameters.choice("ReturnValues", ("NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"))
        placeholders = _placeholders_of(parameters)
        text = parameters.find("UpdateExpression", str)
        change = ItemUpdate() if text is None else parse_update(text, placeholders)
        touched = {*change.set, *change.add, *change.remove}
        for name in table.key_names:
            if name in touched:
                raise InvalidItemError(f"Cannot update attribute {name}. This attribute is part of the key")

        def plan(view: ItemView, before: Item | None) -> _PlannedWrite:
            sets, _ = canonical_item(view.changed(change))
            after = {**(before or table.key_attributes(key)), **sets}
            for name in change.remove:
                after.pop(name, None)
            shown = {"ALL_OLD": before or {}, "ALL_NEW": after, "UPDATED_OLD": before or {}, "UPDATED_NEW": after}
            attributes = shown.get(returned, {})
            if returned.startswith("UPDATED"):
                attributes = {name: value for name, value in attributes.items() if name in touched}
            retained = {name: value for name, value in attributes.items() if before and name in before}
            guard = _guard(table, view, before, {name: before[name] for name in retained} if before else None)
            return _PlannedWrite(_updating(table, key, before, after, sets, change, guard), _attributes(attributes))

        return self._write(table, key, parameters, context, dialect, plan, placeholders)

    def _write(
        self,
        table: Table,
        key: Key,
        parameters: CallParameters,
        context: ActivityContext,
        dialect: Dialect,
        plan: Callable[[ItemView, Item | None], _PlannedWrite],
        placeholders: Placeholders | None = None,
    ) -> Json:
        placeholders = placeholders or _placeholders_of(parameters)
        condition = _condition(parameters, placeholders, "ConditionExpression")
        placeholders.check_used()
        stored = self._stored_response(context) if context.attempt > 1 else None
        if stored is not None:
            return stored.response
        for _ in range(TRIES_MAX):
            item = self._tables.get(table, key, consistent=True)
            view = ItemView(item)
            if condition is not None and not view.holds(condition):
                raise dialect.error("ConditionalCheckFailedException", "The conditional request failed")
            planned = plan(view, item)
            try:
                self._store.transact([self._tables.stored(planned.write), _response_put(context, planned.response)])
            except ConflictError:
                # A stored response means that this activity's write is done; otherwise another writer was faster.
                stored = self._stored_response(context)
                if stored is not None:
                    return stored.response
            else:
                return planned.response
        fact = f"{table.name} {tuple(key)}: other writers changed the item during each of {TRIES_MAX} attempts"
        raise dialect.error("TransactionConflictException", fact)

    def _stored_response(self, context: ActivityContext) -> _StoredResponse | None:
        """Return the response of this activity's write, if it was made."""
        row = self._store.get(IDEMPOTENCY, Key(_response_key(context)), consistent=True)
        return None if row is None else _StoredResponse(msgspec.json.decode(row["answer"]))

    def _table(self, parameters: CallParameters, dialect: Dialect) -> Table:
        name = parameters.get("TableName", str)
        table = self._tables.find(name)
        if table is not None:
            return table
        declared = ", ".join(self._tables.names) or "none"
        if self._tables.is_own(name):
            fact = (
                f"{parameters.resource}: {name[:200]} is reserved for Headgate itself; a Task uses the tables that "
                f"tasks.tables declares: {declared}"
            )
            raise dialect.error("AccessDeniedException", fact)
        fact = f"Requested resource not found: Table: {name[:200]} not found; tasks.tables declares {declared}"
        raise dialect.error("ResourceNotFoundException", fact)


def _updating(
    table: Table,
    key: Key,
    before: Item | None,
    after: Item,
    sets: Item,
    change: ItemUpdate,
    guard: conditions.Condition,
) -> Write:
    if before is None:
        return Put(table, after, guard)
    removed = tuple(name for name in change.remove if name in before)
    if not sets and not removed:
        return Check(table, key, guard)
    return Update(table, key, set=sets, remove=removed, condition=guard)


def _whole_guard(table: Table, view: ItemView, item: Item | None, *, is_returned: bool) -> conditions.Condition | None:
    """Return the guard for replacing or deleting an item; None if the call neither reads nor returns it."""
    if not view.attributes_read and not is_returned:
        return None
    return _guard(table, view, item, item if is_returned else None)


def _guard(table: Table, view: ItemView, item: Item | None, returned: Item | None) -> conditions.Condition:
    """Return the condition that the attributes read or returned are unchanged."""
    if item is None:
        return absent()
    clauses: list[conditions.Condition] = [exists()]
    for name, is_needed in view.attributes_read.items():
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
    rest = [name for name in returned or () if name not in view.attributes_read and name not in table.key_names]
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


def _response_put(context: ActivityContext, response: Json) -> Put:
    row = {
        "idempotency_key": _response_key(context),
        "answer": msgspec.json.encode(response).decode(),
        "ttl": context.clock_ms() // 1000 + RESPONSE_TTL_SECONDS,
    }
    return Put(IDEMPOTENCY, row, absent())


def _response_key(context: ActivityContext) -> str:
    return f"asl#{context.activity_id}"


def _attributes(item: Mapping[str, Any] | None) -> Json:
    return {"Attributes": write_item(item)} if item else {}


def _placeholders_of(parameters: CallParameters) -> Placeholders:
    names = parameters.find(_PLACEHOLDERS[0], dict) or {}
    values = parameters.find(_PLACEHOLDERS[1], dict) or {}
    for name, attribute in names.items():
        if not name.startswith("#") or not isinstance(attribute, str) or not attribute:
            raise InvalidItemError(
                f"{_PLACEHOLDERS[0]}.{name}: write '#name', and as its value the name of an attribute"
            )
    for name in values:
        if not name.startswith(":"):
            raise InvalidItemError(f"{_PLACEHOLDERS[1]}.{name}: write ':name'")
    read, _ = canonical_item({name: read_value(value, f"{_PLACEHOLDERS[1]}.{name}") for name, value in values.items()})
    return Placeholders(names, read)


def _condition(parameters: CallParameters, placeholders: Placeholders, name: str) -> Condition | None:
    text = parameters.find(name, str)
    return None if text is None else parse_condition(text, placeholders, name)


def _projection(parameters: CallParameters, placeholders: Placeholders) -> tuple[str, ...] | None:
    text = parameters.find("ProjectionExpression", str)
    return None if text is None else parse_projection(text, placeholders)


def _projected(item: Item, attribute_names: Iterable[str] | None) -> Item:
    return item if attribute_names is None else {name: item[name] for name in attribute_names if name in item}


def _key(table: Table, parameters: CallParameters) -> Key:
    attributes = read_item(parameters.get("Key", dict), "Key")
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


def _cursor(parameters: CallParameters) -> str | None:
    start = parameters.find("ExclusiveStartKey", dict)
    if start is None:
        return None
    cursor = read_item(start, "ExclusiveStartKey").get(CURSOR)
    if not isinstance(cursor, str):
        raise runtime_error(
            f"The field 'ExclusiveStartKey' of {parameters.resource} must be the LastEvaluatedKey of an answer"
        )
    return cursor
