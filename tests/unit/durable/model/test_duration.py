"""Durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.durable.model.duration import SECONDS_MAX, Duration, optional_seconds, seconds, text
from headgate.errors import UserError


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 5 m ", 300.0),
        ("3d", 259_200.0),
        ("2w", 1_209_600.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("0s", 0.0),
        ("1w2d3h4m5s6ms", 788_645.006),
        ("PT5M", 300.0),
        ("P3D", 259_200.0),
        ("P1W", 604_800.0),
        ("P1DT12H", 129_600.0),
        ("PT0.5S", 0.5),
        ("10", 10.0),
        (" 2.5 ", 2.5),
        (timedelta(minutes=2), 120.0),
        (0, 0.0),
        (7, 7.0),
        (0.1, 0.1),
    ],
)
def test_seconds__what_people_write__is_seconds(given_as: Duration, expected: float) -> None:
    found = seconds(given_as)
    assert found == expected
    assert type(found) is float


class OfText(str):
    """Text of a class of its own, as configuration readers make it."""


def test_seconds__text_of_a_subclass__is_read_as_text() -> None:
    assert seconds(OfText("5m")) == 300.0


@pytest.mark.parametrize(
    "wrong",
    [
        *("", " ", "5 minutes", "1y", "1M", "5M", "30m1h", "1h1h", "-5s", "+5s", "s", "1e3s", "1,5s", "٣s"),
        *(
            "P",
            "PT",
            "P1Y",
            "P1M",
            "P1DT",
            "PT5",
            "5h3",
            "∞",
            "1.s",
            ".5s",
            "9" * 5000 + "s",
            "9" * 15,
            "-5",
            "1e3",
            ".5",
            "101y",
            "40000d",
        ),
        *(-1, -0.5, math.nan, math.inf, -math.inf, SECONDS_MAX + 1, True, False),
        *(timedelta(days=-1), timedelta(days=40_000), None, b"5s", [], {}, object(), 1j),
    ],
)
def test_seconds__not_a_duration__names_the_field_and_what_is_allowed(wrong: Any) -> None:
    with pytest.raises(UserError, match=r"^heartbeat .* is not a duration: use text such as .*1h30m") as caught:
        seconds(wrong, name="heartbeat")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("sign", [1, -1])
def test_seconds__integer_with_more_digits_than_python_writes__is_refused(sign: int) -> None:
    with pytest.raises(UserError, match="is not a duration"):
        seconds(sign * 10**5000)


def test_optional_seconds__none__is_none() -> None:
    assert optional_seconds(None, name="timeout") is None
    assert optional_seconds("1m", name="timeout") == 60.0
    with pytest.raises(UserError, match=r"^timeout"):
        optional_seconds("soon", name="timeout")


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (5400, "1h30m"),
        (0, "0s"),
        (0.25, "250ms"),
        (1.5, "1s500ms"),
        (86_400 * 10, "10d"),
        (86_400 * 14, "2w"),
        (86_400 * 365, "365d"),
        (3_600_000, "41d16h"),
        (0.0001, "0.1ms"),
    ],
)
def test_text__a_number__reads_well(number: float, expected: str) -> None:
    assert text(number) == expected


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, SECONDS_MAX * 2])
def test_text__not_a_duration__is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="is not a duration"):
        text(wrong)


@given(st.floats(min_value=0, max_value=SECONDS_MAX) | st.integers(0, 10**9).map(float))
def test_text__read_back__is_the_same_number(number: float) -> None:
    assert seconds(text(number)) == number


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_000)))
def test_text__of_any_timedelta__is_read_back(span: timedelta) -> None:
    assert seconds(text(seconds(span))) == seconds(span)
