"""The gate over the store: one call, the worst of all datasets, and what holds of each of them."""

from __future__ import annotations

import pytest

from headgate.durable.model.records import instant
from headgate.errors import InvalidIdError, InvalidPayloadError
from headgate.health.gate.decisions import Code, GateQuestion, OnUnknown, Ruling, Verb
from headgate.health.gate.gate import DATASETS_MAX, GateAnswer, Gatekeeper
from headgate.health.model.datasets import Dataset
from headgate.health.model.incidents import Changes
from tests.health_rig import CRITICAL, OK, ORDERS, PAYMENTS, WARNING, Rig, trouble
from tests.integration.health.conftest import MakeRig

UNVERSIONED = "urn:dp:orders:created"


def find(urn: str) -> Dataset | None:
    if "unregistered" in urn:
        return None
    return Dataset(dataset_urn=ORDERS if urn == UNVERSIONED else urn, config_version=1)


def ask(
    rig: Rig, *urns: str, verb: Verb = Verb.READ, principal: str = "svc", on_unknown: OnUnknown = OnUnknown.WARN
) -> GateAnswer:
    gate = Gatekeeper(rig.store, rig.clock, find=find)
    return gate.check(urns or [ORDERS], GateQuestion(principal=principal, verb=verb, on_unknown=on_unknown))


def test_check__well__is_allowed_without_more_ado(rig: Rig) -> None:
    rig.say(OK)
    answer = ask(rig)
    assert (answer.decision, answer.reasons, answer.overridable_by) == (Ruling.ALLOW, (), ())
    assert (answer.since, answer.until, answer.override_id) == (None, None, None)
    assert answer.as_of == instant(rig.now_ms)
    assert answer.complete


def test_check__critical__says_why_since_when_and_who_may_say_otherwise(rig: Rig) -> None:
    rig.say(OK)
    rig.later(CRITICAL)
    answer = ask(rig)
    assert answer.decision is Ruling.BLOCK
    assert {each.code for each in answer.reasons} == {Code.SIGNAL_CRITICAL, Code.INCIDENT_OPEN}
    assert answer.since is not None
    assert answer.overridable_by != ()
    assert all(each.message for each in answer.reasons)


def test_check__several_datasets__is_the_worst_and_each_is_reported(rig: Rig) -> None:
    rig.say(OK)
    rig.say(CRITICAL, urn=PAYMENTS)
    answer = ask(rig, ORDERS, PAYMENTS, "urn:dp:unregistered:x")
    assert answer.decision is Ruling.BLOCK
    assert [each.ruling for each in answer.datasets] == [Ruling.ALLOW, Ruling.BLOCK, Ruling.UNKNOWN]
    assert {each.dataset_urn for each in answer.reasons} == {PAYMENTS, "urn:dp:unregistered:x"}


def test_check__name_without_a_version__is_the_dataset_that_is_registered(rig: Rig) -> None:
    rig.say(CRITICAL)
    assert ask(rig, UNVERSIONED).decision is Ruling.BLOCK


def test_check__one_name_twice__is_asked_once(rig: Rig) -> None:
    rig.say(WARNING)
    assert len(ask(rig, ORDERS, ORDERS).datasets) == 1


def test_check__none_too_many_or_no_name__is_bad_input(rig: Rig) -> None:
    gate = Gatekeeper(rig.store, rig.clock, find=find)
    for urns in ([], [f"urn:dp:b:d{n}" for n in range(DATASETS_MAX + 1)]):
        with pytest.raises(InvalidPayloadError):
            gate.check(urns, GateQuestion(principal="svc"))
    with pytest.raises(InvalidIdError):
        gate.check(["nonsense"], GateQuestion(principal="svc"))


