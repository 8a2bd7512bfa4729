"""Sources of dataset fields: what a person set wins over every tool."""

from __future__ import annotations

from typing import Final

from msgspec.structs import asdict

from headgate.health.model.datasets import Dataset, DatasetSpec, Metadata
from headgate.health.registry.field_sources import completed, described, kept_sources

DBT: Final = Metadata(source="dbt", description="Orders", owner_team="orders", tags={"finance": ""})


def test_described__empty_fields__are_filled_and_marked() -> None:
    spec, sources = described(DatasetSpec(), {}, DBT)

    assert (spec.description, spec.owner_team, spec.tags) == ("Orders", "orders", {"finance": ""})
    assert sources == {"description": "dbt", "owner_team": "dbt", "tags.finance": "dbt"}


def test_described__what_a_person_set__stays() -> None:
    spec, sources = described(DatasetSpec(description="Mine", tags={"finance": "yes"}), {}, DBT)

    assert (spec.description, spec.tags, spec.owner_team) == ("Mine", {"finance": "yes"}, "orders")
    assert sources == {"owner_team": "dbt"}


def test_described__a_value_of_another_tool__stays_and_its_own_changes() -> None:
    known = {"description": "openlineage", "owner_team": "dbt", "tags.old": "dbt"}
    before = DatasetSpec(description="Theirs", owner_team="sales", tags={"old": "", "mine": "1"})
    spec, sources = described(before, known, DBT)

    assert (spec.description, spec.owner_team, spec.tags) == ("Theirs", "orders", {"mine": "1", "finance": ""})
    assert sources == {"description": "openlineage", "owner_team": "dbt", "tags.finance": "dbt"}


def test_kept_sources__a_field_that_a_person_changed__is_theirs() -> None:
    before = dataset(DatasetSpec(description="Orders", owner_team="orders"), description="dbt", owner_team="dbt")

    assert kept_sources(before, DatasetSpec(description="Mine", owner_team="orders")) == {"owner_team": "dbt"}


def test_completed__a_discovered_dataset_that_is_registered__keeps_what_tools_know() -> None:
    found = dataset(DatasetSpec(description="Orders", owner_team="orders"), description="dbt", owner_team="dbt")
    spec, sources = completed(DatasetSpec(owner_team="sales"), found)

    assert (spec.description, spec.owner_team, sources) == ("Orders", "sales", {"description": "dbt"})


def dataset(spec: DatasetSpec, **sources: str) -> Dataset:
    return Dataset(**asdict(spec), dataset_urn="urn:dp:shop:orders", config_version=1, field_sources=sources)
