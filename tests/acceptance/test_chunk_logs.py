"""Output and tracebacks of chunks: kept for each attempt, whatever ended it, and shown by command and page."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import sleep

import httpx
import pytest

from headgate.clock import SystemClock
from headgate.fanout.local import child_process
from headgate.fanout.local.captured_output import FILE_BYTES_MAX, OutputFile
from headgate.fanout.local.child_pool import Assignment, ChildPool
from headgate.fanout.model.child_protocol import Done, Failed, Job, Progress
from headgate.fanout.model.local_access import LocalAccess
from tests.acceptance.program import Server, run, until

HANDLER = """
import ctypes, os, signal, subprocess, sys, time


def deeper(what):
    print("before", what)
    if what == "raise":
        raise ValueError("no such thing")
    if what == "segfault":
        ctypes.string_at(0)
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        sys.exit(3)
    if what == "allocate":
        bytearray(300_000_000)
    if what == "hang":
        with open(os.path.join(os.path.dirname(__file__), "pid"), "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
    if what == "much":
        for number in range(5_000):
            print("line", number, "x" * 400)
    if what in ("leave", "leave an orphan"):
        loop = "while :; do echo left behind; echo x >> beats; sleep 0.01; done"
        command = f"({loop}) &" if what == "leave an orphan" else loop
        left = subprocess.Popen(["sh", "-c", command], cwd=os.path.dirname(__file__))
        if what == "leave an orphan":
            left.wait()
    if what == "listen":
        beats = os.path.join(os.path.dirname(__file__), "beats")
        until = time.monotonic() + 20
        while not os.path.exists(beats):
            time.sleep(0.01)
        size = os.path.getsize(beats)
        while os.path.getsize(beats) < size + 6 and time.monotonic() < until:
            time.sleep(0.01)
    if what == "child":
        subprocess.run(["echo", "from a program"], check=True)
        print("to stderr", file=sys.stderr)
    return what


def run(items):
    return deeper(items[0])


def each(item):
    return deeper(item)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(HANDLER)
    return tmp_path


@pytest.fixture
def pool(project: Path) -> Iterator[ChildPool]:
    pool = ChildPool(SystemClock(), 1, access=LocalAccess(folders=(str(project),)))
    pool.open()
    yield pool
    pool.close()


def ended(pool: ChildPool, *acts: str, each: bool = False, timeout_seconds: float = 60.0) -> list[Done | Failed]:
    """Run one job for each act, or one job with all of them as items, and return how they ended."""
    groups = [list(acts)] if each else [[act] for act in acts]
    jobs = [
        Job(
            key=key, run_id="r", chunk_id=f"chunk-{key:07d}", group="g", lane="main", attempt=1, start=0,
            items=len(group), source='{"kind":"list"}', input_key="", input=str(group).replace("'", '"'), each=each,
        )
        for key, group in enumerate(groups)
    ]  # fmt: skip
    handler = "mine:each" if each else "mine:run"
    pool.add([Assignment(job, handler, memory_mb=None, timeout_seconds=timeout_seconds) for job in jobs])
    found: list[Done | Failed] = []

    def enough() -> bool:
        messages, _ = pool.receive(0.02)
        found.extend(message for message in messages if isinstance(message, Done | Failed))
        assert not any(not isinstance(message, Done | Failed | Progress) for message in messages), pool.unusable
        return len(found) == len(jobs)

    until(enough, "the end of all jobs", 60.0)
    return sorted(found, key=lambda message: message.key)


def test_output__jobs_of_one_process__each_has_its_own(pool: ChildPool) -> None:
    first, second, third = ended(pool, "one", "child", "quiet")

    assert (first.printed, third.printed) == ("before one\n", "before quiet\n")
    assert second.printed == "before child\nfrom a program\nto stderr\n"


@pytest.mark.parametrize("how", ["leave", "leave an orphan"])
def test_output__of_a_process_that_an_earlier_chunk_has_left__is_not_in_the_next_ones(
    pool: ChildPool, how: str
) -> None:
    left, listened, again, crashed = ended(pool, how, "listen", "listen", "exit")

    assert left.printed.startswith(f"before {how}\n")
    assert [listened.printed, again.printed, crashed.printed] == ["before listen\n", "before listen\n", "before exit\n"]


def test_failure__raised__has_traceback_output_and_memory(pool: ChildPool) -> None:
    (failed,) = ended(pool, "raise")

    assert isinstance(failed, Failed)
    assert failed.printed == "before raise\n"
    assert 'mine.py", line 8, in deeper' in failed.traceback
    assert failed.traceback.endswith("ValueError: no such thing")
    assert failed.memory_mb is not None
    assert failed.memory_mb > 0


def test_failure__memory__is_the_peak_of_the_attempt(pool: ChildPool) -> None:
    """Neither that of an earlier attempt in the same process, nor that of the worker that started the process."""
    ballast = bytearray(400_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])

    allocated, raised, segfault = ended(pool, "allocate", "raise", "segfault")
    (hung,) = ended(pool, "hang", timeout_seconds=0.5)

    assert allocated.memory_mb is not None
    assert 280 < allocated.memory_mb < 390
    for failed in (raised, segfault, hung):
        assert failed.memory_mb is not None
        assert 5 < failed.memory_mb < 200, failed
    assert ballast


