"""Failed runs, models and tests: a signal with the error text, one incident for all failures, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.health.incidents.decisions import QUIET_MS
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.jobs.model import JobState
from headgate.health.jobs.service import JobFilter
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import ContractBinding, DatasetSpec
from headgate.health.model.enums import DATA_QUALITY, JOB_RUN, SCHEMA_DRIFT, IncidentStatus, SignalState, Tier
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.results.model import ResultKind
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite
from tests.unit.health.ingest.test_dbt import manifest, metadata

START: Final = 1_768_471_200.0  # 2026-01-15T10:00:00Z
TABLE: Final = "urn:dp:duckdb+shop.duckdb:shop.main.orders"
ORDERS: Final = "urn:dp:snowflake+org-acct:DW.MAIN.ORDERS"


class Rig:
    """The health of one store, fed with OpenLineage events and dbt artifacts."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock(START)
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.health = HealthService(
            self.store,
            self.clock,
            IdMaker(self.clock),
            Cache(clock=self.clock),
            Keyring.generate(self.clock),
            FolderBlobs(folder / "evidence"),
        )

    def send(self, state: str, *, run: str = "r1", facets: Any = None, **more: Any) -> None:
        self.clock.advance(1)
        event = {
            "eventType": state, "eventTime": self.clock.now().isoformat(), "run": {"runId": run, "facets": facets},
            "job": {"namespace": "dbt", "name": "shop.orders"}, "producer": "https://x", "schemaURL": "https://y",
            **more,
        }  # fmt: skip
        self.health.ingestion.inbox.accept(json.dumps(event).encode())
        self.health.drain()

    def assertions(self, **success: bool) -> None:
        """Send what dbt-ol sends after `dbt test`: the same facet in two places."""
        listed = [
            {"assertion": name.split("__")[0], "column": name.split("__")[1], "success": passed}
            for name, passed in success.items()
        ]
        facet = {"dataQualityAssertions": {"assertions": listed}}
        table = {"namespace": "duckdb://shop.duckdb", "name": "shop.main.orders", "facets": facet, "inputFacets": facet}
        run = f"test-{self.clock.seconds()}"
        self.send("COMPLETE", run=run, inputs=[table], job={"namespace": "dbt", "name": "shop.test"})

    def dbt(self, results: dict[str, tuple[str, str]], document: dict[str, Any] | None = None) -> Any:
        self.clock.advance(1)
        at = {"generated_at": self.clock.now().isoformat(), "invocation_id": f"inv-{self.clock.seconds()}"}
        rows = [{"unique_id": name, "status": state, "message": text} for name, (state, text) in results.items()]
        found = {"metadata": metadata("run-results", 6) | at, "results": rows}
        project = document or manifest()
        project["metadata"] |= at
        return self.health.ingestion.dbt(
            json.dumps(project).encode(), run_results=json.dumps(found).encode(), namespace="snowflake://org-acct"
        )

    def signal(self, signal_type: str, urn: str = TABLE) -> Signal:
        found = self.health.signals.get(urn, signal_type, consistent=True)
        assert found is not None
        return found

    def incidents(self, urn: str = TABLE, *, are_open: bool = True) -> list[Incident]:
        found = self.health.incident_listing.ls(IncidentFilter(dataset_urn=urn)).incidents
        return [each for each in found if (each.status is not IncidentStatus.RESOLVED) == are_open]

    def settle(self) -> None:
        """Let the quiet time of incidents pass."""
        self.clock.advance(QUIET_MS / 1000 + 1)
        self.health.sweep()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.health.close()
    made.store.close()


def outputs(**facets: Any) -> list[dict[str, Any]]:
    return [{"namespace": "duckdb://shop.duckdb", "name": "shop.main.orders", "facets": facets}]


