"""Crashes: kill -9 of the server again and again under mixed writes; every acknowledged write is there at the end."""

from __future__ import annotations

import itertools
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx

from tests.acceptance.program import Server
from tests.ports import free_port
from tests.soak.figures import Figure

DATASET: Final = "urn:dp:orders:created:v1"
# From the ready line to the kill. Long enough that writers get through, short enough that most kills hit one.
ALIVE_SECONDS: Final = (0.05, 1.2)
EARLIEST_EVENT: Final = f"evt_{'0' * 26}"
PIPELINE: Final = {
    "id": "silver",
    "schedules": [{"cron": "0 6 * * *"}],
    "trigger": {"type": "http", "config": {"url": "https://jobs.example.org/silver"}},
}
MACHINE: Final = {"StartAt": "Done", "States": {"Done": {"Type": "Pass", "End": True}}}


Write = Callable[[httpx.Client, int], httpx.Response]


class Writer:
    """Sends numbered writes of one kind and records which were acknowledged."""

    def __init__(
        self, name: str, write: Callable[[httpx.Client, int], httpx.Response], *, is_latest_only: bool
    ) -> None:
        self.name = name
        # Later writes replace earlier ones: the last acknowledged one, or a later one, must be there.
        self.is_latest_only = is_latest_only
        self.acknowledged: list[int] = []
        self.refused: list[str] = []
        self._write = write
        self._numbers = itertools.count(1)

    def run(self, url: str, is_over: threading.Event) -> None:
        """Write until it is over. A broken connection means an unknown outcome: that number is not counted."""
        with httpx.Client(base_url=f"{url}/api/v1", timeout=10.0) as client:
            while not is_over.is_set():
                try:
                    self._once(client)
                except httpx.TransportError:
                    time.sleep(0.02)

    def _once(self, client: httpx.Client) -> None:
        number = next(self._numbers)
        answer = self._write(client, number)
        if answer.is_success:
            self.acknowledged.append(number)
        elif answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            self.refused.append(f"{answer.status_code} {answer.text[:200]}")
        else:
            time.sleep(0.05)


def _signal(client: httpx.Client, number: int) -> httpx.Response:
    body = {
        "state": "OK", "score": 1.0, "slo_threshold": 0.9, "window_type": "TUMBLING_5MIN",
        "window_start": _moment(number - 1), "window_end": _moment(number),
        "metrics": {"evidence_count": number, "pass_count": number, "fail_count": 0},
    }  # fmt: skip
    return client.put(f"/datasets/{DATASET}/signals/FRESHNESS", json=body)


def _sensor(client: httpx.Client, number: int) -> httpx.Response:
    return client.post("/pipelines/silver/sensors/orders", json={"data": {"count": number}, "new": True})


def _incident(client: httpx.Client, number: int) -> httpx.Response:
    body = {"dataset_urn": DATASET, "signal_type": "CONTRACT", "failure_signatures": [f"MISSING_FIELD:f{number}"]}
    return client.post("/incidents", json=body)


def _execution(client: httpx.Client, number: int) -> httpx.Response:
    return client.post("/machines/done/executions", json={"name": f"e{number}", "input": {"number": number}})


def _event(client: httpx.Client, number: int) -> httpx.Response:
    return client.post("/events", json={"type": "soak.tick", "source": "/soak", "id": f"tick-{number}"})


def _pause(client: httpx.Client, number: int) -> httpx.Response:
    verb = "pause" if number % 2 else "resume"
    return client.post(f"/pipelines/silver/{verb}", json={"reason": f"number {number}"})


def writers() -> list[Writer]:
    """Return one writer of each kind."""
    return [
        Writer("signals", _signal, is_latest_only=True),
        Writer("sensors", _sensor, is_latest_only=True),
        Writer("incidents", _incident, is_latest_only=False),
        Writer("executions", _execution, is_latest_only=False),
        Writer("events", _event, is_latest_only=False),
        Writer("audited actions", _pause, is_latest_only=False),
    ]


