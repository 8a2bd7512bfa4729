"""Incidents: opened or joined at one go, changed by people, reopened, merged; whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headgate.durable.bus.subscriptions import Subscription
from headgate.durable.model.records import instant
from headgate.errors import (
    DatasetNotFoundError,
    IllegalTransitionError,
    NotFoundError,
    UserError,
    VersionConflictError,
)
from headgate.health.incidents.rows import TimerKind, incident_key
from headgate.health.incidents.writes import Opened
from headgate.health.model.enums import IncidentStatus, Severity
from headgate.health.model.events import IncidentEventType
from headgate.health.model.incidents import BlastRadius, Changes, Incident, IncidentReport, Resolution
from headgate.health.model.signals import Producer, UpdateVerdict
from headgate.store.catalogue.tables import EVIDENCE_CACHE, INCIDENT_INDEX
from headgate.store.model.schema import Key
from tests.health_faults import answer_lost, interrupted
from tests.health_rig import (
    CRITICAL,
    OK,
    ORDERS,
    PAYMENTS,
    SIGNATURE,
    WARNING,
    Rig,
    check_invariants,
    evidence_id,
    trouble,
)
from tests.integration.health.conftest import MakeRig


def resolve(rig: Rig, incident_id: str, **more: Any) -> Incident:
    return rig.incidents.change(incident_id, Changes(status="RESOLVED", **more), actor="ana")


def store_evidence(rig: Rig, *numbers: int) -> list[str]:
    """Put evidence where engines do, with the day that it has to live."""
    names = [evidence_id(number) for number in numbers]
    for name in names:
        row = {"evidence_id": name, "dataset_urn": ORDERS, "created_at": instant(rig.now_ms)}
        rig.store.put(EVIDENCE_CACHE, {**row, "ttl": rig.now_ms // 1000 + 86_400})
    return names


def run_together(*calls: Callable[[], object]) -> list[BaseException]:
    """Run calls at once, and return what they raised."""
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
        thread.join(30)
        assert not thread.is_alive()
    return problems


def process_of(rig: Rig, method: str, act: Callable[[], object]) -> Rig:
    """Another process on the same store, in the middle of whose work others act."""
    return Rig(interrupted(rig.store, method, act), rig.clock, rig.keyring, rig.folder, eye=rig.store)


# Opening and joining.


def test_open__new__carries_everything_and_links_its_signals(rig: Rig) -> None:
    rig.say(WARNING)
    given = trouble(
        ORDERS,
        implicated_producer=Producer(producer_id="job:x", version="7"),
        blast_radius=BlastRadius(downstream_count=9),
        evidence_sample=(evidence_id(1),),
        oncall_user="bob",
        trace_id="a" * 32,
        severity=Severity.SEV_2,
        title="Orders",
    )
    opened = rig.incidents.open(given, actor="engine")
    incident = rig.incidents.get(opened.incident.incident_id)
    assert opened.is_new
    assert opened.incident == incident
    assert incident.incident_id.startswith("INC-")
    assert incident.implicated_producer == Producer(producer_id="job:x", version="7")
    assert incident.blast_radius == BlastRadius(downstream_count=9)
    assert (incident.oncall_user, incident.trace_id, incident.severity) == ("bob", "a" * 32, Severity.SEV_2)
    assert rig.signal().value.incident_id == incident.incident_id
    assert rig.due(TimerKind.ESCALATION, incident.incident_id) is not None
    check_invariants(rig, [ORDERS])


def test_open__twice__joins_and_returns_the_first(rig: Rig) -> None:
    first = rig.incidents.open(trouble(), actor="a")
    second = rig.incidents.open(trouble(), actor="b")
    assert (second.is_new, second.incident) == (False, first.incident)


def test_open__answer_lost__returns_the_one_that_was_opened(rig: Rig) -> None:
    process = Rig(answer_lost(rig.store, "transact"), rig.clock, rig.keyring, rig.folder)
    opened = process.incidents.open(trouble(), actor="a")
    assert [each.incident_id for each in rig.all_incidents()] == [opened.incident.incident_id]
    check_invariants(rig, [])


def test_open__someone_opens_it_in_between__joins(rig: Rig) -> None:
    first: list[Opened] = []
    process = process_of(rig, "transact", lambda: first.append(rig.incidents.open(trouble(), actor="a")))
    second = process.incidents.open(trouble(ORDERS, evidence_sample=(evidence_id(5),)), actor="b")
    assert not second.is_new
    assert second.incident.incident_id == first[0].incident.incident_id
    assert second.incident.evidence_sample == (evidence_id(5),)
    check_invariants(rig, [])


def test_open__it_is_resolved_in_between__does_not_join_what_is_over(rig: Rig) -> None:
    first = rig.incidents.open(trouble(), actor="a").incident.incident_id
    process = process_of(rig, "transact", lambda: resolve(rig, first))
    second = process.incidents.open(trouble(ORDERS, evidence_sample=(evidence_id(5),)), actor="b")
    assert rig.incidents.get(second.incident.incident_id).is_open
    check_invariants(rig, [])


def test_open__many_at_once__is_one_incident_with_what_each_knew(rig: Rig) -> None:
    outcomes: list[Opened] = []

    def call(number: int) -> Callable[[], object]:
        given = trouble(ORDERS, evidence_sample=(evidence_id(number),))
        return lambda: outcomes.append(rig.incidents.open(given, actor=f"engine-{number}"))

    assert run_together(*[call(number) for number in range(16)]) == []
    assert len({each.incident.incident_id for each in outcomes}) == 1
    assert sum(each.is_new for each in outcomes) == 1
    incident = rig.incidents.get(outcomes[0].incident.incident_id)
    assert set(incident.evidence_sample) == {evidence_id(number) for number in range(16)}
    assert incident.version == 16
    check_invariants(rig, [])


@pytest.mark.parametrize(
    "bad",
    [
        trouble("nonsense"),
        IncidentReport(dataset_urn=ORDERS, signal_types=()),
        trouble(ORDERS, "bad type!#"),
        trouble(ORDERS, failure_signatures=("A#B",)),
        trouble(ORDERS, failure_signatures=("x" * 5_000,)),
        trouble(ORDERS, dedup_key="x" * 5_000),
        trouble(ORDERS, title="x" * 500_000),
        trouble(ORDERS, evidence_sample=("no id\n",)),
    ],
    ids=["urn", "nothing", "type", "signature", "long signature", "long key", "long title", "evidence"],
)
def test_open__what_is_no_trouble__is_bad_input(rig: Rig, bad: IncidentReport) -> None:
    with pytest.raises(UserError):
        rig.incidents.open(bad, actor="a")
    assert rig.all_incidents() == []


def test_open__unregistered_dataset__is_not_found(rig: Rig) -> None:
    with pytest.raises(DatasetNotFoundError):
        rig.incidents.open(trouble("urn:dp:unregistered:x"), actor="a")


def test_open__signal_by_another_name__is_the_same_signal(rig: Rig) -> None:
    rig.say(WARNING)
    incident = rig.incidents.open(trouble(ORDERS, "freshness-breach"), actor="a").incident
    assert incident.signal_types == ("FRESHNESS",)
    assert rig.signal().value.incident_id == incident.incident_id


def test_open__by_someone__is_in_the_audit(rig: Rig) -> None:
    incident = rig.incidents.open(trouble(), actor="ana").incident
    rows = [each for each in rig.audit.ls(limit=50).entries if each.entity == incident.incident_id]
    assert [each.actor for each in rows] == ["ana"]


def test_open__duplicate_evidence_and_signals__are_one_each(rig: Rig) -> None:
    store_evidence(rig, 1)
    rig.say(WARNING)
    given = trouble(ORDERS, "FRESHNESS", "FRESHNESS", evidence_sample=(evidence_id(1), evidence_id(1)))
    incident = rig.incidents.open(given, actor="a").incident
    assert incident.evidence_sample == (evidence_id(1),)
    assert incident.signal_types == ("FRESHNESS",)


def test_open__sixty_signals_and_fifty_pieces_of_evidence__fit(make_rig: MakeRig) -> None:
    rig = make_rig(subscriptions=[Subscription(name=f"s{n}", types=("*",)) for n in range(25)])
    names = store_evidence(rig, *range(50))
    kinds = [f"K{number}" for number in range(60)]
    rig.signals.update_many([rig.update(WARNING, kind=kind) for kind in kinds])
    try:
        incident = rig.incidents.open(trouble(ORDERS, *kinds, evidence_sample=tuple(names)), actor="a").incident
    except UserError:
        return
    assert incident.is_open
    check_invariants(rig, [ORDERS], pinned=incident.evidence_sample)


# Changing.


def test_change__version_that_was_read__must_still_be_it(rig: Rig) -> None:
    incident = rig.incidents.open(trouble(), actor="a").incident
    rig.incidents.change(incident.incident_id, Changes(assignee="ana"), actor="ana", expected_version=1)
    with pytest.raises(VersionConflictError, match="version 1"):
        rig.incidents.change(incident.incident_id, Changes(assignee="bob"), actor="bob", expected_version=1)
    assert rig.incidents.get(incident.incident_id).assignee == "ana"


def test_change__another_was_faster__keeps_both(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    process = process_of(
        rig, "transact", lambda: rig.incidents.change(incident_id, Changes(assignee="bob"), actor="bob")
    )
    changed = process.incidents.change(incident_id, Changes(rca_summary="disk"), actor="ana")
    assert (changed.assignee, changed.rca_summary, changed.version) == ("bob", "disk", 3)


def test_change__another_was_faster_and_a_version_was_given__is_a_conflict(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    process = process_of(
        rig, "transact", lambda: rig.incidents.change(incident_id, Changes(assignee="bob"), actor="bob")
    )
    with pytest.raises(VersionConflictError):
        process.incidents.change(incident_id, Changes(rca_summary="disk"), actor="ana", expected_version=1)


def test_change__answer_lost__is_applied_once(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    process = Rig(answer_lost(rig.store, "transact"), rig.clock, rig.keyring, rig.folder)
    changed = process.incidents.change(incident_id, Changes(status="ACKNOWLEDGED", assignee="ana"), actor="ana")
    assert changed.version == rig.incidents.get(incident_id).version == 2
    assert len(changed.steps) == 2


def test_change__no_one_there__is_not_found(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="INC-none"):
        rig.incidents.change("INC-none", Changes(assignee="x"), actor="a")
    with pytest.raises(NotFoundError):
        rig.incidents.merge("INC-none", "INC-other", actor="a")


def test_change__resolved__lets_go_of_everything(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, kind="VOLUME")
    incident_id = rig.incident_of().incident_id
    rig.later(OK)
    done = resolve(rig, incident_id, resolution=Resolution(root_cause="disk"))
    assert done.resolved_at == instant(rig.now_ms)
    assert rig.signal().value.incident_id is None
    assert rig.signal("VOLUME").value.incident_id is None
    row = rig.store.get(INCIDENT_INDEX, incident_key(incident_id))
    assert row is not None
    assert row["ttl"] == rig.now_ms // 1000 + 365 * 86_400
    assert row["GSI2PK"] == "STATUS#RESOLVED"
    check_invariants(rig, [ORDERS])


def test_change__open_or_reopened__never_expires(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    resolve(rig, incident_id)
    rig.incidents.change(incident_id, Changes(status="OPEN", reason="not over"), actor="ana")
    row = rig.store.get(INCIDENT_INDEX, incident_key(incident_id))
    assert row is not None
    assert "ttl" not in row
    rig.clock.advance(800 * 86_400)
    assert rig.incidents.get(incident_id).is_open


def test_change__each__is_reported_once(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
    rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
    resolve(rig, incident_id)
    assert rig.observer.incident_events == [
        IncidentEventType.CREATED,
        IncidentEventType.UPDATED,
        IncidentEventType.RESOLVED,
    ]
    kinds = Counter(each["event_type"] for each in rig.stored_events())
    assert kinds == {"INCIDENT_CREATED": 1, "INCIDENT_UPDATED": 1, "INCIDENT_RESOLVED": 1}


def test_change__people__are_in_the_audit_with_before_and_after(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    rig.incidents.change(incident_id, Changes(status="ACKNOWLEDGED", reason="on it"), actor="ana")
    records = [each for each in rig.audit.ls(limit=50).entries if each.actor == "ana"]
    assert [(each.action, each.before_version, each.after_version, each.reason) for each in records] == [
        ("incident.acknowledge", 1, 2, "on it")
    ]


def test_reopen__another_is_open_for_the_same_trouble__is_refused(rig: Rig) -> None:
    first = rig.incidents.open(trouble(), actor="a").incident.incident_id
    resolve(rig, first)
    rig.pass_minutes(90)
    second = rig.incidents.open(trouble(), actor="a").incident.incident_id
    assert second != first
    with pytest.raises(IllegalTransitionError, match=second):
        rig.incidents.change(first, Changes(status="OPEN", reason="again"), actor="ana")
    check_invariants(rig, [])


def test_reopen__by_hand__holds_its_signals_again_and_ends_when_they_are_well(rig: Rig) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    resolve(rig, incident_id)
    rig.incidents.change(incident_id, Changes(status="OPEN", reason="no"), actor="ana")
    rig.later(OK)
    rig.pass_minutes(6)
    rig.incident_timers.sweep()
    assert not rig.incidents.get(incident_id).is_open
    check_invariants(rig, [ORDERS])


# Merging.


def two(rig: Rig, *, urn: str = ORDERS) -> tuple[str, str]:
    rig.say(CRITICAL, kind="A", signature="A:x")
    rig.say(CRITICAL, kind="B", signature="B:y", urn=urn)
    return rig.incident_of("A").incident_id, rig.incident_of("B", urn).incident_id


@pytest.mark.parametrize("urn", [ORDERS, PAYMENTS])
def test_merge__takes_over_signals_and_troubles(rig: Rig, urn: str) -> None:
    into, other = two(rig, urn=urn)
    kept = rig.incidents.merge(other, into, actor="ana")
    assert kept.incident_id == into
    assert rig.signal("B", urn).value.incident_id == into
    gone = rig.incidents.get(other)
    assert (gone.is_open, gone.merged_into) == (False, into)
    again = rig.incidents.open(trouble(urn, "B", failure_signatures=("B:y",)), actor="e")
    assert (again.is_new, again.incident.incident_id) == (False, into)
    check_invariants(rig, [ORDERS, PAYMENTS])


@pytest.mark.parametrize("urn", [ORDERS, PAYMENTS])
def test_merge__then_resolved__holds_nothing_and_each_trouble_can_break_out_again(rig: Rig, urn: str) -> None:
    into, other = two(rig, urn=urn)
    rig.incidents.merge(other, into, actor="ana")
    resolve(rig, into)
    assert rig.signal("B", urn).value.incident_id is None
    check_invariants(rig, [ORDERS, PAYMENTS])
    rig.later(OK, kind="B", urn=urn)
    rig.later(CRITICAL, kind="B", urn=urn, signature="B:y")
    assert rig.incident_of("B", urn).is_open
    rig.later(OK, kind="A")
    rig.later(CRITICAL, kind="A", signature="A:x")
    assert rig.incident_of("A").is_open
    check_invariants(rig, [ORDERS, PAYMENTS])


@pytest.mark.parametrize("minutes", [10, 90, 60 * 24 * 3])
def test_merge__the_trouble_that_was_merged_returns__is_taken_at_any_time(rig: Rig, minutes: float) -> None:
    into, other = two(rig)
    rig.incidents.merge(other, into, actor="ana")
    rig.later(OK, kind="A")
    rig.later(OK, kind="B")
    resolve(rig, into)
    rig.later(CRITICAL, kind="B", signature="B:y", minutes=minutes)
    assert rig.incident_of("B").is_open
    check_invariants(rig, [ORDERS])


@pytest.mark.parametrize("urn", [ORDERS, PAYMENTS])
def test_merge__one_of_them_is_not_well__does_not_end_by_itself(rig: Rig, urn: str) -> None:
    into, other = two(rig, urn=urn)
    rig.incidents.merge(other, into, actor="ana")
    rig.later(OK, kind="A")
    rig.pass_minutes(40)
    rig.incident_timers.sweep()
    assert rig.incidents.get(into).is_open
    rig.later(OK, kind="B", urn=urn)
    rig.pass_minutes(40)
    rig.incident_timers.sweep()
    assert not rig.incidents.get(into).is_open
    check_invariants(rig, [ORDERS, PAYMENTS])


def test_merge__of_merged_ones__leads_to_the_last(rig: Rig) -> None:
    rig.say(CRITICAL, kind="A", signature="A")
    rig.say(CRITICAL, kind="B", signature="B")
    rig.say(CRITICAL, kind="C", signature="C")
    a, b, c = (rig.incident_of(kind).incident_id for kind in "ABC")
    rig.incidents.merge(a, b, actor="ana")
    rig.incidents.merge(b, c, actor="ana")
    opened = rig.incidents.open(trouble(ORDERS, "A", failure_signatures=("A",)), actor="e")
    assert (opened.is_new, opened.incident.incident_id) == (False, c)
    assert {rig.signal(kind).value.incident_id for kind in "ABC"} == {c}
    check_invariants(rig, [ORDERS])


def test_merge__answer_lost__is_done(rig: Rig) -> None:
    into, other = two(rig)
    process = Rig(answer_lost(rig.store, "transact"), rig.clock, rig.keyring, rig.folder)
    assert process.incidents.merge(other, into, actor="ana").incident_id == into
    assert rig.incidents.get(other).merged_into == into


def test_merge__again__is_not_refused_as_something_else(rig: Rig) -> None:
    """A caller that did not receive the answer asks again."""
    into, other = two(rig)
    rig.incidents.merge(other, into, actor="ana")
    try:
        assert rig.incidents.merge(other, into, actor="ana").incident_id == into
    except IllegalTransitionError as exc:
        assert into in str(exc) or "merged" in str(exc)


def test_merge__each_into_the_other_at_once__one_lives_on(rig: Rig) -> None:
    into, other = two(rig)
    problems = run_together(
        lambda: rig.incidents.merge(other, into, actor="ana"), lambda: rig.incidents.merge(into, other, actor="bob")
    )
    assert [type(each) for each in problems] == [IllegalTransitionError]
    assert sum(each.is_open for each in rig.all_incidents()) == 1
    check_invariants(rig, [ORDERS])


def test_merge__large_ones__fit_in_a_transaction_or_are_refused_with_a_remedy(make_rig: MakeRig) -> None:
    rig = make_rig(subscriptions=[Subscription(name=f"s{n}", types=("*",)) for n in range(25)])
    names = store_evidence(rig, *range(50))
    for number in range(45):
        rig.say(CRITICAL, kind=f"B{number}", signature="B:y", evidence=[names[number]])
    rig.say(CRITICAL, kind="A", signature="A:x")
    into, other = rig.incident_of("A").incident_id, rig.incident_of("B0").incident_id
    try:
        kept = rig.incidents.merge(other, into, actor="ana")
    except IllegalTransitionError as exc:
        assert "keep them apart" in str(exc)
        check_invariants(rig, [ORDERS], pinned=rig.incidents.get(other).evidence_sample)
        return
    assert {rig.signal(f"B{number}").value.incident_id for number in range(45)} == {into}
    check_invariants(rig, [ORDERS], pinned=kept.evidence_sample)


# Evidence.


def test_evidence__of_an_open_incident__outlives_its_day_and_the_resolution(rig: Rig) -> None:
    names = store_evidence(rig, 1, 2)
    rig.say(CRITICAL, evidence=names)
    incident_id = rig.incident_of().incident_id
    check_invariants(rig, [ORDERS], pinned=names)
    rig.clock.advance(20 * 86_400)
    assert all(rig.store.get(EVIDENCE_CACHE, Key(each)) is not None for each in names)
    resolve(rig, incident_id)
    rig.incident_timers.sweep()
    rig.clock.advance(29 * 86_400)
    assert all(rig.store.get(EVIDENCE_CACHE, Key(each)) is not None for each in names)
    rig.clock.advance(2 * 86_400)
    assert all(rig.store.get(EVIDENCE_CACHE, Key(each)) is None for each in names)


def test_evidence__of_a_merged_incident__is_held_by_the_other(rig: Rig) -> None:
    names = store_evidence(rig, 1, 2)
    rig.say(CRITICAL, kind="A", signature="A:x", evidence=names[:1])
    rig.say(CRITICAL, kind="B", signature="B:y", evidence=names[1:])
    into, other = rig.incident_of("A").incident_id, rig.incident_of("B").incident_id
    rig.incidents.merge(other, into, actor="ana")
    for _ in range(3):
        rig.incident_timers.sweep()
        rig.clock.advance(5 * 86_400)
    check_invariants(rig, [ORDERS], pinned=names)
    assert rig.incidents.get(into).evidence_sample == tuple(names)


def test_evidence__it_breaks_out_again_while_the_pins_are_let_go__is_held(rig: Rig) -> None:
    names = store_evidence(rig, 1)
    rig.say(CRITICAL, evidence=names)
    incident_id = rig.incident_of().incident_id
    rig.later(OK)
    resolve(rig, incident_id)

    def break_out() -> None:
        rig.later(CRITICAL, evidence=names)
        assert rig.incident_of().incident_id == incident_id

    # The sweep has seen that it is resolved, and is about to let go.
    process_of(rig, "update", break_out).incident_timers.sweep()
    for _ in range(3):
        rig.incident_timers.sweep()
    check_invariants(rig, [ORDERS], pinned=names)


# Races of signals and people.


@pytest.mark.parametrize("is_linked", [True, False])
def test_race__resolved_while_a_signal_turns_critical__the_signal_has_an_open_incident_or_none(
    rig: Rig, is_linked: bool
) -> None:
    rig.say(OK)
    if is_linked:
        rig.later(CRITICAL, kind="VOLUME")
        rig.later(OK, kind="VOLUME")
        incident_id = rig.incident_of("VOLUME").incident_id
    else:
        incident_id = rig.incidents.open(trouble(ORDERS, "VOLUME"), actor="a").incident.incident_id
    process = process_of(rig, "transact", lambda: rig.later(CRITICAL, kind="VOLUME"))
    process.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")
    check_invariants(rig, [ORDERS])


@pytest.mark.parametrize("is_linked", [True, False])
def test_race__ends_by_itself_while_a_signal_turns_critical__does_not_end(rig: Rig, is_linked: bool) -> None:
    rig.say(CRITICAL)
    incident_id = rig.incident_of().incident_id
    if is_linked:
        rig.say(CRITICAL, kind="VOLUME")
        rig.later(OK, kind="VOLUME")
    rig.later(OK)
    rig.pass_minutes(6)
    process = process_of(rig, "transact", lambda: rig.later(CRITICAL, kind="VOLUME"))
    process.incident_timers.sweep()
    assert rig.incidents.get(incident_id).is_open
    assert rig.incident_of("VOLUME").is_open
    check_invariants(rig, [ORDERS])


def test_race__merged_while_a_signal_joins__no_one_is_left_with_one_that_is_over(rig: Rig) -> None:
    into, other = two(rig)
    rig.say(OK, kind="C")
    process = process_of(rig, "transact", lambda: rig.later(CRITICAL, kind="C", signature="B:y"))
    process.incidents.merge(other, into, actor="ana")
    assert rig.incident_of("C").incident_id == into
    check_invariants(rig, [ORDERS])


def test_race__a_signal_joins_while_merged__joins_the_one_that_lives_on(rig: Rig) -> None:
    into, other = two(rig)
    process = process_of(rig, "transact_many", lambda: rig.incidents.merge(other, into, actor="ana"))
    rig.pass_minutes(1)
    assert process.say(CRITICAL, kind="C", signature="B:y").verdict is UpdateVerdict.APPLIED
    assert rig.incident_of("C").incident_id == into
    check_invariants(rig, [ORDERS])


def test_race__acknowledged_while_it_escalates__no_one_more_is_notified(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    rig.pass_minutes(16)
    acknowledge = Changes(status="ACKNOWLEDGED")
    process = process_of(rig, "transact", lambda: rig.incidents.change(incident_id, acknowledge, actor="ana"))
    process.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 0
    assert rig.due(TimerKind.ESCALATION, incident_id) is None
    rig.pass_minutes(120)
    rig.incident_timers.sweep()
    assert rig.incidents.get(incident_id).escalation_level == 0


def test_race__it_escalates_while_acknowledged__both_are_kept(rig: Rig) -> None:
    incident_id = rig.incidents.open(trouble(), actor="a").incident.incident_id
    rig.pass_minutes(16)
    process = process_of(rig, "transact", lambda: rig.incident_timers.sweep())
    process.incidents.change(incident_id, Changes(status="ACKNOWLEDGED"), actor="ana")
    found = rig.incidents.get(incident_id)
    assert (found.status, found.escalation_level) == (IncidentStatus.ACKNOWLEDGED, 1)
    assert rig.due(TimerKind.ESCALATION, incident_id) is None


class Everyone:
    """Engines and people who act at once on the signals and incidents of one dataset."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.seed = seed

    def report(self, kind: str, signature: str) -> None:
        for number in range(8):
            state = CRITICAL if (number + self.seed) % 2 else OK
            self.rig.say(state, kind=kind, ago_ms=500 - number, signature=signature if state is CRITICAL else None)

    def resolve_and_reopen(self) -> None:
        for incident in self.rig.all_incidents() * 4:
            with contextlib.suppress(IllegalTransitionError):
                resolve(self.rig, incident.incident_id)
                self.rig.incidents.change(incident.incident_id, Changes(status="OPEN", reason="no"), actor="ana")

    def merge(self) -> None:
        for _ in range(4):
            live = [each.incident_id for each in self.rig.all_incidents() if each.is_open]
            if len(live) > 1:
                with contextlib.suppress(IllegalTransitionError):
                    self.rig.incidents.merge(live[0], live[1], actor="bob")


