"""Several processes on one file: no lost update, fair turns, prompt wake-ups."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.schema import Key
from tests.acceptance.store_counter import COUNTER
from tests.stores import create_sqlite

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("processes", "threads"), [(4, 16), (1, 64), (4, 1)])
def test_one_key__many_threads_and_processes__versions_gapless_and_no_update_lost(
    tmp_path: Path, processes: int, threads: int
) -> None:
    times = 10
    store = create_sqlite(tmp_path)
    store.put(CONTROL, {"PK": COUNTER.partition, "SK": COUNTER.sort, "version": 0})

    command = [sys.executable, "-m", "tests.acceptance.store_counter", str(tmp_path), str(threads), str(times)]
    counters = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(processes)]
    outputs = [counter.communicate(timeout=240)[0] for counter in counters]

    assert [counter.returncode for counter in counters] == [0] * processes
    made = sorted(int(line) for output in outputs for line in output.splitlines())
    assert made == list(range(1, processes * threads * times + 1))
    item = store.get(CONTROL, COUNTER)
    assert item is not None
    assert item["version"] == processes * threads * times
    store.close()


def test_wait__another_process_commits__woken_long_before_the_poll(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    generation = store.generation()
    store.wait(generation, 0.01)  # The first wait opens the socket that the other process finds.
    script = (
        "import sys, time; from pathlib import Path; from tests.stores import create_sqlite; "
        "from headgate.store.catalogue.tables import CONTROL; store = create_sqlite(Path(sys.argv[1])); "
        "[(at := time.monotonic(), store.put(CONTROL, {'PK': line.strip(), 'SK': 'DEDUP'}), print(at, flush=True)) "
        "for line in sys.stdin]"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None

    delays = []
    for number in range(5):
        generation = store.generation()
        writer.stdin.write(f"DEDUP#{number}\n")
        writer.stdin.flush()
        while store.get(CONTROL, Key(f"DEDUP#{number}", "DEDUP")) is None:
            generation = store.wait(generation, 30)
        woken_at = time.monotonic()
        delays.append(woken_at - float(writer.stdout.readline()))
    writer.communicate()

    # The slow poll looks once a second; a poke takes about a millisecond. A busy machine may delay one or two.
    assert statistics.median(delays) < 0.5, delays
    store.close()


def test_wait__listener_was_killed__writers_clean_up_after_it() -> None:
    # A short path: a socket's address has 107 bytes, and the folder of a test may need more.
    with TemporaryDirectory(prefix="hg-", dir="/tmp") as folder:
        listener_was_killed(Path(folder))


def listener_was_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.stores import create_sqlite; "
        "store = create_sqlite(Path(sys.argv[1])); store.wait(store.generation(), 0.01); "
        "print('up', flush=True); sys.stdin.read()"
    )
    listener = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert listener.stdout is not None
    assert listener.stdout.readline() == "up\n"
    sockets = tmp_path / "headgate.db.wake"
    assert len(list(sockets.iterdir())) == 1
    listener.kill()
    listener.communicate()
    store = create_sqlite(tmp_path)

    store.put(CONTROL, {"PK": "DEDUP#a", "SK": "DEDUP"})

    assert list(sockets.iterdir()) == []
    store.close()


def test_close__threads_are_waiting__all_return(tmp_path: Path) -> None:
    store = create_sqlite(tmp_path)
    generation = store.generation()
    waiting = [threading.Thread(target=store.wait, args=(generation, 60)) for _ in range(4)]
    for thread in waiting:
        thread.start()

    store.close()

    for thread in waiting:
        thread.join(5)
    assert not any(thread.is_alive() for thread in waiting)
