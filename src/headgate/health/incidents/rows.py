"""Rows of incidents, and the small rows beside them that say when someone must look again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from headgate import typed_decode
from headgate.health.incidents.decisions import REOPEN_MS
from headgate.health.model import timestamps as moments
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
    """Encrypts the fields of a row that not everyone may read, and decrypts them."""

    def seal(self, row: Item) -> Item:
        """Return the row with those fields encrypted."""

    def open(self, row: Item) -> Item:
        """Return the row with those fields as they were."""


class Unsealed:
    """Encrypts nothing."""

    def seal(self, row: Item) -> Item:
        return row

    def open(self, row: Item) -> Item:
        return row


def incident_key(incident_id: str) -> Key:
    """Return where an incident is kept."""
    return Key(f"INC#{incident_id}", META)


def incident_row(incident: Incident, sealer: Sealer) -> Item:
    """Return an incident as a row. One that is not resolved never expires."""
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
        row["ttl"] = moments.milliseconds(incident.resolved_at) // 1000 + KEPT_SECONDS
    return sealer.seal(row)


def incident_of(row: Mapping[str, Any], sealer: Sealer) -> Incident:
    """Return the incident that a row stands for."""
    opened = sealer.open(dict(row))
    return typed_decode.convert({name: value for name, value in opened.items() if name in _FIELDS}, Incident)


def incident_put(incident: Incident, sealer: Sealer, *, replaces: int | None = None) -> Put:
    """Return the write of an incident: a new one, or one that replaces the version it was read at."""
    condition = absent() if replaces is None else version_is(replaces)
    return Put(INCIDENT_INDEX, incident_row(incident, sealer), condition)


def dedup_key_of(dedup_key: str) -> Key:
    """Return where it is kept which incident a trouble belongs to."""
    return Key(f"DEDUP#{dedup_key}", "DEDUP")


def dedup_write(incident: Incident, dedup_key: str, now_ms: int, condition: Condition) -> Put | Delete:
    """Return the row that leads from a trouble to its incident; for a while also after that was resolved."""
    if incident.is_closed:
        return Delete(CONTROL, dedup_key_of(dedup_key), condition)
    row: Item = {
        "PK": f"DEDUP#{dedup_key}",
        "SK": "DEDUP",
        "incident_id": incident.incident_id,
        "is_open": incident.is_open,
    }
    if not incident.is_open:
        row["ttl"] = (now_ms + REOPEN_MS) // 1000
    return Put(CONTROL, row, condition)


def open_put(incident: Incident, dataset_urn: str) -> Put:
    """Return the row by which an open incident is found from a dataset, however many are over."""
    return Put(CONTROL, {"PK": f"OPEN#{dataset_urn}", "SK": incident.incident_id, "incident_id": incident.incident_id})


def open_delete(incident: Incident, dataset_urn: str) -> Delete:
    """Return the removal of such a row."""
    return Delete(CONTROL, Key(f"OPEN#{dataset_urn}", incident.incident_id))


def open_query(dataset_urn: str) -> Query:
    """Return the question for the open incidents of a dataset."""
    return Query(table=CONTROL, partition=f"OPEN#{dataset_urn}", limit=OPEN_LOOKED_AT)


class TimerKind:
    """Kinds of rows that are due at a time."""

    ESCALATION: Final = "ESCALATION"
    RECOVERY: Final = "RECOVERY"
    PINS: Final = "PINS"
    ALL: Final = (ESCALATION, RECOVERY, PINS)


def due_partition(kind: str, incident_id: str) -> str:
    """Return the partition of the due index that an incident's row of a kind is in."""
    return f"{kind}#{zlib.crc32(incident_id.encode()) % DUE_SHARDS}"


def due_partitions(kind: str) -> list[str]:
    """Return every partition of the due index of a kind."""
    return [f"{kind}#{shard}" for shard in range(DUE_SHARDS)]


def due_key(kind: str, incident_id: str) -> Key:
    """Return where an incident's row of a kind is."""
    return Key(f"{kind}#{incident_id}", "STATE")


def due_put(kind: str, incident_id: str, due_at_ms: int, **more: Any) -> Put:  # noqa: ANN401 - what the kind needs
    """Return the row that has someone look at an incident at a time."""
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
    """Return the removal of such a row."""
    return Delete(CONTROL, due_key(kind, incident_id))
