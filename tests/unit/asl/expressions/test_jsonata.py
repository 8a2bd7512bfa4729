from __future__ import annotations

import copy
import json
import random
import threading
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from headgate.asl.errors import QUERY_EVALUATION_ERROR, StateError
from headgate.asl.expressions.jsonata import DEPTH_MAX, STEPS_MAX, compile_expression, compile_jsonata, is_expression
from headgate.asl.expressions.scope import Json, Scope

INPUT: dict[str, Json] = {
    "title": "Doctor",
    "one": 1.0,
    "nil": None,
    "list": [1, None, 2],
    "empty": [],
    "pair": {"p": 1, "q": 2},
    "items": [{"name": "a", "price": 1}, {"name": "b", "price": 2}],
    "seed": 3,
}
CONTEXT: dict[str, Json] = {
    "Execution": {"Name": "run-1", "StartTime": "2024-03-01T00:00:00.000Z"},
    "State": {"EnteredTime": "2024-03-05T01:02:03.004Z"},
}


def scope(**fields: Any) -> Scope:
    variables = {"count": 3, "nothing": None, "single": [7], "nested": {"a": [{"b": None}]}}
    given: dict[str, Any] = {"context": CONTEXT, "variables": variables, "random": random.Random(1), "input": INPUT}
    return Scope(data=None, **(given | fields))


def value(expression: str, **fields: Any) -> Json:
    given = scope(**fields)
    before = copy.deepcopy((given.input, given.variables, dict(given.context), given.result))
    found = compile_expression(f"{{% {expression} %}}")(given)
    assert (given.input, given.variables, dict(given.context), given.result) == before
    return found


def failure(expression: str, **fields: Any) -> str:
    with pytest.raises(StateError) as caught:
        value(expression, **fields)
    assert caught.value.error == QUERY_EVALUATION_ERROR
    assert f"'{expression}'" in caught.value.cause
    return caught.value.cause


def is_plain(document: Json) -> bool:
    if type(document) is dict:
        return all(type(key) is str and is_plain(member) for key, member in document.items())
    if type(document) is list:
        return all(map(is_plain, document))
    return document is None or type(document) in (str, int, float, bool)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$states.input.title", "Doctor"),
        ("'Hello ' & $states.input.title", "Hello Doctor"),
        ("$states.context.Execution.Name", "run-1"),
        ("$count + 1", 4),
        ("$single", [7]),
        ("$nested", {"a": [{"b": None}]}),
        ("$nothing", None),
        ("null", None),
        ("$states.input.nil", None),
        ("$states.input.list", [1, None, 2]),
        ("$map($states.input.list, function($v) { $v })", [1, None, 2]),
        ("$filter($states.input.list, function($v) { $v != null })", [1, 2]),
        ("$nested.a[0] = {'b': null}", True),
        ("[$nothing, 1]", [None, 1]),
        ("{'a': $nothing, 'b': $states.result}", {"a": None}),
        ("$states.input", INPUT),
        ("$states.input.one", 1),
        ("4 / 2", 2),
        ("1 / 4", 0.25),
        ("0 * -1", 0),
        ("5.5 % 2", 1.5),
        ("-5 % 3", -2),
        ("1 in [true]", False),
        ("'a' in ['a', 'b']", True),
        ("$distinct([1, true, 1, null, '1', {'a': 1}, {'a': 1}])", [1, True, None, "1", {"a": 1}]),
        ("[1..4]", [1, 2, 3, 4]),
        ("[]", []),
        ("{}", {}),
        ("$states.input.empty", []),
        ("$states.input.empty{name: price}", {}),
        ("$states.input.items[price > 1].name", "b"),
        ("$states.input.items[price > 1].name[]", ["b"]),
        ("$states.input.items{name: price}", {"a": 1, "b": 2}),
        ("$states.input.items^(>price).name", ["b", "a"]),
        ("$states.input.items@$i#$n.{'n': $n, 'item': $i.name}", [{"n": 0, "item": "a"}, {"n": 1, "item": "b"}]),
        ("$states.input.items.{'n': name, 'all': $}", [{"n": i["name"], "all": i} for i in INPUT["items"]]),
        (
            "$states.input.items ~> |$|{'tax': price / 2}, 'price'|",
            [{"name": "a", "tax": 0.5}, {"name": "b", "tax": 1}],
        ),
        ("$sum($states.input.items.price) ~> $string", "3"),
        ("$exists($states.result)", False),
        ("$exists($states.errorOutput)", False),
        ("($x := 2; $x * $count)", 6),
        ("($f := function($n) { $n <= 1 ? 1 : $n * $f($n - 1) }; $f(20))", 2432902008176640000),
        ("$replace('a-b', /[a-z]/, function($m) { $uppercase($m.match) })", "A-B"),
        ("$sift($states.input.pair, function($v) { $v > 1 })", {"q": 2}),
        ("$pad('a', 3, '-') & $join(['x', 'y'], '+') & $replace('aa', 'a', 'b', 1)", "a--x+yba"),
    ],
)
def test_expression__given_data__then_gives_plain_json(expression: str, expected: Json) -> None:
    found = value(expression)
    assert found == expected
    assert is_plain(found)
    # Also tells true from 1, and 1.0 from 1.
    assert json.dumps(found) == json.dumps(expected)


