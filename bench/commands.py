"""Command jobs: the start of a process beside a bare `subprocess.Popen`, and what 500 running commands cost."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import Figure
from headgate.clock import SystemClock
from headgate.triggers.contract import Job, TriggerOrder
from headgate.triggers.local.command import CommandConfig, CommandKind
from headgate.triggers.local.command_ends import CommandEnds
from headgate.triggers.local.command_records import CommandRecord

START_MS_MAX = 30
CORE_PERCENT_MAX = 5
STARTS = 40
RUNNING = 500
WATCHED_SECONDS = 15.0


def run() -> list[Figure]:
    with TemporaryDirectory() as name:
        folder = Path(name) / "commands"
        kind = CommandKind(SystemClock(), folder, {"PATH": os.defpath})
        return [_starts(kind), *_running(kind, folder)]


def _starts(kind: CommandKind) -> Figure:
    ours, theirs = [], []
    kind.start(_job("run_warm", "true"))
    for number in range(STARTS):
        began = time.perf_counter()
        subprocess.Popen(["true"], start_new_session=True).wait()
        theirs.append(1000 * (time.perf_counter() - began))
        # By the wall clock: the supervisor takes the time at which the process becomes the program.
        began_ms = 1000 * time.time()
        started = kind.start(_job(f"run_{number}", "true"))
        assert started.started_at_ms is not None
        ours.append(max(0.0, 1000 * time.time() - began_ms))
    ours_ms, theirs_ms = statistics.median(ours), statistics.median(theirs)
    return Figure(
        "command: trigger to recorded start of the process, p50",
        f"{ours_ms:.1f} ms",
        f"<= {START_MS_MAX} ms",
        ours_ms <= START_MS_MAX,
        notes=f"{ours_ms / theirs_ms:.1f} times a bare Popen that ends ({theirs_ms:.1f} ms); one synced record",
    )


def _running(kind: CommandKind, folder: Path) -> list[Figure]:
    jobs = [_job(f"run_long_{number}", "sleep 600") for number in range(RUNNING)]
    try:
        for job in jobs:
            kind.start(job)
        begun = CommandRecord(folder, jobs[0].key).begun()
        assert begun is not None
        private_kb = _private_kb(begun.supervisor)
        ends = CommandEnds(folder, SystemClock(), lambda _key: None)
        cpu, began = time.process_time(), time.monotonic()
        ends.start()
        time.sleep(WATCHED_SECONDS)
        ends.stop()
        percent = 100 * (time.process_time() - cpu) / (time.monotonic() - began)
    finally:
        for job in jobs:
            kind.cancel(job, {})
    return [
        Figure(
            f"command: cost of watching {RUNNING} running ones, without the polls of their runs",
            f"{percent:.2f} % of a core",
            f"< {CORE_PERCENT_MAX} %",
            percent < CORE_PERCENT_MAX,
        ),
        Figure("command: private memory of a supervisor", f"{private_kb / 1024:.1f} MB", "< 4 MB", private_kb < 4096),
    ]


def _private_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def _job(run_id: str, command: str) -> Job[CommandConfig]:
    order = TriggerOrder(
        type="command", config={}, pipeline="bench", schedule="daily", date="2026-03-03", run_id=run_id
    )
    return Job(order, CommandConfig(command=command))
