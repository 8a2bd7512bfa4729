"""Two and four processes writing to one file: equal shares, and no process waits long."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from bench.measure import Figure
from bench.rows import TABLE, item, open_at
from headgate.clock import SystemClock

SECONDS = 3.0
THREADS = 8
SHARE_MAX = 0.25


def run() -> list[Figure]:
    return [_figure(processes) for processes in (2, 4)]


def _figure(processes: int) -> Figure:
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        open_at(Path(folder), SystemClock()).close()
        command = [sys.executable, "-m", "bench.processes", folder]
        started = [
            subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(processes)
        ]
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outcomes = [json.loads(process.communicate()[0]) for process in started]
    writes = [outcome["writes"] for outcome in outcomes]
    mean = sum(writes) / processes
    off = max(abs(count - mean) / mean for count in writes)
    commits = sum(outcome["commits"] for outcome in outcomes)
    longest = max(outcome["longest_ms"] for outcome in outcomes)
    return Figure(
        f"{processes} processes of {THREADS} threads: farthest from an equal share",
        f"{off:.0%}",
        f"<= {SHARE_MAX:.0%}",
        off <= SHARE_MAX,
        f"{sum(writes)} writes, {commits} commits",
        f"longest wait {longest:.0f} ms; {sum(writes) / SECONDS:,.0f} writes/s in all",
    )


def _write(folder: Path, name: str) -> None:
    store = open_at(folder, SystemClock())
    counts, longest = [0] * THREADS, [0.0] * THREADS

    def writer(place: int) -> None:
        while (now := monotonic()) < end_at:
            values = item(int(name) * 10**9 + place * 10**7 + counts[place])
            store.put(TABLE, values)
            longest[place] = max(longest[place], monotonic() - now)
            counts[place] += 1

    print("ready", flush=True)
    sys.stdin.readline()
    end_at = monotonic() + SECONDS
    threads = [threading.Thread(target=writer, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commits = store.stats.commits
    store.close()
    print(json.dumps({"writes": sum(counts), "commits": commits, "longest_ms": max(longest) * 1000}))


if __name__ == "__main__":
    _write(Path(sys.argv[1]), sys.argv[2])
