"""Served operations: those of a server on an empty home."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from headgate.clock import SystemClock
from headgate.durable.sdk.app import App
from headgate.serve.components import open_components
from headgate.serve.http.openapi import server_document
from headgate.serve.http.operations import Operation, OperationHandler
from headgate.serve.routes import rest_routes
from headgate.serve.rpc.methods import Method
from headgate.serve.rpc.statestore.service import statestore_methods
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub
from headgate.settings import Settings
from headgate.telemetry import Tracing


class Served(NamedTuple):
    """The REST operations with their OpenAPI document, and the RPC methods."""

    operations: Sequence[Operation]
    document: dict[str, Any]
    methods: Sequence[Method]


@functools.cache
def served() -> Served:
    """Return what a server on a home of its own serves."""
    clock = SystemClock()
    with (
        tempfile.TemporaryDirectory() as home,
        open_components(
            Settings(home=Path(home)),
            version="",
            clock=clock,
            tracing=Tracing(),
            app=App("headgate"),
            environ={},
        ) as components,
        closing(WorkPool()) as pool,
    ):
        routes = rest_routes(components, pool, clock)
        bus, watches = components.service.bus, WatchHub(components.service.store)
        methods = statestore_methods(components.health, bus, watches=watches, pool=pool, local_reads=True)
        document = server_document(routes, "")
    operations = [
        operation for route in routes if isinstance(route, OperationHandler) for operation in route.operations
    ]
    return Served(sorted(operations, key=lambda each: (each.path, each.method)), document, methods)
