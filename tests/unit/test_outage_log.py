"""The outage log: one line at the begin and one at the end, and growing pauses."""

from __future__ import annotations

import structlog
from structlog.testing import capture_logs

from headgate.errors import StoreBusyError, StoreFullError
from headgate.outage_log import PAUSE_SECONDS_MAX, OutageLog


def test_failed__many_times__logs_once_and_pauses_longer_up_to_the_limit() -> None:
    outage = OutageLog(structlog.get_logger(), "poll failed", pause_seconds=0.5)

    with capture_logs() as logs:
        pauses = [outage.failed(StoreBusyError("busy")) for _ in range(40)]
        outage.succeeded()
        outage.succeeded()

    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[4:]) == {PAUSE_SECONDS_MAX}
    assert [each["event"] for each in logs] == ["poll failed; retrying", "poll failed: recovered"]
    assert logs[1]["failures"] == 40


def test_failed__a_condition_of_the_store__is_left_to_the_log_of_the_store() -> None:
    outage = OutageLog(structlog.get_logger(), "poll failed", pause_seconds=0.5)

    with capture_logs() as logs:
        outage.failed(StoreFullError("full"))
        outage.succeeded()

    assert logs == []
