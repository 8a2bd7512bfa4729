"""What tests of triggers share: orders, the registry on this machine, and servers that speak the APIs of others."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headgate.clock import SystemClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.client.client import Client
from headgate.fanout.service import FanoutService
from headgate.triggers.aws.clients import AwsClients
from headgate.triggers.contract import TriggerOrder
from headgate.triggers.http.client import TriggerHttpClient
from headgate.triggers.registry import TriggerKinds, trigger_kinds
from headgate.triggers.secret_sources import SecretSources

RUN_ID = "run_01JD5YQ8K3M4N5P6Q7R8S9T0V1"
LOOPBACK = Destinations(networks=("127.0.0.0/8", "::1/128"), plain_http=True)


def order(
    type: str,
    config: dict[str, Any],
    *,
    date: str = "2026-03-03T07",
    run_id: str = RUN_ID,
    attempt: int = 1,
    callback_url: str | None = None,
    callback_token: str | None = None,
) -> TriggerOrder:
    return TriggerOrder(
        type=type,
        config=config,
        pipeline="orders",
        schedule="hourly",
        date=date,
        run_id=run_id,
        attempt=attempt,
        callback_url=callback_url,
        callback_token=callback_token,
        # As of a definition of the project folder, which may run programs.
        is_from_folder=True,
    )


def kinds(
    tmp_path: Path,
    *,
    environ: Mapping[str, str] | None = None,
    destinations: Destinations = LOOPBACK,
    aws: AwsClients | None = None,
    client: Client | None = None,
    fanouts: FanoutService | None = None,
    pauses: list[float] | None = None,
    resolve: Callable[[str, int], list[str]] | None = None,
    project: Path | None = None,
) -> TriggerKinds:
    """Every kind, on this machine. What is paused for is noted and takes no time."""
    clock = SystemClock()
    given = environ if environ is not None else {"PATH": "/usr/bin:/bin"}
    noted = pauses if pauses is not None else []
    options: dict[str, Any] = {} if resolve is None else {"resolve": resolve}
    folder = tmp_path / "secrets"
    folder.mkdir(exist_ok=True)
    return trigger_kinds(
        clock=clock,
        environ=given,
        secrets=SecretSources(given, folder=folder),
        commands_folder=tmp_path / "commands",
        destinations=destinations,
        aws=aws if aws is not None else AwsClients(region="us-east-1"),
        client=client,
        fanouts=fanouts,
        project=project,
        outbound=TriggerHttpClient(clock, destinations, pause=noted.append, draw=lambda: 0.5, **options),
    )


class Asked:
    """A request as a server has seen it."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


Reply = tuple[int, Any]


class Api(ThreadingHTTPServer):
    """A server whose `answer` speaks some API. An answer of None breaks the connection off."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Asked], Reply | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []
        # Headers of every answer.
        self.headers: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Api

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        asked = Asked(self.command, self.path, dict(self.headers.items()), body)
        self.server.asked.append(asked)
        reply = self.server.answer(asked)
        if reply is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, content = reply
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        if 300 <= status < 400:
            self.send_header("location", raw.decode())
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def serving(answer: Callable[[Asked], Reply | None]) -> Iterator[Api]:
    server = Api(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