@pytest.mark.parametrize("seed", range(3))
def test_race__threads_of_everyone__agree_in_the_end(rig: Rig, seed: int) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, kind="VOLUME", signature="LOW:x")
    rig.clock.advance(1)
    everyone = Everyone(rig, seed)
    problems = run_together(
        lambda: everyone.report("FRESHNESS", SIGNATURE),
        lambda: everyone.report("VOLUME", "LOW:x"),
        everyone.resolve_and_reopen,
        everyone.merge,
        rig.incident_timers.sweep,
    )
    assert problems == []
    check_invariants(rig, [ORDERS])


def test_links__more_than_a_transaction_holds__none_is_left_behind(rig: Rig) -> None:
    rig.signals.update_many([rig.update(OK, kind=f"X{number}") for number in range(200)])
    rig.clock.advance(1)
    results = rig.signals.update_many([rig.update(CRITICAL, kind=f"X{number}") for number in range(120)])
    assert Counter(each.verdict for each in results) == {UpdateVerdict.APPLIED: 120}
    rig.clock.advance(1)
    for incident in rig.all_incidents():
        resolve(rig, incident.incident_id)
    assert [row["SK"] for row in rig.rows(ORDERS) if row.get("incident_id") is not None] == []


def test_links__more_than_a_transaction_holds__does_not_end_while_one_is_critical(rig: Rig) -> None:
    kinds = [f"X{number:03d}" for number in range(120)]
    rig.signals.update_many([rig.update(CRITICAL, kind=kind) for kind in kinds])
    incident_ids = {row.get("incident_id") for row in rig.rows(ORDERS)}
    rig.clock.advance(1)
    rig.signals.update_many([rig.update(OK, kind=kind) for kind in kinds[:-1]])
    rig.pass_minutes(40)
    rig.incident_timers.sweep()
    rig.incident_timers.sweep()
    assert any(rig.incidents.get(each).is_open for each in incident_ids if each is not None)
