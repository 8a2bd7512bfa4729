"""Traces of a server and a worker, as an OTLP receiver gets them: one tree from the caller to the last activity."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import httpx

from tests.acceptance.program import PROGRAM, Server, until
from tests.otlp_receiver import ReceivedSpan, receiving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = f"00-{TRACE}-00f067aa0ba902b7-01"
SIGNAL_TRACE = "0af7651916cd43dd8448eb211c80319c"
APP = """
import logging

import headgate as hg

app = hg.App("shop")


@app.activity
def charge(amount: int) -> int:
    logging.getLogger("shop").warning("charging the card")
    hg.emit("card.charged", amount)
    return amount


@app.activity(isolate=True)
def print_receipt(amount: int) -> str:
    hg.emit("receipt.printed", amount)
    return f"receipt {amount}"


@app.on_event("card.charged")
def note(event: hg.Event) -> None:
    logging.getLogger("shop").warning("noted")


@app.workflow
async def ship(amount: int) -> str:
    logging.getLogger("shop").warning("shipping")
    return await print_receipt(amount)


@app.workflow
async def pay(amount: int) -> str:
    await charge(amount)
    await hg.wait_signal("approved")
    return await ship(amount)
"""


def test_trace__of_a_call_over_http__leads_through_turns_activities_children_signals_and_events(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    with receiving() as receiver:
        environ = {"HEADGATE_TELEMETRY_TRACING": "true", "HEADGATE_TELEMETRY_OTLP_ENDPOINT": receiver.url}
        logs = tmp_path / "worker.log"
        with Server(tmp_path, **environ) as server, logs.open("wb") as err:
            worker = subprocess.Popen(
                [str(PROGRAM), "worker", "--app", "shop:app"],
                cwd=tmp_path,
                env={"PATH": os.environ["PATH"], "HEADGATE_LOG_FORMAT": "json", **environ},
                stdout=subprocess.PIPE,
                stderr=err,
            )
            assert worker.stdout is not None
            worker.stdout.readline()
            try:
                body = {"workflow": "pay", "input": 5, "id": "p"}
                url = f"{server.url}/api/v1/executions"
                httpx.post(url, json=body, headers={"traceparent": CALLER}).raise_for_status()
                until(
                    lambda: '"signal"' in json.dumps(server.get("/executions/p").get("waits_for", [])), "the wait", 60
                )
                other = f"00-{SIGNAL_TRACE}-b7ad6b7169203331-01"
                sent = httpx.post(f"{url}/p/signals", json={"name": "approved"}, headers={"traceparent": other})
                sent.raise_for_status()
                until(lambda: server.get("/executions/p")["status"] == "SUCCEEDED", "the end", 60)
                until(lambda: "noted" in logs.read_text(), "the delivery of the event", 60)
            finally:
                worker.terminate()
                worker.wait(60)
                worker.stdout.close()
            server.signal(signal.SIGTERM)
            assert server.exit_code(60) == 0
        spans = receiver.spans()

    by_id = {span.span_id: span for span in spans}

    def path(span: ReceivedSpan) -> list[str]:
        above = by_id.get(span.parent_id)
        return [span.name, *([] if above is None else path(above))]

    by_activity = {span.attributes["headgate.activity"]: span for span in receiver.spans("activity.run")}
    request = ["http.request"]
    assert path(by_activity["charge"]) == ["activity.run", "execution.turn", "execution.start", *request]
    # The child is below the turn of its parent; the signal of another trace is a link.
    turns = ["activity.run", "execution.turn", "execution.turn", "execution.start", *request]
    assert path(by_activity["print_receipt"]) == turns
    assert {span.trace_id for span in spans if span.name.startswith(("execution", "activity", "event"))} == {TRACE}
    assert [span.links for span in receiver.spans("execution.turn") if span.links] == [(SIGNAL_TRACE,)]
    # The event of the activity is delivered below it.
    (delivered,) = receiver.spans("event.deliver")
    assert path(delivered)[:2] == ["event.deliver", "activity.run"]
    assert all(span.start_ns <= span.end_ns for span in spans)

    lines = [json.loads(line) for line in logs.read_text().splitlines() if line.startswith("{")]
    logged = {line["event"]: line for line in lines if line.get("logger") == "shop"}
    assert {name: line["trace_id"] for name, line in logged.items()} == dict.fromkeys(
        ["charging the card", "shipping", "noted"], TRACE
    )
    assert logged["charging the card"]["execution_id"] == "p"
    assert logged["shipping"]["execution_id"].startswith("p")
