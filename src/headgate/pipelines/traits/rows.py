"""Trait rows: results for a period or for all, their history, and their encoding.

`TRAIT#type` has the latest result and the history. Results for a period have their own rows beside it,
`TRAIT#type#date#schedule`, so that they never apply to another period.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import CorruptionError, InvalidPayloadError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.rules.facts import TraitFact
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import TRAIT_OF_DATE, TRAIT_OF_PERIOD, TRAIT_RESULT
from headgate.store.model.schema import Key
from headgate.store.model.values import Item

HISTORY_MAX: Final = 50
VALUE_BYTES_MAX: Final = 65_536
# Retention of a result after it has expired.
RETENTION_SECONDS: Final = 30 * 86_400
_REASON_MAX: Final = 200
_TYPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class TraitResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a trait. `status` is the evaluated one; `status_at` accounts for its expiry."""

    pipeline_id: str
    trait_type: str
    status: TraitStatus
    evaluated_at_ms: int
    # 0: it does not expire.
    expires_at_ms: int = 0
    reason: str = ""
    value: Json = None
    category: FailureCategory | None = None
    # The period; empty: all periods.
    date: str = ""
    schedule_id: str = ""
    # The evaluator, or the author of a pushed result.
    evaluator: str = ""
    by: str = ""
    run_id: str = ""
    duration_ms: int = 0

    def is_expired(self, now_ms: int) -> bool:
        """Whether it has expired."""
        return 0 < self.expires_at_ms <= now_ms

    def status_at(self, now_ms: int) -> TraitStatus:
        """Return the status at a time: STALE once it has expired."""
        return TraitStatus.STALE if self.is_expired(now_ms) else self.status

    def applies_to(self, slot: Slot) -> bool:
        """Whether it is for this period, or for all."""
        if not self.date:
            return True
        return self.date == slot.date and self.schedule_id in ("", slot.schedule_id)

    def fact(self, now_ms: int) -> TraitFact:
        """Return it as a fact for the readiness verdict."""
        return TraitFact(
            status=self.status_at(now_ms),
            reason=self.reason_at(now_ms),
            category=self.category,
            evaluated_at_ms=self.evaluated_at_ms,
        )

    def reason_at(self, now_ms: int) -> str:
        """Return the reason of the status at a time."""
        if not self.is_expired(now_ms):
            return self.reason
        was = f"{self.status.value}: {self.reason}" if self.reason else self.status.value
        return f"it expired {(now_ms - self.expires_at_ms) // 1000} s ago; it was {was}"


class TraitLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a trait's history: consecutive equal results, with their number."""

    status: TraitStatus
    first_at_ms: int
    last_at_ms: int
    count: int = 1
    reason: str = ""
    category: FailureCategory | None = None
    date: str = ""
    schedule_id: str = ""
    by: str = ""


_history: Final = msgspec.json.Decoder(tuple[TraitLine, ...])


def is_type(name: str) -> bool:
    """Whether a name is a valid trait type."""
    return _TYPE.fullmatch(name) is not None


def checked_type(trait_type: str) -> str:
    """Return a trait type. Raises `InvalidPayloadError` for an invalid one."""
    if not is_type(trait_type):
        raise InvalidPayloadError(
            f"trait {trait_type[:40]!r}: use 1 to 128 letters, digits, dots, dashes and underscores"
        )
    return trait_type


def trait_key(pipeline_id: str, trait_type: str, date: str = "", schedule_id: str = "") -> Key:
    """Return the key of a result's row: for all periods, for a date, or for one schedule of it."""
    checked = checked_type(trait_type)
    if not date:
        return TRAIT_RESULT.key(pipeline_id=pipeline_id, trait_type=checked)
    if not schedule_id:
        return TRAIT_OF_DATE.key(pipeline_id=pipeline_id, trait_type=checked, date=date)
    return TRAIT_OF_PERIOD.key(pipeline_id=pipeline_id, trait_type=checked, date=date, schedule_id=schedule_id)


def keys_for(pipeline_id: str, trait_type: str, slot: Slot) -> tuple[Key, ...]:
    """Return the candidate keys for a period, the most specific first."""
    places = (
        trait_key(pipeline_id, trait_type, slot.date, slot.schedule_id),
        trait_key(pipeline_id, trait_type, slot.date),
        trait_key(pipeline_id, trait_type),
    )
    return tuple(dict.fromkeys(places))


def trait_item(  # the store takes any attribute
    key: Key,
    result: TraitResult,
    *,
    kept_seconds: int = RETENTION_SECONDS,
    **more: Any,  # noqa: ANN401
) -> Item:
    """Encode a result as its row. The value is stored as JSON text, and is never queried."""
    kept_from_ms = max(result.evaluated_at_ms, result.expires_at_ms)
    is_kept_for_ever = not result.expires_at_ms and not result.date
    ttl = None if is_kept_for_ever else kept_from_ms // 1000 + kept_seconds
    value = None if result.value is None else msgspec.json.encode(result.value).decode()
    return row(key, replace(result, value=None), value_json=value, ttl=ttl, **more)


def trait_of(item: Mapping[str, Any]) -> TraitResult:
    """Decode a result from its row. Raises `CorruptionError`."""
    result = struct_of(item, TraitResult)
    value_json = item.get("value_json")
    return result if value_json is None else replace(result, value=_decoded(item, value_json, msgspec.json.decode))


def history_of(item: Mapping[str, Any]) -> tuple[TraitLine, ...]:
    """Decode the history of a row, latest last. An unreadable one counts as empty: it decides nothing."""
    text = item.get("history_json")
    try:
        return () if text is None else _decoded(item, text, _history.decode)
    except CorruptionError:
        return ()


def history_json(lines: Sequence[TraitLine]) -> str:
    """Encode a history as stored."""
    return msgspec.json.encode(lines).decode()


def extended(lines: Sequence[TraitLine], result: TraitResult) -> tuple[TraitLine, ...]:
    """Return a history with one more result. An equal one increments the count of the last line."""
    line = TraitLine(
        status=result.status,
        first_at_ms=result.evaluated_at_ms,
        last_at_ms=result.evaluated_at_ms,
        reason=result.reason[:_REASON_MAX],
        category=result.category,
        date=result.date,
        schedule_id=result.schedule_id,
        by=result.by,
    )
    if lines and _finding(lines[-1]) == _finding(line):
        last = lines[-1]
        merged = replace(
            line, first_at_ms=last.first_at_ms, last_at_ms=max(last.last_at_ms, line.last_at_ms), count=last.count + 1
        )
        return (*lines[:-1], merged)
    return (*lines, line)[-HISTORY_MAX:]


def bounded_value(value: Json) -> tuple[Json, str]:
    """Return a value if it can be stored, and a note if it cannot."""
    try:
        length = 0 if value is None else len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None, " (its value is not JSON, and not kept)"
    return (value, "") if length <= VALUE_BYTES_MAX else (None, f" (its value of {length} bytes is not kept)")


def _finding(line: TraitLine) -> tuple[object, ...]:
    return (line.status, line.category, line.date, line.schedule_id, line.by)


def _decoded(item: Mapping[str, Any], text: object, decode: Any) -> Any:  # noqa: ANN401  # what the decoder gives
    try:
        return decode(text)
    except (msgspec.DecodeError, TypeError, RecursionError) as exc:
        where = (item.get("PK"), item.get("SK"))
        raise CorruptionError(f"row {where}: its JSON text is invalid, {exc}; check for other writers") from exc
