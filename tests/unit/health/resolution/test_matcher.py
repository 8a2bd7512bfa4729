"""The matcher agrees with reading the rules one by one."""

from __future__ import annotations

import time
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.health.resolution.conditions import Condition
from headgate.health.resolution.matcher import Matcher
from headgate.health.resolution.rules import Rule, RuleKey, glob
from tests.unit.health.resolution_world import A, B, C, D, when


def plain_match(pattern: str, topic: str) -> bool:
    """Match by trying everything."""
    if not pattern:
        return not topic
    if pattern[0] == "*":
        return any(plain_match(pattern[1:], topic[start:]) for start in range(len(topic) + 1))
    return bool(topic) and pattern[0] in ("?", topic[0]) and plain_match(pattern[1:], topic[1:])


@settings(max_examples=400, deadline=None)
@given(st.text("ab.*?\\+", max_size=8), st.text("ab.\\+", max_size=8))
def test_glob__any_pattern_and_topic__matches_what_trying_everything_does(pattern: str, topic: str) -> None:
    made = glob(pattern)

    found = pattern == topic if made is None else made.fullmatch(topic) is not None
    assert found is plain_match(pattern, topic)


def test_glob__many_stars__takes_no_longer_for_a_near_miss() -> None:
    made = glob("*a" * 40 + "*b")
    assert made is not None
    started_at = time.perf_counter()
    assert made.fullmatch("a" * 4000) is None
    assert time.perf_counter() - started_at < 1.0


TOPICS = st.sampled_from(["a", "ab", "a.b", "a.b.c", "b.c", "c.b.a", "abc", "x"])
PATTERNS = st.sampled_from(
    ["a", "ab", "a.b", "a.*", "*.b", "*", "a*c", "?", "?.?", "a.b.c", "*b*", "a?*", "b.*", "*.c", "*?*"]
)
VALUES = st.sampled_from(["x", "y", 1, 2, True, None])


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    made: dict[RuleKey, Rule] = {}
    for _ in range(draw(st.integers(0, 12))):
        pattern, name = draw(PATTERNS), draw(st.sampled_from(["r", "s"]))
        urns = st.sampled_from([A, B, C, D])
        fields: dict[str, Any] = {"topic_pattern": pattern, "name": name, "priority": draw(st.integers(0, 2))}
        fields["schema_id"] = draw(st.sampled_from([None, None, "s1"]))
        fields["effective_from"] = draw(st.sampled_from([None, None, "1970-01-01T00:00:01.000Z"]))
        fields["effective_until"] = draw(st.sampled_from([None, None, "1970-01-01T00:00:02.000Z"]))
        if draw(st.booleans()):
            fields["resolution_type"] = "CONDITIONAL"
            fields["conditions"] = tuple(
                when(
                    draw(st.sampled_from(["$.t", "$.u", "headers.h"])),
                    draw(st.sampled_from(["EXISTS", "NOT_EXISTS"])),
                    None,
                    draw(urns),
                )
                if draw(st.booleans())
                else when("$.t", draw(st.sampled_from(["EQUALS", "NOT_EQUALS"])), draw(VALUES), draw(urns))
                for _ in range(draw(st.integers(1, 3)))
            )
            fields["default_dataset_urn"] = draw(st.sampled_from([None, A]))
        else:
            fields["resolution_type"] = "WILDCARD" if glob(pattern) else "EXACT"
            fields["dataset_urn"] = draw(urns)
        rule = Rule(**fields, etag=f"{len(made)}")
        made[rule.key] = rule
    return list(made.values())


def plain_condition(condition: Condition, payload: dict[str, Any] | None, headers: dict[str, str]) -> bool:
    missing = object()
    source: dict[str, Any] = headers if condition.field == "headers.h" else payload or {}
    found = source.get(condition.field.replace("$.", "").replace("headers.", ""), missing)
    equal = found is not missing and type(found) is type(condition.value) and found == condition.value
    return {
        "EXISTS": found is not missing,
        "NOT_EXISTS": found is missing,
        "EQUALS": equal,
        "NOT_EQUALS": not equal,
    }[condition.operator]


def plain_resolve(
    held: list[Rule], topic: str, payload: dict[str, Any] | None, headers: dict[str, str], schema: str | None, now: str
) -> tuple[str | None, RuleKey | None]:
    """Read the rules one by one in the documented order."""
    kinds = ["EXACT", "CONDITIONAL", "WILDCARD"]

    def order(rule: Rule) -> tuple[Any, ...]:
        literal = sum(character not in "*?" for character in rule.topic_pattern)
        return (
            rule.schema_id is None,
            kinds.index(rule.resolution_type),
            rule.priority,
            -literal,
            rule.name,
            rule.topic_pattern,
        )

    for rule in sorted(held, key=order):
        if not plain_match(rule.topic_pattern, topic) or rule.schema_id not in (None, schema):
            continue
        if (rule.effective_from or now) > now or now >= (rule.effective_until or "9"):
            continue
        for condition in rule.conditions:
            if plain_condition(condition, payload, headers):
                return condition.dataset_urn, rule.key
        urn = rule.dataset_urn or rule.default_dataset_urn
        if urn is not None:
            return urn, rule.key
    return None, None


@settings(max_examples=200, deadline=None)
@given(
    rules(),
    TOPICS,
    st.one_of(st.none(), st.dictionaries(st.sampled_from(["t", "u"]), VALUES)),
    st.dictionaries(st.just("h"), st.just("x")),
    st.sampled_from([None, "s1", "s2"]),
    st.sampled_from([500, 1000, 1500, 2000]),
)
def test_matcher__any_rules_and_message__says_what_plain_reading_does(
    held: list[Rule],
    topic: str,
    payload: dict[str, Any] | None,
    headers: dict[str, str],
    schema: str | None,
    now_ms: int,
) -> None:
    matcher = Matcher(held, version=1)
    answers = []
    for _ in range(2):  # the second time from memory
        found: tuple[str | None, RuleKey | None] = (None, None)
        for rule in matcher.about(topic):
            if rule.rule.schema_id in (None, schema) and rule.in_force(now_ms):
                urn = rule.dataset(payload, headers)
                if urn is not None:
                    found = (urn, rule.key)
                    break
        answers.append(found)

    now = f"1970-01-01T00:00:0{now_ms // 1000}.{now_ms % 1000:03d}Z"
    assert answers == [plain_resolve(held, topic, payload, headers, schema, now)] * 2
