"""Memory: the server's resident memory at the start of a mixed load, during it, and after it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.acceptance.program import Server
from tests.soak.crashes import prepare, writers
from tests.soak.figures import Figure

# Until caches are filled and every code path has run once.
WARM_SECONDS = 60.0
GROWTH_MAX = 1.5
SAMPLES = 4


def run(folder: Path, seconds: float) -> list[Figure]:
    """Write for a time without a pause, and compare the memory after a warm-up with that at the end."""
    with Server(folder / "server", "--home", str(folder / "home")) as server:
        fresh = _resident_mb(server.process.pid)
        prepare(server.url)
        is_over, load = threading.Event(), writers()
        threads = [threading.Thread(target=writer.run, args=(server.url, is_over), name=writer.name) for writer in load]
        for thread in threads:
            thread.start()
        time.sleep(min(WARM_SECONDS, seconds / 5))
        warm = _resident_mb(server.process.pid)
        rest = seconds - min(WARM_SECONDS, seconds / 5)
        samples = []
        for _ in range(SAMPLES):
            time.sleep(rest / SAMPLES)
            samples.append(_resident_mb(server.process.pid))
        is_over.set()
        for thread in threads:
            thread.join()
    count = sum(len(writer.acknowledged) for writer in load)
    refused = [text for writer in load for text in writer.refused]
    during = ", ".join(f"{each:,} MB" for each in samples)
    return [
        Figure("mixed writes without a pause", f"{count:,} in {seconds / 60:,.0f} minutes", count > 0),
        Figure(
            "writes refused with another status than 503", f"{len(refused)} {refused[:1] or ''}".strip(), not refused
        ),
        Figure("memory when ready, and warm", f"{fresh:,} MB, {warm:,} MB", fresh > 0),
        Figure(f"memory after each of {SAMPLES} equal parts of the load", during, samples[-1] <= GROWTH_MAX * warm),
    ]


def _resident_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"process {pid}: no VmRSS")
