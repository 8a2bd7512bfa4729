"""Open pages without browsers: a stream each, and on each message the request of the page's script for new content.

`python -m bench.pages_watchers PORT COUNT` reads a command a line: `open` opens the pages and answers when each is
live, `close` closes them and answers with what they saw.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import uvloop

# The pages that are open, and of how many of a hundred.
ADDRESSES: Final = {
    "/ui": 60,
    "/ui/incidents": 10,
    "/ui/datasets": 10,
    "/ui/datasets/urn%3Adp%3Abench%3Aset00000%3Av1": 10,
    "/ui/pipelines": 10,
}
# What a change leaves on the first page.
MARK: Final = re.compile(rb"LATE:bench-(\d+)")
_AT_ONCE: Final = 20
_RETRY_SECONDS: Final = 1.0
_OPEN_SECONDS_MAX: Final = 60.0
_CHANGES: Final = re.compile(rb'data-changes="([^"]+)"')
_AS_OF: Final = re.compile(rb'"as_of":"([^"]+)"')
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_ETAG: Final = re.compile(rb'etag: ("[^"]+")', re.IGNORECASE)


class Seen:
    """What all pages together saw."""

    def __init__(self) -> None:
        self.messages = 0
        self.fetched = 0
        self.unchanged = 0
        self.refused = 0
        self.received_bytes = 0
        # When each page first showed each change, by the number of the change.
        self.shown_at: dict[int, list[float]] = defaultdict(list)


class Watcher:
    """One open page."""

    def __init__(self, port: int, address: str, seen: Seen) -> None:
        self._port = port
        self._address = address
        self._seen = seen
        self._shown: set[int] = set()
        self._etag = b""
        self.live = asyncio.Event()

    async def run(self) -> None:
        asking = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while True:
                _, whole = await self._ask(asking)
                found = _CHANGES.search(whole)
                if found is not None:
                    await self._follow(asking, found[1].replace(b"&amp;", b"&"))
                # Refused under load, or the stream has ended.
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            asking[1].close()

    async def _follow(self, asking: Any, changes: bytes) -> None:  # noqa: ANN401 - the two streams
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % (changes, self._port))
        try:
            if not (await reader.readline()).startswith(b"HTTP/1.1 200"):
                return
            async for line in reader:
                message = _AS_OF.search(line)
                if message is not None:
                    self._seen.messages += 1
                    await self._refetch(asking, message[1])
                    self.live.set()
        finally:
            writer.close()

    async def _refetch(self, connection: Any, as_of: bytes) -> None:  # noqa: ANN401 - the two streams
        # Refused under load: the page's script asks again, as soon as here.
        while not await self._fetch(connection, as_of):
            await asyncio.sleep(0.3 + 0.4 * random.random())

    async def _fetch(self, connection: Any, as_of: bytes) -> bool:  # noqa: ANN401 - the two streams
        headers = b"headgate-fragment: main\r\nheadgate-as-of: %s\r\n" % as_of
        if self._etag:
            headers += b"if-none-match: %s\r\n" % self._etag
        head, body = await self._ask(connection, headers)
        status, etag = head[9:12], _ETAG.search(head)
        self._seen.fetched += status == b"200"
        self._seen.unchanged += status == b"304"
        self._seen.refused += status not in (b"200", b"304")
        self._seen.received_bytes += len(head) + len(body)
        if etag is not None:
            self._etag = etag[1]
        now = time.monotonic()
        for number in {int(each) for each in MARK.findall(body)} - self._shown:
            self._shown.add(number)
            self._seen.shown_at[number].append(now)
        return status in (b"200", b"304")

    async def _ask(self, connection: Any, headers: bytes = b"") -> tuple[bytes, bytes]:  # noqa: ANN401 - the two streams
        reader, writer = connection
        writer.write(b"GET %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n%s\r\n" % (self._address.encode(), self._port, headers))
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return head, await reader.readexactly(0 if length is None else int(length[1]))


def batched(watchers: list[Watcher]) -> Iterator[list[Watcher]]:
    """Go through some at a time: a server refuses pages that are all opened in one moment."""
    for start in range(0, len(watchers), _AT_ONCE):
        yield watchers[start : start + _AT_ONCE]


async def serve(port: int, count: int) -> None:
    """Follow the commands of standard input."""
    loop = asyncio.get_running_loop()
    addresses = [each for each, share in ADDRESSES.items() for _ in range(count * share // 100)]
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        assert line == "open\n"
        seen = Seen()
        watchers = [Watcher(port, each, seen) for each in addresses]
        tasks = []
        for some in batched(watchers):
            tasks += [asyncio.create_task(each.run()) for each in some]
            async with asyncio.timeout(_OPEN_SECONDS_MAX):
                await asyncio.gather(*(each.live.wait() for each in some))
        print(len(watchers), flush=True)
        seen.__init__()  # type: ignore[misc]  # from here on
        began, cpu = time.monotonic(), time.process_time()
        assert await loop.run_in_executor(None, sys.stdin.readline) == "close\n"
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        print(json.dumps({**vars(seen), "cpu_share": share}), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2])))
