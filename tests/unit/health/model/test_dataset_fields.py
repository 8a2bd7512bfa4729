"""Fields of datasets: what is kept of each observation, and what counts as a change."""

from __future__ import annotations

from typing import Final

from headgate.health.model.dataset_fields import (
    FIELDS_MAX,
    ORIGINS_MAX,
    SOURCES_MAX,
    DatasetField,
    DatasetFields,
    Observation,
    Origin,
    Retyped,
    folded,
)

URN: Final = "urn:dp:shop:orders"


def seen(minute: int, source: str = "job", *, is_whole: bool = True, **types: str) -> Observation:
    return Observation(
        source=source,
        at=f"2026-01-15T10:{minute:02d}:00.000Z",
        fields=tuple(DatasetField(name=name, type=kind, source=source) for name, kind in types.items()),
        is_whole=is_whole,
    )


def after(*observations: Observation) -> DatasetFields:
    known = DatasetFields(dataset_urn=URN)
    for each in observations:
        known = folded(known, each)
    return known


def test_folded__the_first_observation__is_no_change() -> None:
    found = after(seen(1, a="INT", b="TEXT"))

    assert [(each.name, each.type) for each in found.fields] == [("a", "INT"), ("b", "TEXT")]
    assert found.changes == ()


def test_folded__added_removed_and_retyped_fields__are_named() -> None:
    found = after(seen(1, a="INT", b="TEXT"), seen(2, a="BIGINT", c="DATE"))
    (change,) = found.changes

    assert (change.added, change.removed, change.retyped) == (("c",), ("b",), (Retyped("a", "INT", "BIGINT"),))
    assert change.signatures == ("FIELD_REMOVED:b", "FIELD_RETYPED:a")
    assert change.sentence == "removed b; retyped a INT -> BIGINT; added c"
    assert found.is_drifting


def test_folded__the_same_fields_again__end_the_drift_and_then_change_nothing() -> None:
    drifted = after(seen(1, a="INT", b="TEXT"), seen(2, a="INT"))
    ended = folded(drifted, seen(3, a="INT"))

    assert (drifted.is_drifting, ended.is_drifting) == (True, False)
    assert folded(ended, seen(4, a="INT")) is ended


def test_folded__types_that_another_tool_spells_otherwise__are_no_change() -> None:
    found = after(seen(1, "dbt", a="INTEGER"), seen(2, "spark", a="int32"), seen(3, "dbt", a="integer"))

    assert found.changes == ()


def test_folded__an_older_observation__changes_nothing() -> None:
    known = after(seen(2, a="INT"))

    assert folded(known, seen(1, b="INT")) is known


def test_folded__documented_columns__add_descriptions_and_remove_nothing() -> None:
    documented = Observation(
        source="dbt", at="2026-01-15T10:09:00.000Z", fields=(DatasetField(name="a", description="The key."),)
    )
    found = after(seen(1, a="INT", b="TEXT"), documented)

    assert [(each.name, each.type, each.description) for each in found.fields] == [
        ("a", "INT", "The key."), ("b", "TEXT", ""),
    ]  # fmt: skip
    assert [each.description for each in folded(found, seen(10, a="INT", b="TEXT")).fields] == ["The key.", ""]


def test_folded__more_than_a_row_holds__is_bounded() -> None:
    origins = tuple(Origin("urn:dp:shop:raw", f"c{number}") for number in range(20))
    fields = tuple(DatasetField(name=f"f{number}", type="INT", origins=origins) for number in range(FIELDS_MAX + 5))
    whole = after(Observation(source="s", at="2026-01-15T10:00:00.000Z", fields=fields, is_whole=True))
    many = after(*(seen(number, f"job-{number}", a="INT") for number in range(12)))

    assert len(whole.fields) == FIELDS_MAX
    assert sum(len(each.origins) for each in whole.fields) == ORIGINS_MAX
    assert len(many.observed) == SOURCES_MAX
