"""Keys from entity patterns, and what a table says about itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidItemError
from headgate.store.model.schema import Entity, Index, Key, KeyAttribute, KeyKind, Table

RUN_LOG = Entity("run log", "PIPELINE#{pipeline_id}", "RUNLOG#{date}#{schedule_id}")
CONFIG = Entity("config", "PIPELINE#{id}", "CONFIG", {"GSI1PK": "PIPELINES", "GSI1SK": "{id}"})
VERSION = Entity("version", "{name}", "v{version:06d}")
TURN = Entity("turn", "{execution_id}", "{turn}")
SINGLE = Entity("evidence", "{evidence_id}")
TABLE = Table(
    "sample",
    "A table for these tests",
    KeyAttribute("PK"),
    KeyAttribute("SK"),
    (
        Index("by-owner", KeyAttribute("owner"), KeyAttribute("PK")),
        Index("due", KeyAttribute("due_pk"), KeyAttribute("due_at_ms", KeyKind.NUMBER)),
        Index("by-kind", KeyAttribute("kind"), projected=("name",)),
    ),
)
SINGLE_TABLE = Table("single", "A table without a sort key", KeyAttribute("id"))


def test_key__all_fields__fills_both_patterns() -> None:
    key = RUN_LOG.key(pipeline_id="orders", date="2040-01-01", schedule_id="daily")

    assert key == Key("PIPELINE#orders", "RUNLOG#2040-01-01#daily")


def test_key__entity_without_a_sort_pattern__has_no_sort() -> None:
    assert SINGLE.key(evidence_id="evd-1") == Key("evd-1", None)


def test_key__pattern_without_fields__is_taken_as_it_is() -> None:
    assert CONFIG.key(id="orders").sort == "CONFIG"


def test_key__hash_in_the_last_field__is_kept() -> None:
    key = RUN_LOG.key(pipeline_id="a#b", date="2040-01-01", schedule_id="every#hour")

    assert key == Key("PIPELINE#a#b", "RUNLOG#2040-01-01#every#hour")


def test_key__hash_in_a_field_before_another__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="date"):
        RUN_LOG.key(pipeline_id="orders", date="2040#01", schedule_id="daily")


def test_key__two_ways_to_split_a_hash__cannot_make_one_key() -> None:
    first = RUN_LOG.key(pipeline_id="p", date="a", schedule_id="b#c")

    with pytest.raises(InvalidItemError):
        RUN_LOG.key(pipeline_id="p", date="a#b", schedule_id="c")

    assert first.sort == "RUNLOG#a#b#c"


@pytest.mark.parametrize("missing", ["pipeline_id", "date", "schedule_id"])
def test_key__field_left_out__is_refused(missing: str) -> None:
    fields: dict[str, str | int] = {"pipeline_id": "p", "date": "d", "schedule_id": "s"}
    del fields[missing]

    with pytest.raises(InvalidItemError, match=missing):
        RUN_LOG.key(**fields)


def test_key__bare_field_left_out__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="evidence_id"):
        SINGLE.key()


def test_key__unknown_field__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="pipline_id"):
        RUN_LOG.key(pipline_id="p", date="d", schedule_id="s")


@pytest.mark.parametrize("entity", [RUN_LOG, SINGLE, VERSION])
def test_key__empty_field__is_refused(entity: Entity) -> None:
    fields: dict[str, str | int] = {name: "" if name != "version" else 1 for name in entity.fields()}

    with pytest.raises(InvalidItemError):
        entity.key(**fields)


def test_key__bare_number__stays_a_number() -> None:
    assert TURN.key(execution_id="exe_1", turn=12) == Key("exe_1", 12)


def test_key__number_in_a_longer_pattern__becomes_text() -> None:
    assert RUN_LOG.key(pipeline_id=7, date="d", schedule_id=8) == Key("PIPELINE#7", "RUNLOG#d#8")


def test_key__padded_number__has_leading_zeros() -> None:
    assert VERSION.key(name="n", version=12).sort == "v000012"


@given(st.integers(min_value=0, max_value=999_999), st.integers(min_value=0, max_value=999_999))
def test_key__padded_numbers__sort_as_text_like_numbers(low: int, high: int) -> None:
    first, second = VERSION.key(name="n", version=low).sort, VERSION.key(name="n", version=high).sort

    assert isinstance(first, str)
    assert isinstance(second, str)
    assert (first < second) is (low < high)


@pytest.mark.parametrize("version", [-1, 1_000_000])
def test_key__padded_number_that_would_break_the_order__is_refused(version: int) -> None:
    with pytest.raises(InvalidItemError):
        VERSION.key(name="n", version=version)


@pytest.mark.parametrize("version", ["12", "", "x"])
def test_key__text_for_a_padded_number__is_refused(version: str) -> None:
    with pytest.raises(InvalidItemError):
        VERSION.key(name="n", version=version)


def test_index_attributes__fields__place_the_item_in_its_index() -> None:
    assert CONFIG.index_attributes(id="orders") == {"GSI1PK": "PIPELINES", "GSI1SK": "orders"}


def test_index_attributes__entity_in_no_index__are_none() -> None:
    assert SINGLE.index_attributes() == {}


def test_index_attributes__unknown_field__is_refused() -> None:
    with pytest.raises(InvalidItemError):
        CONFIG.index_attributes(identifier="orders")


def test_index_attributes__field_left_out__is_refused() -> None:
    with pytest.raises(InvalidItemError):
        CONFIG.index_attributes()


def test_fields__of_an_entity__are_those_of_all_its_patterns() -> None:
    entity = Entity("e", "A#{a}", "{b:03d}", {"X": "{c}#{a}"})

    assert entity.fields() == {"a", "b", "c"}


def test_key_names__with_and_without_a_sort_key__are_in_order() -> None:
    assert TABLE.key_names == ("PK", "SK")
    assert SINGLE_TABLE.key_names == ("id",)


def test_index_attributes__of_a_table__leave_out_its_own_keys() -> None:
    assert TABLE.index_attributes == {
        "owner": KeyKind.STRING,
        "due_pk": KeyKind.STRING,
        "due_at_ms": KeyKind.NUMBER,
        "kind": KeyKind.STRING,
    }


def test_projection__of_an_index__has_all_keys_beside_what_is_named() -> None:
    assert TABLE.projection("by-kind") == frozenset({"PK", "SK", "kind", "name"})
    assert TABLE.projection("by-owner") is None
    assert TABLE.projection(None) is None


def test_index__by_name__is_found() -> None:
    assert TABLE.index("due").sort == KeyAttribute("due_at_ms", KeyKind.NUMBER)


def test_index__unknown_name__is_refused_and_names_the_known_ones() -> None:
    with pytest.raises(InvalidItemError, match="by-owner"):
        TABLE.index("by-nobody")


def test_key_of__an_item__is_its_key() -> None:
    assert TABLE.key_of({"PK": "a", "SK": "b", "x": 1}) == Key("a", "b")
    assert SINGLE_TABLE.key_of({"id": "a"}) == Key("a", None)


def test_key_attributes__of_a_key__give_the_key_back() -> None:
    assert TABLE.key_attributes(Key("a", "b")) == {"PK": "a", "SK": "b"}
    assert SINGLE_TABLE.key_attributes(Key("a")) == {"id": "a"}


def test_table__as_a_dictionary_key__is_found_again() -> None:
    twin = Table("sample", "A table for these tests", KeyAttribute("PK"), KeyAttribute("SK"), TABLE.indexes)

    assert {TABLE: 1}[twin] == 1
