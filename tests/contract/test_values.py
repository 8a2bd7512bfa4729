"""Values: every type comes back as it was stored, whatever the backend and whichever way it took."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidItemError
from headgate.store.catalogue.tables import CONTROL, IDEMPOTENCY, PIPELINES
from headgate.store.model.conditions import equals
from headgate.store.model.requests import Put, Query, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import BLOB, Item, canonical_item
from headgate.store.port import Store
from tests.cases import each
from tests.contract.conftest import assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, IDEMPOTENCY, PIPELINES)
KEY = Key("p", "s")
# The attributes that the table gives a meaning to, and so a type.
MEANINGFUL = {"PK", "SK", "ttl", "due_pk", "due_at_ms", "GSI1PK", "GSI1SK"}


def _item(**attributes: Any) -> Item:
    return {"PK": "p", "SK": "s", **attributes}


def _read(store: Store) -> Item:
    item = store.get(CONTROL, KEY, consistent=True)
    assert item is not None
    return item


def _typed(value: object) -> object:
    """Spell a value out with its types, so that 1, 1.0 and True are three different things."""
    match value:
        case dict():
            return {name: _typed(element) for name, element in value.items()}
        case list():
            return [_typed(element) for element in value]
        case frozenset():
            return frozenset((type(element).__name__, element) for element in value)
    return (type(value).__name__, value)


def _nested(levels: int) -> object:
    value: object = "leaf"
    for _ in range(levels):
        value = {"m": value} if isinstance(value, list) else [value]
    return value


SAME = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "minus one": -1,
    "beyond double": 2**53 + 1,
    "64 bits": 2**63,
    "minus 64 bits": -(2**63) - 1,
    "38 digits": 10**38 - 1,
    "minus 38 digits": -(10**38) + 1,
    "38 digits with zeros": 10**37,
    "half": 0.5,
    "tenth": 0.1,
    "17 digits": 0.30000000000000004,
    "smallest": 1e-130,
    "small": 1.7976931348623157e-100,
    "largest": 9.99e125,
    "minus largest": -9.99e125,
    "above 38 digits": 1.5e40,
    "first beyond 38 digits": 1e38,
    "a googol": 1e100,
    "text": "text",
    "empty text": "",
    "blank": " ",
    "digits": "1",
    "unicode": "é漢字😀\u200d\u0301",
    "nul": "a\0b",
    "controls": "\x01\x1f\x7f\x85\u2028",
    "quotes": "'\"\\`",
    "json": '{"$bytes": "QQ=="}',
    "newlines": "a\r\nb\n",
    "bytes": b"\x00\xff\x80",
    "empty bytes": b"",
    "all bytes": bytes(range(256)),
    "empty list": [],
    "list": [1, "a", None, True, b"x", 0.5],
    "empty map": {},
    "map": {"a": 1, "b": {"c": [1, {"d": None}]}},
    "empties inside": [[], {}, "", b"", [[[]]]],
    "text set": frozenset({"a", "b", ""}),
    "number set": frozenset({1, 0.5, -3, 10**37}),
    "bytes set": frozenset({b"a", b"\x00", b""}),
    "set of one": frozenset({"only"}),
    "set inside": [{"s": frozenset({1, 2})}],
    "dollar keys": {"$x": 1, "$bytes": "QQ==", "$set": [1], "$number": "1", "$$": {"$": 2}},
    "odd keys": {"a.b": 1, "a b": 2, "#": 3, ":v": 4, "é": 5, "a[0]": 6, "state": 7},
    "32 levels": _nested(30),
    "long text": "x" * 100_000,
}

CHANGED = {
    "whole float": (1.0, 1),
    "minus zero": (-0.0, 0),
    "large whole float": (1e22, 10**22),
    "tuple": ((1, (2,)), [1, [2]]),
    "set": ({"a"}, frozenset({"a"})),
    "set of whole floats": ({1.0, 2.0}, frozenset({1, 2})),
    "whole float inside": ({"a": [3.0]}, {"a": [3]}),
}

REFUSED = {
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "39 digits": 10**38,
    "too small": 1e-131,
    "minus too small": -1e-131,
    "too large": 1e126,
    "empty set": set(),
    "mixed set": {1, "a"},
    "set of bools": {True},
    "set of none": {None},
    "33 levels": _nested(31),
    "number as map key": {1: "a"},
    "none as map key": {None: "a"},
    "empty map key": {"a": {"": 1}},
    "reserved map key": {BLOB: "spill/x"},
    "half a surrogate pair": "\ud800",
    "half a surrogate pair inside": [{"a": "x\udfff"}],
    "half a surrogate pair as map key": {"\ud800": 1},
    "half a surrogate pair in a set": {"\ud800"},
    "object": object(),
    "complex": 1j,
    "bytearray": bytearray(b"x"),
    "iterator": iter([1]),
    "nan inside": {"a": [1, {"b": math.nan}]},
    "empty set inside": [set()],
}

NAMES = [
    "state", "status", "ttl_lock", "source", "commit", "metrics", "owner", "error", "name", "size", "value", "items",
    "count", "data", "date", "timestamp", "user", "zone", "SELECT", "FROM", "a.b", "a.b.c", "a b", " ", "#", "#a", ":a",
    "a#b", "a[0]", "é漢字😀", "$x", "$", "$bytes", "'", '"', "\\", "a-b", "0", "1a", "json", "_", "%",
    "rowid", "x" * 255,
]  # fmt: skip


@each("value", SAME)
def test_get__a_value_of_any_type__comes_back_unchanged(store: Store, value: str) -> None:
    store.put(CONTROL, _item(value=SAME[value]))

    assert _typed(_read(store)) == _typed(_item(value=SAME[value]))


@each("value", CHANGED)
def test_get__a_value_with_another_stored_form__comes_back_in_that_form(store: Store, value: str) -> None:
    given_value, stored = CHANGED[value]

    store.put(CONTROL, _item(value=given_value))

    assert _typed(_read(store)) == _typed(_item(value=stored))


@each("value", REFUSED)
def test_put__a_value_that_cannot_be_stored__is_refused(store: Store, value: str) -> None:
    store.put(CONTROL, _item(value="before"))

    assert_refused(
        InvalidItemError, lambda: store.put(CONTROL, _item(value=REFUSED[value])), lambda: contents(store, CONTROL, "p")
    )


@each("value", REFUSED)
def test_update__a_value_that_cannot_be_stored__is_refused(store: Store, value: str) -> None:
    store.put(CONTROL, _item(value="before"))

    assert_refused(
        InvalidItemError,
        lambda: store.update(CONTROL, KEY, set={"value": REFUSED[value]}),
        lambda: contents(store, CONTROL, "p"),
    )


WAYS: dict[str, Callable[[Store, Item], object]] = {
    "put": lambda store, item: store.put(CONTROL, item),
    "transaction": lambda store, item: store.transact([Put(CONTROL, item)]),
    "transaction with a token": lambda store, item: store.transact([Put(CONTROL, item)], token="t"),
    "batch": lambda store, item: store.batch_write([Put(CONTROL, item)]),
}


@pytest.mark.parametrize("way", WAYS)
def test_get__all_types_in_one_item_by_any_way_of_writing__come_back(store: Store, way: str) -> None:
    item = _item(**{name.replace(" ", "_"): value for name, value in SAME.items()})

    WAYS[way](store, item)

    assert _typed(_read(store)) == _typed(item)


def test_update__all_types_in_one_update__come_back(store: Store) -> None:
    values = {name.replace(" ", "_"): value for name, value in SAME.items()}
    store.put(CONTROL, _item())

    after = store.update(CONTROL, KEY, set=values)

    assert _typed(after) == _typed(_item(**values))
    assert _typed(_read(store)) == _typed(after)


def test_update__all_types_in_a_transaction__come_back(store: Store) -> None:
    values = {name.replace(" ", "_"): value for name, value in SAME.items()}
    store.put(CONTROL, _item())

    store.transact([Update(CONTROL, KEY, set=values)])

    assert _typed(_read(store)) == _typed(_item(**values))


def test_every_read__all_types_in_one_item__gives_the_same(store: Store) -> None:
    item = _item(**{name.replace(" ", "_"): value for name, value in SAME.items()})
    store.put(PIPELINES, item)

    page = store.query(Query(table=PIPELINES, partition="p", consistent=True))
    many = store.get_many(PIPELINES, [KEY], consistent=True)
    removed = store.delete(PIPELINES, KEY)

    assert _typed(page.items) == _typed([item])
    assert _typed(many) == _typed([item])
    assert _typed(removed) == _typed(item)


@each("name", NAMES)
def test_attribute__of_any_name__is_put_updated_compared_counted_and_removed(store: Store, name: str) -> None:
    store.put(CONTROL, _item(**{name: "old", "version": 1}))
    assert _read(store) == _item(**{name: "old", "version": 1})

    after = store.update(CONTROL, KEY, set={name: 1}, condition=equals(name, "old"))
    assert after == _item(**{name: 1, "version": 1})

    after = store.update(CONTROL, KEY, add={name: 2, "version": 1}, condition=equals("version", 1))
    assert after == _item(**{name: 3, "version": 2})

    store.transact([Update(CONTROL, KEY, remove=(name,), condition=equals(name, 3))])
    assert _read(store) == _item(version=2)


def test_attribute__with_a_dot__is_not_a_path(store: Store) -> None:
    store.put(CONTROL, _item(**{"a": {"b": "inner"}, "a.b": "outer"}))

    after = store.update(CONTROL, KEY, set={"a.b": "changed"}, condition=equals("a.b", "outer"))

    assert after == _item(**{"a": {"b": "inner"}, "a.b": "changed"})


@each("name", ["", None, 1, b"x"])
def test_put__attribute_name_that_is_not_text__is_refused(store: Store, name: Any) -> None:
    assert_refused(
        InvalidItemError, lambda: store.put(CONTROL, {**_item(), name: 1}), lambda: contents(store, CONTROL, "p")
    )


NUMBERS = st.integers(min_value=-(10**38) + 1, max_value=10**38 - 1) | st.floats(
    min_value=-9e125, max_value=9e125
).filter(lambda number: number == 0 or abs(number) >= 1e-130)
# MiniStack takes an attribute called M for a type when it updates; DynamoDB does not.
TYPE_LETTERS = {"S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL"}
ATTRIBUTES = st.text(min_size=1, max_size=20).filter(lambda name: name not in {BLOB, *MEANINGFUL, *TYPE_LETTERS})
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=40) | st.binary(max_size=40)
    | st.frozensets(st.text(max_size=8), min_size=1, max_size=4)
    | st.frozensets(NUMBERS, min_size=1, max_size=4)
    | st.frozensets(st.binary(max_size=8), min_size=1, max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ATTRIBUTES, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attributes=st.dictionaries(ATTRIBUTES, VALUES, max_size=6))
def test_get__random_item__comes_back_in_canonical_form(store: Store, attributes: dict[str, Any]) -> None:
    expected, _ = canonical_item(_item(**attributes))

    store.put(CONTROL, _item(**attributes))

    assert _typed(_read(store)) == _typed(expected)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.dictionaries(ATTRIBUTES, VALUES, max_size=4),
    second=st.dictionaries(ATTRIBUTES, VALUES, min_size=1, max_size=4),
)
def test_update__random_values_over_a_random_item__are_set(
    store: Store, first: dict[str, Any], second: dict[str, Any]
) -> None:
    expected, _ = canonical_item(_item(**{**first, **second}))
    store.put(CONTROL, _item(**first))

    after = store.update(CONTROL, KEY, set=second)

    assert _typed(after) == _typed(expected)
    assert _typed(_read(store)) == _typed(expected)
