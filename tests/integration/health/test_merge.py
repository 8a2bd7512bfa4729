"""Two datasets that are one table: what is proposed, what a merge joins, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ApprovalRequiredError, DatasetNotFoundError, IllegalTransitionError, InvalidPayloadError
from headgate.health.lineage.specs import LineageSpec
from headgate.health.merge import Merged, proposals
from headgate.health.model.datasets import Dataset, DatasetSpec, DatasetStatus, Source
from headgate.health.model.enums import JOB_RUN, SignalState, Tier
from headgate.health.model.incidents import Changes
from headgate.health.results.model import ResultKind
from tests.integration.health.ingest.test_results import TABLE, Rig, error, outputs, schema

SHORT = "urn:dp:duckdb:shop.main.orders"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.health.close()
    made.store.close()


def short(**facets: Any) -> list[dict[str, Any]]:
    return [{"namespace": "duckdb", "name": "shop.main.orders", "facets": facets}]


def merge(rig: Rig, **more: Any) -> Merged:
    return rig.health.merges.merge(SHORT, TABLE, actor="ann", reason="one table", **more)


def resolve_all(rig: Rig, urn: str) -> None:
    for each in rig.incidents(urn):
        rig.health.incidents.change(each.incident_id, Changes(status="RESOLVED", reason="x"), actor="ann")


def test_find__one_table_under_two_namespaces_of_a_system__is_proposed(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=short())
    rig.send("COMPLETE", run="r2", outputs=outputs())

    found = rig.health.merges.find()

    assert [(each.dataset_urn, each.into_urn) for each in found.duplicates] == [(SHORT, TABLE)]
    assert found.complete


def test_proposals__one_name_in_two_databases__is_two_tables() -> None:
    def dataset(namespace: str) -> Dataset:
        source = Source(namespace=namespace, name="shop.orders")
        return Dataset(dataset_urn=f"urn:dp:{namespace[-3:]}:x", config_version=1, source=source)

    assert proposals([dataset("postgres://db1"), dataset("postgres://db2"), dataset("postgres")]) == []


def test_merge__a_dataset_with_history__gives_all_of_it_to_the_other(rig: Rig) -> None:
    rig.send("FAIL", outputs=short(), facets=error("boom"))
    rig.send("COMPLETE", run="r2", outputs=short(schema=schema(id="INT")))
    resolve_all(rig, SHORT)
    rig.send("COMPLETE", run="r3", outputs=outputs(), job={"namespace": "dbt", "name": "another"})

    merged = merge(rig)

    assert (merged.signals, merged.incidents, merged.producers, merged.names) == (1, 1, 1, 1)
    assert merged.transitions >= 2
    assert merged.evidence == 1
    history = rig.health.signals.history(TABLE, JOB_RUN, "2026-01-01T00:00:00.000Z", "2026-02-01T00:00:00.000Z")
    assert SignalState.CRITICAL in [each.state for each in history]
    assert [each.primary_dataset_urn for each in rig.incidents(TABLE, are_open=False)] == [TABLE]
    assert {each.test_id for each in rig.health.results.of(TABLE, ResultKind.RUN)} == {
        "job:dbt.shop.orders", "job:dbt.another",
    }  # fmt: skip
    assert {each.entity_id for each in rig.health.lineage.writers(TABLE).entries} == {
        "job:dbt.shop.orders", "job:dbt.another",
    }  # fmt: skip
    assert rig.health.lineage.writers(SHORT).entries == []
    assert [each.name for each in rig.health.registry.fields.get(TABLE).fields] == ["id"]
    assert rig.health.evidence.of_dataset(TABLE).evidence != []


def test_merge__later_events_with_the_former_name__are_about_the_other(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=short())
    rig.send("COMPLETE", run="r2", outputs=outputs())
    merge(rig)

    rig.send("FAIL", run="r3", outputs=short(), facets=error("boom"))

    assert rig.signal(JOB_RUN).state is SignalState.CRITICAL
    with pytest.raises(DatasetNotFoundError, match=re.escape(f"merged into {TABLE}")):
        rig.health.registry.get(SHORT)
    entries = rig.health.audit.ls(entity=SHORT).entries
    assert "dataset.merge" in [each.action for each in entries]


def test_merge__again_after_an_interruption__finishes_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.send("COMPLETE", outputs=short())
    rig.send("COMPLETE", run="r2", outputs=outputs())
    with monkeypatch.context() as broken:
        broken.setattr(rig.health.registry, "merge_into", _interrupted)
        with pytest.raises(InterruptedError):
            merge(rig)
    merge(rig)

    assert rig.health.registry.held(SHORT) is not None
    assert len(rig.health.lineage.writers(TABLE).entries) == 1


def _interrupted(*_arguments: object, **_options: object) -> None:
    raise InterruptedError


def test_merge__an_incident_is_open__is_refused(rig: Rig) -> None:
    rig.send("FAIL", outputs=short(), facets=error("boom"))
    rig.send("COMPLETE", run="r2", outputs=outputs())

    with pytest.raises(IllegalTransitionError, match="is open; resolve it"):
        merge(rig)


def test_merge__a_pipeline_names_the_dataset__is_refused(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=short())
    rig.send("COMPLETE", run="r2", outputs=outputs())
    rig.health.lineage.update(
        LineageSpec(
            spec_id="lspec:pipeline:report:definition:1",
            producer_id="pipeline:report",
            producer_name="report",
            updated_at="2026-01-15T10:00:00.000Z",
            dataset_reads=(SHORT,),
        )
    )

    with pytest.raises(IllegalTransitionError, match="pipeline report names it"):
        merge(rig)


def test_merge__into_itself_or_without_a_reason_or_ticket__is_refused(rig: Rig) -> None:
    rig.health.registry.create(TABLE, DatasetSpec(), actor="ann")
    rig.health.registry.create(SHORT, DatasetSpec(tier=Tier.TIER_1), actor="ann")

    with pytest.raises(IllegalTransitionError):
        rig.health.merges.merge(TABLE, TABLE, actor="ann", reason="x")
    with pytest.raises(InvalidPayloadError, match="reason"):
        rig.health.merges.merge(SHORT, TABLE, actor="ann", reason=" ")
    with pytest.raises(ApprovalRequiredError):
        merge(rig)
    merge(rig, ticket="CHG-1")
    assert rig.health.registry.held(SHORT).status is DatasetStatus.DELETED  # type: ignore[union-attr]
