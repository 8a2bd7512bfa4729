"""Expected bands, back-tested: precision and recall by the size of the anomaly, beside a fixed threshold."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench.anomaly_series import HELD_OUT_SEEDS, SIZE_BANDS, TUNING_SEEDS, Series, SeriesKind, generate
from bench.measure import Figure
from headgate.health.model.expected_bands import (
    DAY_HOURS,
    WEEK_HOURS,
    WEEKS_MAX,
    Band,
    band_of,
    day_of,
    fit_day,
)

GOAL = 0.9
# Anomalies at least this large, in MADs, have to reach the goal.
JUDGED_FROM_MADS = 4.0
# The fixed rule: more than this share away from the mean of the last week.
FIXED_DEVIATION = 0.5
_WARM_UP_HOURS = (WEEKS_MAX + 1) * WEEK_HOURS

Flags = Callable[[Series], Iterator[bool]]


@dataclass
class Score:
    """Hours that were flagged rightly, wrongly, and missed."""

    hits: int = 0
    false_alarms: int = 0
    misses: int = 0

    @property
    def precision(self) -> float:
        return self.hits / max(1, self.hits + self.false_alarms)

    @property
    def recall(self) -> float:
        return self.hits / max(1, self.hits + self.misses)


def run() -> list[Figure]:
    """Return every figure of this group, from the held-out seeds."""
    figures, count = [], len(HELD_OUT_SEEDS)
    for kind in SeriesKind:
        for band in SIZE_BANDS:
            ours = score(kind, band, HELD_OUT_SEEDS, by_band)
            fixed = score(kind, band, HELD_OUT_SEEDS, by_fixed_threshold)
            is_judged = band[0] >= JUDGED_FROM_MADS
            figures.append(
                Figure(
                    f"{kind.lower()} anomalies of {band[0]:g} to {band[1]:g} MADs, {count} held-out series",
                    f"precision {ours.precision:.3f} recall {ours.recall:.3f}",
                    f">= {GOAL} each" if is_judged else "",
                    not is_judged or min(ours.precision, ours.recall) >= GOAL,
                    counted=f"{ours.hits} found, {ours.false_alarms} false, {ours.misses} missed",
                    notes=f"±{FIXED_DEVIATION:.0%} of the weekly mean: {fixed.precision:.3f} and {fixed.recall:.3f}",
                )
            )
    return figures


def score(kind: SeriesKind, band: tuple[float, float], seeds: Sequence[int], flags: Flags) -> Score:
    """Return the score of a rule on the series of some seeds, after the warm-up."""
    total = Score()
    for seed in seeds:
        series = generate(seed, kind, band)
        judged = series.hours[_WARM_UP_HOURS:]
        for hour, is_flagged in zip(judged, flags(series), strict=True):
            if is_flagged and hour.is_anomalous:
                total.hits += 1
            elif is_flagged:
                total.false_alarms += 1
            elif hour.is_anomalous:
                total.misses += 1
    return total


def by_band(series: Series) -> Iterator[bool]:
    """Yield whether each hour after the warm-up is outside of its expected band."""
    first = int(series.hours[0].start.timestamp()) // 3600
    values = {first + index: hour.value for index, hour in enumerate(series.hours) if hour.value is not None}
    holidays = {first + index for index, hour in enumerate(series.hours) if hour.is_holiday}
    is_holiday = holidays.__contains__
    for index in range(_WARM_UP_HOURS, len(series.hours)):
        hour = first + index
        if index == _WARM_UP_HOURS or not hour % DAY_HOURS:
            fit = fit_day(values, day_of(hour), is_holiday)
        band = band_of(values, fit, hour, is_holiday)
        value = values.get(hour)
        yield isinstance(band, Band) and value is not None and not band.contains(value)


def by_fixed_threshold(series: Series) -> Iterator[bool]:
    """Yield whether each hour after the warm-up differs from the mean of the last week by more than a fixed share."""
    for index in range(_WARM_UP_HOURS, len(series.hours)):
        value = series.hours[index].value
        week = [hour.value for hour in series.hours[index - WEEK_HOURS : index] if hour.value is not None]
        mean = statistics.fmean(week)
        yield value is not None and abs(value - mean) > FIXED_DEVIATION * mean


def tune() -> None:
    """Print the scores on the tuning seeds."""
    for kind in SeriesKind:
        for band in SIZE_BANDS:
            found = score(kind, band, TUNING_SEEDS, by_band)
            print(kind, band, f"{found.precision:.3f} {found.recall:.3f}", found)


if __name__ == "__main__":
    tune()
