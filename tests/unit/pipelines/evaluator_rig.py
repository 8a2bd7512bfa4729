"""Questions for evaluators, a store with sensors and runs, and HTTP servers that answer as instructed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headgate.clock import Clock, SystemClock, VirtualClock
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Trait
from headgate.pipelines.traits.evaluators import TraitOrder
from headgate.pipelines.traits.protocol import Question
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

NOW = datetime(2026, 3, 3, 8, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


def virtual_clock() -> VirtualClock:
    return VirtualClock(NOW.timestamp())


@contextmanager
def store_in(folder: Path, clock: Clock) -> Iterator[SqliteStore]:
    with closing(open_sqlite(folder, clock=clock, synchronous=Synchronous.NORMAL)) as store:
        yield store


def question(reference: str = "builtin:any", *, timeout: float = 5.0, **config: Any) -> Question:
    return Question(
        reference=reference,
        pipeline_id="orders",
        trait_type="fresh",
        config=config,
        now=NOW,
        timeout_seconds=timeout,
        schedule_id="daily",
        date="2026-03-03",
        run_id="run_1",
    )


def order(
    evaluator: str,
    *,
    trait_type: str = "fresh",
    date: str = "2026-03-03",
    schedule_id: str = "daily",
    ttl: float = 300,
    timeout: float = 5,
    **config: Any,
) -> TraitOrder:
    trait = Trait(evaluator=evaluator, config=config, ttl=Seconds(ttl), timeout=Seconds(timeout))
    return TraitOrder(
        pipeline_id="orders",
        trait_type=trait_type,
        trait=trait,
        date=date,
        schedule_id=schedule_id,
        run_id="run_1",
        # As of a definition of the project folder, which may run programs.
        is_from_folder=True,
    )


class NotedClock(SystemClock):
    """The machine's clock, on which pauses are noted and not made."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        # Shadows the attribute of the class, as a test wants to see it.
        self.sleep = self.pauses.append  # type: ignore[assignment]


class Server:
    """What a server was asked, and where it is."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.bodies: list[bytes] = []
        self.methods: list[str] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Respond = Callable[[BaseHTTPRequestHandler, int], None]


@contextmanager
def serving(respond: Respond) -> Iterator[Server]:
    """Serve on a port of its own. `respond` is given the request and how many came before it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            before = len(server.bodies)
            server.bodies.append(self.rfile.read(int(self.headers.get("content-length") or 0)))
            server.methods.append(self.command)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            try:
                respond(self, before)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        do_POST = do_GET = do_HEAD = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            return

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server = Server(http.server_address[1])
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join(5)


def answering(status: int, body: bytes = b"", **headers: str) -> Respond:
    def respond(request: BaseHTTPRequestHandler, _before: int) -> None:
        reply(request, status, body, **headers)

    return respond


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    if not any(name.lower() == "content_length" for name in headers):
        request.send_header("content-length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
