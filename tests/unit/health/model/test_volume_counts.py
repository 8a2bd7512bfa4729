"""Volumes by the hour: each window counts once, as it was said last, in any order; what was not counted is a gap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.durable.model.records import instant
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.signals import ANY_VERSION, Metrics, Signal, SignalUpdate, UpdateVerdict
from headgate.health.model.volume_counts import (
    DAYS_MAX,
    HOUR_MS,
    KEPT_DAYS,
    WINDOWS_MAX,
    VolumeHour,
    VolumePoint,
    counted,
    points,
    together,
    window_of,
)
from headgate.health.signals.decisions import decide
from tests.health_rig import OK, ORDERS, UNKNOWN, WARNING, value

TEN_MS = 1_768_471_200_000  # 2026-01-15T10:00:00Z
MINUTE_MS = 60_000
STANDING = DatasetProfile(Tier.TIER_1, "team-a")


def update(
    minute: float, count: int, state: SignalState = OK, kind: str = "VOLUME", *, is_counted: bool = True
) -> SignalUpdate:
    said = replace(value(state, TEN_MS + int(minute * MINUTE_MS)), metrics=Metrics(evidence_count=count))
    return SignalUpdate(
        dataset_urn=ORDERS, signal_type=kind, value=said, expected_version=ANY_VERSION, is_counted=is_counted
    )


class Kept:
    """What is stored of a dataset's volume when updates come in, as the store keeps it."""

    def __init__(self, now_ms: int = TEN_MS + 3 * HOUR_MS - 1) -> None:
        self.now_ms = now_ms
        self.signal: Signal | None = None
        self.hours: dict[str, VolumeHour] = {}
        self.late: dict[tuple[str, int], VolumeHour] = {}

    def take(self, *updates: SignalUpdate) -> None:
        for each in updates:
            decision = decide(self.signal, each, STANDING, self.now_ms)
            own = decision.volume
            if decision.verdict is UpdateVerdict.STALE_WINDOW and own is not None:
                self.late[own.hour, own.counts[0][0]] = own
            elif decision.verdict is UpdateVerdict.APPLIED:
                self.signal = decision.signal
                if own is not None:
                    self.hours[own.hour] = own

    def points(self, days: int = 1) -> list[VolumePoint]:
        in_progress = [] if self.signal is None or self.signal.volume is None else [self.signal.volume]
        return points(together([*in_progress, *self.hours.values()], self.late.values()), days, self.now_ms)

    def known(self) -> dict[str, int]:
        return {each.hour[11:13]: each.event_count for each in self.points() if each.event_count is not None}


WINDOWS = st.lists(
    st.tuples(st.integers(1, 36), st.integers(0, 9), st.sampled_from([OK, WARNING])), min_size=1, max_size=40
)


@given(WINDOWS)
@settings(max_examples=200, deadline=None)
def test_windows__in_any_order_and_again__each_counts_once_as_it_was_said_last(
    said: list[tuple[int, int, SignalState]],
) -> None:
    kept, expected = Kept(), dict[int, int]()
    for number, count, state in said:
        kept.take(update(number * 5, count, state))
        expected[number] = count
    hours = {
        f"{10 + hour}": sum(count for _, count in windows)
        for hour, windows in itertools.groupby(sorted(expected.items()), lambda each: (each[0] - 1) // 12)
    }
    assert kept.known() == hours
    assert sum(each.window_count for each in kept.points()) == len(expected)


def test_window__that_ended_with_the_hour__is_of_that_hour() -> None:
    assert window_of("2026-01-15T11:00:00.000Z", 7) == VolumeHour("2026-01-15T10", ((HOUR_MS, 7),))
    assert window_of("2026-01-15T11:00:00.001Z", 7) == VolumeHour("2026-01-15T11", ((1, 7),))


def test_points__hours_no_one_counted__are_gaps_and_nothing_counted_is_zero() -> None:
    kept = Kept()
    kept.take(update(5, 12), update(10, 0, WARNING), update(125, 0))

    found = kept.points()

    assert len(found) == 24
    ten, eleven, noon = found[-3:]
    assert (ten.hour, ten.event_count, ten.window_count) == ("2026-01-15T10:00:00.000Z", 12, 2)
    assert (eleven.event_count, eleven.window_count) == (None, 0)
    assert (noon.event_count, noon.is_over, eleven.is_over) == (0, False, True)
    assert {each.event_count for each in found[:-3]} == {None}


def test_update__without_a_number__leaves_what_was_counted() -> None:
    kept = Kept()
    kept.take(update(5, 12), update(10, 0, is_counted=False), update(65, 0, UNKNOWN))

    assert kept.known() == {"10": 12}
    assert kept.hours == {}
    kept.take(update(75, 3))
    assert kept.known() == {"10": 12, "11": 3}


def test_other_signals__of_any_count__keep_no_volume() -> None:
    kept = Kept()
    kept.take(update(5, 12, kind="FRESHNESS"), update(125, 12, kind="FRESHNESS"), update(10, 1, kind="FRESHNESS"))

    assert kept.signal is not None
    assert (kept.signal.volume, kept.hours, kept.late) == (None, {}, {})


@pytest.mark.parametrize("days", [KEPT_DAYS + 1, 90])
def test_hours__older_than_are_kept__are_dropped(days: int) -> None:
    kept = Kept(now_ms=TEN_MS + days * 24 * HOUR_MS + HOUR_MS)
    kept.take(update(5, 1), update(65, 2), update(10, 3))

    assert (kept.hours, kept.late) == ({}, {})
    assert all(each.event_count is None for each in kept.points(DAYS_MAX))


def test_hour__more_windows_than_are_distinguished__counts_them_all_and_none_twice() -> None:
    kept = Kept()
    seconds = [update(number / 10, 1) for number in range(1, 601)]
    kept.take(*seconds, seconds[3], seconds[-2])

    assert kept.signal is not None
    assert kept.signal.volume is not None
    assert len(kept.signal.volume.counts) == WINDOWS_MAX
    assert kept.known() == {"10": 600}


def test_counted__the_present_window_said_anew__replaces_its_count() -> None:
    held = counted(None, window_of(instant(TEN_MS + MINUTE_MS), 5))

    assert counted(held, window_of(instant(TEN_MS + MINUTE_MS), 8)).counts == ((MINUTE_MS, 8),)
