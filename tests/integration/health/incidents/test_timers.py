"""Upkeep: more people are notified in time, quiet incidents end, flapping ones wait, and each row is handled once."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import cast

import pytest

from headgate.durable.model.records import instant
from headgate.errors import StoreBusyError
from headgate.health.incidents.rows import TimerKind
from headgate.health.model.enums import IncidentStatus, SignalState
from headgate.health.model.events import IncidentEventType
from headgate.health.model.incidents import Changes
from headgate.store.port import Store
from tests.health_faults import Refusing, failing
from tests.health_rig import CRITICAL, OK, ORDERS, UNKNOWN, WARNING, Rig, check_invariants, trouble


def opened(rig: Rig) -> str:
    return rig.incidents.open(trouble(), actor="a").incident.incident_id


def sweep_all(rig: Rig) -> None:
    for _ in range(3):
        rig.incident_timers.sweep()


# Escalation.


def test_escalation__no_one_acknowledges__more_are_notified_after_15_30_and_60_minutes(rig: Rig) -> None:
    incident_id = opened(rig)
    levels: list[tuple[int, int]] = []
    for minute in range(0, 121):
        rig.incident_timers.sweep()
        level = rig.incidents.get(incident_id).escalation_level
        if not levels or levels[-1][1] != level:
            levels.append((minute, level))
        rig.pass_minutes(1)
    assert levels == [(0, 0), (15, 1), (30, 2), (60, 3)]
    assert rig.due(TimerKind.ESCALATION, incident_id) is None
    events = [each["escalation_level"] for each in rig.stored_events() if each["event_type"] == "INCIDENT_UPDATED"]
    assert events == [1, 2, 3]


def test_escalation__is_due__is_listed_before_it_is_swept(rig: Rig) -> None:
    incident_id = opened(rig)
    assert rig.incident_timers.due_escalations() == []
    rig.pass_minutes(15)
    (due,) = rig.incident_timers.due_escalations()
    assert (due.incident_id, due.level) == (incident_id, 1)
    assert rig.incident_timers.sweep() == 1
    assert rig.incident_timers.due_escalations() == []
    assert rig.incident_timers.sweep() == 0


def test_escalation__many_are_due__those_that_waited_longest_come_first(rig: Rig) -> None:
    for number in range(40):
        rig.clock.advance(1)
        rig.incidents.open(trouble(ORDERS, "A", failure_signatures=(f"S{number}",)), actor="a")
    rig.pass_minutes(20)
    every = [each.due_at_ms for each in rig.incident_timers.due_escalations(limit=100)]
    assert every == sorted(every)
    assert len(every) == 40
    assert [each.due_at_ms for each in rig.incident_timers.due_escalations(limit=5)] == every[:5]


def test_escalation__more_are_due_than_one_sweep_takes__the_next_goes_on(rig: Rig) -> None:
    for number in range(25):
        rig.incidents.open(trouble(ORDERS, "A", failure_signatures=(f"S{number}",)), actor="a")
    rig.pass_minutes(15)
    assert rig.incident_timers.sweep(limit=10) == 10
    assert rig.incident_timers.sweep(limit=10) == 10
    assert rig.incident_timers.sweep(limit=10) == 5
    assert {each.escalation_level for each in rig.all_incidents()} == {1}


@pytest.mark.parametrize("status", ["ACKNOWLEDGED", "INVESTIGATING", "RESOLVED", "CLOSED"])
def test_escalation__someone_is_at_it__no_one_more_is_notified(rig: Rig, status: str) -> None:
    incident_id = opened(rig)
    rig.incidents.change(incident_id, Changes(status=status), actor="ana")
    assert rig.due(TimerKind.ESCALATION, incident_id) is None
    rig.pass_minutes(120)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).escalation_level == 0


def test_escalation__handed_back__goes_on_where_it_was(rig: Rig) -> None:
    incident_id = opened(rig)
    rig.pass_minutes(15)
    rig.incident_timers.sweep()
    rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
    rig.incidents.change(incident_id, Changes(status="OPEN", reason="not mine"), actor="ana")
    rig.pass_minutes(60)
    rig.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 2


def test_escalation__reopened__begins_anew(rig: Rig) -> None:
    incident_id = opened(rig)
    rig.pass_minutes(15)
    rig.incident_timers.sweep()
    rig.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")
    rig.incidents.change(incident_id, Changes(status="OPEN", reason="no"), actor="ana")
    assert rig.incidents.get(incident_id).escalation_level == 0
    rig.pass_minutes(15)
    rig.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 1


def test_snooze__until_then_no_one_is_notified_and_then_they_are(rig: Rig) -> None:
    incident_id = opened(rig)
    until = rig.now_ms + 3 * 3_600_000
    rig.incidents.snooze(incident_id, instant(until), actor="ana")
    rig.pass_minutes(179)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).escalation_level == 0
    rig.pass_minutes(2)
    sweep_all(rig)
    found = rig.incidents.get(incident_id)
    assert (found.escalation_level, found.snoozed_until) == (1, None)


def test_snooze__another_signal_joins__stays_snoozed(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.incidents.snooze(incident_id, instant(rig.now_ms + 3_600_000), actor="ana")
    rig.later(CRITICAL, kind="VOLUME")
    rig.pass_minutes(30)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).escalation_level == 0


def test_escalation__is_reported_to_the_observer(rig: Rig) -> None:
    opened(rig)
    rig.observer.incident_events.clear()
    rig.pass_minutes(16)
    rig.incident_timers.sweep()
    assert rig.observer.incident_events == [IncidentEventType.UPDATED]


# The end.


def test_recovery__all_well_for_five_minutes__is_over(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, kind="VOLUME")
    incident_id = rig.incident_of().incident_id
    rig.later(OK)
    rig.pass_minutes(10)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open, "one is still CRITICAL"
    rig.later(OK, kind="VOLUME")
    rig.pass_minutes(4)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open, "not long enough"
    rig.pass_minutes(1.5)
    sweep_all(rig)
    over = rig.incidents.get(incident_id)
    assert over.status is IncidentStatus.RESOLVED
    assert over.resolution is not None
    assert over.resolution.resolved_by == "headgate"
    check_invariants(rig, [ORDERS])


@pytest.mark.parametrize("state", [WARNING, UNKNOWN])
def test_recovery__better_but_not_well__is_not_over(rig: Rig, state: SignalState) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.later(state)
    rig.pass_minutes(120)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open
    rig.later(OK)
    rig.pass_minutes(6)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__well_and_worse_and_well__counts_from_the_last_time(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.later(OK)
    rig.later(CRITICAL, minutes=4)
    rig.later(OK, minutes=0.5)
    rig.pass_minutes(4)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open
    rig.pass_minutes(2)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__worse_for_a_moment_of_which_the_sweep_knows_nothing__still_ends(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.later(OK)
    rig.later(UNKNOWN)
    rig.pass_minutes(10)
    sweep_all(rig)
    rig.later(OK)
    rig.pass_minutes(6)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__acknowledged__ends_too(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.incidents.change(incident_id, Changes(status="MITIGATING"), actor="ana")
    rig.later(OK)
    rig.pass_minutes(6)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__opened_by_people_without_signals__is_not_ended_by_a_sweep(rig: Rig) -> None:
    incident_id = opened(rig)
    rig.pass_minutes(24 * 60)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open


def test_recovery__opened_for_a_signal_that_had_become_well__ends(rig: Rig) -> None:
    rig.say(OK)
    incident_id = opened(rig)
    rig.later(OK)
    rig.pass_minutes(40)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__has_left_for_another_trouble__ends_without_it(rig: Rig) -> None:
    rig.say(CRITICAL, signature="A:x")
    first = rig.incident_of().incident_id
    rig.later(CRITICAL, signature="B:y")
    rig.later(OK)
    rig.pass_minutes(40)
    sweep_all(rig)
    assert [each.incident_id for each in rig.all_incidents() if each.is_open] == []
    assert not rig.incidents.get(first).is_open


def test_flapping__breaks_out_again_and_again__is_one_incident_and_waits_longer(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    for _ in range(3):
        rig.later(OK)
        rig.pass_minutes(6)
        sweep_all(rig)
        assert not rig.incidents.get(incident_id).is_open
        rig.later(CRITICAL, minutes=5)
        assert rig.incident_of().incident_id == incident_id
    rig.later(OK)
    rig.pass_minutes(10)
    sweep_all(rig)
    flapping = rig.incidents.get(incident_id)
    assert flapping.is_open, "it has broken out three times: give it longer"
    assert flapping.recurrences == 3
    rig.pass_minutes(25)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open
    assert len(rig.all_incidents()) == 1
    check_invariants(rig, [ORDERS])


def test_flapping__worse_again_while_it_waits_longer__waits_for_all_of_it_again(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    for _ in range(3):
        rig.later(OK)
        rig.pass_minutes(6)
        sweep_all(rig)
        rig.later(CRITICAL, minutes=5)
    rig.later(OK)
    rig.pass_minutes(20)
    sweep_all(rig)
    rig.later(CRITICAL)
    rig.later(OK)
    rig.pass_minutes(15)
    sweep_all(rig)
    assert rig.incidents.get(incident_id).is_open
    rig.pass_minutes(20)
    sweep_all(rig)
    assert not rig.incidents.get(incident_id).is_open


# Many at once, and trouble on the way.


def test_sweep__two_at_once__each_row_is_dealt_with_once(rig: Rig) -> None:
    for number in range(20):
        rig.say(CRITICAL, kind=f"K{number}", signature=f"S:{number}")
    for number in range(10):
        rig.say(OK, kind=f"K{number}", ago_ms=-1)
    rig.pass_minutes(16)
    problems: list[BaseException] = []

    def sweep() -> None:
        try:
            rig.incident_timers.sweep()
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    events = Counter((each["incident_id"], each["escalation_level"]) for each in rig.stored_events()
                   if each["event_type"] == "INCIDENT_UPDATED" and each["escalation_level"])  # fmt: skip
    assert all(count == 1 for count in events.values())
    assert sum(not each.is_open for each in rig.all_incidents()) == 10
    check_invariants(rig, [ORDERS])


@pytest.mark.parametrize("method", ["query_many", "transact", "get", "get_many", "query", "update"])
def test_sweep__the_store_fails_once__the_next_one_does_what_is_left(rig: Rig, method: str) -> None:
    rig.say(CRITICAL, kind="A", signature="A:x")
    rig.say(CRITICAL, kind="B", signature="B:y")
    rig.say(OK, kind="A", ago_ms=-1)
    rig.pass_minutes(16)
    store = failing(rig.store, method, StoreBusyError("simulated: busy"))
    process = Rig(store, rig.clock, rig.keyring, rig.folder)
    for _ in range(4):
        try:
            process.incident_timers.sweep()
        except StoreBusyError:
            continue
    assert sorted(each.is_open for each in rig.all_incidents()) == [False, True]
    assert {each.escalation_level for each in rig.all_incidents() if each.is_open} == {1}
    check_invariants(rig, [ORDERS])


def test_sweep__one_row_cannot_be_dealt_with__the_others_are(rig: Rig) -> None:
    """A row that always fails must not keep everyone else's incidents from ending."""
    for number in range(6):
        rig.say(CRITICAL, kind=f"K{number}", signature=f"S:{number}")
        rig.say(OK, kind=f"K{number}", ago_ms=-1)
    rig.pass_minutes(6)
    store = Refusing(rig.store)
    process = Rig(cast("Store", store), rig.clock, rig.keyring, rig.folder)
    for _ in range(2):
        with contextlib.suppress(StoreBusyError):
            process.incident_timers.sweep()
    assert [each.incident_id for each in rig.all_incidents() if each.is_open] == [store.poisoned]


