"""The intake of the installed program: a second process that answers calls which write, and what it must not change."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import Server, until
from tests.process_state import is_gone

PACKAGE: Final = "observability.statestore.v1"
URN: Final = "urn:dp:orders:order_placed:v1"
STARTED: Final = "2026-01-01T00:00:00Z"
# More than the intake has threads for everything else.
BATCHES: Final = 4
# Before a writer that waits for the database lock is refused.
SOON: Final = {"connect-timeout-ms": "6000"}


class Calls:
    """Calls of a server, in JSON."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.http = httpx.Client(base_url=server.url, timeout=20.0)

    def rpc(self, method: str, message: dict[str, Any], **headers: str) -> httpx.Response:
        return self.http.post(f"/{PACKAGE}.{method}", json=message, headers=headers)

    def register(self, urn: str = URN) -> None:
        answer = self.http.post(
            "/api/v1/datasets",
            json={"dataset_urn": urn, "tier": "TIER_2", "owner_team": "orders", "source": {"type": "KAFKA"}},
        )
        assert answer.status_code == 201, answer.text

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        return 0.0 if found is None else float(found.group(1))

    def pid(self) -> int:
        """Return the process of the intake, once calls are handed over to it."""
        until(lambda: self.metric("headgate_intake_up") == 1, "the intake")
        return int(re.findall(r"intake ready.*pid=(\d+)", self._server.stderr)[-1])


@contextmanager
def serving(folder: Path, intake: str, **environ: str) -> Iterator[tuple[Server, Calls]]:
    with Server(folder, HEADGATE_HEALTH_INTAKE=intake, **environ) as server:
        calls = Calls(server)
        with calls.http:
            yield server, calls


def update(number: int, urn: str = URN, state: str = "OK", *, expected_version: int = -1) -> dict[str, Any]:
    """Return what says how a signal stood at the end of a window."""
    window = {"windowStart": STARTED, "windowEnd": _window_end(number), "windowType": "TUMBLING_5MIN"}
    return {
        "datasetUrn": urn,
        "signalType": "FRESHNESS",
        "expectedVersion": str(expected_version),
        "state": {"state": state, "score": 0.9, "sloThreshold": 0.5, **window},
    }


def _window_end(number: int) -> str:
    return f"2026-01-02T03:{number // 60:02d}:{number % 60:02d}Z"


def evidence(number: int, result: str = "PASS") -> dict[str, Any]:
    return {
        "evidenceId": f"evd-01M7GXYEA8ZZZZZZZZZZ{number:06d}",
        "datasetUrn": URN,
        "validation": {"result": result, **({"reasonCodes": ["MISSING:id"]} if result == "FAIL" else {})},
    }


def test_intake__calls_on_both_sides_in_turn__each_sees_what_the_other_has_answered(tmp_path: Path) -> None:
    with serving(tmp_path, "always") as (_server, calls):
        calls.pid()
        unknown = calls.rpc("SignalStateService/UpdateSignalState", update(0))
        assert unknown.json()["errorCode"] == "DATASET_NOT_FOUND", "which the intake now remembers"
        calls.register()
        signal_at = f"/api/v1/datasets/{URN}/signals/FRESHNESS"
        version = 0
        for number in range(1, 60, 2):
            response = calls.rpc(
                "SignalStateService/UpdateSignalState", update(number, expected_version=version)
            ).json()
            read = calls.rpc("SignalStateService/GetSignalState", {"datasetUrn": URN, "signalType": "FRESHNESS"}).json()
            # Of the server, which has the version before it in its memory.
            assert read["version"] == response["newVersion"], (number, response)
            window = {"window_start": STARTED, "window_end": _window_end(number + 1)}
            value = {"state": "OK", "score": 0.9, "expected_version": int(read["version"]), **window}
            version = calls.http.put(signal_at, json=value).json()["new_version"]
            assert version == int(read["version"]) + 1
        assert calls.metric("headgate_intake_calls_total") == 31
        assert calls.metric("signal_state_update_success_total") == 60, "by both"


def test_intake__call_that_fails__is_answered_as_without_one(tmp_path: Path) -> None:
    with serving(tmp_path / "one", "never") as (_, alone), serving(tmp_path / "two", "always") as (_, beside):
        beside.pid()
        received = []
        for calls in (alone, beside):
            calls.register()
            key = calls.http.post("/api/v1/api-keys", json={"principal": "reader", "roles": ["viewer"]}).json()["text"]
            received.append([_shown(answer) for answer in _failing(calls, {"authorization": f"Bearer {key}"})])
        assert received[0] == received[1]
        assert [status for status, _, _ in received[0]] == [400, 400, 403, 401, 504, 404, 400]
        assert beside.metric("headgate_intake_calls_total") == 5, "but for an unknown caller, and one out of time"


def _failing(calls: Calls, reader: dict[str, str]) -> Iterator[httpx.Response]:
    name = {"x-correlation-id": "a-call"}
    signals = "SignalStateService/UpdateSignalState"
    trouble = {"datasetUrn": URN, "signalType": "FRESHNESS", "severity": "WORST", "title": "A field is missing"}
    yield calls.rpc("IncidentService/CreateIncident", trouble, **name)
    yield calls.http.post(
        f"/{PACKAGE}.{signals}", content=b"\xff\xff", headers={"content-type": "application/proto", **name}
    )
    yield calls.rpc(signals, update(1), **reader, **name)
    yield calls.rpc(signals, update(1), authorization="Bearer hg_nobody", **name)
    yield calls.rpc(signals, update(1), **{"connect-timeout-ms": "0"}, **name)
    yield calls.rpc("IncidentService/ResolveIncident", {"incidentId": "INC-1", "expectedVersion": "-1"}, **name)
    yield calls.rpc("EvidenceCacheService/PutEvidence", {}, **name)


