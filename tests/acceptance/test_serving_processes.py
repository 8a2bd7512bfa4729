"""Several serving processes on one port, of the installed program: what each answers, and the end of each of them.

A connection belongs to one process. The tests find out which, and talk to the process that they mean.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from tests.acceptance.program import Server, until
from tests.process_state import is_gone

PACKAGE: Final = "observability.statestore.v1"
URN: Final = "urn:dp:orders:order_placed:v1"
SIGNAL: Final = f"/api/v1/datasets/{URN}/signals/FRESHNESS"
STARTED: Final = "2026-01-01T00:00:00Z"
ATTEMPTS_MAX: Final = 200
DEADLINE_SECONDS: Final = 30.0


class Answer(NamedTuple):
    status: int
    text: str
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Connection:
    """One connection, which one process has accepted."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._http = http.client.HTTPConnection(host, int(port), timeout=DEADLINE_SECONDS)
        self._http.connect()
        self.port: int = self._http.sock.getsockname()[1]

    def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        content = None if body is None else json.dumps(body).encode()
        self._http.request(method, path, content, {"content-type": "application/json", **headers})
        response = self._http.getresponse()
        text = response.read().decode()
        return Answer(response.status, text, {name.lower(): value for name, value in response.getheaders()})

    def rpc(self, method: str, message: dict[str, Any]) -> Any:
        return self.send("POST", f"/{PACKAGE}.{method}", message).json

    def stream(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        self._http.request(method, path, content, headers)
        response = self._http.getresponse()
        assert response.status == 200
        return response

    def close(self) -> None:
        self._http.close()


class Served:
    """A server with several serving processes."""

    def __init__(self, folder: Path, *arguments: str, processes: int = 2, **environ: str) -> None:
        self.server = Server(folder, "--processes", str(processes), *arguments, **environ)
        self.first = self.server.process.pid

    def others(self) -> list[int]:
        """Return the further processes that are ready, by their number."""
        found = re.findall(r"serving process ready .*pid=(\d+) process=(\d+)", self.server.stderr)
        return [int(pid) for _, pid in sorted({number: pid for pid, number in found}.items())]

    def to(self, pid: int) -> Connection:
        """Return a connection to a process: a new connection goes to the one with the fewest."""
        rest = []
        try:
            for _ in range(ATTEMPTS_MAX):
                connection = Connection(self.server)
                # Accepted, and so in the table of a process.
                connection.send("GET", "/health/live")
                if pid in owners(self.port, connection.port):
                    return connection
                rest.append(connection)
        finally:
            for each in rest:
                each.close()
        raise AssertionError(f"no connection to process {pid}")

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def register(self, urn: str = URN) -> None:
        with closing(Connection(self.server)) as connection:
            body = {"dataset_urn": urn, "tier": "TIER_2", "owner_team": "orders", "source": {"type": "KAFKA"}}
            answer = connection.send("POST", "/api/v1/datasets", body)
            assert answer.status == 201, answer.text

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.__exit__(*error)


class Accepted(NamedTuple):
    port: int
    client_port: int
    inode: str


def _connections() -> Iterator[Accepted]:
    """Yield the established connections of this machine."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01":
                port, client_port = (int(each.rpartition(":")[2], 16) for each in fields[1:3])
                yield Accepted(port, client_port, fields[9])


def owners(port: int, client_port: int) -> set[int]:
    """Return the processes that hold the server's end of a connection."""
    inodes = set()
    for each in _connections():
        if (each.port, each.client_port) == (port, client_port):
            inodes.add(f"socket:[{each.inode}]")
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(each.readlink()) in inodes for each in (process / "fd").iterdir()):
                found.add(int(process.name))
    return found


def metric(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found.group(1))


def is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False


def value(number: int, version: int, state: str = "OK") -> dict[str, Any]:
    end = f"2026-01-02T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
    window = {"window_start": STARTED, "window_end": end}
    why = {} if state == "OK" else {"failure_signature": "LATE:orders"}
    return {"state": state, "score": 0.9, "expected_version": version, **why, **window}


