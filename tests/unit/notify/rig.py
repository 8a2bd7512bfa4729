"""Alerts as wiring puts them together: a store, the bus with a worker, the notifier, and channels that really send."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from headgate.clock import Clock, VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.durable.bus.events import Event
from headgate.durable.model.records import NEVER_MS
from headgate.durable.sdk.app import App
from headgate.durable.service import Service
from headgate.ids import IdMaker
from headgate.notify.alert_rows import Alert
from headgate.notify.alerts import Alerts
from headgate.notify.channels.factory import ChannelDependencies, open_channels
from headgate.notify.configuration import parse_config
from headgate.notify.deliverer import QUEUE, Deliverer, register
from headgate.notify.enums import AlertAction, DefaultRoute, DeliveryState, Severity
from headgate.notify.messages import Message
from headgate.notify.mutes import AlertAudit, Mutes
from headgate.notify.notices import NO_AUDIENCE, Audience, Notice, event_type
from headgate.notify.notifier import Notifier
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Write
from tests.stores import open_sqlite

LOOPBACK = Destinations(networks=("127.0.0.0/8", "::1/128"), plain_http=True)
TWO_FILES = {"ops": {"kind": "file", "path": "ops.jsonl"}, "backup": {"kind": "file", "path": "backup.jsonl"}}


class World:
    """Everything on one SQLite file, in the thread of the test, on a clock that stands still until it is moved."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, **audiences: Audience) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self.ids = IdMaker(self.clock)
        self.app = App("alerts")
        keyring = Keyring.open(folder / "keys.json", self.clock)
        self.service = Service(self.app, self.store, self.clock, keyring, FolderBlobs(folder / "blobs"))
        self.bus = self.service.bus
        self.config = parse_config(config or {"channels": TWO_FILES, "defaults": {"page": ["ops"], "notify": ["ops"]}})
        self.audited: list[AlertAudit] = []
        # What has ended troubles, by their keys.
        self.ended_by: dict[str, str] = {}
        self.alerts = Alerts(self.store, self.clock, self.bus, self._commit)
        self.mutes = Mutes(self.store, self.clock, self.ids, self._commit)
        self.channels = open_channels(self.config, surroundings(self.store, self.clock, folder))
        self.notifier = Notifier(
            self.store,
            self.clock,
            self.ids,
            self.bus,
            self.config,
            self.alerts,
            self.mutes,
            audience_of=lambda pipeline_id: audiences.get(pipeline_id, NO_AUDIENCE),
            ended_by=lambda notice: self.ended_by.get(notice.dedup_key, ""),
        )
        self.deliverer = Deliverer(self.clock, self.ids, self.bus, self.alerts, self.channels)
        register(self.app, self.notifier, self.deliverer, list(self.channels), self.config.routes)
        self.worker = self.service.worker(queues=(QUEUE,))
        self.worker.join()

    def close(self) -> None:
        self.store.close()

    def run(self) -> None:
        """Deliver everything that can be delivered without time passing."""
        for _ in range(1_000):
            self.worker.poll()
            if not self.worker.queue:
                return
            while self.worker.queue:
                self.worker.perform(self.worker.queue.popleft())
        raise AssertionError("deliveries make deliveries without end")

    def advance(self, seconds: float) -> None:
        """Let time pass, with every retry at its time."""
        until = self.clock.seconds() + seconds
        self.run()
        while (due_ms := self.worker.schedule.next_due_ms) < NEVER_MS and due_ms / 1000 <= until:
            self.clock.advance(max(0.0, due_ms / 1000 - self.clock.seconds()))
            self.run()
        self.clock.advance(max(0.0, until - self.clock.seconds()))
        self.run()

    def sent(self, channel: str = "ops") -> list[dict[str, Any]]:
        """Return what a file channel received, in order."""
        path = self.folder / f"{channel}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def titles(self, channel: str = "ops") -> list[str]:
        return [each["title"] for each in self.sent(channel)]

    def break_channel(self, channel: str) -> None:
        """Make a file channel fail: its path is a folder."""
        (self.folder / f"{channel}.jsonl").mkdir()

    def repair_channel(self, channel: str) -> None:
        (self.folder / f"{channel}.jsonl").rmdir()

    def emit(self, notice: Notice) -> None:
        """Put a notice on the bus as its own part of the product does, and let everything be delivered."""
        self.publish(notice)
        self.run()

    def publish(self, notice: Notice) -> None:
        """Put a notice on the bus, and deliver nothing yet."""
        data = msgspec.to_builtins(notice)
        self.bus.emit(Event(id=notice.event_id, type=event_type(notice.event), source="/test", data=data))

    def notice(self, **changes: Any) -> Notice:
        return a_notice(self.ids.ulid(), int(self.clock.seconds() * 1000), **changes)

    def _commit(self, writes: Sequence[Write], change: AlertAudit) -> None:
        self.store.transact(writes)
        self.audited.append(change)


def surroundings(store: Any, clock: Clock, folder: Path, **more: Any) -> ChannelDependencies:
    return ChannelDependencies(store=store, clock=clock, ids=IdMaker(clock), home=folder, destinations=LOOPBACK, **more)


def sent_to(alert: Alert) -> list[str]:
    """Return the channels that an alert was sent to, sorted."""
    sent = [name for name, delivery in alert.deliveries.items() if delivery.state is DeliveryState.SENT]
    return sorted(name.removesuffix("#trigger") for name in sent if name.endswith("#trigger"))


def a_notice(event_id: str, at_ms: int, **changes: Any) -> Notice:
    event = changes.pop("event", "JOB_FAILED")
    pipeline_id = changes.pop("pipeline_id", "orders")
    facts: dict[str, Any] = {
        "event": event,
        "event_id": event_id,
        "severity": Severity.CRITICAL,
        "route": DefaultRoute.PAGE,
        "alerts": True,
        "is_news": True,
        "text": f"{pipeline_id} daily 2026-03-03: the job failed",
        "dedup_key": f"{event}#{pipeline_id}#daily#2026-03-03",
        "at_ms": at_ms,
        "pipeline_id": pipeline_id,
        "schedule_id": "daily",
        "date": "2026-03-03",
    }
    return Notice(**{**facts, **changes})


def a_message(**changes: Any) -> Message:
    facts: dict[str, Any] = {
        "message_id": "alert_01-trigger",
        "alert_id": "alert_01",
        "action": AlertAction.TRIGGER,
        "event": "JOB_FAILED",
        "severity": Severity.CRITICAL,
        "title": "orders daily 2026-03-03: the job failed",
        "lines": ("error: exit 1",),
        "dedup_key": "JOB_FAILED#orders#daily#2026-03-03",
        "at_ms": 1_750_000_000_000,
        "pipeline_id": "orders",
        "schedule_id": "daily",
        "date": "2026-03-03",
        "hint": "look at the log",
        "detail": {"error": "exit 1"},
    }
    return Message(**{**facts, **changes})


class Request:
    """What a service was sent."""

    def __init__(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# The status, the headers and the JSON that a service answers with.
Reply = tuple[int, dict[str, str], Any]


class LocalService(ThreadingHTTPServer):
    """A service over HTTP on this machine. `answer` is asked for every request, from many threads."""

    daemon_threads = True

    def __init__(self, answer: Callable[[Request], Reply | None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.received: list[Request] = []
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of these tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body)
        self.server.received.append(request)
        reply = self.server.answer(request)
        if reply is None:
            # Never answers.
            self.server.released.wait(10)
            return
        status, more, value = reply
        sent = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {**more, "content-length": str(len(sent)), "content-type": "application/json"}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        return
