"""Expected bands: growth, centre and spread of an hour of the week, holidays, warm-up, and the reason in numbers."""

from __future__ import annotations

import random

import pytest

from bench.anomaly_series import TUNING_SEEDS, SeriesKind
from bench.expected_bands import by_band, by_fixed_threshold, score
from headgate.health.model.expected_bands import (
    DAY_HOURS,
    WEEK_HOURS,
    WEEKS_MIN,
    Band,
    WarmUp,
    band_of,
    day_of,
    explain,
    fit_day,
    hour_of_week,
)

# 2026-03-03 06:00 UTC, a Tuesday.
TUESDAY_SIX = 1_772_517_600 // 3600


def weekly(weeks: int, *, growth: float = 1.0) -> dict[int, float]:
    """Return a series that repeats every week with a noise of three percent, up to TUESDAY_SIX."""
    dice = random.Random(7)
    values = {}
    for back in range(1, weeks * WEEK_HOURS + 1):
        hour = TUESDAY_SIX - back
        base = 10_000 if 6 <= hour % DAY_HOURS < 20 else 1_000
        noise = dice.gauss(1, 0.03)
        values[hour] = base * noise * growth ** (-back / WEEK_HOURS)
    return values


def band(values: dict[int, float], hour: int = TUESDAY_SIX, holidays: frozenset[int] = frozenset()) -> Band | WarmUp:
    return band_of(values, fit_day(values, day_of(hour), holidays.__contains__), hour, holidays.__contains__)


def known(found: Band | WarmUp) -> Band:
    assert isinstance(found, Band)
    return found


def test_hour_of_week__tuesday_six__is_counted_from_monday() -> None:
    assert hour_of_week(TUESDAY_SIX) == 30


def test_band__of_a_weekly_series__is_that_of_the_hour_of_the_week() -> None:
    values = weekly(9)

    day, night = known(band(values)), known(band(values, TUESDAY_SIX - 1))

    assert day.expected == pytest.approx(10_000, rel=0.03)
    assert night.expected == pytest.approx(1_000, rel=0.03)
    assert day.contains(10_250)
    assert not day.contains(4_012)
    assert not night.contains(1_300)


def test_band__with_a_trend__is_at_the_present_level_and_no_wider() -> None:
    still, grown = known(band(weekly(9))), known(band(weekly(9, growth=1.05)))

    assert grown.expected == pytest.approx(still.expected, rel=0.02)
    assert grown.high - grown.low == pytest.approx(still.high - still.low, rel=0.2)


@pytest.mark.parametrize("weeks", [0, 1, 3])
def test_band__with_too_few_weeks__is_in_its_warm_up_and_says_so(weeks: int) -> None:
    found = band(weekly(weeks))

    assert isinstance(found, WarmUp)
    assert found.reason == f"warm-up: {max(0, weeks - 1)} of {WEEKS_MIN} weeks have a value for this hour of the week"


def test_band__after_the_warm_up__exists() -> None:
    assert known(band(weekly(5))).weeks == 4


def test_band__one_outage_in_the_history__does_not_move_it() -> None:
    clean = weekly(9)
    broken = {hour: 0.0 if 200 < TUESDAY_SIX - hour < 224 else value for hour, value in clean.items()}

    assert known(band(broken)).low == pytest.approx(known(band(clean)).low, rel=0.05)


def test_band__constant_counts__tolerates_rounding_only() -> None:
    found = known(band(dict.fromkeys(range(TUESDAY_SIX - 9 * WEEK_HOURS, TUESDAY_SIX), 1000.0)))

    assert found.contains(1005)
    assert not found.contains(1050)


def test_band__on_a_holiday__follows_the_earlier_hours_of_that_day() -> None:
    noon = TUESDAY_SIX + 6
    first = day_of(noon)
    values = weekly(9) | {TUESDAY_SIX + hour: 10_000.0 for hour in range(6)}
    holidays = frozenset(range(first, first + DAY_HOURS))
    low_day = {hour: value * 0.4 if hour in holidays else value for hour, value in values.items()}

    ordinary, holiday = known(band(low_day, noon)), known(band(low_day, noon, holidays))

    assert not ordinary.contains(4_000)
    assert holiday.contains(4_000)
    assert not holiday.contains(10_000)


def test_band__first_hours_of_a_holiday__allow_less_than_usual_but_not_nothing() -> None:
    first = day_of(TUESDAY_SIX)
    values = {hour: value for hour, value in weekly(9).items() if hour < first}

    found = known(band(values, first + 1, frozenset(range(first, first + DAY_HOURS))))

    assert found.contains(400)
    assert not found.contains(0)


def test_explain__value_out_of_its_band__names_both_and_the_hour() -> None:
    found = Band(expected=10_600, low=9_800, high=11_400, mad=258, weeks=8)

    assert explain(4_012, found, TUESDAY_SIX, "rows") == "4,012 rows, expected 9,800–11,400 for a Tuesday 06:00"  # noqa: RUF001
    assert found.mads(4_012) < -20


@pytest.mark.parametrize("kind", list(SeriesKind))
def test_back_test__anomalies_beyond_four_mads__are_found_and_the_fixed_rule_does_worse(kind: SeriesKind) -> None:
    # Two series; `make bench` judges twenty held-out ones for each size.
    ours = score(kind, (4.0, 12.0), TUNING_SEEDS[:2], by_band)
    fixed = score(kind, (4.0, 12.0), TUNING_SEEDS[:2], by_fixed_threshold)

    assert (ours.precision, ours.recall) >= (0.85, 0.85)
    assert ours.precision + ours.recall > fixed.precision + fixed.recall
