"""The catalogue, compared with what users rely on: names, keys, indexes, expiry, billing, classification."""

from __future__ import annotations

import re

import pytest

from headgate.errors import InvalidItemError
from headgate.store.catalogue import tables
from headgate.store.catalogue.tables import ALL_TABLES, named
from headgate.store.model.schema import Billing, Classification, Entity, Key, KeyKind, Table

ON_DEMAND, PROVISIONED = Billing.ON_DEMAND, Billing.PROVISIONED
INTERNAL, CONFIDENTIAL = Classification.INTERNAL, Classification.CONFIDENTIAL

# The keys of the pipelines table: entity, PK, SK, GSI1PK, GSI1SK, with X for every field.
PIPELINE_KEYS = [
    (tables.PIPELINE_CONFIG, "PIPELINE#X", "CONFIG", "PIPELINES", "X"),
    (tables.TRAIT_RESULT, "PIPELINE#X", "TRAIT#X", None, None),
    (tables.TRAIT_OF_DATE, "PIPELINE#X", "TRAIT#X#X", None, None),
    (tables.TRAIT_OF_PERIOD, "PIPELINE#X", "TRAIT#X#X#X", None, None),
    (tables.RUN_STATE, "RUN#X", "STATE", "RUNS#X#X", "X"),
    (tables.RUN_COPY, "PIPELINE#X", "RUN#X", "OPEN-RUNS#X", "X"),
    (tables.RUN_LOG, "PIPELINE#X", "RUNLOG#X#X", None, None),
    (tables.PIPELINE_EVENT, "PIPELINE#X", "EVENT#X#X", None, None),
    (tables.LOCK, "LOCK#X", "LOCK", None, None),
    (tables.RERUN_STATE, "RERUN#X", "STATE", "RERUNS", "X"),
    (tables.RERUN_COPY, "PIPELINE#X", "RERUN#X", None, None),
    (tables.READINESS, "PIPELINE#X", "READINESS", None, None),
    (tables.MARKER, "MARKER#X", "X#X", None, None),
]

