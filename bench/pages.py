"""Pages: how long the largest take, what they weigh, how soon a change is on open ones, and what those cost the API.

The yardstick of times is a bare Litestar application with one page, asked by turns in the same run. The yardstick of
the API under load is the same API without open pages, by turns. The load generator is compiled (`open_load.c`); open
pages are a process of their own (`pages_watchers.py`). Everything runs on the same cores: browsers on other machines
would leave the server more.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from bench.health_rows import urn
from bench.measure import Figure
from bench.pages_rows import (
    CHUNKS,
    DATASETS,
    INCIDENTS,
    LINEAGE_NODES,
    PIPELINES,
    Filled,
    fill_large,
    fill_small,
    pipeline_id,
)
from bench.pages_server import Serving, bare, serving
from bench.pages_watchers import ADDRESSES
from headgate.health.model.timestamps import instant

NOW_MS_MAX, LINEAGE_MS_MAX = 200.0, 300.0
PAINT_MS_MAX, WIRE_MB_MAX = 1_000.0, 5.0
START_SECONDS_MAX, MEMORY_MB_MAX = 2.0, 200.0
LIVE_SECONDS_MAX, SLOWED_MIN = 1.0, 0.9
OPEN_PAGES: Final = 200
_ASKED: Final = 100
_PAINTS = _STARTS = 5
_ROUNDS: Final = 6
_LOAD_SECONDS: Final = 4.0
_LOAD_CONNECTIONS: Final = 8
_REQUESTS: Final = 20_000
_CHANGE_SECONDS: Final = 1.0
# Chapters of the demo's story that are over when its memory is measured, and how long that may take.
_DEMO_CHAPTERS, _DEMO_SECONDS_MAX = 6, 100.0


def run() -> list[Figure]:
    """Return all figures, in less than four minutes."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        large, small, demo = (Path(folder) / name for name in ("large", "small", "demo"))
        large.mkdir()
        small.mkdir()
        # The story takes a minute, in which there is nothing to measure yet.
        with _demo(demo) as story:
            filled = fill_large(large)
            fill_small(small)
            figures = [_memory(story)]
        os.sync()
        return [
            *_server_side(large, filled),
            *_fanout(large, filled),
            *_open_pages(small, Path(folder)),
            _start(demo),
            *figures,
        ]


# Times of the server.


def _server_side(home: Path, filled: Filled) -> list[Figure]:
    with serving(home) as server, bare() as yardstick:
        for number in range(0, PIPELINES, 10):
            _send(server.port, "POST", f"/api/v1/pipelines/{pipeline_id(number)}/pause", {"reason": "bench"})
        lineage = f"/ui/lineage?dataset={quote(filled.lineage_urn, safe='')}&steps=all"
        return [
            _page_time(
                server,
                yardstick,
                "/ui",
                f"Now with {DATASETS:,} datasets, {INCIDENTS:,} open incidents, {PIPELINES:,} pipelines",
                NOW_MS_MAX,
            ),
            _page_time(server, yardstick, lineage, f"lineage of {LINEAGE_NODES:,} nodes", LINEAGE_MS_MAX),
        ]


def _page_time(server: Serving, yardstick: Serving, path: str, name: str, goal_ms: float) -> Figure:
    ours, theirs = _Client(server.port), _Client(yardstick.port)
    # The first request of a server compiles the templates and reads the lineage.
    first_ms, _ = ours.timed(path)
    times, bare_times = [], []
    for _ in range(_ASKED):
        bare_times.append(theirs.timed("/")[0])
        took_ms, size = ours.timed(path)
        times.append(took_ms)
    middle, bare_middle = statistics.median(times), statistics.median(bare_times)
    return Figure(
        f"page: {name}, by the server",
        f"{middle:.0f} ms, p99 {_percentile(times, 0.99):.0f} ms",
        f"< {goal_ms:.0f} ms",
        middle < goal_ms,
        f"{_ASKED} requests, {size / 1024:,.0f} KB",
        f"{middle / bare_middle:.0f} times a bare Litestar page ({bare_middle:.1f} ms); the first {first_ms:.0f} ms",
    )


class _Client:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def timed(self, path: str) -> tuple[float, int]:
        """Return the milliseconds from the request to the end of the answer, and its bytes."""
        began = time.perf_counter()
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == http.client.OK, (path, answer.status, content[:200])
        return 1000 * (time.perf_counter() - began), len(content)


# The fan-out in a browser.


class _Paint(NamedTuple):
    first_ms: float
    drawn_ms: float
    wire_bytes: int
    requests: int


