"""A million chunks through one server: split, run and listed over HTTP, with the memory it takes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

from bench.measure import Figure
from bench.pages_server import serving

CHUNKS: Final = 1_000_000
MEMORY_MB_MAX: Final = 300.0
LIST_MS_MAX: Final = 200.0
_SECONDS_MAX: Final = 3_600.0
_LISTS: Final = ("chunks?limit=100", "chunks?status=COMPLETED&limit=100", "failures?limit=100", "stuck", "")
_HANDLER: Final = "def nothing(items):\n    return None\n"


def run(chunks: int = CHUNKS) -> list[Figure]:
    """Return how long each part took, and the most memory that the server and each of its children used."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        project = Path(folder)
        (project / "work.py").write_text(_HANDLER)
        with (
            serving(project / "home", project=project) as server,
            _Memory(server.pid) as memory,
            httpx.Client(base_url=f"http://127.0.0.1:{server.port}/api/v1", timeout=60.0) as api,
        ):
            return _figures(api, memory, chunks)


def _figures(api: httpx.Client, memory: _Memory, chunks: int) -> list[Figure]:
    started = time.perf_counter()
    body = {"group": "bench", "handler": "work:nothing", "range": [0, chunks], "chunk_size": 1, "run_id": "million"}
    _checked(api.post("/fanouts", json=body))
    while not (shown := _checked(api.get("/fanouts/million")))["is_finished"]:
        assert time.perf_counter() - started < _SECONDS_MAX, f"not finished: {shown}"
        time.sleep(1.0)
    seconds = time.perf_counter() - started
    done = shown["counts"]["done"]
    lists = {path or "show": _median_ms(api, f"/fanouts/million/{path}".rstrip("/")) for path in _LISTS}
    return [
        Figure(
            f"{chunks:,} no-op chunks split and run by 'headgate up'",
            f"{seconds:.0f} s",
            "all done",
            shown["status"] == "SUCCEEDED" and done == chunks,
            f"{done:,} done",
            f"{chunks / seconds:,.0f} chunks a second",
        ),
        Figure(
            "memory of the server at its highest (PSS)",
            f"{memory.most_mb:.0f} MB",
            f"<= {MEMORY_MB_MAX:.0f} MB",
            memory.most_mb <= MEMORY_MB_MAX,
            f"{memory.samples} samples",
            f"its children beside it {memory.children_mb:.0f} MB",
        ),
        Figure(
            "lists over HTTP, the slowest",
            f"{max(lists.values()):.1f} ms",
            f"<= {LIST_MS_MAX:.0f} ms",
            max(lists.values()) <= LIST_MS_MAX,
            "100 rows each",
            ", ".join(f"{name} {taken:.1f} ms" for name, taken in lists.items()),
        ),
    ]


def _median_ms(api: httpx.Client, path: str) -> float:
    taken = []
    for _ in range(9):
        started = time.perf_counter()
        _checked(api.get(path))
        taken.append(1000 * (time.perf_counter() - started))
    return sorted(taken)[len(taken) // 2]


def _checked(answer: httpx.Response) -> dict[str, Any]:
    assert answer.is_success, answer.text
    found: dict[str, Any] = answer.json()
    return found


class _Memory:
    """Samples the proportional set size of a process and of its descendants each second."""

    def __init__(self, pid: int) -> None:
        self.most_mb = self.children_mb = 0.0
        self.samples = 0
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(1.0):
            self.samples += 1
            self.most_mb = max(self.most_mb, _pss_mb(self._pid))
            self.children_mb = max(self.children_mb, sum(map(_pss_mb, _descendants(self._pid))))


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(child) for child in children.read_text().split()]
    return found[1:]


def _pss_mb(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
