"""Evidence limits: how much evidence is stored under load, and what is shed first.

The limits are per process. PASS results are shed first, then further samples of failures that have some already, then
everything. All shed evidence is counted.

The limit of a dataset also protects the index of datasets by time: an index partition of DynamoDB takes 1,000 writes a
second, and one dataset writes at most half of that. So its key is the plain dataset URN, without write sharding.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct

from headgate.errors import SettingsError

MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
# Failure reasons may contain ids and be all distinct: beyond this many in a minute they count as one.
SIGNATURES_MAX: Final = 100
_OTHERS: Final = "\x00"
# The fill levels up to which PASS results, and further samples of a failure, are still stored.
_PASS_SHARE: Final = 0.5
_REPEATED_SHARE: Final = 0.9


class Limits(Struct, frozen=True, kw_only=True):
    """Limits and retention. `samples_enough` is the number of samples in a minute from which a failure has enough."""

    hot_seconds: int = 86_400
    per_signature_per_minute: int = 1_000
    per_dataset_per_minute: int = 30_000
    total_per_minute: int = 120_000
    rows_max: int = 200_000_000
    samples_enough: int = 10

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise SettingsError(f"limit of evidence {name} is {getattr(self, name)}; give at least 1")


class Stats(Struct):
    """Outcomes of the evidence offered to this process since it started."""

    offered: int = 0
    stored: int = 0
    sampled_out: int = 0
    duplicates: int = 0
    refused: int = 0
    shed_pass: int = 0
    shed_fail: int = 0
    # Stored beyond the sample: the last good before a failure, the first after it, and a periodic one.
    kept_last_good: int = 0
    kept_recovered: int = 0
    kept_refreshed: int = 0
    archived: int = 0

    @property
    def shed(self) -> int:
        """How much was shed."""
        return self.shed_pass + self.shed_fail


class DatasetMeter:
    """What was stored of one dataset in this minute, and shed since the process started."""

    __slots__ = ("kept", "minute", "shed", "signatures")

    def __init__(self) -> None:
        self.minute = -1
        self.kept = 0
        self.shed = 0
        self.signatures: dict[str, int] = {}

    def turn(self, minute: int) -> None:
        """Start a new minute if it has begun."""
        if minute != self.minute:
            self.minute = minute
            self.kept = 0
            self.signatures.clear()


class Meter:
    """Counts stored evidence against the limits. Not thread-safe: the owner holds a lock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._minute = -1
        self._kept = 0
        # Rows that may still exist: the number stored in each hour of the retention time.
        self._hours: deque[list[int]] = deque()
        self._rows = 0

    def takes_pass(self, dataset: DatasetMeter, ticks_ms: int) -> bool:
        """Whether there is room for a PASS; if so, count it."""
        full = self._fullness(dataset, ticks_ms)
        return self._settled(dataset, ticks_ms, is_taken=full < _PASS_SHARE)

    def takes_fail(self, dataset: DatasetMeter, signature: str, ticks_ms: int) -> bool:
        """Whether there is room for a failure of this signature; if so, count it."""
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
        """Count a stored item."""
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
        """Return the fill level of the tightest limit, from 0 to 1."""
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
