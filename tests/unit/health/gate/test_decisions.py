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
    GatePolicy,
    GateQuestion,
    OnUnknown,
    Override,
    Ruling,
    Verb,
    judge,
    worst,
)
from headgate.health.incidents import decisions as incident_decisions
from headgate.health.model.datasets import Dataset, DatasetProfile, DatasetStatus, FreshnessSlo, OnSilence, Slos
from headgate.health.model.enums import Severity, SignalState, Tier
from headgate.health.model.freshness import OVERDUE
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


# The age of facts.


def promised(delay_seconds: float, **more: Any) -> Dataset:
    return replace(DATASET, slos=Slos(freshness=FreshnessSlo(max_delay_seconds=delay_seconds, **more)))


def reported(state: SignalState, *, ended_ms: int, kind: str = "FRESHNESS", **more: Any) -> Signal:
    """A signal that was written just now, of a window that ended long ago, or not."""
    said = replace(value(state, ended_ms), **more)
    update = SignalUpdate(dataset_urn=ORDERS, signal_type=kind, value=said, expected_version=ANY_VERSION)
    decided = decide(None, update, STANDING, NOW_MS).signal
    assert decided is not None
    return decided


def test_judge__written_now_of_a_window_long_ago__is_as_old_as_its_window() -> None:
    old = reported(OK, ended_ms=NOW_MS - 60 * 24 * HOUR_MS, kind="VOLUME")
    (reason,) = ruled(old).reasons
    assert (reason.code, reason.ruling) == (Code.SIGNAL_OUTDATED, Ruling.WARN)
    assert instant(NOW_MS - 60 * 24 * HOUR_MS) in reason.message
    strict = GateQuestion(principal="svc", age_seconds_max=3600)
    assert ruled(old, question=strict).ruling is Ruling.WARN
    assert ruled(reported(OK, ended_ms=NOW_MS - HOUR_MS), question=strict).ruling is Ruling.ALLOW
    assert ruled(reported(OK, ended_ms=NOW_MS - HOUR_MS - 1), question=strict).ruling is Ruling.WARN


@pytest.mark.parametrize(("late_ms", "ruling"), [
    (0, Ruling.ALLOW),
    (HOUR_MS, Ruling.ALLOW),
    (HOUR_MS + 1, Ruling.WARN),
    (2 * HOUR_MS, Ruling.WARN),
    (2 * HOUR_MS + 1, Ruling.BLOCK),
    (60 * 24 * HOUR_MS, Ruling.BLOCK),
])  # fmt: skip
def test_judge__freshness_slo_without_a_report_in_time__warns_then_blocks(late_ms: int, ruling: Ruling) -> None:
    signal = reported(OK, ended_ms=NOW_MS - late_ms, window_type="")
    found = ruled(signal, dataset=promised(3600))
    assert found.ruling is ruling
    assert all(each.code is Code.FRESHNESS_OVERDUE for each in found.reasons)
    published = ruled(signal, dataset=promised(3600), question=GateQuestion(principal="svc", verb=Verb.PUBLISH))
    assert published.ruling is (Ruling.ALLOW if ruling is Ruling.ALLOW else Ruling.WARN), "new data is the remedy"


def test_judge__facts_older_than_promised__are_not_known_to_a_caller_that_asks() -> None:
    signal = reported(OK, ended_ms=NOW_MS - HOUR_MS - 1, window_type="")
    for on_unknown, ruling in ((OnUnknown.ASK, Ruling.UNKNOWN), (OnUnknown.BLOCK, Ruling.BLOCK)):
        question = GateQuestion(principal="svc", on_unknown=on_unknown)
        assert ruled(signal, dataset=promised(3600), question=question).ruling is ruling
    lenient = GateQuestion(principal="svc", on_unknown=OnUnknown.ALLOW)
    assert ruled(signal, dataset=promised(3600), question=lenient).ruling is Ruling.WARN, "the SLO is broken"


def test_judge__slo_with_a_warning_of_its_own__warns_before_it_is_broken_and_blocks_after() -> None:
    slo = promised(3600, warning_delay_seconds=600)
    for minutes, ruling in ((10, Ruling.ALLOW), (11, Ruling.WARN), (60, Ruling.WARN), (61, Ruling.BLOCK)):
        signal = reported(OK, ended_ms=NOW_MS - minutes * 60_000, window_type="")
        assert ruled(signal, dataset=slo).ruling is ruling, minutes


