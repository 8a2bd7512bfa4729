"""The watchdog alerts by itself: the server is dead, and a webhook receives it once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.program import Server, run, until, watchdogs_of
from tests.unit.notify.rig import LocalService

PIPELINE = """id: nightly
schedules: [{cron: "0 3 * * *"}]
trigger: {type: command, config: {command: ["true"]}}
"""
# Short enough for a test; the server writes a heartbeat every second.
SETTINGS = """
[pipelines]
watchdog_tick_seconds = 1
watchdog_silent_seconds = 4
[forward]
plain_http = true
private_networks = ["127.0.0.0/8"]
"""
NOTIFY = """
[channels.ops]
kind = "webhook"
url = "{url}/alerts"
secret = "file:{secret}"
"""


@pytest.fixture
def receiver() -> Iterator[LocalService]:
    service = LocalService(lambda _request: (200, {}, {}))
    yield service
    service.stop()


def _received(receiver: LocalService) -> list[tuple[str, str]]:
    data: list[dict[str, Any]] = [request.json["data"] for request in receiver.received]
    return [(each["action"], each["event"]) for each in data]


def test_server_killed__stays_dead__a_webhook_receives_it_once_and_the_recovery_after_the_restart(
    tmp_path: Path, receiver: LocalService
) -> None:
    home, pipelines, secret = tmp_path / "home", tmp_path / "pipelines", tmp_path / "secret"
    home.mkdir()
    pipelines.mkdir()
    (pipelines / "nightly.yaml").write_text(PIPELINE)
    secret.write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "headgate.toml").write_text(SETTINGS)
    (home / "notify.toml").write_text(NOTIFY.format(url=receiver.url, secret=secret))
    options = ("--home", str(home), "--pipelines", str(pipelines))
    try:
        with Server(tmp_path, *options) as server:
            until(lambda: "watchdog" in _checks(server) and "heartbeat" in _checks(server)["watchdog"], "a heartbeat")
            assert _checks(server)["watchdog"].startswith("ok last heartbeat"), _checks(server)
            assert 'headgate_heartbeat_age_seconds{process="watchdog"}' in httpx.get(f"{server.url}/metrics").text
            doctor = run("doctor", "--home", home, folder=tmp_path)
            assert "watchdog" in doctor.stdout, doctor.stdout
            server.process.kill()
            server.process.wait()
            server.home = tmp_path / "none"  # So that the end of the block leaves the watchdog alone.

        until(lambda: ("trigger", "SERVER_SILENT") in _received(receiver), "the alert of the silent server")
        message = receiver.received[-1].json["data"]
        assert "silent since" in message["title"]
        assert "headgate up" in message["hint"]

        with Server(tmp_path, *options) as server:
            until(lambda: ("resolve", "SERVER_SILENT") in _received(receiver), "its resolution")
            assert _received(receiver) == [("trigger", "SERVER_SILENT"), ("resolve", "SERVER_SILENT")]
            (alert,) = server.get("/alerts")["alerts"]
            assert (alert["event"], alert["status"]) == ("SERVER_SILENT", "RESOLVED")
    finally:
        for pid in watchdogs_of(home):
            os.kill(pid, signal.SIGKILL)


def _checks(server: Server) -> dict[str, str]:
    report = httpx.get(f"{server.url}/health/deep", timeout=20.0).json()
    return {each["name"]: f"{each['status']} {each['fact']}" for each in report["checks"]}
