"""Payload templates: substituted members, literal members and errors."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.asl.errors import INTRINSIC_FAILURE, RUNTIME, StateError
from headgate.asl.expressions.payload_templates import TemplateError, compile_dynamic, compile_template, is_dynamic
from headgate.asl.expressions.scope import Scope

INPUT: dict[str, Any] = {"flagged": 7, "vals": [0, 10, 20, 30, 40, 50], "who": {"name": "Ada"}}


def evaluated(template: Any, data: Any = INPUT) -> Any:
    scope = Scope(data=data, context={"Execution": {"Id": "e-1"}}, variables={"limit": 3}, random=random.Random(7))
    return compile_template(template)(scope)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        (
            {"flagged": True, "parts": {"first.$": "$.vals[0]", "last3.$": "$.vals[3:]"}},
            {"flagged": True, "parts": {"first": 0, "last3": [30, 40, 50]}},
        ),
        ({"all.$": "$"}, {"all": INPUT}),
        ({"id.$": "$$.Execution.Id", "limit.$": "$limit"}, {"id": "e-1", "limit": 3}),
        ({"text.$": "States.Format('{}!', $.who.name)"}, {"text": "Ada!"}),
        (
            {"list": [{"x.$": "$.flagged"}, [{"y.$": "$.who"}], "$.who"]},
            {"list": [{"x": 7}, [{"y": {"name": "Ada"}}], "$.who"]},
        ),
        ({"literal": "$.flagged", "call": "States.UUID()"}, {"literal": "$.flagged", "call": "States.UUID()"}),
        ({"none.$": "$..absent"}, {"none": []}),
        ({"a.$.$": "$.flagged"}, {"a.$": 7}),
        ([{"a.$": "$.flagged"}], [{"a": 7}]),
        ({}, {}),
        ({"a": None}, {"a": None}),
        ("$.flagged", "$.flagged"),
    ],
)
def test_template__evaluated__has_the_values(template: Any, value: Any) -> None:
    before = copy.deepcopy(template)
    assert evaluated(template) == value
    assert template == before


def test_template__evaluated__keeps_the_order_of_members() -> None:
    assert list(evaluated({"z.$": "$.flagged", "a": 1, "m.$": "$.who", "b": {"c.$": "$.who"}})) == ["z", "a", "m", "b"]


def test_template__evaluated_twice__shares_no_object_that_it_made() -> None:
    compiled = compile_template({"a": {"b.$": "$"}})
    scopes = [Scope(data=data, context={}, variables={}, random=random.Random(7)) for data in (1, 2)]
    assert [compiled(scope) for scope in scopes] == [{"a": {"b": 1}}, {"a": {"b": 2}}]


@pytest.mark.parametrize(
    ("value", "dynamic"),
    [
        ({"a.$": "$"}, True),
        ({"a": [{"b": {"c.$": "$"}}]}, True),
        ([[{"a.$": "$"}]], True),
        ({"a": "$.b"}, False),
        ({"a$": "$.b", ".$a": 1}, False),
        ("a.$", False),
        (["a.$"], False),
        (None, False),
    ],
)
def test_is_dynamic__value__reports_whether_anything_is_evaluated(value: Any, dynamic: bool) -> None:
    assert is_dynamic(value) is dynamic


def test_template__path_selects_nothing__fails_with_states_runtime_and_names_the_member() -> None:
    with pytest.raises(StateError) as caught:
        evaluated({"outer": {"address.$": "$.application.address"}}, {"flagged": False})
    assert caught.value.error == RUNTIME
    assert caught.value.cause == (
        "The JSONPath '$.application.address' specified for the field 'address.$' could not be found in the input "
        "'{\"flagged\":false}'"
    )


def test_template__call_fails__is_states_intrinsic_failure() -> None:
    with pytest.raises(StateError) as caught:
        evaluated({"a.$": "States.ArrayGetItem($.vals, 6)"})
    assert caught.value.error == INTRINSIC_FAILURE


@pytest.mark.parametrize(
    ("template", "path", "fact"),
    [
        ({"a.$": "plain"}, ("a.$",), "neither a path nor a call"),
        ({"a.$": 7}, ("a.$",), "neither a path nor a call"),
        ({"a.$": {"b": 1}}, ("a.$",), "neither a path nor a call"),
        ({"a.$": ""}, ("a.$",), "neither a path nor a call"),
        ({"x": [1, {"a.$": "$."}]}, ("x", 1, "a.$"), "is not a path"),
        ({"x": {"a.$": "States.Nope()"}}, ("x", "a.$"), "there is no function States.Nope"),
        ({"a": 1, "a.$": "$.b"}, ("a.$",), "'a' and 'a.$' cannot both be given"),
        ({"a.$": "$.b", "a": 1}, ("a.$",), "'a' and 'a.$' cannot both be given"),
    ],
)
def test_template__member_is_not_allowed__is_refused_with_where_and_what_is_allowed(
    template: Any, path: tuple[str | int, ...], fact: str
) -> None:
    with pytest.raises(TemplateError) as caught:
        compile_template(template)
    assert caught.value.path == path
    assert fact in caught.value.fact
    assert "Allowed: " in caught.value.fact
    assert str(caught.value).startswith("/".join(map(str, path)) + ": ")


def test_dynamic__path_or_call__is_evaluated() -> None:
    scope = Scope(data=INPUT, context={}, variables={}, random=random.Random(7))
    assert compile_dynamic("$.who.name")(scope) == "Ada"
    assert compile_dynamic("States.Format('{}', $.flagged)", "CausePath")(scope) == "7"
    with pytest.raises(StateError, match="specified for the field 'CausePath'"):
        compile_dynamic("$.nope", "CausePath")(scope)
    with pytest.raises(ValueError, match="neither a path nor a call"):
        compile_dynamic("boom")


STATIC = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4).filter(lambda name: not name.endswith(".$")), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=STATIC)
def test_template__nothing_dynamic__is_itself(value: Any) -> None:
    assert not is_dynamic(value)
    assert evaluated(value) is value


def made_dynamic(value: Any) -> Any:
    """`value` as a template in which every second member of an object is a path."""
    if isinstance(value, dict):
        return {
            f"{name}.$" if place % 2 else name: "$.here" if place % 2 else made_dynamic(member)
            for place, (name, member) in enumerate(value.items())
        }
    return [made_dynamic(item) for item in value] if isinstance(value, list) else value


def expected(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: "here" if place % 2 else expected(member) for place, (name, member) in enumerate(value.items())}
    return [expected(item) for item in value] if isinstance(value, list) else value


@given(value=STATIC)
def test_template__every_second_member_dynamic__has_them_all_replaced(value: Any) -> None:
    assert evaluated(made_dynamic(value), {"here": "here"}) == expected(value)
