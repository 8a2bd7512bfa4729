"""What may be stored, and the one form it has everywhere."""

from __future__ import annotations

import copy
import math
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidItemError
from headgate.store.model.values import (
    BLOB,
    add_numbers,
    canonical_item,
    canonical_number,
    dump,
    load,
    parse_number,
    same,
    stored_bytes,
)

FLOATS = st.floats(min_value=-9e125, max_value=9e125).filter(lambda number: number == 0 or abs(number) >= 1e-130)
INTEGERS = st.integers(min_value=-(10**38) + 1, max_value=10**38 - 1)
NUMBERS = INTEGERS | FLOATS
NAMES = st.text(min_size=1).filter(lambda name: name != BLOB)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text() | st.binary()
SETS = st.one_of(
    st.frozensets(st.text(), min_size=1), st.frozensets(NUMBERS, min_size=1), st.frozensets(st.binary(), min_size=1)
)
VALUES = st.recursive(
    SCALARS | SETS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
ITEMS = st.dictionaries(NAMES, VALUES, max_size=5)


def _form(value: object) -> object:
    """Spell a value out with its types, so that 1, 1.0 and True are three different things."""
    match value:
        case dict():
            return {name: _form(element) for name, element in value.items()}
        case list():
            return [_form(element) for element in value]
        case frozenset():
            return frozenset((type(element).__name__, element) for element in value)
    return (type(value).__name__, value)


def _canonical(value: object) -> Any:
    return canonical_item({"a": value})[0]["a"]


def _text(item: dict[str, Any]) -> str:
    stored, special = canonical_item(item)
    return dump(stored, special=special)


def _nested(levels: int) -> object:
    value: object = "leaf"
    for _ in range(levels):
        value = [value]
    return value


@given(ITEMS)
def test_load__of_a_dumped_item__gives_it_back_with_its_types(item: dict[str, Any]) -> None:
    stored, special = canonical_item(item)

    assert _form(load(dump(stored, special=special))) == _form(stored)


@given(ITEMS)
def test_canonical_item__of_a_canonical_item__changes_nothing(item: dict[str, Any]) -> None:
    once, _ = canonical_item(item)
    twice, _ = canonical_item(once)

    assert _form(twice) == _form(once)


@given(ITEMS)
def test_canonical_item__any_item__leaves_the_callers_item_alone(item: dict[str, Any]) -> None:
    before = copy.deepcopy(item)

    stored, _ = canonical_item(item)
    for value in stored.values():
        if isinstance(value, list):
            value.append("later")

    assert _form(item) == _form(before)


@pytest.mark.parametrize("name", ["$x", "$", "$$x", "$bytes", "$set", "$number"])
def test_load__attribute_named_with_a_dollar__keeps_its_name(name: str) -> None:
    stored, special = canonical_item({name: "text", "b": 1})

    assert load(dump(stored, special=special)) == {name: "text", "b": 1}


@pytest.mark.parametrize("name", ["$x", "$", "$$x", "$bytes", "$set", "$number"])
def test_load__map_key_with_a_dollar__keeps_its_name(name: str) -> None:
    stored, special = canonical_item({"a": {name: "QQ=="}, "b": [{name: ["1"]}]})

    assert load(dump(stored, special=special)) == {"a": {name: "QQ=="}, "b": [{name: ["1"]}]}


def test_load__text_that_looks_like_a_tag__stays_text() -> None:
    item = {"a": '{"$bytes": "QQ=="}', "b": ["$set", '"$number"'], "c": "$"}
    stored, special = canonical_item(item)

    assert load(dump(stored, special=special)) == item


def test_canonical_item__any_mapping__becomes_a_dict() -> None:
    stored, special = canonical_item(MappingProxyType({"a": 1}))

    assert type(stored) is dict
    assert stored == {"a": 1}
    assert not special


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, 2), [1, 2]),
        ({"a", "b"}, frozenset({"a", "b"})),
        ({1, 2.0}, frozenset({1, 2})),
        ([(1.0,), {2.0}], [[1], frozenset({2})]),
        ({"m": {"n": 3.0}}, {"m": {"n": 3}}),
        (1.0, 1),
        (-0.0, 0),
        (1e22, 10**22),
        (1.5, 1.5),
        (True, True),
        ("", ""),
        ([], []),
        ({}, {}),
        (b"", b""),
    ],
)
def test_canonical_item__a_value__takes_its_one_form(value: object, stored: object) -> None:
    assert _form(_canonical(value)) == _form(stored)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        10**38,
        -(10**38),
        1e-131,
        -1e-131,
        1e126,
        set(),
        frozenset(),
        {1, "1"},
        {"a", b"a"},
        {True},
        {None},
        {(1, 2)},
        {1: "number as a map key"},
        {None: 1},
        {"": "a map key is an attribute name, and has a character"},
        {BLOB: "reserved"},
        [{"deep": {BLOB: "reserved"}}],
        Decimal("1.5"),
        bytearray(b"x"),
        1j,
        object(),
        range(3),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"m": value}])
def test_canonical_item__value_without_a_stored_form__is_refused(value: object, wrap: Any) -> None:
    with pytest.raises(InvalidItemError) as caught:
        canonical_item({"bad": wrap(value)})

    assert caught.type is InvalidItemError
    assert "bad" in caught.value.message


@pytest.mark.parametrize("name", ["", None, 1, b"x", ("a",)])
def test_canonical_item__attribute_name_that_is_not_text__is_refused(name: Any) -> None:
    with pytest.raises(InvalidItemError):
        canonical_item({name: 1})


