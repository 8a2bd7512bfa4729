from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from headgate.asl.errors import RUNTIME, StateError
from headgate.asl.expressions.choice_rules import OPERATORS, compile_rule
from headgate.asl.expressions.scope import Json, Scope

DOCUMENT: dict[str, Json] = {
    "text": "b",
    "same": "b",
    "later": "c",
    "one": 1,
    "two": 2,
    "half": 1.5,
    "yes": True,
    "no": False,
    "null": None,
    "noon": "2016-08-18T17:33:00Z",
    "noon_berlin": "2016-08-18T19:33:00.000+02:00",
    "evening": "2016-08-18T20:00:00Z",
    "list": [1],
    "object": {"in": "x"},
}


def scope(document: Json) -> Scope:
    return Scope(document, {"Execution": {"Name": "run-1"}}, {"limit": 2}, random.Random(1))


def holds(rule: dict[str, Json], document: Json = DOCUMENT) -> bool:
    before = copy.deepcopy(document)
    found = compile_rule(rule)(scope(document))
    assert document == before
    assert isinstance(found, bool)
    return found


ORDER = {
    "Equals": (False, True, False),
    "LessThan": (True, False, False),
    "LessThanEquals": (True, True, False),
    "GreaterThan": (False, False, True),
    "GreaterThanEquals": (False, True, True),
}
SAMPLES: dict[str, list[tuple[str, str, int]]] = {
    "String": [("text", "later", 0), ("text", "same", 1), ("later", "text", 2)],
    "Numeric": [("one", "half", 0), ("one", "one", 1), ("two", "half", 2)],
    "Timestamp": [("noon", "evening", 0), ("noon", "noon_berlin", 1), ("evening", "noon_berlin", 2)],
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("name", ORDER)
def test_comparison__given_less_equal_and_greater__then_holds_as_named(kind: str, name: str) -> None:
    for left, right, relation in SAMPLES[kind]:
        rule = {"Variable": f"$.{left}", f"{kind}{name}": DOCUMENT[right]}
        twin = {"Variable": f"$.{left}", f"{kind}{name}Path": f"$.{right}"}
        assert holds(rule) is ORDER[name][relation], rule
        assert holds(twin) is ORDER[name][relation], twin


def test_boolean_equals__given_every_pair__then_holds_if_the_same() -> None:
    for left in ("yes", "no"):
        for right in ("yes", "no"):
            assert holds({"Variable": f"$.{left}", "BooleanEquals": DOCUMENT[right]}) is (left == right)
            assert holds({"Variable": f"$.{left}", "BooleanEqualsPath": f"$.{right}"}) is (left == right)


@pytest.mark.parametrize(
    ("operator", "operand", "others"),
    [
        ("StringEquals", "b", ["one", "yes", "null", "list", "object"]),
        ("StringGreaterThan", "a", ["one", "yes", "null", "list", "object"]),
        ("NumericEquals", 1, ["text", "yes", "null", "list", "object"]),
        ("NumericLessThan", 9, ["text", "no", "null", "list", "object"]),
        ("BooleanEquals", True, ["one", "text", "null", "list", "object"]),
        ("TimestampLessThan", "2030-01-01T00:00:00Z", ["one", "text", "null", "list", "object"]),
        ("StringMatches", "*", ["one", "yes", "null", "list", "object"]),
        ("StringEqualsPath", "$.one", ["one", "text", "null"]),
        ("NumericEqualsPath", "$.yes", ["one", "yes"]),
        ("BooleanEqualsPath", "$.one", ["yes", "one"]),
        ("TimestampEqualsPath", "$.text", ["noon", "text"]),
    ],
)
def test_comparison__given_another_type__then_does_not_hold(operator: str, operand: Json, others: list[str]) -> None:
    for other in others:
        assert holds({"Variable": f"$.{other}", operator: operand}) is False, other


def test_string_equals__given_a_timestamp__then_compares_it_as_text() -> None:
    assert holds({"Variable": "$.noon", "StringEquals": "2016-08-18T17:33:00Z"})
    assert not holds({"Variable": "$.noon", "StringEquals": "2016-08-18T19:33:00.000+02:00"})


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("log-*.txt", "log-1.txt", True),
        ("log-*.txt", "log-.txt", True),
        ("log-*.txt", "log-1.txt.gz", False),
        ("log-*.txt", "alog-1.txt", False),
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("*.log", "a\nb.log", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("*a*b*", "xbxaxbx", True),
        ("*a*b*", "xbxax", False),
        ("a*bc*c", "abc", False),
        ("a*bc*c", "abcc", True),
        (r"a\*b", "a*b", True),
        (r"a\*b", "axb", False),
        (r"a\\*", "a\\b", True),
        (r"a\\*", "ab", False),
        (r"a\b", "a\\b", True),
        ("a.b?[c]", "a.b?[c]", True),
        ("a.b", "axb", False),
    ],
)
def test_string_matches__given_stars__then_they_stand_for_any_text(pattern: str, text: str, *, expected: bool) -> None:
    assert holds({"Variable": "$.v", "StringMatches": pattern}, {"v": text}) is expected


def test_string_matches__given_very_many_stars__then_is_still_decided() -> None:
    assert not holds({"Variable": "$.v", "StringMatches": "*a" * 5_000 + "b"}, {"v": "a" * 100_000})


