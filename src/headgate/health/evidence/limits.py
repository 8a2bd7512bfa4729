"""Limits: how much evidence is kept when more comes than is worth keeping, and who gives way first.

The limits are of one process: several that share a store keep that many times as much. What passes a check gives way
first, then further samples of failures that have some already, then everything. Nothing is turned away uncounted.

The limit of a dataset is also what keeps the index of datasets by time from becoming hot: an index partition of
DynamoDB takes 1,000 writes a second, and half of that is the most that is written for one dataset. So its key is the
dataset's name as it stands, and whoever queries it needs to know of no buckets.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from headgate.errors import SettingsError

MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
# Reasons may hold ids, and then no two are alike: beyond so many in a minute they count as one.
SIGNATURES_MAX: Final = 100
_OTHERS: Final = "\x00"
# How full it may be for what passes, and for further samples of a failure, to be kept still.
_PASS_SHARE: Final = 0.5
_REPEATED_SHARE: Final = 0.9


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept and for how long. `samples_enough` is from how many samples in a minute a failure has some."""

    hot_seconds: int = 86_400
    per_signature_per_minute: int = 1_000
    per_dataset_per_minute: int = 30_000
    total_per_minute: int = 120_000
    rows_max: int = 200_000_000
    samples_enough: int = 10

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise SettingsError(f"limit of evidence {name} is {getattr(self, name)}; it is at least 1")


class Stats(Struct):
    """What became of the evidence offered to this process, counted since it started."""

    offered: int = 0
    stored: int = 0
    sampled_out: int = 0
    duplicates: int = 0
    refused: int = 0
    shed_pass: int = 0
    shed_fail: int = 0
    # Kept beyond the sample: the last good before a failure, the first after it, and one now and then.
    kept_last_good: int = 0
    kept_recovered: int = 0
    kept_refreshed: int = 0
    archived: int = 0

    @property
    def shed(self) -> int:
        """How much was turned away because there was too much."""
        return self.shed_pass + self.shed_fail


class DatasetMeter:
    """What was kept of one dataset in this minute, and turned away since the process started."""

    __slots__ = ("kept", "minute", "shed", "signatures")

    def __init__(self) -> None:
        self.minute = -1
        self.kept = 0
        self.shed = 0
        self.signatures: dict[str, int] = {}

    def turn(self, minute: int) -> None:
        """Begin another minute, if it is another."""
        if minute != self.minute:
            self.minute = minute
            self.kept = 0
            self.signatures.clear()


class Meter:
    """Counts what is kept against the limits. Not for several threads at once; whoever has it holds a lock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._minute = -1
        self._kept = 0
        # Rows that may still be there: how many were kept in each hour of the time that rows are kept.
        self._hours: deque[list[int]] = deque()
        self._rows = 0

    def takes_pass(self, dataset: DatasetMeter, ticks_ms: int) -> bool:
        """Whether there is room for what passed, and if so count it."""
        full = self._fullness(dataset, ticks_ms)
        return self._settled(dataset, ticks_ms, is_taken=full < _PASS_SHARE)

    def takes_fail(self, dataset: DatasetMeter, signature: str, ticks_ms: int) -> bool:
        """Whether there is room for a failure of this signature, and if so count it."""
        full = self._fullness(dataset, ticks_ms)
        counts = dataset.signatures
        if signature not in counts and len(counts) >= SIGNATURES_MAX:
            signature = _OTHERS
        samples = counts.get(signature, 0)
        share = _REPEATED_SHARE if samples >= self._limits.samples_enough else 1.0
        is_taken = samples < self._limits.per_signature_per_minute and full < share
        if is_taken:
            counts[signature] = samples + 1
        return self._settled(dataset, ticks_ms, is_taken=is_taken)

    def count(self, dataset: DatasetMeter, ticks_ms: int) -> None:
        """Count one that is kept."""
        dataset.kept += 1
        self._kept += 1
        self._rows += 1
        hour = ticks_ms // _HOUR_MS
        if not self._hours or self._hours[-1][0] != hour:
            self._hours.append([hour, 0])
        self._hours[-1][1] += 1

    def _settled(self, dataset: DatasetMeter, ticks_ms: int, *, is_taken: bool) -> bool:
        if is_taken:
            self.count(dataset, ticks_ms)
        else:
            dataset.shed += 1
        return is_taken

    def _fullness(self, dataset: DatasetMeter, ticks_ms: int) -> float:
        """Return how much of the tightest limit is used, 1 being all of it."""
        minute, limits = ticks_ms // MINUTE_MS, self._limits
        if minute != self._minute:
            self._minute = minute
            self._kept = 0
            self._forget_expired(ticks_ms)
        dataset.turn(minute)
        return max(
            self._kept / limits.total_per_minute,
            dataset.kept / limits.per_dataset_per_minute,
            self._rows / limits.rows_max,
        )

    def _forget_expired(self, ticks_ms: int) -> None:
        oldest = (ticks_ms - 1000 * self._limits.hot_seconds) // _HOUR_MS
        while self._hours and self._hours[0][0] < oldest:
            self._rows -= self._hours.popleft()[1]
