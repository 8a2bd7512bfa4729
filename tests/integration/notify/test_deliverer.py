"""Channels that fail: no other channel waits for them, others are notified, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import NotFoundError, TransientError
from headgate.notify.alerts import DELIVER
from headgate.notify.enums import AlertStatus, DeliveryState
from headgate.store.catalogue.tables import PIPELINES, THREAD
from tests.unit.notify.rig import TWO_FILES, LocalService, Reply, Request, World, sent_to

Serve = Callable[[Callable[[Request], Reply | None]], LocalService]
BOTH: dict[str, Any] = {"channels": TWO_FILES, "defaults": {"page": ["ops", "backup"]}}


def test_channel__fails__others_are_reported_at_once_and_receive_the_failure(new_world: Callable[..., World]) -> None:
    world = new_world(BOTH)
    world.break_channel("ops")

    world.emit(world.notice())
    assert world.titles("backup") == ["orders daily 2026-03-03: the job failed"]

    world.advance(30)
    failure = world.sent("backup")[1]
    assert failure["event"] == "ALERT_CHANNEL_FAILED"
    assert failure["title"].startswith("alerts do not reach the channel ops: channel ops: ")
    assert failure["lines"][0] == "not delivered: orders daily 2026-03-03: the job failed"


def test_channel__repaired__is_reported_by_a_retry_and_the_failure_is_over(new_world: Callable[..., World]) -> None:
    world = new_world(BOTH)
    world.break_channel("ops")
    world.emit(world.notice())
    world.advance(30)

    world.repair_channel("ops")
    world.advance(600)

    assert world.titles("ops")[0] == "orders daily 2026-03-03: the job failed"
    assert "resolved: alerts do not reach the channel ops" in world.titles("backup")[-1]
    result = next(alert for alert in world.alerts.ls().alerts if alert.event == "JOB_FAILED")
    assert sent_to(result) == ["backup", "ops"]
    assert result.deliveries["ops#trigger"].attempts > 1


def test_channel__the_only_one_of_an_alert_fails__another_reports_it(world: World) -> None:
    world.break_channel("ops")

    world.emit(world.notice())
    world.advance(60)

    assert "orders daily 2026-03-03: the job failed" in world.titles("backup")
    assert any(title.startswith("alerts do not reach the channel ops") for title in world.titles("backup"))


def test_channel__fails_for_good__is_a_dead_letter_that_can_be_redelivered(new_world: Callable[..., World]) -> None:
    world = new_world(BOTH)
    world.break_channel("ops")
    world.emit(world.notice())
    world.advance(4 * 3600)
    alert = next(alert for alert in world.alerts.ls().alerts if alert.event == "JOB_FAILED")
    assert alert.deliveries["ops#trigger"].state is DeliveryState.FAILED
    letters = world.bus.dead_letters("headgate.notify.channel.ops").letters
    assert letters

    world.repair_channel("ops")
    for letter in letters:
        world.bus.redeliver("headgate.notify.channel.ops", letter.event_id)
    world.advance(60)

    assert "orders daily 2026-03-03: the job failed" in world.titles("ops")


def test_channel__fails_for_many_alerts__others_receive_it_once(new_world: Callable[..., World]) -> None:
    world = new_world({**BOTH, "group_after": 0})
    world.break_channel("ops")
    for number in range(6):
        world.emit(world.notice(pipeline_id=f"p{number}"))
    world.advance(120)

    failures = [each for each in world.sent("backup") if each["event"] == "ALERT_CHANNEL_FAILED"]
    assert len(failures) == 1
    assert world.deliverer.failing() == ("ops",)
    assert len(world.sent("backup")) == 7


def test_channel__all_fail__everything_waits_and_is_reported_later(new_world: Callable[..., World]) -> None:
    world = new_world(BOTH)
    world.break_channel("ops")
    world.break_channel("backup")
    world.emit(world.notice())
    world.advance(60)

    world.repair_channel("ops")
    world.repair_channel("backup")
    world.advance(2 * 3600)

    for channel in ("ops", "backup"):
        assert "orders daily 2026-03-03: the job failed" in world.titles(channel)


def test_order__resolved_before_it_was_reported__only_the_end_is(new_world: Callable[..., World]) -> None:
    world = new_world(BOTH)
    world.break_channel("ops")
    world.emit(world.notice())
    world.clock.advance(1)
    done = world.notice(event="PIPELINE_COMPLETED", alerts=False, resolves=("JOB_FAILED#orders#daily#2026-03-03",))
    world.emit(done)

    world.repair_channel("ops")
    world.advance(600)

    assert world.titles("ops") == ["resolved: orders daily 2026-03-03: the job failed"]
    assert world.titles("backup") == [
        "orders daily 2026-03-03: the job failed",
        "resolved: orders daily 2026-03-03: the job failed",
    ]
    alert = next(alert for alert in world.alerts.ls().alerts if alert.event == "JOB_FAILED")
    assert alert.status is AlertStatus.RESOLVED


def test_order__delivered_twice__is_reported_once(world: World) -> None:
    world.emit(world.notice())
    order = world.bus.tail(type=DELIVER)[0].event

    world.deliverer.deliver(order)

    assert len(world.sent()) == 1


def with_slack(folder: Path, url: str) -> dict[str, Any]:
    (folder / "token").write_text("xoxb-1234567890-abc")
    slack = {"kind": "slack", "channel": "C024BE91L", "token": f"file:{folder / 'token'}", "api_url": url}
    return {"channels": {"slack": slack, **TWO_FILES}, "defaults": {"page": ["slack"]}}


def test_channel__another_is_beginning_the_thread__waits_and_is_no_failure(
    new_world: Callable[..., World], serve: Serve, tmp_path: Path
) -> None:
    service = serve(lambda _request: (200, {}, {"ok": True, "ts": "1.1"}))
    world = new_world(with_slack(tmp_path, service.url))
    key = THREAD.key(pipeline_id="orders", schedule_id="daily", date="2026-03-03#slack")
    until_ms = int(world.clock.seconds() * 1000) + 60_000
    world.store.put(PIPELINES, {**PIPELINES.key_attributes(key), "owner": "x", "begins_until_ms": until_ms})

    for event in ("JOB_FAILED", "SLA_BREACH", "RUN_STUCK", "SFN_TIMEOUT", "INFRA_FAILURE", "JOB_TIMEOUT"):
        world.emit(world.notice(event=event))
    world.advance(20)
    assert service.received == []
    world.advance(600)

    assert len(service.received) == 6
    assert world.deliverer.failing() == ()
    assert world.sent("backup") == world.sent("ops") == []


def test_channel__wants_fewer_messages__gets_them_later_and_is_no_failure(
    new_world: Callable[..., World], serve: Serve, tmp_path: Path
) -> None:
    replies: list[Reply] = [(429, {"retry-after": "1"}, {})] * 2
    service = serve(lambda _request: replies.pop() if replies else (200, {}, {"ok": True, "ts": "1.1"}))
    world = new_world(with_slack(tmp_path, service.url))

    world.emit(world.notice())
    world.advance(600)

    assert [alert.event for alert in world.alerts.ls().alerts] == ["JOB_FAILED"]
    assert sent_to(world.alerts.ls().alerts[0]) == ["slack"]


def test_channel__revoked_token__another_reports_it_at_once(
    new_world: Callable[..., World], serve: Serve, tmp_path: Path
) -> None:
    service = serve(lambda _request: (200, {}, {"ok": False, "error": "token_revoked"}))
    world = new_world(with_slack(tmp_path, service.url))

    world.emit(world.notice())

    assert "orders daily 2026-03-03: the job failed" in world.titles("ops")
    assert any("token_revoked" in title for title in world.titles("ops"))
    assert world.bus.dead_letters("headgate.notify.channel.slack").letters


def test_send_test__a_channel_that_works_one_that_fails_and_none__says_so(world: World) -> None:
    world.deliverer.send_test("ops")
    assert world.titles() == ["This is a test of the channel ops. Nothing is wrong."]

    world.break_channel("backup")
    with pytest.raises(TransientError, match="channel backup"):
        world.deliverer.send_test("backup")
    with pytest.raises(NotFoundError, match=r"\['backup', 'ops'\]"):
        world.deliverer.send_test("opps")
    assert world.alerts.ls().alerts == []
