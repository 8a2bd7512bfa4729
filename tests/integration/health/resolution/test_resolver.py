"""Resolution: rules in their order, conditions that mean one thing, and a matcher that agrees with plain reading."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.errors import (
    AlreadyExistsError,
    CursorError,
    DatasetNotFoundError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    StoreBusyError,
    UserError,
    VersionConflictError,
)
from headgate.health.model.urns import dataset_urn
from headgate.health.resolution.matcher import Matcher
from headgate.health.resolution.resolver import (
    OVERRIDE_HEADER,
    UNCHECKED,
    UNMAPPED_TOPIC,
    Operator,
    Outcome,
    Resolver,
    Rule,
    RuleKey,
    RuleSpec,
    read_rule,
    unknown_urn,
)
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import DATASET_RESOLUTION
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from tests.integration.health.registry_world import SPEC, Rig, once
from tests.unit.health.resolution_world import A, B, C, D, when


class World(Rig):
    """A registry with four datasets, and resolvers on the same store."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for urn in (A, B, C, D):
            self.registry.create(urn, SPEC, actor="jane")
        self.resolver = self.resolving(self.cache)

    def resolving(self, cache: Cache | None = None) -> Resolver:
        registry = self.process()
        return Resolver(
            self.store,
            self.clock,
            self.ids,
            cache or self.new_cache(),
            registry._audit,
            registry.get,
        )

    def add(self, pattern: str, urn: str | None = A, **fields: Any) -> Rule:
        kind = "CONDITIONAL" if "conditions" in fields else "WILDCARD" if re.search(r"[*?]", pattern) else "EXACT"
        urn = None if kind == "CONDITIONAL" else urn
        spec = RuleSpec(topic_pattern=pattern, **{"resolution_type": kind, "dataset_urn": urn, **fields})
        return self.resolver.add(spec, actor="jane")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as world:
        yield world


# Order.


def test_resolve__nothing_known__is_unmapped_and_says_so(world: World) -> None:
    found = world.resolver.resolve("raw.orders.events")

    assert (found.dataset_urn, found.rule, found.is_mapped) == ("urn:dp:unknown:raw.orders.events", None, False)
    assert found.warning == UNMAPPED_TOPIC


def test_resolve__exact_conditional_and_wildcard__are_asked_in_this_order(world: World) -> None:
    world.add("raw.orders.*", D, priority=0)
    assert world.resolver.resolve("raw.orders.events").dataset_urn == D
    world.add("raw.orders.*", conditions=(when("$.type", "EQUALS", "x"),), name="by-type", priority=50)
    assert world.resolver.resolve("raw.orders.events", {"type": "x"}).dataset_urn == B
    assert world.resolver.resolve("raw.orders.events", {"type": "y"}).dataset_urn == D, "no default: it goes on"
    world.add("raw.orders.events", A, priority=900)
    found = world.resolver.resolve("raw.orders.events", {"type": "x"})
    assert (found.dataset_urn, found.rule) == (A, RuleKey("raw.orders.events", "default"))
    assert world.resolver.resolve("raw.orders.others", {"type": "x"}).dataset_urn == B


def test_resolve__rules_of_one_type__by_priority_then_specificity_then_name(world: World) -> None:
    world.add("raw.*", A, priority=20)
    world.add("raw.orders.*", B, priority=30)
    assert world.resolver.resolve("raw.orders.x").dataset_urn == A, "the lower priority wins"
    world.add("raw.orders*", C, priority=20)
    assert world.resolver.resolve("raw.orders.x").dataset_urn == C, "then what pins down more"
    world.add("raw.orders?*", D, priority=20, name="a")
    assert world.resolver.resolve("raw.orders.x").dataset_urn == D, "then the name"


def test_resolve__by_schema__goes_before_what_is_for_any(world: World) -> None:
    world.add("t", A)
    world.add("t*", B, schema_id="s1")

    assert world.resolver.resolve("t", schema_id="s1").dataset_urn == B
    assert world.resolver.resolve("t", schema_id="s2").dataset_urn == A
    assert world.resolver.resolve("t").dataset_urn == A


@pytest.mark.parametrize("value", [C, C.encode(), f" {C} "])
def test_resolve__a_header_that_names_the_dataset__goes_before_everything(world: World, value: str | bytes) -> None:
    world.add("t", A)

    found = world.resolver.resolve("t", headers={"X-Dataset-URN": value})

    assert (found.dataset_urn, found.rule, found.is_mapped) == (C, None, True)
    assert world.resolver.resolve("t", headers={OVERRIDE_HEADER: "not a urn"}).dataset_urn == A