def test_states__given_a_result_and_an_error__then_they_are_there() -> None:
    assert value("$states.result.r", result={"r": [None]}, has_result=True) == [None]
    assert value("$states.result", result=None, has_result=True) is None
    assert value("$states.errorOutput.Error", error_output={"Error": "E"}, has_error=True) == "E"
    assert value("$states.input", input=None) is None
    assert value("$keys($states)") == ["input", "context"]


def test_states__given_a_document_that_is_passed_on_whole__then_it_is_not_copied() -> None:
    assert value("$states.input") is INPUT
    plain = {"a": [1]}
    assert value("$states.result", result=plain, has_result=True) is plain


def test_states__given_a_context_that_is_no_dict__then_it_is_read_all_the_same() -> None:
    assert value("$states.context.Execution.Name", context=MappingProxyType(CONTEXT)) == "run-1"


def test_states__given_half_a_surrogate_pair__then_it_is_passed_on() -> None:
    assert value("$states.input.a", input={"a": ["\ud800", None]}) == ["\ud800", None]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$partition([1,2,3,4,5], 2)", [[1, 2], [3, 4], [5]]),
        ("$partition([], 2)", []),
        ("$partition(1, 2)", [[1]]),
        ("$range(0, 10, 5)", [0, 5, 10]),
        ("$range(5, 1, -2)", [5, 3, 1]),
        ("$range(1, 1, 1)", [1]),
        ("$range(1, 3, -1)", []),
        ("$range(1, ?, 1)(3)", [1, 2, 3]),
        ("$hash('a', 'MD5')", "0cc175b9c0f1b6a831c399e269772661"),
        ("$hash('a', 'SHA-1')", "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        ("$hash('ä', 'SHA-256')", "33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"),
        ("$length($hash('a', 'SHA-384')) & ' ' & $length($hash('a', 'SHA-512'))", "96 128"),
        ("""$parse('{"a": [null, 1.5, true]}')""", {"a": [None, 1.5, True]}),
        ("$parse('null')", None),
        ("$map(['1', '2'], $parse)", [1, 2]),
        ("$random(7) = $random(7)", True),
        ("$random(7) = $random(8)", False),
    ],
)
def test_function__given_those_of_step_functions__then_does_what_they_document(expression: str, expected: Json) -> None:
    assert value(expression) == expected


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("$partition([1], 0)", "at least 1"),
        ("$partition([1], 1.5)", "integer"),
        ("$range(1, 2, 0)", "must not be 0"),
        ("$range(1, 2.5, 1)", "integer"),
        ("$range(1, 99999999, 1)", "larger than"),
        ("$hash('a', 'CRC')", "MD5, SHA-1, SHA-256, SHA-384, SHA-512"),
        ("$hash(1, 'MD5')", "T0410"),
        ("$random('x')", "T0410"),
        ("$random(0.5)", "integer"),
        ("$parse('{')", "not JSON"),
        ("$parse('NaN')", "not JSON"),
        ("$map([1], $parse)", "$parse reads text"),
        ("($e := $eval; $e('1'))", "$eval is not supported"),
        ("$missing", "returned nothing (undefined)"),
        ("$states.input.absent.deeper", "returned nothing (undefined)"),
        ("$states.result", "returned nothing (undefined)"),
        ("'a' + 1", "T2001"),
        ("$absent(1)", "T1006"),
        ("1 / 0", "division by zero"),
        ("$power(10, 400)", "out of range"),
        ("$number('x')", "'x'"),
        ("$error('mine')", "D3137: mine"),
        ("$assert(false, 'mine')", "mine"),
        ("$sum", "returned a function"),
        ("{'f': function($x) { $x }}", "returned a function"),
        ("true and $error('mine')", "mine"),
    ],
)
def test_expression__given_what_cannot_be_evaluated__then_fails_with_its_text(expression: str, fact: str) -> None:
    assert fact in failure(expression)


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("($f := function($n) { $f($n + 1) }; $f(0))", f"more than {STEPS_MAX} steps"),
        ("($f := function($n) { 1 + $f($n + 1) }; $f(0))", f"deeper than {DEPTH_MAX}"),
        ("($f := function($n) { $map([1, 2], $f) }; $f(0))", f"deeper than {DEPTH_MAX}"),
        ("($f := function($n) { $sort([2, 1], function($a, $b) { $f(0) > 0 }) }; $f(0))", f"deeper than {DEPTH_MAX}"),
        ("($f := function($s) { $f($s & $s) }; $f('a'))", "characters or elements"),
        ("($f := function($l) { $f($append($l, $l)) }; $f([1, 2]))", "characters or elements"),
        ("$sum([1..9999999])", "characters or elements"),
        ("$pad('a', 1000000000)", "characters or elements"),
        ("$join($map([1..3000], function($i) { $pad('a', 3000) }), ',')", "characters or elements"),
        ("$replace($pad('a', 3000, 'a'), 'a', $pad('b', 3000))", "characters or elements"),
        ("($f := function($n, $v) { $n = 0 ? $v : $f($n - 1, {'l': $v, 'r': $v}) }; $f(60, 1))", "steps"),
    ],
)
def test_expression__given_a_runaway__then_ends_with_an_error(expression: str, fact: str) -> None:
    ended: list[str] = []
    # On a thread, as workers evaluate: their stacks are no deeper than this one's.
    thread = threading.Thread(target=lambda: ended.append(failure(expression)))
    thread.start()
    thread.join()
    assert len(ended) == 1
    assert fact in ended[0]


