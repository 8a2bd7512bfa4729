"""Processes: kill -9 and SIGSTOP of serving processes under writes and reads that go to any of them.

A writer changes a signal of its own and reads it back over another connection, which may belong to another process. A
read that is older than what was acknowledged, or an acknowledged write that is missing at the end, is a failure.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from contextlib import suppress
from os import kill
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.program import Server, until
from tests.process_state import is_alive
from tests.soak.figures import Figure

PROCESSES: Final = 3
WRITERS: Final = 6
URN: Final = "urn:dp:orders:placed{}:v1"
# From one kill to the next.
BETWEEN_SECONDS: Final = (0.1, 1.2)
# One in so many ends the first process, and with it all; one in so many hangs instead.
FIRST_EVERY: Final = 10
HANG_EVERY: Final = 25


class Writer:
    """Writes one signal through any process, and reads it through any other."""

    def __init__(self, number: int) -> None:
        self.path = f"/api/v1/datasets/{URN.format(number)}/signals/FRESHNESS"
        self.acknowledged = 0
        self.reads = 0
        self.old: list[str] = []
        self.refused: list[str] = []
        self._windows = 0

    def run(self, server: Server, is_over: threading.Event) -> None:
        """Write and read until it is over. A broken connection means an unknown outcome."""
        while not is_over.is_set():
            with suppress(httpx.TransportError), _client(server) as first, _client(server) as second:
                for _ in range(20):
                    if is_over.is_set():
                        return
                    self._write(first)
                    self._read(second)
                    first, second = second, first
            time.sleep(0.01)

    def _write(self, client: httpx.Client) -> None:
        self._windows += 1
        end = f"2026-01-{2 + self._windows // 86_400:02d}T{time.strftime('%H:%M:%S', time.gmtime(self._windows))}Z"
        value = {"state": "OK", "score": 0.9, "window_start": "2026-01-01T00:00:00Z", "window_end": end}
        answer = client.put(self.path, json=value)
        if answer.is_success:
            self.acknowledged = max(self.acknowledged, int(answer.json()["new_version"]))
        elif answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            self.refused.append(f"{answer.status_code} {answer.text[:200]}")

    def _read(self, client: httpx.Client) -> None:
        answer = client.get(self.path)
        if answer.is_success:
            self.reads += 1
            found = int(answer.json()["version"])
            if found < self.acknowledged:
                self.old.append(f"{self.path}: version {found} after {self.acknowledged} was acknowledged")


def run(folder: Path, kills: int) -> list[Figure]:
    """Return what was lost, old or refused after so many kills."""
    draw, writers = random.Random(7), [Writer(number) for number in range(WRITERS)]
    killed = {"serving": 0, "first": 0, "stopped": 0}
    begun = 0
    while sum(killed.values()) < kills:
        with Server(folder, "--processes", str(PROCESSES)) as server:
            begun += 1
            if begun == 1:
                _register(server)
            _kill_some(server, writers, draw, killed, kills)
            pids = _pids(server)
        # With the first process all are gone: the next server opens the same home.
        until(lambda pids=pids: not any(map(is_alive, pids)), "the serving processes end with the first")  # type: ignore[misc]
    with Server(folder) as server, _client(server) as client:
        missing = [each.path for each in writers if client.get(each.path).json()["version"] < each.acknowledged]
    old, refused = ([one for each in writers for one in getattr(each, name)] for name in ("old", "refused"))
    for each in (*missing, *old[:3], *refused[:3]):
        print(each, flush=True)
    acknowledged, reads = sum(each.acknowledged for each in writers), sum(each.reads for each in writers)
    ended = f"{killed['serving']} serving and {killed['first']} first processes; {killed['stopped']} that hung"
    return [
        Figure(f"Processes killed, of {PROCESSES} that serve", ended, sum(killed.values()) >= kills),
        Figure("Writes acknowledged, and missing afterwards", f"{acknowledged:,}, {len(missing)}", not missing),
        Figure("Reads over another connection, and older than acknowledged", f"{reads:,}, {len(old)}", not old),
        Figure("Requests refused, other than 503 while a process ended", str(len(refused)), not refused),
    ]


def _kill_some(server: Server, writers: list[Writer], draw: random.Random, killed: dict[str, int], kills: int) -> None:
    """Kill processes under load, until the first one is killed or there were enough."""
    is_over = threading.Event()
    threads = [threading.Thread(target=each.run, args=(server, is_over)) for each in writers]
    for each in threads:
        each.start()
    try:
        while sum(killed.values()) < kills:
            time.sleep(draw.uniform(*BETWEEN_SECONDS))
            if draw.randrange(FIRST_EVERY) == 0:
                killed["first"] += 1
                server.process.kill()
                server.process.wait()
                return
            is_hang = draw.randrange(HANG_EVERY) == 0
            with suppress(ProcessLookupError):
                kill(draw.choice(_pids(server)), signal.SIGSTOP if is_hang else signal.SIGKILL)
                killed["stopped" if is_hang else "serving"] += 1
    finally:
        is_over.set()
        for each in threads:
            each.join()


def _register(server: Server) -> None:
    with _client(server) as client:
        for number in range(WRITERS):
            body: dict[str, Any] = {"dataset_urn": URN.format(number), "tier": "TIER_2", "owner_team": "orders"}
            client.post("/api/v1/datasets", json={**body, "source": {"type": "KAFKA"}}).raise_for_status()


def _pids(server: Server) -> list[int]:
    """Return the latest process of each number."""
    found = re.findall(r"serving process ready .*pid=(\d+) process=(\d+)", server.stderr)
    return [int(pid) for pid in {number: pid for pid, number in found}.values()]


def _client(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=20.0)
