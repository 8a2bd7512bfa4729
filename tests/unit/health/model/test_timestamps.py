"""Moments in the one form: however they are made or read, and refused where they are none."""

from __future__ import annotations

import pytest

from headgate.durable.model import records
from headgate.errors import InvalidPayloadError
from headgate.health.model import timestamps


@pytest.mark.parametrize("ms", [0, 1, 999, 1_000, 59_999, 1_768_471_200_123, 1_768_471_200_999, -1, -1_000])
def test_instant__any_moment__is_what_executions_write(ms: int) -> None:
    assert timestamps.instant(ms) == records.instant(ms)


@pytest.mark.parametrize("ms", [0, 999, 1_768_471_200_123, 1_709_164_800_000])
def test_moment__in_the_one_form__stays_as_it_is(ms: int) -> None:
    given = records.instant(ms)
    assert timestamps.moment(given, field="at") is given
    # Another millisecond of the same second, which is not looked at as closely.
    other = f"{given[:20]}007Z"
    assert timestamps.moment(other, field="at") is other


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("2026-01-15T10:00:00Z", "2026-01-15T10:00:00.000Z"),
        ("2026-01-15T12:00:00.5+02:00", "2026-01-15T10:00:00.500Z"),
        ("2026-01-15T10:00:00.123456Z", "2026-01-15T10:00:00.123Z"),
        ("2026-01-15 10:00:00.123Z", "2026-01-15T10:00:00.123Z"),
    ],
)
def test_moment__in_another_form__is_brought_into_the_one(given: str, read: str) -> None:
    assert timestamps.moment(given, field="at") == read


@pytest.mark.parametrize(
    "given",
    [
        "2026-02-30T10:00:00.000Z",
        "2026-01-15T25:00:00.000Z",
        "9000-01-15T10:00:00.000Z",
        "1969-12-31T23:59:59.999Z",
        "2026-01-15T10:00:00.000",
        "2026-01-15T10:00:00.0x0Z",
        "",
    ],
)
def test_moment__of_none__is_refused_by_name_each_time(given: str) -> None:
    for field in ("at", "window_end"):
        with pytest.raises(InvalidPayloadError, match=f"^{field} "):
            timestamps.moment(given, field=field)