def _shown(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    kept = ("content-type", "headgate-code", "x-correlation-id", "retry-after")
    return answer.status_code, answer.json(), {name: answer.headers[name] for name in kept if name in answer.headers}


def test_intake__killed_under_load__what_was_answered_is_there_and_the_server_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, "always") as (server, calls):
        calls.register()
        pid = calls.pid()
        acknowledged: list[str] = []
        failed: list[tuple[int, str]] = []
        stopping = threading.Event()

        def offer(first: int) -> None:
            with httpx.Client(base_url=server.url, timeout=20.0) as http:
                for number in range(first, first + 100_000):
                    if stopping.is_set():
                        return
                    one = evidence(number, "FAIL")
                    answer = http.post(f"/{PACKAGE}.EvidenceCacheService/PutEvidence", json={"evidence": one})
                    if answer.status_code == 200 and answer.json().get("stored"):
                        acknowledged.append(one["evidenceId"])
                    elif answer.status_code != 200:
                        failed.append((answer.status_code, answer.headers["headgate-code"]))

        writers = [threading.Thread(target=offer, args=(100_000 * place,)) for place in range(1, 5)]
        for each in writers:
            each.start()
        until(lambda: len(acknowledged) > 100, "a hundred pieces of evidence")
        before = calls.metric("headgate_store_commits_total")
        os.kill(pid, signal.SIGKILL)
        known = len(acknowledged)
        until(lambda: len(acknowledged) > known + 50, "the server to take them by itself")
        again = calls.pid()
        stopping.set()
        for each in writers:
            each.join()
        assert again != pid
        assert set(failed) <= {(503, "intake_ended")}
        assert len(failed) <= len(writers), "only what was under way"
        assert calls.metric("headgate_store_commits_total") >= before, "counters do not fall"
        for evidence_id in acknowledged:
            found = calls.rpc("EvidenceCacheService/GetEvidence", {"evidenceId": evidence_id})
            assert found.status_code == 200, evidence_id


def test_intake__hangs__is_ended_and_who_waits_is_reported(tmp_path: Path) -> None:
    with serving(tmp_path, "always") as (_server, calls):
        calls.register()
        os.kill(calls.pid(), signal.SIGSTOP)
        response = calls.rpc("SignalStateService/UpdateSignalState", update(1))
        assert (response.status_code, response.headers["headgate-code"]) == (503, "intake_ended")
        assert response.headers["retry-after"] == "1"
        again = calls.rpc("SignalStateService/UpdateSignalState", update(1)).json()
        assert again["newVersion"] == "1", "what was not begun is done once"


def test_intake__more_batches_than_threads_wait_for_the_disk__a_single_call_is_answered_before_them(
    tmp_path: Path,
) -> None:
    with serving(tmp_path, "always") as (server, calls), ThreadPoolExecutor(BATCHES) as pool:
        calls.register()
        calls.pid()
        with (server.home / "headgate.db.lock").open() as lock:
            # As another process does that commits for long.
            fcntl.flock(lock, fcntl.LOCK_EX)
            offered = [{"evidence": [evidence(number, "FAIL")]} for number in range(BATCHES)]
            batches = [pool.submit(calls.rpc, "EvidenceCacheService/BatchPutEvidence", each) for each in offered]
            until(lambda: calls.metric("headgate_intake_calls_total") == BATCHES, "the batches")

            # Which only reads.
            nothing = {"incidentId": "INC-1", "expectedVersion": "-1"}
            response = calls.rpc("IncidentService/ResolveIncident", nothing, **SOON)

            assert response.status_code == 404, response.text
            assert not any(batch.done() for batch in batches)
        assert [batch.result().status_code for batch in batches] == [200] * BATCHES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_intake__server_ends__it_ends_too(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, "always") as (server, calls):
        pid = calls.pid()
        # As a service manager does, which tells every process of a service.
        if number is signal.SIGTERM:
            os.kill(pid, number)
        server.signal(number)
        assert server.exit_code() == (0 if number is signal.SIGTERM else -number)
        until(lambda: is_gone(pid), "the end of the intake")


def test_intake__little_to_do__there_is_none_until_there_is_much(tmp_path: Path) -> None:
    with serving(tmp_path, "auto") as (_server, calls):
        calls.register()
        for number in range(5):
            assert calls.rpc("SignalStateService/UpdateSignalState", update(number)).status_code == 200
        assert calls.metric("headgate_intake_starts_total") == 0
        batch = {"evidence": [{**evidence(number), "payloadRef": "s3://lake/" + 2000 * "x"} for number in range(1000)]}
        for _ in range(2):
            calls.rpc("EvidenceCacheService/BatchPutEvidence", batch)
        calls.pid()
        answer = calls.rpc("EvidenceCacheService/BatchPutEvidence", batch).json()
        assert answer["sampledOut"] + answer.get("stored", 0) == 1000
        assert calls.metric("headgate_intake_calls_total") == 1