@pytest.mark.parametrize(
    ("operator", "true_for"),
    [
        ("IsNull", {"null"}),
        ("IsString", {"text", "same", "later", "noon", "noon_berlin", "evening"}),
        ("IsNumeric", {"one", "two", "half"}),
        ("IsBoolean", {"yes", "no"}),
        ("IsTimestamp", {"noon", "noon_berlin", "evening"}),
        ("IsPresent", set(DOCUMENT)),
    ],
)
def test_type_test__given_every_type__then_holds_for_its_own(operator: str, true_for: set[str]) -> None:
    for name in DOCUMENT:
        assert holds({"Variable": f"$.{name}", operator: True}) is (name in true_for), name
        assert holds({"Variable": f"$.{name}", operator: False}) is (name not in true_for), name


@pytest.mark.parametrize(
    "text",
    ["2016-08-18 17:33:00Z", "2016-08-18t17:33:00z", "2016-08-18T17:33:00", "2016-08-18", "2016-13-18T17:33:00Z"],
)
def test_is_timestamp__given_other_ways_to_write_a_moment__then_does_not_hold(text: str) -> None:
    assert not holds({"Variable": "$.v", "IsTimestamp": True}, {"v": text})


def test_is_present__given_nothing_there__then_says_so() -> None:
    assert holds({"Variable": "$.absent.deeper", "IsPresent": False})
    assert not holds({"Variable": "$.absent", "IsPresent": True})


@pytest.mark.parametrize("operator", sorted(OPERATORS - {"IsPresent"}))
def test_comparison__given_a_variable_that_is_not_there__then_fails_the_execution(operator: str) -> None:
    operand: Any = "2016-08-18T17:33:00Z"
    if operator.endswith("Path"):
        operand = "$.one"
    elif operator.startswith("Numeric"):
        operand = 1
    elif operator.startswith(("Boolean", "Is")):
        operand = True
    rule = compile_rule({"Variable": "$.absent", operator: operand})
    with pytest.raises(StateError) as caught:
        rule(scope(DOCUMENT))
    assert caught.value.error == RUNTIME
    assert "$.absent" in caught.value.cause


def test_comparison__given_a_path_to_compare_with_that_is_not_there__then_fails_the_execution() -> None:
    rule = compile_rule({"Variable": "$.text", "StringEqualsPath": "$.absent"})
    with pytest.raises(StateError) as caught:
        rule(scope(DOCUMENT))
    assert caught.value.error == RUNTIME


def test_comparison__given_context_and_variables__then_looks_there() -> None:
    assert holds({"Variable": "$$.Execution.Name", "StringMatches": "run-*"})
    assert holds({"Variable": "$.one", "NumericLessThanPath": "$limit"})


def true() -> dict[str, Json]:
    return {"Variable": "$.one", "NumericEquals": 1}


def false() -> dict[str, Json]:
    return {"Variable": "$.one", "NumericEquals": 2}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"And": [true(), true()]}, True),
        ({"And": [true(), false()]}, False),
        ({"Or": [false(), true()]}, True),
        ({"Or": [false(), false()]}, False),
        ({"Not": true()}, False),
        ({"Not": {"Not": true()}}, True),
        ({"And": [{"Or": [false(), {"Not": false()}]}, {"Not": {"And": [true(), false()]}}]}, True),
        ({"And": [{"Variable": "$.absent", "IsPresent": True}, {"Variable": "$.absent", "IsNull": True}]}, False),
        ({"Or": [true(), {"Variable": "$.absent", "IsNull": True}]}, True),
        ({"Variable": "$.one", "NumericEquals": 1, "Next": "There", "Comment": "why"}, True),
    ],
)
def test_rule__given_connectives__then_stops_at_what_decides(rule: dict[str, Json], *, expected: bool) -> None:
    assert holds(rule) is expected


@pytest.mark.parametrize(
    ("rule", "fact"),
    [
        ("x", "must be an object"),
        ({}, "exactly one operator"),
        ({"Variable": "$.a"}, "exactly one operator"),
        ({"NumericEquals": 1}, "exactly one operator"),
        ({"Variable": "$.a", "NumericEquals": 1, "IsNull": True}, "exactly one operator"),
        ({"Variable": "$.a", "NumericEqual": 1}, "exactly one operator"),
        ({"Variable": "$.a", "StringMatchesPath": "$.b"}, "exactly one operator"),
        ({"Variable": "$.a", "NumericEquals": "1"}, "NumericEquals cannot be compared"),
        ({"Variable": "$.a", "NumericEquals": True}, "NumericEquals cannot be compared"),
        ({"Variable": "$.a", "StringEquals": 1}, "StringEquals cannot be compared"),
        ({"Variable": "$.a", "TimestampEquals": "today"}, "TimestampEquals cannot be compared"),
        ({"Variable": "$.a", "IsNull": "true"}, "IsNull must be true or false"),
        ({"Variable": "$.a", "StringMatches": 1}, "StringMatches must be text"),
        ({"Variable": "a", "IsNull": True}, "is not a path"),
        ({"Variable": "$.a", "StringEqualsPath": "b"}, "is not a path"),
        ({"And": []}, "And must be a non-empty list"),
        ({"Or": true()}, "Or must be a non-empty list"),
        ({"Not": [true()]}, "must be an object"),
        ({"And": [true()], "Or": [true()]}, "alone"),
        ({"Not": true(), "Variable": "$.a"}, "alone"),
    ],
)
def test_rule__given_what_is_not_one__then_refused_with_what_is_allowed(rule: Json, fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        compile_rule(rule)
