"""News: what transactions are about, and that who waits for something is woken by nothing else."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate.store.catalogue.tables import (
    ACTIVITIES,
    AUDIT,
    CONTROL,
    EVENTS,
    EXECUTIONS,
    FANOUT,
    INCIDENT_INDEX,
    PIPELINES,
    SIGNAL_HISTORY,
    SIGNAL_STATE,
)
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key, Table
from headgate.store.sqlite.wakeups import Wakeups
from headgate.store.topics import ANYTHING, STEP_TOPICS, WORK, Topic, Topics, are_quiet, topics_of
from tests.contract.test_step_writes import step
from tests.stores import FILE, open_sqlite


@pytest.mark.parametrize(
    ("tables", "topics"),
    [
        # A signal that changes, an incident that is opened, and an event of either that someone has subscribed to.
        ([SIGNAL_STATE, SIGNAL_HISTORY, EVENTS], Topic.DATASETS),
        ([INCIDENT_INDEX, AUDIT, CONTROL, EVENTS], Topic.DATASETS),
        ([SIGNAL_STATE, SIGNAL_HISTORY, EVENTS, ACTIVITIES], Topic.DATASETS | Topic.DURABLE),
        ([EXECUTIONS], Topic.DURABLE),
        ([FANOUT, SIGNAL_STATE], Topic.DATASETS | Topic.CHUNKS),
        ([PIPELINES], Topic.PIPELINES),
        ([PIPELINES, EVENTS], Topic.PIPELINES | Topic.DURABLE),
        # These may be anything.
        ([CONTROL], Topic.DURABLE),
        ([EVENTS, CONTROL], Topic.DURABLE),
    ],
)
def test_topics_of__a_transaction__are_those_of_its_tables(tables: list[Table], topics: Topics) -> None:
    assert topics_of([Put(table, {}) for table in tables]) == topics


def test_topics_of__a_step__are_those_that_the_store_takes_without_looking() -> None:
    assert topics_of(step("e", 1)) == STEP_TOPICS


def test_are_quiet__all_puts_that_are__and_nothing_else() -> None:
    quiet = Put(SIGNAL_STATE, {}, quiet=True)
    assert are_quiet([quiet, quiet])
    assert not are_quiet([quiet, Put(SIGNAL_STATE, {})])
    assert not are_quiet([quiet, Delete(SIGNAL_STATE, Key("a", "b"))])


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[Wakeups, Wakeups]]:
    database = tmp_path / "store.db"
    connect = partial(sqlite3.connect, database, check_same_thread=False)
    with ExitStack() as opened:
        yield (
            opened.enter_context(closing(Wakeups(database, connect))),
            opened.enter_context(closing(Wakeups(database, connect))),
        )


@pytest.mark.parametrize("others", [False, True])
def test_committed__by_another__wakes_all_who_wait_for_that_and_no_other(
    ends: tuple[Wakeups, Wakeups], others: bool
) -> None:
    waiting, other = ends
    topics = (ANYTHING, Topic.DATASETS, Topic.PIPELINES, WORK)
    seen = {each: waiting.generation(each, others=others) for each in topics}

    other.on_committed(Topic.DATASETS)

    assert waiting.wait(seen[ANYTHING], 30, ANYTHING, others=others) > seen[ANYTHING]
    assert waiting.generation(Topic.DATASETS, others=others) > seen[Topic.DATASETS]
    assert waiting.generation(Topic.PIPELINES, others=others) == seen[Topic.PIPELINES]
    assert waiting.generation(WORK, others=others) == seen[WORK]


def test_committed__here__counts_for_who_waits_for_that_and_not_for_who_waits_for_others(
    ends: tuple[Wakeups, Wakeups],
) -> None:
    waiting, _ = ends
    own, of_others = waiting.generation(Topic.CHUNKS), waiting.generation(Topic.CHUNKS, others=True)
    pipelines = waiting.generation(Topic.PIPELINES)

    waiting.on_committed(Topic.CHUNKS)

    assert waiting.wait(own, 30, Topic.CHUNKS) > own
    assert waiting.generation(Topic.CHUNKS, others=True) == of_others
    assert waiting.generation(Topic.PIPELINES) == pipelines


def test_committed__by_another_after_more_than_the_kernel_keeps__wakes_the_waiters(
    ends: tuple[Wakeups, Wakeups],
) -> None:
    waiting, other = ends
    seen = waiting.generation(WORK, others=True)

    # What says that there is work may be dropped, and is assumed then.
    for _ in range(50):
        other.on_committed(Topic.DATASETS)
    other.on_committed(Topic.DURABLE)

    assert waiting.wait(seen, 30, WORK, others=True) > seen


def test_poke__of_a_build_that_knew_no_topics__wakes_the_waiters(ends: tuple[Wakeups, Wakeups]) -> None:
    waiting, other = ends
    seen = waiting.generation(Topic.PIPELINES)

    other.on_committed(0)

    assert waiting.wait(seen, 30, Topic.PIPELINES) > seen


def test_store__writes_of_any_kind__others_are_given_what_they_are_about() -> None:
    known, control = {"PK": "urn:dp:a", "SK": "FRESHNESS"}, {"PK": "a", "SK": "b"}
    datasets, durable = bytes((Topic.DATASETS,)), bytes((Topic.DURABLE,))
    # A path that is short enough for the address of a socket beside the database.
    with (
        TemporaryDirectory(prefix="hg-") as folder,
        closing(open_sqlite(Path(folder))) as store,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox,
    ):
        beside = Path(folder) / f"{FILE}.wake"
        beside.mkdir()
        inbox.bind(str(beside / "listener"))
        inbox.settimeout(30)

        store.transact([Put(SIGNAL_STATE, known)])
        assert inbox.recv(16) == datasets
        store.transact_many([[Put(SIGNAL_STATE, known)]])
        assert inbox.recv(16) == datasets
        store.transact_many([[Put(SIGNAL_STATE, known, quiet=True)]])
        store.transact([Put(SIGNAL_STATE, known), Put(CONTROL, control)])
        assert inbox.recv(16) == datasets, "and not of what is quiet"
        store.transact([Put(CONTROL, control)])
        assert inbox.recv(16) == durable
        store.transact_many([[Put(SIGNAL_STATE, known)], [Put(CONTROL, control)]])
        assert inbox.recv(16) == bytes((Topic.DATASETS | Topic.DURABLE,))
        store.put(SIGNAL_STATE, known)
        assert inbox.recv(16) == datasets
        store.update(SIGNAL_STATE, Key("urn:dp:a", "FRESHNESS"), set={"a": 1})
        assert inbox.recv(16) == datasets
        store.delete(SIGNAL_STATE, Key("urn:dp:a", "FRESHNESS"))
        assert inbox.recv(16) == datasets
        store.batch_write([Put(SIGNAL_STATE, known)])
        assert inbox.recv(16) == datasets
        store.submit([Put(SIGNAL_STATE, known)], lambda _error: None)
        assert inbox.recv(16) == datasets
