"""OpenLineage events as effects: the golden payload, every facet that is understood, and what hostile senders try."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from headgate.errors import InvalidPayloadError, PayloadTooLargeError
from headgate.health.ingest import names as openlineage_names
from headgate.health.ingest.effects import (
    AliasEffect,
    DatasetDiscovered,
    Effect,
    IngestWarning,
    LifecycleEffect,
    ResultEffect,
    RunState,
    SignalEffect,
    SpecUpdate,
)
from headgate.health.ingest.events import EVENT_BYTES_MAX, Event, EventKind, parse, split
from headgate.health.ingest.names import NameResolver, made_column, made_urn, producer_id
from headgate.health.ingest.runs import folded
from headgate.health.ingest.translate import translate
from headgate.health.model import urns
from headgate.health.model.datasets import Slos, VolumeSlo
from headgate.health.model.enums import EntityType, SignalState
from headgate.health.model.signals import checked
from headgate.health.results.model import ResultKind
from headgate.ids import made_at_ms

GOLDEN: Final[dict[str, Any]] = {
    "eventType": "COMPLETE", "eventTime": "2026-01-15T10:00:00Z", "producer": "https://example.com/etl/1.4",
    "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
    "run": {"runId": "0190a0b2-7d3e-7c11-9c55-0d8f6a1b2c3d"},
    "job": {"namespace": "airflow-prod", "name": "orders_etl.load"},
    "inputs": [{"namespace": "kafka://broker:9092", "name": "orders.created",
        "inputFacets": {"dataQualityAssertions": {
            "_producer": "https://example.com",
            "_schemaURL": "https://openlineage.io/spec/facets/1-1-0/DataQualityAssertionsDatasetFacet.json",
            "assertions": [{"assertion": "not_null", "column": "customer_id", "success": False, "severity": "error",
                            "expected": "0", "actual": "1120"}]}}}],
    "outputs": [{"namespace": "snowflake://org-acct", "name": "DW.PUBLIC.ORDERS",
        "outputFacets": {"outputStatistics": {
            "_producer": "https://example.com",
            "_schemaURL": "https://openlineage.io/spec/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json",
            "rowCount": 127}},
        "facets": {"columnLineage": {
            "_producer": "https://example.com",
            "_schemaURL": "https://openlineage.io/spec/facets/1-2-0/ColumnLineageDatasetFacet.json",
            "fields": {"CUSTOMER_ID": {"inputFields": [
                {"namespace": "kafka://broker:9092", "name": "orders.created", "field": "customer_id",
                 "transformations": [{"type": "DIRECT", "subtype": "IDENTITY"}]}]}}}}}],
}  # fmt: skip
TOPIC: Final = "urn:dp:kafka+broker@9092:orders.created"
TABLE: Final = "urn:dp:snowflake+org-acct:DW.PUBLIC.ORDERS"
JOB: Final = "job:airflow-prod.orders_etl.load"
AT: Final = "2026-01-15T10:00:00.000Z"
NOW_MS: Final = 1_768_471_200_000


def effects(event: dict[str, Any], names: NameResolver | None = None, slos: Slos | None = None) -> list[Effect]:
    return translate(parse(json.dumps(event).encode()), names or NameResolver(), lambda _urn: slos)


def of_kind(found: list[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in found if isinstance(effect, kind)]


def only(found: list[Effect], kind: type[Any]) -> Any:
    (effect,) = of_kind(found, kind)
    return effect


def event(**changes: Any) -> dict[str, Any]:
    plain = {
        "eventType": "COMPLETE", "eventTime": "2026-01-15T10:00:00Z", "producer": "https://x", "schemaURL": "https://y",
        "run": {"runId": "0190a0b2-7d3e-7c11-9c55-0d8f6a1b2c3d"}, "job": {"namespace": "ns", "name": "job"},
        "inputs": [{"namespace": "pg", "name": "a"}], "outputs": [{"namespace": "pg", "name": "b"}],
    }  # fmt: skip
    return {name: value for name, value in {**plain, **changes}.items() if value is not ...}


def with_output(**facets: Any) -> dict[str, Any]:
    return event(outputs=[{"namespace": "pg", "name": "b", **facets}])


def checks_of(found: list[Effect]) -> list[ResultEffect]:
    return [each for each in of_kind(found, ResultEffect) if each.kind is ResultKind.TEST]


# The golden payload.


def test_translate__the_golden_event__sets_lineage_columns_volume_and_quality() -> None:
    found = effects(GOLDEN)

    assert {effect.dataset_urn for effect in of_kind(found, DatasetDiscovered)} == {TOPIC, TABLE}
    spec = only(found, SpecUpdate)
    assert (spec.producer_id, spec.producer_name, spec.producer_type) == (JOB, "orders_etl.load", EntityType.JOB)
    assert (spec.reads, spec.writes) == ({TOPIC}, {TABLE})
    assert spec.column_reads == {f"urn:col:{TOPIC}:customer_id"}
    assert spec.column_writes == {f"urn:col:{TABLE}:CUSTOMER_ID"}
    assert (spec.at, spec.state, spec.run_id) == (AT, RunState.COMPLETE, "0190a0b2-7d3e-7c11-9c55-0d8f6a1b2c3d")
    volume = only(found, SignalEffect)
    test, run = of_kind(found, ResultEffect)
    assert (test.dataset_urn, test.kind, test.test_id) == (TOPIC, ResultKind.TEST, "NOT_NULL:customer_id")
    assert (test.state, test.signature) == (SignalState.CRITICAL, "NOT_NULL:customer_id")
    assert (run.dataset_urn, run.kind, run.test_id, run.state) == (TABLE, ResultKind.RUN, JOB, SignalState.OK)
    assert (volume.dataset_urn, volume.signal_type, volume.state) == (TABLE, "VOLUME", SignalState.OK)
    assert volume.metrics.evidence_count == 127
    assert of_kind(found, IngestWarning) == []


def test_translate__signals_of_the_golden_event__are_updates_that_would_be_taken() -> None:
    for effect in of_kind(effects(GOLDEN), SignalEffect):
        update = effect.update()

        assert checked(update, NOW_MS) == update
        assert update.expected_version == -1
        assert update.value.top_producer is not None
        assert update.value.top_producer.producer_id == JOB


def test_translate__the_same_event_twice__is_the_same() -> None:
    assert effects(GOLDEN) == effects(GOLDEN)


# Names.


def test_translate__names_that_are_known__are_used_and_nothing_is_discovered() -> None:
    names = NameResolver(
        alias=lambda namespace, name: "urn:dp:dw:orders:v1" if (namespace, name) == ("pg", "b") else None,
        topic=lambda _namespace, topic: f"urn:dp:t:{topic}",
    )
    found = effects(event(inputs=[{"namespace": "kafka://b:9092", "name": "orders"}]), names)

    spec = only(found, SpecUpdate)
    assert (spec.reads, spec.writes) == ({"urn:dp:t:orders"}, {"urn:dp:dw:orders:v1"})
    assert of_kind(found, DatasetDiscovered) == []


def test_translate__a_urn_in_the_namespace_headgate__is_that_dataset() -> None:
    urn = "urn:dp:shop:orders:v1"

    found = effects(event(outputs=[{"namespace": "headgate", "name": urn}, {"namespace": "headgate", "name": "plain"}]))

    assert sorted(only(found, SpecUpdate).writes) == ["urn:dp:headgate:plain", urn]


def test_translate__symlinks__are_aliases() -> None:
    symlinks = {"symlinks": {"identifiers": [{"namespace": "hive://h", "name": "db.b", "type": "TABLE"}]}}
    found = effects(with_output(facets=symlinks))

    assert only(found, AliasEffect) == AliasEffect(
        namespace="hive://h", name="db.b", dataset_urn="urn:dp:pg:b", provenance="symlink of pg b"
    )


def test_translate__a_symlink_that_is_known__names_the_dataset() -> None:
    symlinks = {"symlinks": {"identifiers": [{"namespace": "hive://h", "name": "db.b", "type": "TABLE"}]}}
    names = NameResolver(alias=lambda namespace, _name: "urn:dp:dw:b" if namespace == "hive://h" else None)
    found = effects(with_output(facets=symlinks), names)

    assert only(found, SpecUpdate).writes == {"urn:dp:dw:b"}
    alias = only(found, AliasEffect)
    assert (alias.namespace, alias.name, alias.dataset_urn) == ("pg", "b", "urn:dp:dw:b")
    assert [each.name for each in of_kind(found, DatasetDiscovered)] == ["a"]


def test_translate__a_symlink_that_is_another_dataset__is_an_oddity() -> None:
    symlinks = {"symlinks": {"identifiers": [{"namespace": "hive://h", "name": "db.b", "type": "TABLE"}]}}
    names = NameResolver(alias=lambda namespace, _name: "urn:dp:dw:b" if namespace == "hive://h" else "urn:dp:dw:c")
    found = effects(with_output(facets=symlinks), names)

    assert of_kind(found, AliasEffect) == []
    assert "urn:dp:dw:b, not urn:dp:dw:c" in only(found, IngestWarning).reason


@pytest.mark.parametrize(
    ("namespace", "name", "urn"),
    [
        ("kafka://broker:9092", "orders.created", "urn:dp:kafka+broker@9092:orders.created"),
        ("s3://bucket", "data/orders", "urn:dp:s3+bucket:data~orders"),
        ("bigquery", "p.d.t", "urn:dp:bigquery:p.d.t"),
        ("arn:aws:glue:eu-west-1:123", "table/db/t", "urn:dp:arn@aws@glue@eu-west-1@123:table~db~t"),
    ],
)
def test_made_urn__of_usual_names__can_be_read(namespace: str, name: str, urn: str) -> None:
    assert made_urn(namespace, name) == urn


def test_made_urn__names_that_look_alike__never_become_one() -> None:
    spellings = [
        "a/b", "a~b", "a:b", "a@b", "a://b", "a+b", "a b", "a  b", "a-b", "a_b", "a.b", "A.b", "a#b", "a\x00b", "ä.b",
        "/a/b", "a/b/", "v1", "v2", "x" * 600, "x" * 601, "a~0123456789ab", "a/0123456789ab", "日本", "日本語", "...",
    ]  # fmt: skip
    made = [made_urn("pg", spelling) for spelling in spellings] + [made_urn(spelling, "t") for spelling in spellings]

    assert len(set(made)) == len(made)
    for urn in made:
        assert urns.dataset_urn(urn) == urn
        assert urns.version_of(urn) is None


def test_made_urn__a_name_made_to_look_like_that_of_another__is_distinguished() -> None:
    other = made_urn("pg", "a b")
    forged = other.rpartition(":")[2].replace("~", "/")

    assert made_urn("pg", forged) != other


def test_made_column__odd_names__are_legal_and_differ() -> None:
    columns = [
        "id",
        "a.b",
        "Order ID",
        "Order-ID",
        "a:b",
        "a#b",
        "a\x00b",
        "ü",
        "@x",
        "a~b",
        "[0]",
        "日本語",
        "x" * 1000,
    ]
    made = [made_column(TABLE, column) for column in columns]

    assert None not in made
    assert len(set(made)) == len(made)
    for urn in made:
        assert urn is not None
        assert urns.column(urn).dataset_urn == TABLE
    assert made[:2] == [f"urn:col:{TABLE}:id", f"urn:col:{TABLE}:a.b"]
    assert made_column(TABLE, "") is None


def test_producer_id__namespaces_with_dots__are_distinguished() -> None:
    ids = [producer_id("a.b", "c"), producer_id("a", "b.c"), producer_id("a.b.c", "d"), producer_id("a", "b c")]

    assert len(set(ids)) == 4
    assert ids[1] == "job:a.b.c"


# Lineage.


def test_translate__indirect_columns_flattened_into_every_field__collapse() -> None:
    inputs = [
        {"namespace": "pg", "name": "a", "field": f"c{n}", "transformations": [{"type": "INDIRECT", "subtype": "JOIN"}]}
        for n in range(60)
    ]
    fields = {f"o{n}": {"inputFields": inputs, "transformationType": "IDENTITY"} for n in range(60)}
    spec = only(effects(with_output(facets={"columnLineage": {"fields": fields, "dataset": inputs}})), SpecUpdate)

    assert (len(spec.column_reads), len(spec.column_writes)) == (60, 60)


def test_translate__five_thousand_columns_each_made_of_some_others__is_quick_and_collapses() -> None:
    fields = {
        f"c{n}": {"inputFields": [{"namespace": "n", "name": "a", "field": f"c{(n + k) % 5000}"} for k in range(12)]}
        for n in range(5_000)
    }
    body = json.dumps(with_output(facets={"columnLineage": {"fields": fields}})).encode()
    assert len(body) < EVENT_BYTES_MAX

    spec = only(translate(parse(body), NameResolver(), lambda _: None), SpecUpdate)

    assert (len(spec.column_reads), len(spec.column_writes)) == (5_000, 5_000)
    assert "urn:dp:n:a" in spec.reads


def test_translate__lineage_said_outright__is_taken_over() -> None:
    source = {"type": "DATASET", "namespace": "pg", "name": "src", "field": "id"}
    target = {"type": "DATASET", "namespace": "pg", "name": "dst", "fields": {"key": {"inputs": [source]}}}
    sink = {"type": "JOB", "inputs": [{"type": "DATASET", "namespace": "pg", "name": "read_by_job"}]}
    job = {"namespace": "ns", "name": "j", "facets": {"lineage": {"entries": [target, sink]}}}
    spec = only(effects(event(job=job, inputs=..., outputs=...)), SpecUpdate)

    assert spec.reads == {"urn:dp:pg:src", "urn:dp:pg:read_by_job"}
    assert spec.writes == {"urn:dp:pg:dst"}
    assert (spec.column_reads, spec.column_writes) == ({"urn:col:urn:dp:pg:src:id"}, {"urn:col:urn:dp:pg:dst:key"})


def test_translate__a_facet_taken_back__is_not_used() -> None:
    facet = {"_deleted": True, "fields": {"x": {"inputFields": []}}}

    assert only(effects(with_output(facets={"columnLineage": facet})), SpecUpdate).column_writes == frozenset()


def test_translate__a_job_event__declares_all_of_its_lineage() -> None:
    found = effects(event(run=..., eventType=...))

    spec = only(found, SpecUpdate)
    assert (spec.run_id, spec.state) == (None, RunState.COMPLETE)


def test_translate__a_job_event_without_datasets__declares_nothing() -> None:
    assert only(effects(event(run=..., eventType=..., inputs=..., outputs=...)), SpecUpdate).state is RunState.OTHER


def test_translate__a_dataset_event__speaks_of_the_dataset_alone() -> None:
    facets = {"lifecycleStateChange": {"lifecycleStateChange": "DROP"}}
    about = {"namespace": "pg", "name": "t", "facets": facets}
    given = event(run=..., job=..., inputs=..., outputs=..., eventType=..., dataset=about)
    found = effects(given)

    assert parse(json.dumps(given).encode()).kind is EventKind.DATASET
    assert of_kind(found, SpecUpdate) == []
    assert only(found, LifecycleEffect) == LifecycleEffect(dataset_urn="urn:dp:pg:t", change="DROP", at=AT)


def test_translate__a_rename__names_what_it_was_without_discovering_it() -> None:
    facet = {"lifecycleStateChange": "RENAME", "previousIdentifier": {"namespace": "pg", "name": "old"}}
    found = effects(with_output(facets={"lifecycleStateChange": facet}))

    assert only(found, LifecycleEffect).previous_urn == "urn:dp:pg:old"
    assert "urn:dp:pg:old" not in {each.dataset_urn for each in of_kind(found, DatasetDiscovered)}


def test_translate__the_code_of_a_job__gives_the_commit_and_its_type() -> None:
    facets = {
        "sourceCodeLocation": {"type": "git", "url": "https://x", "version": "9f31c2d"},
        "jobType": {"processingType": "STREAMING", "integration": "SPARK", "jobType": "APPLICATION"},
    }
    spec = only(effects(event(job={"namespace": "ns", "name": "j", "facets": facets})), SpecUpdate)

    assert (spec.commit, spec.producer_type) == ("9f31c2d", EntityType.SERVICE)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_folded__events_in_any_order__are_the_same_complete_run(is_reversed: bool) -> None:
    start = only(effects(event(eventType="START", eventTime="2026-01-15T09:00:00Z", outputs=...)), SpecUpdate)
    end = only(effects(event(inputs=...)), SpecUpdate)
    first, second = (end, start) if is_reversed else (start, end)

    run = folded(folded(None, first), second)

    assert (run.is_complete, run.at, run.reads, run.writes) == (True, AT, ("urn:dp:pg:a",), ("urn:dp:pg:b",))
    assert folded(run, first) == run


# Quality and volume.


@pytest.mark.parametrize(
    ("assertions", "states"),
    [
        ([(True, None)], [SignalState.OK]),
        ([(True, None), (False, "warn")], [SignalState.OK, SignalState.WARNING]),
        ([(False, "warn"), (False, None)], [SignalState.WARNING, SignalState.CRITICAL]),
    ],
)
def test_translate__assertions__are_a_result_each(
    assertions: list[tuple[bool, str | None]], states: list[SignalState]
) -> None:
    facet = {"assertions": [{"assertion": f"a{n}", "success": s, "severity": v} for n, (s, v) in enumerate(assertions)]}
    found = checks_of(effects(with_output(facets={"dataQualityAssertions": facet})))

    assert {each.dataset_urn for each in found} == {"urn:dp:pg:b"}
    assert [(each.test_id, each.state) for each in found] == [
        (f"A{n}:dataset", state) for n, state in enumerate(states)
    ]


def test_translate__assertions_that_two_facets_repeat__count_once() -> None:
    listed = [{"assertion": "not_null", "success": False, "column": "a"}, {"assertion": "unique", "success": True}]
    facet = {"dataQualityAssertions": {"assertions": listed}}
    found = checks_of(effects(with_output(facets=facet, outputFacets=facet)))

    assert [(each.test_id, each.state) for each in found] == [
        ("NOT_NULL:a", SignalState.CRITICAL), ("UNIQUE:dataset", SignalState.OK),
    ]  # fmt: skip


def test_translate__a_test_of_dbt__is_named_as_in_its_manifest_and_its_output_is_no_dataset() -> None:
    listed = [{"assertion": "not_null_orders_id", "success": False}, {"assertion": "adds_up", "success": True}]
    facet = {"dataQualityAssertions": {"assertions": listed}}
    found = effects(
        event(
            eventType="FAIL",
            job={"namespace": "dbt", "name": "t", "facets": {"jobType": {"integration": "DBT", "jobType": "TEST"}}},
            inputs=[{"namespace": "pg", "name": "shop.main.orders", "facets": facet}],
            outputs=[{"namespace": "pg", "name": "shop.main_dbt_test__audit.not_null_orders_id"}],
        )
    )

    assert [each.test_id for each in of_kind(found, ResultEffect)] == ["NOT_NULL:id", "ADDS_UP:dataset"]
    assert [each.name for each in of_kind(found, DatasetDiscovered)] == ["shop.main.orders"]


def test_translate__two_assertions_of_one_kind_and_column__are_two_tests() -> None:
    listed = [
        {"assertion": "accepted_values", "success": success, "column": "a", "expected": "x", "actual": "y"}
        for success in (True, False)
    ]
    found = checks_of(effects(with_output(facets={"dataQualityAssertions": {"assertions": listed}})))

    assert [(each.test_id, each.state, each.message) for each in found] == [
        ("ACCEPTED_VALUES:a", SignalState.OK, ""),
        ("ACCEPTED_VALUES:a~2", SignalState.CRITICAL, "expected x, actual y"),
    ]


@pytest.mark.parametrize(
    ("status", "severity", "state"),
    [
        ("pass", "error", SignalState.OK),
        ("skip", "error", SignalState.UNKNOWN),
        ("fail", "warn", SignalState.WARNING),
        ("fail", "error", SignalState.CRITICAL),
        ("exploded", "error", SignalState.UNKNOWN),
    ],
)
def test_translate__tests_of_a_run__are_of_the_one_dataset_it_reads(
    status: str, severity: str, state: SignalState
) -> None:
    tests = [{"name": "t", "status": status, "severity": severity, "type": "unique"}]
    run = {"runId": "r", "facets": {"test": {"tests": tests}}}
    (found,) = checks_of(effects(event(run=run)))

    assert (found.dataset_urn, found.state, found.test_id) == ("urn:dp:pg:a", state, "UNIQUE:dataset")


def test_translate__tests_of_a_run_with_two_inputs__are_held_against_neither() -> None:
    run = {"runId": "r", "facets": {"test": {"tests": [{"name": "t", "status": "fail"}]}}}
    found = effects(event(run=run, inputs=[{"namespace": "pg", "name": "a"}, {"namespace": "pg", "name": "b"}]))

    assert checks_of(found) == []
    assert only(found, IngestWarning).where == "run.facets.test"


@pytest.mark.parametrize(
    ("rows", "least", "state", "score"),
    [
        (127, None, SignalState.OK, 1.0),
        (0, None, SignalState.UNKNOWN, 0.0),
        (100, 100, SignalState.OK, 1.0),
        (25, 100, SignalState.CRITICAL, 0.25),
        (0, 0, SignalState.OK, 1.0),
    ],
)
def test_translate__rows_written__are_measured_by_what_was_promised(
    rows: int, least: int | None, state: SignalState, score: float
) -> None:
    slos = None if least is None else Slos(volume=VolumeSlo(min_events_per_window=least))
    signal = only(effects(with_output(outputFacets={"outputStatistics": {"rowCount": rows}}), slos=slos), SignalEffect)

    assert (signal.signal_type, signal.state, signal.score) == ("VOLUME", state, score)
    assert signal.failure_signature == ("LOW_VOLUME:row_count" if state.is_breach else None)
    assert checked(signal.update(), NOW_MS) == signal.update()


@pytest.mark.parametrize("state", ["START", "RUNNING", "FAIL", "ABORT", "OTHER", None, "SOMETHING_NEW"])
def test_translate__rows_of_a_run_that_is_not_complete__are_no_volume(state: str | None) -> None:
    given = {**with_output(outputFacets={"outputStatistics": {"rowCount": 1}}), "eventType": state}

    assert of_kind(effects(given), SignalEffect) == []


def test_translate__a_nominal_time__begins_the_window() -> None:
    run = {"runId": "r", "facets": {"nominalTime": {"nominalStartTime": "2026-01-15T00:00:00Z"}}}
    given = {**with_output(outputFacets={"outputStatistics": {"rowCount": 1}}), "run": run}
    signal = only(effects(given), SignalEffect)

    assert (signal.window_start, signal.window_end) == ("2026-01-15T00:00:00.000Z", AT)


def test_translate__a_run_that_failed__is_a_result_for_what_it_writes() -> None:
    facets = {
        "errorMessage": {"message": "boom\x00 at line 3", "programmingLanguage": "PYTHON", "stackTrace": "x" * 20_000},
        "parent": {"run": {"runId": "dag-run"}, "job": {"namespace": "ns", "name": "dag"}},
    }
    proof = only(effects(event(eventType="FAIL", run={"runId": "r1", "facets": facets})), ResultEffect)

    assert (proof.dataset_urn, proof.kind, proof.signature) == ("urn:dp:pg:b", ResultKind.RUN, "RUN_FAILED:dataset")
    assert (proof.state, proof.message, len(proof.detail)) == (SignalState.CRITICAL, "boom  at line 3", 8_000)
    assert (proof.parent_job, proof.run_id) == ("dag", "r1")
    assert proof.evidence_id is not None
    assert proof.evidence_id.startswith("evd-")
    assert made_at_ms(proof.evidence_id.removeprefix("evd-")) == NOW_MS


# What hostile senders try.


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"3", b"{", b"\xff\xfe", b'{"eventTime":"2026-01-15T10:00:00Z"}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_parse__what_is_no_event__is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayloadError):
        parse(body)


@pytest.mark.parametrize(
    "change",
    [
        {"eventTime": "yesterday"}, {"eventTime": "2026-01-15T10:00:00"}, {"eventTime": 3}, {"eventTime": ...},
        {"job": {"namespace": "", "name": "x"}}, {"job": {"namespace": "n", "name": "  "}}, {"job": ...},
        {"job": {"namespace": "n", "name": "x" * 3_000}}, {"job": {"name": "x"}}, {"job": []},
        {"run": {"runId": ""}}, {"run": {"runId": "x" * 200}}, {"run": {"runId": 7}}, {"run": {}},
        {"inputs": {}}, {"inputs": [3]}, {"inputs": [{"namespace": "n"}]}, {"inputs": [{"namespace": 1, "name": "x"}]},
        {"dataset": {"namespace": "n", "name": "x"}},
    ],
)  # fmt: skip
def test_parse__an_event_with_something_wrong__is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError):
        parse(json.dumps(event(**change)).encode())


def test_parse__ten_megabytes__are_refused_unread() -> None:
    with pytest.raises(PayloadTooLargeError, match="logical plan"):
        parse(b'{"x":"' + b"a" * 10_000_000)


def test_parse__too_many_datasets__are_refused() -> None:
    with pytest.raises(PayloadTooLargeError, match="tables rather than files"):
        parse(json.dumps(event(inputs=[{"namespace": "n", "name": f"f{n}"} for n in range(2_001)])).encode())


def test_split__what_is_no_batch__is_refused() -> None:
    assert len(split(b"[{},{}]")) == 2
    for body in (b"{}", b"[", b"[" * 100_000):
        with pytest.raises(InvalidPayloadError):
            split(body)
    with pytest.raises(PayloadTooLargeError):
        split(b"[" + b"{}," * 1_000 + b"{}]")


def test_parse__unknown_members_nulls_and_nanoseconds__are_accepted() -> None:
    given = event(extra={"x": 1}, inputs=None, eventTime="2026-01-15T10:00:00.123456789+01:00")
    given["outputs"][0]["facets"] = None
    given["job"]["facets"] = {"custom": {"anything": [1, 2]}}
    read = parse(json.dumps(given).encode())

    assert read.eventTime == "2026-01-15T09:00:00.123Z"
    assert isinstance(read, Event)


@pytest.mark.parametrize(
    "name", ["columnLineage", "symlinks", "lifecycleStateChange", "dataQualityAssertions", "lineage"]
)
@pytest.mark.parametrize(
    "facet",
    [3, "x", [], {"fields": 3}, {"fields": {"a": 3}}, {"identifiers": {}}, {"assertions": [{"success": "yes"}]},
     {"inputs": 3}, {"lifecycleStateChange": []}, {"_deleted": "no"}],
)  # fmt: skip
def test_translate__a_facet_of_the_wrong_type__is_left_alone_and_the_rest_is_used(name: str, facet: Any) -> None:
    found = effects(with_output(facets={name: facet}))

    assert only(found, SpecUpdate).writes == {"urn:dp:pg:b"}
    assert of_kind(found, SignalEffect) == []


@pytest.mark.parametrize("depth", [20_000, 100_000])
def test_parse__a_facet_nested_without_end__is_refused(depth: int) -> None:
    deep = b'{"fields":' * depth + b"1" + b"}" * depth

    with pytest.raises(InvalidPayloadError, match="recursion"):
        parse(json.dumps(with_output(facets={"columnLineage": "HERE"})).encode().replace(b'"HERE"', deep))


@pytest.mark.parametrize("rows", [-1, 1e300, 2**60, "many"])
def test_translate__impossible_numbers_of_rows__are_no_volume(rows: Any) -> None:
    found = effects(with_output(outputFacets={"outputStatistics": {"rowCount": rows}}))

    assert of_kind(found, SignalEffect) == []
    assert len(of_kind(found, IngestWarning)) == 1


def test_translate__an_event_full_of_wrong_facets__is_described_briefly() -> None:
    outputs = [{"namespace": "n", "name": f"t{n}", "facets": {"columnLineage": 3, "symlinks": 4}} for n in range(500)]

    assert len(of_kind(effects(event(outputs=outputs)), IngestWarning)) == 20


@pytest.mark.parametrize("text", ["\x00", "a\x00b", "\u202e", "'; DROP TABLE x", "\ud83d\ude00", "../../etc", "%00"])
def test_translate__hostile_names__become_legal_ones(text: str) -> None:
    facet = {"fields": {text: {"inputFields": [{"namespace": text, "name": text, "field": text}]}}}
    checks = {"assertions": [{"assertion": text, "success": False, "column": text}]}
    given = event(
        job={"namespace": text, "name": text},
        outputs=[
            {"namespace": text, "name": text, "facets": {"columnLineage": facet, "dataQualityAssertions": checks}}
        ],
    )
    found = effects(given)

    spec = only(found, SpecUpdate)
    for urn in spec.reads | spec.writes:
        assert urns.dataset_urn(urn) == urn
    for column in spec.column_reads | spec.column_writes:
        urns.column(column)
    for signal in of_kind(found, SignalEffect):
        assert checked(signal.update(), NOW_MS) == signal.update()


def test_parse__half_a_surrogate_pair__is_refused() -> None:
    with pytest.raises(InvalidPayloadError):
        parse(json.dumps(event()).replace('"b"', '"b\\ud800"').encode())


def test_known_urn__a_topic_rule__is_asked_for_kafka_alone() -> None:
    names = NameResolver(topic=lambda _namespace, topic: f"urn:dp:t:{topic}")

    assert openlineage_names.known_urn("pg", "orders", names) is None
    assert openlineage_names.known_urn("kafka://b", "orders", names) == "urn:dp:t:orders"
