"""Tokens: a transaction that is sent twice happens once."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import (
    ConflictError,
    TokenReusedError,
    TransactionLimitError,
)
from headgate.store.catalogue.tables import CONTROL, FANOUT, IDEMPOTENCY, PIPELINES
from headgate.store.model.conditions import absent, equals, exists
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import OpenStore, assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, FANOUT, IDEMPOTENCY, PIPELINES)


def _item(sort: str, **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


def _put(sort: str, **attributes: Any) -> Put:
    return Put(CONTROL, _item(sort, **attributes))


def _everything(store: Store) -> list[Item]:
    return contents(store, CONTROL, "p")


def test_transact__add_with_a_token__counts(store: Store) -> None:
    store.put(CONTROL, _item("s", n=1))

    store.transact([Update(CONTROL, Key("p", "s"), add={"n": 2, "fresh": 0.5})], token="once")

    assert _everything(store) == [_item("s", n=3, fresh=0.5)]


def test_transact__same_call_with_the_same_token__counts_once(store: Store) -> None:
    store.put(CONTROL, _item("s", n=0))

    for _ in range(3):
        store.transact([Update(CONTROL, Key("p", "s"), add={"n": 1})], token="once")

    assert _everything(store) == [_item("s", n=1)]


def test_transact__same_call_with_another_token__counts_again(store: Store) -> None:
    store.put(CONTROL, _item("s", n=0))

    for token in ("one", "two", "x" * 36):
        store.transact([Update(CONTROL, Key("p", "s"), add={"n": 1})], token=token)

    assert _everything(store) == [_item("s", n=3)]


def test_transact__replay_when_the_condition_no_longer_holds__succeeds(store: Store) -> None:
    writes = [Put(CONTROL, _item("s", n=1), absent())]
    store.transact(writes, token="create")

    store.transact(writes, token="create")

    assert _everything(store) == [_item("s", n=1)]


def test_transact__replay_after_others_changed_the_item__does_not_undo_them(store: Store) -> None:
    writes = [Put(CONTROL, _item("s", n=1))]
    store.transact(writes, token="write")
    store.put(CONTROL, _item("s", n=2))

    store.transact(writes, token="write")

    assert _everything(store) == [_item("s", n=2)]


@pytest.mark.parametrize("seconds", [1, 61, 540, 599])
def test_transact__replay_within_ten_minutes__changes_nothing(
    store: Store, clock: VirtualClock, seconds: float
) -> None:
    writes: list[Write] = [
        Put(CONTROL, _item("new", n=1, ttl=int(clock.seconds()) + 86_400), absent()),
        Update(CONTROL, Key("p", "s"), add={"n": 1}),
        Delete(CONTROL, Key("p", "gone"), exists()),
    ]
    store.put(CONTROL, _item("s", n=0))
    store.put(CONTROL, _item("gone"))
    store.transact(writes, token="replayed")
    before = _everything(store)

    clock.advance(seconds)
    store.transact(writes, token="replayed")

    assert _everything(store) == before


def test_transact__same_call_after_ten_minutes__is_a_new_transaction(store: Store, clock: VirtualClock) -> None:
    writes = [Put(CONTROL, _item("s", n=1))]
    store.transact(writes, token="forgotten")
    store.put(CONTROL, _item("s", n=2))

    clock.advance(600)
    store.transact(writes, token="forgotten")
    assert _everything(store) == [_item("s", n=1)]

    # The second call is remembered in turn.
    store.put(CONTROL, _item("s", n=3))
    store.transact(writes, token="forgotten")
    assert _everything(store) == [_item("s", n=3)]


def test_transact__replay_with_a_spilled_value_in_the_next_hour__changes_nothing(
    store: Store, clock: VirtualClock
) -> None:
    clock.advance(59 * 60)
    writes = [Put(CONTROL, _item("s", text="x" * 600_000), absent())]
    store.transact(writes, token="replayed")

    clock.advance(120)
    store.transact(writes, token="replayed")

    assert [len(item["text"]) for item in _everything(store)] == [600_000]


def test_transact__replay_through_another_handle__changes_nothing(store: Store, open_store: OpenStore) -> None:
    store.put(CONTROL, _item("s", n=0))
    writes = [Update(CONTROL, Key("p", "s"), add={"n": 1})]
    store.transact(writes, token="once")

    open_store().transact(writes, token="once")

    assert _everything(store) == [_item("s", n=1)]


OTHERS: dict[str, list[Write]] = {
    "another value": [Put(CONTROL, _item("s", n=2))],
    "another item": [Put(CONTROL, _item("t", n=1))],
    "another kind": [Update(CONTROL, Key("p", "s"), set={"n": 1})],
    "another condition": [Put(CONTROL, _item("s", n=1), exists())],
    "one write more": [Put(CONTROL, _item("s", n=1)), _put("t")],
    "another table": [Put(PIPELINES, _item("s", n=1))],
    "true for one": [Put(CONTROL, _item("s", n=True))],
    "text for one": [Put(CONTROL, _item("s", n="1"))],
}


@pytest.mark.parametrize("other", OTHERS)
def test_transact__token_of_another_request__is_refused(store: Store, other: str) -> None:
    store.transact([Put(CONTROL, _item("s", n=1))], token="taken")

    assert_refused(
        TokenReusedError,
        lambda: store.transact(OTHERS[other], token="taken"),
        lambda: (_everything(store), contents(store, PIPELINES, "p")),
    )


def test_transact__token_of_a_refused_request__can_be_used_again(store: Store) -> None:
    writes: list[Write] = [Put(CONTROL, _item("new", n=1)), Check(CONTROL, Key("p", "ready"), exists())]
    with pytest.raises(ConflictError):
        store.transact(writes, token="retry")

    store.put(CONTROL, _item("ready"))
    store.transact(writes, token="retry")

    assert _everything(store) == [_item("new", n=1), _item("ready")]


def test_transact__conflict_with_a_token__names_the_writes(store: Store) -> None:
    store.put(CONTROL, _item("b", n=1))

    error = assert_refused(
        ConflictError,
        lambda: store.transact([_put("a"), Put(CONTROL, _item("b"), absent())], token="token"),
        lambda: _everything(store),
    )

    assert isinstance(error, ConflictError)
    assert error.failures == {1: _item("b", n=1)}


@pytest.mark.parametrize("token", ["", "x" * 37])
def test_transact__token_of_no_or_too_many_characters__is_refused(store: Store, token: str) -> None:
    assert_refused(TransactionLimitError, lambda: store.transact([_put("s")], token=token), lambda: _everything(store))


def test_transact__ninety_nine_writes_with_a_token__are_done_once(store: Store) -> None:
    writes = [Update(CONTROL, Key("p", f"{number:03d}"), add={"n": 1}) for number in range(99)]
    store.batch_write([_put(f"{number:03d}", n=0) for number in range(99)])

    store.transact(writes, token="many")
    store.transact(writes, token="many")

    assert [item["n"] for item in _everything(store)] == [1] * 99


def test_transact__a_hundred_writes_with_a_token__is_refused(store: Store) -> None:
    # The token takes a write of its own.
    writes = [_put(f"{number:03d}") for number in range(100)]

    assert_refused(TransactionLimitError, lambda: store.transact(writes, token="many"), lambda: _everything(store))


def test_transact__replay_with_maps_in_another_order__changes_nothing(store: Store) -> None:
    store.transact([_put("s", a={"x": 1, "y": {"u": 1, "v": 2}}, b=2)], token="token")
    store.put(CONTROL, _item("s", n=2))

    store.transact([Put(CONTROL, {"b": 2, "a": {"y": {"v": 2, "u": 1}, "x": 1}, "SK": "s", "PK": "p"})], token="token")

    assert _everything(store) == [_item("s", n=2)]


def test_transact__moving_a_count_between_rows__keeps_the_sum(store: Store) -> None:
    chunk, counters = Key("run", "CHUNK#chunk-0000500"), Key("run", "CTR#00")
    store.put(FANOUT, {"PK": "run", "SK": chunk.sort, "status": "IN_PROGRESS", "attempt": 1})
    store.put(FANOUT, {"PK": "run", "SK": counters.sort, "in_progress": 1, "completed": 0})
    writes = [
        Update(FANOUT, chunk, set={"status": "COMPLETED"}, condition=equals("attempt", 1)),
        Update(FANOUT, counters, add={"in_progress": -1, "completed": 1}),
    ]

    for _ in range(2):
        store.transact(writes, token="run/0000500/1")

    counted = store.get(FANOUT, counters, consistent=True)
    assert counted is not None
    assert (counted["in_progress"], counted["completed"]) == (0, 1)
