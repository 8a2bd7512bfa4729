"""Lineage over HTTP: specs of producers, events of OpenLineage that are kept before they are answered, and dbt."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.serve.durable_api import problem
from tests.integration.serve.health_rig import HealthApi, done, health_api, of

RAW, CLEAN = "urn:dp:warehouse:raw.orders", "urn:dp:warehouse:clean.orders"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HealthApi]:
    with health_api(tmp_path_factory.mktemp("lineage") / "home") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[HealthApi]:
    with health_api(tmp_path / "home") as made:
        yield made


def _facet(**content: Any) -> dict[str, Any]:
    return {
        "_producer": "https://example.org/etl",
        "_schemaURL": "https://openlineage.io/spec/facets/x.json",
        **content,
    }


def _entries(*urns: str, entity: str = "job:etl") -> list[dict[str, str]]:
    return [{"dataset_urn": urn, "entity_id": entity, "entity_name": "etl", "entity_type": "JOB"} for urn in urns]


# Specs.


def test_spec__in_the_form_of_the_contract__is_read_back_from_both_sides(api: HealthApi) -> None:
    source, target = api.fresh(), api.fresh()
    spec = {
        "spec_id": "lspec:etl:git:abc1",
        "dataset_reads": _entries(source),
        "dataset_writes": _entries(target),
        "column_writes": [
            {
                "column_urn": f"urn:col:{target}:total",
                "entity_id": "job:etl",
                "entity_name": "etl",
                "entity_type": "JOB",
            }
        ],
        "confidence": "HIGH",
        "commit": "abc1",
        "updated_at": api.at(),
        "ttl_seconds": 7_776_000,
    }

    applied = done(api.put("/lineage/specs/lspec:etl:git:abc1", spec), 200)

    assert (applied["outcome"], applied["added"]) == ("APPLIED", 3)
    (writer,) = done(api.get(f"{of(target)}/writers"), 200)["items"]
    assert writer.keys() >= {"entity_id", "entity_name", "entity_type", "confidence", "spec_id", "commit", "updated_at"}
    assert (writer["entity_id"], writer["entity_type"], writer["spec_id"]) == ("job:etl", "JOB", "lspec:etl:git:abc1")
    (reader,) = done(api.get(f"{of(source)}/readers"), 200)["items"]
    assert reader["entity_id"] == "job:etl"
    assert len(done(api.get(f"/columns/urn:col:{target}:total/writers"), 200)["items"]) == 1
    assert done(api.get(f"/columns/urn:col:{target}:total/readers"), 200)["items"] == []
    below = done(api.get(f"{of(source)}/downstream"), 200)
    assert [each["dataset_urn"] for each in below["datasets"]] == [target]
    assert [each["dataset_urn"] for each in done(api.get(f"{of(target)}/upstream"), 200)["datasets"]] == [source]
    produced = done(api.get("/lineage/producers/job%3Aetl"), 200)
    assert (produced["dataset_writes"], produced["dataset_reads"]) == ([target], [source])
    shown = done(api.get("/lineage/specs/lspec:etl:git:abc1"), 200)
    for asked in ("commit=abc1", "producer_id=etl"):
        assert done(api.get(f"/lineage/specs?{asked}"), 200) == {"items": [shown], "next_page_token": None}
    for wrong in ("", "?commit=abc1&producer_id=etl"):
        problem(api.get(f"/lineage/specs{wrong}"), 400, "bad_payload")
    assert shown.keys() >= {
        "spec_id",
        "confidence",
        "commit",
        "dataset_reads",
        "dataset_writes",
        "column_reads",
        "ttl_seconds",
    }


def test_spec__a_later_one_that_drops_an_edge__removes_it_and_an_older_one_changes_nothing(api: HealthApi) -> None:
    one, two = api.fresh(), api.fresh()

    def send(commit: str, writes: list[str], minutes: float) -> dict[str, Any]:
        given = {"producer_id": "job:drop", "updated_at": api.at(minutes), "dataset_writes": writes}
        return done(api.put(f"/lineage/specs/lspec:drop:git:{commit}", given), 200)

    send("1", [one, two], -10)
    assert send("2", [one], -5)["removed"] == 1
    send("0", [one, two], -20)

    assert done(api.get(f"{of(two)}/writers"), 200)["items"] == []
    assert len(done(api.get(f"{of(one)}/writers"), 200)["items"]) == 1


def test_spec__ids_with_slashes_and_percent_signs__are_found(api: HealthApi) -> None:
    urn = api.fresh()
    given = {"producer_id": "team/job%2F", "updated_at": api.at(), "dataset_writes": [urn]}
    path = "/lineage/specs/lspec:team%2Fjob%252F:branch:feature%2Fx"

    done(api.put(path, given), 200)

    assert done(api.get(path), 200)["spec_id"] == "lspec:team/job%2F:branch:feature/x"
    assert done(api.get("/lineage/producers/team%2Fjob%252F"), 200)["dataset_writes"] == [urn]
    assert done(api.get(f"/columns/urn:col:{urn}:a%2Fb/writers"), 200)["items"] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"producer_id": "someone-else"},
        {"spec_id": "lspec:other:git:1"},
        {"updated_at": "x"},
        {"updated_at": "2027-01-01T00:00:00Z"},
        {"dataset_writes": ["nonsense"]},
        {"dataset_writes": "urn:dp:a:b"},
        {"dataset_writes": [{"entity_id": "x"}]},
        {"column_writes": ["urn:col:x"]},
        {"ttl_seconds": 0},
        {"ttl_seconds": 10**12},
        {"confidence": "MAYBE"},
        {"bogus": 1},
    ],
)
def test_spec__that_is_wrong__is_refused_whole(api: HealthApi, wrong: dict[str, Any]) -> None:
    urn = api.fresh()
    given = {"producer_id": "job:wrong", "updated_at": api.at(), "dataset_writes": [urn], **wrong}

    assert api.put("/lineage/specs/lspec:wrong:git:1", given).status_code == 400

    problem(api.get("/lineage/specs/lspec:wrong:git:1"), 404, "not_found")
    assert done(api.get(f"{of(urn)}/writers"), 200)["items"] == []


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{", b"\xff", b'{"a":' * 3000])
def test_spec__that_is_no_object_of_json__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.put("/lineage/specs/lspec:wrong:git:1", content=content), 400, "bad_payload")


def test_spec__another_content_under_its_id__conflicts(api: HealthApi) -> None:
    urn = api.fresh()
    given = {"producer_id": "job:twice", "updated_at": api.at(), "dataset_writes": [urn]}
    done(api.put("/lineage/specs/lspec:twice:git:1", given), 200)

    assert done(api.put("/lineage/specs/lspec:twice:git:1", given), 200)["outcome"] == "UNCHANGED"
    problem(api.put("/lineage/specs/lspec:twice:git:1", {**given, "dataset_reads": [urn]}), 409, "already_exists")


def test_writers__of_many__page_by_page(api: HealthApi) -> None:
    urn = api.fresh()
    for number in range(5):
        given = {"producer_id": f"job:p{number}", "updated_at": api.at(), "dataset_writes": [urn]}
        done(api.put(f"/lineage/specs/lspec:p{number}:git:1", given), 200)
    first = done(api.get(f"{of(urn)}/writers", params={"page_size": 3}), 200)
    token = first["next_page_token"]

    second = done(api.get(f"{of(urn)}/writers", params={"page_size": 3, "page_token": token}), 200)

    names = [each["entity_id"] for each in first["items"] + second["items"]]
    assert sorted(names) == [f"job:p{number}" for number in range(5)]
    problem(api.get(f"{of(urn)}/readers", params={"page_token": token}), 400, "bad_cursor")
    problem(api.get(f"{of(api.fresh())}/writers", params={"page_token": token}), 400, "bad_cursor")


# Events.


def test_event__of_a_run__is_accepted_at_once_and_carried_out_later(alone: HealthApi) -> None:
    columns = {"total": {"inputFields": [{"namespace": "warehouse", "name": "raw.orders", "field": "amount"}]}}
    checks = [
        {"assertion": "not_null", "success": False, "column": "total", "severity": "error"},
        {"assertion": "unique", "success": True, "column": "id"},
    ]
    output = {
        "namespace": "warehouse",
        "name": "clean.orders",
        "facets": {
            "columnLineage": _facet(fields=columns),
            "dataQualityAssertions": _facet(assertions=checks),
        },
        "outputFacets": {"outputStatistics": _facet(rowCount=7, size=100)},
    }

    receipt = done(alone.post("/lineage", alone.run_event(outputs=[output])), 201)

    assert receipt["is_duplicate"] is False
    problem(alone.get(of(CLEAN)), 404, "dataset_not_found")
    assert alone.health.drain() >= 1
    assert done(alone.get(of(CLEAN)), 200)["status"] == "DISCOVERED"
    assert len(done(alone.get(f"{of(CLEAN)}/writers"), 200)["items"]) == 1
    assert len(done(alone.get(f"{of(RAW)}/readers"), 200)["items"]) == 1
    assert len(done(alone.get(f"/columns/urn:col:{CLEAN}:total/writers"), 200)["items"]) == 1
    assert len(done(alone.get(f"/columns/urn:col:{RAW}:amount/readers"), 200)["items"]) == 1
    signals = {each["signal_type"]: each["state"] for each in done(alone.get(f"{of(CLEAN)}/signals"), 200)["signals"]}
    assert "CRITICAL" in signals.values()


def test_event__with_tests_of_the_run__changes_the_signals_of_what_was_tested(alone: HealthApi) -> None:
    tests = [{"name": "rows", "status": "fail", "severity": "warn", "type": "count"}]
    event = alone.run_event()
    event["run"]["facets"] = {"test": _facet(tests=tests)}

    done(alone.post("/lineage", event), 201)
    alone.health.drain()

    signals = [
        *done(alone.get(f"{of(CLEAN)}/signals"), 200)["signals"],
        *done(alone.get(f"{of(RAW)}/signals"), 200)["signals"],
    ]
    assert "WARNING" in {each["state"] for each in signals}


def test_event__of_a_failed_run__leaves_evidence_and_a_signal(alone: HealthApi) -> None:
    event = alone.run_event(kind="FAIL")
    event["run"]["facets"] = {"errorMessage": _facet(message="disk full", programmingLanguage="python")}

    done(alone.post("/lineage", event), 201)
    alone.health.drain()

    assert done(alone.get(f"{of(CLEAN)}/evidence"), 200)["items"]


def test_event__the_same_bytes_again__is_the_same_event(api: HealthApi) -> None:
    content = json.dumps(api.run_event("again")).encode()
    first = done(api.post("/lineage", content=content), 201)

    again = done(api.post("/lineage", content=content), 201)

    assert again == {"event_id": first["event_id"], "is_duplicate": True}


def test_event__compressed__is_read(api: HealthApi) -> None:
    content = json.dumps(api.run_event("packed")).encode()
    packed = {"content-encoding": "gzip"}

    done(api.post("/lineage", content=gzip.compress(content), headers=packed), 201)
    done(api.post("/lineage/batch", content=gzip.compress(b"[" + content + b"]"), headers=packed), 200)

    problem(api.post("/lineage", content=gzip.compress(content)[:-9], headers=packed), 400, "bad_payload")
    problem(api.post("/lineage", content=content, headers=packed), 400, "bad_payload")
    problem(api.post("/lineage", content=content, headers={"content-encoding": "br"}), 400, "bad_payload")
    bomb = gzip.compress(b" " * 50_000_000)
    problem(api.post("/lineage", content=bomb, headers=packed), 413, "payload_too_large")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"{",
        b'{"a":' * 3000,
        b'{"eventTime": "x"}',
        b'{"eventTime": NaN}',
        b'"text"',
    ],
)
def test_event__that_is_none__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.post("/lineage", content=content), 400, "bad_payload")


@pytest.mark.parametrize(
    "wrong",
    [
        {"eventTime": "yesterday"},
        {"job": {"namespace": "", "name": ""}},
        {"job": {"namespace": "x"}},
        {"run": None, "job": None},
        {"outputs": "x"},
        {"outputs": [{"namespace": "n"}]},
        {"eventType": 7},
    ],
)
def test_event__with_a_wrong_field__is_refused(api: HealthApi, wrong: dict[str, Any]) -> None:
    problem(api.post("/lineage", api.run_event(**wrong)), 400, "bad_payload")


def test_event__with_facets_that_is_unknown__is_accepted(api: HealthApi) -> None:
    event = api.run_event("unknown", facets={"x": 1}, bogus={"deep": [[[[]]]]})
    event["outputs"][0]["facets"] = {"mine": _facet(a=1), "columnLineage": None, "broken": 7}

    done(api.post("/lineage", event), 201)
    done(
        api.post("/lineage", {key: value for key, value in api.run_event("no-type").items() if key != "eventType"}), 201
    )
    dataset = {
        "eventTime": api.at(),
        "producer": "https://e",
        "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/DatasetEvent",
    }
    done(api.post("/lineage", {**dataset, "dataset": {"namespace": "n", "name": "only"}}), 201)
    done(api.post("/lineage", {**dataset, "job": {"namespace": "n", "name": "only"}, "inputs": [], "outputs": []}), 201)

    api.health.drain()
    assert done(api.get("/lineage/dead-letters"), 200)["items"] == []


def test_event__of_megabytes__is_kept_whole(api: HealthApi) -> None:
    outputs = [{"namespace": "warehouse", "name": "wide", "facets": {"pad": _facet(x="y" * 2_000_000)}}]

    done(api.post("/lineage", api.run_event("wide", outputs=outputs)), 201)

    api.health.drain()
    done(api.get(of("urn:dp:warehouse:wide")), 200)
    problem(api.post("/lineage", content=b"x" * (8 * 1024 * 1024 + 1)), 413, "content_too_large")


def test_batch__some_wrong__the_others_are_accepted(api: HealthApi) -> None:
    events = [api.run_event("b1"), {}, 7, api.run_event("b2"), api.run_event("b2")]

    response = done(api.post("/lineage/batch", events), 200)

    assert response["status"] == "partial_success"
    assert response["summary"] == {"received": 5, "successful": 3, "failed": 2, "retriable": 0, "non_retriable": 2}
    assert [(each["index"], each["retriable"]) for each in response["failed_events"]] == [(1, False), (2, False)]
    assert all(each["reason"] for each in response["failed_events"])
    assert done(api.post("/lineage/batch", [api.run_event("b3")]), 200)["status"] == "success"
    assert done(api.post("/lineage/batch", []), 200)["summary"]["received"] == 0


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"[", b"\xff"])
def test_batch__that_is_none__is_refused(api: HealthApi, content: bytes) -> None:
    problem(api.post("/lineage/batch", content=content), 400, "bad_payload")


def test_dead_letters__that_are_not_there__are_404(api: HealthApi) -> None:
    for name in ("none", "%00", "a%2Fb"):
        problem(api.post(f"/lineage/dead-letters/{name}/redrive"), 404, "not_found")
        problem(api.delete(f"/lineage/dead-letters/{name}"), 404, "not_found")


# dbt.


def _manifest(**more: Any) -> dict[str, Any]:
    def node(name: str, kind: str, depends: list[str], **extra: Any) -> dict[str, Any]:
        return {
            "unique_id": f"{kind}.shop.{name}", "resource_type": kind, "name": name, "database": "dw",
            "schema": "shop", "alias": name, "relation_name": f'"dw"."shop"."{name}"',
            "depends_on": {"nodes": depends}, "columns": {}, "config": {"materialized": "table"},
            "package_name": "shop", "path": f"{name}.sql", "original_file_path": f"models/{name}.sql",
            "fqn": ["shop", name], "checksum": {"name": "sha256", "checksum": "x"}, **extra,
        }  # fmt: skip

    nodes = [
        node("orders", "model", []),
        node("revenue", "model", ["model.shop.orders"]),
        node("not_null_orders_id", "test", ["model.shop.orders"], attached_node="model.shop.orders", column_name="id"),
    ]
    return {
        "metadata": {
            "dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json",
            "dbt_version": "1.9.0", "generated_at": "2026-01-15T09:58:00Z", "invocation_id": "i-1",
            "adapter_type": "postgres", "project_name": "shop",
        },
        "nodes": {each["unique_id"]: each for each in nodes},
        "sources": {}, "exposures": {}, "parent_map": {}, "child_map": {},
        **more,
    }  # fmt: skip


def _results(status: str) -> dict[str, Any]:
    return {
        "metadata": {
            "dbt_schema_version": "https://schemas.getdbt.com/dbt/run-results/v6.json",
            "dbt_version": "1.9.0", "generated_at": "2026-01-15T09:59:00Z", "invocation_id": "i-1",
        },
        "results": [
            {
                "unique_id": "test.shop.not_null_orders_id", "status": status, "failures": 3, "message": "Got 3",
                "execution_time": 1.0, "thread_id": "Thread-1", "adapter_response": {},
                "timing": [
                    {"name": "execute", "started_at": "2026-01-15T09:58:30Z", "completed_at": "2026-01-15T09:58:40Z"}
                ],
            }
        ],
        "elapsed_time": 2.0,
    }  # fmt: skip


def test_dbt__artifacts__become_datasets_lineage_and_signals(alone: HealthApi) -> None:
    upload = {"manifest": _manifest(), "run_results": _results("fail"), "namespace": "postgres://db:5432"}

    report = done(alone.post("/lineage/dbt", upload), 200)

    assert report["invocation_id"] == "i-1"
    assert report["refused"] == []
    assert report["datasets"] == 2, "the tables of the project, once each"
    assert (report["results"], report["failed"]) == (1, 1)
    assert report["lineage"] >= 1
    assert report["signals"] >= 1
    found = {
        each["dataset_urn"].rpartition(":")[2]: each["dataset_urn"]
        for each in done(alone.get("/datasets"), 200)["items"]
    }
    orders = next(urn for name, urn in found.items() if "orders" in name)
    assert {each["state"] for each in done(alone.get(f"{of(orders)}/signals"), 200)["signals"]} == {"CRITICAL"}
    again = done(alone.post("/lineage/dbt", upload), 200)
    assert again["refused"] == []
    assert {each["version"] for each in done(alone.get(f"{of(orders)}/signals"), 200)["signals"]} == {1}


def test_dbt__for_a_dataset_that_was_deleted__says_so_and_does_the_rest(alone: HealthApi) -> None:
    done(alone.post("/lineage/dbt", {"manifest": _manifest(), "namespace": "postgres://db:5432"}), 200)
    urns = [each["dataset_urn"] for each in done(alone.get("/datasets"), 200)["items"]]
    orders = next(urn for urn in urns if "orders" in urn)
    done(alone.delete(of(orders)), 200)
    upload = {"manifest": _manifest(), "run_results": _results("fail"), "namespace": "postgres://db:5432"}

    report = done(alone.post("/lineage/dbt", upload), 200)

    assert report["refused"]


@pytest.mark.parametrize(
    "upload",
    [
        {},
        {"manifest": None},
        {"manifest": {}},
        {"manifest": []},
        {"manifest": "x"},
        {"manifest": {"metadata": {}, "nodes": []}},
        {"manifest": _manifest(), "run_results": {}},
        {"manifest": _manifest(), "run_results": 7},
        {"manifest": _manifest(), "sources": []},
        {"manifest": _manifest(), "bogus": 1},
        {"manifest": _manifest(), "namespace": 5},
    ],
)
def test_dbt__what_are_no_artifacts__is_refused_and_nothing_is_learnt(api: HealthApi, upload: dict[str, Any]) -> None:
    before = done(api.get("/dataset-changes"), 200)["checkpoint"]

    problem(api.post("/lineage/dbt", upload), 400, "bad_payload")

    assert done(api.get("/dataset-changes", params={"after": before}), 200)["changes"] == []


def test_dbt__compressed__is_read(api: HealthApi) -> None:
    content = gzip.compress(json.dumps({"manifest": _manifest(), "namespace": "postgres://zip:5432"}).encode())

    done(api.post("/lineage/dbt", content=content, headers={"content-encoding": "gzip"}), 200)


def test_dbt__a_test_that_failed__is_listed_with_its_history_and_shown_on_the_page(alone: HealthApi) -> None:
    upload = {"manifest": _manifest(), "run_results": _results("fail"), "namespace": "postgres://db:5432"}
    done(alone.post("/lineage/dbt", upload), 200)
    urn = "urn:dp:postgres+db@5432:dw.shop.orders"

    found = done(alone.get(f"{of(urn)}/results?history=1&kind=TEST"), 200)

    assert found["failing"] == 1
    (test,) = found["results"]
    assert (test["test_id"], test["state"], test["message"], test["failures"]) == (
        "NOT_NULL_ORDERS_ID:id", "CRITICAL", "Got 3", 3,
    )  # fmt: skip
    assert [each["state"] for each in test["history"]] == ["CRITICAL"]
    signal = done(alone.get(f"{of(urn)}/signals/DATA_QUALITY"), 200)
    assert (signal["message"], signal["failure_signatures"]) == ("Got 3", ["NOT_NULL_ORDERS_ID:id"])
    problem(alone.get(f"{of(urn)}/results?history=31"), 400, "bad_payload")


def test_jobs__events_of_a_run__are_listed_shown_and_on_the_page(alone: HealthApi) -> None:
    facets = {"errorMessage": {"message": "no such column", "programmingLanguage": "SQL"}}
    event = {
        "eventType": "FAIL", "eventTime": "2026-01-15T09:58:00Z", "run": {"runId": "r-1", "facets": facets},
        "job": {"namespace": "airflow", "name": "load.orders"}, "outputs": [{"namespace": "pg", "name": "orders"}],
    }  # fmt: skip
    done(alone.post("/lineage", event), 201)
    alone.health.drain()

    (listed,) = done(alone.get("/jobs?search=load"), 200)["items"]
    shown = done(alone.get(f"/jobs/{listed['job_id']}"), 200)

    assert (listed["state"], listed["message"]) == ("FAILED", "no such column")
    assert [each["run_id"] for each in shown["runs"]] == ["r-1"]
    assert done(alone.get("/jobs?state=COMPLETED"), 200)["items"] == []
    problem(alone.get("/jobs/job:none"), 404, "not_found")
    problem(alone.get("/jobs?page_token=x"), 400, "bad_payload")