def _fanout(home: Path, filled: Filled) -> list[Figure]:
    name = f"fan-out of {CHUNKS:,} chunks in Chromium"
    program = shutil.which("chromium")
    if program is None:
        return [Figure(f"page: {name}", "not measured", "", reached=False, notes="chromium is not installed")]
    from playwright.sync_api import sync_playwright

    with serving(home) as server, bare() as yardstick, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pages = f"http://127.0.0.1:{server.port}/ui/fanouts/{filled.fanout_id}"
        drawn = "() => document.querySelector('hg-heatmap canvas')?.getAttribute('aria-label')?.startsWith('100000 ')"
        _painted(browser, pages, drawn)
        ours, theirs = [], []
        for _ in range(_PAINTS):
            theirs.append(_painted(browser, f"http://127.0.0.1:{yardstick.port}/", "() => true"))
            ours.append(_painted(browser, pages, drawn))
        browser.close()
    first_ms, bare_ms = (statistics.median(each.first_ms for each in side) for side in (ours, theirs))
    drawn_ms = statistics.median(each.drawn_ms for each in ours)
    megabytes = statistics.median(each.wire_bytes for each in ours) / 1e6
    return [
        Figure(
            f"page: {name}, first paint",
            f"{first_ms:.0f} ms",
            f"< {PAINT_MS_MAX:.0f} ms",
            first_ms < PAINT_MS_MAX,
            f"{_PAINTS} visits with an empty cache",
            f"{first_ms / bare_ms:.1f} times a bare Litestar page ({bare_ms:.0f} ms); cells drawn {drawn_ms:.0f} ms",
        ),
        Figure(
            f"page: {name}, on the wire",
            f"{megabytes:.2f} MB",
            f"< {WIRE_MB_MAX:.0f} MB",
            megabytes < WIRE_MB_MAX,
            f"{ours[0].requests} requests until all chunks are drawn",
        ),
    ]


def _painted(browser: Any, url: str, until: str) -> _Paint:  # noqa: ANN401 - a browser of Playwright
    context = browser.new_context()
    page = context.new_page()
    received: list[int] = []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    page.goto(url, wait_until="domcontentloaded")
    page.wait_for_function(until)
    drawn_ms = page.evaluate("performance.now()")
    page.wait_for_function("() => performance.getEntriesByType('paint').length > 0")
    first_ms = page.evaluate("performance.getEntriesByType('paint')[0].startTime")
    context.close()
    return _Paint(first_ms, drawn_ms, int(sum(received)), len(received))


# Open pages.


class _Rate(NamedTuple):
    """Accepted writes in a second, and the seconds of CPU of the server and its processes in that second."""

    writes: float
    cpu: float


class _Round(NamedTuple):
    without: _Rate
    beside: _Rate
    # Seconds from the answer to a write until each page showed it.
    delays: list[float]
    seen: dict[str, Any]


def _open_pages(home: Path, folder: Path) -> list[Figure]:
    if shutil.which("cc") is None:
        return [Figure("open pages", "not measured", "", reached=False, notes="no C compiler for bench/open_load.c")]
    generator = folder / "open_load"
    subprocess.run(["cc", "-O2", "-o", str(generator), str(Path(__file__).with_name("open_load.c"))], check=True)
    with serving(home) as server, _watchers(server.port) as watchers:
        load = _Load(generator, server)
        changes = _Changes(server.port)
        load.per_second(1.0)
        rounds = []
        for number in range(_ROUNDS):
            # Which of the two comes first alternates.
            if number % 2:
                with_pages = _with_pages(load, changes, watchers)
                without = _without_pages(load, changes)
            else:
                without = _without_pages(load, changes)
                with_pages = _with_pages(load, changes, watchers)
            rounds.append(_Round(without, *with_pages))
    return _open_figures(rounds)


def _without_pages(load: _Load, changes: _Changes) -> _Rate:
    with changes.running():
        return load.per_second(_LOAD_SECONDS)


