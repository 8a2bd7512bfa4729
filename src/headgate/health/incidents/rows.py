"""Rows of incidents: the incident itself, its deduplication and open-incident rows, and its timers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from headgate import typed_decode
from headgate.health.incidents.decisions import REOPEN_MS
from headgate.health.model import timestamps
from headgate.health.model.incidents import Incident
from headgate.store.catalogue.tables import CONTROL, INCIDENT_INDEX
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Delete, Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

META: Final = "META"
KEPT_SECONDS: Final = 365 * 86_400
DUE_SHARDS: Final = 4
OPEN_LOOKED_AT: Final = 200
_FIELDS: Final = frozenset(field.name for field in msgspec.structs.fields(Incident))


class Sealer(Protocol):
    """Encrypts the sensitive fields of a row, and decrypts them."""

    def seal(self, row: Item) -> Item:
        """Return the row with its sensitive fields encrypted."""

    def open(self, row: Item) -> Item:
        """Return the row with its sensitive fields decrypted."""


class Unsealed:
    """Encrypts nothing."""

    def seal(self, row: Item) -> Item:
        return row

    def open(self, row: Item) -> Item:
        return row


def incident_key(incident_id: str) -> Key:
    """Return the key of an incident's row."""
    return Key(f"INC#{incident_id}", META)


def incident_row(incident: Incident, sealer: Sealer, kept_seconds: int = KEPT_SECONDS) -> Item:
    """Return the row of an incident. An open one never expires, a resolved one after `kept_seconds`."""
    row: Item = {
        **msgspec.to_builtins(incident),
        "PK": f"INC#{incident.incident_id}",
        "SK": META,
        "GSI1PK": f"DS#{incident.primary_dataset_urn}",
        "GSI1SK": incident.created_at,
        "GSI2PK": f"STATUS#{incident.status}",
        "GSI2SK": f"{incident.severity}#{incident.created_at}",
        "GSI3PK": f"TEAM#{incident.owner_team}#{incident.status}",
        "GSI3SK": incident.created_at,
    }
    if incident.failure_signatures:
        row["GSI4PK"] = f"SIG#{incident.failure_signatures[0]}"
        row["GSI4SK"] = incident.created_at
    if incident.resolved_at is not None:
        row["ttl"] = timestamps.milliseconds(incident.resolved_at) // 1000 + kept_seconds
    return sealer.seal(row)


def incident_of(row: Mapping[str, Any], sealer: Sealer) -> Incident:
    """Return the incident of a row."""
    opened = sealer.open(dict(row))
    return typed_decode.convert({name: value for name, value in opened.items() if name in _FIELDS}, Incident)


def incident_put(
    incident: Incident, sealer: Sealer, *, replaces: int | None = None, kept_seconds: int = KEPT_SECONDS
) -> Put:
    """Return the write of a new incident, or of one that replaces version `replaces`."""
    condition = absent() if replaces is None else version_is(replaces)
    return Put(INCIDENT_INDEX, incident_row(incident, sealer, kept_seconds), condition)


def dedup_key_of(dedup_key: str) -> Key:
    """Return the key of a deduplication row."""
    return Key(f"DEDUP#{dedup_key}", "DEDUP")


def dedup_write(incident: Incident, dedup_key: str, now_ms: int, condition: Condition) -> Put | Delete:
    """Return the write of the row that maps a deduplication key to its incident, kept for a while after resolution."""
    if incident.is_closed:
        return Delete(CONTROL, dedup_key_of(dedup_key), condition)
    row: Item = {
        "PK": f"DEDUP#{dedup_key}",
        "SK": "DEDUP",
        "incident_id": incident.incident_id,
        "is_open": incident.is_open,
    }
    if not incident.is_open:
        silent_ms = 0 if incident.silenced_until is None else timestamps.milliseconds(incident.silenced_until)
        row["ttl"] = max(now_ms + REOPEN_MS, silent_ms) // 1000
    return Put(CONTROL, row, condition)


def open_put(incident: Incident, dataset_urn: str) -> Put:
    """Return the write of the row that lists an open incident under a dataset."""
    return Put(CONTROL, {"PK": f"OPEN#{dataset_urn}", "SK": incident.incident_id, "incident_id": incident.incident_id})


def open_delete(incident: Incident, dataset_urn: str) -> Delete:
    """Return the delete of the row that lists an open incident under a dataset."""
    return Delete(CONTROL, Key(f"OPEN#{dataset_urn}", incident.incident_id))


def open_query(dataset_urn: str) -> Query:
    """Return the query for the open incidents of a dataset."""
    return Query(table=CONTROL, partition=f"OPEN#{dataset_urn}", limit=OPEN_LOOKED_AT)


class TimerKind:
    """Kinds of incident timers."""

    ESCALATION: Final = "ESCALATION"
    RECOVERY: Final = "RECOVERY"
    PINS: Final = "PINS"
    RADIUS: Final = "RADIUS"
    ALL: Final = (ESCALATION, RECOVERY, PINS, RADIUS)


def due_partition(kind: str, incident_id: str) -> str:
    """Return the due-index partition of an incident's timer."""
    return f"{kind}#{zlib.crc32(incident_id.encode()) % DUE_SHARDS}"


def due_partitions(kind: str) -> list[str]:
    """Return all due-index partitions of a kind of timer."""
    return [f"{kind}#{shard}" for shard in range(DUE_SHARDS)]


def due_key(kind: str, incident_id: str) -> Key:
    """Return the key of an incident's timer."""
    return Key(f"{kind}#{incident_id}", "STATE")


def due_put(kind: str, incident_id: str, due_at_ms: int, **more: Any) -> Put:  # noqa: ANN401 - what the kind needs
    """Return the write that sets an incident's timer."""
    return Put(
        CONTROL,
        {
            "PK": f"{kind}#{incident_id}",
            "SK": "STATE",
            "due_pk": due_partition(kind, incident_id),
            "due_at_ms": due_at_ms,
            "incident_id": incident_id,
            **more,
        },
    )


def due_delete(kind: str, incident_id: str) -> Delete:
    """Return the delete of an incident's timer."""
    return Delete(CONTROL, due_key(kind, incident_id))
