"""The gate's rulings: what each fact alone makes of it, the worst of all, and what an override changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.durable.model.records import instant
from headgate.errors import UserError
from headgate.health.gate.decisions import (
    Code,
    DatasetFacts,
    DatasetRuling,
    GateQuestion,
    OnUnknown,
    Override,
    Ruling,
    Verb,
    judge,
    worst,
)
from headgate.health.incidents import decisions as incident_decisions
from headgate.health.model.datasets import Dataset, DatasetProfile, DatasetStatus
from headgate.health.model.enums import Severity, SignalState, Tier
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate
from headgate.health.signals.decisions import decide
from tests.health_rig import CRITICAL, OK, ORDERS, UNKNOWN, WARNING, trouble, value

NOW_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
STANDING = DatasetProfile(Tier.TIER_1, "team-a")
DATASET = Dataset(dataset_urn=ORDERS, config_version=1)


def signal(state: SignalState, kind: str = "VOLUME", *, ago_ms: int = 0) -> Signal:
    at = NOW_MS - ago_ms
    update = SignalUpdate(dataset_urn=ORDERS, signal_type=kind, value=value(state, at), expected_version=ANY_VERSION)
    decided = decide(None, update, STANDING, at).signal
    assert decided is not None
    return decided


def incident(severity: Severity, *kinds: str) -> Incident:
    given = trouble(ORDERS, *kinds, severity=severity)
    return incident_decisions.opened(given, (), "INC-1", STANDING, "ana", NOW_MS - HOUR_MS)


def override(verb: Verb = Verb.READ, *, principal: str | None = None, ends_ms: int = NOW_MS + HOUR_MS) -> Override:
    return Override(
        override_id=f"ovr_{ends_ms}",
        dataset_urn=ORDERS,
        verb=verb,
        actor="ana",
        reason="we know",
        created_at=instant(NOW_MS - HOUR_MS),
        expires_at=instant(ends_ms),
        principal=principal,
    )


def ruled(
    *signals: Signal, dataset: Dataset | None = DATASET, question: GateQuestion | None = None, **more: Any
) -> DatasetRuling:
    known = DatasetFacts(dataset_urn=ORDERS, dataset=dataset, signals=signals, **more)
    return judge(known, question or GateQuestion(principal="svc"), NOW_MS)


@pytest.mark.parametrize(("state", "kind", "verb", "ruling"), [
    (OK, "VOLUME", Verb.READ, Ruling.ALLOW),
    (WARNING, "VOLUME", Verb.READ, Ruling.WARN),
    (CRITICAL, "VOLUME", Verb.READ, Ruling.BLOCK),
    (CRITICAL, "FRESHNESS", Verb.READ, Ruling.BLOCK),
    (CRITICAL, "VOLUME", Verb.PUBLISH, Ruling.BLOCK),
    (CRITICAL, "FRESHNESS", Verb.PUBLISH, Ruling.WARN),
    (OK, "VOLUME", Verb.PUBLISH, Ruling.ALLOW),
])  # fmt: skip
def test_judge__one_signal__rules(state: SignalState, kind: str, verb: Verb, ruling: Ruling) -> None:
    found = ruled(signal(state, kind), question=GateQuestion(principal="svc", verb=verb))
    assert found.ruling is ruling
    assert (found.since is None) == (ruling is Ruling.ALLOW)
    assert bool(found.reasons) == (ruling is not Ruling.ALLOW)


@pytest.mark.parametrize("on_unknown", list(OnUnknown))
@pytest.mark.parametrize("what", ["no signals", "unknown", "outdated"])
def test_judge__not_known__is_as_the_caller_wants(what: str, on_unknown: OnUnknown) -> None:
    question = GateQuestion(principal="svc", on_unknown=on_unknown)
    found = {
        "no signals": lambda: ruled(question=question),
        "unknown": lambda: ruled(signal(UNKNOWN), question=question),
        "outdated": lambda: ruled(signal(OK, ago_ms=48 * HOUR_MS), question=question),
    }[what]()
    assert found.ruling.value == on_unknown.value
    assert len(found.reasons) == 1, "also what is allowed has its reason"


@pytest.mark.parametrize("on_unknown", list(OnUnknown))
def test_judge__unregistered__is_unknown_unless_the_caller_blocks(on_unknown: OnUnknown) -> None:
    found = ruled(dataset=None, question=GateQuestion(principal="svc", on_unknown=on_unknown))

    assert found.ruling is (Ruling.BLOCK if on_unknown is OnUnknown.BLOCK else Ruling.UNKNOWN)
    (reason,) = found.reasons
    assert reason.code is Code.DATASET_NOT_FOUND
    assert f"is not registered; correct the name, or run 'headgate dataset register {ORDERS}'" in reason.message


@pytest.mark.parametrize("state", [OK, WARNING, UNKNOWN])
def test_judge__outdated_and_what_is_not_known_blocks__blocks_whatever_it_last_said(state: SignalState) -> None:
    question = GateQuestion(principal="svc", on_unknown=OnUnknown.BLOCK)
    assert ruled(signal(state, ago_ms=48 * HOUR_MS), question=question).ruling is Ruling.BLOCK


def test_judge__outdated_critical__still_blocks_where_what_is_not_known_is_allowed() -> None:
    question = GateQuestion(principal="svc", on_unknown=OnUnknown.ALLOW)
    assert ruled(signal(CRITICAL, ago_ms=48 * HOUR_MS), question=question).ruling is Ruling.BLOCK


def test_judge__how_old_is_too_old__is_the_callers_to_say() -> None:
    old = signal(OK, ago_ms=2 * HOUR_MS)
    assert ruled(old, question=GateQuestion(principal="svc", age_seconds_max=3 * 3600)).ruling is Ruling.ALLOW
    assert ruled(old, question=GateQuestion(principal="svc", age_seconds_max=3600)).ruling is Ruling.WARN


@pytest.mark.parametrize("age", [math.inf, math.nan, -1.0])
def test_judge__age_that_is_none__is_answered_or_refused_as_bad_input(age: float) -> None:
    try:
        ruled(signal(OK), question=GateQuestion(principal="svc", age_seconds_max=age))
    except UserError:
        return


@pytest.mark.parametrize(("status", "ruling"), [
    (DatasetStatus.ACTIVE, Ruling.ALLOW),
    (DatasetStatus.DISCOVERED, Ruling.ALLOW),
    (DatasetStatus.DEPRECATED, Ruling.WARN),
    (DatasetStatus.DELETED, Ruling.BLOCK),
])  # fmt: skip
def test_judge__status_of_the_dataset__rules(status: DatasetStatus, ruling: Ruling) -> None:
    assert ruled(signal(OK), dataset=replace(DATASET, status=status)).ruling is ruling


@pytest.mark.parametrize(("severity", "verb", "ruling"), [
    (Severity.SEV_1, Verb.READ, Ruling.BLOCK),
    (Severity.SEV_1, Verb.PUBLISH, Ruling.WARN),
    (Severity.SEV_2, Verb.READ, Ruling.WARN),
    (Severity.SEV_3, Verb.READ, Ruling.WARN),
])  # fmt: skip
def test_judge__open_incident__rules(severity: Severity, verb: Verb, ruling: Ruling) -> None:
    question = GateQuestion(principal="svc", verb=verb)
    found = ruled(signal(OK), incidents=[incident(severity, "OTHER")], question=question)
    assert found.ruling is ruling
    assert [each.incident_id for each in found.reasons] == ["INC-1"]
    assert found.since == instant(NOW_MS - HOUR_MS)


def test_judge__several__is_the_worst_with_every_reason_worst_first() -> None:
    found = ruled(signal(WARNING, "A"), signal(CRITICAL, "B"), signal(OK, "C"), signal(UNKNOWN, "D"))
    assert found.ruling is Ruling.BLOCK
    assert found.reasons[0].code is Code.SIGNAL_CRITICAL
    assert {each.code for each in found.reasons} == {Code.SIGNAL_CRITICAL, Code.SIGNAL_WARNING, Code.SIGNAL_UNKNOWN}


def test_judge__overridden__is_warned_of_until_it_ends_with_every_reason() -> None:
    found = ruled(signal(CRITICAL), overrides=[override()])
    assert found.ruling is Ruling.WARN
    assert found.until == instant(NOW_MS + HOUR_MS)
    assert found.override_id is not None
    assert {each.code for each in found.reasons} == {Code.SIGNAL_CRITICAL, Code.OVERRIDDEN}


@pytest.mark.parametrize(
    "other",
    [
        override(Verb.PUBLISH),
        override(principal="somebody-else"),
        override(principal=""),
        override(ends_ms=NOW_MS),
        override(ends_ms=NOW_MS - 1),
    ],
    ids=["verb", "principal", "nobody", "now", "over"],
)
def test_judge__override_of_something_else__changes_nothing(other: Override) -> None:
    found = ruled(signal(CRITICAL), overrides=[other])
    assert (found.ruling, found.override_id, found.until) == (Ruling.BLOCK, None, None)


def test_judge__override_of_this_principal__counts() -> None:
    assert ruled(signal(CRITICAL), overrides=[override(principal="svc")]).ruling is Ruling.WARN


def test_judge__two_overrides__the_longer_one_counts() -> None:
    found = ruled(signal(CRITICAL), overrides=[override(), override(ends_ms=NOW_MS + 2 * HOUR_MS)])
    assert found.until == instant(NOW_MS + 2 * HOUR_MS)


def test_judge__well_or_only_warned__needs_no_override() -> None:
    for state, ruling in ((OK, Ruling.ALLOW), (WARNING, Ruling.WARN)):
        found = ruled(signal(state), overrides=[override()])
        assert (found.ruling, found.override_id) == (ruling, None)


def test_worst__of_all_orders__is_the_worst() -> None:
    assert worst([]) is Ruling.ALLOW
    assert worst([Ruling.WARN, Ruling.BLOCK, Ruling.UNKNOWN]) is Ruling.BLOCK
    assert worst([Ruling.ALLOW, Ruling.UNKNOWN, Ruling.WARN]) is Ruling.UNKNOWN
