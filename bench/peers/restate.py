"""A single Restate node with its default settings, and a Python service behind it.

Runs in the peers' environment and prints one `Answer`. The server and the service are processes of their own,
as they are where Restate is used.
"""
# The peers' packages are not in the environment that checks types.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import httpx

from bench.peers.answer import WARM_UP_EXECUTIONS, WARM_UP_STEPS, Answer, Shape, asked, middle, nearly_worst, rate, tell
from bench.peers.server import HOST, POLL_SECONDS, START_SECONDS_MAX, StartError, free_ports, server

REQUEST_SECONDS_MAX = 60.0


def main() -> None:
    folder, shape = asked()
    program = _program()
    ingress, admin, node, service = free_ports(4)
    settings = {
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_INGRESS__BIND_PORT": str(ingress),
        "RESTATE_ADMIN__BIND_PORT": str(admin),
    }
    options = ["--bind-ip", HOST, "--bind-port", str(node), "--listen-mode", "tcp", "--no-logo"]
    # Zero workers: the service is one process, not a parent and a child that would outlive it.
    hypercorn = [sys.executable, "-m", "hypercorn", "--workers", "0", "--bind", f"{HOST}:{service}"]
    with ExitStack() as running:
        running.enter_context(
            server(
                [str(program), "--base-dir", str(folder / "restate"), *options],
                port=admin,
                log=folder / "restate-server.log",
                settings=settings,
            )
        )
        running.enter_context(
            server([*hypercorn, "bench.peers.restate_service:app"], port=service, log=folder / "service.log")
        )
        answer = asyncio.run(_measure(program, shape, ingress=ingress, admin=admin, service=service))
    tell(answer)


async def _measure(program: Path, shape: Shape, *, ingress: int, admin: int, service: int) -> Answer:
    limits = httpx.Limits(max_connections=shape.executions)
    async with httpx.AsyncClient(
        base_url=f"http://{HOST}:{ingress}/peers/", timeout=REQUEST_SECONDS_MAX, limits=limits
    ) as client:
        await _register(client, f"http://{HOST}:{admin}/deployments", f"http://{HOST}:{service}")
        await serial(client, WARM_UP_STEPS)
        await at_once(client, WARM_UP_EXECUTIONS, 2)
        # Before the burst, whose many connections slow the client down.
        samples = await starts(client, shape.starts)
        return Answer(
            peer="Restate",
            version=f"{_words(program, '--version').split()[-1]}, SDK {version('restate-sdk')}",
            durability=durability(program),
            serial_per_second=await serial(client, shape.serial_steps),
            at_once_per_second=await at_once(client, shape.executions, shape.steps),
            start_p50_ms=middle(samples),
            start_p99_ms=nearly_worst(samples),
        )


async def serial(client: httpx.AsyncClient, steps: int) -> float:
    started = perf_counter()
    await _walk(client, steps)
    return rate(steps, started)


async def at_once(client: httpx.AsyncClient, executions: int, steps: int) -> float:
    started = perf_counter()
    await asyncio.gather(*(_walk(client, steps) for _ in range(executions)))
    return rate(executions * steps, started)


async def starts(client: httpx.AsyncClient, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        started = perf_counter()
        response = (await client.post("first_line")).raise_for_status()
        samples.append((response.json() - started) * 1000)
    return samples


async def _walk(client: httpx.AsyncClient, steps: int) -> None:
    (await client.post("walk", json=steps)).raise_for_status()


async def _register(client: httpx.AsyncClient, deployments: str, service: str) -> None:
    """Make the service known, and return when the server has answered a call to it."""
    deadline = perf_counter() + START_SECONDS_MAX
    registered = False
    while perf_counter() < deadline:
        if not registered:
            response = await client.post(deployments, json={"uri": service})
            registered = response.is_success
        else:
            response = await client.post("walk", json=1)
            if response.is_success:
                return
        await asyncio.sleep(POLL_SECONDS)
    raise StartError(f"Restate did not take the service: {response.status_code} {response.text.strip()}")


def durability(program: Path) -> str:
    """Say how the server keeps its log, from the settings that it prints itself."""
    settings = tomllib.loads(_words(program, "--dump-config"))
    provider = settings["bifrost"]["default-provider"]
    log = settings["log-server"] if provider == "replicated" else settings["bifrost"][provider]
    synced = "off" if log["rocksdb-disable-wal-fsync"] else "on"
    return f"one node, {provider} log of {settings['default-replication']} copy in RocksDB, fsync of its WAL {synced}"


def _program() -> Path:
    found = list(Path(sys.prefix).glob("npm/node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise StartError("the npm package has no restate-server for this platform")
    return found[0]


def _words(program: Path, option: str) -> str:
    return subprocess.run([program, option], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