def test_time__given_the_turn__then_is_that_of_the_context() -> None:
    assert value("$now()") == "2024-03-05T01:02:03.004Z"
    assert value("$now('[Y]/[M]/[D]')") == "2024/3/5"
    assert value("$millis()") == 1709600523004
    assert value("$millis()", context={"Execution": {"StartTime": "1970-01-01T00:00:01Z"}}) == 1000
    assert "the time is not known" in failure("$now()", context={})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$toMillis('12:30', '[H]:[m]')", "2024-03-05T12:30:00.000Z"),
        ("$toMillis('04', '[D01]')", "2024-03-04T00:00:00.000Z"),
        ("$toMillis('02-04', '[M01]-[D01]')", "2024-02-04T00:00:00.000Z"),
        ("$toMillis('2020', '[Y]')", "2020-01-01T00:00:00.000Z"),
        ("$toMillis('2020-05-06T07:08:09.010Z')", "2020-05-06T07:08:09.010Z"),
    ],
)
def test_to_millis__given_a_picture_without_a_date__then_takes_that_of_the_turn(expression: str, expected: str) -> None:
    assert value(f"$fromMillis({expression})") == expected


def test_draws__given_the_same_source__then_the_same_values() -> None:
    expression = "[$random(), $uuid(), $shuffle([1..20])]"
    first = value(expression, random=random.Random(5))
    assert first == value(expression, random=random.Random(5))
    assert first != value(expression, random=random.Random(6))
    assert 0 <= first[0] < 1
    assert UUID(first[1]).version == 4
    assert sorted(first[2:]) == list(range(1, 21))


@pytest.mark.parametrize(
    ("expression", "fact"),
    [
        ("1 +", "character 3"),
        ("{'a' 1}", "character 6"),
        ("(1", "character 2"),
        ("'abc", "character 4"),
        ("", "character 0"),
        ("$", r"\$states.input"),
        ("$.a", r"\$states.input"),
        ("$$", r"\$states.input"),
        ("$states.input.items[$$.x = 1]", r"\$\$ has no value"),
        ("title", r"\$states.input.title"),
        ("$count + title", r"\$states.input.title"),
        ("{'a': title.b}", r"\$states.input.title"),
        ("*", "no value at the top level"),
        ("**.a", "no value at the top level"),
        ("$map([1], function($v) { $ })", "no value at the top level"),
        ("$count > 1 ? ($x := $; $x) : 1", "no value at the top level"),
        ("$eval('1')", r"\$parse"),
        ("$states.input.items.$eval(name)", r"\$parse"),
    ],
)
def test_compile__given_what_is_not_allowed__then_refused_with_its_place(expression: str, fact: str) -> None:
    with pytest.raises(ValueError, match=fact) as caught:
        compile_expression(f"{{% {expression} %}}")
    assert expression in str(caught.value)
    assert not isinstance(caught.value, StateError)


