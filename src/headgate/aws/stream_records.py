"""Stream records: what a Lambda is told of a changed row, as the change that the router hears of."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headgate.store.dynamodb.marshalling import from_attributes
from headgate.store.dynamodb.streams import TTL_PRINCIPAL
from headgate.store.model.requests import Change, ChangeKind
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item


def key_of(table: Table, record: Mapping[str, Any]) -> Key:
    """Return the key of the row that a record is about. Raises whatever a bad one leads to."""
    return table.key_of(from_attributes(_decoded(record["dynamodb"]["Keys"])))


def change_of(table: Table, record: Mapping[str, Any]) -> Change:
    """Return the change that a record tells of, spilled attributes not restored. Raises whatever a bad one leads to."""
    body = record["dynamodb"]
    old, new = _image(body.get("OldImage")), _image(body.get("NewImage"))
    kind = ChangeKind.INSERT if old is None else ChangeKind.REMOVE if new is None else ChangeKind.MODIFY
    is_expired = (record.get("userIdentity") or {}).get("principalId") == TTL_PRINCIPAL
    return Change(
        str(record["eventID"]),
        table,
        kind,
        key_of(table, record),
        old,
        new,
        float(body["ApproximateCreationDateTime"]),
        is_expired,
    )


def sequence_of(record: Mapping[str, Any]) -> str:
    """Return the number under which a record is reported."""
    return str(record["dynamodb"]["SequenceNumber"])


def _image(attributes: Mapping[str, Any] | None) -> Item | None:
    return None if attributes is None else from_attributes(_decoded(attributes))


def _decoded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in attributes.items()}


def _value(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value with its bytes as such: an event is JSON, and has them in base 64."""
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
