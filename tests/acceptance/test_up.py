"""`headgate up` serves with one command, reports its health, guards itself, and ends without cutting anyone off."""

from __future__ import annotations

import fcntl
import hashlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it has no stubs

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from tests.acceptance.program import PROGRAM, Server, run, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that only ask it things."""
    with Server(tmp_path_factory.mktemp("shared")) as server:
        yield server


@contextmanager
def _writers_held_up(home: Path) -> Iterator[threading.Event]:
    """Hold the lock that orders writers, as another process of a busy home does, until the event is set."""
    release = threading.Event()
    with (home / "headgate.db.lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def hold() -> None:
            release.wait(60)
            fcntl.flock(lock, fcntl.LOCK_UN)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield release
        finally:
            release.set()
            thread.join()


class _Request:
    """A request to `/health/deep` in a thread of its own. It writes to the store, so it can be held up."""

    def __init__(self, server: Server) -> None:
        self.answer: httpx.Response | None = None
        self.error: Exception | None = None
        self._url = f"{server.url}/health/deep"
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()
        until(
            lambda: "headgate_work_accepted 1.0" in httpx.get(f"{server.url}/metrics").text, "the request is under way"
        )

    def _ask(self) -> None:
        try:
            self.answer = httpx.get(self._url, timeout=60)
        except httpx.HTTPError as exc:
            self.error = exc

    def wait(self) -> None:
        self._thread.join(60)


def _accepts(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_up__fresh_folder__is_ready_with_a_home_of_its_own(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert server.home == tmp_path / ".headgate"
        assert server.stdout.count("\n") == 1
        assert httpx.get(f"{server.url}/health/ready").json()["status"] == "ok"
        # Sockets are beside the database if the path is short enough.
        names = {path.name for path in server.home.iterdir()} - {"headgate.db.wake"}
        assert sorted(name for name in names if "-" not in name) == [
            "commands",
            "headgate.db",
            "headgate.db.lock",
            "headgate.reserve",
            "keys.json",
            "server.json",
        ]


@pytest.mark.parametrize("path", ["/", "/health", "/health/live", "/health/ready", "/health/deep", "/metrics"])
def test_up__each_route_over_a_socket__is_200(shared: Server, path: str) -> None:
    assert httpx.get(shared.url + path).status_code == 200


def test_up__health_deep__has_written_and_read_back(shared: Server) -> None:
    checks = {check["name"]: check["status"] for check in httpx.get(f"{shared.url}/health/deep").json()["checks"]}

    assert checks["store read"] == checks["store write"] == checks["disk"] == "ok"
    assert "headgate_store_commits_total" in httpx.get(f"{shared.url}/metrics").text


def test_up__operations_page__has_samples_and_all_checks(shared: Server) -> None:
    def page() -> str:
        answer = httpx.get(f"{shared.url}/ui/operations", timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.text

    # The first sample is taken when the server is ready.
    until(lambda: "One sample every" in page(), "a sample")
    names = [each["name"] for each in httpx.get(f"{shared.url}/health/deep", timeout=20).json()["checks"]]
    assert [name for name in names if name not in page()] == []


def test_up__grpc_health__is_serving(shared: Server) -> None:
    with grpc.insecure_channel(shared.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="unheard-of"), timeout=10)

    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "/nowhere", {}, 404, "not_found"),
        ("GET", "/api/v1/nowhere", {}, 404, "not_found"),
        ("PUT", "/health", {}, 405, "method_not_allowed"),
        ("GET", "/", {"Host": "evil.example"}, 421, "host_not_allowed"),
        ("GET", "/", {"Origin": "http://evil.example"}, 403, "origin_not_allowed"),
        ("POST", "/", {"Content-Length": "8388609"}, 413, "content_too_large"),
    ],
)
def test_up__any_error__is_the_same_kind_of_problem(
    shared: Server, method: str, path: str, headers: dict[str, str], status: int, code: str
) -> None:
    content = b"x" * int(headers.get("Content-Length", 0))

    answer = httpx.request(method, shared.url + path, headers=headers, content=content)

    body = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert body.keys() == {"type", "title", "status", "code", "detail", "correlation_id"}
    assert (body["status"], body["code"]) == (status, code)
    assert body["correlation_id"] == answer.headers["x-correlation-id"]


def test_up__logs_as_json__every_line_has_its_correlation_id_and_none_is_on_stdout(tmp_path: Path) -> None:
    with Server(tmp_path, HEADGATE_LOG_FORMAT="json", HEADGATE_LOG_LEVEL="debug") as server:
        httpx.get(f"{server.url}/health", headers={"X-Correlation-Id": "order-7"})
        until(lambda: "order-7" in server.stderr, "the line of the request")
        server.signal(signal.SIGTERM)
        server.exit_code()

        lines = [json.loads(line) for line in server.stderr.splitlines()]
        assert server.stdout.count("\n") == 1

    (request,) = [line for line in lines if line.get("correlation_id") == "order-7"]
    assert (request["action"], request["path"], request["status"]) == ("http.request", "/health", 200)


def test_up__tracing_on_without_a_collector__serves_and_stops_all_the_same(tmp_path: Path) -> None:
    environ = {"HEADGATE_TELEMETRY_TRACING": "true", "HEADGATE_TELEMETRY_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    with Server(tmp_path, **environ) as server:
        assert httpx.get(f"{server.url}/health/deep").status_code == 200
        server.signal(signal.SIGTERM)

        assert server.exit_code() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up__signal_while_idle__exits_0_and_frees_everything(tmp_path: Path, number: signal.Signals) -> None:
    with Server(tmp_path) as server:
        # An idle connection must not hold it up.
        with httpx.Client(base_url=server.url) as client:
            client.get("/health")
            started_at = time.monotonic()
            server.signal(number)

            assert server.exit_code() == 0
        assert time.monotonic() - started_at < 5
        assert not list(server.home.glob("headgate.db-*")), "the last one to close the database merges its log"
        assert "Traceback" not in server.stderr


def test_up__sigterm_with_a_request_under_way__stops_accepting_and_answers_it_first(tmp_path: Path) -> None:
    with Server(tmp_path) as server, _writers_held_up(server.home) as release:
        request = _Request(server)

        started_at = time.monotonic()
        server.signal(signal.SIGTERM)
        until(lambda: not _accepts(server.url), "no new connections", seconds_max=5)
        assert server.process.poll() is None
        assert request.answer is None
        release.set()
        request.wait()

        assert server.exit_code() == 0
        assert time.monotonic() - started_at < 10
    assert request.error is None
    assert request.answer is not None
    # The store did what it was asked for; the phase has changed since.
    checks = {check["name"]: check for check in request.answer.json()["checks"]}
    assert checks["store write"]["status"] == "ok"
    assert checks["phase"]["fact"] == "the server is draining"


def test_up__sigterm_while_it_still_starts__ends_in_good_order_once_it_can(tmp_path: Path) -> None:
    home = tmp_path / ".headgate"
    open_store(Settings(home=home), SystemClock()).store.close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with _writers_held_up(home) as release:
        starting = subprocess.Popen(
            [PROGRAM, "up", "--http", address, "--grpc", "127.0.0.1:0"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        # The port is taken first; opening the store then waits for the lock.
        until(lambda: _accepts(f"http://{address}"), "the HTTP port is taken")
        starting.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            starting.wait(0.3)
        release.set()
        _, stderr = starting.communicate(timeout=15)

    assert starting.returncode == 0
    assert "Traceback" not in stderr


def test_up__sigterm__grpc_watchers_see_not_serving_and_do_not_hold_it_up(tmp_path: Path) -> None:
    with Server(tmp_path) as server, grpc.insecure_channel(server.grpc) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        first = next(watch).status
        started_at = time.monotonic()
        server.signal(signal.SIGTERM)
        second = next(watch).status
        with pytest.raises(grpc.RpcError):
            next(watch)

        assert server.exit_code() == 0
    assert (first, second) == (SERVING, NOT_SERVING)
    assert time.monotonic() - started_at < 5


def test_up__request_outlasts_the_deadline__exits_within_it_and_says_so(tmp_path: Path) -> None:
    with Server(tmp_path, HEADGATE_DRAIN_SECONDS="2") as server, _writers_held_up(server.home):
        request = _Request(server)
        started_at = time.monotonic()
        server.signal(signal.SIGTERM)

        assert server.exit_code() == 75
        assert time.monotonic() - started_at < 8
        assert "not drained after 2 s" in server.stderr
    request.wait()
    assert request.answer is not None
    assert request.answer.status_code == 503
    assert request.answer.json()["code"] == "draining"


def test_up__sigterm_while_very_many_blobs_are_swept__exits_0_within_the_deadline(tmp_path: Path) -> None:
    folder = tmp_path / ".headgate" / "blobs" / "spill" / "2020010100"
    folder.mkdir(parents=True)
    for number in range(40_000):
        content = b'["observability-health-check",["row-%d",null],"payload"]\n{"value":"x"}' % number
        (folder / hashlib.sha256(content).hexdigest()).write_bytes(content)
    with Server(tmp_path, HEADGATE_DRAIN_SECONDS="3") as server:
        until(lambda: len(list((server.home / "blobs").iterdir())) > 1, "the first blob is condemned")
        started_at = time.monotonic()
        server.signal(signal.SIGTERM)

        assert server.exit_code() == 0, server.stderr
        # The exit code says that it drained within its 3 s.
        assert time.monotonic() - started_at < 8
        assert "Traceback" not in server.stderr


@pytest.mark.parametrize(("second", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_up__second_signal__exits_at_once(tmp_path: Path, second: signal.Signals, code: int) -> None:
    with Server(tmp_path) as server, _writers_held_up(server.home):
        request = _Request(server)
        server.signal(signal.SIGTERM)
        until(lambda: not _accepts(server.url), "no new connections", seconds_max=5)
        started_at = time.monotonic()
        server.signal(second)

        assert server.exit_code() == code
        # Half of the time that it would have to drain.
        assert time.monotonic() - started_at < 5
    request.wait()


def test_up__after_kill_9__starts_again_on_the_same_home(tmp_path: Path) -> None:
    with Server(tmp_path) as first:
        assert httpx.get(f"{first.url}/health/deep").status_code == 200
        first.signal(signal.SIGKILL)
        first.exit_code()

    with Server(tmp_path) as second:
        assert second.home == first.home
        assert httpx.get(f"{second.url}/health/deep").status_code == 200


def test_up__two_on_one_home__both_serve(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    with Server(tmp_path / "a", "--home", home) as first, Server(tmp_path / "b", "--home", home) as second:
        assert httpx.get(f"{first.url}/health/deep").status_code == 200
        assert httpx.get(f"{second.url}/health/deep").status_code == 200


def test_up__store_out_of_reach__exits_75_and_never_says_it_is_ready(tmp_path: Path) -> None:
    environ = {
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": "eu-west-1",
        "HEADGATE_STORE_AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "HEADGATE_STORE_BLOB_BUCKET": "blobs",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }

    ended = run("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", folder=tmp_path, **environ)

    assert ended.returncode == 75
    assert ended.stdout == ""
    assert "code: store_busy" in ended.stderr


@pytest.mark.parametrize("flag", ["--http", "--grpc"])
def test_up__port_is_taken__exits_2_and_names_port_and_remedy(shared: Server, tmp_path: Path, flag: str) -> None:
    taken = shared.url.removeprefix("http://") if flag == "--http" else shared.grpc
    other = "--grpc" if flag == "--http" else "--http"

    ended = run("up", flag, taken, other, "127.0.0.1:0", folder=tmp_path)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert f"error: {flag[2:]} = {taken}: " in ended.stderr
    assert f"{flag} HOST:PORT" in ended.stderr
    assert "code: bad_setting" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_up__ipv6__serves_on_brackets(tmp_path: Path) -> None:
    addresses = Path("/proc/net/if_inet6")
    if not socket.has_ipv6 or not addresses.exists() or not addresses.read_text():
        ended = run("up", "--http", "[::1]:0", "--grpc", "127.0.0.1:0", folder=tmp_path)
        assert ended.returncode == 2
        assert "http = [::1]:0" in ended.stderr
        return
    with Server(tmp_path, "--http", "[::1]:0", "--grpc", "[::1]:0") as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/health/ready").status_code == 200


@pytest.mark.parametrize("flag", ["--http", "--grpc"])
def test_up__not_loopback__is_refused_before_anything_is_made(tmp_path: Path, flag: str) -> None:
    ended = run("up", flag, "0.0.0.0:0", folder=tmp_path)

    assert ended.returncode == 2
    assert f"error: {flag[2:]} = 0.0.0.0:0: " in ended.stderr
    assert "reverse proxy" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_up__behind_a_proxy_with_allowed_hosts__serves_those_and_no_others(tmp_path: Path) -> None:
    flags = ["--behind-proxy", "--http", "0.0.0.0:0"]
    with Server(tmp_path, *flags, HEADGATE_ALLOWED_HOSTS="gate.example") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")

        assert httpx.get(url, headers={"Host": "gate.example"}).status_code == 200
        assert httpx.get(url, headers={"Host": "other.example"}).status_code == 421


@pytest.mark.parametrize(
    ("name", "content", "exit_code", "code"),
    [
        ("headgate.db", b"Dear diary, today I wrote a file." * 10, 2, "foreign_file"),
        ("keys.json", b'{"format": 1, "keys": ', 70, "corruption"),
    ],
)
def test_up__a_file_of_the_home_is_not_ours__is_left_alone_and_named(
    tmp_path: Path, name: str, content: bytes, exit_code: int, code: str
) -> None:
    home = tmp_path / ".headgate"
    home.mkdir()
    (home / name).write_bytes(content)
    (home / name).chmod(0o600)

    ended = run("up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", folder=tmp_path)

    assert ended.returncode == exit_code
    assert f"error: {home / name}: " in ended.stderr
    assert f"code: {code}" in ended.stderr
    assert (home / name).read_bytes() == content


def _watched(text: str) -> dict[str, Any]:
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}


def test_up__metrics__count_what_was_asked_over_the_socket(shared: Server) -> None:
    series = 'headgate_http_requests_total{method="GET",route="/health/live",status="200"}'
    before = _watched(httpx.get(f"{shared.url}/metrics").text).get(series, 0.0)
    for _ in range(3):
        httpx.get(f"{shared.url}/health/live")

    after = _watched(httpx.get(f"{shared.url}/metrics").text)

    assert after[series] - before == 3
    assert after['headgate_sweep_failures_total{what="expired rows"}'] == 0
