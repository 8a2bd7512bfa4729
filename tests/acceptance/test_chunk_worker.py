"""`hg.ChunkWorker.connect`: the same worker over HTTP and straight to the store; every chunk counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import headgate as hg
from headgate.errors import InvalidPayloadError, SettingsError, StaleClaimError
from tests.acceptance.program import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "lines.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    with Server(folder) as made:
        yield made


@pytest.fixture(params=["server", "store"])
def worker(request: pytest.FixtureRequest, server: Server) -> Iterator[hg.ChunkWorker]:
    target = server.url if request.param == "server" else server.home
    with hg.ChunkWorker.connect(target, name=f"worker-{request.param}") as made:
        yield made


def _submitted(server: Server, **order: Any) -> str:
    answer = httpx.post(f"{server.url}/api/v1/fanouts", json={"group": "g", "chunk_size": 10, **order}, timeout=20)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["run_id"])


def test_worker__items_failed_and_deferred__are_counted_and_the_slow_lane_has_its_items(
    server: Server, worker: hg.ChunkWorker
) -> None:
    run_id = _submitted(server, range=[100, 120])

    with worker.chunk((run_id, "chunk-0000000")) as chunk:
        assert (chunk.items, list(chunk.places)) == (list(range(100, 110)), list(range(10)))
        assert (chunk.group, chunk.attempt, chunk.lane) == ("g", 1, "main")
        chunk.progress(2)
        chunk.item_error(2, ValueError("no good"))
        chunk.defer(3, 7)
        chunk.output({"rows": 7}, key="s3://out/0")
    with worker.chunk((run_id, "slow-0000000")) as slow:
        assert (slow.items, list(slow.places), slow.lane) == ([103, 107], [3, 7], "slow")
    with worker.chunk((run_id, "chunk-0000010")) as chunk:
        pass
    with worker.chunk((run_id, "chunk-0000010")) as again:
        assert not again.is_admitted

    found = server.get(f"/fanouts/{run_id}")
    assert (found["status"], found["counts"]["items_ok"], found["counts"]["items_failed"]) == ("PARTIAL", 19, 1)
    first = server.get(f"/fanouts/{run_id}/chunks/chunk-0000000")
    assert (first["output"], first["output_key"], first["worker"]) == ({"rows": 7}, "s3://out/0", worker.name)
    assert first["item_errors"] == {"2": "ValueError: no good"}

    redrive = f"{server.url}/api/v1/fanouts/{run_id}/redrive"
    assert httpx.post(redrive, json={"failed": True}, timeout=20).json()["rerun_items"] == 1
    with worker.chunk((run_id, "chunk-0000000")) as rerun:
        assert (rerun.items, list(rerun.places), rerun.attempt) == ([102], [2], 2)
        with pytest.raises(InvalidPayloadError, match="redriven items cannot be deferred"):
            rerun.defer(2)
    assert server.get(f"/fanouts/{run_id}")["items"] == {"total": 20, "ok": 20, "failed": 0, "deferred": 0, "open": 0}


def test_worker__exception__fails_the_attempt_with_its_traceback(server: Server, worker: hg.ChunkWorker) -> None:
    run_id = _submitted(server, range=[0, 10], max_attempts=2)

    with pytest.raises(ZeroDivisionError), worker.chunk((run_id, "chunk-0000000")) as chunk:
        print(1 / 0)

    assert chunk.ended is not None
    assert (chunk.ended.disposition, chunk.ended.retry_at is not None) == ("RETRYING", True)
    with pytest.raises(hg.NonRetryable), worker.chunk((run_id, "chunk-0000000")):
        raise hg.NonRetryable("never")
    (log, _) = server.get(f"/fanouts/{run_id}/chunks/chunk-0000000/logs")["logs"]
    assert "print(1 / 0)" in log["traceback"]
    assert server.get(f"/fanouts/{run_id}")["status"] == "FAILED"


def test_worker__input_in_a_file__reads_its_lines(server: Server, worker: hg.ChunkWorker) -> None:
    run_id = _submitted(server, lines="lines.txt", chunk_size=5, params={"beta": 3.5})

    with worker.chunk((run_id, "chunk-000000000005")) as chunk:
        assert chunk.items == [f"line {number}" for number in range(5, 10)]
        assert chunk.params == {"beta": 3.5}


def test_worker__claim_is_lost_or_the_fan_out_cancelled__it_is_told_to_stop(
    server: Server, worker: hg.ChunkWorker
) -> None:
    run_id = _submitted(server, range=[0, 20], heartbeat_seconds=0.2)

    with worker.chunk((run_id, "chunk-0000000")) as chunk:
        cancelled = httpx.post(f"{server.url}/api/v1/fanouts/{run_id}/cancel", json={}, timeout=20)
        assert cancelled.is_success, cancelled.text
        while not chunk.should_stop:
            pass
        assert chunk.cancelled


def test_start__repeated_with_its_token__is_one_attempt(server: Server) -> None:
    run_id = _submitted(server, range=[0, 10])
    path = f"{server.url}/api/v1/fanouts/{run_id}/chunks/chunk-0000000/start"

    one, two, other = (
        httpx.post(path, json={"worker": "w", "token": token}, timeout=20).json() for token in ("one", "one", "two")
    )

    assert (one["admission"], one["token"], one["attempt"]) == ("RUN", "one", 1)
    assert two == one
    assert other["admission"] == "BUSY"
    failed = httpx.post(path.replace("/start", "/fail"), json={"token": "one", "error_class": "E"}, timeout=20).json()
    assert failed["disposition"] == "RETRYING"
    # A request that was delayed until the attempt had ended.
    late = httpx.post(path, json={"worker": "w", "token": "one"}, timeout=20).json()
    assert (late["admission"], late.get("token")) == ("BUSY", None)


def test_worker__result_after_the_chunk_was_taken_over__changes_nothing(server: Server, worker: hg.ChunkWorker) -> None:
    run_id = _submitted(server, range=[0, 10])
    start = worker.tracker.start(run_id, "chunk-0000000", worker="zombie", lease_seconds=0.01)
    assert start.claim is not None
    while (later := worker.tracker.start(run_id, "chunk-0000000", worker="next")).claim is None:
        pass

    with pytest.raises(StaleClaimError):
        worker.tracker.release(start.claim)

    worker.tracker.release(later.claim)
    assert server.get(f"/fanouts/{run_id}")["counts"]["attempts"] <= 2


@pytest.mark.parametrize(
    ("target", "options", "reason"),
    [
        ("/nowhere/at/all", {}, "there is no such folder"),
        ("postgres://x", {}, r"use https://, dynamodb:// or the home"),
        ("dynamodb://", {}, "write dynamodb://REGION"),
        ("dynamodb://eu-west-1?prefix=x", {}, "write dynamodb://REGION"),
        (".", {"api_key": "x"}, "is a store; omit them"),
        ("http://headgate.example.org", {"api_key": "x"}, "use https://"),
    ],
)
def test_connect__target_that_is_none__is_refused_with_the_remedy(
    target: str | Path, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        hg.ChunkWorker.connect(target, **options)
