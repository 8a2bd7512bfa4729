"""Handlers that do good and bad things to their process, and a program that splits fan-outs and works on chunks.

`python -m tests.acceptance.fanout_handlers split HOME RUN ITEMS SIZE`, and `work HOME`, which says when it is ready.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from headgate.clock import SystemClock
from headgate.durable.worker.process_channel import pack
from headgate.fanout.core.splitter import Order
from headgate.fanout.handlers import Work
from headgate.fanout.local import worker as local_worker
from headgate.fanout.local.worker import Options
from headgate.fanout.model.child_protocol import Done
from headgate.fanout.model.rows import Policy
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.iterable_source import IterableSource
from tests.stores import open_sqlite

FOLDER: Final = Path(os.environ.get("FANOUT_TEST_FOLDER", "."))
MODULE: Final = "tests.acceptance.fanout_handlers"


def record(what: str) -> None:
    """Add a line to the journal in one write, which the kernel keeps whole between processes."""
    descriptor = os.open(FOLDER / "journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{what}\n".encode())
    finally:
        os.close(descriptor)


def wait_for(name: str) -> None:
    """Wait until the test has made a file of this name."""
    while not (FOLDER / name).exists():
        time.sleep(0.01)


# What handlers do.


def tick(work: Work) -> int:
    """A short piece of work, of which a line is left."""
    record(f"{work.chunk_id} {work.attempt}")
    time.sleep(0.005)
    return work.places[0]


def held(work: Work) -> int:
    """Begin, and end when the test says so for this attempt."""
    record(f"{work.chunk_id} {work.attempt} {os.getpid()}")
    wait_for(f"go-{work.chunk_id}-{work.attempt}")
    return work.attempt


def mended(items: list[int]) -> int:
    """Fail until the test says that it is repaired."""
    if not (FOLDER / "mended").exists():
        raise RuntimeError(f"item {items[0]} cannot be read yet")
    return items[0]


def obedient(work: Work) -> str:
    """Do what the item says, and whatever that does to the process."""
    (what,) = work.items
    record(f"{work.chunk_id} {work.attempt} {what}")
    return _ACTS[what](work)


def _hang(_: Work) -> str:
    while True:
        time.sleep(1)


def _hang_with_company(_: Work) -> str:
    with subprocess.Popen(["sleep", "600"]) as company:
        (FOLDER / "company").write_text(str(company.pid))
        company.wait()
    return "never"


def _hang_in_c(_: Work) -> str:
    """Never let go of the interpreter: no other thread of the process runs again, and no signal is handled."""
    re.match(r"(a+)+$", "a" * 64 + "b")
    return "never"


def _hog(_: Work) -> str:
    hoard = [bytearray(16 * 1024 * 1024) for _ in range(1_000)]
    return str(len(hoard))


def _speak_out_of_turn(work: Work) -> str:
    def speak() -> None:
        for number in range(200):
            time.sleep(0.01)
            # As often as it likes, and also when the chunk has ended.
            work._said_at = 0.0
            work.progress(number)

    for _ in range(2):
        threading.Thread(target=speak, daemon=True).start()
    return "spoken"


def _write_everywhere(content: bytes) -> str:
    """Write to whatever is open, and so to where the worker listens."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, content)
        except OSError:
            continue
    return "written"


def _fork(_: Work) -> str:
    """Go on twice: the copy too comes back from here."""
    os.fork()
    return "ok"


def _fork_and_abort(_: Work) -> str:
    """Leave a copy behind that waits for ever."""
    if os.fork() == 0:
        time.sleep(600)
    os.abort()


def _misname(work: Work) -> str:
    work.item_errors[10**6] = "not of this chunk"
    return "misnamed"


def _mistype(work: Work) -> str:
    work.output_key = 5  # type: ignore[assignment]
    return "mistyped"


_ACTS: Final[dict[str, Callable[[Work], str]]] = {
    "ok": lambda _: "ok",
    "hang": _hang,
    "company": _hang_with_company,
    "hang in C": _hang_in_c,
    "hog": _hog,
    "abort": lambda _: os.abort(),
    "exit": lambda _: sys.exit(3),
    "leave": lambda _: os._exit(0),
    "kill": lambda _: _kill(),
    "speak": _speak_out_of_turn,
    "nonsense": lambda _: _write_everywhere(b"\xff" * 64),
    "impostor": lambda _: _write_everywhere(pack(Done(10**6, 1, 1))),
    "fork": _fork,
    "fork and abort": _fork_and_abort,
    "misname": _misname,
    "mistype": _mistype,
    "surrogate": lambda _: _refuse("no such file: caf\udce9"),
}


def _kill() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def _refuse(message: str) -> str:
    raise ValueError(message)


# The program.


def service_at(home: Path) -> tuple[FanoutService, SqliteStore]:
    clock = SystemClock()
    store = open_sqlite(home, clock=clock, synchronous=Synchronous.NORMAL)
    return FanoutService(store, clock, IdMaker(clock)), store


def policy_of(**changes: Any) -> Policy:
    return Policy(**{"max_attempts": 50, "backoff_seconds": 0.01, **changes})


def items_up_to(count: int) -> IterableSource:
    """Items that are made slowly enough for a splitter to die in the middle."""

    def make() -> Any:
        for number in range(count):
            if number % 100 == 99:
                time.sleep(0.002)
            yield number

    return IterableSource(make, name=f"up to {count}")


def split(home: Path, run_id: str, items: int, size: int) -> None:
    service, store = service_at(home)
    order = Order("g", size, handler=f"{MODULE}:tick", policy=policy_of())
    print("ready", flush=True)
    print(service.splitter.split(order, items_up_to(items), run_id=run_id).status, flush=True)
    store.close()


def work(home: Path) -> None:
    lease = os.environ.get("FANOUT_TEST_LEASE_SECONDS")
    if lease is not None:
        local_worker.LEASE_SECONDS = float(lease)  # type: ignore[misc]
    service, store = service_at(home)
    options = Options(
        processes=int(os.environ.get("FANOUT_TEST_PROCESSES", "2")),
        lane=os.environ.get("FANOUT_TEST_LANE", "main"),
        # The folder of a test is not that of the project.
        trusted=("tests", "endless_handlers"),
    )
    worker = service.worker(options)
    signal.signal(signal.SIGTERM, lambda _, __: worker.stop(1.0))
    room = os.environ.get("FANOUT_TEST_DISK_BYTES")
    if room is not None:
        # Files may not grow beyond this, which is how a full disk looks.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    print("ready", flush=True)
    worker.run(until_idle="FANOUT_TEST_UNTIL_IDLE" in os.environ)
    store.close()


if __name__ == "__main__":
    command, home_argument, *rest = sys.argv[1:]
    if command == "split":
        split(Path(home_argument), rest[0], int(rest[1]), int(rest[2]))
    else:
        work(Path(home_argument))
