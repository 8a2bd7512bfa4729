"""Trait store: results of named checks, evaluated here or pushed, each with a lifetime.

Expiry is decided when a result is read. A result of one period never applies to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.model import duration
from headgate.errors import ConflictError, CorruptionError, InvalidPayloadError
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.row_codec import REASON_MAX
from headgate.pipelines.rules.compiler import needs_of
from headgate.pipelines.rules.facts import TraitFact
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.sensor_periods import period_text
from headgate.pipelines.traits.rows import (
    RETENTION_SECONDS,
    TraitLine,
    TraitResult,
    bounded_value,
    checked_type,
    extended,
    history_json,
    history_of,
    is_type,
    keys_for,
    trait_item,
    trait_key,
    trait_of,
)
from headgate.store.catalogue.tables import PIPELINES, TRAIT_RESULT
from headgate.store.model.conditions import Condition, absent, any_of, at_most, lacks, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.values import Item
from headgate.store.port import Store

PUSH: Final = "push"
_PREFIX: Final = "TRAIT#"
# The character after the separator: it sorts after all rows of a type.
_AFTER: Final = "$"
_RACES_MAX: Final = 10
_PUSHED: Final = (TraitStatus.PASS, TraitStatus.FAIL)
_IMPOSSIBLE: Final = TraitFact(
    status=TraitStatus.ERROR, category=FailureCategory.PERMANENT, reason="no trait can have this name"
)

# Makes further writes for the transaction, from the new result and the previous one.
Also = Callable[[TraitResult, TraitResult | None], Sequence[Write]]


def _nothing(_result: TraitResult, _before: TraitResult | None) -> Sequence[Write]:
    return ()


class TraitPush(Struct, frozen=True, kw_only=True):
    """A pushed result: PASS or FAIL, with a lifetime; 0 is without end.

    With a date it is for that period alone, with a schedule for that of it.
    """

    status: str
    ttl_seconds: float
    reason: str = ""
    value: Json = None
    date: str = ""
    schedule_id: str = ""
    by: str = ""


class Traits:
    """Stores trait results. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, *, kept_seconds: int = RETENTION_SECONDS) -> None:
        self._store = store
        self._clock = clock
        self._kept_seconds = kept_seconds

    def push(self, pipeline_id: str, trait_type: str, push: TraitPush, *, also: Also = _nothing) -> TraitResult:
        """Store a pushed result, and return it.

        Raises `InvalidPayloadError` for an invalid type, status, lifetime, date, reason or value.
        """
        _check_push(checked_type(trait_type), push)
        now_ms = self._now_ms()
        result = TraitResult(
            pipeline_id=pipeline_id,
            trait_type=trait_type,
            status=TraitStatus(push.status),
            evaluated_at_ms=now_ms,
            expires_at_ms=expiry_ms(now_ms, push.ttl_seconds),
            reason=push.reason,
            value=push.value,
            date=_checked_period(push.date, push.schedule_id),
            schedule_id=push.schedule_id,
            evaluator=PUSH,
            by=push.by,
        )
        return self.record(result, also=also)

    def record(self, result: TraitResult, *, also: Also = _nothing) -> TraitResult:
        """Store a result with its line in the history, and return it. One that is older than the stored one is dropped.

        `also` makes further writes for the transaction. Raises `ConflictError` if they are refused.
        """
        key = trait_key(result.pipeline_id, result.trait_type)
        for _ in range(_RACES_MAX):
            current = self._store.get(PIPELINES, key, consistent=True)
            before = None if current is None else _readable(current)
            writes = [self._latest_put(current, before, result), *_period_put(result, self._kept_seconds)]
            try:
                self._store.transact([*writes, *also(result, before)])
            except ConflictError as exc:
                if 0 in exc.failures:
                    continue
                if exc.write_index < len(writes):
                    # The stored result of the period is newer.
                    return result
                raise
            return result
        return self._record_alone(result, also)

    def latest(self, pipeline_id: str, trait_type: str) -> TraitResult | None:
        """Return the latest result of a trait, of any period, expired or not."""
        item = self._store.get(PIPELINES, trait_key(pipeline_id, trait_type), consistent=True)
        return None if item is None else trait_of(item)

    def find(self, pipeline_id: str, trait_type: str, slot: Slot, now: datetime) -> TraitResult | None:
        """Return the result of a trait for a period: a valid one, or else an expired one."""
        keys = keys_for(pipeline_id, trait_type, slot)
        items = self._store.get_many(PIPELINES, keys, consistent=True)
        return _chosen([trait_of(item) for item in items if item is not None], slot, _ms(now))

    def facts(self, pipeline: Pipeline, slot: Slot, now: datetime) -> Mapping[str, TraitFact]:
        """Return the trait results for a period that a pipeline has or its rules read.

        A trait with an unreadable row is an error, and does not affect the others.
        """
        rules = (*pipeline.readiness.rules, *pipeline.post_run.rules)
        return self.read(pipeline.id, {*pipeline.readiness.traits, *needs_of(rules).traits}, slot, now)

    def read(self, pipeline_id: str, trait_types: Iterable[str], slot: Slot, now: datetime) -> Mapping[str, TraitFact]:
        """Return the results of these traits for a period at a time. Traits without a result are left out."""
        wanted = sorted(set(trait_types))
        facts: dict[str, TraitFact] = {name: _IMPOSSIBLE for name in wanted if not is_type(name)}
        wanted = [name for name in wanted if name not in facts]
        places = [keys_for(pipeline_id, each, slot) for each in wanted]
        flat = [key for keys in places for key in keys]
        items = iter(self._store.get_many(PIPELINES, flat, consistent=True) if flat else ())
        for name, keys in zip(wanted, places, strict=True):
            fact = _fact([item for item in (next(items) for _ in keys) if item is not None], slot, _ms(now))
            if fact is not None:
                facts[name] = fact
        return facts

    def ls(self, pipeline_id: str) -> Iterator[TraitResult]:
        """Yield the latest result of each trait of a pipeline, by type. Unreadable rows are left out."""
        after = _PREFIX
        while True:
            item = self._next(pipeline_id, after)
            if item is None:
                return
            trait_type = str(item["SK"]).removeprefix(_PREFIX).partition("#")[0]
            result = _readable(item)
            if result is not None and result.trait_type == trait_type:
                yield result
            # Skip all periods of this type.
            after = f"{_PREFIX}{trait_type}{_AFTER}"

    def history(self, pipeline_id: str, trait_type: str) -> list[TraitLine]:
        """Return the history of a trait, latest first."""
        item = self._store.get(PIPELINES, trait_key(pipeline_id, trait_type), consistent=True)
        return [] if item is None else list(reversed(history_of(item)))

    def _next(self, pipeline_id: str, after: str) -> Item | None:
        query = Query(
            table=PIPELINES,
            partition=TRAIT_RESULT.key(pipeline_id=pipeline_id, trait_type="-").partition,
            sort=Sort(Range.BETWEEN, after, _PREFIX[:-1] + _AFTER),
            limit=1,
        )
        items = self._store.query(query).items
        return items[0] if items else None

    def _latest_put(self, current: Item | None, before: TraitResult | None, result: TraitResult) -> Put:
        """Return the write of the row without a period: the history, and the result unless a better one is stored."""
        latest = result if before is None or _replaces(result, before) else before
        lines = extended(() if current is None else history_of(current), result)
        version = 0 if current is None else current.get("version")
        key = trait_key(result.pipeline_id, result.trait_type)
        item = trait_item(
            key,
            latest,
            kept_seconds=self._kept_seconds,
            history_json=history_json(lines),
            version=version + 1 if isinstance(version, int) else 1,
        )
        return Put(PIPELINES, item, _unchanged(current))

    def _record_alone(self, result: TraitResult, also: Also) -> TraitResult:
        """Store the result of a period without its history line, under write contention."""
        own = _period_put(result, self._kept_seconds)
        if not own:
            raise ConflictError(
                f"trait {result.trait_type} of {result.pipeline_id}: it changes concurrently; try again"
            )
        try:
            self._store.transact([*own, *also(result, None)])
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
        return result

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _check_push(trait_type: str, push: TraitPush) -> None:
    if push.status not in _PUSHED:
        raise InvalidPayloadError(f"trait {trait_type}: status {push.status[:40]!r} is none; push PASS or FAIL")
    if isinstance(push.ttl_seconds, bool) or not 0 <= push.ttl_seconds <= duration.SECONDS_MAX:
        raise InvalidPayloadError(f"trait {trait_type}: ttl is {push.ttl_seconds!r}; give seconds, 0 for no end")
    if len(push.reason) > REASON_MAX:
        raise InvalidPayloadError(f"trait {trait_type}: a reason has at most {REASON_MAX} characters")
    problem = bounded_value(push.value)[1]
    if problem:
        raise InvalidPayloadError(f"trait {trait_type}: the value cannot be kept{problem}; push what it comes to")


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def expiry_ms(now_ms: int, ttl_seconds: float) -> int:
    """Return when a result expires; 0 for a lifetime of 0, which is without end."""
    return now_ms + max(1, round(ttl_seconds * 1000)) if ttl_seconds > 0 else 0


