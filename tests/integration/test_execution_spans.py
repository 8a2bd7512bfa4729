"""Spans of executions: sampled, below their parents, carried by fan-outs, and none without tracing."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from time import monotonic, sleep

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import headgate as hg
from headgate.clock import SystemClock, VirtualClock
from headgate.durable.service import Service
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.span_export import Attribute, SpanExport, SpanRecord
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import INBOXES
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query
from headgate.telemetry import Tracing, continued, trace_id_of, traceparent
from tests.otlp_receiver import receiving
from tests.stores import open_sqlite

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NOT_SAMPLED = f"{PARENT[:-2]}00"

app = hg.App("traced")
seen: list[str] = []


@app.activity(retry=hg.Retry(attempts=1))
def charge(amount: int) -> int:
    seen.append(traceparent())
    return 10 // amount


@app.workflow
async def pay(amount: int) -> int:
    return await charge(amount)


class World:
    """A service with tracing that keeps its spans in memory."""

    def __init__(self, folder: Path, *, is_traced: bool) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = (
            Tracing.start(service_name="test", otlp_endpoint="http://unused", exporter=self.exporter)
            if is_traced
            else Tracing()
        )
        clock = SystemClock()
        self.store = open_sqlite(folder, clock=clock)
        keyring = Keyring.open(folder / "keys.json", clock)
        blobs = FolderBlobs(folder / "blobs")
        self.service = Service(app, self.store, clock, keyring, blobs, tracing=self.tracing)
        self.service.start()

    def close(self) -> dict[str, list[dict[str, str | None]]]:
        """Stop, and return trace id, parent and status of the spans by name."""
        self.service.stop(1.0)
        self.store.close()
        self.tracing.close()
        found: dict[str, list[dict[str, str | None]]] = {}
        for span in self.exporter.get_finished_spans():
            assert span.context is not None
            facts = {
                "trace": f"{span.context.trace_id:032x}",
                "id": f"{span.context.span_id:016x}",
                "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
                "status": span.status.status_code.name,
            }
            found.setdefault(span.name, []).append(facts)
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Return a world that the test closes to read its spans."""
    seen.clear()
    return World(tmp_path, is_traced=True)


def test_spans__of_an_execution_that_fails__are_one_tree_with_errors(world: World) -> None:
    with continued(PARENT), pytest.raises(hg.ExecutionFailure):
        pay.start(0).result(20)

    spans = world.close()

    (start,), (run,), turns = spans["execution.start"], spans["activity.run"], spans["execution.turn"]
    assert {each["trace"] for group in spans.values() for each in group} == {TRACE}
    assert start["parent"] == PARENT.split("-")[2]
    assert [each["parent"] for each in turns] == [start["id"]] * 2
    assert run["parent"] in [each["id"] for each in turns]
    assert (run["status"], sorted(str(each["status"]) for each in turns)) == ("ERROR", ["ERROR", "UNSET"])
    # The code of the activity is below its own span.
    assert seen == [f"00-{TRACE}-{run['id']}-01"]


def test_spans__of_a_trace_that_is_not_sampled__are_not_recorded_and_the_context_is_carried(world: World) -> None:
    with continued(NOT_SAMPLED):
        pay.start(1).result(20)

    assert world.close() == {}
    assert trace_id_of(seen[0]) == TRACE


def test_spans__of_an_execution_without_a_caller__begin_a_trace(world: World) -> None:
    pay.start(1).result(20)

    spans = world.close()

    assert len({each["trace"] for group in spans.values() for each in group}) == 1
    assert spans["execution.start"][0]["parent"] is None


def test_context__without_tracing__is_carried_and_nothing_is_recorded(tmp_path: Path) -> None:
    world = World(tmp_path, is_traced=False)
    seen.clear()
    with continued(PARENT):
        handle = pay.start(1)
        handle.result(20)
    assert world.service.client.get(handle.id).traceparent == PARENT
    pay.start(2).result(20)

    assert world.close() == {}
    assert seen == [PARENT, ""]


def test_export__of_many_spans__all_arrive_and_a_full_queue_drops() -> None:
    with receiving() as receiver:
        export = SpanExport(f"{receiver.url}/v1/traces", service_name="test", timeout_seconds=5.0)
        for number in range(3_000):
            attributes: dict[str, Attribute] = {"number": number, "name": "x", "share": 0.5, "is_odd": bool(number % 2)}
            export.put(SpanRecord("turn", PARENT, NOT_SAMPLED, number, number + 1, attributes, links=(PARENT,)))
        export.close()
        spans = receiver.spans("turn")
    assert len(spans) == 3_000
    assert spans[1].attributes == {"number": "1", "name": "x", "share": "0.5", "is_odd": "True"}
    assert (spans[1].trace_id, spans[1].links) == (TRACE, (TRACE,))

    export = SpanExport("http://127.0.0.1:9/v1/traces", service_name="test", timeout_seconds=0.2, queue_max=0)
    for number in range(15):
        export.put(SpanRecord("turn", PARENT, "", number, number, {}))
    # Before the thread could have tried to send them: that it fails would count as dropped, too.
    assert export.dropped == 15
    export.close()


def test_export__spans_without_a_pause__are_sent_once_a_second_and_not_as_they_come() -> None:
    with receiving() as receiver:
        export = SpanExport(f"{receiver.url}/v1/traces", service_name="test", timeout_seconds=5.0)
        count, ends_at = 0, monotonic() + 2.5
        while monotonic() < ends_at:
            export.put(SpanRecord("turn", PARENT, "", count, count, {}))
            count += 1
            sleep(0.002)
        export.close()

        assert len(receiver.spans()) == count
        assert receiver.requests <= 4


def test_export__collector_answers_with_something_else_than_http__the_next_spans_are_sent() -> None:
    replies = (b"no status line\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    answered = threading.Semaphore(0)

    def answer(listener: socket.socket) -> None:
        for reply in replies:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(reply)
            answered.release()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20.0)
        threading.Thread(target=answer, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"
        export = SpanExport(url, service_name="test", timeout_seconds=5.0)
        for number in range(len(replies)):
            export.put(SpanRecord("turn", PARENT, "", number, number, {}))
            assert answered.acquire(timeout=20.0), f"request {number} was not sent"
        export.close()
    assert export.dropped == 1


def test_fan_out__submitted_within_a_trace__its_row_and_the_signal_of_its_end_have_the_context(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = open_sqlite(tmp_path, clock=clock)
    try:
        fanouts = FanoutService(store, clock, IdMaker(clock))
        order = Order(group="nightly", chunk_size=10, handler="jobs:process", waiter="p", waiter_signal="done")
        with continued(PARENT):
            fanout = fanouts.splitter.split(order, RangeSource(0, 20), run_id="monday")
        assert fanout.traceparent == PARENT
        fanouts.control.cancel("monday")
        fanouts.maintenance.maintain("monday")
        sent = store.query(Query(table=INBOXES, partition="p")).items
        assert [item["traceparent"] for item in sent] == [PARENT]
    finally:
        store.close()
