"""JSONPath: selection, invalid paths, and errors for missing values."""

from __future__ import annotations

import copy
import random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.asl.errors import RESULT_PATH_MATCH_FAILURE, RUNTIME, StateError
from headgate.asl.expressions.jsonpath import Root, compile_argument, compile_path, compile_reference
from headgate.asl.expressions.references import Reference
from headgate.asl.expressions.scope import Scope

DOCUMENT: dict[str, Any] = {
    "a": {
        "b-c": 1,
        "x y": 2,
        "list": [{"v": 1}, {"v": 2}, {"v": 5}],
        "2024": {"z": 0},
        "it's": "quoted",
        ".[": "tricky",
    },
    "text": "abc",
    "none": None,
    "ünï": True,
}


def scope(data: Any = DOCUMENT) -> Scope:
    return Scope(
        data=data,
        context=MappingProxyType({"Execution": {"Id": "e-1"}, "Map": {"Item": {"Index": 0}}}),
        variables={"order": {"lines": [10, 20]}, "größe": 3},
        random=random.Random(7),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$", DOCUMENT),
        ("$.a.b-c", 1),
        ("$.a['x y']", 2),
        ('$.a["x y"]', 2),
        ("$.a.['x y']", 2),
        ("$.a['it\\'s']", "quoted"),
        ("$.a['.[']", "tricky"),
        ("$['a'].list[0]['v']", 1),
        ("$.a.list[-1].v", 5),
        ("$.a.2024.z", 0),
        ("$.ünï", True),
        ("$.none", None),
        ("$$.Execution.Id", "e-1"),
        ("$$['Map'].Item.Index", 0),
        # Step Functions ignores white space after a path.
        ("$order.lines[1] ", 20),
        ("$$", {"Execution": {"Id": "e-1"}, "Map": {"Item": {"Index": 0}}}),
        ("$order.lines[1]", 20),
        ("$order", {"lines": [10, 20]}),
        ("$größe", 3),
    ],
)
def test_path__definite__gives_the_value(text: str, value: Any) -> None:
    path = compile_path(text)
    assert path(scope()) == value
    assert path.is_reference
    assert path.is_present(scope())


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("$..v", [1, 2, 5]),
        ("$..['v']", [1, 2, 5]),
        ("$.a.list[*].v", [1, 2, 5]),
        ("$.a.list[0:2]", [{"v": 1}, {"v": 2}]),
        ("$.a.list[0,2].v", [1, 5]),
        ("$['text','none']", ["abc", None]),
        ("$.a.list[?(@.v > 1.5)]", [{"v": 2}, {"v": 5}]),
        ("$.a.list[?(@.v == $.a.b-c)]", [{"v": 1}]),
        ("$.a.list[?(@['v'] == 1 || @.v == 5)].v", [1, 5]),
        ("$.a.list[?(@.v > 9)]", []),
        # A word without quotes is text; in quotes or compared with a path nothing changes.
        ("$[?(@ == abc)]", ["abc"]),
        ("$[?(@ == abc || @ == 'x==y')]", ["abc"]),
        ("$.a.list[?(@.v == one)]", []),
        ("$..absent", []),
        ("$.text[*]", []),
        ("$$..Index", [0]),
        ("$order.lines[*]", [10, 20]),
    ],
)
def test_path__indefinite__gives_a_list(text: str, values: list[Any]) -> None:
    path = compile_path(text)
    assert path(scope()) == values
    assert not path.is_reference
    assert path.is_present(scope()) is bool(values)


@pytest.mark.parametrize(
    "text",
    [
        "$.absent",
        "$.a.absent.more",
        "$.none.more",
        "$.text[0]",
        "$.text.length",
        "$.a.list[3]",
        "$.a.list[-4]",
        "$.a.list.v",
        "$.a[0]",
        "$.absent[*]",
        "$.text[0:1]",
        "$.text[?(@.x == 1)]",
        "$$.Absent",
        "$nobody",
        "$nobody.name",
        "$order.absent",
    ],
)
def test_path__selects_nothing__fails_with_states_runtime(text: str) -> None:
    path = compile_path(text)
    assert not path.is_present(scope())
    with pytest.raises(StateError) as caught:
        path(scope())
    assert caught.value.error == RUNTIME
    assert caught.value.cause.startswith(f"The JSONPath '{text}' could not be found")


def test_path__nothing_is_there_for_a_field__says_so_as_aws_does() -> None:
    with pytest.raises(StateError) as caught:
        compile_path("$.x", "InputPath")(scope({"b": "é"}))
    assert caught.value.cause == (
        "The JSONPath '$.x' specified for the field 'InputPath' could not be found in the input '{\"b\":\"é\"}'"
    )
    with pytest.raises(StateError) as caught:
        compile_argument("$.x")(scope(None))
    assert caught.value.cause == "The JsonPath argument for the field '$.x' could not be found in the input 'null'"


