"""Intrinsic functions as AWS documents them, and invalid calls."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.asl.errors import INTRINSIC_FAILURE, RUNTIME, StateError
from headgate.asl.expressions.intrinsics import DEPTH_MAX, FUNCTIONS, compile_intrinsic
from headgate.asl.expressions.scope import Scope

INPUT: dict[str, Any] = {
    "name": "Arnav",
    "template": "Hello, my name is {}.",
    "escaped": r"\{{}\} in C:\dir",
    "lone": "a { b",
    "numbers": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    "object": {"b": 1, "a": [True, None]},
    "json": '{"foo": "bar"}',
    "one": 1,
    "half": 2.5,
    "none": None,
    "quoted": {"it's, (here)": "found"},
    "orders": [{"id": 1, "kind": "a,b)"}, {"id": 2, "kind": "c"}],
    "long": "x" * 10_001,
    "limit": "x" * 10_000,
}


def evaluated(text: str, data: Any = INPUT, seed: int = 7) -> Any:
    scope = Scope(
        data=data,
        context={"Execution": {"Name": "run-1"}},
        variables={"who": {"first": "Ada"}},
        random=random.Random(seed),
    )
    return compile_intrinsic(text)(scope)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # Format
        ("States.Format('Hello, my name is {}.', $.name)", "Hello, my name is Arnav."),
        ("States.Format($.template, $.name)", "Hello, my name is Arnav."),
        ("States.Format('{}{} {}', 1, 1.5, 'x')", "11.5 x"),
        ("States.Format('{}/{}/{}', null, true, false)", "null/true/false"),
        ("States.Format('no place')", "no place"),
        ("States.Format('')", ""),
        (r"States.Format('\{\}={} it\'s \\', $.one)", r"{}=1 it's " + "\\"),
        ("States.Format($.escaped, $.one)", r"{1} in C:\dir"),
        ("States.Format('{}', '{}')", "{}"),
        ("States.Format('{} {}', $who.first, $$.Execution.Name)", "Ada run-1"),
        # JSON
        ("States.StringToJson($.json)", {"foo": "bar"}),
        ("States.StringToJson('[1, \"a\", null]')", [1, "a", None]),
        ("States.JsonToString($.object)", '{"b":1,"a":[true,null]}'),
        ("States.JsonToString('é')", '"é"'),
        (
            'States.JsonMerge($.object, States.StringToJson(\'{"b": {"c": 2}}\'), false)',
            {"b": {"c": 2}, "a": [True, None]},
        ),
        # Arrays
        ("States.Array()", []),
        ("States.Array( 'Foo', 2020 ,$.object.a,null )", ["Foo", 2020, [True, None], None]),
        ("States.Array(-1, 0, 1e2, -0.5)", [-1, 0, 100.0, -0.5]),
        ("States.ArrayPartition($.numbers,4)", [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
        ("States.ArrayPartition($.numbers, 3.6)", [[1, 2, 3, 4], [5, 6, 7, 8], [9]]),
        ("States.ArrayPartition(States.Array(), 4)", []),
        ("States.ArrayContains($.numbers, 5)", True),
        ("States.ArrayContains($.numbers, 5.0)", True),
        ("States.ArrayContains($.numbers, '5')", False),
        ("States.ArrayContains($.numbers, true)", False),
        ("States.ArrayContains(States.Array($.object, 1), $.object)", True),
        ("States.ArrayContains(States.Array(null), null)", True),
        ("States.ArrayRange(1, 9, 2)", [1, 3, 5, 7, 9]),
        ("States.ArrayRange(1, 10, 2)", [1, 3, 5, 7, 9]),
        ("States.ArrayRange(3, -3, -3)", [3, 0, -3]),
        ("States.ArrayRange(0.6, 2.4, 1)", [1, 2]),
        ("States.ArrayRange(5, 1, 1)", []),
        ("States.ArrayLength(States.ArrayRange(1, 1000, 1))", 1000),
        ("States.ArrayGetItem($.numbers, 5)", 6),
        ("States.ArrayLength($.numbers)", 9),
        (
            "States.ArrayUnique(States.Array(3, 1, 3, '1', true, 1, $.object, $.object))",
            [3, 1, "1", True, INPUT["object"]],
        ),
        # Encodings
        ("States.Base64Encode('Data to encode')", "RGF0YSB0byBlbmNvZGU="),
        ("States.Base64Decode('RGF0YSB0\nbyBlbmNvZGU=')", "Data to encode"),
        ("States.Hash('input data', 'MD5')", "812f45842bc6d66ee14572ce20db8e86"),
        ("States.Hash('input data', 'SHA-1')", "aaff4a450a104cd177d28d18d74485e8cae074b7"),
        ("States.ArrayLength(States.StringSplit(States.Hash($.limit, 'SHA-512'), ' '))", 1),
        # Numbers
        ("States.MathAdd(111, -1)", 110),
        ("States.MathAdd($.half, 1.4)", 4),
        ("States.MathAdd(2147483647, 1)", 2147483648),
        # Strings
        ("States.StringSplit('1,2,3,4,5', ',')", ["1", "2", "3", "4", "5"]),
        ("States.StringSplit('This.is+a,test=string', '.+,=')", ["This", "is", "a", "test", "string"]),
        ("States.StringSplit(',,a,', ',')", ["a"]),
        ("States.StringSplit(',,,', ',')", []),
        ("States.StringSplit('a-b]c^d', ']-^')", ["a", "b", "c", "d"]),
        ("States.StringSplit('Hello\nWorld', '\n')", ["Hello", "World"]),
        ("States.StringSplit('abc', '')", ["abc"]),
        # Paths that have what else ends an argument
        ("States.Array($.quoted['it\\'s, (here)'], 1)", ["found", 1]),
        ("States.Array($.orders[?(@.kind == 'a,b)')].id, 1)", [[1], 1]),
        ("States.Array($.numbers[0,1], $.numbers[2:4])", [[1, 2], [3, 4]]),
        ("States.Array($..absent)", [[]]),
    ],
)
def test_intrinsic__documented_call__gives_the_documented_value(text: str, value: Any) -> None:
    result = evaluated(text)
    assert result == value
    assert repr(result) == repr(value)


@pytest.mark.parametrize(
    ("algorithm", "length"), [("MD5", 32), ("SHA-1", 40), ("SHA-256", 64), ("SHA-384", 96), ("SHA-512", 128)]
)
def test_hash__each_algorithm__gives_its_length_and_takes_objects_as_json(algorithm: str, length: int) -> None:
    digest = evaluated(f"States.Hash($.object, '{algorithm}')")
    assert len(digest) == length
    assert digest == evaluated(f"States.Hash(States.JsonToString($.object), '{algorithm}')")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("States.Format('{}')", "the template has 1 {}, and there are 0"),
        ("States.Format('x', 1)", "the template has 0 {}, and there are 1"),
        ("States.Format($.lone)", "'{' in the template"),
        ("States.Format($.numbers)", "a string is expected, not a list"),
        ("States.Format('{}', $.object)", "use States.JsonToString"),
        ("States.StringToJson('{a}')", "Expecting property name"),
        ("States.StringToJson('[NaN]')", "NaN is not JSON"),
        ("States.StringToJson(1)", "a string is expected"),
        ("States.ArrayPartition($.numbers, 0)", "must be 1 or more, not 0"),
        ("States.ArrayPartition($.object, 1)", "a list is expected, not an object"),
        ("States.ArrayPartition($.numbers, '2')", "a number is expected, not a string"),
        ("States.ArrayContains($.name, 1)", "a list is expected, not a string"),
        ("States.ArrayRange(1, 9, 0)", "must not be 0"),
        ("States.ArrayRange(1, 9, 0.4)", "must not be 0"),
        ("States.ArrayRange(0, 1000, 1)", "1000 items, not 1001"),
        ("States.ArrayRange(0, 1e300, 1)", "1000 items"),
        ("States.ArrayGetItem($.numbers, 9)", "outside of a list of 9"),
        ("States.ArrayGetItem($.numbers, -1)", "outside of a list of 9"),
        ("States.ArrayLength(null)", "a list is expected, not null"),
        ("States.ArrayUnique('aa')", "a list is expected"),
        ("States.Base64Encode($.long)", "10000 characters, not 10001"),
        ("States.Base64Decode($.long)", "10000 characters, not 10001"),
        ("States.Base64Decode('%%%')", "base64"),
        ("States.Base64Decode('/w==')", "decode"),
        ("States.Hash($.long, 'MD5')", "10000 characters, not 10001"),
        ("States.Hash('a', 'SHA1')", "use MD5, SHA-1, SHA-256, SHA-384, SHA-512"),
        ("States.Hash('a', $.object)", "there is no algorithm"),
        ("States.JsonMerge($.object, $.object, true)", "must be false"),
        ("States.JsonMerge($.object, $.object, 0)", "must be false"),
        ("States.JsonMerge($.object, $.numbers, false)", "only objects"),
        ("States.MathRandom(5, 5)", "above the start"),
        ("States.MathRandom('a', 5)", "a number is expected"),
        ("States.MathAdd(true, 1)", "a number is expected, not a boolean"),
        ("States.MathAdd(2147483648, 1)", "from -2147483648 to 2147483647"),
        ("States.MathAdd(1e999, 1)", "a number is expected"),
        ("States.StringSplit(1, ',')", "a string is expected"),
    ],
)
def test_intrinsic__arguments_it_cannot_do_with__fails_with_its_cause(text: str, cause: str) -> None:
    with pytest.raises(StateError) as caught:
        evaluated(text)
    assert caught.value.error == INTRINSIC_FAILURE
    assert caught.value.cause.startswith(f"The function '{text}' had the following error: ")
    assert cause in caught.value.cause


def test_intrinsic__json_nested_too_deep__fails_instead_of_breaking_the_interpreter() -> None:
    with pytest.raises(StateError) as caught:
        evaluated("States.StringToJson($)", "[" * 200_000)
    assert caught.value.error == INTRINSIC_FAILURE


def test_intrinsic__argument_selects_nothing__is_states_runtime_in_the_words_of_aws() -> None:
    with pytest.raises(StateError) as caught:
        evaluated("States.Format('{}', States.Array($.nope))", {"other": 1})
    assert caught.value.error == RUNTIME
    assert caught.value.cause == (
        "The function 'States.Format('{}', States.Array($.nope))' had the following error: "
        "The JsonPath argument for the field '$.nope' could not be found in the input '{\"other\":1}'"
    )


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "a function's name"),
        (None, "it is no string"),
        ({"a": 1}, "it is no string"),
        ("States.Format", "a function's name and '('"),
        ("States.Format ('a')", "a function's name and '('"),
        ("States.Nope()", "there is no function States.Nope"),
        ("States.Array(", "expected"),
        ("States.Array(1", "',' or ')' is expected"),
        ("States.Array(1 2)", "',' or ')' is expected"),
        ("States.Array(1,)", "a function's name"),
        ("States.Array(,1)", "a function's name"),
        ("States.Array(01)", "a function's name"),
        ("States.Array(1.)", "a function's name"),
        ("States.Array(nullx)", "a function's name"),
        ('States.Array("a")', "a function's name"),
        ("States.Array('a)", "not closed"),
        (r"States.Array('a\')", "not closed"),
        (r"States.Array('a\nb')", "can follow a backslash"),
        ("States.Array() ", "text follows"),
        ("States.Array()()", "text follows"),
        ("States.Format('a { b')", "'{' in the template"),
        ("States.Format('a } b')", "'}' in the template"),
        ("States.Format()", "takes 1 or more arguments, not 0"),
        ("States.UUID(1)", "takes 0 arguments, not 1"),
        ("States.MathRandom(1)", "takes 2 to 3 arguments, not 1"),
        ("States.MathRandom(1, 2, 3, 4)", "takes 2 to 3 arguments, not 4"),
        ("States.ArrayLength()", "takes 1 arguments, not 0"),
    ],
)
def test_intrinsic__written_wrongly__is_refused_with_what_is_allowed(text: Any, fact: str) -> None:
    with pytest.raises(ValueError, match=r"is not a call of an intrinsic function: ") as caught:
        compile_intrinsic(text)
    assert fact in str(caught.value)
    assert "Allowed: States.Format, " in str(caught.value)


@pytest.mark.parametrize(
    "text", ["States.Array($.)", "States.Array($.a b)", "States.Array($['a)", "States.Array($.a.length())"]
)
def test_intrinsic__argument_is_no_path__is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a path.*Allowed: "):
        compile_intrinsic(text)


def test_intrinsic__nested__is_taken_up_to_the_limit() -> None:
    deepest = "States.Array(" * DEPTH_MAX + ")" * DEPTH_MAX
    value = evaluated(deepest)
    for _ in range(DEPTH_MAX - 1):
        assert len(value) == 1
        value = value[0]
    assert value == []
    with pytest.raises(ValueError, match="nested 10 deep"):
        compile_intrinsic(f"States.Array({deepest})")


def test_intrinsic__documented_nesting__gives_the_parts() -> None:
    split = "States.StringSplit(States.ArrayGetItem(States.StringSplit($.Arn, '/'), 2), '.')"
    text = f"States.Format('{{}}.{{}}', States.ArrayGetItem({split}, 0), States.ArrayGetItem({split}, 1))"
    assert evaluated(text, {"Arn": "arn/recipe/1.2.3"}) == "1.2"


def test_random__same_draw__is_the_same_and_within_bounds() -> None:
    drawn = [evaluated("States.MathRandom(1, 4)", seed=seed) for seed in range(60)]
    assert set(drawn) == {1, 2, 3}
    assert drawn == [evaluated("States.MathRandom(1, 4)", seed=seed) for seed in range(60)]


def test_random__seeded_call__depends_on_its_seed_alone() -> None:
    calls = [f"States.MathRandom(0, 1000000, {seed})" for seed in range(5)]
    assert [evaluated(call, seed=1) for call in calls] == [evaluated(call, seed=2) for call in calls]
    assert len({evaluated(call) for call in calls}) == len(calls)


def test_uuid__drawn__is_of_version_4_and_follows_the_draw() -> None:
    first = evaluated("States.UUID()", seed=1)
    assert uuid.UUID(first).version == 4
    assert str(uuid.UUID(first)) == first
    assert evaluated("States.UUID()", seed=1) == first
    assert evaluated("States.UUID()", seed=2) != first
    one, other = evaluated("States.Array(States.UUID(), States.UUID())")
    assert one != other


def test_functions__all_that_aws_documents__are_there() -> None:
    documented = (
        "Array ArrayContains ArrayGetItem ArrayLength ArrayPartition ArrayRange ArrayUnique Base64Decode Base64Encode "
        "Format Hash JsonMerge JsonToString MathAdd MathRandom StringSplit StringToJson UUID"
    )
    assert sorted(FUNCTIONS) == [f"States.{name}" for name in documented.split()]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=15
)


@given(items=st.lists(DOCUMENTS, max_size=20), size=st.integers(1, 25))
def test_array_partition__chunks_joined__are_the_array(items: list[Any], size: int) -> None:
    chunks = evaluated("States.ArrayPartition($.items, $.size)", {"items": items, "size": size})
    assert [item for chunk in chunks for item in chunk] == items
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(1 <= len(chunk) <= size for chunk in chunks)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_base64__encoded_then_decoded__is_the_text(text: str) -> None:
    assert evaluated("States.Base64Decode(States.Base64Encode($))", text) == text


@given(document=DOCUMENTS)
def test_json__to_string_and_back__is_the_document(document: Any) -> None:
    assert evaluated("States.StringToJson(States.JsonToString($))", document) == document


@given(text=st.text())
def test_string__any_text_escaped_in_a_literal__is_the_text(text: str) -> None:
    literal = "".join(f"\\{character}" if character in "'{}\\" else character for character in text)
    assert evaluated(f"States.Array('{literal}')") == [text]
    assert evaluated(f"States.Format('{literal}{{}}', '{literal}')") == text + text


@given(items=st.lists(SCALARS, max_size=12))
def test_array_unique__any_array__keeps_one_of_each_in_order(items: list[Any]) -> None:
    unique = evaluated("States.ArrayUnique($)", items)
    assert all(evaluated("States.ArrayContains($.u, $.i)", {"u": unique, "i": item}) for item in items)
    # As JSON has it, true is not 1, but 1 is 1.0.
    kinds = [(isinstance(item, bool), item) for item in items]
    assert [(isinstance(item, bool), item) for item in unique] == list(dict.fromkeys(kinds))
