"""Faults of the disk under a running server: full, read-only, moved, damaged. It serves on, reports and recovers."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from headgate.serve.rpc.statestore import proto as pb
from tests.acceptance.program import Server, until

PAD = "x" * 3000
FIRST = "evt_00000000000000000000000000"
URN = "urn:dp:faults:disk:v1"
RECOVERY_SECONDS = 20.0


class Client:
    """Emits events to a server, and remembers the acknowledged ones. Closed by `serving`."""

    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=20)
        self._http.post("/api/v1/datasets", json={"dataset_urn": URN})
        self.acknowledged: list[str] = []
        self._next = 0

    def close(self) -> None:
        self._http.close()

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def emit(self) -> httpx.Response:
        self._next += 1
        event = {"id": f"evt-{self._next}", "type": "fault.test", "data": {"pad": PAD}}
        answer = self._http.post("/api/v1/events", json=event)
        if answer.is_success:
            self.acknowledged += answer.json()["ids"]
        return answer

    def emit_until_refused(self, count_max: int = 3000) -> httpx.Response:
        for _ in range(count_max):
            answer = self.emit()
            if not answer.is_success:
                return answer
        raise AssertionError(f"{count_max} events were accepted")

    def stored(self) -> set[str]:
        found: set[str] = set()
        after = FIRST
        while True:
            query = {"type": "fault.test", "limit": "100", "after": after}
            page = self._http.get("/api/v1/events", params=query).json()
            if not page["events"]:
                return found
            found |= {each["id"] for each in page["events"]}
            after = page["events"][-1]["id"]

    def checks(self, path: str) -> dict[str, str]:
        answer = self._http.get(path)
        assert answer.status_code == 200, answer.text
        return {each["name"]: each["status"] for each in answer.json()["checks"]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of a few megabytes. Needs root."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def serving(folder: Path, home: Path) -> Iterator[tuple[Server, Client]]:
    with Server(folder, "--home", str(home)) as server, closing(Client(server)) as client:
        yield server, client


def problem_of(answer: httpx.Response, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    content: dict[str, Any] = answer.json()
    assert content["code"] == code
    assert int(answer.headers["retry-after"]) >= 1
    return str(content["detail"])


def assert_serves_reads(client: Client, check: str) -> None:
    """Reads work, liveness and readiness hold, and both reports name the condition."""
    assert client.get("/health/live").status_code == 200
    assert client.get("/health/ready").status_code == 200
    assert set(client.acknowledged) <= client.stored()
    for path in ("/health", "/health/deep"):
        assert client.get(path).json()["status"] == "degraded", path
        assert client.checks(path)[check] == "degraded", path


def assert_recovers(client: Client, server: Server, check: str) -> None:
    """Without a request of ours, the condition ends; then writes work, and nothing acknowledged is lost."""
    until(lambda: check not in client.checks("/health"), "the end of the condition", RECOVERY_SECONDS)
    assert client.emit().is_success
    assert client.checks("/health/deep")["store write"] == "ok"
    assert set(client.acknowledged) <= client.stored()
    assert server.process.poll() is None


def assert_logged_once(server: Server, code: str, *, ended: bool = True) -> None:
    began = [line for line in server.stderr.splitlines() if "store condition began" in line and code in line]
    over = [line for line in server.stderr.splitlines() if "store condition ended" in line and code in line]
    assert len(began) == 1, server.stderr[-4000:]
    assert len(over) == ended, server.stderr[-4000:]
    assert "Traceback" not in server.stderr
    assert len(server.stderr.splitlines()) < 60, server.stderr[-4000:]


def assert_drains(server: Server) -> None:
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0, server.stderr[-4000:]


@contextmanager
def _small_file_system(folder: Path) -> Iterator[tuple[Server, Client, Callable[[], None], Callable[[], None]]]:
    """A server on a file system of a few megabytes, how to fill it, and how to make room. Needs root."""
    with small_disk(folder / "disk") as disk, serving(folder / "run", disk / "home") as (server, client):
        ballast = disk / "ballast"

        def fill() -> None:
            free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
            ballast.write_bytes(b"\0" * max(0, free - 600_000))

        yield server, client, fill, ballast.unlink


@contextmanager
def _limited_files(folder: Path) -> Iterator[tuple[Server, Client, Callable[[], None], Callable[[], None]]]:
    """A server whose files may not grow, as under a quota: it needs no mount, and the limit can be raised."""
    home = folder / "home"
    with serving(folder, home) as (server, client):
        pid, unlimited = server.process.pid, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

        def fill() -> None:
            largest = max(path.stat().st_size for path in home.iterdir() if path.is_file())
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + 200_000, resource.RLIM_INFINITY))

        def make_room() -> None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)

        yield server, client, fill, make_room


# Only root may mount; a machine without root has the limit alone.
FULL_DISKS = [_limited_files, _small_file_system] if os.getuid() == 0 else [_limited_files]


@pytest.mark.parametrize("disk", FULL_DISKS)
def test_disk__full__writes_are_507_reads_go_on_and_it_recovers_when_there_is_room(disk: Any, tmp_path: Path) -> None:
    with disk(tmp_path) as (server, client, fill, make_room):
        assert client.emit().is_success
        fill()

        refused = client.emit_until_refused()
        for _ in range(20):
            client.emit()

        assert "free" in problem_of(refused, 507, "store_full")
        assert len(client.acknowledged) > 5
        assert _write_over_grpc(server) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert_serves_reads(client, "store full")
        make_room()
        assert_recovers(client, server, "store full")
        assert_logged_once(server, "store_full")
        assert_drains(server)


def _start_on_full_disk(tmp_path: Path, *, stop: signal.Signals) -> None:
    """Stop a server, fill its disk, start it again, and make room."""
    with small_disk(tmp_path / "disk") as disk:
        home, ballast = disk / "home", disk / "ballast"
        with serving(tmp_path / "first", home) as (server, client):
            assert client.emit().is_success
            acknowledged = client.acknowledged
            until(lambda: (home / "headgate.reserve").exists(), "the space reserve")
            server.signal(stop)
            server.exit_code()
        _fill_completely(disk, ballast)

        with Server(tmp_path / "second", "--home", str(home)) as server, closing(Client(server)) as client:
            refused = client.emit_until_refused()

            assert "free" in problem_of(refused, 507, "store_full")
            assert set(acknowledged) <= client.stored()
            assert_serves_reads(client, "store full")
            ballast.unlink()
            assert_recovers(client, server, "store full")
            # The workers that could not join at the start run now.
            until(lambda: client.checks("/health").get("worker", "ok") == "ok", "the worker")
            assert "Traceback" not in server.stderr
            assert_drains(server)


def _fill_completely(disk: Path, ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small file system")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL], ids=["drained", "killed"])
def test_start__disk_full__serves_reads_refuses_writes_and_recovers(stop: signal.Signals, tmp_path: Path) -> None:
    _start_on_full_disk(tmp_path, stop=stop)


def test_file__made_read_only__writes_are_503_and_it_recovers_when_it_is_writable(home: Path, tmp_path: Path) -> None:
    with serving(tmp_path, home) as (server, client):
        assert client.emit().is_success
        database = home / "headgate.db"
        database.chmod(0o400)

        refused = client.emit()

        assert "writable" in problem_of(refused, 503, "store_read_only")
        assert _write_over_grpc(server) is grpc.StatusCode.UNAVAILABLE
        assert_serves_reads(client, "store read-only")
        database.chmod(0o600)
        assert_recovers(client, server, "store read-only")
        assert_logged_once(server, "store_read_only")
        assert_drains(server)


def test_home__moved_away__writes_are_503_no_home_is_made_and_it_recovers_when_moved_back(
    home: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, home) as (server, client):
        assert client.emit().is_success
        away = tmp_path / "away"
        home.rename(away)

        refused = client.emit()

        assert "moved" in problem_of(refused, 503, "store_moved")
        assert_serves_reads(client, "store moved")
        # Larger than an item may be, so that a blob is written first.
        large = {"id": "large", "type": "fault.test", "data": {"pad": "x" * 600_000}}
        problem_of(httpx.post(f"{server.url}/api/v1/events", json=large), 503, "store_moved")
        assert not home.exists(), "a home was made anew, so that the old one cannot be moved back"
        away.rename(home)
        assert_recovers(client, server, "store moved")
        assert_logged_once(server, "store_moved")
        assert_drains(server)


def test_home__deleted__reads_go_on_and_a_drain_ends_with_0(home: Path, tmp_path: Path) -> None:
    with serving(tmp_path, home) as (server, client):
        assert client.emit().is_success
        shutil.rmtree(home)

        refused = client.emit()

        problem_of(refused, 503, "store_moved")
        assert_serves_reads(client, "store moved")
        assert_logged_once(server, "store_moved", ended=False)
        assert_drains(server)
        assert not home.exists()


def test_page__overwritten__the_store_is_read_only_and_names_the_remedy(home: Path, tmp_path: Path) -> None:
    with serving(tmp_path, home) as (first, client):
        for _ in range(60):
            assert client.emit().is_success
        assert_drains(first)
    database = home / "headgate.db"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(database.read_bytes())
    pages = [at for at in range(4096, len(content), 4096) if b"fault.test" in content[at : at + 4096]]
    content[pages[len(pages) // 2] : pages[len(pages) // 2] + 8] = b"\xff" * 8
    database.write_bytes(content)

    with serving(tmp_path, home) as (server, client):
        met = client.get(f"/api/v1/events?type=fault.test&limit=100&after={FIRST}")
        problem_of(met, 503, "store_damaged")
        refused = client.emit()

        detail = problem_of(refused, 503, "store_damaged")
        assert "headgate restore" in detail
        assert "copy the home" in detail
        assert client.get("/api/v1/calendars").status_code == 200, "other pages are readable"
        assert client.get("/health/live").status_code == 200
        assert client.get("/health/ready").status_code == 200
        for path in ("/health", "/health/deep"):
            assert client.checks(path)["store damaged"] == "degraded", path
        assert_logged_once(server, "store_damaged", ended=False)
        assert_drains(server)


def test_schema__changed_by_another_build__ends_with_an_exit_code_that_is_not_0(home: Path, tmp_path: Path) -> None:
    with Server(tmp_path, "--home", str(home)) as server:
        newer = sqlite3.connect(home / "headgate.db")
        newer.execute('ALTER TABLE "headgate-control" ADD COLUMN i_tomorrow')
        newer.close()

        assert server.exit_code(30) == 70, server.stderr[-4000:]
        assert "another build" in server.stderr


def _write_over_grpc(server: Server) -> grpc.StatusCode:
    """Update a signal over gRPC, and return the status of the refusal."""
    value = pb.SignalStateValue(state="OK")
    value.window_start.GetCurrentTime()
    value.window_end.GetCurrentTime()
    request = pb.UpdateSignalStateRequest(dataset_urn=URN, signal_type="FRESHNESS", state=value, expected_version=-1)
    with grpc.insecure_channel(server.grpc) as channel, pytest.raises(grpc.RpcError) as failure:
        call: Any = channel.unary_unary(
            "/observability.statestore.v1.SignalStateService/UpdateSignalState",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=lambda content: content,
        )
        call(request, timeout=20)
    status: grpc.StatusCode = failure.value.code()
    return status
