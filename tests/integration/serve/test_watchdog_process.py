"""The process of the watchdog: it outlives its server, and ends with its database."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headgate.bootstrap.store import database_path, open_store
from headgate.clock import SystemClock
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.watchdog.followups import Followup, FollowupKind, Followups
from headgate.pipelines.watchdog.heartbeats import HeartbeatSource, heartbeat_key
from headgate.pipelines.watchdog.watchdog import TickReport
from headgate.serve.watchdog_lock import has_watchdog
from headgate.serve.watchdog_process import DEGRADED_SECONDS, WatchdogChild, pause_seconds, run
from headgate.settings import Settings
from headgate.store.catalogue.tables import PIPELINES
from tests.acceptance.program import until

SLOT = Slot("orders", "daily", "2026-03-03")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.load({}, None, {"home": str(tmp_path / "home")})


@pytest.fixture
def signals() -> Iterator[None]:
    """The signals that a process of its own would keep."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def delete(database: Path) -> None:
    shutil.rmtree(database.parent)


def replace(database: Path) -> None:
    """Put another in its place, as a program that makes the home anew does."""
    copy = database.with_name("copy")
    shutil.copyfile(database, copy)
    copy.replace(database)


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("lose", [delete, replace])
def test_run__database_lost_between_two_ticks__ends_and_says_so(
    settings: Settings, lose: Callable[[Path], None]
) -> None:
    clock, database = SystemClock(), database_path(settings)
    opened = open_store(settings, clock)
    # So that it does not rest for minutes between the ticks.
    due_at_ms = round(1000 * (clock.seconds() + 2))
    watch = Followup(**SLOT._asdict(), kind=FollowupKind.LIVENESS, due_at_ms=due_at_ms, since_ms=due_at_ms)
    Followups(opened.store).record_all([watch])

    def lose_after_a_tick() -> None:
        with closing(opened.store):
            beat = heartbeat_key(HeartbeatSource.WATCHDOG)
            until(lambda: opened.store.get(PIPELINES, beat) is not None, "the heartbeat, which is the last check")
        lose(database)

    losing = threading.Thread(target=lose_after_a_tick)
    with capture_logs() as logs:
        is_whole = run(settings, clock=clock, environ={}, announce=lambda _: losing.start())
    losing.join()

    assert is_whole
    assert [each["action"] for each in logs] == ["watchdog.end"]
    assert database.parent.exists() == (lose is replace), "it makes no home anew"


def test_child__database_deleted__is_not_started(settings: Settings) -> None:
    with closing(open_store(settings, SystemClock()).store):
        child = WatchdogChild(settings)
    delete(database_path(settings))
    try:
        with capture_logs() as logs:
            child.start()
            until(lambda: bool(logs), "its warning", 5)
            child.stop()
            until(lambda: "headgate-watchdog-child" not in map(attrgetter("name"), threading.enumerate()), "its end", 5)
    finally:
        child.stop()

    assert [each["action"] for each in logs] == ["watchdog.end"]
    assert not settings.home.exists(), "it makes no home anew"


def test_child__cannot_be_started_for_a_while__is_started_later(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with closing(open_store(settings, SystemClock()).store):
        child = WatchdogChild(settings)
    python = sys.executable
    # As when the machine has no memory or process left.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    try:
        with capture_logs() as logs:
            child.start()
            until(lambda: bool(logs), "its warning", 5)
            monkeypatch.setattr(sys, "executable", python)
            until(lambda: has_watchdog(settings.home), "the watchdog", 30)
    finally:
        child.stop()

    assert "watchdog.start" in [each["action"] for each in logs]


@pytest.mark.parametrize(
    ("failed", "until_next_seconds", "rests_seconds"),
    [
        # What could not be looked at is still due.
        ({"stuck-runs": "StoreBusyError"}, 1.0, DEGRADED_SECONDS),
        ({"stuck-runs": "StoreBusyError"}, 300.0, 300.0),
        ({}, 1.0, 1.0),
    ],
)
def test_pause_seconds__after_a_tick__does_not_try_what_failed_every_second(
    failed: dict[str, str], until_next_seconds: float, rests_seconds: float
) -> None:
    report = TickReport(at=datetime(2026, 3, 3, tzinfo=UTC), findings={}, failed=failed)

    assert pause_seconds(report, until_next_seconds) == rests_seconds
