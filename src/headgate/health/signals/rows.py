"""Rows of signals and of their history, with the attribute names of the public table layout."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.errors import CorruptionError
from headgate.health.model.enums import STATE_OK, Confidence, SignalState, Tier
from headgate.health.model.signals import Metrics, Producer, Signal, SignalValue, Snapshot
from headgate.health.model.volume_counts import hour_of, stored_hour
from headgate.store.catalogue.tables import BREACH_SHARDS
from headgate.store.model.values import Item, TrustedItem, dump_trusted

_DAY_SECONDS: Final = 86_400
QUIET_DAYS: Final = 30
HISTORY_SECONDS: Final = 90 * _DAY_SECONDS
# States in the breach index. OK is left out: nearly all signals are OK, and would make one partition hot.
LISTED: Final = (SignalState.CRITICAL, SignalState.WARNING, SignalState.UNKNOWN)
_LATE: Final = 0
_STATES: Final[Mapping[str, SignalState]] = {each.value: each for each in SignalState}
_TIERS: Final[Mapping[str, Tier]] = {each.value: each for each in Tier}
# Up to here every integral float is exact.
_EXACT_MAX: Final = 2.0**53


def shard_of(dataset_urn: str, signal_type: str) -> int:
    """Return the shard of the breach index for a signal, the same in every process."""
    return zlib.crc32(f"{dataset_urn}#{signal_type}".encode()) % BREACH_SHARDS


def breach_partition(state: SignalState, tier: Tier, shard: int) -> str:
    """Return the breach-index partition of a state, tier and shard."""
    return f"BREACH#{state}#{tier}#{shard}"


def signal_row(signal: Signal, now_seconds: int, quiet_days: int = QUIET_DAYS) -> Item:
    """Return the row of a signal; one that is OK expires after `quiet_days` without an update.

    One that is not OK never expires: a dataset that went silent must stay visible. Enums are read by `_value_`, because
    `value` is a property, which is slow on this path.
    """
    value, metrics, previous = signal.value, signal.value.metrics, signal.previous_state
    row = TrustedItem(
        PK=signal.dataset_urn,
        SK=signal.signal_type,
        state=value.state._value_,
        previous_state=None if previous is None else previous._value_,
        state_changed_at=signal.state_changed_at,
        score=_number(value.score),
        slo_threshold=_number(value.slo_threshold),
        window_start=value.window_start,
        window_end=value.window_end,
        window_type=value.window_type,
        metrics={
            "evidence_count": metrics.evidence_count,
            "pass_count": metrics.pass_count,
            "fail_count": metrics.fail_count,
        },
        evidence_sample=[*value.evidence_sample],
        tier=signal.tier._value_,
        owner_team=signal.owner_team,
        last_updated=signal.last_updated,
        version=signal.version,
        digest=signal.digest,
    )
    if value.incident_id is not None:
        row["incident_id"] = value.incident_id
    if value.state is STATE_OK:
        # Rounded to days, so that a refresh leaves the indexes unchanged.
        row["ttl"] = (now_seconds // _DAY_SECONDS + quiet_days + 1) * _DAY_SECONDS
    else:
        row["breach_pk"] = breach_partition(value.state, signal.tier, shard_of(signal.dataset_urn, signal.signal_type))
        row["breach_sk"] = f"{signal.state_changed_at}#{signal.dataset_urn}#{signal.signal_type}"
    if signal.ok_until is not None:
        row["ok_until"] = signal.ok_until
    if signal.detected_at is not None:
        row["detected_at"] = signal.detected_at
    if signal.volume is not None:
        row["volume_hour"] = stored_hour(signal.volume)
    is_plain = _is_plain(signal)
    if not is_plain or value.failure_signature is not None or value.breach_start is not None:
        row.update(_failure_attributes(value))
    if not is_plain:
        return {**row}
    row.text = dump_trusted(row)
    return row


def _number(value: float) -> float:
    """Return a number as every store returns it."""
    return int(value) if value.is_integer() and value < _EXACT_MAX else value


def _is_plain(signal: Signal) -> bool:
    """Whether a signal has only ASCII text and no unusual number, so that the store can skip checking the row.

    All other fields are validated or generated.
    """
    value = signal.value
    return (
        value.top_producer is None
        and (value.failure_signature is None or value.failure_signature.isascii())
        and not value.failure_signatures
        and value.message is None
        and value.window_type.isascii()
        and signal.owner_team.isascii()
        and value.slo_threshold < _EXACT_MAX
    )


def _failure_attributes(value: SignalValue) -> Item:
    """Return the attributes of a row that describe the failure and its probable producer."""
    attributes: Item = {}
    if value.breach_start is not None:
        attributes["breach_start"] = value.breach_start
    if value.failure_signature is not None:
        attributes["failure_signature"] = value.failure_signature
    if value.failure_signatures:
        attributes["failure_signatures"] = [*value.failure_signatures]
    if value.message is not None:
        attributes["message"] = value.message
    producer = value.top_producer
    if producer is not None:
        attributes["top_producer"] = producer.producer_id
        attributes["top_producer_version"] = producer.version
        attributes["top_producer_confidence"] = None if producer.confidence is None else producer.confidence.value
        if producer.deployed_at is not None:
            attributes["top_producer_deployed_at"] = producer.deployed_at
    return attributes


def signal_of(row: Mapping[str, Any]) -> Signal:
    """Return the signal of a row. Raises `CorruptionError` for an invalid row."""
    try:
        return _signal(row)
    except (KeyError, TypeError, ValueError) as exc:
        name = f"{row.get('PK')} {row.get('SK')}"
        raise CorruptionError(f"signal {name}: the row is invalid ({exc!r}); stop and restore a backup") from exc


def _signal(row: Mapping[str, Any]) -> Signal:
    previous, volume = row.get("previous_state"), row.get("volume_hour")
    return Signal(
        dataset_urn=row["PK"],
        signal_type=row["SK"],
        value=_value(row),
        tier=_TIERS[row["tier"]],
        owner_team=row["owner_team"],
        version=row["version"],
        digest=row["digest"],
        last_updated=row["last_updated"],
        state_changed_at=row["state_changed_at"],
        previous_state=None if previous is None else _STATES[previous],
        ok_until=row.get("ok_until"),
        detected_at=row.get("detected_at"),
        volume=None if volume is None else hour_of(volume),
    )


def _value(row: Mapping[str, Any]) -> SignalValue:
    return SignalValue(
        state=_STATES[row["state"]],
        # A store may return an integral float as an integer.
        score=float(row["score"]),
        slo_threshold=float(row["slo_threshold"]),
        window_start=row["window_start"],
        window_end=row["window_end"],
        window_type=row["window_type"],
        metrics=Metrics(**row["metrics"]),
        breach_start=row.get("breach_start"),
        failure_signature=row.get("failure_signature"),
        failure_signatures=tuple(row.get("failure_signatures") or ()),
        message=row.get("message"),
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
    """Return the history partition of a signal and month (`yyyymm`)."""
    return f"{dataset_urn}#{signal_type}#{month}"


def month_of(moment: str) -> str:
    """Return the month of a timestamp, as in history partitions."""
    return f"{moment[:4]}{moment[5:7]}"


def history_row(signal: Signal, now_seconds: int, kept_seconds: int = HISTORY_SECONDS) -> Item:
    """Return the history row of a transition."""
    value = signal.value
    return _history_row(signal, signal.version, now_seconds + kept_seconds) | {
        "previous_state": None if signal.previous_state is None else signal.previous_state.value,
        "incident_id": value.incident_id,
    }


def late_row(signal: Signal, now_seconds: int, kept_seconds: int = HISTORY_SECONDS) -> Item:
    """Return the history row of a late window; the same window has the same key."""
    return _history_row(signal, _LATE, now_seconds + kept_seconds) | {"late": True}


def _history_row(signal: Signal, version: int, expires: int) -> Item:
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
        "ttl": expires,
    }


def snapshot_of(row: Mapping[str, Any]) -> Snapshot:
    """Return the transition of a history row."""
    return typed_decode.convert({key: value for key, value in row.items() if key in _SNAPSHOT}, Snapshot)


_SNAPSHOT: Final = frozenset(field.name for field in msgspec.structs.fields(Snapshot))