@pytest.mark.parametrize("granted_on", [ORDERS, UNVERSIONED])
@pytest.mark.parametrize("asked", [ORDERS, UNVERSIONED])
def test_check__overridden_by_either_name__is_let_through_until_it_ends(
    make_rig: MakeRig, granted_on: str, asked: str
) -> None:
    rig = make_rig(registered=lambda urn: ORDERS if urn == UNVERSIONED else urn)
    rig.say(CRITICAL)
    override = rig.overrides.grant(granted_on, Verb.READ, seconds=60, reason="we know", actor="ana")
    answer = ask(rig, asked)
    assert answer.decision is Ruling.WARN
    assert (answer.until, answer.override_id) == (override.expires_at, override.override_id)
    rig.clock.advance(60.001)
    assert ask(rig, asked).decision is Ruling.BLOCK


def test_check__override_taken_back__blocks_again(rig: Rig) -> None:
    rig.say(CRITICAL)
    override = rig.overrides.grant(ORDERS, Verb.READ, seconds=60, reason="we know", actor="ana")
    rig.overrides.revoke(ORDERS, override.override_id, actor="ana")
    assert ask(rig).decision is Ruling.BLOCK


def test_check__one_is_overridden_and_another_blocks__blocks_without_an_end(rig: Rig) -> None:
    rig.say(CRITICAL)
    rig.say(CRITICAL, urn=PAYMENTS)
    rig.overrides.grant(ORDERS, Verb.READ, seconds=60, reason="we know", actor="ana")
    answer = ask(rig, ORDERS, PAYMENTS)
    assert answer.decision is Ruling.BLOCK
    assert answer.until is None, "when the override ends, nothing is better"


def test_check__more_overrides_than_a_page__the_last_one_counts(rig: Rig) -> None:
    rig.say(CRITICAL)
    for number in range(105):
        rig.clock.advance(0.01)
        rig.overrides.grant(ORDERS, Verb.READ, seconds=600, reason="r", actor="ana", principal=f"svc-{number}")
    assert ask(rig, principal="svc-104").decision is Ruling.WARN
    assert ask(rig, principal="svc-0").decision is Ruling.WARN


def test_check__incident_that_people_opened_long_ago__still_blocks_after_many_that_are_over(rig: Rig) -> None:
    rig.say(OK)
    rig.incidents.open(trouble(ORDERS, "MANUAL", failure_signatures=("M:x",)), actor="ana")
    for number in range(25):
        rig.clock.advance(1)
        later = rig.incidents.open(trouble(ORDERS, "MANUAL", failure_signatures=(f"N:{number}",)), actor="ana").incident
        rig.incidents.change(later.incident_id, Changes(status="RESOLVED"), actor="ana")
    assert ask(rig).decision is Ruling.BLOCK


def test_check__incident_is_over__no_longer_counts(rig: Rig) -> None:
    rig.say(OK)
    incident = rig.incidents.open(trouble(ORDERS, "MANUAL"), actor="ana").incident
    assert ask(rig).decision is Ruling.BLOCK
    rig.incidents.change(incident.incident_id, Changes(status="RESOLVED"), actor="ana")
    assert ask(rig).decision is Ruling.ALLOW


def test_check__incident_merged_from_another_dataset__counts_for_both(rig: Rig) -> None:
    rig.say(OK)
    rig.say(OK, urn=PAYMENTS)
    first = rig.incidents.open(trouble(ORDERS, "MANUAL"), actor="ana").incident
    second = rig.incidents.open(trouble(PAYMENTS, "MANUAL"), actor="ana").incident
    rig.incidents.merge(second.incident_id, first.incident_id, actor="ana")
    assert ask(rig, ORDERS).decision is Ruling.BLOCK
    assert ask(rig, PAYMENTS).decision is Ruling.BLOCK


def test_check__late_data_to_be_published__is_let_through_with_a_warning(rig: Rig) -> None:
    rig.say(CRITICAL)
    assert ask(rig, verb=Verb.PUBLISH).decision is Ruling.WARN


def test_check__two_hundred_datasets__in_one_call(rig: Rig) -> None:
    urns = [f"urn:dp:b:d{number}" for number in range(DATASETS_MAX)]
    rig.signals.update_many([rig.update(OK, urn=urn) for urn in urns])
    answer = ask(rig, *urns, on_unknown=OnUnknown.BLOCK)
    assert answer.decision is Ruling.ALLOW
    assert len(answer.datasets) == DATASETS_MAX
