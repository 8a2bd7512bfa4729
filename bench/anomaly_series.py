"""Generated hourly series with labelled anomalies, against which the detector of expected bands is back-tested.

A series has a daily and weekly season, a trend, public holidays, noise, gaps, and anomalies of one size. It is a pure
function of its seed. `TUNING_SEEDS` are for development; `HELD_OUT_SEEDS` were fixed before the detector was written
and are used by the printed figures only.

One MAD is 1.4826 times the median absolute deviation of the noise, which is its standard deviation if it is Gaussian,
as it is here. An anomaly of size 4 is an hour whose value is 4 MADs away from the true expected value of that hour.
"""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

TUNING_SEEDS = tuple(range(1, 21))
HELD_OUT_SEEDS = (
    90_007, 90_011, 90_017, 90_019, 90_023, 90_031, 90_053, 90_059, 90_067, 90_071,
    90_073, 90_089, 90_107, 90_121, 90_127, 90_149, 90_163, 90_173, 90_187, 90_191,
)  # fmt: skip
# An anomaly of the band (4, 5) has a size between the two.
SIZE_BANDS = ((2.0, 3.0), (3.0, 4.0), (4.0, 5.0), (5.0, 6.0), (6.0, 8.0), (8.0, 12.0))
WEEKS = 14
# The share of hours that are anomalous: an event of one to four hours about every five days.
ANOMALOUS_SHARE = 0.02
GAP_SHARE = 0.005
_EVENT_HOURS_MAX = 4
_START = datetime(2026, 1, 5, tzinfo=UTC)  # A Monday.


class SeriesKind(enum.StrEnum):
    """What a series measures."""

    VOLUME = "VOLUME"
    DURATION = "DURATION"


@dataclass(frozen=True)
class Hour:
    """One hour. `value` is None for a gap. `expected` and `mad` are the truth, which a detector does not see."""

    start: datetime
    value: float | None
    expected: float
    mad: float
    is_anomalous: bool
    is_holiday: bool


@dataclass(frozen=True)
class Series:
    """A generated series and its calendar of holidays (dates in UTC)."""

    seed: int
    kind: SeriesKind
    hours: tuple[Hour, ...]
    holidays: frozenset[str]


@dataclass(frozen=True)
class _Shape:
    """The parameters of one series."""

    level: float
    growth: float
    day_swing: float
    peak_hour: float
    weekend: float
    noise: float
    holiday_factor: float


def generate(seed: int, kind: SeriesKind, size_band: tuple[float, float]) -> Series:
    """Return the series of a seed, with anomalies whose sizes in MADs lie within a band."""
    dice = random.Random(f"{seed}/{kind}/{size_band}")
    shape = _shape(dice, kind)
    count = WEEKS * 168
    holidays = frozenset(
        (_START + timedelta(days=day)).date().isoformat() for day in dice.sample(range(14, WEEKS * 7), 4)
    )
    anomalous = _anomalous_hours(dice, count)
    hours = []
    for index in range(count):
        start = _START + timedelta(hours=index)
        is_holiday = start.date().isoformat() in holidays
        expected = _expected(shape, start, index / count) * (shape.holiday_factor if is_holiday else 1.0)
        mad = expected * _noise(shape, start)
        value = dice.gauss(expected, mad)
        side = anomalous.get(index)
        if side is not None:
            size = dice.uniform(*size_band)
            # A drop below zero is not possible; a value that large is a spike instead.
            value = expected + size * mad * (side if expected > size * mad else 1)
        is_gap = side is None and dice.random() < GAP_SHARE
        measured = None if is_gap else max(0.0, round(value, 0 if kind is SeriesKind.VOLUME else 3))
        hours.append(Hour(start, measured, expected, mad, is_anomalous=side is not None, is_holiday=is_holiday))
    return Series(seed, kind, tuple(hours), holidays)


def _shape(dice: random.Random, kind: SeriesKind) -> _Shape:
    is_volume = kind is SeriesKind.VOLUME
    return _Shape(
        level=10 ** dice.uniform(2.5, 6) if is_volume else 10 ** dice.uniform(1.5, 3.5),
        growth=dice.uniform(-0.3, 0.6),
        day_swing=dice.uniform(0.2, 0.8) if is_volume else dice.uniform(0.0, 0.3),
        peak_hour=dice.uniform(0, 24),
        weekend=dice.uniform(0.4, 1.1) if is_volume else dice.uniform(0.8, 1.1),
        noise=dice.uniform(0.02, 0.08),
        holiday_factor=dice.uniform(0.35, 0.9) if is_volume else dice.uniform(0.7, 1.0),
    )


def _expected(shape: _Shape, start: datetime, progress: float) -> float:
    of_day = 1 + shape.day_swing * math.cos((start.hour - shape.peak_hour) / 24 * math.tau)
    of_week = shape.weekend if start.weekday() >= 5 else 1.0
    return shape.level * of_day * of_week * (1 + shape.growth * progress)


def _noise(shape: _Shape, start: datetime) -> float:
    """Return the relative noise of an hour: the hours of the night are less regular."""
    return shape.noise * (1.5 if start.hour < 6 else 1.0)


def _anomalous_hours(dice: random.Random, count: int) -> dict[int, int]:
    """Return the hours of anomalous events, each with its side: 1 for a spike, -1 for a drop."""
    found: dict[int, int] = {}
    while len(found) < count * ANOMALOUS_SHARE:
        side = dice.choice((1, -1))
        first = dice.randrange(count - _EVENT_HOURS_MAX)
        found |= dict.fromkeys(range(first, first + dice.randint(1, _EVENT_HOURS_MAX)), side)
    return found
