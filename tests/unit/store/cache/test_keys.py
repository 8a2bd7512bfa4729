"""Keys have the documented form, never collide, and belong to exactly one group."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.errors import InvalidItemError
from headgate.store.cache.keys import (
    CacheKind,
    Group,
    Key,
    all_resolution_rules,
    dataset_config,
    dataset_configs_of,
    group_of,
    is_group,
    kind_of,
    resolution_rules,
    signal_state,
    signal_states_of,
)

# Mostly the characters that could be mistaken for structure, so that collisions would be found.
FIELDS = st.text(alphabet=":%253A.*a", min_size=1, max_size=8) | st.text(
    alphabet=st.characters(codec="utf-8"), min_size=1
)


def _fields(key: Key) -> tuple[str, str]:
    """Read a key back the way its module promises it can be: at its last colon."""
    head, _, last = key.rpartition(":")
    return head, last.replace("%3A", ":").replace("%25", "%")


def test_keys__examples_of_the_design__have_its_form() -> None:
    assert signal_state("urn:dp:orders:created:v1", "FRESHNESS") == "ss:urn:dp:orders:created:v1:FRESHNESS"
    assert dataset_config("urn:dp:orders:created:v1", 12) == "dc:urn:dp:orders:created:v1:12"
    assert dataset_config("urn:dp:orders:created:v1") == "dc:urn:dp:orders:created:v1:LATEST"
    assert resolution_rules("raw.orders.*") == "rr:raw.orders.*"


def test_keys__separators_in_the_last_field__are_escaped() -> None:
    assert signal_state("urn:dp:a", "X:Y%") == "ss:urn:dp:a:X%3AY%25"
    assert resolution_rules("raw:orders") == "rr:raw%3Aorders"


@given(FIELDS, FIELDS)
@example("urn:dp:a", "b:F")
@example("urn:dp:a:b", "F")
@example("a:", "%3A")
def test_signal_state__any_fields__can_be_read_back(urn: str, signal_type: str) -> None:
    assert _fields(signal_state(urn, signal_type)) == (f"ss:{urn}", signal_type)


@given(st.tuples(FIELDS, FIELDS), st.tuples(FIELDS, FIELDS))
def test_signal_state__distinct_fields__never_collide(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (signal_state(*one) == signal_state(*other)) == (one == other)


@given(st.tuples(FIELDS, st.none() | st.integers(0)), st.tuples(FIELDS, st.none() | st.integers(0)))
def test_dataset_config__distinct_fields__never_collide(
    one: tuple[str, int | None], other: tuple[str, int | None]
) -> None:
    assert (dataset_config(*one) == dataset_config(*other)) == (one == other)


@given(FIELDS, FIELDS)
def test_resolution_rules__distinct_patterns__never_collide(one: str, other: str) -> None:
    assert (resolution_rules(one) == resolution_rules(other)) == (one == other)


@given(FIELDS, FIELDS, FIELDS)
@example("urn:dp:a", "urn:dp:a:b", "FRESHNESS")
@example("urn:dp:a", "urn:dp:a:", "FRESHNESS")
def test_group_of__keys_of_two_datasets__share_a_group_only_if_they_are_one(one: str, other: str, field: str) -> None:
    assert (group_of(signal_state(other, field)) == signal_states_of(one)) == (one == other)
    assert (group_of(dataset_config(other)) == dataset_configs_of(one)) == (one == other)


@given(FIELDS, FIELDS)
def test_group_of__keys_of_one_dataset_in_two_kinds__differ(urn: str, field: str) -> None:
    assert group_of(signal_state(urn, field)) != group_of(dataset_config(urn))
    assert group_of(resolution_rules(field)) == all_resolution_rules()


@given(FIELDS, FIELDS)
def test_is_group__keys_and_groups__are_never_mistaken(urn: str, field: str) -> None:
    assert not is_group(signal_state(urn, field))
    assert not is_group(resolution_rules(field))
    assert is_group(signal_states_of(urn))
    assert is_group(dataset_configs_of(urn))
    assert is_group(all_resolution_rules())


@given(FIELDS, FIELDS)
def test_kind_of__any_key_or_group__is_the_kind_it_was_built_for(urn: str, field: str) -> None:
    assert kind_of(signal_state(urn, field)) is kind_of(signal_states_of(urn)) is CacheKind.SIGNAL_STATE
    assert kind_of(dataset_config(urn, 3)) is kind_of(dataset_configs_of(urn)) is CacheKind.DATASET_CONFIG
    assert kind_of(resolution_rules(field)) is kind_of(all_resolution_rules()) is CacheKind.RESOLUTION_RULE


@pytest.mark.parametrize("text", ["", "xx:urn:dp:a:F", "ss", "urn:dp:a"])
def test_kind_of__text_that_is_no_key__is_refused(text: str) -> None:
    with pytest.raises(InvalidItemError, match="starts with none of"):
        kind_of(Group(text))


@pytest.mark.parametrize(("urn", "signal_type"), [("", "FRESHNESS"), ("urn:dp:a", "")])
def test_keys__empty_field__is_refused(urn: str, signal_type: str) -> None:
    with pytest.raises(InvalidItemError, match="empty"):
        signal_state(urn, signal_type)


def test_keys__half_a_surrogate_pair__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="not Unicode text"):
        signal_state("urn:dp:\ud800", "F")
