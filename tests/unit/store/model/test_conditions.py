"""Conditions: what each clause means, which inputs it refuses, and how it reads."""

from __future__ import annotations

import enum
import math
from typing import Any

import pytest

from headgate.errors import InvalidItemError
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
    pins_version,
    version_is,
)

ITEM: dict[str, Any] = {
    "one": 1,
    "half": 0.5,
    "text": "m",
    "empty": "",
    "yes": True,
    "no": False,
    "nothing": None,
    "raw": b"m",
    "list": [1],
    "map": {"a": 1},
    "set": frozenset({1}),
    "version": 7,
}

TRUE_OF_ITEM: list[Condition] = [
    exists(),
    has("nothing"),
    lacks("missing"),
    version_is(7),
    equals("one", 1),
    equals("one", 1.0),
    equals("half", 0.5),
    equals("text", "m"),
    equals("empty", ""),
    equals("yes", True),
    equals("no", False),
    equals("nothing", None),
    equals("raw", b"m"),
    differs("one", 2),
    differs("one", "1"),
    differs("one", True),
    differs("no", 0),
    differs("missing", 1),
    differs("missing", None),
    differs("nothing", ""),
    differs("raw", "m"),
    differs("list", 1),
    less_than("one", 2),
    less_than("half", 1),
    less_than("text", "n"),
    less_than("raw", b"n"),
    at_most("one", 1),
    at_most("text", "m"),
    greater_than("one", 0.5),
    greater_than("text", "l"),
    at_least("one", 1),
    at_least("raw", b"m"),
    one_of("one", 3, 2, 1),
    one_of("text", "x", "m"),
    one_of("nothing", 1, None),
    any_of(absent(), equals("one", 1)),
    all_of(exists(), equals("one", 1), lacks("missing")),
    any_of(all_of(absent(), exists()), all_of(exists(), any_of(absent(), version_is(7)))),
]

FALSE_OF_ITEM: list[Condition] = [
    absent(),
    has("missing"),
    lacks("nothing"),
    version_is(6),
    equals("one", 2),
    equals("one", "1"),
    equals("one", True),
    equals("yes", 1),
    equals("yes", False),
    equals("no", 0),
    equals("no", None),
    equals("nothing", False),
    equals("missing", None),
    equals("raw", "m"),
    equals("text", b"m"),
    equals("text", "M"),
    equals("list", 1),
    equals("set", 1),
    differs("one", 1),
    differs("one", 1.0),
    differs("nothing", None),
    less_than("one", 1),
    less_than("one", "2"),
    less_than("one", True),
    less_than("no", True),
    less_than("no", 1),
    less_than("nothing", 1),
    less_than("missing", 1),
    less_than("text", b"n"),
    less_than("raw", "n"),
    less_than("list", 2),
    less_than("map", "z"),
    at_most("one", 0),
    at_most("nothing", None),
    at_most("yes", True),
    greater_than("one", 1),
    greater_than("text", 0),
    at_least("one", 2),
    at_least("missing", 0),
    one_of("one", "1", True, 2),
    one_of("missing", None),
    one_of("list", 1),
    any_of(absent(), equals("one", 2)),
    all_of(exists(), equals("one", 2)),
    all_of(any_of(absent(), exists()), any_of(absent(), version_is(6))),
]

TRUE_OF_NOTHING: list[Condition] = [
    absent(),
    lacks("one"),
    differs("one", 1),
    differs("one", None),
    any_of(exists(), absent()),
    all_of(absent(), lacks("one")),
]

FALSE_OF_NOTHING: list[Condition] = [
    exists(),
    has("one"),
    equals("one", 1),
    equals("one", None),
    less_than("one", 2),
    at_most("one", 2),
    greater_than("one", 0),
    at_least("one", 0),
    one_of("one", 1, None),
    version_is(0),
    any_of(exists(), has("one")),
    all_of(absent(), exists()),
]


@pytest.mark.parametrize("condition", TRUE_OF_ITEM, ids=describe)
def test_holds__clause_true_of_the_item__is_true(condition: Condition) -> None:
    assert holds(condition, ITEM) is True


@pytest.mark.parametrize("condition", FALSE_OF_ITEM, ids=describe)
def test_holds__clause_false_of_the_item__is_false(condition: Condition) -> None:
    assert holds(condition, ITEM) is False


