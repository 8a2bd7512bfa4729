"""A health service with something in it, and the HTTP application around its GraphQL, asked without a socket."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from headgate.auth.principals import LOCAL, Principal
from headgate.clock import SystemClock
from headgate.durable.bus.bus import Bus
from headgate.durable.model.records import instant
from headgate.health.evidence.rows import Evidence, Result, Validation
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import (
    ContractBinding,
    DatasetGate,
    DatasetSpec,
    FreshnessSlo,
    OnSilence,
    OnUpstream,
    SchemaBinding,
    Slos,
    Source,
)
from headgate.health.model.enums import Confidence, EntityType, SignalState, Tier
from headgate.health.model.incidents import Changes, Incident, Notification
from headgate.health.model.signals import Metrics, Producer, Signal, SignalUpdate, SignalValue
from headgate.health.service import HealthOptions, HealthService
from headgate.ids import IdMaker
from headgate.serve.application import build_http
from headgate.serve.graphql.limits import Limits
from headgate.serve.graphql.routes import graphql_routes
from headgate.serve.graphql.websocket import Timings
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from headgate.telemetry import Metrics as Meters
from headgate.telemetry import Tracing
from tests.stores import open_sqlite

ORDERS = "urn:dp:orders:created:v1"
SHIPPED = "urn:dp:orders:shipped:v1"
STOCK = "urn:dp:stock:level:v1"
COLUMN = f"urn:col:{ORDERS}:amount"
READS = ("get", "get_many", "query", "query_many")


class CountingStore:
    """A store that counts how often it is read, and how often on the event loop of the server."""

    def __init__(self, store: Store) -> None:
        self.calls: Counter[str] = Counter()
        self.on_the_loop = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in READS:
            return found

        def counted(*given: Any, **more: Any) -> Any:
            is_server = (
                threading.current_thread() is threading.main_thread() and asyncio._get_running_loop() is not None
            )
            self.on_the_loop += is_server
            self.calls[name] += 1
            return found(*given, **more)

        return counted


class Board:
    """The service and the application. `principal` is who asks from then on."""

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.clock = SystemClock()
        self.store = CountingStore(open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL))
        store = cast("Store", self.store)
        ids = IdMaker(self.clock)
        self.bus = Bus(store, self.clock, ids)
        self._parts = (store, self.clock, ids)
        self._keyring = Keyring.generate(self.clock)
        self._blobs = FolderBlobs(folder / "evidence")
        self.health = self.process()
        self.pool = WorkPool(threads_max=4, waiting_max=8)
        self.is_stopping = False
        self.watches = WatchHub(store, stopping=lambda: self.is_stopping)
        self.principal: Principal | None = LOCAL
        self.serve(self.health, limits)

    def process(self) -> HealthService:
        """Return a service that remembers nothing yet."""
        store, clock, ids = self._parts
        return HealthService(
            store,
            clock,
            ids,
            Cache(clock=clock),
            self._keyring,
            self._blobs,
            event_writes=lambda event, now_ms: self.bus.event_writes(event, now_ms),
            options=HealthOptions(tier_1_needs_ticket=False),
        )

    def serve(self, health: HealthService, limits: Limits | None = None, timings: Timings | None = None) -> None:
        """Answer for a service from now on."""
        self.probes = state = ServerProbes(
            version="1", store=cast("Store", self.store), sweepers=[], clock=self.clock, disk=Path("/")
        )
        state.phase = Phase.SERVING
        inner = build_http(
            version="1",
            probes=state,
            pool=self.pool,
            metrics=Meters(version="1"),
            tracing=Tracing(),
            clock=self.clock,
            routes=graphql_routes(health, self.pool, self.watches, limits=limits, timings=timings),
        )

        async def known(scope: Scope, receive: Receive, send: Send) -> None:
            cast("dict[str, Any]", scope)["principal"] = self.principal
            await inner(scope, receive, send)

        self.app: ASGIApp = known

    def close(self) -> None:
        self.is_stopping = True
        self.pool.close()
        self.health.close()
        cast("Store", self.store).close()

    # Putting something in.

    def register(self, urn: str, tier: Tier = Tier.TIER_1, owner: str = "orders-team") -> None:
        spec = DatasetSpec(
            display_name="Orders",
            description="What was ordered",
            tier=tier,
            owner_team=owner,
            source=Source(type="KAFKA", topic="orders"),
            schema_binding=SchemaBinding(registry="glue", schema_name="orders"),
            contract_binding=ContractBinding(required_fields=("id",), field_constraints={"id": {"minLength": 1}}),
            slos=Slos(freshness=FreshnessSlo(max_delay_seconds=900, on_silence=OnSilence.WARN)),
            gate=DatasetGate(upstream=OnUpstream.HOLD),
            tags={"domain": "sales"},
        )
        self.health.registry.create(urn, spec, actor="ann")

    def signal(
        self,
        urn: str = ORDERS,
        kind: str = "FRESHNESS",
        state: SignalState = SignalState.CRITICAL,
        count: int = 10,
        evidence: Sequence[str] = (),
    ) -> Signal:
        now_ms = int(self.clock.seconds() * 1000)
        value = SignalValue(
            state=state,
            score=0.5,
            window_start=instant(now_ms - 300_000),
            window_end=instant(now_ms),
            slo_threshold=0.99,
            metrics=Metrics(evidence_count=count, pass_count=count - 1, fail_count=1),
            failure_signature=None if state is SignalState.OK else "LATE:orders",
            top_producer=Producer(producer_id="job:orders", version="1.2", confidence=Confidence.HIGH),
            evidence_sample=tuple(evidence),
        )
        update = SignalUpdate(dataset_urn=urn, signal_type=kind, value=value, expected_version=-1)
        result = self.health.signals.update(update)
        assert result.is_success, result.message
        assert result.signal is not None
        return result.signal

    def proof(self, urn: str = ORDERS, result: Result = Result.FAIL) -> str:
        evidence = Evidence(
            dataset_urn=urn,
            validation=Validation(result=result, failed_gates=("schema",), reason_codes=("MISSING_FIELD:id",)),
        )
        kept = self.health.evidence.put(evidence)
        assert kept.evidence_id is not None
        return kept.evidence_id

    def incident_of(self, signal: Signal) -> Incident:
        assert signal.value.incident_id is not None
        return self.health.incidents.get(signal.value.incident_id)

    def tell(self, incident: Incident) -> None:
        result = Changes(oncall_user="bob@example.com", notification_state=Notification(jira_ticket="OPS-7"))
        self.health.incidents.change(incident.incident_id, result, actor="ann")

    def lineage(self, writes: Sequence[str] = (SHIPPED,)) -> None:
        self.health.lineage.update(
            LineageSpec(
                spec_id="lspec:orders-job:git:abc123",
                producer_id="orders-job",
                producer_name="Orders job",
                producer_type=EntityType.JOB,
                updated_at=instant(int(self.clock.seconds() * 1000)),
                commit="abc123",
                dataset_writes=(ORDERS,),
                column_writes=(COLUMN,),
            )
        )
        self.health.lineage.update(
            LineageSpec(
                spec_id="lspec:shipping:git:abc124",
                producer_id="shipping",
                producer_type=EntityType.SERVICE,
                updated_at=instant(int(self.clock.seconds() * 1000)),
                dataset_reads=(ORDERS,),
                dataset_writes=tuple(writes),
                column_reads=(COLUMN,),
            )
        )

    # Asking.

    def http(self, method: str, path: str = "/graphql", **more: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]  # two libraries, two names for ASGI
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as client:
                return await client.request(method, path, **more)

        return asyncio.run(run())

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return what is answered, errors and all."""
        answer = self.http("POST", json={"query": query, "variables": variables})
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    def data(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the data of an answer without errors."""
        content = self.ask(query, **variables)
        assert "errors" not in content, content
        data: dict[str, Any] = content["data"]
        return data

    def error(self, query: str, **variables: Any) -> dict[str, Any]:
        """Return the one error of an answer."""
        [error] = self.ask(query, **variables)["errors"]
        found: dict[str, Any] = error
        return found

    def code(self, query: str, **variables: Any) -> str:
        code: str = self.error(query, **variables)["extensions"]["code"]
        return code

    @asynccontextmanager
    async def stream(self, query: str, variables: Mapping[str, Any] | None = None) -> AsyncIterator[Stream]:
        """Ask for a stream, and leave it in the end."""
        stream = Stream(msgspec.json.encode({"query": query, "variables": variables or {}}))
        app = cast("Callable[..., Coroutine[Any, Any, None]]", self.app)
        task = asyncio.create_task(app(stream.scope, stream.receive, stream.send))
        try:
            yield stream
        finally:
            stream.left.set()
            await asyncio.wait_for(task, 10)


class Stream:
    """One request whose answer is read as it comes."""

    def __init__(self, body: bytes) -> None:
        headers = {
            "host": "127.0.0.1:8400",
            "accept": "text/event-stream",
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/graphql",
            "raw_path": b"/graphql",
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 5000),
            "server": ("127.0.0.1", 8400),
        }
        self.status = 0
        self.left = asyncio.Event()
        self._body: bytes | None = body
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._text = b""

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self._sent.put(message.get("body", b""))
        if not message.get("more_body"):
            await self._sent.put(None)

    async def event(self) -> tuple[str, Any] | None:
        """Return the next event and its data, or None at the end of the stream."""
        while True:
            while b"\n\n" not in self._text:
                part = await asyncio.wait_for(self._sent.get(), 10)
                if part is None:
                    return None
                self._text += part
            block, self._text = self._text.split(b"\n\n", 1)
            lines = dict(line.split(": ", 1) for line in block.decode().split("\n") if ": " in line)
            if "event" in lines:
                data = lines["data"].strip()
                return lines["event"], msgspec.json.decode(data) if data else None


@contextmanager
def open_board(folder: Path, limits: Limits | None = None) -> Iterator[Board]:
    board = Board(folder, limits)
    try:
        yield board
    finally:
        board.close()