def schema(**types: str) -> dict[str, Any]:
    return {"fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def error(message: str) -> dict[str, Any]:
    return {"errorMessage": {"message": message, "programmingLanguage": "SQL"}}


def test_openlineage_fail__a_run_that_writes_a_table__leaves_a_signal_with_its_message_and_an_incident(
    rig: Rig,
) -> None:
    rig.send("FAIL", outputs=outputs(), facets=error("no column id at postgres://me:secret@db/x"))

    signal = rig.signal(JOB_RUN)
    assert (signal.state, signal.value.message) == (
        SignalState.CRITICAL, "no column id at postgres://me:***@db/x",
    )  # fmt: skip
    (incident,) = rig.incidents()
    assert incident.failure_signatures == ("RUN_FAILED:dataset",)
    evidence = rig.health.evidence.get(incident.evidence_sample[0])
    assert evidence is not None
    assert evidence.validation.gates[0].details == "no column id at postgres://me:***@db/x"


def test_openlineage_complete__after_a_failure__ends_the_incident(rig: Rig) -> None:
    rig.send("FAIL", outputs=outputs(), facets=error("boom"))
    rig.send("COMPLETE", run="r2", outputs=outputs())
    rig.settle()

    assert (rig.signal(JOB_RUN).state, rig.signal(JOB_RUN).value.message) == (SignalState.OK, None)
    assert rig.incidents() == []
    assert len(rig.incidents(are_open=False)) == 1


def test_openlineage_fail__an_event_and_a_run_without_outputs__is_of_what_the_job_wrote_before(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=outputs())
    rig.send("FAIL", run="r2", facets=error("boom"))

    assert rig.signal(JOB_RUN).value.message == "boom"


def test_openlineage_fail__one_of_two_writers__holds_until_that_one_recovers(rig: Rig) -> None:
    rig.send("FAIL", outputs=outputs(), facets=error("boom"))
    rig.send("COMPLETE", run="r2", outputs=outputs(), job={"namespace": "dbt", "name": "another"})

    assert rig.signal(JOB_RUN).state is SignalState.CRITICAL
    assert rig.signal(JOB_RUN).value.metrics.evidence_count == 2


def test_assertions__repeated_by_two_facets__are_counted_once(rig: Rig) -> None:
    rig.assertions(not_null__a=False, unique__b=True, not_null__c=True)

    metrics = rig.signal(DATA_QUALITY).value.metrics
    assert (metrics.evidence_count, metrics.pass_count, metrics.fail_count) == (3, 2, 1)


def test_assertions__two_that_fail__are_one_incident_that_ends_with_the_last(rig: Rig) -> None:
    rig.assertions(not_null__a=False, unique__b=False)
    (incident,) = rig.incidents()
    assert incident.failure_signatures == ("NOT_NULL:a", "UNIQUE:b")
    assert "NOT_NULL:a and 1 more" in incident.title

    rig.assertions(not_null__a=True, unique__b=False)
    rig.settle()
    assert [each.incident_id for each in rig.incidents()] == [incident.incident_id]
    assert rig.signal(DATA_QUALITY).value.failure_signatures == ("UNIQUE:b",)

    rig.assertions(not_null__a=True, unique__b=False, range__c=False)
    (same,) = rig.incidents()
    assert (same.incident_id, same.failure_signatures) == (
        incident.incident_id, ("NOT_NULL:a", "UNIQUE:b", "RANGE:c"),
    )  # fmt: skip

    rig.assertions(not_null__a=True, unique__b=True, range__c=True)
    rig.settle()
    assert rig.incidents() == []
    assert len(rig.incidents(are_open=False)) == 1


def test_assertions__a_report_of_some_tests__leaves_the_others_as_they_are(rig: Rig) -> None:
    rig.assertions(not_null__a=False, unique__b=True)
    rig.assertions(unique__b=True)

    assert rig.signal(DATA_QUALITY).state is SignalState.CRITICAL
    results = {each.test_id: each for each in rig.health.results.of(TABLE, ResultKind.TEST)}
    assert [each.state for each in results["UNIQUE:b"].history] == [SignalState.OK, SignalState.OK]
    assert [each.state for each in results["NOT_NULL:a"].history] == [SignalState.CRITICAL]


def test_reset__a_dataset_whose_failing_test_was_removed__forgets_the_test(rig: Rig) -> None:
    rig.assertions(not_null__a=False)
    rig.health.resets.reset(TABLE, actor="ann", reason="the test was removed")
    rig.assertions(unique__b=True)

    assert rig.signal(DATA_QUALITY).state is SignalState.OK


def test_dbt__a_model_that_failed__leaves_a_signal_and_an_incident_until_it_is_built(rig: Rig) -> None:
    text = "Runtime Error in model orders\n  Conversion Error: Could not convert string 'x' to INT32"
    report = rig.dbt({"model.shop.orders": ("error", text), "test.shop.not_null.1": ("skipped", "")})

    assert (report.datasets, report.results, report.failed, report.refused) == (3, 2, 1, [])
    signal = rig.signal(JOB_RUN, ORDERS)
    assert (signal.state, signal.value.message) == (SignalState.CRITICAL, text)
    assert [each.failure_signatures for each in rig.incidents(ORDERS)] == [("MODEL_FAILED:dataset",)]

    rig.dbt({"model.shop.orders": ("success", "OK"), "test.shop.not_null.1": ("pass", "")})
    rig.settle()
    assert rig.signal(JOB_RUN, ORDERS).state is SignalState.OK
    assert rig.incidents(ORDERS) == []


def test_dbt__tests_that_failed__keep_their_message_and_history(rig: Rig) -> None:
    rig.dbt({"test.shop.not_null.1": ("fail", "Got 2 results"), "test.shop.unique.2": ("pass", "")})
    rig.dbt({"test.shop.not_null.1": ("fail", "Got 3 results"), "test.shop.unique.2": ("pass", "")})

    found = {each.test_id: each for each in rig.health.results.of(ORDERS)}
    assert [each.message for each in found["NOT_NULL:id"].history] == ["Got 3 results", "Got 2 results"]
    assert rig.signal(DATA_QUALITY, ORDERS).value.message == "Got 3 results"


def test_dbt__a_failing_test_that_the_project_no_longer_has__is_forgotten(rig: Rig) -> None:
    rig.dbt({"test.shop.not_null.1": ("fail", "Got 2 results"), "test.shop.unique.2": ("pass", "")})
    document = manifest()
    del document["nodes"]["test.shop.not_null.1"]
    rig.dbt({"test.shop.unique.2": ("pass", "")}, document)

    assert [each.test_id for each in rig.health.results.of(ORDERS)] == ["UNIQUE:id"]
    assert rig.signal(DATA_QUALITY, ORDERS).state is SignalState.OK


def test_dbt__the_same_artifacts_twice__change_nothing(rig: Rig) -> None:
    results = {"model.shop.orders": ("error", "boom"), "test.shop.not_null.1": ("fail", "Got 2 results")}
    rig.dbt(results)
    before = (rig.signal(JOB_RUN, ORDERS), rig.health.results.of(ORDERS))
    rig.clock.step(-1)
    rig.dbt(results)

    assert (rig.signal(JOB_RUN, ORDERS), rig.health.results.of(ORDERS)) == before


def test_openlineage__a_job_that_writes_a_deleted_dataset__is_no_dead_letter(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=outputs())
    rig.health.registry.delete(TABLE, actor="ann")
    rig.send("FAIL", run="r2", outputs=outputs(), facets=error("boom"))

    assert rig.health.ingestion.inbox.dead().events == []


def test_openlineage_metadata__of_a_dataset__is_taken_and_marked_and_a_person_wins(rig: Rig) -> None:
    facets = {
        "documentation": {"description": "Orders of the shop."},
        "ownership": {"owners": [{"name": "team:orders"}, {"name": "orders@shop.example"}]},
        "tags": {"tags": [{"key": "pii", "value": "no"}, {"key": "raw", "value": "x", "field": "id"}]},
    }
    rig.send("COMPLETE", outputs=outputs(**facets))
    found = rig.health.registry.get(TABLE)
    assert (found.description, found.owner_team, found.owner_email) == (
        "Orders of the shop.", "orders", "orders@shop.example",
    )  # fmt: skip
    assert found.tags == {"pii": "no"}
    assert found.field_sources["description"] == "openlineage"

    rig.health.registry.update(TABLE, DatasetSpec(owner_team="sales"), expected_version=-1, actor="ann")
    rig.send("COMPLETE", run="r2", outputs=outputs(**facets))
    again = rig.health.registry.get(TABLE)
    assert (again.owner_team, again.description) == ("sales", "Orders of the shop.")
    assert "owner_team" not in again.field_sources


def test_openlineage_metadata__of_a_dataset_of_tier_1__is_left_to_people(rig: Rig) -> None:
    rig.health.registry.create(TABLE, DatasetSpec(tier=Tier.TIER_1), actor="ann")
    rig.send("COMPLETE", outputs=outputs(documentation={"description": "x"}))

    assert rig.health.registry.get(TABLE).description == ""
    assert rig.health.ingestion.inbox.dead().events == []


def test_openlineage_schema__a_field_removed_and_one_retyped__is_drift_until_the_next_report(rig: Rig) -> None:
    rig.send("COMPLETE", outputs=outputs(schema=schema(id="INT", amount="INT", note="TEXT")))
    rig.send("COMPLETE", run="r2", outputs=outputs(schema=schema(id="INT", amount="TEXT", day="DATE")))

    signal = rig.signal(SCHEMA_DRIFT)
    assert (signal.state, signal.value.failure_signatures) == (
        SignalState.WARNING, ("FIELD_REMOVED:note", "FIELD_RETYPED:amount"),
    )  # fmt: skip
    assert signal.value.message == "removed note; retyped amount INT -> TEXT; added day"

    rig.send("COMPLETE", run="r3", outputs=outputs(schema=schema(id="INT", amount="TEXT", day="DATE")))
    assert rig.signal(SCHEMA_DRIFT).state is SignalState.OK
    assert [each.added for each in rig.health.registry.fields.get(TABLE).changes] == [("day",)]


def test_openlineage_schema__a_required_field_is_gone__is_critical_until_it_is_back(rig: Rig) -> None:
    binding = ContractBinding(required_fields=("id",))
    rig.health.registry.create(TABLE, DatasetSpec(contract_binding=binding), actor="ann")
    rig.send("COMPLETE", outputs=outputs(schema=schema(id="INT", amount="INT")))
    rig.send("COMPLETE", run="r2", outputs=outputs(schema=schema(amount="INT")))
    rig.send("COMPLETE", run="r3", outputs=outputs(schema=schema(amount="INT")))
    assert rig.signal(SCHEMA_DRIFT).value.failure_signature == "FIELD_MISSING:id"
    assert len(rig.incidents()) == 1

    rig.send("COMPLETE", run="r4", outputs=outputs(schema=schema(id="INT", amount="INT")))
    assert rig.signal(SCHEMA_DRIFT).state is SignalState.OK


def test_openlineage_column_lineage__of_an_output__names_the_origins_of_its_fields(rig: Rig) -> None:
    origin = {
        "namespace": "duckdb://shop.duckdb", "name": "shop.main.raw", "field": "cents",
        "transformations": [{"type": "DIRECT", "subtype": "TRANSFORMATION"}],
    }  # fmt: skip
    facets = {"schema": schema(amount="INT"), "columnLineage": {"fields": {"amount": {"inputFields": [origin]}}}}
    rig.send("COMPLETE", outputs=outputs(**facets))

    (field,) = rig.health.registry.fields.get(TABLE).fields
    assert [(each.dataset_urn, each.column, each.transformation) for each in field.origins] == [
        ("urn:dp:duckdb+shop.duckdb:shop.main.raw", "cents", "TRANSFORMATION")
    ]


def test_dbt_metadata__owner_description_tags_and_catalog__are_taken(rig: Rig) -> None:
    document = manifest()
    document["nodes"]["model.shop.orders"] |= {
        "tags": ["finance"], "columns": {"id": {"name": "id", "description": "The key."}},
    }  # fmt: skip
    columns = {"ID": {"name": "ID", "type": "INTEGER", "index": 1}, "X": {"name": "X", "type": "TEXT", "index": 2}}
    catalog = {
        "metadata": metadata("catalog", 1) | {"generated_at": "2026-01-15T10:00:00Z"},
        "nodes": {"model.shop.orders": {"unique_id": "model.shop.orders", "columns": columns}},
    }
    rig.health.ingestion.dbt(
        json.dumps(document).encode(), catalog=json.dumps(catalog).encode(), namespace="snowflake://org-acct"
    )

    found = rig.health.registry.get(ORDERS)
    assert (found.owner_team, found.description, found.tags) == ("orders-team", "Orders", {"finance": ""})
    assert found.field_sources == {"owner_team": "dbt", "description": "dbt", "tags.finance": "dbt"}
    fields = rig.health.registry.fields.get(ORDERS).fields
    assert [(each.name, each.type, each.description) for each in fields] == [
        ("ID", "INTEGER", "The key."), ("X", "TEXT", ""),
    ]  # fmt: skip


def test_openlineage_jobs__runs_of_a_job__are_listed_with_state_duration_and_datasets(rig: Rig) -> None:
    kind = {"jobType": {"integration": "SPARK", "jobType": "JOB"}, "sql": {"query": "select 1"}}
    job = {"namespace": "dbt", "name": "shop.orders", "facets": kind}
    rig.send("START", outputs=outputs(), job=job)
    rig.clock.advance(59)
    rig.send("FAIL", facets=error("boom"))

    (listed,) = rig.health.jobs.ls(JobFilter())
    assert (listed.job_id, listed.state, listed.message) == ("job:dbt.shop.orders", JobState.FAILED, "boom")
    assert (listed.integration, listed.duration_seconds, listed.outputs) == ("SPARK", 60.0, (TABLE,))
    assert {"jobType", "sql", "errorMessage"} <= set(listed.facets)
    assert [each.run_id for each in rig.health.jobs.get("job:dbt.shop.orders").runs] == ["r1"]
    assert rig.health.jobs.ls(JobFilter(state=JobState.COMPLETED)) == []
    with pytest.raises(NotFoundError, match="headgate job ls"):
        rig.health.jobs.get("job:none")


def test_openlineage_jobs__a_job_of_our_namespace__is_the_pipeline(rig: Rig) -> None:
    definition = LineageSpec(
        spec_id="lspec:pipeline:report:definition:1", producer_id="pipeline:report", producer_name="report",
        updated_at="2026-01-15T10:00:00.000Z", dataset_reads=("urn:dp:shop:declared",),
    )  # fmt: skip
    rig.health.lineage.update(definition)
    rig.send("FAIL", outputs=outputs(), job={"namespace": "headgate", "name": "report"}, facets=error("boom"))

    assert rig.health.jobs.get("pipeline:report").job.state is JobState.FAILED
    known = rig.health.lineage.by_producer("pipeline:report")
    assert (known.dataset_reads, known.dataset_writes) == (("urn:dp:shop:declared",), (TABLE,))
    assert rig.health.signals.get(TABLE, JOB_RUN) is None, "the run of the pipeline itself reports its outcome"


def test_dbt_jobs__models__are_jobs_with_their_durations(rig: Rig) -> None:
    rig.dbt({"model.shop.orders": ("error", "boom"), "model.shop.revenue": ("skipped", "")})

    found = {each.name: each for each in rig.health.jobs.ls(JobFilter(search="DBT"))}
    assert found["shop.orders"].state is JobState.FAILED
    assert found["shop.revenue"].state is JobState.ABORTED
    assert found["shop.revenue"].inputs == (ORDERS,)