def test_dump__half_a_surrogate_pair__is_refused() -> None:
    with pytest.raises(InvalidItemError):
        _text({"a": "\ud800"})


def test_canonical_item__thirty_two_levels_with_the_item__is_allowed() -> None:
    # The item is level 1, the 30 lists are levels 2 to 31, the leaf is level 32.
    assert _canonical(_nested(30)) == _nested(30)


def test_canonical_item__thirty_three_levels__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="32"):
        canonical_item({"a": _nested(31)})


@pytest.mark.parametrize("number", [10**38 - 1, -(10**38) + 1, 2**63, -(2**63), 2**64, 2**53 + 1, 0])
def test_load__whole_number_of_up_to_38_digits__is_exact(number: int) -> None:
    stored, special = canonical_item({"a": number, "b": {"c": [number]}, "d": {number, 1}})

    assert load(dump(stored, special=special)) == {"a": number, "b": {"c": [number]}, "d": frozenset({number, 1})}


@pytest.mark.parametrize("number", [1e38, -1e38, 9.9e37, 1.0000000000000002e38, 1e37, 1e125])
def test_canonical_number__of_a_canonical_number__changes_nothing(number: float) -> None:
    once = canonical_number(number, "a")

    assert _form(canonical_number(once, "a")) == _form(once)


@given(NUMBERS)
def test_parse_number__of_the_decimal_text__is_the_canonical_number(number: float) -> None:
    canonical = canonical_number(number, "a")

    assert _form(parse_number(repr(canonical))) == _form(canonical)


@given(FLOATS)
def test_parse_number__written_without_an_exponent__is_the_canonical_number(number: float) -> None:
    canonical = canonical_number(number, "a")

    # DynamoDB may give the same number back in either notation.
    assert _form(parse_number(f"{Decimal(repr(canonical)):f}")) == _form(canonical)


@pytest.mark.parametrize("number", [10**38 - 1, -(10**38) + 1, 10**37 + 1, 10**28 + 1])
def test_parse_number__whole_number_of_up_to_38_digits__is_exact(number: int) -> None:
    assert _form(parse_number(str(number))) == _form(number)


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("-7", -7), ("1.0", 1), ("1E+3", 1000), ("0.5", 0.5), ("1e-7", 1e-7), ("-0", 0)]
)
def test_parse_number__a_notation__means_its_number(text: str, number: float) -> None:
    assert _form(parse_number(text)) == _form(number)


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        (0.1, 0.2, 0.3),
        (1, 2, 3),
        (0.5, 0.5, 1),
        (10**37, 1, 10**37 + 1),
        (-1.5, 1.5, 0),
        (1.1, -1, 0.1),
        (10**37, 0.5, 10**37),
    ],
)
def test_add_numbers__two_numbers__is_the_decimal_sum(left: float, right: float, total: float) -> None:
    added = add_numbers(left, right, "a")

    assert added == pytest.approx(total, rel=1e-15)
    assert type(added) is type(total)


def test_add_numbers__tenth_and_two_tenths__is_exactly_three_tenths() -> None:
    assert add_numbers(0.1, 0.2, "a") == 0.3


def test_add_numbers__beyond_38_digits__is_refused() -> None:
    with pytest.raises(InvalidItemError):
        add_numbers(10**38 - 1, 1, "a")


@pytest.mark.parametrize("bad", ["1", None, True, Decimal(1), math.nan])
def test_canonical_number__not_a_number__is_refused(bad: Any) -> None:
    with pytest.raises(InvalidItemError):
        canonical_number(bad, "a")


DIFFERENT = [
    "1",
    1,
    True,
    b"1",
    None,
    [1],
    {"a": 1},
    frozenset({1}),
    "",
    0,
    False,
    b"",
    [],
    {},
    1.5,
    [True],
    {"a": True},
]


@pytest.mark.parametrize("left", DIFFERENT, ids=repr)
@pytest.mark.parametrize("right", DIFFERENT, ids=repr)
def test_same__two_values_of_the_list__only_if_they_are_one(left: object, right: object) -> None:
    assert same(left, right) is (left is right)


@given(VALUES)
def test_same__a_value_and_its_copy__are_equal(value: object) -> None:
    assert same(_canonical(value), _canonical(copy.deepcopy(value)))


def test_same__maps_in_another_order__are_equal() -> None:
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})


@pytest.mark.parametrize(
    ("item", "size"),
    [
        ({}, 0),
        ({"name": "text"}, 8),
        ({"é": "é"}, 4),
        ({"a": b"12345"}, 6),
        ({"a": None}, 2),
        ({"a": True}, 2),
        ({"a": []}, 4),
        ({"a": {}}, 4),
        # A list or map costs 3 bytes, and each element 1 byte more than itself.
        ({"a": ["xy", None]}, 1 + 3 + (1 + 2) + (1 + 1)),
        ({"a": {"key": "xy"}}, 1 + 3 + (1 + 3 + 2)),
    ],
)
def test_stored_bytes__an_item__follows_the_rules_of_dynamodb(item: dict[str, Any], size: int) -> None:
    assert stored_bytes(item) == size


@given(NUMBERS)
def test_stored_bytes__a_number__is_never_less_than_dynamodb_counts(number: float) -> None:
    canonical = canonical_number(number, "a")
    digits = len(Decimal(repr(canonical)).normalize().as_tuple().digits)

    # As documented: one byte for two significant digits and one more, 21 bytes at most.
    assert (digits + 1) // 2 + 1 <= stored_bytes({"a": canonical}) - len("a")