def test_failure__time_out_of_a_process_that_is_stopped_for_a_moment__output_has_the_stack(
    pool: ChildPool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that gets no time to run, on a busy machine."""
    monkeypatch.setattr(child_process, "TRACE_SECONDS_MAX", 60.0)
    ended(pool, "warm")

    def stop() -> None:
        until((project / "pid").exists, "the chunk is running", 30.0)
        pid = int((project / "pid").read_text())
        os.kill(pid, signal.SIGSTOP)
        sleep(1.7)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    with ThreadPoolExecutor(1) as threads:
        stopping = threads.submit(stop)
        (failed,) = ended(pool, "hang", timeout_seconds=1.5)
        stopping.result()

    assert isinstance(failed, Failed)
    assert (failed.error_class, "in deeper" in failed.printed) == ("TIMEOUT", True), failed.printed


@pytest.mark.parametrize(
    ("act", "error_class", "texts"),
    [
        ("segfault", "CRASH", ["Segmentation fault", "in deeper", "in run"]),
        ("exit", "CRASH", []),
        ("sys.exit", "CRASH", ["in deeper", "SystemExit: 3"]),
        ("hang", "TIMEOUT", ["in deeper", "in run"]),
    ],
)
def test_failure__the_process_dies__its_output_shows_where(
    pool: ChildPool, act: str, error_class: str, texts: list[str]
) -> None:
    ended(pool, "warm")

    (failed,) = ended(pool, act, timeout_seconds=0.5)

    assert isinstance(failed, Failed)
    assert failed.error_class == error_class
    assert failed.memory_mb
    for text in [f"before {act}", *texts]:
        assert text in failed.printed


def test_output__of_many_megabytes__keeps_its_beginning_and_end(pool: ChildPool) -> None:
    (done,) = ended(pool, "much")

    assert isinstance(done, Done)
    assert len(done.printed) < 20_000
    assert "bytes left out" in done.printed
    assert done.printed.startswith("before much\nline 0 ")
    assert "line 4999 " in done.printed


def test_output__larger_than_the_limit__is_emptied_and_continued_from_the_beginning() -> None:
    output = OutputFile()
    os.ftruncate(output.fileno(), FILE_BYTES_MAX + 1)

    output.limit()
    os.write(output.fileno(), b"afterwards\n")

    assert output.text() == "afterwards\n"
    output.close()


def test_each__items_fail__the_output_has_the_traceback_of_each(pool: ChildPool) -> None:
    (done,) = ended(pool, "fine", "raise", "fine", "raise", each=True)

    assert isinstance(done, Done)
    assert sorted(done.item_errors) == [1, 3]
    for place in (1, 3):
        assert f"item {place} failed:\nTraceback" in done.printed


def test_logs__of_a_failed_chunk__are_printed_and_shown_on_its_page(project: Path) -> None:
    (project / "items.txt").write_text("fine\nraise\n")
    with Server(project) as server:
        said(project, "fanout", "submit", "--group", "g", "--handler", "mine:run", "--lines", "items.txt",
             "--chunk-size", "1", "--run-id", "monday", "--max-attempts", "2")  # fmt: skip
        said(project, "fanout", "watch", "monday", exit_code=1)

        ids = [each["chunk_id"] for each in server.get("/fanouts/monday/chunks")["chunks"]]
        printed = said(project, "chunk", "logs", "monday", ids[1])
        first = said(project, "chunk", "logs", "monday", ids[1], "--attempt", "1")
        fine = said(project, "chunk", "logs", "monday", ids[0])
        page = httpx.get(f"{server.url}/ui/fanouts/monday/chunks/{ids[1]}", timeout=20.0).text
        stdout = server.stdout

    assert "attempt 2" in printed
    assert "before raise" in printed
    assert "ValueError: no such thing" in printed
    assert "other attempts with a log: 1" in printed
    assert "attempt 1" in first
    assert "before fine" in fine
    assert "line 8, in deeper" in page
    assert "before raise" in page
    assert "before" not in stdout


def said(project: Path, *arguments: str, exit_code: int = 0) -> str:
    ended = run(*arguments, folder=project)
    assert ended.returncode == exit_code, ended.stdout + ended.stderr
    return ended.stdout
