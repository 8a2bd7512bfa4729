"""A bare HTTP server as a process of its own: reads whole requests, and answers each with the same bytes.

The yardstick of loads at set times: what the machine and the load generator allow in the same seconds.
`python -m bench.bare_server` says on standard output where it listens, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import uvloop

from headgate.settings import Address

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "
# As long as a signal.
_BODY: Final = b"x" * 160
_ANSWER: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
_STOP_SECONDS: Final = 10.0


@contextmanager
def serving() -> Iterator[Address]:
    """Give the address of a bare server, which ends with the block."""
    command = [sys.executable, "-m", "bench.bare_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield Address("127.0.0.1", port)
        finally:
            process.stdin.close()
            process.wait(_STOP_SECONDS)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        received = self._received = self._received + data if self._received else data
        end = received.find(_END)
        if end < 0:
            return
        start = received.find(_LENGTH) + len(_LENGTH)
        if len(received) < end + len(_END) + int(received[start : received.find(b"\r\n", start)]):
            return
        self._received = b""
        self._transport.write(_ANSWER)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    ended = asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=wait, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
