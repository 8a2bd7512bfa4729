"""Servers whose pages are measured: `headgate up` on a home, and beside it a bare Litestar application with one page.

`python -m bench.pages_server` serves the bare page until it is terminated, and prints its port first.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from litestar import Litestar, MediaType, get

_STOP_SECONDS: Final = 30.0
_HTML: Final = "<!doctype html><title>Bare</title><h1>Bare</h1>" + "<p>A line of a page, of a usual length.</p>\n" * 700


class Serving(NamedTuple):
    """A server that accepts requests."""

    port: int
    pid: int


@contextmanager
def serving(home: Path, *options: str, project: Path | None = None) -> Iterator[Serving]:
    """Run `headgate up` on a home."""
    program = str(Path(sys.executable).with_name("headgate"))
    command = [program, "up", "--home", str(home), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", *options]
    environ = {**os.environ, **({} if project is None else {"HEADGATE_PROJECT": str(project)})}
    with _process(command, cwd=project, environ=environ) as (process, line):
        yield Serving(int(line.split("http=http://127.0.0.1:")[1].split()[0]), process.pid)


@contextmanager
def bare() -> Iterator[Serving]:
    """Run the bare application."""
    with _process([sys.executable, "-m", "bench.pages_server"], environ=dict(os.environ)) as (process, line):
        yield Serving(int(line), process.pid)


@contextmanager
def _process(
    command: Sequence[str], *, environ: dict[str, str], cwd: Path | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ, cwd=cwd
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


def main() -> None:
    @get("/", media_type=MediaType.HTML)
    async def page() -> str:
        return _HTML

    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = uvicorn.Server(uvicorn.Config(Litestar([page], openapi_config=None), log_level="error"))
    print(listening.getsockname()[1], flush=True)
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
