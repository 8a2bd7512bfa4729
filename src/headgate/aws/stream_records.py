"""Stream records: converts DynamoDB stream records of a Lambda event to store changes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headgate.store.dynamodb.marshalling import from_attributes
from headgate.store.dynamodb.streams import TTL_PRINCIPAL
from headgate.store.model.requests import Change, ChangeKind
from headgate.store.model.schema import Key, Table
from headgate.store.model.shards import plain_change, plain_key
from headgate.store.model.values import Item


def record_key(table: Table, record: Mapping[str, Any]) -> Key:
    """Return the key of a record's row. A malformed record raises any error."""
    return plain_key(table, table.key_of(from_attributes(_decoded(record["dynamodb"]["Keys"]))))


def stream_change(table: Table, record: Mapping[str, Any]) -> Change:
    """Return the change of a record, without restoring spilled attributes. A malformed record raises any error."""
    body = record["dynamodb"]
    old, new = _image(body.get("OldImage")), _image(body.get("NewImage"))
    kind = ChangeKind.INSERT if old is None else ChangeKind.REMOVE if new is None else ChangeKind.MODIFY
    is_expired = (record.get("userIdentity") or {}).get("principalId") == TTL_PRINCIPAL
    change = Change(
        str(record["eventID"]),
        table,
        kind,
        record_key(table, record),
        old,
        new,
        float(body["ApproximateCreationDateTime"]),
        is_expired,
    )
    return plain_change(change)


def sequence_number(record: Mapping[str, Any]) -> str:
    """Return the sequence number by which a failed record is reported."""
    return str(record["dynamodb"]["SequenceNumber"])


def _image(attributes: Mapping[str, Any] | None) -> Item | None:
    return None if attributes is None else from_attributes(_decoded(attributes))


def _decoded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in attributes.items()}


def _value(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an attribute value with its binary content decoded from base64."""
    ((kind, content),) = value.items()
    match kind:
        case "B":
            return {kind: base64.b64decode(content)}
        case "BS":
            return {kind: [base64.b64decode(each) for each in content]}
        case "M":
            return {kind: _decoded(content)}
        case "L":
            return {kind: [_value(each) for each in content]}
    return {kind: content}
