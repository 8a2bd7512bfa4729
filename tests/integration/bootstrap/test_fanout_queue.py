"""Fan-outs of an opened store send their messages to SQS over one client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headgate.bootstrap.store import open_fanouts, open_store
from headgate.clock import SystemClock
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.sources import RangeSource
from headgate.ids import IdMaker
from headgate.settings import FanoutSettings, Settings, StoreSettings


class Queue(ThreadingHTTPServer):
    """Accepts every batch of messages, and counts connections and requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections = 0
        self.batches = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Queue

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        entries = request.get("Entries", [])
        self.server.batches += bool(entries)
        done = [{"Id": each["Id"], "MessageId": each["Id"], "MD5OfMessageBody": ""} for each in entries]
        answer = {"Successful": done, "Failed": []} if entries else {"Attributes": {"QueueArn": "arn:aws:sqs:::chunks"}}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_given: object) -> None:
        pass


@pytest.fixture
def queue() -> Iterator[Queue]:
    server = Queue()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_open_fanouts__two_fan_outs_with_a_queue__are_sent_over_one_client(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    clock = SystemClock()
    store = StoreSettings(aws_region="eu-west-1", aws_endpoint_url=queue.url)
    fanout = FanoutSettings(queues=(f"{queue.url}/1/*",))
    opened = open_store(Settings(home=tmp_path, store=store, fanout=fanout), clock)
    with closing(opened.store):
        fanouts = open_fanouts(opened, clock, IdMaker(clock))
        for run_id in ("one", "two"):
            order = Order(group="g", chunk_size=1, queue_url=f"{queue.url}/1/chunks")
            fanouts.splitter.split(order, RangeSource(0, 1), run_id=run_id)

    assert (queue.batches, queue.connections) == (2, 1)
