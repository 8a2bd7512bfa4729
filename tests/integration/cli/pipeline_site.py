"""Pipelines and alerts behind a real port, in virtual time, and the program's commands beside them."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import structlog
from litestar.types import ASGIApp

import headgate as hg
from headgate.cli.pipelines.explain import why
from headgate.cli.pipelines.plan import diff, plan
from headgate.notify.alerts import Alerts
from headgate.notify.channels.factory import open_channels
from headgate.notify.configuration import parse_config
from headgate.notify.deliverer import Deliverer
from headgate.notify.mutes import Mutes
from headgate.notify.notifier import Notifier
from headgate.serve.application import build_http
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.probes import Phase, ServerProbes
from headgate.serve.rest.pipelines.alerts import alert_routes
from headgate.serve.rest.pipelines.pipelines import pipeline_routes
from headgate.settings import Address
from headgate.telemetry import Metrics, Tracing
from tests.integration.serve.pipeline_rig import PipelineApi
from tests.unit.cli.program import invoke
from tests.unit.notify.rig import surroundings

COMMANDS = {"why": why, "plan": plan, "diff": diff}
CHANNELS = {"channels": {"ops": {"kind": "file", "path": "ops.jsonl"}}}


class Site:
    """One server in virtual time. `settle` of its `api` has everything happen that can."""

    def __init__(self, env: hg.testing.Environment, folder: Path) -> None:
        self.folder = folder
        self.env = env
        self.api = PipelineApi(env, folder)
        self.app = self._application(folder)
        self.url = ""
        self.api.settle()

    def _application(self, folder: Path) -> ASGIApp:
        service, clock = self.env.service, self.env.clock
        config = parse_config(CHANNELS)
        channels = open_channels(config, surroundings(service.store, clock, folder))
        alerts = Alerts(service.store, clock, service.bus, lambda writes, _change: service.store.transact(list(writes)))
        mutes = Mutes(service.store, clock, service.ids, lambda writes, _change: service.store.transact(list(writes)))
        self.notifier = Notifier(service.store, clock, service.ids, service.bus, config, alerts, mutes)
        deliverer = Deliverer(clock, service.ids, service.bus, alerts, channels)
        health = ServerProbes(version="1.2.3", store=service.store, sweepers=[], clock=clock, disk=folder)
        health.phase = Phase.SERVING
        pool = self.api.pool
        return build_http(
            version="1.2.3",
            probes=health,
            pool=pool,
            metrics=Metrics(version="1.2.3"),
            tracing=Tracing(),
            clock=clock,
            routes=[
                *pipeline_routes(self.api.pipelines, service.bus, pool),
                *alert_routes(alerts, mutes, deliverer, clock, pool, channels=list(channels)),
            ],
        )

    # The program.

    def run(self, *arguments: str) -> Any:
        return invoke(arguments, {"HEADGATE_SERVER": self.url})

    def said(self, *arguments: str, exit_code: int = 0) -> str:
        """Run a command that ends so, and return what it printed."""
        ended = self.run(*arguments)
        assert ended.exit_code == exit_code, f"{arguments}: {ended.output} {ended.exception!r}"
        text: str = ended.stdout
        return text

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))

    def write(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)


@contextmanager
def site_in(folder: Path) -> Iterator[Site]:
    with ExitStack() as exits:
        # The server is in this process, and its log would be taken for what commands print.
        exits.callback(structlog.configure, **structlog.get_config())
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        env = exits.enter_context(hg.testing.Environment(hg.App("pipes"), replay_always=False))
        made = Site(env, folder)
        exits.callback(made.api.pool.close)
        made.url = exits.enter_context(_served(made.app))
        yield made


@contextmanager
def _served(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a port of its own, from a thread of its own."""
    http = HttpServer(Address("127.0.0.1", 0))
    listens, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        await http.start(app, grace_seconds=1)
        listens.set()
        await asyncio.to_thread(stop.wait)
        await http.drain()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="serves the site")
    thread.start()
    try:
        assert listens.wait(30), "the site does not listen"
        yield f"http://127.0.0.1:{http.address.port}"
    finally:
        stop.set()
        thread.join(30)
        http.close()
