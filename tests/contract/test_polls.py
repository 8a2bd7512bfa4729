"""Polls: an idle partition is not read again and again, and nothing that is written to it is missed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.store.catalogue.tables import ACTIVITIES, CONTROL, IDEMPOTENCY
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Poll, Put, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.polls import PROMPT_SECONDS, SETTLE_SECONDS
from headgate.store.sharded_store import ShardedStore
from tests.contract.conftest import AnyStore, Eventually, OpenStore

TABLES = (ACTIVITIES, CONTROL, IDEMPOTENCY)
QUEUE = Query(table=ACTIVITIES, index="queue-index", partition="Q#default", limit=10, poll=Poll.PROMPT)
DUE = Query(table=CONTROL, index="due-index", partition="ALERT#GROUP", limit=10, poll=Poll.RELAXED)
SPOOL = Query(table=CONTROL, partition="EVIDENCE-SPOOL#1", limit=10, consistent=True, poll=Poll.RELAXED)
POLLS = 20


class PollTime:
    """The time by which polls judge what they know. A test moves it; the store's own time goes on."""

    def __init__(self) -> None:
        self.passed_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed_seconds


@pytest.fixture
def poll_time() -> PollTime:
    return PollTime()


@pytest.fixture
def sharded(store: AnyStore, keyring: Keyring, poll_time: PollTime) -> ShardedStore:
    inner = store.store if isinstance(store, ShardedStore) else store
    return ShardedStore(inner, Cursors(keyring), now=poll_time)


def _activity(number: int, at_ms: int = 1000) -> Item:
    return {"activity_id": f"act-{number}", "queue_pk": "Q#default", "available_at_ms": at_ms}


def _group(number: int, due_at_ms: int) -> Item:
    return {"PK": f"ALERT-GROUP#{number}", "SK": "STATE", "due_pk": "ALERT#GROUP", "due_at_ms": due_at_ms}


def _queries(store: ShardedStore, query: Query) -> int:
    """Return how many queries so many polls take."""
    before = store.stats.queries
    for _ in range(POLLS):
        assert store.query(query).items == []
    return store.stats.queries - before


@pytest.mark.parametrize("query", [QUEUE, DUE, SPOOL], ids=["index", "shards of some values", "table"])
def test_poll__partition_stays_empty__is_read_far_less_often(
    sharded: ShardedStore, poll_time: PollTime, query: Query
) -> None:
    sharded.query(query)
    poll_time.passed_seconds += SETTLE_SECONDS
    once = sharded.stats.queries
    assert sharded.query(replace(query, poll=None)).items == []
    once = sharded.stats.queries - once

    # Other processes may be assumed to have committed once or twice meanwhile.
    assert _queries(sharded, query) <= 3 * once < POLLS * once
    assert _queries(sharded, replace(query, poll=None)) == POLLS * once


def test_poll__row_of_the_same_process__is_found_at_once(sharded: ShardedStore, eventually: Eventually) -> None:
    writes: list[Any] = [
        lambda: sharded.put(ACTIVITIES, _activity(0)),
        lambda: sharded.batch_write([Put(ACTIVITIES, _activity(0))]),
        lambda: sharded.transact([Put(ACTIVITIES, _activity(0))]),
        lambda: sharded.transact_many([[Put(ACTIVITIES, _activity(0))]]),
    ]
    for write in writes:
        assert eventually(lambda: sharded.query(QUEUE).items, lambda items: not items) == []
        write()
        started = time.monotonic()
        assert eventually(lambda: sharded.query(QUEUE).items, bool) == [_activity(0)]
        assert time.monotonic() - started < 5
        sharded.delete(ACTIVITIES, Key("act-0"))


def test_poll__row_moved_into_the_partition_by_an_update__is_found(
    sharded: ShardedStore, eventually: Eventually
) -> None:
    sharded.put(ACTIVITIES, {"activity_id": "act-0", "available_at_ms": 1000})
    assert sharded.query(QUEUE).items == []

    sharded.update(ACTIVITIES, Key("act-0"), set={"queue_pk": "Q#default"})

    assert eventually(lambda: sharded.query(QUEUE).items, bool) == [_activity(0)]


def test_poll__row_submitted__is_found(sharded: ShardedStore, eventually: Eventually) -> None:
    assert sharded.query(QUEUE).items == []

    sharded.submit([Put(ACTIVITIES, _activity(0))], lambda _: None)

    assert eventually(lambda: sharded.query(QUEUE).items, bool) == [_activity(0)]


def test_poll__row_of_another_process__is_found_soon(
    sharded: ShardedStore, open_store: OpenStore, eventually: Eventually, poll_time: PollTime
) -> None:
    sharded.query(QUEUE)
    poll_time.passed_seconds += SETTLE_SECONDS
    assert sharded.query(QUEUE).items == []

    open_store().put(ACTIVITIES, _activity(0))

    def polled() -> list[Item]:
        poll_time.passed_seconds += 0.5
        return sharded.query(QUEUE).items

    before = poll_time()
    assert eventually(polled, bool) == [_activity(0)]
    assert poll_time() - before < 3 * PROMPT_SECONDS


def test_poll__rows_due_later__are_found_when_they_are_due(sharded: ShardedStore, eventually: Eventually) -> None:
    sharded.put(CONTROL, _group(1, 2000))
    whole = replace(DUE, poll=None)
    eventually(lambda: sharded.query(whole).items, bool)

    def due(at_ms: int) -> list[Item]:
        return sharded.query(replace(DUE, sort=Sort(Range.AT_MOST, at_ms))).items

    assert [due(at_ms) for at_ms in (1000, 1500, 1999)] == [[], [], []]
    assert due(2000) == due(5000) == [_group(1, 2000)]
    sharded.put(CONTROL, _group(2, 1200))
    assert eventually(lambda: due(1500), bool) == [_group(2, 1200)]


def test_poll__several_at_once__are_answered_each_for_itself(sharded: ShardedStore, eventually: Eventually) -> None:
    sharded.put(ACTIVITIES, _activity(0))
    eventually(lambda: sharded.query(QUEUE).items, bool)
    now = replace(DUE, sort=Sort(Range.AT_MOST, 5000))

    for _ in range(3):
        pages = sharded.query_many([now, QUEUE, SPOOL, replace(QUEUE, partition="Q#slow")])
        assert [page.items for page in pages] == [[], [_activity(0)], [], []]
