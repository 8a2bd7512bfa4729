"""Sensors: pushed, read for a period, in every form in which rows are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, InvalidPayloadError
from headgate.pipelines.schedule.sensor_periods import forms_of, is_key_of, may_concern, period_of_fields, split_key
from headgate.pipelines.sensors import Sensor, Sensors, data_of, sensor_key, sensor_of
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

DAY = 86_400.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_772_517_600.0)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[Store]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


@pytest.fixture
def sensors(store: Store, clock: VirtualClock) -> Sensors:
    return Sensors(store, clock)


def write(store: Store, key: str, **attributes: Any) -> None:
    """Write a row as producers do that know nothing of us."""
    store.put(PIPELINES, {**PIPELINES.key_attributes(sensor_key("silver", key)), **attributes})


def seen(sensors: Sensors, date: str, *keys: str) -> dict[str, dict[str, Any]]:
    reading = sensors.read("silver", keys, date)
    return {key: dict(sensor.data) for key, sensor in reading.sensors.items()}


def test_push__again__moves_version_and_reports_change_from_repetition(sensors: Sensors, clock: VirtualClock) -> None:
    first = sensors.push("silver", "orders", {"count": 1}, by="anna")
    clock.advance(10)
    same = sensors.push("silver", "orders", {"count": 1})
    clock.advance(10)
    other = sensors.push("silver", "orders", {"count": 2})
    assert [each.version for each in (first, same, other)] == [1, 2, 3]
    assert same.changed_at_ms == first.changed_at_ms == first.pushed_at_ms
    assert same.pushed_at_ms == first.pushed_at_ms + 10_000
    assert other.changed_at_ms == first.changed_at_ms + 20_000
    assert sensors.get("silver", "orders") == other
    assert first.by == "anna"


def test_push__with_further_writes__all_or_nothing(sensors: Sensors, store: Store) -> None:
    wake = {"PK": "PIPELINE#silver", "SK": "WAKE"}
    versions: list[int] = []

    def waking(sensor: Sensor) -> list[Put]:
        versions.append(sensor.version)
        return [Put(PIPELINES, {**wake, "of": sensor.version}, absent())]

    sensors.push("silver", "orders", {"count": 1}, also=waking)
    assert store.get(PIPELINES, PIPELINES.key_of(wake)) == {**wake, "of": 1}
    with pytest.raises(ConflictError):
        sensors.push("silver", "orders", {"count": 2}, also=waking)
    response = sensors.get("silver", "orders")
    assert response is not None
    assert response.data == {"count": 1}
    # What refused was not the sensor, so that trying again would not have helped.
    assert versions == [1, 2]


def test_push__someone_else_in_between__is_not_overwritten_unseen(sensors: Sensors, store: Store) -> None:
    raced: list[int] = []

    def racing(sensor: Sensor) -> list[Put]:
        if not raced:
            raced.append(sensor.version)
            Sensors(store, VirtualClock()).push("silver", "orders", {"count": 7})
        return []

    assert sensors.push("silver", "orders", {"count": 8}, also=racing).version == 2


def test_read__row_of_the_period__beats_the_row_without(sensors: Sensors, clock: VirtualClock) -> None:
    # bug 52, bug 58: the period's row is found by the bare key, and wins though it is older.
    sensors.push("silver", "orders", {"count": 3}, period="2026-03-03")
    clock.advance(60)
    sensors.push("silver", "orders", {"count": 99})
    assert seen(sensors, "2026-03-03", "orders") == {"orders": {"count": 3}}
    assert seen(sensors, "2026-03-04", "orders") == {"orders": {"count": 99}}


@pytest.mark.parametrize(
    ("suffix", "date"),
    [
        ("2026-03-03", "2026-03-03"),
        ("20260303", "2026-03-03"),
        ("2026-03-03T07", "2026-03-03T07"),
        ("20260303T07", "2026-03-03T07"),
        ("2026-W10", "2026-W10"),
        ("2026-03", "2026-03"),
        ("2026-03-03T07:15", "2026-03-03T07:15"),
        ("2026-10-25T02+0100", "2026-10-25T02+0100"),
        ("20261025T02+0100", "2026-10-25T02+0100"),
    ],
)
def test_read__period_in_any_form__found_by_the_bare_key(
    sensors: Sensors, store: Store, suffix: str, date: str
) -> None:
    # bug 58
    write(store, f"orders#{suffix}", data={"count": 1})
    assert seen(sensors, date, "orders") == {"orders": {"count": 1}}
    assert split_key(f"orders#{suffix}") == ("orders", date)
    assert suffix in forms_of(date)


def test_read__many_periods_and_keys__the_same_each_time(sensors: Sensors) -> None:
    # bug 51
    for day in range(1, 28):
        sensors.push("silver", "orders", {"day": day}, period=f"2026-03-{day:02d}")
        sensors.push("silver", f"orders-{day}", {"day": -day})
    expected = {"orders": {"day": 3}, "orders-3": {"day": -3}}
    for _ in range(3):
        assert seen(sensors, "2026-03-03", "orders-3", "orders", "nothing") == expected


def test_read__however_many_periods_are_kept__costs_the_same(sensors: Sensors, store: Store) -> None:
    # D19
    def cost() -> int:
        before = store.stats.reads  # type: ignore[attr-defined]
        sensors.read("silver", ["orders"], "2026-03-03")
        return int(store.stats.reads - before)  # type: ignore[attr-defined]

    few = cost()
    for hour in range(24):
        sensors.push("silver", "orders", {"hour_count": hour}, period=f"2026-03-02T{hour:02d}")
    assert cost() == few


def test_retention__rows_of_periods__expire_and_the_bare_row_stays(sensors: Sensors, clock: VirtualClock) -> None:
    # D19
    sensors.push("silver", "orders", {"count": 1}, period="2026-03-03")
    sensors.push("silver", "orders", {"count": 2})
    clock.advance(89 * DAY)
    assert len(list(sensors.ls("silver"))) == 2
    clock.advance(2 * DAY)
    assert [sensor.data for sensor in sensors.ls("silver")] == [{"count": 2}]


def test_push__data_names_its_period__kept_for_it_when_overwritten(sensors: Sensors) -> None:
    # The hour of seven still waits for something else when the hour of eight arrives.
    seven = sensors.push("silver", "landed", {"date": "20260303", "hour": "07", "count": 7})
    sensors.push("silver", "landed", {"date": "20260303", "hour": "08", "count": 8})
    assert (seven.period, seven.is_of_period, seven.is_copy) == ("2026-03-03T07", False, False)
    assert seen(sensors, "2026-03-03T07", "landed")["landed"]["count"] == 7
    assert seen(sensors, "2026-03-03T08", "landed")["landed"]["count"] == 8
    assert seen(sensors, "2026-03-03", "landed")["landed"]["count"] == 8
    copies = {sensor.full_key: sensor.is_copy for sensor in sensors.ls("silver")}
    assert copies == {"landed": False, "landed#2026-03-03T07": True, "landed#2026-03-03T08": True}


def test_push__of_an_older_period__leaves_the_newer_as_it_is(sensors: Sensors) -> None:
    sensors.push("silver", "landed", {"date": "2026-03-03", "count": 3})
    late = sensors.push("silver", "landed", {"date": "2026-03-02", "count": 2})
    # Only the row of its period tells of it, so that it is news and no copy.
    assert (late.full_key, late.is_copy) == ("landed#2026-03-02", False)
    assert seen(sensors, "2026-03-02", "landed")["landed"]["count"] == 2
    assert seen(sensors, "2026-03-03", "landed")["landed"]["count"] == 3


def test_read__bare_row_of_another_period__is_not_for_this_one(sensors: Sensors, store: Store) -> None:
    write(store, "landed", data={"date": "2026-03-02", "count": 2})
    write(store, "plain", data={"count": 1})
    reading = sensors.read("silver", ["landed", "plain"], "2026-03-03")
    assert set(reading.sensors) == {"plain"}
    assert reading.strays == {"landed": "2026-03-02"}


@pytest.mark.parametrize(
    ("said", "date", "expected"),
    [
        ("2026-03-03", "2026-03-03", True),
        ("2026-03-03T23", "2026-03-03", True),
        ("2026-03-03", "2026-03-03T07", True),
        ("2026-03-03", "2026-03", True),
        ("2026-03-31", "2026-03", True),
        ("2026-04-01", "2026-03", False),
        ("2026-03-02", "2026-W10", True),
        ("2026-03-08", "2026-W10", True),
        ("2026-03-09", "2026-W10", False),
        ("2026-03-02", "2026-03-03", False),
        ("2026-03-03T06", "2026-03-03T07", False),
        ("2026-03-03T07", "2026-03-03T07:15", True),
        ("2026-12", "2027-01-01", False),
    ],
)
def test_may_concern__two_periods__overlap_or_not(said: str, date: str, expected: bool) -> None:
    assert may_concern(said, date) is expected


@pytest.mark.parametrize(
    ("key", "wanted", "expected"),
    [
        ("orders", "orders", True),
        ("orders#2026-03-03", "orders", True),
        ("orders#eu", "orders", True),
        ("orders-eu", "orders", False),  # D16
        ("orders-eu#2026-03-03", "orders", False),  # D16
        ("orders2", "orders", False),  # D16
        ("order", "orders", False),
    ],
)
def test_key__of_a_trigger__matches_only_at_a_delimiter(key: str, wanted: str, expected: bool) -> None:
    assert is_key_of(key, wanted) is expected


def test_ls__of_one_key__leaves_out_what_only_begins_alike(sensors: Sensors) -> None:
    # D16
    for key in ("orders", "orders-eu", "orders#eu", "orders2"):
        sensors.push("silver", key, {})
    sensors.push("silver", "orders", {}, period="2026-03-03")
    listed = [sensor.full_key for sensor in sensors.ls("silver", key="orders")]
    assert listed == ["orders", "orders#2026-03-03", "orders#eu"]


def test_ls__more_than_a_page__all_of_them(sensors: Sensors) -> None:
    # bug 75
    for number in range(205):
        sensors.push("silver", f"s{number:03d}", {})
    assert len(list(sensors.ls("silver"))) == 205


@pytest.mark.parametrize(
    "attributes",
    [
        {"data": {"count": 5, "status": "ok"}},
        {"count": 5, "status": "ok"},  # D14: flat
        {"data": {"count": 5}, "status": "ok"},
        {"data": {"count": 5, "status": "ok"}, "count": 4},
    ],
)
def test_row__wrapped_or_flat__read_alike(sensors: Sensors, store: Store, attributes: Item) -> None:
    # bug 53, D14: who listens to the stream and who evaluates see the same fields.
    write(store, "orders", **attributes)
    item = store.get(PIPELINES, sensor_key("silver", "orders"))
    assert item is not None
    assert data_of(item) == sensor_of(item).data == {"count": 5, "status": "ok"}
    assert seen(sensors, "2026-03-03", "orders") == {"orders": {"count": 5, "status": "ok"}}


def test_push__over_a_row_of_another_writer__goes_on_from_it(sensors: Sensors, store: Store) -> None:
    write(store, "orders", count=5, data="text", version="v2")
    result = sensors.push("silver", "orders", {"count": 6})
    assert (result.version, result.data) == (1, {"count": 6})
    assert sensors.push("silver", "orders", {"count": 7}).version == 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"updatedAt": 1_772_517_000}, 1_772_517_000_000),  # bug 50: seconds
        ({"updatedAt": 1_772_517_000_000}, 1_772_517_000_000),  # bug 50: milliseconds
        ({"updatedAt": "1772517000"}, 1_772_517_000_000),  # bug 50: as text
        ({"updatedAt": "2026-03-03T05:50:00Z"}, 1_772_517_000_000),  # D13: ISO
        ({"updated_at": "2026-03-03T06:50:00+01:00"}, 1_772_517_000_000),  # D13
        ({"updatedAt": "whenever"}, 1_772_517_600_000),
        ({}, 1_772_517_600_000),
    ],
)
def test_updated_at__in_any_form__is_one_moment(sensors: Sensors, data: dict[str, Any], expected: int) -> None:
    assert sensors.push("silver", "orders", data).updated_at_ms == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"date": "2026-03-03"}, "2026-03-03"),
        ({"date": "20260303"}, "2026-03-03"),
        ({"date": 20260303}, "2026-03-03"),
        ({"date": 20260303.0, "hour": 7.0}, "2026-03-03T07"),
        ({"date": "20260303", "hour": "07"}, "2026-03-03T07"),
        ({"date": "20260303", "hour": 23}, "2026-03-03T23"),
        ({"date": "20260303", "hour": "24"}, "2026-03-03"),
        ({"date": "20260303", "hour": "noon"}, "2026-03-03"),
        ({"date": "20260303", "hour": True}, "2026-03-03"),
        ({"date": "2026-03-03T07"}, "2026-03-03T07"),
        ({"date": "2026-W10"}, "2026-W10"),
        ({"date": "2026-02-30"}, None),
        ({"date": "today"}, None),
        ({"date": None, "hour": "07"}, None),
        ({"hour": "07"}, None),
    ],
)
def test_execution_date__fields__name_a_period_or_none(data: dict[str, Any], expected: str | None) -> None:
    # bug 16: what is not named is left to the caller, who knows the run's own date; never to the wall clock here.
    assert period_of_fields(data) == expected


@pytest.mark.parametrize(
    ("key", "period", "data"),
    [
        ("", None, {}),
        (" orders", None, {}),
        ("or\nders", None, {}),
        ("o" * 257, None, {}),
        ("orders", "soon", {}),
        ("orders#2026-03-03", "2026-03-04", {}),
        ("orders", None, [1]),
        ("orders", None, {"": 1}),
    ],
)
def test_push__what_cannot_be__refused(sensors: Sensors, key: str, period: str | None, data: Any) -> None:
    with pytest.raises(InvalidPayloadError):
        sensors.push("silver", key, data, period=period)
    assert list(sensors.ls("silver")) == []


def test_read_periods__kept_ones__by_their_dates(sensors: Sensors, store: Store) -> None:
    sensors.push("silver", "orders", {"count": 1}, period="2026-03-01")
    write(store, "orders#20260302", data={"count": 2})
    read = sensors.read_periods("silver", {"orders": ["2026-03-02", "2026-03-01", "2026-02-28"], "none": []})
    assert {date: sensor.data["count"] for date, sensor in read["orders"].items()} == {"2026-03-02": 2, "2026-03-01": 1}
    assert read["none"] == {}


def test_delete__one_period__leaves_the_others(sensors: Sensors) -> None:
    sensors.push("silver", "orders", {}, period="2026-03-03")
    sensors.push("silver", "orders", {})
    assert sensors.delete("silver", "orders#20260303")
    assert not sensors.delete("silver", "orders", period="2026-03-03")
    assert [sensor.full_key for sensor in sensors.ls("silver")] == ["orders"]