def test_resolve__default_of_a_conditional_rule__if_no_condition_holds(world: World) -> None:
    conditions = (when("$.t", "EQUALS", "b", B), when("$.t", "PREFIX", "b", C))
    world.add("t", conditions=conditions, default_dataset_urn=D)

    resolve = world.resolver.resolve
    assert resolve("t", {"t": "b"}).dataset_urn == B, "the first that holds"
    assert resolve("t", {"t": "bb"}).dataset_urn == C
    assert resolve("t", {"t": "x"}).dataset_urn == D
    assert resolve("t").dataset_urn == D


def test_resolve__before_and_after_its_time__a_rule_is_not_asked(world: World) -> None:
    world.add("t", A, effective_from="2025-06-15T16:00:00Z", effective_until="2025-06-15T17:00:00+00:00")

    assert not world.resolver.resolve("t").is_mapped
    world.clock.step(3600)
    assert world.resolver.resolve("t").is_mapped
    world.clock.step(3600)
    assert not world.resolver.resolve("t").is_mapped


def test_matcher__five_thousand_rules__resolves_within_fifty_microseconds(world: World) -> None:
    held = [
        Rule(
            topic_pattern=f"raw.{number}.{'*' if number % 2 else 'events'}",
            resolution_type="WILDCARD" if number % 2 else "EXACT",
            dataset_urn=A,
            etag=str(number),
        )
        for number in range(4000)
    ]
    held += [
        Rule(
            topic_pattern=f"*.suffix{number}",
            resolution_type="CONDITIONAL",
            conditions=(when("$.t", "EQUALS", "x", B),),
            etag=str(number),
        )
        for number in range(1000)
    ]
    world.resolver._book._matcher = Matcher(held, version=10**6)
    topics = [f"raw.{number}.events" for number in range(0, 4000, 4)] + [f"a.suffix{number}" for number in range(1000)]
    resolve = world.resolver.resolve

    def pass_over() -> float:
        started_at = time.perf_counter()
        for topic in topics:
            assert resolve(topic, {"t": "x"}).is_mapped
        return (time.perf_counter() - started_at) / len(topics)

    first, typical = pass_over(), min(pass_over() for _ in range(5))
    assert first < 500e-6, "a topic that was never seen"
    assert typical < 50e-6


# Editing.