# The tables of health: name, keys, TTL attribute, billing, classification.
HEALTH_TABLES = [
    ("observability-signal-state", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-incident-index", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-dataset-registry", ("PK", "SK"), None, PROVISIONED, CONFIDENTIAL),
    ("observability-dataset-resolution", ("PK", "SK"), None, PROVISIONED, INTERNAL),
    ("observability-evidence-cache", ("evidence_id",), "ttl", ON_DEMAND, INTERNAL),
    ("observability-dataset-writers", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-dataset-readers", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-column-writers", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-column-readers", ("PK", "SK"), "ttl", ON_DEMAND, INTERNAL),
    ("observability-health-check", ("PK",), None, ON_DEMAND, INTERNAL),
]

# Their indexes. Two are keyed differently on purpose: listing breaches from an index on `state` would
# put every healthy signal into one partition, and the registry's would list archived versions too.
HEALTH_INDEXES = [
    ("observability-signal-state", "breach-index", ("breach_pk", "breach_sk")),
    ("observability-incident-index", "dataset-time-index", ("GSI1PK", "GSI1SK")),
    ("observability-incident-index", "status-severity-index", ("GSI2PK", "GSI2SK")),
    ("observability-dataset-registry", "tier-index", ("latest_tier", "PK")),
    ("observability-dataset-registry", "owner-index", ("latest_owner_team", "PK")),
    ("observability-evidence-cache", "dataset-time-index", ("dataset_urn", "created_at")),
]

URN = "urn:dp:orders:order_created:v1"
AT = "2026-01-15T10:00:15.000Z"

# Keys of the sample items, to the letter.
SAMPLE_KEYS = [
    (tables.SIGNAL, {"dataset_urn": URN, "signal_type": "CONTRACT_COMPLIANCE"}, Key(URN, "CONTRACT_COMPLIANCE")),
    (tables.INCIDENT, {"incident_id": "INC-7721"}, Key("INC#INC-7721", "META")),
    (tables.DATASET_CONFIG, {"dataset_urn": URN}, Key(URN, "CONFIG#LATEST")),
    # Zero-padded, since CONFIG#v11 would sort before CONFIG#v2.
    (tables.DATASET_CONFIG_VERSION, {"dataset_urn": URN, "version": 11}, Key(URN, "CONFIG#v000011")),
    (
        tables.RESOLUTION_RULE,
        {"topic_pattern": "raw.orders.*", "name": "by-event-type"},
        Key("TOPIC#raw.orders.*", "RULE#by-event-type"),
    ),
    (
        tables.EVIDENCE,
        {"evidence_id": "evd-01HQXY8MNP4QR7ST9VW2XYZ456"},
        Key("evd-01HQXY8MNP4QR7ST9VW2XYZ456", None),
    ),
    (
        tables.DATASET_WRITER,
        {"dataset_urn": URN, "producer_id": "job:orders-delta-landing"},
        Key(URN, "producer#job:orders-delta-landing"),
    ),
    (
        tables.DATASET_READER,
        {"dataset_urn": URN, "consumer_id": "job:finance-pipeline"},
        Key(URN, "consumer#job:finance-pipeline"),
    ),
    (
        tables.COLUMN_WRITER,
        {"dataset_urn": URN, "column": "customer_id", "producer_id": "job:orders-svc"},
        Key("urn:col:urn:dp:orders:order_created:v1:customer_id", "producer#job:orders-svc"),
    ),
    (
        tables.COLUMN_READER,
        {"dataset_urn": URN, "column": "customer_id", "consumer_id": "job:finance-pipeline"},
        Key("urn:col:urn:dp:orders:order_created:v1:customer_id", "consumer#job:finance-pipeline"),
    ),
    (tables.FANOUT_RUN, {"run_id": "8f14e45f"}, Key("8f14e45f", "RUN")),
    (tables.CHUNK, {"run_id": "8f14e45f", "start": 500}, Key("8f14e45f", "CHUNK#chunk-0000500")),
]


def _shape(pattern: str | None) -> str | None:
    return None if pattern is None else re.sub(r"\{[^}]+\}", "X", pattern)


def _by_name(name: str) -> Table:
    return named(name)


@pytest.mark.parametrize(
    ("entity", "partition", "sort", "index_partition", "index_sort"), PIPELINE_KEYS, ids=lambda value: str(value)[:24]
)
def test_pipelines_table__every_entity__has_the_keys_users_query_by(
    entity: Entity, partition: str, sort: str, index_partition: str | None, index_sort: str | None
) -> None:
    assert (_shape(entity.partition), _shape(entity.sort)) == (partition, sort)
    assert _shape(entity.index_keys.get("GSI1PK")) == index_partition
    assert _shape(entity.index_keys.get("GSI1SK")) == index_sort
    assert entity in tables.PIPELINES.entities


def test_pipelines_table__as_a_whole__has_one_index_a_stream_and_a_ttl() -> None:
    table = tables.PIPELINES

    assert table.key_names == ("PK", "SK")
    assert [(index.name, *(key.name for key in index.attributes())) for index in table.indexes] == [
        ("GSI1", "GSI1PK", "GSI1SK")
    ]
    assert table.stream
    assert table.ttl_attribute == "ttl"


@pytest.mark.parametrize(("name", "keys", "ttl", "billing", "classification"), HEALTH_TABLES)
def test_health_tables__each__has_its_keys_and_policy(
    name: str, keys: tuple[str, ...], ttl: str | None, billing: Billing, classification: Classification
) -> None:
    table = _by_name(name)

    assert table.key_names == keys
    assert table.ttl_attribute == ttl
    assert table.billing is billing
    assert table.classification is classification


@pytest.mark.parametrize(("name", "index_name", "keys"), HEALTH_INDEXES)
def test_health_tables__each_index__has_its_keys(name: str, index_name: str, keys: tuple[str, ...]) -> None:
    index = _by_name(name).index(index_name)

    assert tuple(key.name for key in index.attributes()) == keys


def test_signal_state__as_a_whole__has_a_stream() -> None:
    assert tables.SIGNAL_STATE.stream


def test_incident__sample_item__has_the_index_keys_of_its_sample_item() -> None:
    placed = tables.INCIDENT.index_attributes(
        dataset_urn=URN,
        status="OPEN",
        severity="SEV_1",
        created_at=AT,
        owner_team="orders-platform",
        failure_signature="MISSING_FIELD:customer_id",
    )

    assert placed["GSI1PK"] == "DS#urn:dp:orders:order_created:v1"
    assert placed["GSI1SK"] == AT
    assert placed["GSI2PK"] == "STATUS#OPEN"
    assert placed["GSI2SK"] == f"SEV_1#{AT}"


def test_fanout_table__as_a_whole__has_its_keys_and_gsi1() -> None:
    table = tables.FANOUT

    assert table.key_names == ("PK", "SK")
    assert [key.name for key in table.index("GSI1").attributes()] == ["GSI1_PK", "GSI1_SK"]
    assert tables.FANOUT_RUN.index_attributes(group="grs-15", created_at=AT) == {"GSI1_PK": "grs-15", "GSI1_SK": AT}
    # "Set on run items only."
    assert not {"GSI1_PK", "GSI1_SK"} & set(tables.CHUNK.index_keys)


@pytest.mark.parametrize(
    ("entity", "fields", "key"), SAMPLE_KEYS, ids=lambda value: value.name if isinstance(value, Entity) else ""
)
def test_entity__of_a_sample_item__has_its_key(entity: Entity, fields: dict[str, str | int], key: Key) -> None:
    assert entity.key(**fields) == key


def test_catalogue__all_tables__have_names_of_their_own_that_every_backend_takes() -> None:
    names = [table.name for table in ALL_TABLES]

    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]{3,200}", name) for name in names)


