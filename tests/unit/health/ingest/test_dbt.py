"""Artifacts of dbt as effects: tests, sources, models and exposures, in every form of them that is understood."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from headgate.errors import InvalidPayloadError
from headgate.health.ingest import dbt_artifacts
from headgate.health.ingest.dbt import Dbt, Ingested, spec_of
from headgate.health.ingest.effects import DatasetDiscovered, ResultEffect, SignalEffect, SpecUpdate
from headgate.health.ingest.names import NameResolver
from headgate.health.model.enums import EntityType, SignalState
from headgate.health.model.signals import checked
from headgate.health.results.model import ResultKind

AT: Final = "2026-01-15T10:00:00.123Z"
NOW_MS: Final = 1_768_471_300_000
RAW, ORDERS, REVENUE = (f"urn:dp:snowflake+org-acct:{name}" for name in ("RAW.SHOP.O", "DW.MAIN.ORDERS", "DW.MAIN.REV"))


def metadata(kind: str, version: int) -> dict[str, Any]:
    return {
        "dbt_schema_version": f"https://schemas.getdbt.com/dbt/{kind}/v{version}.json", "dbt_version": "1.9.0",
        "generated_at": "2026-01-15T10:00:00.123456Z", "invocation_id": "inv-1", "adapter_type": "snowflake",
        "project_name": "shop",
    }  # fmt: skip


def node(unique_id: str, **more: Any) -> dict[str, Any]:
    kind, package, name = unique_id.split(".")[:3]
    return {"unique_id": unique_id, "resource_type": kind, "package_name": package, "name": name, **more}


def manifest(version: int = 12, **changes: Any) -> dict[str, Any]:
    nodes = [
        node("model.shop.stg", config={"materialized": "ephemeral"}, depends_on={"nodes": ["source.shop.raw.o"]}),
        node("model.shop.orders", relation_name='"DW"."MAIN"."ORDERS"', depends_on={"nodes": ["model.shop.stg"]},
             description="Orders", config={"materialized": "table", "meta": {"owner": "@orders-team"}}),
        node("model.shop.revenue", relation_name="DW.MAIN.REV", depends_on={"nodes": ["model.shop.orders"]},
             meta={"owner": {"name": "Finance", "email": "fin@x.example"}}),
        node("test.shop.not_null.1", attached_node="model.shop.orders", column_name="id",
             test_metadata={"name": "not_null"}, depends_on={"nodes": ["model.shop.orders"]}),
        node("test.shop.unique.2", column_name="id", test_metadata={"name": "unique"},
             depends_on={"nodes": ["model.shop.orders"]}),
        node("test.shop.both.3", depends_on={"nodes": ["model.shop.orders", "model.shop.revenue"]}),
    ]  # fmt: skip
    source = node("source.shop.raw.o", database="RAW", schema="SHOP", identifier="O")
    exposure = {
        "unique_id": "exposure.shop.board", "name": "board", "type": "dashboard", "package_name": "shop",
        "owner": {"email": "ceo@x.example"}, "depends_on": {"nodes": ["model.shop.revenue"]},
    }  # fmt: skip
    return {
        "metadata": metadata("manifest", version), "nodes": {each["unique_id"]: each for each in nodes},
        "sources": {source["unique_id"]: source}, "exposures": {exposure["unique_id"]: exposure},
        "parent_map": {"model.shop.revenue": ["model.shop.orders"]}, "macros": {"x": {"sql": "…"}}, **changes,
    }  # fmt: skip


def project(document: dict[str, Any] | None = None, names: NameResolver | None = None) -> Dbt:
    read = dbt_artifacts.manifest(json.dumps(document or manifest()).encode())
    return Dbt(read, names or NameResolver(), namespace="snowflake://org-acct")


def ran(results: dict[str, str], version: int = 6) -> Ingested:
    rows = [{"unique_id": name, "status": status, "message": "boom\x00"} for name, status in results.items()]
    document = {"metadata": metadata("run-results", version), "results": rows, "elapsed_time": 1.0}
    return project().run_results(dbt_artifacts.run_results(json.dumps(document).encode()))


def fresh(**result: Any) -> Ingested:
    document = {"metadata": metadata("sources", 3), "results": [{"unique_id": "source.shop.raw.o", **result}]}
    return project().sources(dbt_artifacts.sources(json.dumps(document).encode()))


def of_kind(found: Ingested, kind: type[Any]) -> list[Any]:
    return [effect for effect in found.effects if isinstance(effect, kind)]


def only(found: Ingested, kind: type[Any]) -> Any:
    (effect,) = of_kind(found, kind)
    return effect


# Lineage.


@pytest.mark.parametrize("version", [10, 11, 12])
def test_lineage__models_sources_and_exposures__are_producers_and_readers(version: int) -> None:
    specs = {spec.producer_id: spec for spec in of_kind(project(manifest(version)).lineage(), SpecUpdate)}

    assert set(specs) == {"job:dbt.shop.orders", "job:dbt.shop.revenue", "job:dbt.shop.exposure.board"}
    orders, board = specs["job:dbt.shop.orders"], specs["job:dbt.shop.exposure.board"]
    assert (orders.reads, orders.writes) == ({RAW}, {ORDERS}), "through the model that is kept nowhere"
    assert (specs["job:dbt.shop.revenue"].reads, specs["job:dbt.shop.revenue"].writes) == ({ORDERS}, {REVENUE})
    assert (board.reads, board.writes, board.producer_type) == ({REVENUE}, frozenset(), EntityType.SERVICE)
    assert orders.at == AT


def test_lineage__specs__are_complete_and_have_an_id_of_their_content() -> None:
    first, again = (of_kind(project().lineage(), SpecUpdate)[0] for _ in range(2))
    spec = spec_of(first)

    assert spec is not None
    assert spec == spec_of(again)
    assert spec.is_complete
    assert spec.spec_id.startswith("lspec:job:dbt.shop.orders:dbt:")


def test_lineage__owners__come_with_what_is_discovered() -> None:
    found = {each.dataset_urn: each for each in of_kind(project().lineage(), DatasetDiscovered)}

    assert set(found) == {RAW, ORDERS, REVENUE}
    orders, revenue = found[ORDERS].metadata, found[REVENUE].metadata
    assert (orders.owner_team, orders.description) == ("orders-team", "Orders")
    assert (revenue.owner_team, revenue.owner_email) == ("Finance", "fin@x.example")


def test_lineage__names_that_are_known__are_used() -> None:
    names = NameResolver(alias=lambda _namespace, name: f"urn:dp:dw:{name.lower()}")
    found = project(names=names).lineage()

    assert of_kind(found, DatasetDiscovered) == []
    assert of_kind(found, SpecUpdate)[0].writes == {"urn:dp:dw:dw.main.orders"}


def test_lineage__nodes_that_depend_on_each_other__end() -> None:
    document = manifest(parent_map={"model.shop.stg": ["model.shop.stg2"], "model.shop.stg2": ["model.shop.stg"]})
    document["nodes"]["model.shop.stg2"] = node("model.shop.stg2", config={"materialized": "ephemeral"})
    orders = of_kind(project(document).lineage(), SpecUpdate)[0]

    assert orders.reads == frozenset()


@pytest.mark.parametrize(
    ("relation", "name"),
    [('"a"."b.c"."d"', "a.b.c.d"), ("`p`.`d`.`t`", "p.d.t"), ("[db].[dbo].[t]", "db.dbo.t"), ("a.b.c", "a.b.c")],
)
def test_lineage__quotes_of_every_kind_of_warehouse__are_taken_off(relation: str, name: str) -> None:
    document = manifest()
    document["nodes"]["model.shop.orders"]["relation_name"] = relation
    found = {each.name for each in of_kind(project(document).lineage(), DatasetDiscovered)}

    assert name in found


# Tests and models.


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("pass", SignalState.OK),
        ("warn", SignalState.WARNING),
        ("fail", SignalState.CRITICAL),
        ("error", SignalState.CRITICAL),
        ("skipped", SignalState.UNKNOWN),
        ("no-op", SignalState.UNKNOWN),
        ("a word of tomorrow", SignalState.UNKNOWN),
    ],
)
@pytest.mark.parametrize("version", [4, 5, 6])
def test_run_results__tests_of_a_model__are_a_result_each(status: str, state: SignalState, version: int) -> None:
    found = ran({"test.shop.not_null.1": status, "test.shop.unique.2": "pass"}, version)

    test, other = of_kind(found, ResultEffect)
    assert (test.dataset_urn, test.kind, test.test_id) == (ORDERS, ResultKind.TEST, "NOT_NULL:id")
    assert (test.state, test.message) == (state, "" if state is SignalState.OK else "boom")
    assert (other.test_id, other.state, other.message) == ("UNIQUE:id", SignalState.OK, "")
    assert found.invocation_id == "inv-1"


def test_run_results__a_test_of_two_models__is_of_the_one_downstream() -> None:
    result = only(ran({"test.shop.both.3": "fail"}), ResultEffect)

    assert (result.dataset_urn, result.test_id) == (REVENUE, "BOTH:dataset")


def test_run_results__tests_of_one_kind_and_column__are_told_apart() -> None:
    document = manifest()
    for number in (4, 5):
        document["nodes"][f"test.shop.range.{number}"] = node(
            f"test.shop.range.{number}", attached_node="model.shop.orders", column_name="id",
            test_metadata={"name": "range"},
        )  # fmt: skip
    declared = project(document).declared_tests()[ORDERS]

    assert {"NOT_NULL:id", "UNIQUE:id"} <= declared
    assert sum(each.startswith("RANGE:id~") for each in declared) == 2


def test_run_results__a_model_that_failed__is_a_result_with_its_message() -> None:
    failed, skipped = of_kind(ran({"model.shop.orders": "error", "model.shop.revenue": "skipped"}), ResultEffect)

    assert (failed.dataset_urn, failed.kind, failed.state) == (ORDERS, ResultKind.RUN, SignalState.CRITICAL)
    assert (failed.message, failed.run_id, failed.signature) == ("boom", "inv-1", "MODEL_FAILED:dataset")
    assert (skipped.dataset_urn, skipped.state) == (REVENUE, SignalState.UNKNOWN)


def test_run_results__a_unit_test_that_failed__is_a_result_of_its_model() -> None:
    document = manifest()
    unit = node("unit_test.shop.orders.adds_up", depends_on={"nodes": ["model.shop.orders"]})
    document["unit_tests"] = {unit["unique_id"]: {**unit, "name": "adds_up"}}
    rows = [{"unique_id": unit["unique_id"], "status": "fail", "message": "got 3"}]
    results = {"metadata": metadata("run-results", 6), "results": rows}
    found = project(document).run_results(dbt_artifacts.run_results(json.dumps(results).encode()))

    assert [(each.dataset_urn, each.test_id, each.message) for each in of_kind(found, ResultEffect)] == [
        (ORDERS, "ADDS_UP:dataset", "got 3")
    ]


def test_run_results__sent_twice__are_the_same_effects() -> None:
    results = {"model.shop.orders": "error", "test.shop.not_null.1": "fail"}

    assert ran(results) == ran(results)


def test_run_results__nodes_that_the_manifest_lacks__are_left_out() -> None:
    assert ran({"test.shop.gone.9": "fail", "operation.shop.hook": "error"}).effects == ()


# Sources.


@pytest.mark.parametrize(
    ("status", "state", "score"),
    [("pass", SignalState.OK, 1.0), ("warn", SignalState.WARNING, 0.5), ("error", SignalState.CRITICAL, 0.5)],
)
def test_sources__a_source__is_as_fresh_as_dbt_found(status: str, state: SignalState, score: float) -> None:
    signal = only(
        fresh(
            status=status, max_loaded_at="2026-01-15T06:00:00Z", snapshotted_at="2026-01-15T10:00:00Z",
            max_loaded_at_time_ago_in_s=14_400.0,
            criteria={"warn_after": {"count": 1, "period": "hour"}, "error_after": {"count": 2, "period": "hour"}},
        ),
        SignalEffect,
    )  # fmt: skip

    assert (signal.dataset_urn, signal.signal_type, signal.state, signal.score) == (RAW, "FRESHNESS", state, score)
    assert (signal.window_start, signal.window_end) == ("2026-01-15T06:00:00.000Z", "2026-01-15T10:00:00.000Z")
    assert signal.slo_threshold == 7200
    assert signal.failure_signature == (None if state is SignalState.OK else "STALE:max_loaded_at")
    assert checked(signal.update(), NOW_MS) == signal.update()


def test_sources__one_that_could_not_be_looked_at__is_unknown() -> None:
    signal = only(fresh(status="runtime error", error="no such table"), SignalEffect)

    assert (signal.state, signal.score, signal.window_end) == (SignalState.UNKNOWN, 0.0, AT)
    assert signal.message == "no such table"


# Forms.


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("run-results", 7, "only v4, v5, v6; upgrade Headgate"),
        ("run-results", 3, "upgrade dbt"),
        ("manifest", 12, "this is a manifest artifact"),
    ],
)
def test_read__another_form__is_refused_with_what_to_do(kind: str, version: int, message: str) -> None:
    with pytest.raises(InvalidPayloadError, match=message):
        dbt_artifacts.run_results(json.dumps({"metadata": metadata(kind, version), "results": 3}).encode())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata":{}}',
        b'{"metadata":{"dbt_schema_version":"x","generated_at":"y"}}',
        b"[" * 99_999,
    ],
)
def test_read__what_is_no_artifact__is_refused(body: bytes) -> None:
    for read in (dbt_artifacts.run_results, dbt_artifacts.sources, dbt_artifacts.manifest):
        with pytest.raises(InvalidPayloadError):
            read(body)


def test_read__an_artifact_without_a_moment__is_refused() -> None:
    document = {"metadata": {**metadata("sources", 3), "generated_at": "today"}, "results": []}

    with pytest.raises(InvalidPayloadError, match="generated_at"):
        dbt_artifacts.sources(json.dumps(document).encode())
