"""Distributed Map: after a kill, the next process resumes the map run and repeats no finished iteration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headgate.bootstrap.store import AppService, open_store
from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.fanout.model.states import FanoutStatus
from headgate.settings import Settings
from tests.integration.asl.map_rig import each

ITEMS = 40


def run_process(home: Path, kind: str, fatal: int) -> None:
    """Run the map to its end; or, the first time that so many items were met, to the end of the process."""
    app = App("maps")

    def double(x: int) -> int:
        with (home / "calls").open("a") as calls:
            calls.write(f"{x}\n")
        mark = home / "died"
        # By how many, not which: lanes begin anywhere.
        if not mark.exists() and len((home / "calls").read_text().split()) >= fatal:
            # At one go: another lane may be about to end the process as well.
            fresh = home / f"died-{x}"
            fresh.write_text(str(x))
            fresh.replace(mark)
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * x

    app.activity(double)
    clock = SystemClock()
    opened = open_store(Settings(home=home), clock)
    service = AppService(app, opened, clock)
    fanouts = service.fanouts
    service.start(lease_seconds=1.0)
    try:
        definition = json.dumps(each(kind, MaxConcurrency=4))
        execution_id, _ = service.asl.executions.start_definition("m", definition, list(range(ITEMS)), name="one")
        result = service.client.handle(execution_id).result(60)
        run = fanouts.queries.by_group("m/Each").fanouts[0]
        report = fanouts.reconciler.reconcile(run.run_id)
        (home / "result").write_text(json.dumps([result, run.status, report.is_clean]))
    finally:
        service.stop()
        opened.store.close()


@pytest.mark.parametrize("kind", ["STANDARD", "EXPRESS"])
def test_crash__in_the_middle_of_a_map_run__the_next_process_ends_it(tmp_path: Path, kind: str) -> None:
    program = f"from {__name__} import *; run_process(Path({str(tmp_path)!r}), {kind!r}, 20)"
    command = [sys.executable, "-c", program]

    killed = subprocess.run(command, cwd=Path(__file__).parents[4], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    first = Counter((tmp_path / "calls").read_text().split())
    assert 1 < len(first) < ITEMS

    subprocess.run(command, cwd=Path(__file__).parents[4], check=True, timeout=60)
    result, status, is_clean = json.loads((tmp_path / "result").read_text())
    assert result == [2 * n for n in range(ITEMS)]
    assert status == FanoutStatus.SUCCEEDED
    assert is_clean
    calls = Counter((tmp_path / "calls").read_text().split())
    again = [item for item, count in calls.items() if count > 1]
    # At most what was under way: the iterations of a round in memory, or one for each lane.
    assert (tmp_path / "died").read_text() in again
    assert len(again) <= (ITEMS // 2 if kind == "EXPRESS" else 4)
