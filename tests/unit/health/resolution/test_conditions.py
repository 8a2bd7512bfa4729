"""Conditions: each operator means one thing, and no expression can take long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidPayloadError, UserError
from headgate.health.resolution.conditions import Condition, Predicate
from headgate.health.resolution.safe_regex import TEXT_LENGTH_MAX, compiled
from tests.unit.health.resolution_world import when

PAYLOAD = {
    "n": 5,
    "f": 1.5,
    "t": "hello",
    "yes": True,
    "none": None,
    "list": [1, "a", {"x": "deep"}],
    "map": {"a b": {"c-d": 7}},
    "at": "2026-01-10T00:00:00Z",
}
HEADERS = {"event-type": "created", "size": "10", "odd": "x"}


@pytest.mark.parametrize(
    ("field", "operator", "value", "is_true"),
    [
        ("$.n", "EQUALS", 5, True),
        ("$.n", "EQUALS", 5.0, True),
        ("$.n", "EQUALS", "5", False),
        ("$.yes", "EQUALS", 1, False),
        ("$.yes", "EQUALS", True, True),
        ("$.none", "EQUALS", None, True),
        ("$.gone", "EQUALS", None, False),
        ("$.list", "EQUALS", [1, "a", {"x": "deep"}], True),
        ("$.n", "NOT_EQUALS", 6, True),
        ("$.gone", "NOT_EQUALS", 6, True),
        ("$.t", "IN", ["x", "hello"], True),
        ("$.n", "IN", ["x", 5], True),
        ("$.gone", "IN", ["x"], False),
        ("$.t", "NOT_IN", ["x"], True),
        ("$.gone", "NOT_IN", ["x"], True),
        ("$.n", "NOT_IN", [5], False),
        ("$.none", "EXISTS", None, True),
        ("$.gone", "EXISTS", None, False),
        ("$.gone.deeper[3].still", "NOT_EXISTS", None, True),
        ("$.list[2].x", "EQUALS", "deep", True),
        ("$.list[3]", "EXISTS", None, False),
        ("$.map['a b'].c-d", "EQUALS", 7, True),
        ("$.t[0]", "EXISTS", None, False),
        ("$.t", "REGEX", "^h.*o$", True),
        ("$.n", "REGEX", "5", False),
        ("$.t", "PREFIX", "he", True),
        ("$.t", "SUFFIX", "lo", True),
        ("$.t", "CONTAINS", "ell", True),
        ("$.list", "CONTAINS", "a", True),
        ("$.list", "CONTAINS", "b", False),
        ("$.n", "CONTAINS", 5, False),
        ("$.n", "GT", 4, True),
        ("$.n", "GT", 5, False),
        ("$.n", "GTE", 5, True),
        ("$.f", "LT", 2, True),
        ("$.f", "LTE", 1.5, True),
        ("$.t", "GT", 1, False),
        ("$.yes", "GT", 0, False),
        ("$.at", "GTE", "2026-01-01T00:00:00Z", True),
        ("$.n", "BETWEEN", [5, 6], True),
        ("$.n", "BETWEEN", [6, 7], False),
        ("$.at", "BETWEEN", ["2026-01-01", "2026-02-01"], True),
        ("headers.Event-Type", "EQUALS", "created", True),
        ("headers.gone", "EXISTS", None, False),
        ("headers.size", "GT", 9, True),
        ("headers.size", "BETWEEN", [9, 11], True),
        ("headers.size", "GT", "9", False),
        ("headers.odd", "GT", 9, False),
        ("headers.event-type", "in", ["created", "x"], True),
    ],
)
def test_condition__each_operator__means_one_thing(field: str, operator: str, value: object, is_true: bool) -> None:
    predicate = Predicate(when(field, operator, value), field="c")

    assert predicate.holds(PAYLOAD, HEADERS) is is_true


def test_condition__on_a_payload_that_is_not_given__all_fields_are_missing() -> None:
    assert not Predicate(when("$.a", "EXISTS"), field="c").holds(None, {})
    assert Predicate(when("$.a", "NOT_EXISTS"), field="c").holds(None, {})
    assert not Predicate(when("$.a", "EXISTS"), field="c").holds("text", {})
    assert Predicate(when("$[1]", "EQUALS", 2), field="c").holds([1, 2], {})


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        (when("a.b", "EQUALS", 1), r"c\.field 'a\.b': start it with"),
        (when("$", "EXISTS"), r"c\.field '\$'"),
        (when("headers.", "EXISTS"), r"c\.field 'headers\.'"),
        (when("$..a", "EXISTS"), r"c\.field .* invalid from character 2"),
        (when("$.a[*]", "EXISTS"), "invalid from character 4"),
        (when("$.a[-1]", "EXISTS"), "invalid from character 4"),
        (when("$.a[?(@.b)]", "EXISTS"), "invalid from"),
        (when("$.a", "LIKE", 1), r"c\.operator 'LIKE': not one of EQUALS, NOT_EQUALS"),
        (when("$.a", "EXISTS", 1), r"c\.value '1': EXISTS takes none"),
        (when("$.a", "IN", "x"), "IN takes a list of 1 to 200"),
        (when("$.a", "IN", []), "IN takes a list"),
        (when("$.a", "BETWEEN", [2, 1]), "two numbers or two texts, the lower first"),
        (when("$.a", "BETWEEN", [1, "x"]), "two numbers or two texts"),
        (when("$.a", "GT", True), "GT takes a number or text"),
        (when("$.a", "PREFIX", 3), "PREFIX takes some text"),
        (when("$.a", "REGEX", "("), r"c\.value '\('"),
        (when("headers.a", "EQUALS", 3), "text, as headers are"),
        (when("headers.a", "IN", ["x", 3]), "text, as headers are"),
        (when("$.a", "EQUALS", "x" * 5000), "bytes of JSON; at most 4096"),
        (when("$.a", "EQUALS", 1, "orders"), "Invalid dataset URN"),
    ],
)
def test_condition__that_makes_no_sense__is_refused_naming_the_field(condition: Condition, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Predicate(condition, field="c")


@pytest.mark.parametrize(
    "pattern",
    [
        "^cust-[a-z0-9]+$",
        "a",
        "a.*b",
        "^a.*b.*c$",
        r"^\d{4}-\d{2}$",
        "(?:a|b)c",
        "x?y",
        "[^]]",
        r"\$\.",
        "(ab){2}",
        "a|b",
    ],
)
def test_regex__harmless__is_accepted_as_python_reads_it(pattern: str) -> None:
    assert compiled(pattern, field="f").pattern == pattern


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a|a)*$", "(a|aa)+", "(a*)*", "((a)+)+", "(a?){30}", ".*.*.*", "a.*b.*c", "(?=a)b",
        r"(a)\1", "(?P<x>a)", "(?i)a", "a**", "a+*", "*a", "a{2}{3}", "(", ")", "[", "[a||b]", "[a--b]", "[]||",
        "a" * 300, "^(a{1,500}){2,}", r"\p", "(?:a|b)+", "\\",
        "^a{0,500}a{0,500}a{0,500}$", "(" * 12 + "a" + ")" * 12, "",
    ],
)  # fmt: skip
def test_regex__that_could_take_long_or_is_not_understood__is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPayloadError, match=r"^f"):
        compiled(pattern, field="f")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab.*+?|()[]^${}1,2\\d", min_size=1, max_size=14))
def test_regex__whatever_is_accepted__is_soon_done_with_the_worst_text(pattern: str) -> None:
    try:
        made = compiled(pattern, field="f")
    except InvalidPayloadError:
        return
    started_at = time.perf_counter()
    for text in ("a" * (TEXT_LENGTH_MAX - 1) + "!", "ab" * (TEXT_LENGTH_MAX // 2 - 1) + "!"):
        made.search(text)
    assert time.perf_counter() - started_at < 1.0, pattern


def test_regex__longer_text_than_is_looked_at__does_not_match() -> None:
    predicate = Predicate(when("$.a", "REGEX", "a"), field="c")

    assert predicate.holds({"a": "a" * TEXT_LENGTH_MAX}, {})
    assert not predicate.holds({"a": "a" * (TEXT_LENGTH_MAX + 1)}, {})