def test_catalogue__every_table_of_the_module__is_in_it() -> None:
    defined = {value.name for value in vars(tables).values() if isinstance(value, Table)}

    assert {table.name for table in ALL_TABLES} == defined


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_table__any__says_its_purpose_and_its_entities(table: Table) -> None:
    assert table.purpose
    assert table.entities
    names = [entity.name for entity in table.entities]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_table__any__has_indexes_that_every_backend_takes(table: Table) -> None:
    names = [index.name for index in table.indexes]

    assert len(set(names)) == len(names)
    # DynamoDB allows 20 indexes a table.
    assert len(names) <= 20
    for index in table.indexes:
        assert len({key.name for key in index.attributes()}) == len(index.attributes())


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_table__attribute_of_several_indexes__has_one_kind(table: Table) -> None:
    kinds: dict[str, set[KeyKind]] = {}
    keys = [table.partition, *([table.sort] if table.sort else [])]
    for key in [*keys, *(key for index in table.indexes for key in index.attributes())]:
        kinds.setdefault(key.name, set()).add(key.kind)

    assert all(len(found) == 1 for found in kinds.values())


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_entity__index_keys__name_attributes_that_an_index_is_keyed_by(table: Table) -> None:
    for entity in table.entities:
        assert set(entity.index_keys) <= set(table.index_attributes), entity.name


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_entity__keys__fit_the_keys_of_its_table(table: Table) -> None:
    for entity in table.entities:
        key = entity.key(**_sample_fields(entity))

        assert (key.sort is None) is (table.sort is None), entity.name
        assert isinstance(key.partition, str), entity.name


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_entities__of_one_table__cannot_be_taken_for_one_another(table: Table) -> None:
    shapes = [(_shape(entity.partition), _shape(entity.sort)) for entity in table.entities]

    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_table__ttl_attribute__is_no_key(table: Table) -> None:
    assert table.ttl_attribute not in {*table.key_names, *table.index_attributes}


def test_named__table_of_the_catalogue__is_found() -> None:
    assert named("observability-signal-state") is tables.SIGNAL_STATE


def test_named__unknown_table__is_refused() -> None:
    with pytest.raises(InvalidItemError, match="signal-stat'"):
        named("observability-signal-stat")


def _sample_fields(entity: Entity) -> dict[str, str | int]:
    padded = set(re.findall(r"\{(\w+):0\d+d\}", "".join((entity.partition, entity.sort or ""))))
    keyed = set(re.findall(r"\{(\w+)", "".join((entity.partition, entity.sort or ""))))
    return {name: 7 if name in padded else "x" for name in keyed}
