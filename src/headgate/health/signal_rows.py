"""Rows of signals and of their history, in the words that others read them by."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.health.signal_values import Metrics, Producer, Signal, SignalValue, Snapshot
from headgate.health.vocabulary import Confidence, SignalState, Tier
from headgate.store.schema import Key
from headgate.store.tables import BREACH_SHARDS
from headgate.store.values import Item

_DAY_SECONDS: Final = 86_400
QUIET_DAYS: Final = 30
HISTORY_SECONDS: Final = 90 * _DAY_SECONDS
# Listed by the breach index. Healthy ones are not: they are nearly all, and would make one key of it hot.
LISTED: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN)
_PRODUCER: Final = ("top_producer", "top_producer_version", "top_producer_confidence")
_LATE: Final = 0


def signal_key(dataset_urn: str, signal_type: str) -> Key:
    """Return where a signal is kept."""
    return Key(dataset_urn, signal_type)


def shard_of(dataset_urn: str, signal_type: str) -> int:
    """Return the part of the breach index that lists a signal: the same in every process."""
    return zlib.crc32(f"{dataset_urn}#{signal_type}".encode()) % BREACH_SHARDS


def breach_partition(state: SignalState, tier: Tier, shard: int) -> str:
    """Return the partition of the breach index that holds signals of a state and tier."""
    return f"BREACH#{state}#{tier}#{shard}"


def signal_row(signal: Signal, now_seconds: int) -> Item:
    """Return a signal as a row. One that is not OK never expires: a dataset that fell silent must stay visible."""
    value = signal.value
    row: Item = {
        "PK": signal.dataset_urn,
        "SK": signal.signal_type,
        "state": value.state.value,
        "previous_state": None if signal.previous_state is None else signal.previous_state.value,
        "state_changed_at": signal.state_changed_at,
        "score": value.score,
        "slo_threshold": value.slo_threshold,
        "window_start": value.window_start,
        "window_end": value.window_end,
        "window_type": value.window_type,
        "metrics": {
            "evidence_count": value.metrics.evidence_count,
            "pass_count": value.metrics.pass_count,
            "fail_count": value.metrics.fail_count,
        },
        "evidence_sample": list(value.evidence_sample),
        "tier": signal.tier.value,
        "owner_team": signal.owner_team,
        "last_updated": signal.last_updated,
        "version": signal.version,
        "digest": signal.digest,
    }
    for name in ("breach_start", "failure_signature", "incident_id"):
        given = getattr(value, name)
        if given is not None:
            row[name] = given
    producer = value.top_producer
    if producer is not None:
        row["top_producer"] = producer.producer_id
        row["top_producer_version"] = producer.version
        row["top_producer_confidence"] = None if producer.confidence is None else producer.confidence.value
        if producer.deployed_at is not None:
            row["top_producer_deployed_at"] = producer.deployed_at
    if value.state is SignalState.OK:
        # To the day: a refresh then leaves every index as it is.
        row["ttl"] = (now_seconds // _DAY_SECONDS + QUIET_DAYS + 1) * _DAY_SECONDS
    else:
        row["breach_pk"] = breach_partition(value.state, signal.tier, shard_of(signal.dataset_urn, signal.signal_type))
        row["breach_sk"] = f"{signal.state_changed_at}#{signal.dataset_urn}#{signal.signal_type}"
    return row


def signal_of(row: Mapping[str, Any]) -> Signal:
    """Return the signal that a row stands for."""
    previous = row.get("previous_state")
    return Signal(
        dataset_urn=row["PK"],
        signal_type=row["SK"],
        value=_value(row),
        tier=Tier(row["tier"]),
        owner_team=row["owner_team"],
        version=row["version"],
        digest=row["digest"],
        last_updated=row["last_updated"],
        state_changed_at=row["state_changed_at"],
        previous_state=None if previous is None else SignalState(previous),
    )


def _value(row: Mapping[str, Any]) -> SignalValue:
    return SignalValue(
        state=SignalState(row["state"]),
        # A whole number comes back as one, whatever it was stored as.
        score=float(row["score"]),
        slo_threshold=float(row["slo_threshold"]),
        window_start=row["window_start"],
        window_end=row["window_end"],
        window_type=row["window_type"],
        metrics=Metrics(**row["metrics"]),
        breach_start=row.get("breach_start"),
        failure_signature=row.get("failure_signature"),
        top_producer=_producer(row),
        evidence_sample=tuple(row["evidence_sample"]),
        incident_id=row.get("incident_id"),
    )


def _producer(row: Mapping[str, Any]) -> Producer | None:
    if row.get("top_producer") is None:
        return None
    confidence = row.get("top_producer_confidence")
    return Producer(
        producer_id=row["top_producer"],
        version=row["top_producer_version"],
        confidence=None if confidence is None else Confidence(confidence),
        deployed_at=row.get("top_producer_deployed_at"),
    )


def history_partition(dataset_urn: str, signal_type: str, month: str) -> str:
    """Return the partition of a month (`yyyymm`) of a signal's history."""
    return f"{dataset_urn}#{signal_type}#{month}"


def month_of(moment: str) -> str:
    """Return the month of a moment as partitions of the history name it."""
    return f"{moment[:4]}{moment[5:7]}"


def history_row(signal: Signal, now_seconds: int) -> Item:
    """Return the row that a transition leaves in the history."""
    value = signal.value
    return _history_row(signal, signal.version, now_seconds) | {
        "previous_state": None if signal.previous_state is None else signal.previous_state.value,
        "incident_id": value.incident_id,
    }


def late_row(signal: Signal, now_seconds: int) -> Item:
    """Return the row of a window that came too late to count: the same one for the same window, however often."""
    return _history_row(signal, _LATE, now_seconds) | {"late": True}


def _history_row(signal: Signal, version: int, now_seconds: int) -> Item:
    value = signal.value
    return {
        "PK": history_partition(signal.dataset_urn, signal.signal_type, month_of(value.window_end)),
        "SK": f"{value.window_end}#{version:010d}",
        "state": value.state.value,
        "score": value.score,
        "window_start": value.window_start,
        "window_end": value.window_end,
        "changed_at": signal.last_updated,
        "version": version,
        "failure_signature": value.failure_signature,
        "ttl": now_seconds + HISTORY_SECONDS,
    }


def snapshot_of(row: Mapping[str, Any]) -> Snapshot:
    """Return the transition that a row of the history stands for."""
    return msgspec.convert({key: value for key, value in row.items() if key in _SNAPSHOT}, Snapshot)


_SNAPSHOT: Final = frozenset(field.name for field in msgspec.structs.fields(Snapshot))
