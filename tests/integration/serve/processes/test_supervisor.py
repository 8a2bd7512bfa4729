"""Serving processes that cannot start: they are started again, later each time, and do not delay the end."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from headgate.clock import SystemClock
from headgate.serve.http.connection.listener import HttpServer
from headgate.serve.processes.server_memory import ServerMemory
from headgate.serve.processes.supervisor import ServingProcesses
from headgate.serve.runtime.merged_metrics import MergedRegistry
from headgate.settings import Address, Settings
from headgate.store.cache.read_through import Cache

FREE = Address("127.0.0.1", 0)
DEADLINE_SECONDS = 60.0
CLOSED_DESCRIPTOR = 1_000_000


async def _unused(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("no process serves")


def test_processes__that_cannot_open_the_store__are_started_again_and_drained_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        clock, registry, memory = SystemClock(), MergedRegistry(), ServerMemory.create(2)
        # Moved away since the server has started.
        settings = Settings(home=tmp_path / "gone")
        cache = Cache(clock=clock, peer_changes=memory.changes)
        processes = ServingProcesses(settings, clock, memory, version="1", cache=cache, registry=registry)
        with closing(HttpServer(FREE, shared=memory.connections)) as http:
            processes.start(_unused, listening=http.fileno(), http=http.address, grpc=FREE)
            async with asyncio.timeout(DEADLINE_SECONDS):
                while processes.restarts < 2:
                    await asyncio.sleep(0.02)
            assert processes.ready_count == 1
            await processes.collect_metrics()
            assert registry.get_sample_value("headgate_serving_processes") == 1
            assert (registry.get_sample_value("headgate_serving_process_restarts_total") or 0) >= 2
            # The grace period is for requests, of which there are none.
            async with asyncio.timeout(DEADLINE_SECONDS):
                await processes.drain(2 * DEADLINE_SECONDS)
            assert await processes.wait_ready(lambda: True) is False

    asyncio.run(run())
    assert not (tmp_path / "gone").exists()


def test_processes__that_the_system_cannot_start__are_tried_again() -> None:
    async def run() -> None:
        clock, memory = SystemClock(), ServerMemory.create(2)
        cache = Cache(clock=clock, peer_changes=memory.changes)
        processes = ServingProcesses(Settings(), clock, memory, version="1", cache=cache, registry=MergedRegistry())
        # A descriptor that cannot be passed on fails the start, as a lack of memory or of processes does.
        processes.start(_unused, listening=CLOSED_DESCRIPTOR, http=FREE, grpc=FREE)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while processes.restarts < 2:
                await asyncio.sleep(0.02)
            await processes.drain(2 * DEADLINE_SECONDS)

    asyncio.run(run())
