from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.store.catalogue.tables import TURNS
from headgate.store.dynamodb.marshalling import from_attributes, from_value, to_attributes, to_key, to_value
from headgate.store.model.schema import Key
from headgate.store.model.values import canonical_item, same

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAP_KEYS = TEXT.filter(lambda name: bool(name) and "$" not in name)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: 1e-130 <= abs(number) < 9e125)
NUMBERS = st.integers(-(10**38) + 1, 10**38 - 1) | FLOATS
SETS = st.frozensets(TEXT, min_size=1) | st.frozensets(NUMBERS, min_size=1) | st.frozensets(st.binary(), min_size=1)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT | st.binary(max_size=20) | SETS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MAP_KEYS, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(TEXT.filter(bool), VALUES, max_size=6))
def test_round_trip__any_canonical_item__is_the_same_item(item: dict[str, Any]) -> None:
    stored, _ = canonical_item(item)

    assert same(from_attributes(to_attributes(stored)), stored)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        (None, {"NULL": True}),
        (True, {"BOOL": True}),
        (0, {"N": "0"}),
        (-(10**37), {"N": "-1" + "0" * 37}),
        (0.1, {"N": "0.1"}),
        (1.5e-7, {"N": "1.5E-7"}),
        ("", {"S": ""}),
        ("é", {"S": "é"}),
        (b"\x00", {"B": b"\x00"}),
        ([1, "a"], {"L": [{"N": "1"}, {"S": "a"}]}),
        ({"a": {"b": None}}, {"M": {"a": {"M": {"b": {"NULL": True}}}}}),
        (frozenset({"b", "a"}), {"SS": ["a", "b"]}),
        (frozenset({2.5, 1}), {"NS": ["1", "2.5"]}),
        (frozenset({b"b", b"a"}), {"BS": [b"a", b"b"]}),
    ],
)
def test_to_value__each_kind__has_dynamodbs_type(value: object, attribute: dict[str, object]) -> None:
    assert to_value(value) == attribute
    assert same(from_value(attribute), value)


@pytest.mark.parametrize(("text", "number"), [("1E+2", 100), ("1.0", 1), ("-0", 0), ("2.50", 2.5), ("1E-7", 1e-7)])
def test_from_value__number_in_another_notation__is_canonical(text: str, number: float) -> None:
    found = from_value({"N": text})

    assert type(found) is type(number)
    assert math.isclose(found, number, rel_tol=0)


def test_to_key__text_and_number__are_typed() -> None:
    assert to_key(TURNS, Key("e", 3)) == {"execution_id": {"S": "e"}, "turn": {"N": "3"}}