def test_recovery__reopened_by_a_report_when_all_is_well__ends(rig: Rig) -> None:
    """An engine that lags reports a trouble of which some signals are well again, and the others are not mentioned."""
    rig.say(CRITICAL, kind="A")
    rig.say(CRITICAL, kind="B")
    incident_id = rig.incident_of("A").incident_id
    rig.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")
    rig.later(OK, kind="A")
    rig.later(OK, kind="B")
    again = rig.incidents.open(trouble(ORDERS, "A"), actor="engine").incident
    assert (again.incident_id, again.is_open) == (incident_id, True)
    rig.later(OK, kind="A")
    for _ in range(6):
        rig.pass_minutes(10)
        rig.incident_timers.sweep()
    assert not rig.incidents.get(incident_id).is_open


def test_recovery__a_report_takes_its_last_unhealthy_signal_to_another__ends(rig: Rig) -> None:
    rig.say(CRITICAL, kind="A")
    rig.say(CRITICAL, kind="B")
    first = rig.incident_of("A").incident_id
    rig.later(OK, kind="A")
    rig.pass_minutes(6)
    sweep_all(rig)
    assert rig.incidents.get(first).is_open, "B is still CRITICAL"
    second = rig.incidents.open(trouble(ORDERS, "B", failure_signatures=("LOW:x",)), actor="engine").incident
    assert rig.signal("B").value.incident_id == second.incident_id
    rig.pass_minutes(40)
    sweep_all(rig)
    assert not rig.incidents.get(first).is_open, "all of its signals are OK, and nothing else would end it"
    assert rig.incidents.get(second.incident_id).is_open


