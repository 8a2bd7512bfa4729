"""JSON Schemas: the rows of a busy store, the answers and the documented examples are valid, broken rows are not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import pytest

from headgate.bootstrap.store import all_items
from headgate.serve.rest.health.schemas import SCHEMAS
from headgate.store.catalogue.tables import (
    COLUMN_READERS,
    COLUMN_WRITERS,
    DATASET_READERS,
    DATASET_REGISTRY,
    DATASET_WRITERS,
    EVIDENCE_CACHE,
    INCIDENT_INDEX,
    SIGNAL_STATE,
)
from headgate.store.model.schema import Table
from tests.integration.serve.health_rig import HealthApi, done, evidence_id, health_api, of

TABLES: Final[dict[str, tuple[Table, ...]]] = {
    "signal-state-schema.json": (SIGNAL_STATE,),
    "incident-index-schema.json": (INCIDENT_INDEX,),
    "dataset-registry-schema.json": (DATASET_REGISTRY,),
    "evidence-cache-schema.json": (EVIDENCE_CACHE,),
    "lineage-index-schema.json": (DATASET_WRITERS, DATASET_READERS, COLUMN_WRITERS, COLUMN_READERS),
}
EXAMPLES: Final = json.loads((Path(__file__).parent / "state_store_examples.json").read_text())
DATASETS: Final = [f"urn:dp:busy:d{number}:v1" for number in range(4)]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("schemas") / "home") as api:
        _fill(api)
        yield api


def _fill(api: HealthApi) -> None:
    full = next(each["item"] for each in EXAMPLES if each["schema"].startswith("dataset"))
    spec = {name: value for name, value in full.items() if name not in {"PK", "SK", "dataset_urn", "config_version"}}
    for name in ("created_at", "updated_at", "updated_by", "previous_version_sk"):
        spec.pop(name)
    for urn in DATASETS:
        api.dataset(urn, **{**spec, "gate": {"upstream": "hold"}})
        done(api.patch(of(urn), {"description": "changed", "slos": {"freshness": {"on_silence": "warn"}}}), 200)
        done(api.put(f"{of(urn)}/aliases", {"namespace": "kafka://prod", "name": urn}), 200)
    done(api.delete("/dataset-names", params={"namespace": "kafka://prod", "name": DATASETS[3]}), 200)
    for number, (result, urn) in enumerate(zip(("PASS", "FAIL", "WARN", "FAIL"), DATASETS, strict=True)):
        done(api.post("/evidence", api.evidence(number, urn, result=result)), 201)
    producer = {"producer_id": "svc", "version": "v1", "confidence": "HIGH", "deployed_at": api.at(-9)}
    for state, urn in zip(("OK", "WARNING", "CRITICAL", "UNKNOWN"), DATASETS, strict=True):
        api.signal("OK", urn, "VOLUME", metrics={"evidence_count": 4}, minutes=-5)
        for kind in ("FRESHNESS", "VOLUME", "DATA_QUALITY"):
            api.signal(state, urn, kind, top_producer=producer, evidence_sample=[evidence_id(1)])
    opened = api.incident(DATASETS[1], oncall_user="ann", title="By hand")
    path = f"/incidents/{opened['incident_id']}"
    done(api.patch(path, {"status": "ACKNOWLEDGED", "notification_state": {"jira_ticket": "D-1"}}), 200)
    done(api.patch(path, {"status": "RESOLVED", "resolution": {"root_cause": "x", "mitigation": "y"}}), 200)
    columns = [f"urn:col:{DATASETS[0]}:id"]
    lineage = {
        "producer_id": "job:busy",
        "updated_at": api.at(),
        "dataset_reads": [DATASETS[0]],
        "dataset_writes": [DATASETS[1]],
        "column_reads": columns,
        "column_writes": [f"urn:col:{DATASETS[1]}:id"],
    }
    done(api.put("/lineage/specs/lspec:busy:git:abc1234", lineage), 200)
    done(api.delete(of(DATASETS[3])), 200)
    api.health.sweep()


def _validator(api: HealthApi, name: str) -> jsonschema.Draft202012Validator:
    served = done(api.get(f"/schemas/{name}"), 200)
    jsonschema.Draft202012Validator.check_schema(served)
    return jsonschema.Draft202012Validator(served)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_schema__every_row_of_a_busy_store__is_valid(busy: HealthApi, name: str) -> None:
    validator = _validator(busy, name)
    for table in TABLES[name]:
        rows = list(all_items(busy.opened, table, busy.clock))
        assert rows, f"{table.name} is empty"
        for row in rows:
            problems = [each.message for each in validator.iter_errors(row)]
            assert problems == [], (table.name, row)


def _answers(api: HealthApi) -> dict[str, list[Any]]:
    signals = [each for urn in DATASETS[:3] for each in done(api.get(f"{of(urn)}/signals"), 200)["signals"]]
    datasets = done(api.get("/datasets"), 200)["items"]
    versions = done(api.get(f"{of(DATASETS[0])}/versions"), 200)["items"]
    writers = done(api.get(f"{of(DATASETS[1])}/writers"), 200)
    return {
        "signal-state-schema.json": signals,
        "incident-index-schema.json": done(api.get("/incidents"), 200)["items"],
        "dataset-registry-schema.json": datasets + versions,
        "evidence-cache-schema.json": done(api.get(f"{of(DATASETS[1])}/evidence"), 200)["items"],
        "lineage-index-schema.json": writers["items"],
    }


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schema__every_answer__is_valid(busy: HealthApi, name: str) -> None:
    validator, answers = _validator(busy, name), _answers(busy)[name]
    assert answers
    for each in answers:
        assert [error.message for error in validator.iter_errors(each)] == [], each


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: str(each["schema"]))
def test_schema__documented_example__is_valid_for_its_own_schema_only(busy: HealthApi, example: dict[str, Any]) -> None:
    found = [name for name in SCHEMAS if _validator(busy, name).is_valid(example["item"])]
    assert found == [example["schema"]]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: str(each["schema"]))
def test_schema__row_without_a_key_or_with_a_wrong_value__is_not_valid(
    busy: HealthApi, example: dict[str, Any]
) -> None:
    validator, item = _validator(busy, example["schema"]), example["item"]
    keys = ("PK", "SK", "dataset_urn")
    assert not validator.is_valid({name: value for name, value in item.items() if name not in keys})
    for name, wrong in (("tier", "TIER_9"), ("confidence", "SURE"), ("status", "GONE"), ("validation", {})):
        if name in item:
            assert not validator.is_valid({**item, name: wrong}), name
