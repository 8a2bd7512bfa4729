"""Expected bands: the range in which the value of an hour is expected, from the history of the same hour of the week.

Pure functions; hours are whole hours since the epoch, in UTC. The band of a day is fitted to the
history before that day:

1. Growth. For each of the last weeks, the median ratio of the latest week to that week, hour by hour. It brings earlier
   weeks to the present level, so that a trend does not widen the band. Holidays are left out.
2. Centre. The median of the same hour of the earlier weeks, each at the present level, averaged over the days of the
   week that have the same shape.
3. Spread. The median absolute deviation (MAD, times 1.4826) of each sample from the median of the others, which is the
   error that a prediction has, of the same hour of the week and its neighbours, drawn towards that of the same hours
   of all days, which has more samples.

The band is `BAND_MADS` spreads to both sides. A day of the holiday calendar is compared with its own earlier hours.
Without `WEEKS_MIN` samples of an hour there is no band: the series is in its warm-up.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

DAY_HOURS: Final = 24
WEEK_HOURS: Final = 168
# Earlier weeks that a band is fitted to, and the fewest with which there is one.
WEEKS_MAX: Final = 8
WEEKS_MIN: Final = 3
BAND_MADS: Final = 3.1
# The least spread: counts that never vary would otherwise flag a difference of one.
SPREAD_SHARE_MIN: Final = 0.005
SPREAD_MIN: Final = 0.5
MAD_SCALE: Final = 1.4826
# Pairs of hours that a growth is the median of.
_PAIRS_MIN: Final = 3
_NEIGHBOUR_HOURS: Final = 1
# Two days of the week have the same shape up to these deviations, in errors of the medians: most hours, and all.
_SAME_SHAPE: Final = 1.3
_SAME_SHAPE_MAX: Final = 4.0
# The weight of the spread of all days, in samples.
_SHARED_SAMPLES: Final = 300
# The variance of a median of n samples is about this over n.
_MEDIAN_VARIANCE: Final = 1.57
# Hours of a holiday after which its own level is known; until then a holiday may have this share of the usual value.
_HOLIDAY_HOURS_MIN: Final = 5
_HOLIDAY_SHARE_MIN: Final = 0.2
# 1970-01-01 was a Thursday.
_EPOCH_WEEKDAY: Final = 3
_WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

IsHoliday = Callable[[int], bool]


def _no_holiday(_hour: int) -> bool:
    return False


class Band(Struct, frozen=True, kw_only=True):
    """The expected range of one hour, from `weeks` earlier weeks. `mad` is its spread."""

    expected: float
    low: float
    high: float
    mad: float
    weeks: int
    is_holiday: bool = False

    def contains(self, value: float) -> bool:
        """Whether a value is within the band."""
        return self.low <= value <= self.high

    def mads(self, value: float) -> float:
        """Return how many spreads a value is away from the expected one, negative below it."""
        return (value - self.expected) / self.mad


class WarmUp(Struct, frozen=True):
    """There is no band yet: `weeks` of the `WEEKS_MIN` weeks have a value for this hour of the week."""

    weeks: int

    @property
    def reason(self) -> str:
        return f"warm-up: {self.weeks} of {WEEKS_MIN} weeks have a value for this hour of the week"


class DayFit(Struct, frozen=True):
    """What the history before a day says of the week that begins with it, by hour of the week.

    `centres` are the expected values, `spreads` are relative to them, and `weeks` is the number of samples.
    """

    first_hour: int
    centres: Sequence[float]
    spreads: Sequence[float]
    weeks: Sequence[int]


def day_of(hour: int) -> int:
    """Return the first hour of the day of an hour."""
    return hour - hour % DAY_HOURS


def fit_day(values: Mapping[int, float], first_hour: int, is_holiday: IsHoliday = _no_holiday) -> DayFit:
    """Fit the history before a day, which begins at `first_hour`."""
    growth = _growth(values, first_hour, is_holiday)
    samples: list[list[float]] = [[] for _ in range(WEEK_HOURS)]
    for hour in range(first_hour, first_hour + WEEK_HOURS):
        for week, factor in growth.items():
            value = values.get(hour - week * WEEK_HOURS)
            if value is not None and not is_holiday(hour - week * WEEK_HOURS):
                samples[hour_of_week(hour)].append(value * factor)
    weeks = [len(each) for each in samples]
    own = [statistics.median(each) if each else 0.0 for each in samples]
    spreads = _spreads([_errors(each) if len(each) >= WEEKS_MIN else [] for each in samples])
    return DayFit(first_hour, _pooled(own, spreads, weeks), spreads, weeks)


def band_of(values: Mapping[int, float], fit: DayFit, hour: int, is_holiday: IsHoliday = _no_holiday) -> Band | WarmUp:
    """Return the band of an hour of the day that was fitted. `values` of that day are used on holidays only."""
    place = hour_of_week(hour)
    weeks, expected, share = fit.weeks[place], fit.centres[place], fit.spreads[place]
    if weeks < WEEKS_MIN:
        return WarmUp(weeks)
    if not is_holiday(hour):
        return _band(expected, share, weeks)
    ratios = [
        values[earlier] / usual
        for earlier in range(fit.first_hour, hour)
        if earlier in values and (usual := fit.centres[hour_of_week(earlier)]) > 0
    ]
    if len(ratios) < _HOLIDAY_HOURS_MIN:
        usual_band = _band(expected, share, weeks, is_holiday=True)
        return replace(usual_band, low=usual_band.low * _HOLIDAY_SHARE_MIN)
    # The level of the holiday is an estimate too.
    share *= math.sqrt(1 + _MEDIAN_VARIANCE / len(ratios))
    return _band(expected * statistics.median(ratios), share, weeks, is_holiday=True)


def explain(value: float, band: Band, hour: int, unit: str) -> str:
    """Return the reason of a result in numbers: 4,012 rows, expected 9,800-11,400 for a Tuesday 06:00."""
    kind = " (holiday)" if band.is_holiday else ""
    weekday = _WEEKDAYS[hour_of_week(hour) // DAY_HOURS]
    unit = f" {unit}" if unit else ""
    return (
        f"{shown(value)}{unit}, expected {shown(max(0.0, band.low))}–{shown(band.high)} "  # noqa: RUF001
        f"for a {weekday} {hour % DAY_HOURS:02d}:00{kind}"
    )


def shown(value: float) -> str:
    """Return a number with three significant digits at least, and separators."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def hour_of_week(hour: int) -> int:
    """Return the hour of the week, from 0 for Monday 00:00."""
    return (hour + _EPOCH_WEEKDAY * DAY_HOURS) % WEEK_HOURS


