from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidItemError
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES, SIGNAL_STATE, TURNS
from headgate.store.dynamodb.expressions import Placeholders, condition_expression, key_expression, update_expression
from headgate.store.dynamodb.marshalling import to_attributes
from headgate.store.model import conditions as c
from headgate.store.model.requests import Query, Range, Sort, Update
from headgate.store.model.schema import Key, Table

NO_TTL = msgspec.structs.replace(INBOXES, ttl_attribute=None)
WITH_TTL = TURNS
NOW = 1000.9


def spelled(expression: str, places: Placeholders) -> str:
    """Return the expression with its placeholders replaced, to be read by a person."""
    parameters = places.parameters()
    names: dict[str, str] = parameters.get("ExpressionAttributeNames", {})
    values: dict[str, dict[str, Any]] = parameters.get("ExpressionAttributeValues", {})
    shown = {name: next(iter(value.values())) for name, value in values.items()}
    return re.sub(r"[#:]\d+", lambda match: str({**names, **shown}[match.group()]), expression)


def condition_of(table: Table, condition: c.Condition) -> str:
    places = Placeholders()
    return spelled(condition_expression(table, condition, NOW, places), places)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (c.absent(), "attribute_not_exists(execution_id)"),
        (c.exists(), "attribute_exists(execution_id)"),
        (c.has("a"), "attribute_exists(a)"),
        (c.lacks("a"), "attribute_not_exists(a)"),
        (c.version_is(3), "version = 3"),
        (c.equals("a", None), "a = True"),
        (c.differs("a", "x"), "attribute_not_exists(a) OR a <> x"),
        (c.less_than("a", 1.5), "a < 1.5"),
        (c.at_least("a", b"z"), "a >= b'z'"),
        (c.one_of("a", "x", 2), "a IN (x, 2)"),
        (c.less_than("a", True), "attribute_exists(execution_id) AND attribute_not_exists(execution_id)"),
        (c.at_most("a", None), "attribute_exists(execution_id) AND attribute_not_exists(execution_id)"),
    ],
)
def test_condition__single_clause__is_compiled(condition: c.Condition, expected: str) -> None:
    assert condition_of(NO_TTL, condition) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (c.all_of(c.has("a"), c.has("b")), "attribute_exists(a) AND attribute_exists(b)"),
        (c.any_of(c.equals("a", 1), c.all_of(c.equals("b", 2), c.equals("d", 3))), "a = 1 OR b = 2 AND d = 3"),
        (c.all_of(c.equals("a", 1), c.any_of(c.equals("b", 2), c.equals("d", 3))), "a = 1 AND (b = 2 OR d = 3)"),
        (c.all_of(c.equals("a", 1), c.differs("b", 2)), "a = 1 AND (attribute_not_exists(b) OR b <> 2)"),
        (c.all_of(c.any_of(c.equals("a", 1))), "a = 1"),
        (
            c.all_of(c.has("x"), c.all_of(c.any_of(c.differs("a", 1)))),
            "attribute_exists(x) AND (attribute_not_exists(a) OR a <> 1)",
        ),
    ],
)
def test_condition__combined_clauses__have_the_parentheses_they_need(condition: c.Condition, expected: str) -> None:
    assert condition_of(NO_TTL, condition) == expected


LIVE = "attribute_exists(execution_id) AND (attribute_not_exists(ttl) OR ttl > 1000 OR attribute_type(ttl, NULL))"
DEAD = "attribute_not_exists(execution_id) OR ttl <= 1000"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (c.absent(), f"{DEAD} OR attribute_not_exists(execution_id)"),
        (c.lacks("a"), f"{DEAD} OR attribute_not_exists(a)"),
        (c.differs("a", 1), f"{DEAD} OR attribute_not_exists(a) OR a <> 1"),
        (c.exists(), f"{LIVE} AND attribute_exists(execution_id)"),
        (c.version_is(3), f"{LIVE} AND version = 3"),
        (c.any_of(c.has("a"), c.has("b")), f"{LIVE} AND (attribute_exists(a) OR attribute_exists(b))"),
        (c.all_of(c.lacks("a"), c.exists()), f"{LIVE} AND attribute_not_exists(a) AND attribute_exists(execution_id)"),
    ],
)
def test_condition__table_with_ttl__treats_expired_as_absent(condition: c.Condition, expected: str) -> None:
    assert condition_of(WITH_TTL, condition) == expected


OPERANDS = st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2)
NAMES = st.sampled_from(["a", "b", "version"])
CLAUSES: st.SearchStrategy[c.Condition] = (
    st.just(c.absent())
    | st.just(c.exists())
    | st.builds(c.has, NAMES)
    | st.builds(c.lacks, NAMES)
    | st.builds(c.differs, NAMES, OPERANDS)
    | st.builds(c.at_least, NAMES, OPERANDS)
    | st.builds(c.one_of, NAMES, OPERANDS, OPERANDS)
)
CONDITIONS = st.recursive(
    CLAUSES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: c.any_of(*parts))
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: c.all_of(*parts))
    ),
    max_leaves=8,
)