def _replaces(result: TraitResult, before: TraitResult) -> bool:
    """Whether a result replaces the one in the row without a period.

    A valid result for all periods is not replaced by one of a period, which has its own row.
    """
    if result.evaluated_at_ms < before.evaluated_at_ms:
        return False
    is_for_one = bool(result.date) and not before.date
    return not is_for_one or before.is_expired(result.evaluated_at_ms)


def _period_put(result: TraitResult, kept_seconds: int) -> list[Put]:
    if not result.date:
        return []
    key = trait_key(result.pipeline_id, result.trait_type, result.date, result.schedule_id)
    not_newer = any_of(absent(), at_most("evaluated_at_ms", result.evaluated_at_ms))
    return [Put(PIPELINES, trait_item(key, result, kept_seconds=kept_seconds), not_newer)]


def _fact(items: Sequence[Item], slot: Slot, now_ms: int) -> TraitFact | None:
    try:
        chosen = _chosen([trait_of(item) for item in items], slot, now_ms)
    except CorruptionError as exc:
        return TraitFact(status=TraitStatus.ERROR, category=FailureCategory.PERMANENT, reason=str(exc))
    return None if chosen is None else chosen.fact(now_ms)


def _chosen(results: Sequence[TraitResult], slot: Slot, now_ms: int) -> TraitResult | None:
    """Return the most specific valid result; if there is none, the most specific one."""
    ours = [result for result in results if result.applies_to(slot)]
    return next((result for result in ours if not result.is_expired(now_ms)), ours[0] if ours else None)


def _readable(item: Item) -> TraitResult | None:
    """Decode the result of a row, or None for an unreadable one, which is overwritten."""
    try:
        return trait_of(item)
    except CorruptionError:
        return None


def _checked_period(date: str, schedule_id: str) -> str:
    if not date:
        if schedule_id:
            raise InvalidPayloadError(
                f"schedule {schedule_id[:40]!r}: a schedule is given with a date, and there is none"
            )
        return ""
    period = period_text(date)
    if period is None:
        raise InvalidPayloadError(
            f"date {date[:40]!r} is no period; write 2026-03-03, 2026-03-03T07, 2026-W10 or 2026-03"
        )
    return period


def _unchanged(current: Item | None) -> Condition:
    if current is None:
        return absent()
    version = current.get("version")
    return version_is(version) if type(version) is int else lacks("version")
