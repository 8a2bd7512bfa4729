"""Handles on a store: opening again, closing, health, and what they count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.errors import ConflictError, StoreClosedError
from headgate.store.catalogue.tables import CONTROL, HEALTH_CHECK, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS
from headgate.store.model.requests import Delete, Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import AnyStore, OpenStore, assert_refused

TABLES = (CONTROL, HEALTH_CHECK, IDEMPOTENCY, PIPELINES, STREAM_CHECKPOINTS)
KEY = Key("p", "s")


def _item(**attributes: Any) -> dict[str, Any]:
    return {"PK": "p", "SK": "s", **attributes}


def test_get__through_another_handle__sees_what_was_written(store: Store, open_store: OpenStore) -> None:
    store.put(CONTROL, _item(n=1))

    assert open_store().get(CONTROL, KEY, consistent=True) == _item(n=1)


def test_get__after_closing_and_opening_again__sees_what_was_written(store: Store, open_store: OpenStore) -> None:
    store.put(CONTROL, _item(n=1))
    store.close()

    assert open_store().get(CONTROL, KEY, consistent=True) == _item(n=1)


def test_check_health__of_a_store_that_serves__raises_nothing(store: Store) -> None:
    store.check_health()


def test_close__twice__is_allowed(store: Store) -> None:
    store.close()
    store.close()


def test_close__one_of_two_handles__leaves_the_other_open(store: Store, open_store: OpenStore) -> None:
    other = open_store()

    store.close()
    other.put(CONTROL, _item(n=1))

    assert other.get(CONTROL, KEY, consistent=True) == _item(n=1)


CALLS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get(CONTROL, KEY),
    "get consistently": lambda store: store.get(CONTROL, KEY, consistent=True),
    "get_many": lambda store: store.get_many(CONTROL, [KEY]),
    "query": lambda store: store.query(Query(table=CONTROL, partition="p")),
    "query an index": lambda store: store.query(Query(table=PIPELINES, index="GSI1", partition="p")),
    "query_many": lambda store: store.query_many([Query(table=CONTROL, partition="p")]),
    "put": lambda store: store.put(CONTROL, _item(n=2)),
    "update": lambda store: store.update(CONTROL, KEY, set={"n": 2}),
    "delete": lambda store: store.delete(CONTROL, KEY),
    "transact": lambda store: store.transact([Put(CONTROL, _item(n=2))]),
    "transact with a token": lambda store: store.transact([Update(CONTROL, KEY, add={"n": 2})], token="token"),
    "batch_write": lambda store: store.batch_write([Delete(CONTROL, KEY)]),
    "changes": lambda store: store.changes(PIPELINES, "consumer"),
    "checkpoint": lambda store: store.checkpoint(PIPELINES, "consumer", "0"),
    "check_health": lambda store: store.check_health(),
}


@pytest.mark.parametrize("call", CALLS)
def test_any_call__after_close__says_that_the_store_is_closed(store: Store, open_store: OpenStore, call: str) -> None:
    store.put(CONTROL, _item(n=1))
    other = open_store()
    store.close()

    assert_refused(StoreClosedError, lambda: CALLS[call](store), lambda: other.get(CONTROL, KEY, consistent=True))


COUNTED: dict[str, Callable[[Store], object]] = {
    "reads": lambda store: store.get(CONTROL, KEY),
    "queries": lambda store: store.query(Query(table=CONTROL, partition="p")),
    "writes": lambda store: store.put(CONTROL, _item()),
    "transactions": lambda store: store.transact([Put(CONTROL, _item())]),
    "batches": lambda store: store.batch_write([Put(CONTROL, _item())]),
    "commits": lambda store: store.put(CONTROL, _item()),
    "conflicts": lambda store: _lose(store),
}


def _lose(store: Store) -> None:
    with pytest.raises(ConflictError):
        store.update(CONTROL, KEY, set={"n": 1})


@pytest.mark.parametrize("counter", COUNTED)
def test_stats__after_a_call__have_counted_it(store: AnyStore, counter: str) -> None:
    before = store.stats.snapshot()[counter]

    COUNTED[counter](store)

    assert store.stats.snapshot()[counter] == before + 1