def _with_pages(load: _Load, changes: _Changes, watchers: _Watchers) -> tuple[_Rate, list[float], dict[str, Any]]:
    watchers.open()
    with changes.running() as sent_at:
        rate = load.per_second(_LOAD_SECONDS)
    # The last change may still be on its way.
    time.sleep(LIVE_SECONDS_MAX)
    seen = watchers.close()
    shown_at = {int(number): times for number, times in seen["shown_at"].items()}
    delays = [at - since for number, since in sent_at.items() for at in shown_at.get(number, [])]
    missing = sum(OPEN_PAGES * ADDRESSES["/ui"] // 100 - len(shown_at.get(number, [])) for number in sent_at)
    # A page that never showed a change counts as one that showed it much too late.
    return rate, delays + [10 * LIVE_SECONDS_MAX] * missing, seen


def _open_figures(rounds: Sequence[_Round]) -> list[Figure]:
    ratios = [each.beside.writes / each.without.writes for each in rounds]
    slowed = statistics.median(ratios)
    rates = [statistics.median(each.writes for each in side) for side in zip(*_pairs(rounds), strict=True)]
    # What the server used beyond what its writes take without pages.
    used = statistics.median(
        each.beside.cpu - each.beside.writes * each.without.cpu / each.without.writes for each in rounds
    )
    delays = [delay for each in rounds for delay in each.delays]
    worst = _percentile(delays, 0.99)
    fetched, unchanged, messages, refused = (
        sum(each.seen[name] for each in rounds) for name in ("fetched", "unchanged", "messages", "refused")
    )
    client = statistics.median(each.seen["cpu_share"] for each in rounds)
    return [
        Figure(
            f"{OPEN_PAGES} open pages: writes to the API beside them / without them",
            f"{slowed:.2f}",
            f">= {SLOWED_MIN:.2f}",
            slowed >= SLOWED_MIN,
            f"{messages} messages, {fetched} contents sent, {unchanged} unchanged, {refused} refused",
            f"{rates[1]:,.0f}/s against {rates[0]:,.0f}/s; rounds {min(ratios):.2f} to {max(ratios):.2f}; the server "
            f"used {used:.2f} of a core for them, and they themselves {client:.2f}",
            ratios,
        ),
        Figure(
            f"{OPEN_PAGES} open pages: from a write to the page that shows it, under load",
            f"{statistics.median(delays):.2f} s, p99 {worst:.2f} s",
            f"<= {LIVE_SECONDS_MAX:.0f} s",
            worst <= LIVE_SECONDS_MAX,
            f"{len(delays)} times, a change a second",
            f"slowest {max(delays):.2f} s",
        ),
    ]


def _pairs(rounds: Sequence[_Round]) -> list[tuple[_Rate, _Rate]]:
    return [(each.without, each.beside) for each in rounds]


class _Load:
    """Writers of signals that send again as soon as they have an answer."""

    def __init__(self, generator: Path, server: Serving) -> None:
        self._generator = generator
        self._port = server.port
        self._pid = server.pid
        # Each a window of its own, so that every write is applied.
        self._window = itertools.count()

    def per_second(self, seconds: float) -> _Rate:
        """Return how many writes were accepted in a second."""
        requests = b"".join(self._request(next(self._window)) for _ in range(_REQUESTS))
        command = [str(self._generator), str(self._port), "1000000", f"{seconds:g}", str(_LOAD_CONNECTIONS)]
        used = _cpu_seconds(self._pid)
        ended = subprocess.run(command, input=requests, capture_output=True, check=True)
        seen = json.loads(ended.stdout)
        assert not seen["other"], seen
        return _Rate(seen["accepted"] / seconds, (_cpu_seconds(self._pid) - used) / seconds)

    def _request(self, number: int) -> bytes:
        dataset, window = number % 500, number // 500
        end_ms = int(1000 * time.time()) - 3_600_000 + 1_000 * window
        body = json.dumps(_signal("OK", end_ms)).encode()
        path = f"/api/v1/datasets/{quote(urn(dataset), safe='')}/signals/CUSTOM_LOAD"
        head = f"PUT {path} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\ncontent-type: application/json\r\n"
        text = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        return b"%d\n%s" % (len(text), text)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its children, which are the intake and the watchdog of a server."""
    spent = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        # A process may end meanwhile.
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if pid in (int(file.parent.name), int(fields[1])):
                spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


class _Changes:
    """A change a second that the first page shows: a dataset gets a warning."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = itertools.count(1)

    @contextmanager
    def running(self) -> Iterator[dict[int, float]]:
        """Give the times at which the changes were stored, by number."""
        sent_at: dict[int, float] = {}
        ended = threading.Event()
        # Ahead of the measurement: a registration is a change of its own.
        numbers = [next(self._numbers) for _ in range(int(_LOAD_SECONDS / _CHANGE_SECONDS))]
        for number in numbers:
            _send(self._port, "POST", "/api/v1/datasets", {"dataset_urn": _live(number), "owner_team": "bench"})

        def work() -> None:
            for number in numbers:
                if ended.wait(_CHANGE_SECONDS):
                    return
                path = f"/api/v1/datasets/{quote(_live(number), safe='')}/signals/FRESHNESS"
                # From the request on, not from its answer: the page may be first.
                sent_at[number] = time.monotonic()
                _send(self._port, "PUT", path, _signal("WARNING", int(1000 * time.time()), f"LATE:bench-{number}"))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield sent_at
        finally:
            ended.set()
            thread.join()


class _Watchers:
    """The process of the open pages."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def open(self) -> None:
        assert int(self._ask("open")) == OPEN_PAGES

    def close(self) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads(self._ask("close"))
        return seen

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline()


@contextmanager
def _watchers(port: int) -> Iterator[_Watchers]:
    command = [sys.executable, "-m", "bench.pages_watchers", str(port), str(OPEN_PAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield _Watchers(process)
        assert process.stdin is not None
        process.stdin.close()


def _live(number: int) -> str:
    return f"urn:dp:live:t{number:04d}:v1"


def _signal(state: str, end_ms: int, signature: str = "") -> dict[str, Any]:
    breach = {"breach_start": instant(end_ms), "failure_signature": signature} if signature else {}
    return {
        "state": state, "score": 0.99, "slo_threshold": 0.9, "window_type": "TUMBLING_5MIN",
        "window_start": instant(end_ms - 300_000), "window_end": instant(end_ms),
        "metrics": {"evidence_count": 1, "pass_count": 1, "fail_count": 0}, **breach,
    }  # fmt: skip


# The start and the memory.


@contextmanager
def _demo(folder: Path) -> Iterator[Path]:
    """Run the demo's story, without pauses. Give the file that it is printed to."""
    said = folder.with_suffix(".log")
    program = str(Path(sys.executable).with_name("headgate"))
    command = [program, "demo", "--home", str(folder), "--http", "127.0.0.1:0", "--once"]
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield said
    finally:
        process.terminate()
        process.wait(60)


def _memory(story: Path) -> Figure:
    """The proportional set sizes of the server and its watchdog, some minutes of the demo's life after its start."""
    until = time.monotonic() + _DEMO_SECONDS_MAX
    while f"\n{_DEMO_CHAPTERS + 1}. " not in story.read_text():
        assert time.monotonic() < until, f"the demo is not in chapter {_DEMO_CHAPTERS + 1}:\n{story.read_text()}"
        time.sleep(0.5)
    home = story.with_suffix("") / "home"
    found = {name: _memory_of(f"{name} ", str(home)) for name in ("up", "watchdog")}
    pss_mb, rss_mb = (sum(each[place] for each in found.values()) / 1024 for place in (0, 1))
    parts = ", ".join(f"{name} {pss / 1024:.0f} MB" for name, (pss, _) in found.items())
    return Figure(
        "memory of server and watchdog with the demo (PSS)",
        f"{pss_mb:.0f} MB",
        f"< {MEMORY_MB_MAX:.0f} MB",
        pss_mb < MEMORY_MB_MAX,
        parts,
        f"resident, shared pages counted twice: {rss_mb:.0f} MB",
    )


def _memory_of(words: str, home: str) -> tuple[int, int]:
    """Return the kilobytes of the processes with a command, proportional and resident."""
    pss = rss = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # A process may end meanwhile.
        with suppress(OSError):
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"headgate {words}" not in command or home not in command:
                continue
            sizes = (file.parent / "smaps_rollup").read_text()
            pss += int(re.search(r"^Pss: +(\d+)", sizes, re.MULTILINE)[1])  # type: ignore[index]  # it has one
            rss += int(re.search(r"^Rss: +(\d+)", sizes, re.MULTILINE)[1])  # type: ignore[index]  # it has one
    assert pss, f"no process of 'headgate {words}' on {home}"
    return pss, rss


def _start(demo: Path) -> Figure:
    """From the start of the command to its line that says it is ready, on the demo's home."""
    ours, theirs = [], []
    options = ("--app", "shop_app:app", "--pipelines", "pipelines")
    for _ in range(_STARTS):
        theirs.append(_started(bare))
        ours.append(_started(lambda: serving(demo / "home", *options, project=demo / "shop")))
    seconds, bare_seconds = statistics.median(ours), statistics.median(theirs)
    return Figure(
        "headgate up: ready on the demo's home",
        f"{seconds:.2f} s",
        f"< {START_SECONDS_MAX:.0f} s",
        seconds < START_SECONDS_MAX,
        f"{_STARTS} starts, {min(ours):.2f} to {max(ours):.2f} s",
        f"{seconds / bare_seconds:.1f} times a bare Litestar application ({bare_seconds:.2f} s)",
    )


def _started(start: Callable[[], Any]) -> float:
    began = time.perf_counter()
    with start() as server:
        took = time.perf_counter() - began
        assert server.port
    return took


def _send(port: int, method: str, path: str, body: dict[str, Any]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status < http.client.BAD_REQUEST, (method, path, answer.status, content)
    connection.close()


def _percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(share * (len(samples) - 1))]