def test_add__a_rule__row_has_the_documented_keys_and_attributes(world: World) -> None:
    world.add("raw.orders.events", A)

    row = world.sqlite.get(DATASET_RESOLUTION, Key("TOPIC#raw.orders.events", "RULE#default"))
    assert row is not None
    assert row["topic_pattern"] == "raw.orders.events"
    assert (row["resolution_type"], row["dataset_urn"], row["priority"]) == ("EXACT", A, 100)
    assert row["conditions"] is None
    assert row["created_at"] == row["updated_at"]


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"topic_pattern": ""}, InvalidPayloadError, "topic_pattern: use 1 to 512"),
        ({"topic_pattern": "a b"}, InvalidPayloadError, "topic_pattern"),
        ({"name": "a#b"}, InvalidPayloadError, "name: use"),
        ({"resolution_type": "FUZZY"}, InvalidPayloadError, "resolution_type 'FUZZY': not one of EXACT"),
        ({"priority": -1}, InvalidPayloadError, "priority is -1"),
        ({"priority": 1.5}, InvalidPayloadError, "priority is 1.5"),
        ({"dataset_urn": None}, InvalidPayloadError, "dataset_urn is missing"),
        ({"dataset_urn": "orders"}, InvalidIdError, "dataset_urn: dataset 'orders'"),
        ({"dataset_urn": "urn:dp:not:there"}, DatasetNotFoundError, "dataset_urn: dataset urn:dp:not:there"),
        ({"topic_pattern": "a.*"}, InvalidPayloadError, "make it a WILDCARD one"),
        ({"resolution_type": "WILDCARD"}, InvalidPayloadError, "make it an EXACT one"),
        ({"conditions": (when("$.a", "EXISTS"),)}, InvalidPayloadError, "are for CONDITIONAL rules"),
        ({"default_dataset_urn": A}, InvalidPayloadError, "are for CONDITIONAL rules"),
        ({"resolution_type": "CONDITIONAL"}, InvalidPayloadError, "conditions: a CONDITIONAL rule has 1 to 40, not 0"),
        (
            {"resolution_type": "CONDITIONAL", "conditions": (when("$.a", "EXISTS"),)},
            InvalidPayloadError,
            "dataset_urn: a CONDITIONAL rule names a dataset in each condition",
        ),
        (
            {"resolution_type": "CONDITIONAL", "dataset_urn": None, "conditions": (when("$.a", "LIKE"),)},
            InvalidPayloadError,
            r"conditions\[0\]\.operator 'LIKE'",
        ),
        (
            {
                "resolution_type": "CONDITIONAL",
                "dataset_urn": None,
                "conditions": (when("$.a", "EXISTS"), when("$.b", "EXISTS", None, "urn:dp:not:there")),
            },
            DatasetNotFoundError,
            r"conditions\[1\]\.dataset_urn: dataset urn:dp:not:there",
        ),
        (
            {
                "resolution_type": "CONDITIONAL",
                "dataset_urn": None,
                "conditions": (when("$.a", "EQUALS", float("nan")),),
            },
            InvalidPayloadError,
            r"conditions\[0\]\.value",
        ),
        ({"effective_from": "yesterday"}, InvalidPayloadError, "effective_from 'yesterday': not a timestamp"),
        (
            {"effective_from": "2026-01-02T00:00:00Z", "effective_until": "2026-01-01T00:00:00Z"},
            InvalidPayloadError,
            "is not after effective_from",
        ),
        ({"description": "x" * 2000}, InvalidPayloadError, "description has 2000"),
    ],
)
def test_add__a_bad_rule__is_refused_naming_the_field(
    world: World, fields: dict[str, Any], error: type[UserError], said: str
) -> None:
    spec = RuleSpec(**{"topic_pattern": "t", "dataset_urn": A, **fields})

    with pytest.raises(error, match=said):
        world.resolver.add(spec, actor="jane")

    assert world.resolver.ls().rules == []


def test_read_rule__as_someone_sends_it__is_understood_or_the_field_named() -> None:
    rule = read_rule(
        {
            "topic_pattern": "raw.orders.*",
            "name": "by-event-type",
            "resolution_type": "conditional",
            "conditions": [{"field": "$.t", "operator": "equals", "value": "x", "dataset_urn": A}],
            "dataset_urn": None,
        }
    )
    assert rule.conditions[0].operator == Operator.EQUALS
    with pytest.raises(InvalidPayloadError, match="no field 'topic'"):
        read_rule({"topic": "t"})
    with pytest.raises(InvalidPayloadError, match=r"missing required field `dataset_urn` - at `\$.conditions\[0\]`"):
        read_rule({"topic_pattern": "t", "conditions": [{"field": "$.t", "operator": "EXISTS"}]})


def test_edit__versions__conflict_repeat_and_removal(world: World) -> None:
    first = world.add("t", A)
    with pytest.raises(AlreadyExistsError, match="already exists, at version 1"):
        world.add("t", B)
    spec = RuleSpec(topic_pattern="t", dataset_urn=B)
    second = world.resolver.update(spec, expected_version=1, actor="joe")
    assert (second.version, second.created_at, second.updated_by) == (2, first.created_at, "joe")
    assert world.resolver.update(spec, expected_version=1, actor="joe") == second, "the same again"
    with pytest.raises(VersionConflictError, match="at version 2, not 1"):
        world.resolver.update(replace(spec, dataset_urn=C), expected_version=1, actor="joe")
    with pytest.raises(VersionConflictError):
        world.resolver.remove("t", "default", actor="joe", expected_version=1)
    assert world.resolver.resolve("t").dataset_urn == B
    world.resolver.remove("t", "default", actor="joe", expected_version=2)
    assert not world.resolver.resolve("t").is_mapped
    for call in (
        lambda: world.resolver.remove("t", "default", actor="joe"),
        lambda: world.resolver.update(spec, expected_version=UNCHECKED, actor="joe"),
        lambda: world.resolver.get("t", "default"),
    ):
        with pytest.raises(NotFoundError, match="rule default of t: not found"):
            call()
    entries = world.audit.ls("rule default of t").entries
    assert [(each.action, each.before_version, each.after_version) for each in reversed(entries)] == [
        ("rule.add", None, 1),
        ("rule.update", 1, 2),
        ("rule.remove", 2, None),
    ]