@pytest.mark.parametrize(("policy", "ruling"), [
    (OnSilence.IGNORE, Ruling.ALLOW), (OnSilence.WARN, Ruling.WARN), (OnSilence.CRITICAL, Ruling.BLOCK),
])  # fmt: skip
def test_judge__policy_of_the_dataset__decides_on_silence(policy: OnSilence, ruling: Ruling) -> None:
    signal = reported(OK, ended_ms=NOW_MS - 5 * HOUR_MS, window_type="")
    assert ruled(signal, dataset=promised(3600, on_silence=policy)).ruling is ruling
    known = DatasetFacts(dataset_urn=ORDERS, dataset=promised(3600), signals=[signal])
    of_server = judge(known, GateQuestion(principal="svc"), NOW_MS, GatePolicy(on_silence=policy))
    assert of_server.ruling is ruling


def test_judge__slo_longer_than_a_day__decides_instead_of_the_default_age() -> None:
    week = promised(7 * 86_400)
    signals = [reported(OK, ended_ms=NOW_MS - 6 * 24 * HOUR_MS, kind=kind) for kind in ("FRESHNESS", "VOLUME")]
    assert ruled(*signals, dataset=week).ruling is Ruling.ALLOW
    assert ruled(*signals).ruling is Ruling.WARN
    strict = GateQuestion(principal="svc", age_seconds_max=86_400)
    assert ruled(*signals, dataset=week, question=strict).ruling is Ruling.WARN, "the caller's age decides too"


def test_judge__tumbling_window__has_its_length_until_the_next_one() -> None:
    slo = promised(60)
    five = reported(OK, ended_ms=NOW_MS - 6 * 60_000)
    assert five.value.window_type == "TUMBLING_5MIN"
    assert ruled(five, dataset=slo).ruling is Ruling.ALLOW
    assert ruled(reported(OK, ended_ms=NOW_MS - 6 * 60_000 - 1), dataset=slo).ruling is Ruling.WARN


def test_judge__run_that_wrote_the_dataset__is_a_report_on_its_freshness() -> None:
    run = reported(OK, ended_ms=NOW_MS - 60_000, kind="PIPELINE_RUN", window_type="")
    assert ruled(run, dataset=promised(3600)).ruling is Ruling.ALLOW
    old = reported(OK, ended_ms=NOW_MS - 5 * HOUR_MS, kind="PIPELINE_RUN", window_type="")
    assert ruled(old, dataset=promised(3600)).ruling is Ruling.BLOCK


def test_judge__slo_and_never_a_report__is_overdue_from_the_registration_on() -> None:
    volume = reported(OK, ended_ms=NOW_MS, kind="VOLUME")
    young = replace(promised(3600), updated_at=instant(NOW_MS - HOUR_MS))
    assert ruled(volume, dataset=young).ruling is Ruling.ALLOW
    old = replace(promised(3600), updated_at=instant(NOW_MS - 3 * HOUR_MS))
    (reason,) = ruled(volume, dataset=old).reasons
    assert (reason.code, reason.ruling) == (Code.FRESHNESS_OVERDUE, Ruling.BLOCK)
    assert "no report since" in reason.message


def test_judge__engine_says_critical__is_one_reason_however_late_it_is() -> None:
    signal = reported(CRITICAL, ended_ms=NOW_MS - 5 * HOUR_MS, window_type="")
    assert [each.code for each in ruled(signal, dataset=promised(3600)).reasons] == [Code.SIGNAL_CRITICAL]


@pytest.mark.parametrize("state", [WARNING, CRITICAL])
def test_judge__finding_of_the_freshness_timer__is_one_reason_in_plain_words(state: SignalState) -> None:
    finding = reported(state, ended_ms=NOW_MS - 5 * HOUR_MS, window_type="", failure_signature=OVERDUE)
    (reason,) = ruled(finding, dataset=promised(3600)).reasons
    assert (reason.code, reason.ruling) == (Code.FRESHNESS_OVERDUE, Ruling.BLOCK)
    assert "is overdue: the newest report is on a window that ended at" in reason.message
