"""Incidents on every backend: one for one trouble, never expired while open, and no sweep that trusts an old index."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import IllegalTransitionError
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.incidents.rows import TimerKind
from headgate.health.incidents.writes import Opened
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.incidents import Changes
from headgate.health.model.signals import UpdateResult, UpdateVerdict
from headgate.store.keyring import Keyring
from tests.contract.conftest import DYNAMODB_BACKENDS, AnyStore, Eventually
from tests.health_rig import CRITICAL, HEALTH_TABLES, OK, ORDERS, PAYMENTS, Rig, evidence_id, trouble

TABLES = HEALTH_TABLES


@pytest.fixture
def rig(store: AnyStore, clock: VirtualClock, keyring: Keyring, tmp_path: Path) -> Rig:
    return Rig(store, clock, keyring, tmp_path)


def together(*calls: Callable[[], object]) -> list[BaseException]:
    problems: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait(10)
        try:
            call()
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return problems


def test_open__by_several_at_once__is_one_incident(rig: Rig, backend: str) -> None:
    count = 4 if backend in DYNAMODB_BACKENDS else 12
    outcomes: list[Opened] = []

    def opener(number: int) -> Callable[[], object]:
        given = trouble(ORDERS, evidence_sample=(evidence_id(number),))
        return lambda: outcomes.append(rig.incidents.open(given, actor=f"engine-{number}"))

    assert together(*[opener(number) for number in range(count)]) == []
    assert len({each.incident.incident_id for each in outcomes}) == 1
    assert sum(each.is_new for each in outcomes) == 1
    incident = rig.incidents.get(outcomes[0].incident.incident_id)
    assert set(incident.evidence_sample) == {evidence_id(number) for number in range(count)}


def test_signals__critical_at_once__share_one_incident(rig: Rig, backend: str) -> None:
    count = 4 if backend in DYNAMODB_BACKENDS else 10
    results: list[UpdateResult] = []

    def engine(number: int) -> Callable[[], object]:
        update = rig.update(CRITICAL, kind=f"K{number}")

        def run() -> None:
            while (result := rig.signals.update(update)).verdict is UpdateVerdict.UNAVAILABLE:
                pass
            results.append(result)

        return run

    assert together(*[engine(number) for number in range(count)]) == []
    assert {each.verdict for each in results} == {UpdateVerdict.APPLIED}
    linked = {rig.signal(f"K{number}").value.incident_id for number in range(count)}
    assert len(linked) == 1
    assert set(rig.incident_of("K0").signal_types) == {f"K{number}" for number in range(count)}


def test_open_incident__never_expires_and_a_resolved_one_does(rig: Rig, clock: VirtualClock) -> None:
    first = rig.incidents.open(trouble(), actor="a").incident.incident_id
    second = rig.incidents.open(trouble(PAYMENTS), actor="a").incident.incident_id
    rig.incidents.change(second, Changes(status="RESOLVED"), actor="ana")
    clock.advance(364 * 86_400)
    assert not rig.incidents.get(second).is_open
    clock.advance(2 * 86_400)
    assert rig.incidents.get(first).is_open
    assert rig.incidents.get_many([first, second], consistent=True)[1] is None


def test_dedup__expired_and_not_yet_deleted__opens_another(rig: Rig, clock: VirtualClock) -> None:
    first = rig.incidents.open(trouble(), actor="a").incident.incident_id
    rig.incidents.change(first, Changes(status="RESOLVED"), actor="ana")
    clock.advance(3_700)
    second = rig.incidents.open(trouble(), actor="a")
    assert second.is_new
    with pytest.raises(IllegalTransitionError, match=second.incident.incident_id):
        rig.incidents.change(first, Changes(status="OPEN", reason="again"), actor="ana")


def test_listing__of_an_index_that_lags__gets_there_and_shows_each_once(rig: Rig, eventually: Eventually) -> None:
    ids = []
    for number in range(5):
        rig.clock.advance(1)
        ids.append(
            rig.incidents.open(trouble(ORDERS, failure_signatures=(f"S:{number}",)), actor="a").incident.incident_id
        )
    rig.incidents.change(ids[0], Changes(status="ACKNOWLEDGED"), actor="ana")
    rig.incidents.change(ids[1], Changes(status="RESOLVED"), actor="ana")
    wanted = IncidentFilter(statuses=(IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED), owner_team="team-a")

    def read() -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = rig.listing.ls(wanted, limit=2, cursor=cursor)
            found += [each.incident_id for each in page.incidents]
            cursor = page.cursor
            if cursor is None:
                return found

    eventually(read, lambda found: found == [ids[4], ids[3], ids[2], ids[0]])


def test_sweep__of_an_index_that_lags__acts_on_what_is_and_only_once(rig: Rig, eventually: Eventually) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    rig.clock.advance(15 * 60)
    eventually(lambda: rig.incident_timers.sweep(), lambda done: done == 1)
    for _ in range(3):
        rig.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 1
    rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
    rig.clock.advance(3_600)
    rig.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 1
    rig.say(OK)
    rig.clock.advance(301)
    eventually(
        lambda: (rig.incident_timers.sweep(), rig.incidents.get(incident_id))[1], lambda found: not found.is_open
    )
    assert rig.signal().value.incident_id is None
    assert rig.due(TimerKind.RECOVERY, incident_id) is None


def test_merge_and_resolve__on_every_backend__leave_nothing_behind(rig: Rig) -> None:
    rig.say(CRITICAL, evidence=[evidence_id(1)])
    rig.say(CRITICAL, urn=PAYMENTS, kind="VOLUME", signature="LOW:x", evidence=[evidence_id(2)])
    into, other = rig.incident_of().incident_id, rig.incident_of("VOLUME", PAYMENTS).incident_id
    rig.incidents.merge(other, into, actor="ana")
    assert rig.signal("VOLUME", PAYMENTS).value.incident_id == into
    rig.incidents.change(into, Changes(status="RESOLVED"), actor="ana")
    assert rig.signal("VOLUME", PAYMENTS).value.incident_id is None
    assert rig.signal().value.incident_id is None
    rig.later(OK, urn=PAYMENTS, kind="VOLUME")
    rig.later(CRITICAL, urn=PAYMENTS, kind="VOLUME", signature="LOW:x")
    assert rig.incident_of("VOLUME", PAYMENTS).is_open
