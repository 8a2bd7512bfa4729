"""What health says of the worker in the same process."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.bootstrap.store import OpenedStore
from headgate.clock import SystemClock
from headgate.durable.replay.turn_timeout import Overdue
from headgate.durable.worker.status import WorkerStatus
from headgate.serve.probes import Check, Phase, Report, ServerProbes, Status

WELL = WorkerStatus(
    has_failed=False,
    has_lease=True,
    polled_seconds=0.21,
    turned_seconds=None,
    queued=3,
    running=2,
    hung=0,
    overdue=[],
)


def health(opened: OpenedStore, status: WorkerStatus | None, home: Path) -> ServerProbes:
    made = ServerProbes(
        version="1", store=opened.store, sweepers=[], clock=SystemClock(), disk=home, worker_status=lambda: status
    )
    made.phase = Phase.SERVING
    return made


def worker_check(report: Report) -> Check:
    (found,) = [check for check in report.checks if check.name == "worker"]
    return found


def test_worker__none_here__is_not_mentioned(opened: OpenedStore, tmp_path: Path) -> None:
    report = health(opened, None, tmp_path).summary()

    assert [check.name for check in report.checks] == ["phase"]


@pytest.mark.parametrize("depth", ["summary", "probe"])
def test_worker__well__says_when_it_last_did_what(opened: OpenedStore, tmp_path: Path, depth: str) -> None:
    report = getattr(health(opened, WELL, tmp_path), depth)()

    assert report.status is Status.OK
    assert worker_check(report) == Check(
        "worker", Status.OK, "last poll 0.2 s ago, last turn not yet; 3 activities queued, 2 running"
    )


@pytest.mark.parametrize(
    ("ill", "fact"),
    [
        ({"overdue": [Overdue("o-7", 12.4, "orders.py:7 in fulfil")]}, "execution o-7 has been in one turn for 12 s"),
        ({"has_lease": False}, "its lease has expired"),
        ({"has_failed": True, "has_lease": False}, "it has stopped"),
        ({"hung": 2}, "2 activities were abandoned"),
    ],
)
def test_worker__ill__is_degraded_and_still_serves(
    opened: OpenedStore, tmp_path: Path, ill: dict[str, object], fact: str
) -> None:
    made = health(opened, replace(WELL, **ill), tmp_path)

    assert made.summary().status is Status.DEGRADED
    assert worker_check(made.summary()).fact.startswith(fact)
    assert made.ready().status is Status.OK