def test_edit__the_answer_got_lost__is_found_to_be_done(world: World) -> None:
    def lose() -> None:
        raise OutcomeUnknownError("the connection broke")

    world.store.after_write = once(lose)
    added = world.add("t", A)
    assert added.version == 1
    assert world.resolver.resolve("t").is_mapped
    world.store.after_write = once(lose)
    world.resolver.remove("t", "default", actor="jane")
    assert not world.resolver.resolve("t").is_mapped


def test_edit__disabled__is_kept_and_not_asked(world: World) -> None:
    rule = world.add("t", A, enabled=False)
    assert not world.resolver.resolve("t").is_mapped
    world.resolver.update(replace(_spec(rule), enabled=True), expected_version=1, actor="jane")
    assert world.resolver.resolve("t").is_mapped
    world.resolver.update(replace(_spec(rule), enabled=False), expected_version=2, actor="jane")
    assert not world.resolver.resolve("t").is_mapped
    assert [each.enabled for each in world.resolver.ls(enabled=False).rules] == [False]


def _spec(rule: Rule) -> RuleSpec:
    return RuleSpec(**{name: getattr(rule, name) for name in RuleSpec.__struct_fields__})


def test_of_dataset__any_rule_that_names_it__also_in_a_condition_or_as_default(world: World) -> None:
    world.add("a", A)
    world.add("b.*", A, enabled=False)
    conditions = (when("$.t", "EQUALS", 1, B), when("$.t", "EQUALS", 2, A), when("$.t", "EQUALS", 3, A))
    world.add("c", conditions=conditions, default_dataset_urn=C)
    resolver = world.resolver

    assert [rule.topic_pattern for rule in resolver.of_dataset(A)] == ["a", "b.*", "c"]
    assert [rule.topic_pattern for rule in resolver.of_dataset(C)] == ["c"]
    fewer = replace(_spec(resolver.get("c", "default")), conditions=conditions[:1], default_dataset_urn=None)
    resolver.update(fewer, expected_version=1, actor="jane")
    assert [rule.topic_pattern for rule in resolver.of_dataset(A)] == ["a", "b.*"]
    assert resolver.of_dataset(C) == []
    assert [rule.topic_pattern for rule in resolver.of_dataset(B)] == ["c"]
    resolver.remove("c", "default", actor="jane")
    assert resolver.of_dataset(B) == []
    assert world.sqlite.query(Query(table=DATASET_RESOLUTION, partition="TOPIC#c")).items == [], "nothing is left"
    assert [rule.name for rule in resolver.ls(topic_pattern="a").rules] == ["default"]


def test_ls__in_pages__every_rule_once_the_enabled_first(world: World) -> None:
    for number in range(7):
        world.add(f"t{number}", A, enabled=number % 2 == 0)

    for limit in (1, 2, 3, 4, 100):
        seen, cursor = [], None
        while True:
            page = world.resolver.ls(limit=limit, cursor=cursor)
            assert len(page.rules) <= limit
            seen += [rule.topic_pattern for rule in page.rules]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == ["t0", "t2", "t4", "t6", "t1", "t3", "t5"]
    with pytest.raises(CursorError):
        world.resolver.ls(enabled=True, cursor="DISABLED:x")


# Many processes.


def test_resolve__changed_by_another_process__is_seen_when_the_cache_allows(world: World) -> None:
    other = world.resolving()
    assert not other.resolve("t").is_mapped
    before = other.snapshot()
    world.add("t", A)
    assert not other.resolve("t").is_mapped

    world.clock.advance(61)

    assert other.resolve("t").dataset_urn == A
    assert other.snapshot() == world.resolver.snapshot() != before


def test_resolve__store_is_down__goes_on_with_the_rules_it_has(world: World) -> None:
    world.add("t", A)
    assert world.resolver.resolve("t").dataset_urn == A
    fresh = world.resolving()
    world.store.is_down = True

    for _ in range(3):
        world.clock.advance(90_000)
        assert world.resolver.resolve("t").dataset_urn == A
    assert world.resolver.stale_used >= 1
    with pytest.raises(StoreBusyError):
        fresh.resolve("t")
    world.store.is_down = False
    assert fresh.resolve("t").dataset_urn == A