def has_redundant_parentheses(expression: str) -> bool:
    """Whether some pair encloses nothing but another pair, which DynamoDB refuses."""
    opened: list[int] = []
    pairs = set()
    for place, character in enumerate(expression):
        if character == "(":
            opened.append(place)
        elif character == ")":
            pairs.add((opened.pop(), place))
    assert opened == []
    return any((start + 1, end - 1) in pairs for start, end in pairs)


@pytest.mark.parametrize(("expression", "redundant"), [("((a))", True), ("((a) AND b)", False), ("f(a) OR (b)", False)])
def test_has_redundant_parentheses__example__is_reported(expression: str, redundant: bool) -> None:
    assert has_redundant_parentheses(expression) is redundant


@given(CONDITIONS, st.sampled_from([NO_TTL, WITH_TTL]))
def test_condition__any__has_no_redundant_parentheses_and_no_unused_placeholder(
    condition: c.Condition, table: Table
) -> None:
    places = Placeholders()
    expression = condition_expression(table, condition, NOW, places)

    assert not has_redundant_parentheses(expression)
    parameters = places.parameters()
    declared = {*parameters.get("ExpressionAttributeNames", {}), *parameters.get("ExpressionAttributeValues", {})}
    assert declared == set(re.findall(r"[#:]\d+", expression))


def test_condition__reserved_word_and_odd_name__stand_behind_placeholders() -> None:
    places = Placeholders()
    expression = condition_expression(NO_TTL, c.all_of(c.has("status"), c.has("a.b[0] = :x")), NOW, places)

    assert expression == "attribute_exists(#0) AND attribute_exists(#1)"
    assert places.parameters() == {"ExpressionAttributeNames": {"#0": "status", "#1": "a.b[0] = :x"}}


@pytest.mark.parametrize("name", ["", "\ud800"])
def test_condition__name_that_cannot_be__is_refused(name: str) -> None:
    with pytest.raises(InvalidItemError):
        condition_expression(NO_TTL, c.has(name), NOW, Placeholders())


@pytest.mark.parametrize(
    "clause",
    [
        c.differs("some attribute", 1),
        c.one_of("a", *range(100)),
        c.all_of(c.has("x"), c.any_of(c.lacks("y"), c.exists())),
    ],
)
def test_condition__as_many_clauses_as_are_allowed__fits_into_an_expression(clause: c.Condition) -> None:
    def widest() -> c.Condition:
        condition = clause
        while True:
            try:
                condition = c.any_of(condition, clause)
            except InvalidItemError:
                return condition

    text = condition_expression(WITH_TTL, widest(), NOW, Placeholders())

    assert len(text) <= 4096


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (Update(NO_TTL, Key("e", "m"), {"a": 1, "status": "x"}), "SET a = 1, status = x"),
        (Update(NO_TTL, Key("e", "m"), {}, {"n": 2}), "ADD n 2"),
        (Update(NO_TTL, Key("e", "m"), {}, {}, ("a", "b")), "REMOVE a, b"),
        (Update(NO_TTL, Key("e", "m"), {"a": 1}, {"n": 0.5}, ("b",)), "SET a = 1 ADD n 0.5 REMOVE b"),
    ],
)
def test_update__each_part__is_compiled(update: Update, expected: str) -> None:
    places = Placeholders()

    assert spelled(update_expression(update, to_attributes(update.set), places), places) == expected


def test_update__name_used_in_the_condition_too__has_one_placeholder() -> None:
    places = Placeholders()
    update = update_expression(Update(NO_TTL, Key("e", "m"), {"version": 2}), to_attributes({"version": 2}), places)
    condition = condition_expression(NO_TTL, c.version_is(1), NOW, places)

    assert (update, condition) == ("SET #0 = :0", "#0 = :1")
    assert places.parameters()["ExpressionAttributeValues"] == {":0": {"N": "2"}, ":1": {"N": "1"}}


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (None, "PK = p"),
        (Sort(Range.EQUALS, "s"), "PK = p AND SK = s"),
        (Sort(Range.BEGINS_WITH, "s"), "PK = p AND begins_with(SK, s)"),
        (Sort(Range.BETWEEN, "a", "b"), "PK = p AND SK BETWEEN a AND b"),
        (Sort(Range.LESS_THAN, "s"), "PK = p AND SK < s"),
        (Sort(Range.AT_MOST, "s"), "PK = p AND SK <= s"),
        (Sort(Range.GREATER_THAN, "s"), "PK = p AND SK > s"),
        (Sort(Range.AT_LEAST, "s"), "PK = p AND SK >= s"),
    ],
)
def test_key__each_range__is_compiled(sort: Sort | None, expected: str) -> None:
    places = Placeholders()

    assert spelled(key_expression(Query(table=SIGNAL_STATE, partition="p", sort=sort), places), places) == expected


def test_key__index__goes_by_the_keys_of_the_index() -> None:
    places = Placeholders()
    query = Query(table=EXECUTIONS, partition="p", index="ready-index", sort=Sort(Range.AT_MOST, 7))

    assert spelled(key_expression(query, places), places) == "ready_pk = p AND ready_at_ms <= 7"
