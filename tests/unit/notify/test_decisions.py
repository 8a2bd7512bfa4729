"""Routes, fates, groups and escalations as pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headgate.notify.alert_rows import Alert, AlertGroup, Escalation, LatestAlert
from headgate.notify.decisions import (
    AlertPolicy,
    EscalationStep,
    NoticeOutcome,
    escalate,
    first_escalation,
    group_name,
    outcome_of,
    with_notice,
)
from headgate.notify.enums import AlertAction, AlertStatus, DefaultRoute, Severity
from headgate.notify.messages import line, message_of
from headgate.notify.mutes import Mute, muted_by
from headgate.notify.notices import NO_AUDIENCE, Audience, audience_for
from headgate.notify.routes import Route, channels_for, fallback_channels
from tests.unit.notify.rig import a_notice

NOW = 1_000_000
KNOWN = ("a", "b", "c")
DEFAULTS = {DefaultRoute.PAGE: ("a",), DefaultRoute.NOTIFY: ("b",), DefaultRoute.LOG: ()}
OWNED = Audience(owner="team-a", labels={"tier": "gold", "region": "eu"})
POLICY = AlertPolicy(
    dedup_seconds=60,
    group_after=2,
    group_seconds=30,
    escalation=(
        EscalationStep(after_seconds=10, channels=("b",)),
        EscalationStep(after_seconds=20, channels=("c", "b")),
    ),
)


def an_alert(**changes: Any) -> Alert:
    facts: dict[str, Any] = {
        "alert_id": "alert_1",
        "pipeline_id": "orders",
        "event": "JOB_FAILED",
        "event_id": "1",
        "severity": Severity.CRITICAL,
        "text": "failed",
        "dedup_key": "k",
        "at_ms": NOW,
        "last_at_ms": NOW,
    }
    return Alert(**{**facts, **changes})


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (Route(channels=("c",)), ("c",)),
        (Route(channels=("c",), severity_min=Severity.CRITICAL), ("c",)),
        (Route(channels=("c",), events=("JOB_*",)), ("c",)),
        (Route(channels=("c",), events=("SLA_*",)), ("a",)),
        (Route(channels=("c",), events=("job_failed",)), ("a",)),
        (Route(channels=("c",), pipelines=("ord?rs",)), ("c",)),
        (Route(channels=("c",), pipelines=("billing", "orders-eu")), ("a",)),
        (Route(channels=("c",), owners=("team-*",)), ("c",)),
        (Route(channels=("c",), owners=("team-b",)), ("a",)),
        (Route(channels=("c",), labels={"tier": "gold", "region": "e*"}), ("c",)),
        (Route(channels=("c",), labels={"tier": "gold", "zone": "*"}), ("a",)),
        (Route(channels=("c", "b", "c")), ("c", "b")),
        (Route(channels=("gone",)), ()),
    ],
)
def test_channels__one_route__goes_there_or_to_the_default(route: Route, expected: tuple[str, ...]) -> None:
    assert channels_for(a_notice("1", NOW), OWNED, [route], DEFAULTS, KNOWN) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("a",)),
        ({"route": DefaultRoute.NOTIFY}, ("b",)),
        ({"route": DefaultRoute.LOG}, ()),
        ({"alerts": False}, ()),
        ({"severity": Severity.INFO}, ()),
        ({"avoid": ("a",)}, ("b", "c")),
        ({"avoid": ("a", "b", "c")}, ()),
    ],
)
def test_channels__no_route__goes_by_default(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert channels_for(a_notice("1", NOW, **changes), NO_AUDIENCE, [], DEFAULTS, KNOWN) == expected


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (Route(channels=("c",)), ()),
        (Route(channels=("c",), severity_min=Severity.INFO), ("c",)),
        (Route(channels=("c",), events=("SLA_*",)), ("c",)),
        (Route(channels=("c",), events=("SLA_*",), severity_min=Severity.WARNING), ()),
    ],
)
def test_channels__a_success__goes_only_where_a_route_asks_for_it(route: Route, expected: tuple[str, ...]) -> None:
    notice = a_notice("1", NOW, event="SLA_MET", severity=Severity.INFO, route=DefaultRoute.NOTIFY)

    assert channels_for(notice, Audience(channels=("b",)), [route], DEFAULTS, KNOWN) == expected


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (Route(channels=("c",), tiers=("TIER_1",)), ("c",)),
        (Route(channels=("c",), tiers=("TIER_2",)), ("a",)),
        (Route(channels=("c",), teams=("payments",)), ("c",)),
        (Route(channels=("c",), datasets=("urn:dp:*",)), ("c",)),
        (Route(channels=("c",), datasets=("urn:other:*",)), ("a",)),
        (Route(channels=("c",), owners=("ada",)), ("c",)),
    ],
)
def test_channels__an_incident__is_routed_by_tier_team_owner_and_dataset(
    route: Route, expected: tuple[str, ...]
) -> None:
    notice = a_notice("1", NOW, dataset_urn="urn:dp:orders:created", tier="TIER_1", team="payments", owner="ada")

    assert channels_for(notice, audience_for(notice, OWNED), [route], DEFAULTS, KNOWN) == expected


def test_channels__routes_in_order__stop_at_the_first_that_does_not_go_on() -> None:
    routes = [Route(channels=("a",), goes_on=True), Route(channels=("b",)), Route(channels=("c",))]

    assert channels_for(a_notice("1", NOW), NO_AUDIENCE, routes, DEFAULTS, KNOWN) == ("a", "b")


def test_channels__not_an_alert__only_a_route_that_names_it_is_asked() -> None:
    notice = a_notice("1", NOW, event="JOB_TRIGGERED", alerts=False)
    audience = Audience(channels=("b",))

    assert channels_for(notice, audience, [Route(channels=("c",))], DEFAULTS, KNOWN) == ()
    named = Route(channels=("c",), events=("JOB_TRIGGERED",))
    assert channels_for(notice, audience, [named], DEFAULTS, KNOWN) == ("c",)


@pytest.mark.parametrize(
    ("tried", "failing", "expected"),
    [
        (["a"], [], ("b", "c")),
        (["a"], ["b"], ("c",)),
        (["a", "b"], [], ()),
        (["a", "b"], ["a", "b"], ("c",)),
        (["a", "b", "c"], ["a", "b", "c"], ()),
    ],
)
def test_remaining__a_channel_fails__only_if_no_other_reports_it(
    tried: list[str], failing: list[str], expected: tuple[str, ...]
) -> None:
    assert fallback_channels("a", tried, failing, KNOWN) == expected


TWIN = LatestAlert(dedup_key="k", alert_id="alert_0", pipeline_id="orders", until_ms=NOW + 1)
GROUP = AlertGroup(
    group_key="g",
    event="JOB_FAILED",
    severity=Severity.CRITICAL,
    channels=("a",),
    opened_at_ms=NOW - 1,
    closes_at_ms=NOW + 1,
    count=2,
)


@pytest.mark.parametrize(
    ("channels", "silenced", "latest", "group", "policy", "expected"),
    [
        ([], "m", TWIN, GROUP, POLICY, NoticeOutcome.PASS),
        (["a"], "m", TWIN, GROUP, POLICY, NoticeOutcome.MUTE),
        (["a"], "", TWIN, GROUP, POLICY, NoticeOutcome.COUNT),
        (["a"], "", replace(TWIN, until_ms=NOW), None, POLICY, NoticeOutcome.SEND),
        (["a"], "", None, GROUP, POLICY, NoticeOutcome.HOLD),
        (["a"], "", None, replace(GROUP, count=1), POLICY, NoticeOutcome.SEND),
        (["a"], "", None, replace(GROUP, closes_at_ms=NOW), POLICY, NoticeOutcome.SEND),
        (["a"], "", None, GROUP, AlertPolicy(group_after=0), NoticeOutcome.SEND),
        (["a"], "", None, None, POLICY, NoticeOutcome.SEND),
    ],
)
def test_fate__each_fact__decides_in_its_order(
    channels: list[str],
    silenced: str,
    latest: LatestAlert | None,
    group: AlertGroup | None,
    policy: AlertPolicy,
    expected: NoticeOutcome,
) -> None:
    assert outcome_of(channels, silenced, latest, group, policy, NOW) is expected


def test_group__joined_held_and_over__counts_names_and_begins_anew() -> None:
    notice = a_notice("1", NOW)
    first = with_notice(None, notice, ["a"], POLICY, NOW, is_held=False)
    held = with_notice(first, notice, ["a"], POLICY, NOW + 1, is_held=True)
    late = with_notice(held, notice, ["a"], POLICY, NOW + 60_000, is_held=False)
    anew = with_notice(first, notice, ["a"], POLICY, NOW + 60_000, is_held=False)

    assert (first.count, first.held_count, first.version) == (1, 0, 1)
    assert (held.count, held.held_count, held.held, held.version) == (2, 1, ("orders daily 2026-03-03",), 2)
    assert late.held_count == 1, "what is held must not be forgotten by a new window"
    assert (anew.count, anew.opened_at_ms, anew.version) == (1, NOW + 60_000, 2)
    assert group_name(notice, ["b", "a"]) == group_name(notice, ["a", "b"])


@pytest.mark.parametrize(
    ("after_ms", "channels", "next_step"),
    [(0, (), 0), (9_999, (), 0), (10_000, ("b",), 1), (20_000, ("b", "c"), None), (10**9, ("b", "c"), None)],
)
def test_escalate__time_passes__takes_every_step_that_is_due(
    after_ms: int, channels: tuple[str, ...], next_step: int | None
) -> None:
    alert = an_alert()
    first = first_escalation(alert, POLICY)
    assert first is not None
    assert first.due_at_ms == NOW + 10_000

    follows = escalate(alert, first, POLICY, NOW + after_ms)

    assert follows.channels == channels
    assert (follows.next.step if follows.next is not None else None) == next_step


@pytest.mark.parametrize("status", [AlertStatus.ACKNOWLEDGED, AlertStatus.RESOLVED, AlertStatus.MUTED])
def test_escalate__someone_is_at_it_or_it_is_over__ends(status: AlertStatus) -> None:
    due = Escalation(alert_id="alert_1", pipeline_id="orders", at_ms=NOW, step=0, due_at_ms=NOW)

    follows = escalate(an_alert(status=status), due, POLICY, NOW + 10**9)

    assert (follows.channels, follows.next) == ((), None)


def test_escalation__policy_was_shortened_meanwhile__ends() -> None:
    due = Escalation(alert_id="alert_1", pipeline_id="orders", at_ms=NOW, step=1, due_at_ms=NOW)

    assert escalate(an_alert(), due, AlertPolicy(), NOW + 10**9).next is None
    assert first_escalation(an_alert(severity=Severity.WARNING), POLICY) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "mute_1"),
        ({"event": "JOB_*", "pipeline": "ord*", "owner": "team-a"}, "mute_1"),
        ({"event": "SLA_*"}, ""),
        ({"pipeline": "orders-eu"}, ""),
        ({"owner": "team-b"}, ""),
        ({"severity_max": Severity.WARNING}, ""),
        ({"until_ms": NOW}, ""),
    ],
)
def test_muted_by__each_part_of_a_mute__must_fit(changes: dict[str, Any], expected: str) -> None:
    facts: dict[str, Any] = {"mute_id": "mute_1", "until_ms": NOW + 1, "by": "ada", "reason": "x", "at_ms": 0}
    mute = Mute(**{**facts, **changes})

    assert muted_by(a_notice("1", NOW), OWNED, [mute], NOW) == expected


def test_message__of_a_recovery__does_not_name_the_category_of_the_failure() -> None:
    alert = an_alert(text="silver: failed", detail={"category": "TRANSIENT", "run_id": "run_1"})

    assert "category: TRANSIENT" in message_of(alert, AlertAction.TRIGGER).lines
    assert message_of(alert, AlertAction.RESOLVE).lines == ("run_id: run_1",)


def test_message__text_from_elsewhere__is_one_line_without_controls() -> None:
    # What a job printed must not draw on a terminal, nor begin a header.
    alert = an_alert(text="a\r\nb\x1b[31m\x00c", detail={"error": "x\ny", "z": {"deep": 1}, "nothing": None})

    message = message_of(alert, AlertAction.TRIGGER)

    assert message.title == "a b [31m c"
    assert message.lines == ("error: x y",)
    assert len(line("x" * 1000)) == 500