def test_compile__given_the_same_text__then_compiles_once() -> None:
    assert compile_expression("{% $count + 40 %}") is compile_expression("{% $count + 40 %}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% 1 %}", True),
        ("{%1%}", True),
        ("{%}", False),
        (" {% 1 %}", False),
        ("{% 1 %} ", False),
        ("1", False),
        (1, False),
    ],
)
def test_is_expression__given_a_value__then_says_so(text: Json, *, expected: bool) -> None:
    assert is_expression(text) is expected


def test_compile_expression__given_no_delimiters__then_refused() -> None:
    with pytest.raises(ValueError, match="is not a JSONata expression"):
        compile_expression("1")


def test_compile_jsonata__given_expressions_at_any_depth__then_evaluates_those_alone() -> None:
    template = {"a": ["{% $count %}", "$count", {"{% k %}": "{% $states.input.pair %}"}], "b": None, "c": {"d": [1]}}
    found = compile_jsonata(template)(scope())
    assert found == {"a": [3, "$count", {"{% k %}": {"p": 1, "q": 2}}], "b": None, "c": {"d": [1]}}
    assert found["c"] is template["c"]


def test_compile_jsonata__given_a_value_without_expressions__then_gives_that_value() -> None:
    template = {"a": [1, {"b": "x"}]}
    assert compile_jsonata(template)(scope()) is template


def test_compile_jsonata__given_one_undefined_member__then_fails() -> None:
    with pytest.raises(StateError, match="returned nothing"):
        compile_jsonata({"a": "{% $count %}", "b": ["{% $absent %}"]})(scope())


def test_evaluation__given_many_threads_and_expressions__then_each_sees_its_own() -> None:
    expressions = [
        "$map([1..20], function($v) { $v * $me })",
        "$reduce([1..20], function($a, $v) { $a + $v * $me }, 0)",
        "($add := $range(?, $me, 1); $count($add(1)))",
        "$sort([3, 1, 2], function($l, $r) { $l > $r }) ~> $map(function($v) { $v + $me })",
        "$replace('a1b2', /[0-9]/, function($m) { $string($me) })",
        "$now() & $me",
    ]
    compiled = [compile_expression(f"{{% {expression} %}}") for expression in expressions]
    wrong: list[tuple[int, Json]] = []

    def check(me: int) -> None:
        context = {"State": {"EnteredTime": f"2024-01-01T00:00:{me:02}.000Z"}}
        given = scope(variables={"me": me}, context=context)
        expected = [
            [v * me for v in range(1, 21)],
            210 * me,
            me,
            [1 + me, 2 + me, 3 + me],
            f"a{me}b{me}",
            f"2024-01-01T00:00:{me:02}.000Z{me}",
        ]
        for _ in range(15):
            found = [evaluate(given) for evaluate in compiled]
            if found != expected:
                wrong.append((me, found))

    threads = [threading.Thread(target=check, args=(me,)) for me in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_expression__regular_expression_that_would_backtrack_for_ever__answers_at_once() -> None:
    given = scope(input="a" * 5_000 + "b")
    assert compile_expression("{% $contains($states.input, /(a+)+$/) %}")(given) is False


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("$match('Order 12, order 7', /order (\\d+)/i).groups", ["12", "7"]),
        ("$replace('a1b22', /\\d+/, '#')", "a#b#"),
        ("$split('a, b;c', /[,;]\\s*/)", ["a", "b", "c"]),
    ],
)
def test_expression__regular_expression__matches(expression: str, expected: object) -> None:
    assert compile_expression(f"{{% {expression} %}}")(scope()) == expected


def test_expression__regular_expression_with_lookahead__refused_when_compiled() -> None:
    with pytest.raises(ValueError, match="RE2"):
        compile_expression("{% $contains('x', /a(?=b)/) %}")
