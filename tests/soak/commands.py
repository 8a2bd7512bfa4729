"""Commands: kill -9 of the server again and again while command jobs run; every job runs to its end, once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.program import Server, until
from tests.soak.figures import Figure

ALIVE_SECONDS: Final = (0.5, 4.0)
_DEFINITION: Final = """
id: loads
period: custom
every: 1m
schedules: [{name: data, sensor: {key: landed}}]
trigger:
  type: command
  config:
    command: [sh, -c, 'echo begun >> times-$HEADGATE_RUN_ID; sleep 3; echo ended >> times-$HEADGATE_RUN_ID']
    timeout: 10m
retry: {attempts: 1}
"""


def run(folder: Path, kills: int) -> list[Figure]:
    """Kill the server `kills` times; return what became of the jobs."""
    rng = random.Random(11)
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "loads.yaml").write_text(_DEFINITION)
    dates: list[str] = []
    for number in range(kills):
        with Server(folder, "--pipelines", "pipelines") as server:
            date = f"2026-01-{1 + number // 1440:02d}T{number // 60 % 24:02d}:{number % 60:02d}"
            if _start(server.url, date):
                dates.append(date)
            time.sleep(rng.uniform(*ALIVE_SECONDS))
            server.signal(signal.SIGKILL)
            server.exit_code()
    with Server(folder, "--pipelines", "pipelines") as server:
        until(lambda: not _open(server.url), "the end of every run", 300)
        runs = _runs(server.url)
    completed = {each["date"] for each in runs if each["status"] == "COMPLETED"}
    times = [path.read_text().split() for path in folder.glob("times-*")]
    repeated = sum(each.count("begun") > 1 for each in times)
    return [
        Figure("kill -9 of the server while commands ran", f"{kills:,}", holds=True),
        Figure("commands started", f"{len(times):,} for {len(dates):,} accepted requests", len(times) >= len(dates)),
        Figure("accepted runs that did not complete", f"{len(set(dates) - completed):,}", set(dates) <= completed),
        Figure("commands that ran twice", f"{repeated:,}", repeated == 0),
    ]


def _start(url: str, date: str) -> bool:
    body = {"date": date, "force": True, "reason": "soak"}
    try:
        return (
            httpx.post(f"{url}/api/v1/pipelines/loads/runs", json=body, timeout=10).status_code == httpx.codes.ACCEPTED
        )
    except httpx.TransportError:
        return False


def _runs(url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        query: dict[str, Any] = {"limit": 500} | ({} if cursor is None else {"cursor": cursor})
        page = httpx.get(f"{url}/api/v1/pipelines/loads/runs", params=query, timeout=30).raise_for_status().json()
        found += page["runs"]
        cursor = page.get("cursor")
        if cursor is None:
            return found


def _open(url: str) -> bool:
    return any(each["status"] in ("PENDING", "TRIGGERING", "RUNNING") for each in _runs(url))
