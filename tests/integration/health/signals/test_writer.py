"""Signals: taken over in one transaction with their history, news and incident, and refused with what is there."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.durable.bus.subscriptions import Subscription
from headgate.durable.model.records import instant
from headgate.errors import InvalidPayloadError, StoreBusyError, UserError
from headgate.health.model.datasets import DatasetProfile
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.incidents import Changes
from headgate.health.model.signals import Signal, UpdateResult, UpdateVerdict
from headgate.health.signals.rows import HISTORY_SECONDS
from headgate.health.signals.writer import BATCH_MAX
from headgate.store.catalogue.tables import BREACH_SHARDS, SIGNAL_STATE
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from tests.health_faults import answer_lost, failing, interrupted
from tests.health_rig import (
    CRITICAL,
    OK,
    ORDERS,
    PAYMENTS,
    SIGNATURE,
    UNKNOWN,
    WARNING,
    Rig,
    check_invariants,
    evidence_id,
    trouble,
    value,
)
from tests.integration.health.conftest import MakeRig


def history(rig: Rig, kind: str = "FRESHNESS") -> list[tuple[SignalState, int, bool]]:
    since, until = instant(rig.now_ms - 40 * 86_400_000), instant(rig.now_ms + 60_000)
    return [(each.state, each.version, each.late) for each in rig.signals.history(ORDERS, kind, since, until)]


def events(rig: Rig, kind: str = "SIGNAL_STATE_CHANGED") -> list[dict[str, Any]]:
    return [each for each in rig.stored_events() if each["event_type"] == kind]


# One update.


def test_update__transition__has_its_history_and_its_event(rig: Rig) -> None:
    rig.say(OK)
    rig.later(WARNING)
    rig.later(WARNING)
    rig.later(OK)
    assert history(rig) == [(OK, 1, False), (WARNING, 2, False), (OK, 4, False)]
    published = events(rig)
    assert [(each["previous_state"], each["new_state"], each["version"]) for each in published] == [
        (None, "OK", 1),
        ("OK", "WARNING", 2),
        ("WARNING", "OK", 4),
    ]
    assert {"dataset_urn", "signal_type", "previous_state", "new_state", "failure_signature", "timestamp"} <= set(
        published[1]
    )
    assert published[1]["failure_signature"] == SIGNATURE
    check_invariants(rig, [ORDERS])


def test_update__refresh__is_no_reported_change(rig: Rig) -> None:
    rig.say(OK, ago_ms=3_000)
    rig.say(OK, ago_ms=2_000)
    rig.say(WARNING, ago_ms=1_000)

    assert [each.state for each in rig.observer.changed] == [OK, WARNING]


def test_update__conflict__returns_what_is_there(rig: Rig) -> None:
    first = rig.say(OK, version=0)
    rig.pass_minutes(1)
    conflict = rig.say(CRITICAL, version=0)
    assert conflict.verdict is UpdateVerdict.VERSION_CONFLICT
    assert not conflict.is_success
    assert conflict.signal == first.signal
    assert "version" in conflict.message
    assert rig.signal().state is OK


def test_update__version_of_a_signal_that_is_not_there__is_a_conflict_without_one(rig: Rig) -> None:
    conflict = rig.say(OK, version=3)
    assert (conflict.verdict, conflict.signal) == (UpdateVerdict.VERSION_CONFLICT, None)


def test_update__late_window__is_in_the_history_alone(rig: Rig) -> None:
    rig.say(OK)
    rig.pass_minutes(10)
    current = rig.say(OK)
    late = rig.say(CRITICAL, ago_ms=300_000)
    assert late.verdict is UpdateVerdict.STALE_WINDOW
    assert late.signal == current.signal
    assert rig.signal().version == 2
    assert [each for each in history(rig) if each[2]] == [(CRITICAL, 0, True)]
    assert len(events(rig)) == 1
    assert rig.all_incidents() == [], "what counts not opens no incident"


def test_update__late_window_again_and_again__is_noted_once(rig: Rig) -> None:
    rig.say(OK)
    rig.pass_minutes(10)
    rig.say(OK)
    for _ in range(3):
        assert rig.say(WARNING, ago_ms=300_000).verdict is UpdateVerdict.STALE_WINDOW
    assert len([each for each in history(rig) if each[2]]) == 1


def test_update__replay_of_a_window_that_counted__is_not_noted_as_late(rig: Rig) -> None:
    """After an outage engines send again all that they had: what was taken over then is not late now."""
    counted = rig.update(CRITICAL)
    rig.signals.update(counted)
    rig.later(OK)
    rig.signals.update(counted)
    assert not any(late for _, _, late in history(rig))


def test_update__same_twice__is_one_version_one_history_row_and_one_event(rig: Rig) -> None:
    update = rig.update(CRITICAL)
    first, second = rig.signals.update(update), rig.signals.update(update)
    assert (first.verdict, second.verdict) == (UpdateVerdict.APPLIED, UpdateVerdict.DUPLICATE)
    assert second.is_success
    assert second.signal is not None
    assert second.signal.version == 1
    assert (len(history(rig)), len(events(rig)), len(rig.all_incidents())) == (1, 1, 1)


def test_update__answer_lost_and_sent_again__is_one_version(make_rig: MakeRig) -> None:
    rig = make_rig()
    process = Rig(answer_lost(rig.store, "transact_many"), rig.clock, rig.keyring, rig.folder)
    update = rig.update(CRITICAL, version=0)
    with pytest.raises(Exception, match="simulated"):
        process.signals.update(update)
    again = process.signals.update(update)
    assert again.verdict is UpdateVerdict.DUPLICATE
    assert rig.signal().version == 1
    check_invariants(rig, [ORDERS])


def test_update__unregistered_dataset__is_reported_so_and_nothing_is_kept(rig: Rig) -> None:
    result = rig.say(OK, urn="urn:dp:unregistered:x")
    assert result.verdict is UpdateVerdict.DATASET_NOT_FOUND
    assert rig.rows("urn:dp:unregistered:x") == []


def test_update__another_was_faster__is_decided_anew(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.say(OK)
    rig.pass_minutes(1)
    process = Rig(interrupted(rig.store, "transact_many", lambda: rig.say(WARNING)), rig.clock, rig.keyring, rig.folder)
    rig.pass_minutes(1)
    result = process.say(CRITICAL)
    assert result.verdict is UpdateVerdict.APPLIED
    assert rig.signal().version == 3
    assert rig.signal().previous_state is WARNING
    assert [state for state, _, _ in history(rig)] == [OK, WARNING, CRITICAL]


def test_update__another_with_a_later_window_was_faster__loses_to_it(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.say(OK, ago_ms=600_000)
    process = Rig(interrupted(rig.store, "transact_many", lambda: rig.say(OK)), rig.clock, rig.keyring, rig.folder)
    result = process.say(CRITICAL, ago_ms=300_000)
    assert result.verdict is UpdateVerdict.STALE_WINDOW
    assert rig.signal().state is OK
    assert rig.all_incidents() == []


def test_update__expected_version_and_another_was_faster__is_a_conflict(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.say(OK)
    rig.pass_minutes(1)
    process = Rig(
        interrupted(rig.store, "transact_many", lambda: rig.say(WARNING, ago_ms=1)), rig.clock, rig.keyring, rig.folder
    )
    result = process.say(CRITICAL, version=1)
    assert result.verdict is UpdateVerdict.VERSION_CONFLICT
    assert result.signal is not None
    assert (result.signal.state, result.signal.version) == (WARNING, 2)


# Incidents of signals.


def test_update__critical__opens_an_incident_with_all_that_is_known(rig: Rig) -> None:
    rig.say(CRITICAL, evidence=[evidence_id(1)])
    incident = rig.incident_of()
    assert incident.signal_types == ("FRESHNESS",)
    assert incident.failure_signatures == (SIGNATURE,)
    assert incident.severity == "SEV_1"
    assert incident.evidence_sample == (evidence_id(1),)
    assert incident.blast_radius is not None
    assert incident.blast_radius.downstream_count == 2
    assert [each["incident_id"] for each in events(rig, "INCIDENT_CREATED")] == [incident.incident_id]
    assert events(rig)[0]["incident_id"] == incident.incident_id


@pytest.mark.parametrize("state", [OK, WARNING, UNKNOWN])
def test_update__not_critical__opens_none(rig: Rig, state: SignalState) -> None:
    rig.say(state)
    assert rig.all_incidents() == []
    assert rig.signal().value.incident_id is None


def test_update__two_signals_with_one_signature__share_an_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, kind="VOLUME")
    assert len(rig.all_incidents()) == 1
    assert set(rig.incident_of().signal_types) == {"FRESHNESS", "VOLUME"}
    assert rig.incident_of("VOLUME").incident_id == rig.incident_of().incident_id


def test_update__same_signature_elsewhere__is_another_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, urn=PAYMENTS)
    assert len(rig.all_incidents()) == 2


def test_update__critical_again__writes_nothing_of_the_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    before = rig.incident_of()
    rig.later(CRITICAL)
    rig.later(WARNING)
    rig.later(CRITICAL)
    assert rig.incident_of() == before


def test_update__critical_with_new_evidence_after_a_dip__adds_it(rig: Rig) -> None:
    rig.say(CRITICAL, evidence=[evidence_id(1)])
    rig.later(WARNING)
    rig.later(CRITICAL, evidence=[evidence_id(2)])
    assert rig.incident_of().evidence_sample == (evidence_id(1), evidence_id(2))


def test_update__signature_changes__the_incident_it_left_ends_in_time(rig: Rig) -> None:
    rig.say(CRITICAL, signature="A:x")
    first = rig.incident_of()
    rig.later(CRITICAL, signature="B:y")
    assert rig.incident_of().incident_id != first.incident_id
    rig.pass_minutes(40)
    rig.incident_timers.sweep()
    rig.incident_timers.sweep()
    assert not rig.incidents.get(first.incident_id).is_open, "no signal holds it, and nothing else would end it"
    assert rig.incident_of().is_open
    check_invariants(rig, [ORDERS])


@pytest.mark.parametrize("state", list(SignalState))
def test_update__incident_that_the_caller_names__is_not_believed(rig: Rig, state: SignalState) -> None:
    """An engine that echoes what it read would tie the signal to one that is over, or never was."""
    rig.say(CRITICAL)
    old = rig.incident_of().incident_id
    rig.incidents.change(old, Changes(status="RESOLVED"), actor="ana")
    rig.later(state, incident_id=old)
    rig.later(state, incident_id="INC-of-nobody")
    check_invariants(rig, [ORDERS])


def test_update__resolved_by_hand_while_critical__is_left_alone_and_then_opened_anew(rig: Rig) -> None:
    rig.say(CRITICAL)
    first = rig.incident_of().incident_id
    rig.incidents.change(first, Changes(status="RESOLVED"), actor="ana")
    rig.later(CRITICAL, minutes=5)
    assert rig.signal().value.incident_id is None
    rig.later(CRITICAL, minutes=61)
    assert rig.incident_of().incident_id != first
    check_invariants(rig, [ORDERS])


def test_update__breaks_out_again_soon__is_an_episode_of_the_same_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    first = rig.incident_of()
    rig.incidents.change(first.incident_id, Changes(status="RESOLVED"), actor="ana")
    rig.later(OK)
    rig.later(CRITICAL, minutes=10)
    again = rig.incident_of()
    assert (again.incident_id, again.episode, again.recurrences) == (first.incident_id, 2, 1)
    assert again.is_open
    assert rig.due("ESCALATION", again.incident_id) is not None
    check_invariants(rig, [ORDERS])


def test_update__breaks_out_again_much_later__is_another_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    first = rig.incident_of()
    rig.incidents.change(first.incident_id, Changes(status="RESOLVED"), actor="ana")
    rig.later(OK)
    rig.later(CRITICAL, minutes=90)
    assert rig.incident_of().incident_id != first.incident_id
    check_invariants(rig, [ORDERS])


def test_update__breaks_out_again_after_it_was_closed_for_good__is_another_incident(rig: Rig) -> None:
    rig.say(CRITICAL)
    first = rig.incident_of().incident_id
    rig.incidents.change(first, Changes(status="CLOSED"), actor="ana")
    rig.later(OK)
    rig.later(CRITICAL)
    assert rig.incident_of().incident_id != first
    assert not rig.incidents.get(first).is_open
    check_invariants(rig, [ORDERS])


def test_update__critical_after_a_warning_was_reported__makes_the_incident_as_urgent_as_it_is(rig: Rig) -> None:
    rig.say(WARNING)
    opened = rig.incidents.open(trouble(state=WARNING), actor="ana").incident
    assert opened.severity == "SEV_2"
    rig.later(CRITICAL)
    assert rig.incidents.get(opened.incident_id).severity == "SEV_1"


# Batches.


def test_update_many__each_has_its_own_result_in_order(rig: Rig) -> None:
    rig.say(OK, kind="OLD")
    conflicting = rig.update(OK, kind="OLD", version=9, score=0.1)
    late = replace(rig.update(OK, kind="LATE"), value=value(OK, rig.now_ms - 600_000))
    rig.say(OK, kind="LATE")
    same = rig.update(OK, kind="SAME")
    rig.signals.update(same)
    results = rig.signals.update_many([
        rig.update(OK, kind="NEW"),
        conflicting,
        late,
        same,
        rig.update(OK, urn="urn:dp:unregistered:x"),
        rig.update(OK, urn="nonsense"),
        rig.update(WARNING, kind="NEW"),
        rig.update(CRITICAL, kind="WORSE"),
    ])  # fmt: skip
    assert [each.verdict for each in results] == [
        UpdateVerdict.APPLIED,
        UpdateVerdict.VERSION_CONFLICT,
        UpdateVerdict.STALE_WINDOW,
        UpdateVerdict.DUPLICATE,
        UpdateVerdict.DATASET_NOT_FOUND,
        UpdateVerdict.INVALID,
        UpdateVerdict.REPEATED_KEY,
        UpdateVerdict.APPLIED,
    ]
    assert all(each.message for each in results if not each.is_success)
    check_invariants(rig, [ORDERS])


def test_update_many__same_signal_by_two_names__is_a_repeated_key(rig: Rig) -> None:
    results = rig.signals.update_many([rig.update(OK, kind="FRESHNESS"), rig.update(WARNING, kind="FRESHNESS_BREACH")])
    assert [each.verdict for each in results] == [UpdateVerdict.APPLIED, UpdateVerdict.REPEATED_KEY]


def test_update_many__five_hundred__are_taken_and_one_more_is_not(rig: Rig) -> None:
    updates = [rig.update(OK, urn=f"urn:dp:b:d{n}") for n in range(BATCH_MAX)]
    assert BATCH_MAX == 500
    results = rig.signals.update_many(updates)
    assert Counter(each.verdict for each in results) == {UpdateVerdict.APPLIED: 500}
    with pytest.raises(InvalidPayloadError, match="500"):
        rig.signals.update_many([*updates, rig.update(OK)])


def test_update_many__nothing__is_nothing(rig: Rig) -> None:
    assert rig.signals.update_many([]) == []


def test_update_many__thirty_signals_of_one_trouble__share_one_incident(rig: Rig) -> None:
    results = rig.signals.update_many([rig.update(CRITICAL, kind=f"S{n}") for n in range(30)])
    assert Counter(each.verdict for each in results) == {UpdateVerdict.APPLIED: 30}
    assert len(rig.all_incidents()) == 1
    assert len(rig.incident_of("S0").signal_types) == 30
    check_invariants(rig, [ORDERS])


def test_update_many__all_datasets_fail_at_once__each_has_its_incident(rig: Rig) -> None:
    updates = [rig.update(CRITICAL, urn=f"urn:dp:b:d{n}", kind=kind) for n in range(50) for kind in ("A", "B")]
    results = rig.signals.update_many(updates)
    assert Counter(each.verdict for each in results) == {UpdateVerdict.APPLIED: 100}
    assert len(rig.all_incidents()) == 50
    check_invariants(rig, [f"urn:dp:b:d{n}" for n in range(50)])


def test_update_many__late_ones_cannot_be_noted__the_others_have_their_results(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.say(OK, kind="LATE")
    rig.pass_minutes(1)
    store = failing(rig.store, "batch_write", StoreBusyError("simulated: busy"))
    process = Rig(store, rig.clock, rig.keyring, rig.folder)
    results = process.signals.update_many([rig.update(OK, kind="LATE", ago_ms=600_000), rig.update(CRITICAL, kind="M")])
    assert results[1].verdict is UpdateVerdict.APPLIED
    assert not results[0].is_success
    assert [each.signal_type for each in process.observer.changed] == ["M"]


@pytest.mark.parametrize("bad", [{"score": 5e-324}, {"slo_threshold": 1e300}, {"slo_threshold": 1e-200}], ids=str)
def test_update_many__a_number_that_cannot_be_stored__is_the_result_of_that_one(
    rig: Rig, bad: dict[str, float]
) -> None:
    odd = rig.update(OK, kind="ODD")
    odd = replace(odd, value=replace(odd.value, **bad))
    results = rig.signals.update_many([rig.update(OK, kind="A"), odd, rig.update(OK, kind="B")])
    assert [each.is_success for each in results][::2] == [True, True]
    assert results[1].verdict in (UpdateVerdict.INVALID, UpdateVerdict.APPLIED)


def test_update_many__changes_and_results__are_reported_once_each(rig: Rig) -> None:
    rig.signals.update_many([rig.update(OK, kind="A"), rig.update(OK, kind="B"), rig.update(OK, urn="bad")])
    assert [each.signal_type for each in rig.observer.changed] == ["A", "B"]
    assert len(rig.observer.results) == 3


# Looking.


def test_breaches__of_states_and_tiers__newest_first_and_paged(make_rig: MakeRig) -> None:
    tiers = list(Tier)
    rig = make_rig(profiles={f"urn:dp:b:d{n}": DatasetProfile(tiers[n % 3], "t") for n in range(30)})
    states = [OK, WARNING, CRITICAL, UNKNOWN]
    said: list[tuple[str, SignalState, Tier]] = []
    for n in range(30):
        # Three at the same moment, so that there are ties.
        if n % 3 == 0:
            rig.clock.advance(1)
        urn = f"urn:dp:b:d{n}"
        rig.say(states[n % 4], urn=urn)
        said.append((urn, states[n % 4], tiers[n % 3]))
    for tier in (None, *tiers):
        for wanted in ((CRITICAL, WARNING), (CRITICAL,), (WARNING,), (UNKNOWN, WARNING, CRITICAL), (OK,)):
            expected = {urn for urn, state, of in said if state in wanted and state is not OK and tier in (None, of)}
            found: list[Signal] = []
            cursor: str | None = None
            while True:
                page = rig.signals.breaches(states=wanted, tier=tier, limit=3, cursor=cursor)
                assert len(page.signals) <= 3
                found += page.signals
                cursor = page.cursor
                if cursor is None:
                    break
            assert len(found) == len(expected)
            assert {each.dataset_urn for each in found} == expected
            changed = [each.state_changed_at for each in found]
            assert changed == sorted(changed, reverse=True)


def test_breaches__a_state_twice__is_listed_once(rig: Rig) -> None:
    rig.say(CRITICAL)
    assert len(rig.signals.breaches(states=(CRITICAL, CRITICAL)).signals) == 1


def test_breaches__well_again__is_not_listed(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.later(WARNING)
    assert [each.state for each in rig.signals.breaches().signals] == [WARNING]
    rig.later(OK)
    assert rig.signals.breaches().signals == []


@pytest.mark.parametrize("limit", [0, -1])
def test_breaches__a_limit_of_nothing__is_bad_input(rig: Rig, limit: int) -> None:
    rig.say(CRITICAL)
    with pytest.raises(UserError):
        rig.signals.breaches(limit=limit)


def test_healthy_signals__many__are_nowhere_in_the_breach_index(rig: Rig) -> None:
    rig.signals.update_many([rig.update(OK, urn=f"urn:dp:b:d{n}") for n in range(500)])
    for row in rig.rows(*[f"urn:dp:b:d{n}" for n in range(500)]):
        assert "breach_pk" not in row
        assert "breach_sk" not in row
    for state in SignalState:
        for tier in Tier:
            for shard in range(BREACH_SHARDS):
                query = Query(table=SIGNAL_STATE, index="breach-index", partition=f"BREACH#{state}#{tier}#{shard}")
                assert rig.store.query(query).items == []


def test_shards__many_breaches__are_spread(rig: Rig) -> None:
    rig.signals.update_many([rig.update(WARNING, urn=f"urn:dp:b:d{n}") for n in range(200)])
    used = {row["breach_pk"] for row in rig.rows(*[f"urn:dp:b:d{n}" for n in range(200)])}
    assert len(used) == BREACH_SHARDS


def test_expiry__healthy_in_thirty_days_and_others_never(rig: Rig) -> None:
    rig.say(OK, kind="A")
    for state in (WARNING, CRITICAL, UNKNOWN):
        rig.say(state, kind=state.value)
    rows = {row["SK"]: row for row in rig.rows(ORDERS)}
    assert 30 <= (rows["A"]["ttl"] - rig.now_ms / 1000) / 86_400 <= 31
    assert all("ttl" not in rows[state.value] for state in (WARNING, CRITICAL, UNKNOWN))
    rig.clock.advance(400 * 86_400)
    assert {row["SK"] for row in rig.rows(ORDERS)} == {"WARNING", "CRITICAL", "UNKNOWN"}
    assert rig.signals.get(ORDERS, "A", consistent=True) is None
    assert len(rig.signals.breaches().signals) == 2


def test_expiry__breach_after_ok__loses_its_expiry(rig: Rig) -> None:
    rig.say(OK)
    rig.later(CRITICAL)
    assert "ttl" not in rig.rows(ORDERS)[0]
    rig.later(OK)
    assert rig.rows(ORDERS)[0]["ttl"] > rig.now_ms // 1000 + 30 * 86_400


def test_expired__not_yet_deleted__is_as_if_it_never_was(rig: Rig) -> None:
    rig.say(OK, version=0)
    rig.clock.advance(31 * 86_400)
    again = rig.say(OK, version=0)
    assert again.verdict is UpdateVerdict.APPLIED
    assert again.signal is not None
    assert (again.signal.version, again.signal.previous_state) == (1, None)


def test_history__over_months__in_order_and_for_ninety_days(rig: Rig) -> None:
    for number in range(12):
        rig.say(OK if number % 2 else WARNING)
        rig.clock.advance(9 * 86_400)
    found = rig.signals.history(ORDERS, "FRESHNESS", instant(rig.now_ms - 200 * 86_400_000), instant(rig.now_ms))
    ends = [each.window_end for each in found]
    assert ends == sorted(ends)
    assert 9 <= len(found) <= 10, "older ones have expired"
    assert HISTORY_SECONDS == 90 * 86_400


def test_history__span__includes_both_ends_and_nothing_else(rig: Rig) -> None:
    moments = []
    for number in range(6):
        rig.say(OK if number % 2 else WARNING)
        moments.append(instant(rig.now_ms))
        rig.pass_minutes(5)
    found = rig.signals.history(ORDERS, "FRESHNESS", moments[1], moments[3])
    assert [each.window_end for each in found] == moments[1:4]
    assert rig.signals.history(ORDERS, "OTHER", moments[0], moments[5]) == []


def test_history__too_long_a_span__is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidPayloadError):
        rig.signals.history(ORDERS, "FRESHNESS", "1990-01-01T00:00:00.000Z", "2025-01-01T00:00:00.000Z")


def test_get__row_after_row__is_what_was_said(rig: Rig) -> None:
    rig.say(CRITICAL, score=1.0, evidence=[evidence_id(1)], breach_start=instant(rig.now_ms - 900_000))
    found = rig.signals.get(ORDERS, "FRESHNESS", consistent=True)
    assert found == rig.signal()
    assert found is not None
    assert (
        found.digest
        == rig.update(
            CRITICAL, score=1.0, evidence=[evidence_id(1)], breach_start=instant(rig.now_ms - 900_000)
        ).value.digest
    )
    assert isinstance(found.value.score, float)


def test_row__attributes__are_called_as_promised(rig: Rig) -> None:
    rig.say(CRITICAL)
    row = rig.store.get(SIGNAL_STATE, Key(ORDERS, "FRESHNESS"))
    assert row is not None
    assert {
        "PK", "SK", "state", "previous_state", "state_changed_at", "score", "slo_threshold", "breach_start",
        "window_start", "window_end", "window_type", "metrics", "failure_signature", "evidence_sample", "incident_id",
        "tier", "owner_team", "last_updated", "version",
    } <= set(row)  # fmt: skip


def test_of_datasets__several__in_their_order(rig: Rig) -> None:
    rig.say(OK)
    rig.say(WARNING, kind="VOLUME")
    rig.say(OK, urn=PAYMENTS)
    found = rig.signals.of_datasets([PAYMENTS, "urn:dp:none", ORDERS])
    assert [[each.signal_type for each in listed] for listed in found] == [["FRESHNESS"], [], ["FRESHNESS", "VOLUME"]]
    assert [each.signal_type for each in rig.signals.of_dataset(ORDERS, ["VOLUME"])] == ["VOLUME"]


# Races.


def test_race__many_writers_of_one_signal__no_update_is_lost(rig: Rig) -> None:
    said: list[UpdateResult] = []
    problems: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            for number in range(5):
                update = replace(rig.update(OK), value=value(OK, rig.now_ms - 60_000 + number * 100 + writer))
                while (result := rig.signals.update(update)).verdict is UpdateVerdict.UNAVAILABLE:
                    pass
                said.append(result)
        except BaseException as exc:
            problems.append(exc)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert problems == []
    applied = sorted(
        each.signal.version for each in said if each.verdict is UpdateVerdict.APPLIED and each.signal is not None
    )
    assert applied == list(range(1, len(applied) + 1))
    assert rig.signal().version == len(applied)
    assert rig.signal().value.window_end == instant(rig.now_ms - 60_000 + 400 + 19)


def test_update__many_subscribers__still_fits_one_transaction(make_rig: MakeRig) -> None:
    subscriptions = [Subscription(name=f"s{n}", types=("*",)) for n in range(30)]
    rig = make_rig(subscriptions=subscriptions)
    rig.say(CRITICAL, evidence=[evidence_id(n) for n in range(10)])
    rig.later(OK)
    rig.later(CRITICAL, evidence=[evidence_id(n) for n in range(10, 20)])
    check_invariants(rig, [ORDERS])