def test_add__many_at_once__all_are_kept_and_add_up(world: World) -> None:
    def add(number: int) -> None:
        spec = RuleSpec(topic_pattern=f"t{number}", dataset_urn=A)
        resolver = resolvers[number % 4]
        resolver.add(spec, actor="jane")
        assert resolver.resolve(f"t{number}").is_mapped, "one's own change is seen at once"

    resolvers = [world.resolving() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(24)))

    fresh = world.resolving()
    assert all(fresh.resolve(f"t{number}").is_mapped for number in range(24))
    row = world.sqlite.get(DATASET_RESOLUTION, Key("RULES", "META"))
    assert row is not None
    assert fresh.snapshot() == f"24-{row['marks']}"


def test_resolve__another_thread_reads_the_rules_anew__who_changed_one_waits_and_others_do_not(world: World) -> None:
    world.add("t", A)
    assert world.resolver.resolve("t").is_mapped
    book = world.resolver._book
    slow = world.resolving()
    slow.add(RuleSpec(topic_pattern="u", dataset_urn=A), actor="jane")
    world.clock.advance(61)

    with ThreadPoolExecutor(1) as pool:
        with book._lock:
            assert not world.resolver.resolve("u").is_mapped, "the rules it has, at once"
            book._own_version = 2
            waiting = pool.submit(world.resolver.resolve, "u")
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
        assert waiting.result(10).is_mapped


def test_resolve__a_row_that_was_spoilt_by_hand__is_left_out_and_named(world: World) -> None:
    world.add("t", A)
    world.add("u", A)
    for pattern, spoilt in (("t", {"priority": "high"}), ("u", {"resolution_type": "FUZZY"})):
        row = world.sqlite.get(DATASET_RESOLUTION, Key(f"TOPIC#{pattern}", "RULE#default"))
        assert row is not None
        world.sqlite.transact([Put(DATASET_RESOLUTION, {**row, **spoilt})])
    world.add("v", A)
    resolver = world.resolving()

    assert resolver.resolve("v").is_mapped
    assert not resolver.resolve("t").is_mapped
    assert not resolver.resolve("u").is_mapped
    assert len(resolver.broken()) == 2


# Explaining.


def test_explain__every_rule_of_the_topic__in_order_with_why(world: World) -> None:
    world.add("raw.x", A, schema_id="s9")
    world.add("raw.x", A, effective_from="2040-01-01T00:00:00Z", name="later")
    world.add("raw.*", conditions=(when("$.t", "EQUALS", "q"),), name="cond")
    world.add("raw.*", conditions=(when("$.t", "EQUALS", "x", C),), name="cond2")
    world.add("*", D)
    world.add("other", D)

    report = world.resolver.explain("raw.x", {"t": "x"})

    assert report.resolution == world.resolver.resolve("raw.x", {"t": "x"})
    assert report.resolution.dataset_urn == C
    assert [(step.rule and step.rule.name, step.outcome, step.why) for step in report.steps] == [
        (None, Outcome.NOT_MATCHED, "header x-dataset-urn is missing"),
        ("default", Outcome.NOT_MATCHED, "it is for schema s9, not None"),
        ("later", Outcome.NOT_MATCHED, "valid only from 2040-01-01T00:00:00.000Z until ever"),
        ("cond", Outcome.NOT_MATCHED, "no condition matches, and it has no default"),
        ("cond2", Outcome.MATCHED, f"$.t EQUALS 'x': {C}"),
        ("default", Outcome.NOT_REACHED, "an earlier one matched"),
    ]
    assert report.others == 1
    by_header = world.resolver.explain("raw.x", headers={"x-dataset-urn": B})
    assert [step.outcome for step in by_header.steps] == [Outcome.MATCHED] + [Outcome.NOT_REACHED] * 5


# Unknown topics.


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=700), min_size=2, max_size=2, unique=True))
def test_unknown_urn__any_topics__are_legal_and_different(topics: list[str]) -> None:
    first, second = (unknown_urn(topic) for topic in topics)

    assert dataset_urn(first) != dataset_urn(second)


def test_unknown_urn__a_topic_that_looks_like_a_version__is_not_taken_for_one() -> None:
    assert unknown_urn("raw.orders") == "urn:dp:unknown:raw.orders"
    assert not unknown_urn("v1").endswith(":v1")


@pytest.mark.parametrize("topic", ["", "x" * 5000])
def test_resolve__what_is_no_topic__is_refused(world: World, topic: str) -> None:
    with pytest.raises(InvalidPayloadError, match="topic"):
        world.resolver.resolve(topic)
