"""Several transactions in one call: each by itself all or nothing, in their order."""

from __future__ import annotations

import pytest

from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key
from tests.contract.conftest import AnyStore

READS_INDEXES = False


def put(name: str, version: int, **facts: object) -> Put:
    condition = absent() if version == 1 else version_is(version - 1)
    return Put(CONTROL, {"PK": name, "SK": "x", "version": version, **facts}, condition)


def test_transact_many__all_hold__all_are_written(store: AnyStore) -> None:
    assert store.transact_many([[put("a", 1)], [put("b", 1), put("c", 1)]]) == [None, None]
    assert [item is not None for item in store.get_many(CONTROL, [Key(n, "x") for n in "abc"], consistent=True)] == [
        True,
        True,
        True,
    ]


def test_transact_many__one_is_refused__the_others_are_written_and_it_names_the_write(store: AnyStore) -> None:
    store.put(CONTROL, {"PK": "b", "SK": "x", "version": 7})
    outcomes = store.transact_many([[put("a", 1)], [put("c", 1), put("b", 1)], [put("d", 1)]])
    assert outcomes[0] is None
    assert outcomes[2] is None
    refusal = outcomes[1]
    assert isinstance(refusal, ConflictError)
    assert refusal.write_index == 1
    assert refusal.current is not None
    assert refusal.current["version"] == 7
    assert store.get(CONTROL, Key("c", "x"), consistent=True) is None
    assert store.get(CONTROL, Key("d", "x"), consistent=True) is not None


def test_transact_many__each_builds_on_the_one_before__the_chain_is_written(store: AnyStore) -> None:
    assert store.transact_many([[put("a", number)] for number in range(1, 6)]) == [None] * 5
    found = store.get(CONTROL, Key("a", "x"), consistent=True)
    assert found is not None
    assert found["version"] == 5


def test_transact_many__one_of_a_chain_is_refused__so_is_what_builds_on_it(store: AnyStore) -> None:
    outcomes = store.transact_many([[put("a", 1)], [put("a", 3)], [put("a", 4)]])
    assert [type(outcome) for outcome in outcomes] == [type(None), ConflictError, ConflictError]


def test_transact_many__bad_input_in_the_last__nothing_is_written(store: AnyStore) -> None:
    with pytest.raises(InvalidItemError):
        store.transact_many([[put("a", 1)], [Delete(CONTROL, Key("", "x"))]])
    assert store.get(CONTROL, Key("a", "x"), consistent=True) is None


def test_transact_many__of_nothing__returns_nothing(store: AnyStore) -> None:
    assert store.transact_many([]) == []
