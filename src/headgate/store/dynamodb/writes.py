"""DynamoDB writes: prepares write requests, detects an applied write whose response was lost, and sends batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.errors import ThrottledError
from headgate.store.blobs.spill import Spill
from headgate.store.dynamodb.client import Calls, Refusal
from headgate.store.dynamodb.expressions import Placeholders, condition_expression, update_expression
from headgate.store.dynamodb.marshalling import from_attributes, to_attributes, to_key
from headgate.store.model.conditions import VERSION, AllOf, AnyOf, Compare, Comparison, Condition
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import (
    check_key,
    check_size,
    checked_item,
    checked_update,
    key_of,
    update_condition,
)
from headgate.store.model.values import Item, same, stored_bytes
from headgate.store.table_names import TableNames

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class PreparedWrite(msgspec.Struct, frozen=True):
    """A validated write with its large attributes spilled.

    `request` serves as a single call and as a member of a transaction. `condition` is the effective one, which for an
    update includes that the item exists. `stored` holds the values of a put or an update, and `size_bytes` their size.
    """

    write: Write
    condition: Condition | None
    request: dict[str, Any]
    stored: Item = {}
    size_bytes: int = 0

    @property
    def table(self) -> Table:
        return self.write.table

    @property
    def key(self) -> Key:
        return key_of(self.write)


class WriteRequests:
    """Prepares writes: canonical values, spilled attributes, and conditions compiled for the current time."""

    def __init__(self, names: TableNames, spill: Spill) -> None:
        self._names = names
        self._spill = spill

    def prepare(self, write: Write, now_seconds: float, *, cannot_repeat: bool = False) -> PreparedWrite:
        """Return the prepared write.

        Raises `InvalidItemError` or `ItemTooLargeError`, and the errors of writing blobs.
        """
        match write:
            case Put():
                return self._put(write, now_seconds)
            case Update():
                return self._update(checked_update(write, cannot_repeat=cannot_repeat), now_seconds)
            case Delete() | Check():
                check_key(write.table, write.key)
                request = {"Key": to_key(write.table, write.key)}
                places = Placeholders()
                return PreparedWrite(
                    write, write.condition, self._request(write.table, request, write.condition, now_seconds, places)
                )

    def _put(self, put: Put, now_seconds: float) -> PreparedWrite:
        table = put.table
        item, _ = checked_item(table, put.item)
        attributes = to_attributes(item)
        fitted = self._spill.fit(table, item)
        if fitted is not item:
            check_size(table, fitted)
            attributes = to_attributes(fitted)
        request = self._request(table, {"Item": attributes}, put.condition, now_seconds, Placeholders())
        return PreparedWrite(put, put.condition, request, fitted, stored_bytes(fitted))

    def _update(self, update: Update, now_seconds: float) -> PreparedWrite:
        table = update.table
        key = to_key(table, update.key)
        values = dict(update.set)
        attributes = to_attributes(values)
        fitted = self._spill.fit_update(table, update.key, values)
        if fitted is not values:
            attributes = to_attributes(fitted)
        check_size(table, {**table.key_attributes(update.key), **fitted})
        places = Placeholders()
        changes = {"Key": key, "UpdateExpression": update_expression(update, attributes, places)}
        condition = update_condition(update)
        request = self._request(table, changes, condition, now_seconds, places)
        return PreparedWrite(update, condition, request, fitted, stored_bytes(fitted))

    def _request(
        self,
        table: Table,
        parameters: dict[str, Any],
        condition: Condition | None,
        now_seconds: float,
        places: Placeholders,
    ) -> dict[str, Any]:
        request = {"TableName": self._names.physical(table), **parameters}
        if condition is not None:
            request["ConditionExpression"] = condition_expression(table, condition, now_seconds, places)
            # A conflict then carries the current item without a second read.
            request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        return {**request, **places.parameters()}


def is_repeatable(write: Write) -> bool:
    """Whether the write may be sent again even if it was applied the first time.

    Setting values is idempotent. Adding is not, unless the first application moves the version away from every version
    that the condition admits.
    """
    if not isinstance(write, Update) or not write.add:
        return True
    versions = _pinned_versions(write.condition)
    step = write.add.get(VERSION, 0)
    after = {write.set[VERSION]} if VERSION in write.set else {version + step for version in versions}
    return bool(versions) and versions.isdisjoint(after)


def applied_item(prepared: PreparedWrite, refusal: Refusal) -> Item | None:
    """Return the stored item if an earlier attempt, whose response was lost, applied the refused write.

    That is the case if a response was lost and the item equals the result of the write.
    """
    attributes = refusal.items[0]
    if not refusal.after_doubt or attributes is None:
        return None
    current = from_attributes(attributes)
    return current if _is_result(prepared, current) else None


def _is_result(prepared: PreparedWrite, current: Item) -> bool:
    write = prepared.write
    if isinstance(write, Put):
        return same(current, prepared.stored)
    if not isinstance(write, Update) or any(name in current for name in write.remove):
        return False
    if any(name not in current or not same(current[name], value) for name, value in prepared.stored.items()):
        return False
    # Added amounts cannot be verified from the item; the version that moves with them can.
    return not write.add or VERSION in write.set or _version_stepped(write, current)


def _version_stepped(update: Update, current: Item) -> bool:
    versions = _pinned_versions(update.condition)
    step = update.add.get(VERSION, 0)
    return len(versions) == 1 and step != 0 and current.get(VERSION) == next(iter(versions)) + step


def _pinned_versions(condition: Condition | None) -> frozenset[int]:
    """Return the only versions for which `condition` can hold; empty if it does not require any."""
    match condition:
        case Compare(attribute=attribute, comparison=Comparison.EQUALS, value=int() as value) if attribute == VERSION:
            return frozenset({value})
        case AllOf(clauses=clauses):
            return next((versions for versions in map(_pinned_versions, clauses) if versions), frozenset())
        case AnyOf(clauses=clauses):
            pinned = [_pinned_versions(clause) for clause in clauses]
            return frozenset().union(*pinned) if all(pinned) else frozenset()
    return frozenset()


BATCH_WRITES_MAX: Final = 25
# DynamoDB accepts 16 MB per request, and a byte of an item may take six in JSON.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024 // 6


class BatchWrites:
    """Writes items without conditions, in batches. Each batch has its own deadline."""

    def __init__(self, client: DynamoDBClient, calls: Calls) -> None:
        self._client = client
        self._calls = calls

    def write(self, prepared: Sequence[PreparedWrite]) -> None:
        """Apply all of `prepared`. Raises `ThrottledError` if some stay unprocessed until the deadline."""
        for batch in batches(prepared):
            self._write_batch(batch)

    def _write_batch(self, batch: Sequence[PreparedWrite]) -> None:
        pending: dict[str, list[Any]] = {}
        for member in batch:
            kind, name = ("PutRequest", "Item") if isinstance(member.write, Put) else ("DeleteRequest", "Key")
            pending.setdefault(member.request["TableName"], []).append({kind: {name: member.request[name]}})
        about = f"batch on {', '.join(sorted(pending))}"
        backoff = self._calls.backoff()
        while pending:
            answer = self._calls.read(self._client.batch_write_item, {"RequestItems": pending}, about, backoff)
            pending = answer.get("UnprocessedItems", {})
            if pending and not backoff.pause():
                raise ThrottledError(
                    f"{about}: DynamoDB did not process writes for {backoff.deadline_seconds:g} s; write it again"
                )


def batches(prepared: Sequence[PreparedWrite]) -> Iterator[list[PreparedWrite]]:
    """Split the writes into batches that fit one call."""
    batch: list[PreparedWrite] = []
    batch_bytes = 0
    for write in prepared:
        if batch and (len(batch) == BATCH_WRITES_MAX or batch_bytes + write.size_bytes > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(write)
        batch_bytes += write.size_bytes
    if batch:
        yield batch