def test_path__nothing_is_there_in_a_large_input__shows_the_start_of_it() -> None:
    with pytest.raises(StateError) as caught:
        compile_path("$.x")(scope({"b": "y" * 100_000}))
    assert len(caught.value.cause) < 400
    assert caught.value.cause.endswith("yyy...'")


def test_path__null_input__dollar_is_null() -> None:
    assert compile_path("$")(scope(None)) is None
    assert compile_path("$").is_present(scope(None))


def test_path__document_too_deep_to_descend__fails_with_states_runtime() -> None:
    document: Any = {"v": 1}
    for _ in range(300):
        document = {"d": document}
    with pytest.raises(StateError) as caught:
        compile_path("$..v")(scope(document))
    assert caught.value.error == RUNTIME


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b",
        " $.a",
        "$.",
        "$..",
        "$.a.",
        "$[",
        "$['a",
        "$.a[]",
        "$.a b",
        "$$x",
        "$$$",
        "$x y",
        "$.a.length()",
        "$.a[?length(@.b) > 1]",
        "$.a[?match(@.b, 'x')]",
        "$.a[?(@.b =~ /x/)]",
        "$.a | $.b",
        "$.a[(@.length-1)]",
        "$.a[99999999999999999999]",
        "{% $a %}",
        None,
        7,
        {"a": 1},
    ],
)
def test_path__not_a_path__is_refused_with_what_is_allowed(text: Any) -> None:
    with pytest.raises(ValueError, match=r"is not a path.*Allowed: \$ \(the input\)"):
        compile_path(text)


@pytest.mark.parametrize(
    ("text", "root"), [("$.a", Root.INPUT), ("$$.a", Root.CONTEXT), ("$a", Root.VARIABLE), ("$", Root.INPUT)]
)
def test_path__root__is_known(text: str, root: Root) -> None:
    assert compile_path(text).root is root


def test_path__compiled_twice__is_one_path() -> None:
    assert compile_path("$.a.b", "F") is compile_path("$.a.b", "F")


@pytest.mark.parametrize(
    ("text", "steps"),
    [("$", ()), ("$.a.b", ("a", "b")), ("$.a[0]['c d']", ("a", 0, "c d")), ("$.error-info", ("error-info",))],
)
def test_reference__plain_steps__is_compiled(text: str, steps: tuple[str | int, ...]) -> None:
    assert compile_reference(text) == Reference(text, steps)


@pytest.mark.parametrize("text", ["$$", "$$.a", "$a", "$..a", "$.a[*]", "$.a[-1]", "$.a[0:1]", "$.a[?(@.b)]"])
def test_reference__not_a_place_in_the_input__is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a reference path. Allowed: \$ followed only by"):
        compile_reference(text)


NAMES = st.text(min_size=1, max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)


def written(steps: list[str]) -> str:
    """The path of these names, each in brackets."""
    quoted = (step.replace("\\", "\\\\").replace("'", "\\'") for step in steps)
    return "$" + "".join(f"['{step}']" for step in quoted)


@given(
    document=st.dictionaries(NAMES, DOCUMENTS, max_size=3),
    steps=st.lists(st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=6), max_size=4),
    value=DOCUMENTS,
)
def test_reference__written_then_read__gives_what_was_written(document: Any, steps: list[str], value: Any) -> None:
    text = written(steps)
    before = copy.deepcopy(document)
    try:
        after = compile_reference(text).write(document, value)
    except StateError as exc:
        # Something that is no object is in the way: then it can be read neither.
        assert exc.error == RESULT_PATH_MATCH_FAILURE
        assert not compile_path(text).is_present(scope(document))
    else:
        assert compile_path(text)(scope(after)) == value
    assert document == before


def places(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every place in a document, with its value."""
    found: list[tuple[tuple[str | int, ...], Any]] = [(path, document)]
    if isinstance(document, dict):
        for name, member in document.items():
            found += places(member, (*path, name))
    elif isinstance(document, list):
        for place, item in enumerate(document):
            found += places(item, (*path, place))
    return found


PRINTABLE = st.text(st.characters(exclude_categories=["C"]), max_size=4)
READABLE = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3), max_leaves=12
)


@given(document=READABLE)
def test_path__to_any_place_of_a_document__gives_the_value_there(document: Any) -> None:
    for steps, value in places(document):
        text = "$" + "".join(f"[{step}]" if isinstance(step, int) else written([step])[1:] for step in steps)
        assert compile_path(text)(scope(document)) is value