def run(folder: Path, kills: int, *, seed: int = 20261118) -> list[Figure]:
    """Kill the server `kills` times, then check every acknowledged write, the audit log and the file."""
    chance = random.Random(seed)
    port = free_port()
    arguments = ("--home", str(folder / "home"), "--http", f"127.0.0.1:{port}")
    load, is_over = writers(), threading.Event()
    threads = [
        threading.Thread(target=writer.run, args=(f"http://127.0.0.1:{port}", is_over), name=writer.name)
        for writer in load
    ]
    killed = 0
    while killed < kills:
        with Server(folder / "server", *arguments) as server:
            if not killed:
                prepare(server.url)
                for thread in threads:
                    thread.start()
            time.sleep(chance.uniform(*ALIVE_SECONDS))
            server.signal(signal.SIGKILL)
            server.exit_code()
            killed += 1
    is_over.set()
    for thread in threads:
        thread.join()
    with Server(folder / "server", *arguments) as server:
        lost, entries = _checked(server.url, load)
    integrity = _integrity(folder / "home" / "headgate.db")
    count = sum(len(writer.acknowledged) for writer in load)
    refused = [text for writer in load for text in writer.refused]
    return [
        Figure("kill -9 of the server under mixed writes", f"{killed:,}", killed >= kills),
        Figure(
            "writes acknowledged in between",
            f"{count:,} ({', '.join(f'{len(writer.acknowledged):,} {writer.name}' for writer in load)})",
            all(writer.acknowledged for writer in load),
        ),
        Figure("acknowledged writes lost", f"{len(lost):,} {lost[:3] if lost else ''}".strip(), not lost),
        Figure(
            "writes refused with another status than 503", f"{len(refused)} {refused[:1] or ''}".strip(), not refused
        ),
        Figure("audit entries verified after the last kill", f"{entries:,}", entries > 0),
        Figure("SQLite integrity check", integrity, integrity == "ok"),
    ]


def prepare(url: str) -> None:
    """Define what the writers write to."""
    with httpx.Client(base_url=f"{url}/api/v1", timeout=30.0) as client:
        for answer in (
            client.post("/datasets", json={"dataset_urn": DATASET, "owner_team": "team-a"}),
            client.put("/pipelines/silver", json=PIPELINE),
            client.put("/machines/done", json=MACHINE),
        ):
            answer.raise_for_status()


def _checked(url: str, writers: list[Writer]) -> tuple[list[str], int]:
    """Return the acknowledged writes that are missing, and the number of audit entries, which must verify."""
    by_name = {writer.name: writer for writer in writers}
    with httpx.Client(base_url=f"{url}/api/v1", timeout=60.0) as client:
        present = {
            "signals": {int(_json(client, f"/datasets/{DATASET}/signals/FRESHNESS")["metrics"]["evidence_count"])},
            "sensors": {int(_json(client, "/pipelines/silver/sensors/orders")["data"]["count"])},
            "incidents": _all_incidents(client),
            "executions": _all_executions(client, by_name["executions"]),
            "events": _all_events(client),
            "audited actions": _all_actions(client),
        }
        report = _json(client, "/audit/verify")
    lost = [
        f"{writer.name} {number}"
        for writer in writers
        for number in (writer.acknowledged[-1:] if writer.is_latest_only else writer.acknowledged)
        if not (max(present[writer.name]) >= number if writer.is_latest_only else number in present[writer.name])
    ]
    if report["problems"]:
        lost.append(f"audit: {report['problems'][0]}")
    return lost, int(report["entries"])


def _all_incidents(client: httpx.Client) -> set[int]:
    found = _pages(client, "/incidents", {"dataset_urn": DATASET, "page_size": "100"})
    return {int(name.rpartition("f")[2]) for each in found for name in each["failure_signatures"]}


def _all_executions(client: httpx.Client, writer: Writer) -> set[int]:
    found = set()
    for number in writer.acknowledged:
        answer = client.get(f"/machine-executions/done:e{number}")
        if answer.is_success:
            found.add(number)
    return found


def _all_events(client: httpx.Client) -> set[int]:
    found: set[int] = set()
    # Before every event of this run: ids begin with their time.
    after = EARLIEST_EVENT
    while True:
        page = _json(client, "/events", {"type": "soak.tick", "after": after, "limit": "100"})
        if not page["events"]:
            return found
        found |= {int(each["event"]["id"].removeprefix("tick-")) for each in page["events"]}
        after = page["next_after"]


def _all_actions(client: httpx.Client) -> set[int]:
    found = _pages(client, "/audit", {"entity": "pipeline/silver", "page_size": "100"})
    return {int(each["reason"].removeprefix("number ")) for each in found if each["reason"].startswith("number ")}


def _pages(client: httpx.Client, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    token: str | None = None
    while True:
        page = _json(client, path, {**query, **({} if token is None else {"page_token": token})})
        found += page["items"]
        token = page.get("next_page_token")
        if not token:
            return found


def _json(client: httpx.Client, path: str, query: dict[str, str] | None = None) -> dict[str, Any]:
    answer = client.get(path, params=query)
    answer.raise_for_status()
    body: dict[str, Any] = answer.json()
    return body


def _integrity(database: Path) -> str:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return str(connection.execute("PRAGMA integrity_check").fetchone()[0])


def _moment(number: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1_768_471_200 + number))
