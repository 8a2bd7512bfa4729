"""The store under kill -9: what was acknowledged is there, nothing is half there, and indexes agree with rows."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headgate.store.catalogue.tables import CONTROL, FANOUT
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite

ROOT = Path(__file__).parents[2]
ROUNDS = 8
# `make soak` goes on for longer.
SOAK_SECONDS = float(os.environ.get("HEADGATE_TEST_SOAK_SECONDS", "0"))
THREADS = 8
PROCESSES = 2


def start_writer(folder: Path, name: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        command = [sys.executable, "-m", "tests.acceptance.store_writer", str(folder), name, str(THREADS)]
        return subprocess.Popen(command, stdout=file, cwd=ROOT)


def wait_for_lines(output: Path, count: int) -> None:
    give_up_at = time.monotonic() + 30
    while output.read_bytes().count(b"\n") < count:
        assert time.monotonic() < give_up_at, f"{output.name}: the writer made no progress"
        time.sleep(0.005)


@pytest.mark.timeout(300 + int(SOAK_SECONDS))
def test_kill_9__two_processes_of_eight_threads_in_a_loop__nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    chance = random.Random(20261115)
    acknowledged: set[str] = set()
    soak_until = time.monotonic() + SOAK_SECONDS
    for round_number in itertools.count():
        if round_number >= ROUNDS and time.monotonic() >= soak_until:
            break
        outputs = [tmp_path / f"acknowledged-{round_number}-{number}" for number in range(PROCESSES)]
        writers = [start_writer(tmp_path, f"r{round_number}p{number}", path) for number, path in enumerate(outputs)]
        for output in outputs:
            wait_for_lines(output, chance.randrange(10, 400))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        acknowledged |= {line for output in outputs for line in output.read_text().splitlines()}

        store = open_sqlite(tmp_path)
        check_pairs(store, acknowledged)
        store.close()
        check_file(tmp_path)
    assert len(acknowledged) > ROUNDS * 20


def check_pairs(store: SqliteStore, acknowledged: set[str]) -> None:
    names = {pair.split("-")[0] for pair in acknowledged}
    for name in names:
        by_index = {
            item["PK"].removeprefix("DEDUP#")
            for item in every(store, Query(table=CONTROL, index="due-index", partition=name))
        }
        by_other_index = {item["GSI1_SK"] for item in every(store, Query(table=FANOUT, index="GSI1", partition=name))}
        by_table = {
            item["SK"].removeprefix("CHUNK#chunk-")
            for item in every(store, Query(table=FANOUT, partition=f"run-{name}"))
        }
        # Both rows of a transaction, or neither; and each found by its index as well as by its key.
        assert by_index == by_other_index == by_table
        assert {pair for pair in acknowledged if pair.startswith(f"{name}-")} <= by_index
    for pair in acknowledged:
        assert store.get(CONTROL, Key(f"DEDUP#{pair}", "DEDUP")) is not None


def every(store: SqliteStore, query: Query) -> list[dict[str, str]]:
    items, cursor = [], None
    while True:
        page = store.query(
            Query(table=query.table, partition=query.partition, index=query.index, limit=1000, cursor=cursor)
        )
        items += page.items
        cursor = page.cursor
        if cursor is None:
            return items


def check_file(folder: Path) -> None:
    connection = sqlite3.connect(folder / "headgate.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