def evidence(number: int) -> dict[str, Any]:
    return {
        "evidenceId": f"evd-01M7GXYEA8ZZZZZZZZZZ{number:06d}",
        "datasetUrn": URN,
        "validation": {"result": "FAIL", "reasonCodes": ["MISSING:id"]},
    }


def test_processes__writes_and_reads_in_turn__no_read_is_older_than_what_another_process_has_answered(
    tmp_path: Path,
) -> None:
    with Served(tmp_path) as served:
        [other] = served.others()
        with closing(served.to(served.first)) as ours, closing(served.to(other)) as theirs:
            both = [ours, theirs]
            for each in both:
                assert each.send("GET", f"/api/v1/datasets/{URN}").status == 404, "which both now remember"
            served.register()
            assert [each.send("GET", f"/api/v1/datasets/{URN}").status for each in both] == [200, 200]
            version = 0
            for number in range(40):
                writer, reader = both if number % 2 else both[::-1]
                answer = writer.send("PUT", SIGNAL, value(number, version))
                assert answer.status == 200, answer.text
                version = answer.json["new_version"]
                assert reader.send("GET", SIGNAL).json["version"] == version
                asked = {"datasetUrn": URN, "signalType": "FRESHNESS"}
                assert int(reader.rpc("SignalStateService/GetSignalState", asked)["version"]) == version
                assert writer.send("GET", SIGNAL).json["version"] == version
            query = {"query": f'{{ dataset(urn: "{URN}") {{ displayName tier }} }}'}
            for number in range(6):
                writer, reader = both if number % 2 else both[::-1]
                name = f"orders {number}"
                merge = {"content-type": "application/merge-patch+json"}
                current = writer.send("GET", f"/api/v1/datasets/{URN}").json["config_version"]
                changed = writer.send(
                    "PATCH", f"/api/v1/datasets/{URN}", {"display_name": name}, **merge, **{"if-match": f'"{current}"'}
                )
                assert changed.status == 200, changed.text
                assert reader.send("GET", f"/api/v1/datasets/{URN}").json["display_name"] == name
                assert reader.send("POST", "/graphql", query).json["data"]["dataset"]["displayName"] == name
            metrics = [each.send("GET", "/metrics").text for each in both]
            assert [metric(text, "signal_state_update_success_total") for text in metrics] == [40, 40], "the sum"
            assert [metric(text, "headgate_serving_processes") for text in metrics] == [2, 2]


def test_processes__limits_and_credentials__hold_for_all_together(tmp_path: Path) -> None:
    with Served(tmp_path, HEADGATE_LIMITS_FAILED_LOGINS_PER_MINUTE="6") as served:
        [other] = served.others()
        with closing(served.to(served.first)) as ours, closing(served.to(other)) as theirs:
            both = [ours, theirs]
            issued = ours.send("POST", "/api/v1/api-keys", {"principal": "reader", "roles": ["viewer"]}).json
            key = {"authorization": f"Bearer {issued['text']}"}
            assert [each.send("GET", "/api/v1/datasets", **key).status for each in both] == [200, 200]
            assert theirs.send("DELETE", f"/api/v1/api-keys/{issued['key']['key_id']}").status in (200, 204)
            began_at = time.monotonic()
            revoked = [each.send("GET", "/api/v1/datasets", **key).status for each in both]
            assert revoked == [401, 401], "at once, in both"
            wrong = {"authorization": "Bearer hg_nobody"}
            answers = [both[number % 2].send("GET", "/api/v1/datasets", **wrong).status for number in range(20)]
            # Six in a minute, of which two were the revoked key; alone, each process would have admitted six.
            admitted = 2 + answers.count(401)
            assert 6 <= admitted <= 7 + (time.monotonic() - began_at) / 10
            assert answers.count(429) == 22 - admitted
            assert metric(ours.send("GET", "/metrics").text, "headgate_failed_logins_total") == 22
        assert _grpc_answering(served, 2) == {served.first, other}


