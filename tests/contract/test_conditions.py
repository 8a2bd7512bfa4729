"""Conditions: every backend agrees with `conditions.holds`, and the writer that loses gets the current item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, IDEMPOTENCY
from headgate.store.model.conditions import (
    Condition,
    absent,
    all_of,
    any_of,
    at_least,
    at_most,
    describe,
    differs,
    equals,
    exists,
    greater_than,
    has,
    holds,
    lacks,
    less_than,
    one_of,
    version_is,
)
from headgate.store.model.requests import Check, Delete, Put, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.cases import each
from tests.contract.conftest import assert_refused
from tests.unit.store.model.test_conditions import FALSE_OF_ITEM, FALSE_OF_NOTHING, ITEM, TRUE_OF_ITEM, TRUE_OF_NOTHING

READS_INDEXES = False

TABLES = (CONTROL, EVIDENCE_CACHE, IDEMPOTENCY)
KEY = Key("p", "s")
STORED: Item = {"PK": "p", "SK": "s", **ITEM}


def _read(store: Store) -> Item | None:
    return store.get(CONTROL, KEY, consistent=True)


# Every clause, with an item and without one


@each("condition", TRUE_OF_ITEM)
def test_put__clause_true_of_the_item__replaces_it(store: Store, condition: Condition) -> None:
    store.put(CONTROL, STORED)

    store.put(CONTROL, {"PK": "p", "SK": "s", "new": 1}, condition=condition)

    assert _read(store) == {"PK": "p", "SK": "s", "new": 1}


@each("condition", FALSE_OF_ITEM)
def test_put__clause_false_of_the_item__conflicts_and_shows_it(store: Store, condition: Condition) -> None:
    store.put(CONTROL, STORED)

    with pytest.raises(ConflictError) as caught:
        store.put(CONTROL, {"PK": "p", "SK": "s", "new": 1}, condition=condition)

    assert caught.type is ConflictError
    assert caught.value.current == STORED
    assert _read(store) == STORED


@pytest.mark.parametrize("condition", TRUE_OF_NOTHING, ids=describe)
def test_put__clause_true_without_an_item__stores_it(store: Store, condition: Condition) -> None:
    store.put(CONTROL, STORED, condition=condition)

    assert _read(store) == STORED


@pytest.mark.parametrize("condition", FALSE_OF_NOTHING, ids=describe)
def test_put__clause_false_without_an_item__conflicts_with_none(store: Store, condition: Condition) -> None:
    with pytest.raises(ConflictError) as caught:
        store.put(CONTROL, STORED, condition=condition)

    assert caught.type is ConflictError
    assert caught.value.current is None
    assert _read(store) is None


# Every kind of write

WRITES: dict[str, Callable[[Store, Condition], object]] = {
    "put": lambda store, condition: store.put(CONTROL, {"PK": "p", "SK": "s", "n": 2}, condition=condition),
    "update": lambda store, condition: store.update(CONTROL, KEY, set={"n": 2}, condition=condition),
    "delete": lambda store, condition: store.delete(CONTROL, KEY, condition=condition),
    "put in a transaction": lambda store, condition: store.transact(
        [Put(CONTROL, {"PK": "p", "SK": "s", "n": 2}, condition)]
    ),
    "update in a transaction": lambda store, condition: store.transact(
        [Update(CONTROL, KEY, set={"n": 2}, condition=condition)]
    ),
    "delete in a transaction": lambda store, condition: store.transact([Delete(CONTROL, KEY, condition)]),
    "check in a transaction": lambda store, condition: store.transact([Check(CONTROL, KEY, condition)]),
    "put with a token": lambda store, condition: store.transact(
        [Put(CONTROL, {"PK": "p", "SK": "s", "n": 2}, condition)], token="token"
    ),
}
BEFORE: Item = {"PK": "p", "SK": "s", "n": 1, "tags": ["a"], "deep": {"set": frozenset({1})}}


@each("write", WRITES)
def test_write__condition_holds__is_done(store: Store, write: str) -> None:
    store.put(CONTROL, BEFORE)

    WRITES[write](store, equals("n", 1))

    after = _read(store)
    assert after == BEFORE if "check" in write else after != BEFORE


@each("write", WRITES)
def test_write__condition_does_not_hold__conflicts_and_carries_the_item(store: Store, write: str) -> None:
    store.put(CONTROL, BEFORE)

    error = assert_refused(ConflictError, lambda: WRITES[write](store, equals("n", 7)), lambda: _read(store))

    assert isinstance(error, ConflictError)
    assert error.current == BEFORE
    assert error.write_index == 0
    assert error.failures == {0: BEFORE}


@pytest.mark.parametrize("write", WRITES)
def test_write__condition_on_a_missing_item__conflicts_and_carries_none(store: Store, write: str) -> None:
    error = assert_refused(ConflictError, lambda: WRITES[write](store, exists()), lambda: _read(store))

    assert isinstance(error, ConflictError)
    assert error.current is None
    assert error.failures == {0: None}


def test_update__condition_true_of_nothing__still_conflicts_on_a_missing_item(store: Store) -> None:
    for condition in (absent(), lacks("n"), differs("n", 1)):
        with pytest.raises(ConflictError) as caught:
            store.update(CONTROL, KEY, set={"n": 2}, condition=condition)

        assert caught.value.current is None
        assert _read(store) is None


def test_update__condition_absent_on_an_item__conflicts(store: Store) -> None:
    store.put(CONTROL, BEFORE)

    error = assert_refused(
        ConflictError,
        lambda: store.update(CONTROL, KEY, set={"n": 2}, condition=absent()),
        lambda: _read(store),
    )

    assert isinstance(error, ConflictError)
    assert error.current == BEFORE


def test_delete__condition_absent_and_nothing_there__is_harmless(store: Store) -> None:
    assert store.delete(CONTROL, KEY, condition=absent()) is None


def test_conflict__message__names_the_item_and_the_condition(store: Store) -> None:
    store.put(CONTROL, BEFORE)

    with pytest.raises(ConflictError) as caught:
        store.put(CONTROL, BEFORE, condition=absent())

    assert "headgate-control" in caught.value.message
    assert "'p'" in caught.value.message
    assert "absent" in caught.value.message


def test_conflict__current_changed_by_the_caller__does_not_change_the_store(store: Store) -> None:
    store.put(CONTROL, BEFORE)
    with pytest.raises(ConflictError) as caught:
        store.put(CONTROL, BEFORE, condition=absent())
    assert caught.value.current is not None

    caught.value.current["tags"].append("b")

    assert _read(store) == BEFORE


def test_conflict__losing_a_compare_and_swap__can_go_on_from_the_current_item(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "version": 5})
    with pytest.raises(ConflictError) as caught:
        store.update(CONTROL, KEY, add={"version": 1}, condition=version_is(4))
    assert caught.value.current is not None

    after = store.update(CONTROL, KEY, add={"version": 1}, condition=version_is(caught.value.current["version"]))

    assert after == {"PK": "p", "SK": "s", "version": 6}


# Corners of comparing


@pytest.mark.parametrize(
    ("value", "condition", "expected"),
    [
        (10**37 + 1, equals("a", 10**37 + 1), True),
        (10**37 + 1, equals("a", 10**37), False),
        (2**53 + 1, equals("a", 2**53), False),
        (2**53 + 1, greater_than("a", 2**53), True),
        (0.1, equals("a", 0.1), True),
        (0.1, equals("a", 0.10000000000000002), False),
        (0.3, equals("a", 0.1 + 0.2), False),
        (-1, less_than("a", 0), True),
        (-10, less_than("a", -9), True),
        (10, less_than("a", 9), False),
        (1e-100, greater_than("a", 0), True),
        (1e100, greater_than("a", 10**37), True),
        ("10", less_than("a", "9"), True),
        ("a", less_than("a", "b"), True),
        ("Z", less_than("a", "a"), True),
        ("é", greater_than("a", "z"), True),
        ("\uffff", less_than("a", "😀"), True),
        ("", less_than("a", "a"), True),
        ("a", greater_than("a", ""), True),
        ("a", equals("a", "a "), False),
        ("e\u0301", equals("a", "\u00e9"), False),
        ("a\0b", equals("a", "a"), False),
        (b"\x00", less_than("a", b"\x01"), True),
        (b"\xff", greater_than("a", b"\x00\x00"), True),
        (b"", equals("a", b""), True),
        ("x" * 2048, equals("a", "x" * 2048), True),
        ("x" * 2049, equals("a", "x" * 2048), False),
        ("x" * 2049, greater_than("a", "x" * 2048), True),
        (7, one_of("a", *range(100)), True),
        (100, one_of("a", *range(100)), False),
        (True, one_of("a", 1, "true", None), False),
    ],
    ids=lambda value: repr(value)[:24] if not isinstance(value, tuple) else None,
)
def test_comparison__corner__is_decided_as_holds_decides(
    store: Store, value: Any, condition: Condition, expected: bool
) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "a": value})

    assert holds(condition, {"a": value}) is expected
    assert _passes(store, condition) is expected


def test_condition__on_key_attributes__is_about_the_item(store: Store) -> None:
    store.put(CONTROL, BEFORE)

    assert _passes(store, equals("PK", "p"))
    assert _passes(store, has("SK"))
    assert not _passes(store, equals("SK", "t"))


def test_condition__on_a_table_without_a_sort_key__works(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "e"}, condition=absent())

    with pytest.raises(ConflictError) as caught:
        store.put(EVIDENCE_CACHE, {"evidence_id": "e"}, condition=absent())

    assert caught.value.current == {"evidence_id": "e"}


def test_condition__nested_many_levels__is_decided(store: Store) -> None:
    store.put(CONTROL, BEFORE)
    condition: Condition = equals("n", 1)
    for _ in range(10):
        condition = all_of(exists(), any_of(absent(), condition))

    assert _passes(store, condition)
    assert not _passes(store, all_of(condition, equals("n", 2)))


def test_condition__many_clauses_on_many_attributes__is_decided(store: Store) -> None:
    values = {f"attribute {number}": number for number in range(60)}
    store.put(CONTROL, {"PK": "p", "SK": "s", **values})

    assert _passes(store, all_of(*(equals(name, value) for name, value in values.items())))
    assert not _passes(store, all_of(*(equals(name, value) for name, value in values.items()), has("x")))
    assert not _passes(store, any_of(*(equals(name, value + 1) for name, value in values.items())))


CLAUSES_WITHOUT_A_NAME: dict[str, Callable[[], Condition]] = {
    "has": lambda: has(""),
    "lacks": lambda: lacks(""),
    "equals": lambda: equals("", 1),
    "one of": lambda: one_of("", 1),
    "inside": lambda: any_of(exists(), all_of(exists(), less_than("", 1))),
}


@each("clause", CLAUSES_WITHOUT_A_NAME)
def test_condition__on_an_attribute_without_a_name__is_refused(store: Store, clause: str) -> None:
    store.put(CONTROL, BEFORE)

    def write() -> None:
        store.put(CONTROL, {"PK": "p", "SK": "s"}, condition=CLAUSES_WITHOUT_A_NAME[clause]())

    assert_refused(InvalidItemError, write, lambda: _read(store))


# Whatever the item, whatever the condition

OPERANDS = st.sampled_from([None, True, False, 0, 1, -1, 0.5, 10**37, "", "1", "a", "b", b"", b"a", b"b"])
STORED_VALUES = OPERANDS | st.sampled_from([[], [1], {}, {"a": 1}, frozenset({1}), frozenset({"a"})])
ATTRIBUTE = st.sampled_from(["a", "b", "status", "PK"])
CLAUSES = st.one_of(
    st.just(absent()),
    st.just(exists()),
    st.builds(has, ATTRIBUTE),
    st.builds(lacks, ATTRIBUTE),
    *(
        st.builds(compare, ATTRIBUTE, OPERANDS)
        for compare in (equals, differs, less_than, at_most, greater_than, at_least)
    ),
    st.builds(lambda name, values: one_of(name, *values), ATTRIBUTE, st.lists(OPERANDS, min_size=1, max_size=3)),
)
CONDITIONS = st.recursive(
    CLAUSES,
    lambda inner: st.lists(inner, min_size=1, max_size=3).flatmap(
        lambda clauses: st.sampled_from([any_of(*clauses), all_of(*clauses)])
    ),
    max_leaves=6,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attributes=st.none() | st.dictionaries(st.sampled_from(["a", "b", "status"]), STORED_VALUES, max_size=3),
    condition=CONDITIONS,
    write=st.sampled_from(sorted(WRITES)),
)
def test_write__random_item_and_condition__passes_exactly_if_it_holds(
    store: Store, attributes: dict[str, Any] | None, condition: Condition, write: str
) -> None:
    item = None if attributes is None else {"PK": "p", "SK": "s", **attributes}
    expected = holds(condition, item) and not (item is None and "update" in write)
    if item is None:
        store.delete(CONTROL, KEY)
    else:
        store.put(CONTROL, item)
    # A token belongs to one request; this test makes many.
    perform = WRITES["put in a transaction" if "token" in write else write]

    conflict = _conflict(lambda: perform(store, condition))

    assert (conflict is None) is expected
    if conflict is not None:
        assert conflict.current == item
        assert _read(store) == item


def _conflict(call: Callable[[], object]) -> ConflictError | None:
    try:
        call()
    except ConflictError as conflict:
        return conflict
    return None


def _passes(store: Store, condition: Condition) -> bool:
    return _conflict(lambda: store.transact([Check(CONTROL, KEY, condition)])) is None
