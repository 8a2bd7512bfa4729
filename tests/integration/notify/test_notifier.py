"""What becomes of notices: sent, counted, held, muted, resolved, acknowledged, escalated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.durable.bus.events import Event
from headgate.errors import InvalidPayloadError, NotFoundError, TransientError
from headgate.notify.alert_rows import ESCALATIONS_DUE, escalation_key
from headgate.notify.decisions import NoticeOutcome
from headgate.notify.enums import AlertStatus, DefaultRoute, DeliveryState, Severity
from headgate.notify.notices import Audience
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Put
from tests.unit.notify.rig import TWO_FILES, World, sent_to


def escalating(**more: Any) -> dict[str, Any]:
    steps = [{"after_seconds": 600, "channels": ["backup"]}, {"after_seconds": 1200, "channels": ["ops", "backup"]}]
    return {"channels": TWO_FILES, "defaults": {"page": ["ops"]}, "escalation": steps, **more}


def test_event_on_the_bus__alerts__reaches_the_channel_of_its_default_route(world: World) -> None:
    # D21: nothing lies between an event and its channel that could be set up so that alerts are lost by default.
    world.emit(world.notice())

    assert world.titles() == ["orders daily 2026-03-03: the job failed"]
    assert world.sent("backup") == []
    alert = world.alerts.ls().alerts[0]
    assert alert.status is AlertStatus.OPEN
    assert sent_to(alert) == ["ops"]
    assert alert.deliveries["ops#trigger"].state is DeliveryState.SENT
    assert world.alerts.get(alert.alert_id) == alert
    assert world.alerts.ls("orders").alerts == [alert]
    assert world.alerts.ls("others").alerts == []


def test_no_configuration__a_warning__is_reported_on_the_console_and_a_success_is_not(
    new_world: Callable[..., World], capsys: pytest.CaptureFixture[str]
) -> None:
    world = new_world({"dedup_seconds": 60})

    world.emit(world.notice(event="SLA_MET", severity=Severity.INFO, route=DefaultRoute.NOTIFY))
    world.emit(world.notice(severity=Severity.WARNING, route=DefaultRoute.NOTIFY))

    reported = capsys.readouterr().err
    assert "WARNING orders daily 2026-03-03: the job failed" in reported
    assert "INFO" not in reported
    assert [each.event for each in world.alerts.ls().alerts] == ["JOB_FAILED"]


def test_event_on_the_bus__same_delivery_twice__is_reported_once(world: World) -> None:
    notice = world.notice()

    assert world.notifier.take(notice) is NoticeOutcome.SEND
    assert world.notifier.take(notice) is NoticeOutcome.PASS
    world.run()

    assert len(world.sent()) == 1
    assert world.alerts.ls().alerts[0].count == 1


def test_event_on_the_bus__not_a_notice__is_a_dead_letter(world: World) -> None:
    # bug 69: an event that cannot be delivered is never dropped silently.
    world.bus.emit(Event(type="headgate.pipeline.job_failed", data={"is_news": True, "event": "JOB_FAILED"}))
    world.advance(7200)

    letters = world.bus.dead_letters().letters
    assert [letter.subscription for letter in letters] == ["headgate.notify"]
    with pytest.raises(InvalidPayloadError, match="it is not a notice"):
        world.notifier.handle(Event(id="1", type="headgate.pipeline.x", source="/t", data={}))


def test_same_trouble__within_the_window__counts_up_and_is_reported_again_after_it(world: World) -> None:
    for _ in range(3):
        world.emit(world.notice())
        world.clock.advance(60)
    assert len(world.sent()) == 1
    assert world.alerts.ls().alerts[0].count == 3

    world.clock.advance(3600)
    world.emit(world.notice())

    assert len(world.sent()) == 2
    assert [alert.count for alert in world.alerts.ls().alerts] == [1, 3]


def test_not_an_alert__no_route_names_it__is_passed_over(world: World) -> None:
    assert world.notifier.take(world.notice(event="JOB_TRIGGERED", alerts=False)) is NoticeOutcome.PASS
    assert world.alerts.ls().alerts == []


@pytest.mark.parametrize("pattern", ["JOB_TRIGGERED", "JOB_TR*"])
def test_not_an_alert__a_route_names_it__is_reported(new_world: Callable[..., World], pattern: str) -> None:
    world = new_world({"channels": TWO_FILES, "routes": [{"events": [pattern], "channels": ["backup"]}]})

    world.emit(world.notice(event="JOB_TRIGGERED", alerts=False, is_news=False, severity=Severity.INFO))

    assert len(world.sent("backup")) == 1
    assert world.sent() == []


def test_definition__names_a_channel_and_mutes_an_event__both_hold(new_world: Callable[..., World]) -> None:
    audience = Audience(channels=("backup", "nowhere"), mute=("SLA_*",), owner="team-a")
    world = new_world(None, orders=audience)

    world.emit(world.notice())
    world.emit(world.notice(event="SLA_WARNING"))

    assert len(world.sent()) == len(world.sent("backup")) == 1
    muted, result = world.alerts.ls().alerts
    assert (muted.status, muted.muted_by) == (AlertStatus.MUTED, "definition:SLA_*")
    assert result.owner == "team-a"


def test_mute__until_a_time__silences_what_fits_and_is_audited(world: World) -> None:
    until_ms = int(world.clock.seconds() * 1000) + 3_600_000
    mute = world.mutes.add(until_ms=until_ms, by="ada", reason="migration", pipeline="ord*", event="JOB_*")

    world.emit(world.notice())
    world.emit(world.notice(pipeline_id="billing"))

    assert world.titles() == ["billing daily 2026-03-03: the job failed"]
    assert [alert.muted_by for alert in world.alerts.ls("orders").alerts] == [mute.mute_id]
    world.clock.advance(3601)
    world.emit(world.notice())
    assert len(world.sent()) == 2, "it is sent once the mute is over, not taken for the muted one"
    assert [(change.actor, change.action, change.reason) for change in world.audited] == [
        ("ada", "alert.mute", "migration")
    ]


def test_mute__removed__is_over_and_audited(world: World) -> None:
    mute = world.mutes.add(until_ms=int(world.clock.seconds() * 1000) + 1000, by="ada", reason="noise")
    assert world.mutes.ls() == (mute,)

    world.mutes.remove(mute.mute_id, by="bob")

    world.emit(world.notice())
    assert len(world.sent()) == 1
    assert world.audited[-1].action == "alert.unmute"
    with pytest.raises(NotFoundError):
        world.mutes.remove(mute.mute_id, by="bob")


@pytest.mark.parametrize(
    ("hours", "by", "reason"), [(-1, "ada", "x"), (0, "ada", "x"), (24 * 91, "ada", "x"), (1, " ", "x"), (1, "ada", "")]
)
def test_mute__past_endless_or_unexplained__is_refused(world: World, hours: int, by: str, reason: str) -> None:
    until_ms = int(world.clock.seconds() * 1000) + hours * 3_600_000

    with pytest.raises(InvalidPayloadError, match="mute"):
        world.mutes.add(until_ms=until_ms, by=by, reason=reason)
    assert world.mutes.ls() == ()


def test_mute__only_up_to_a_severity__lets_worse_through(world: World) -> None:
    until_ms = int(world.clock.seconds() * 1000) + 3_600_000
    world.mutes.add(until_ms=until_ms, by="ada", reason="noise", severity_max=Severity.WARNING)

    world.emit(world.notice(event="LATE_DATA_ARRIVAL", severity=Severity.WARNING, route=DefaultRoute.NOTIFY))
    world.emit(world.notice())

    assert [each["event"] for each in world.sent()] == ["JOB_FAILED"]


def test_many_of_a_kind__within_a_window__become_one_message(new_world: Callable[..., World]) -> None:
    world = new_world({"channels": TWO_FILES, "defaults": {"page": ["ops"]}, "group_after": 3, "group_seconds": 120})
    warning = {"severity": Severity.WARNING, "route": DefaultRoute.PAGE}
    for number in range(40):
        world.emit(world.notice(pipeline_id=f"p{number:02d}", **warning))
    assert len(world.sent()) == 3

    assert world.notifier.tick() == 0, "the window is still open"
    world.clock.advance(121)
    assert world.notifier.tick() == 1
    world.run()

    digest = world.sent()[3]
    assert digest["title"] == "37 more JOB_FAILED in 120 s"
    assert digest["lines"][0].startswith("p03 daily 2026-03-03, p04 daily")
    assert digest["lines"][0].endswith("and 17 more")
    assert len(world.alerts.ls(limit=100).alerts) == 41, "each is kept, and the one that stands for the rest"
    assert world.notifier.tick() == 0
    world.emit(world.notice(pipeline_id="p99", **warning))
    assert len(world.sent()) == 5, "the next window begins anew"


def test_many_criticals_of_a_kind__each_pipelines_first__is_sent_at_once_under_its_own_name(
    new_world: Callable[..., World],
) -> None:
    world = new_world({"channels": TWO_FILES, "defaults": {"page": ["ops"]}, "group_after": 2, "group_seconds": 120})
    for number in range(8):
        world.emit(world.notice(pipeline_id=f"p{number}"))
    assert [each["pipeline_id"] for each in world.sent()] == [f"p{number}" for number in range(8)]

    for day in range(1, 5):
        world.emit(world.notice(pipeline_id="p0", date=f"2026-02-0{day}", dedup_key=f"JOB_FAILED#p0#{day}"))
    world.clock.advance(121)
    world.notifier.tick()
    world.run()

    assert [(each["pipeline_id"], each["title"]) for each in world.sent()][-1] == ("p0", "3 more JOB_FAILED in 120 s")


def test_good_news__resolves_what_it_ends__and_says_so_where_it_was_reported(world: World) -> None:
    world.emit(world.notice())
    world.clock.advance(60)
    done = world.notice(
        event="PIPELINE_COMPLETED",
        alerts=False,
        severity=Severity.INFO,
        resolves=("JOB_FAILED#orders#daily#2026-03-03", "RUN_STUCK#orders#daily#2026-03-03"),
    )

    world.emit(done)
    world.notifier.take(done)
    world.run()

    assert world.titles() == [
        "orders daily 2026-03-03: the job failed",
        "resolved: orders daily 2026-03-03: the job failed",
    ]
    alert = world.alerts.ls().alerts[0]
    assert (alert.status, alert.resolved_by) == (AlertStatus.RESOLVED, "PIPELINE_COMPLETED")
    world.emit(world.notice())
    assert len(world.sent()) == 3, "it is a new trouble, not the old one again"


def test_trouble__comes_after_what_ended_it__is_over_and_no_one_is_called_for_it(world: World) -> None:
    late, lost = world.notice(), world.notice(dedup_key="JOB_FAILED#lost")
    # The process that took the second one died before it checked whether that is over.
    assert world.notifier.take(lost) is NoticeOutcome.SEND
    world.run()
    world.ended_by = {late.dedup_key: "PIPELINE_COMPLETED", lost.dedup_key: "PIPELINE_COMPLETED"}

    assert world.notifier.take(late) is NoticeOutcome.SEND
    assert world.notifier.take(lost) is NoticeOutcome.PASS
    world.run()

    alerts = world.alerts.ls().alerts
    assert [(each.status, each.resolved_by) for each in alerts] == [(AlertStatus.RESOLVED, "PIPELINE_COMPLETED")] * 2
    assert [each["action"] for each in world.sent()] == ["trigger", "resolve"]


def test_good_news__older_than_the_trouble__resolves_nothing(world: World) -> None:
    done = world.notice(event="PIPELINE_COMPLETED", alerts=False, resolves=("JOB_FAILED#orders#daily#2026-03-03",))
    world.clock.advance(60)
    world.emit(world.notice())

    world.emit(done)

    assert world.alerts.ls().alerts[0].status is AlertStatus.OPEN


def test_escalation__no_one_acknowledges__goes_to_the_next_and_then_to_all(new_world: Callable[..., World]) -> None:
    world = new_world(escalating())
    world.emit(world.notice())
    assert world.notifier.tick() == 0

    world.clock.advance(600)
    assert world.notifier.tick() == 1
    assert world.notifier.tick() == 0
    world.run()
    assert (len(world.sent()), len(world.sent("backup"))) == (1, 1)
    assert "unacknowledged since" in world.sent("backup")[0]["lines"][-1]

    world.clock.advance(600)
    assert world.notifier.tick() == 1
    world.run()
    assert (len(world.sent()), len(world.sent("backup"))) == (2, 2)
    assert len({each["message_id"] for each in world.sent("backup")}) == 2, "a reminder is not the same message"
    world.clock.advance(86_400)
    assert world.notifier.tick() == 0


def test_escalation__acknowledged__ends(new_world: Callable[..., World]) -> None:
    world = new_world(escalating())
    world.emit(world.notice())
    alert_id = world.alerts.ls().alerts[0].alert_id

    acknowledged = world.alerts.acknowledge(alert_id, by="ada", note="on it")
    again = world.alerts.acknowledge(alert_id, by="bob")
    world.run()
    world.clock.advance(3600)

    assert world.notifier.tick() == 0
    assert (acknowledged.status, again.acknowledged_by) == (AlertStatus.ACKNOWLEDGED, "ada")
    assert world.sent("backup") == []
    assert world.titles()[1:] == ["acknowledged by ada: orders daily 2026-03-03: the job failed"]
    assert [(change.actor, change.action) for change in world.audited] == [("ada", "alert.acknowledge")]
    assert world.store.get(CONTROL, escalation_key(alert_id)) is None


def test_acknowledge__no_one_or_no_alert__is_refused(world: World) -> None:
    world.emit(world.notice())
    with pytest.raises(InvalidPayloadError):
        world.alerts.acknowledge(world.alerts.ls().alerts[0].alert_id, by=" ")
    with pytest.raises(NotFoundError):
        world.alerts.acknowledge(f"alert_{world.ids.ulid()}", by="ada")


def test_escalation__everything_stood_still__the_last_in_line_receives_at_once(new_world: Callable[..., World]) -> None:
    world = new_world(escalating())
    world.emit(world.notice())

    world.clock.advance(7200)
    assert world.notifier.tick() == 1
    world.run()

    assert (len(world.sent()), len(world.sent("backup"))) == (2, 1)
    assert world.notifier.tick() == 0


def test_escalation__not_critical__never_happens(new_world: Callable[..., World]) -> None:
    world = new_world(escalating())
    world.emit(world.notice(severity=Severity.WARNING))

    world.clock.advance(7200)
    assert world.notifier.tick() == 0


def test_tick__one_row_is_broken__the_others_are_reported_and_the_error_is_raised(
    new_world: Callable[..., World],
) -> None:
    # bug 65: what fails in a pass over many is raised, and keeps none of the others.
    world = new_world(escalating())
    world.emit(world.notice())
    broken = {"PK": "ESCALATION#alert_0", "SK": "STATE", "due_pk": ESCALATIONS_DUE, "due_at_ms": 1, "alert_id": "x"}
    world.store.transact([Put(CONTROL, broken)])
    world.clock.advance(600)

    with pytest.raises(TransientError, match=r"1 of 2 due alerts were not sent: ESCALATION#alert_0"):
        world.notifier.tick()
    world.run()

    assert len(world.sent("backup")) == 1