def _grpc_answering(served: Served, wanted: int) -> set[int]:
    """Return the processes that answer calls on the gRPC port, of up to `wanted`."""
    address, seen = served.server.grpc, set[int]()
    port = int(address.rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(ATTEMPTS_MAX):
            channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            stack.enter_context(channel)
            check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=DEADLINE_SECONDS) == b"\x08\x01", "serving"
            clients = [each.client_port for each in _connections() if each.port == port]
            seen |= {pid for client in clients for pid in owners(port, client)}
            if len(seen) >= wanted:
                break
    return seen


def test_processes__streams__receive_what_another_process_writes(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        [other] = served.others()
        served.register()
        subscription = {"query": "subscription { signalChanged { datasetUrn state } }"}
        for number, (watching, writing) in enumerate([(served.first, other), (other, served.first)]):
            with (
                closing(served.to(watching)) as subscriber,
                closing(served.to(watching)) as page,
                closing(served.to(writing)) as writer,
            ):
                events = subscriber.stream("POST", "/graphql", subscription)
                changes = page.stream("GET", "/ui/changes")
                assert b"ready" in _line_with(changes, b"event:")
                states = itertools.cycle(["CRITICAL", "OK"] if number == 0 else ["WARNING", "OK"])
                stopping = threading.Event()
                writers = threading.Thread(target=_write_on, args=(writer, states, 1000 * number, stopping))
                writers.start()
                try:
                    assert URN.encode() in _line_with(events, b"signalChanged")
                    assert b"signal" in _line_with(changes, b"kinds")
                finally:
                    stopping.set()
                    writers.join()


def _write_on(writer: Connection, states: Iterator[str], first: int, stopping: threading.Event) -> None:
    """Write until the changes are received: a subscription sees what is written after it has begun."""
    for number in itertools.count(first):
        if stopping.wait(0.2):
            return
        assert writer.send("PUT", SIGNAL, value(number, -1, next(states))).status == 200


def _line_with(response: http.client.HTTPResponse, text: bytes) -> bytes:
    while line := response.readline():
        if text in line:
            return line
    raise AssertionError(f"the stream ended without {text!r}")


def test_processes__killed_in_turn_under_load__what_was_acknowledged_is_there(tmp_path: Path) -> None:
    with Served(tmp_path, HEADGATE_EVIDENCE_PER_SIGNATURE_PER_MINUTE="1000000") as served:
        served.register()
        [other] = served.others()
        port, grpc_port = served.port, int(served.server.grpc.rpartition(":")[2])
        acknowledged: list[str] = []
        stopping = threading.Event()
        numbers = itertools.count()

        def offer() -> None:
            while not stopping.is_set():
                with suppress(OSError, http.client.HTTPException), closing(Connection(served.server)) as connection:
                    while not stopping.is_set():
                        one = evidence(next(numbers))
                        answer = connection.send(
                            "POST", f"/{PACKAGE}.EvidenceCacheService/PutEvidence", {"evidence": one}
                        )
                        if answer.status == 200 and answer.json.get("stored"):
                            acknowledged.append(one["evidenceId"])
                        else:
                            # Of a server that starts or ends.
                            assert answer.status == 503, answer.text

        writers = [threading.Thread(target=offer) for _ in range(4)]
        for each in writers:
            each.start()
        try:
            until(lambda: len(acknowledged) > 100, "a hundred pieces of evidence")
            before = _stored(served)
            os.kill(other, signal.SIGKILL)
            known = len(acknowledged)
            until(lambda: len(acknowledged) > known + 50, "the first process goes on")
            until(lambda: served.others() != [other], "it is started again")
            with closing(served.to(served.others()[0])) as connection:
                assert connection.send("GET", "/health/ready").status == 200
            assert _stored(served) >= before, "counters do not fall"
            known, again = len(acknowledged), served.others()
            until(lambda: len(acknowledged) > known + 50, "and both write")
            os.kill(served.first, signal.SIGKILL)
            served.server.process.wait()
            until(lambda: all(is_gone(pid) for pid in again), "the other process ends with the first")
        finally:
            stopping.set()
            for each in writers:
                each.join()
        until(lambda: is_free(port) and is_free(grpc_port), "the ports are free")
        with Server(tmp_path) as after, closing(Connection(after)) as connection:
            for evidence_id in acknowledged:
                found = connection.rpc("EvidenceCacheService/GetEvidence", {"evidenceId": evidence_id})
                assert found.get("evidenceId") == evidence_id, found


def _stored(served: Served) -> float:
    with closing(Connection(served.server)) as connection:
        return metric(connection.send("GET", "/metrics").text, "headgate_store_commits_total")


def test_processes__stopped__requests_in_progress_are_finished_and_all_end(tmp_path: Path) -> None:
    with Served(tmp_path, processes=3, HEADGATE_DRAIN_SECONDS="60") as served, ExitStack() as stack:
        served.register()
        others = served.others()
        assert len(others) == 2
        connections = [stack.enter_context(closing(served.to(pid))) for pid in (served.first, *others)]
        stream = connections[2].stream("GET", "/ui/changes")
        halves = []
        for number, connection in enumerate(connections[:2]):
            sock = connection._http.sock
            body = json.dumps(value(number, -1)).encode()
            path = SIGNAL.replace("FRESHNESS", f"CHECK_{number}")
            head = f"PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:10])
            halves.append((sock, body[10:]))
        # Their heads have been read when a later request of the same process is answered.
        for pid in (served.first, others[0]):
            served.to(pid).close()
        # As a service manager does, which signals all processes of a service.
        for pid in (*others, served.first):
            os.kill(pid, signal.SIGTERM)
        until(lambda: "draining" in served.server.stderr, "the drain")
        for sock, rest in halves:
            sock.sendall(rest)
        for sock, _ in halves:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200"), served.server.stderr
        while stream.readline():
            pass
        # The exit code says that all were drained in time.
        assert served.server.exit_code(90.0) == 0
        assert all(is_gone(pid) for pid in others)


def test_processes__app_and_definitions__are_those_of_the_first_process(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_APP)
    with Served(tmp_path, "--app", "shop:app") as served:
        [other] = served.others()
        with closing(served.to(other)) as connection:
            assert connection.send("GET", "/hello/ada").json == {"hello": "ada"}
            started = connection.send("POST", "/api/v1/executions", {"workflow": "wait", "id": "one", "input": ""})
            assert started.status in (200, 201, 202), started.text
            query = ("POST", "/api/v1/executions/one/queries", {"name": "state"})
            until(lambda: connection.send(*query).status == 200, "the first turn")
            assert "waiting" in connection.send(*query).text
            # Larger than a buffer of the connection between the processes, in both directions.
            large = {"workflow": "wait", "id": "two", "input": "x" * 1_000_000}
            assert connection.send("POST", "/api/v1/executions", large).status in (200, 201, 202)
            assert connection.send("GET", "/api/v1/nothing").status == 404
        os.kill(other, signal.SIGHUP)
        os.kill(served.first, signal.SIGHUP)
        until(lambda: "SIGHUP ignored: no folder" in served.server.stderr, "the first process has it")
        assert not is_gone(other)


_APP: Final = """
import headgate as hg

app = hg.App("shop")


@app.get("/hello/{name}")
def hello(request: hg.Request) -> dict[str, str]:
    return {"hello": request.path_params["name"]}


@app.workflow
async def wait(text: str = "") -> str:
    hg.on_query("state", lambda: "waiting")
    return await hg.wait_signal("go")
"""