@pytest.mark.parametrize("condition", TRUE_OF_NOTHING, ids=describe)
def test_holds__clause_true_without_an_item__is_true(condition: Condition) -> None:
    assert holds(condition, None) is True


@pytest.mark.parametrize("condition", FALSE_OF_NOTHING, ids=describe)
def test_holds__clause_false_without_an_item__is_false(condition: Condition) -> None:
    assert holds(condition, None) is False


def test_holds__item_without_attributes__exists() -> None:
    assert holds(exists(), {})
    assert not holds(absent(), {})


@pytest.mark.parametrize("compare", [equals, differs, less_than, at_most, greater_than, at_least, one_of])
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 10**38, 1e-131, [1], {"a": 1}, {1}, object(), "\ud800", "x" * 2049, b"x" * 2049]
)
def test_clause__value_that_cannot_be_compared__is_refused(compare: Any, value: object) -> None:
    with pytest.raises(InvalidItemError) as caught:
        compare("attribute", value)

    assert caught.type is InvalidItemError
    assert "attribute" in caught.value.message


@pytest.mark.parametrize("compare", [equals, differs, less_than, at_most, greater_than, at_least, one_of])
@pytest.mark.parametrize("value", ["x" * 2048, "é" * 1024, b"x" * 2048, "", None, True, 10**38 - 1])
def test_clause__value_at_the_limit__is_allowed(compare: Any, value: object) -> None:
    assert not holds(compare("attribute", value), {"attribute": {"a": "map"}}) or compare is differs


def test_equals__whole_float__is_compared_as_the_int_it_is_stored_as() -> None:
    condition = equals("one", 1.0)

    assert type(condition.value) is int


@pytest.mark.parametrize("count", [0, 101])
def test_one_of__no_values_or_more_than_a_hundred__is_refused(count: int) -> None:
    with pytest.raises(InvalidItemError):
        one_of("a", *range(count))


def test_one_of__a_hundred_values__is_allowed() -> None:
    assert holds(one_of("a", *range(100)), {"a": 99})


@pytest.mark.parametrize("combine", [any_of, all_of])
def test_combination__of_no_clauses__is_refused(combine: Any) -> None:
    with pytest.raises(InvalidItemError):
        combine()


@pytest.mark.parametrize(
    "condition",
    [
        version_is(3),
        equals("version", 3),
        all_of(exists(), version_is(3)),
        all_of(exists(), all_of(has("a"), version_is(3))),
        any_of(version_is(3), version_is(4)),
        any_of(all_of(has("a"), version_is(3)), version_is(4)),
    ],
    ids=describe,
)
def test_pins_version__condition_that_needs_one_version__is_true(condition: Condition) -> None:
    assert pins_version(condition)


@pytest.mark.parametrize(
    "condition",
    [
        exists(),
        absent(),
        has("version"),
        lacks("version"),
        differs("version", 3),
        less_than("version", 3),
        at_most("version", 3),
        greater_than("version", 3),
        at_least("version", 3),
        equals("revision", 3),
        one_of("revision", 3),
        any_of(version_is(3), exists()),
        all_of(exists(), any_of(version_is(3), has("a"))),
    ],
    ids=describe,
)
def test_pins_version__condition_that_may_hold_again__is_false(condition: Condition) -> None:
    assert not pins_version(condition)


def test_pins_version__no_condition__is_false() -> None:
    assert not pins_version(None)


@pytest.mark.parametrize(
    ("condition", "phrase"),
    [
        (absent(), "absent"),
        (exists(), "exists"),
        (has("a"), "has a"),
        (lacks("a"), "lacks a"),
        (version_is(3), "version = 3"),
        (differs("a", "x"), "a <> 'x'"),
        (one_of("a", 1, 2), "a in [1, 2]"),
        (any_of(absent(), less_than("ttl", 5)), "(absent or ttl < 5)"),
        (all_of(exists(), any_of(has("a"), has("b"))), "(exists and (has a or has b))"),
    ],
)
def test_describe__a_condition__reads_as_a_phrase(condition: Condition, phrase: str) -> None:
    assert describe(condition) == phrase


class _State(enum.StrEnum):
    RUNNING = "RUNNING"


def test_compare__member_of_an_enum__is_the_text_it_stands_for() -> None:
    item = {"state": "RUNNING"}

    assert holds(equals("state", _State.RUNNING), item)
    assert holds(one_of("state", _State.RUNNING), item)
    assert not holds(differs("state", _State.RUNNING), item)