def _band(expected: float, share: float, weeks: int, *, is_holiday: bool = False) -> Band:
    mad = max(expected * share, expected * SPREAD_SHARE_MIN, SPREAD_MIN)
    reach = BAND_MADS * mad
    return Band(
        expected=expected, low=expected - reach, high=expected + reach, mad=mad, weeks=weeks, is_holiday=is_holiday
    )


def _growth(values: Mapping[int, float], first_hour: int, is_holiday: IsHoliday) -> dict[int, float]:
    """Return the median ratio of the latest week to each earlier week."""
    found = {}
    latest = [
        hour for hour in range(first_hour - WEEK_HOURS, first_hour) if values.get(hour, 0) > 0 and not is_holiday(hour)
    ]
    for week in range(1, WEEKS_MAX + 1):
        ratios = [
            values[hour] / values[earlier]
            for hour in latest
            if values.get(earlier := hour - week * WEEK_HOURS, 0) > 0 and not is_holiday(earlier)
        ]
        if len(ratios) >= _PAIRS_MIN:
            found[week] = statistics.median(ratios)
    return found


def _pooled(own: Sequence[float], spreads: Sequence[float], weeks: Sequence[int]) -> list[float]:
    """Return the centre of each hour, averaged over the days of the week that have the same shape.

    Two days have the same shape if their ratio varies from hour to hour by no more than the error of the medians.
    """
    pooled = [[value] for value in own]
    for day in range(7):
        for other in range(7):
            ratio = None if day == other else _ratio_of_days(own, spreads, weeks, day, other)
            if ratio is None:
                continue
            for hour in range(DAY_HOURS):
                if weeks[other * DAY_HOURS + hour] >= WEEKS_MIN:
                    pooled[day * DAY_HOURS + hour].append(own[other * DAY_HOURS + hour] * ratio)
    return [statistics.fmean(each) for each in pooled]


def _ratio_of_days(
    own: Sequence[float], spreads: Sequence[float], weeks: Sequence[int], day: int, other: int
) -> float | None:
    """Return the ratio of two days of the week, or None if their shapes differ."""
    pairs = []
    for hour in range(DAY_HOURS):
        here, there = day * DAY_HOURS + hour, other * DAY_HOURS + hour
        if min(weeks[here], weeks[there]) >= WEEKS_MIN and own[here] > 0 and own[there] > 0:
            error = max(spreads[here], spreads[there], SPREAD_SHARE_MIN) * math.sqrt(
                _MEDIAN_VARIANCE * (1 / weeks[here] + 1 / weeks[there])
            )
            pairs.append((own[here] / own[there], error))
    if len(pairs) < DAY_HOURS // 2:
        return None
    ratio = statistics.median(value for value, _ in pairs)
    deviations = [abs(value / ratio - 1) / error for value, error in pairs]
    is_same = statistics.median(deviations) * MAD_SCALE <= _SAME_SHAPE and max(deviations) <= _SAME_SHAPE_MAX
    return ratio if is_same else None


def _errors(samples: list[float]) -> list[float]:
    """Return the relative error of each sample as predicted by the median of the others."""
    ordered = sorted(samples)
    count = len(ordered)
    found = []
    for index, sample in enumerate(ordered):
        # The median of the others, by their places in the order without this sample.
        middle, below = (count - 1) // 2, (count - 2) // 2
        upper = ordered[middle + (index <= middle)]
        lower = ordered[below + (index <= below)]
        centre = (upper + lower) / 2
        if centre > 0:
            found.append(abs(sample / centre - 1))
    return found


def _spreads(errors: Sequence[Sequence[float]]) -> list[float]:
    """Return the relative spread of each hour of the week."""
    of_days = [_median_of(errors, _near_on_all_days(hour)) for hour in range(DAY_HOURS)]
    return [_shrunk(errors, hour, of_days[hour % DAY_HOURS]) * MAD_SCALE for hour in range(WEEK_HOURS)]


def _shrunk(residuals: Sequence[Sequence[float]], hour: int, of_days: float) -> float:
    near = [value for each in _near(hour) for value in residuals[each]]
    if not near:
        return of_days
    weight = len(near) / (len(near) + _SHARED_SAMPLES)
    return statistics.median(near) * weight + of_days * (1 - weight)


def _near(hour: int) -> list[int]:
    return [(hour + offset) % WEEK_HOURS for offset in range(-_NEIGHBOUR_HOURS, _NEIGHBOUR_HOURS + 1)]


def _near_on_all_days(hour: int) -> list[int]:
    return [each for day in range(7) for each in _near(day * DAY_HOURS + hour)]


def _median_of(residuals: Sequence[Sequence[float]], hours: Sequence[int]) -> float:
    found = [value for hour in hours for value in residuals[hour]]
    return statistics.median(found) if found else 0.0
