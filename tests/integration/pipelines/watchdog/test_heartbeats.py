"""Heartbeats: a silence is reported once, its end once, and a watchdog that was away itself reports none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.events.names import EventName
from headgate.pipelines.watchdog.heartbeats import Heartbeat, HeartbeatChange, Heartbeats, HeartbeatSource, decide
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.integration.pipelines.watchdog_rig import WatchRig

LIMIT = 900.0
NOW_MS = 10_000_000
LIMIT_MS = 900_000


def heartbeat(ago_ms: int, *, silent: bool = False) -> Heartbeat:
    at_ms = NOW_MS - ago_ms
    return Heartbeat(name=HeartbeatSource.WATCHDOG, at_ms=at_ms, since_ms=0, silent_since_ms=at_ms if silent else None)


@pytest.mark.parametrize(
    ("other", "observed_ms_ago", "change"),
    [
        (heartbeat(0), 5_000_000, None),
        (heartbeat(LIMIT_MS - 1), 5_000_000, None),
        (heartbeat(LIMIT_MS), 5_000_000, HeartbeatChange.FELL_SILENT),
        # Told before.
        (heartbeat(LIMIT_MS + 1, silent=True), 5_000_000, None),
        (heartbeat(10, silent=True), 5_000_000, HeartbeatChange.RECOVERED),
        # The observer has just come back itself: the machine slept.
        (heartbeat(4_000_000), 1_000, None),
        (heartbeat(4_000_000), LIMIT_MS, HeartbeatChange.FELL_SILENT),
        # A clock that is ahead of ours.
        (heartbeat(-60_000), 5_000_000, None),
    ],
)
def test_decide__when_the_other_was_received__says_what_is_new(
    other: Heartbeat, observed_ms_ago: int, change: HeartbeatChange | None
) -> None:
    assert decide(other, NOW_MS - observed_ms_ago, NOW_MS, LIMIT) is change


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    with WatchRig() as opened:
        yield opened


def heartbeats(rig: WatchRig, store: Store | None = None) -> Heartbeats:
    return Heartbeats(store or rig.store, rig.env.service.clock, rig.event_writer, silent_seconds=LIMIT)


class AsRead:
    """A store as someone sees it who has read everything before others wrote."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read: dict[Key, Item | None] = {}

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        if key not in self._read:
            self._read[key] = self._store.get(table, key, consistent=consistent)
        return self._read[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def look(rig: WatchRig, who: HeartbeatSource, other: HeartbeatSource) -> HeartbeatChange | None:
    beats = heartbeats(rig)
    return beats.watch(beats.beat(who), other)


def pass_minutes(rig: WatchRig, minutes: int, *alive: HeartbeatSource) -> list[HeartbeatChange]:
    """Let time pass in which some beat and look at each other every minute."""
    found: list[HeartbeatChange] = []
    for _ in range(minutes):
        rig.env.clock.advance(60)
        for who in alive:
            other = HeartbeatSource.SERVER if who is HeartbeatSource.WATCHDOG else HeartbeatSource.WATCHDOG
            change = look(rig, who, other)
            found += [] if change is None else [change]
    return found


def infrastructure_events(rig: WatchRig) -> list[str]:
    return rig.event_names(INFRASTRUCTURE)


def test_watch__watchdog_dies__server_reports_once_and_once_more_when_it_is_back(rig: WatchRig) -> None:
    pass_minutes(rig, 5, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)

    silence = pass_minutes(rig, 60, HeartbeatSource.SERVER)
    back = pass_minutes(rig, 10, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)

    assert (silence, back) == ([HeartbeatChange.FELL_SILENT], [HeartbeatChange.RECOVERED])
    assert infrastructure_events(rig) == [EventName.WATCHDOG_SILENT, EventName.WATCHDOG_RECOVERED]


def test_watch__server_dies_twice__each_silence_is_reported_once(rig: WatchRig) -> None:
    pass_minutes(rig, 5, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)
    for _ in range(2):
        pass_minutes(rig, 30, HeartbeatSource.WATCHDOG)
        pass_minutes(rig, 5, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)

    assert infrastructure_events(rig) == [EventName.SERVER_SILENT, EventName.SERVER_RECOVERED] * 2


def test_watch__a_watchdog_that_never_came__is_missed_too(rig: WatchRig) -> None:
    assert pass_minutes(rig, 20, HeartbeatSource.SERVER) == [HeartbeatChange.FELL_SILENT]


def test_watch__both_slept_with_the_machine__no_one_is_accused(rig: WatchRig) -> None:
    pass_minutes(rig, 5, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)
    rig.env.clock.advance(8 * 3_600)

    pass_minutes(rig, 5, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)

    assert infrastructure_events(rig) == []


def test_watch__an_observer_that_is_started_anew_for_every_look__still_sees_the_silence(rig: WatchRig) -> None:
    # As a function on AWS is: it keeps nothing in memory, and every look is made by a new object here.
    pass_minutes(rig, 1, HeartbeatSource.SERVER, HeartbeatSource.WATCHDOG)

    assert pass_minutes(rig, 16, HeartbeatSource.WATCHDOG) == [HeartbeatChange.FELL_SILENT]


def test_watch__two_servers_see_it_at_once__one_reports(rig: WatchRig) -> None:
    beats = heartbeats(rig)
    beats.beat(HeartbeatSource.WATCHDOG)
    own = beats.beat(HeartbeatSource.SERVER)
    rig.env.clock.advance(LIMIT)
    # What both have read before either tells.
    read = cast("Store", AsRead(rig.store))
    heartbeats(rig, read).find(HeartbeatSource.WATCHDOG)

    changes = [heartbeats(rig, read).watch(own, HeartbeatSource.WATCHDOG) for _ in range(2)]

    assert changes == [HeartbeatChange.FELL_SILENT, None]
    assert infrastructure_events(rig) == [EventName.WATCHDOG_SILENT]


def test_degrade__the_same_checks_fail_for_an_hour__reported_once_then_recovered(rig: WatchRig) -> None:
    beats = heartbeats(rig)
    outcomes = []
    failures = [{"b": "x", "a": "y"}] * 3 + [{"a": "y"}, {"a": "y", "c": "z"}, {}, {}]
    for failed in failures:
        beats.beat(HeartbeatSource.WATCHDOG)
        outcomes.append(beats.degrade(HeartbeatSource.WATCHDOG, failed))
        rig.env.clock.advance(300)

    assert outcomes == [True, False, False, False, True, True, False]
    assert infrastructure_events(rig) == [
        EventName.WATCHDOG_DEGRADED,
        EventName.WATCHDOG_DEGRADED,
        EventName.WATCHDOG_RECOVERED,
    ]
    assert [event.detail.get("checks") for event in rig.events(INFRASTRUCTURE)] == ["a, b", "a, c", None]
