"""Concurrency limits: bound how many activities of a key run at once, or start in a period, across all workers.

A slot is a row with the id and the token of the activity that holds it. The slot is free once that claim has ended, so
a dead worker, an expired lease or an ended execution cannot leak one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from headgate.durable.engine.rate_window import Starts, with_start, without_start
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.records import Activity
from headgate.store.catalogue.tables import ACTIVITIES, CONTROL
from headgate.store.model.conditions import absent, equals, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

_SLOT: Final = "SLOT#"
_RATE: Final = "RATE"
FULL: Final = "full"
_starts_decoder: Final = msgspec.json.Decoder(tuple[Starts, ...])


class ConcurrencyLimits:
    """Admits activities within their limits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(
        self, options: ActivityOptions, claimed: Activity, assigned: dict[str, set[str]]
    ) -> tuple[Activity, list[Write]] | None:
        """Return the claim with its slot and the writes that take the slot, or None if the limit is reached.

        `assigned` has the slots that the same poll has assigned, by key; a key that was found full has `FULL`.
        """
        if options.limit_key is not None and FULL in assigned.get(options.limit_key, ()):
            return None
        admitted = self._admit(options, claimed, assigned)
        if admitted is None and options.limit_key is not None:
            assigned.setdefault(options.limit_key, set()).add(FULL)
        return admitted

    def _admit(
        self, options: ActivityOptions, claimed: Activity, assigned: dict[str, set[str]]
    ) -> tuple[Activity, list[Write]] | None:
        if options.limit_key is None:
            return claimed, []
        writes: list[Write] = []
        if options.concurrency is not None:
            taken = assigned.setdefault(options.limit_key, set())
            slot = self._free_slot(options.limit_key, options.concurrency, claimed, taken)
            if slot is None:
                return None
            name, write = slot
            taken.add(name)
            claimed = replace(claimed, limit_slot=name)
            writes.append(write)
        if options.rate is not None:
            # One start per poll: the next poll reads the row as this one wrote it.
            assigned.setdefault(options.limit_key, set()).add(FULL)
            start = self._start(options.limit_key, options.rate, options.per, claimed.started_at_ms)
            if start is None:
                return None
            writes.append(start)
        return claimed, writes

    def moved_start(self, options: ActivityOptions, claimed: Activity, now_ms: int) -> Write | None:
        """Return the write that has a claim count as a start of now instead of then, or None if its rate is reached."""
        assert options.limit_key is not None, "only with a rate"
        assert options.rate is not None, "only with a rate"
        return self._start(options.limit_key, options.rate, options.per, now_ms, instead_of_ms=claimed.started_at_ms)

    def freed(self, activity: Activity) -> list[Write]:
        """Return the writes that free the slot of an activity, if it has one."""
        if activity.limit_slot is None:
            return []
        key, _, slot = activity.limit_slot.rpartition("|")
        return [Delete(CONTROL, Key(_partition(key), slot))]

    def _free_slot(self, key: str, concurrency: int, claimed: Activity, assigned: set[str]) -> tuple[str, Write] | None:
        page = self._store.query(
            Query(
                table=CONTROL,
                partition=_partition(key),
                sort=Sort(Range.BEGINS_WITH, _SLOT),
                limit=concurrency,
                consistent=True,
            )
        )
        taken = {item["SK"]: item for item in page.items}
        for number in range(concurrency):
            name = f"{_SLOT}{number:05d}"
            if f"{key}|{name}" in assigned:
                continue
            holder = taken.get(name)
            if holder is not None and self._holds(holder):
                continue
            item = {"PK": _partition(key), "SK": name, "activity_id": claimed.activity_id, "token": claimed.token}
            condition = absent() if holder is None else equals("token", holder["token"])
            return f"{key}|{name}", Put(CONTROL, item, condition)
        return None

    def _holds(self, slot: dict[str, Any]) -> bool:
        """Whether the claim that took a slot still exists."""
        row = self._store.get(ACTIVITIES, Key(slot["activity_id"]), consistent=True)
        return row is not None and row["token"] == slot["token"]

    def _start(
        self, key: str, rate: int, per_seconds: float, now_ms: int, instead_of_ms: int | None = None
    ) -> Write | None:
        """Return the write that records a start of a key, or None if its rate is reached."""
        per_ms = max(1, round(1000 * per_seconds))
        item = self._store.get(CONTROL, Key(_partition(key), _RATE), consistent=True)
        recent = _recent(item, rate, per_ms, now_ms)
        if instead_of_ms is not None:
            recent = without_start(recent, instead_of_ms)
        starts = with_start(recent, rate, per_ms, now_ms)
        if starts is None:
            return None
        version = 0 if item is None else item["version"]
        row = {
            "PK": _partition(key),
            "SK": _RATE,
            "starts": msgspec.json.encode(starts).decode(),
            "version": version + 1,
        }
        return Put(CONTROL, row, absent() if item is None else version_is(version))


def _recent(item: Mapping[str, Any] | None, rate: int, per_ms: int, now_ms: int) -> tuple[Starts, ...]:
    """Return the starts that a row holds."""
    if item is None:
        return ()
    if "starts" in item:
        return _starts_decoder.decode(item["starts"])
    # A row of an earlier build has the tokens that were left at a time.
    left = min(float(rate), item["left"] + max(0, now_ms - item["as_of_ms"]) * rate / per_ms)
    used = math.ceil(rate - left)
    return (Starts(item["as_of_ms"], item["as_of_ms"], used),) if used > 0 else ()


def _partition(key: str) -> str:
    return f"QUOTA#{key}"