def test_recover__a_signal_that_fails_another_way_now__is_not_said_to_be_ok(rig: Rig) -> None:
    rig.say(CRITICAL, kind="VOLUME", signature="LOW:rows")
    first = rig.incident_of("VOLUME")
    rig.later(CRITICAL, kind="VOLUME", signature="G4:LOW:rows")
    second = rig.incident_of("VOLUME")
    assert second.incident_id != first.incident_id

    rig.pass_minutes(6)
    rig.incident_timers.sweep()

    ended = rig.incidents.get(first.incident_id)
    assert ended.status is IncidentStatus.RESOLVED
    said = f"VOLUME fails with G4:LOW:rows now: see {second.incident_id}"
    assert (ended.steps[-1].reason, ended.resolution and ended.resolution.root_cause) == (said, said)
    assert rig.incidents.get(second.incident_id).is_open


def test_recover__one_ok_and_one_that_fails_another_way__says_both(rig: Rig) -> None:
    rig.say(CRITICAL, kind="VOLUME")
    rig.say(CRITICAL, kind="SCHEMA")
    first = rig.incident_of("SCHEMA")
    assert rig.incident_of("VOLUME").incident_id == first.incident_id
    rig.later(CRITICAL, kind="VOLUME", signature="OTHER:x")
    rig.later(OK, kind="SCHEMA")

    rig.pass_minutes(6)
    rig.incident_timers.sweep()

    reason = rig.incidents.get(first.incident_id).steps[-1].reason
    assert reason == f"VOLUME fails with OTHER:x now: see {rig.incident_of('VOLUME').incident_id}; " + (
        "its other signals are OK again"
    )


def test_recover__one_that_failed_another_way_and_is_ok_by_now__is_ok_again(rig: Rig) -> None:
    rig.say(CRITICAL, kind="VOLUME", signature="LOW:rows")
    first = rig.incident_of("VOLUME")
    rig.later(CRITICAL, kind="VOLUME", signature="G4:LOW:rows")
    rig.later(OK, kind="VOLUME")

    rig.pass_minutes(6)
    rig.incident_timers.sweep()

    assert rig.incidents.get(first.incident_id).steps[-1].reason == "all its signals are OK again"
