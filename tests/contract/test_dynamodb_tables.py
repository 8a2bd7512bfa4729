"""Creating the tables of the catalogue in DynamoDB, and noticing where they differ from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from headgate.clock import VirtualClock
from headgate.errors import StoreBusyError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import (
    ALL_TABLES,
    CONTROL,
    DATASET_REGISTRY,
    HEALTH_CHECK,
    INBOXES,
    SIGNAL_STATE,
    TURNS,
)
from headgate.store.dynamodb.client import client_config
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.dynamodb.tables import create_request
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.schema import Billing, Table
from headgate.store.table_names import TableNames
from tests.aws_faults import Faults, answered, lost, lost_before, refused
from tests.ministack import fresh_account


class Rig:
    def __init__(self, session: boto3.Session, endpoint: str, folder: Path) -> None:
        self.options: dict[str, Any] = {
            "endpoint_url": endpoint,
            "aws_access_key_id": fresh_account(),
            "aws_secret_access_key": "-",
            "config": client_config(10.0),
        }
        self.client: DynamoDBClient = session.client("dynamodb", **self.options)
        self.faults = Faults(self.client)
        self.clock = VirtualClock()
        self.store = DynamoStore(
            client=self.client,
            streams=session.client("dynamodbstreams", **self.options),
            names=TableNames("test-"),
            clock=self.clock,
            cursors=Cursors(Keyring.generate(self.clock)),
            spill=Spill(FolderBlobs(folder), self.clock),
        )

    def create(self, table: Table, **changes: Any) -> None:
        """Create a table that differs from the catalogue."""
        self.client.create_table(**{**create_request(table, f"test-{table.name}"), **changes})


@pytest.fixture
def rig(ministack: str, aws_session: boto3.Session, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(aws_session, ministack, tmp_path)
    yield rig
    rig.store.close()


def test_create_tables__nothing_there__makes_the_whole_catalogue(rig: Rig) -> None:
    created = rig.store.create_tables()

    assert created == [f"test-{table.name}" for table in ALL_TABLES]
    assert rig.store.check_tables() == []
    rig.store.check_health()


def test_create_tables__all_there__changes_nothing(rig: Rig) -> None:
    rig.store.create_tables((SIGNAL_STATE, TURNS))

    assert rig.store.create_tables((SIGNAL_STATE, TURNS)) == []
    assert rig.store.create_tables((SIGNAL_STATE, TURNS, CONTROL)) == ["test-headgate-control"]


def test_create_tables__catalogue__is_what_dynamodb_then_describes(rig: Rig) -> None:
    rig.store.create_tables((SIGNAL_STATE, DATASET_REGISTRY))

    state = rig.client.describe_table(TableName="test-observability-signal-state")["Table"]
    assert state["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert state["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    assert state["GlobalSecondaryIndexes"][0]["Projection"] == {"ProjectionType": "ALL"}
    expiry = rig.client.describe_time_to_live(TableName="test-observability-signal-state")["TimeToLiveDescription"]
    assert expiry == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    registry = rig.client.describe_table(TableName="test-observability-dataset-registry")["Table"]
    assert registry["ProvisionedThroughput"]["ReadCapacityUnits"] > 0
    assert DATASET_REGISTRY.billing is Billing.PROVISIONED


def test_create_tables__process_died_before_expiry_was_switched_on__switches_it_on(rig: Rig) -> None:
    rig.create(TURNS)

    assert rig.store.create_tables((TURNS,)) == []
    assert rig.store.check_tables((TURNS,)) == []


def test_create_tables__answer_lost__finds_the_table_made(rig: Rig) -> None:
    rig.faults.inject("CreateTable", lost)
    stop = _let_time_pass(rig.clock)

    created = rig.store.create_tables((TURNS,))
    stop()

    assert created == []
    assert rig.store.check_tables((TURNS,)) == []


def test_create_tables__another_process_makes_it_first__is_content(rig: Rig) -> None:
    rig.faults.inject(
        "DescribeTable",
        lost_before(refused("ResourceNotFoundException"), lambda: rig.create(HEALTH_CHECK)),
    )

    assert rig.store.create_tables((HEALTH_CHECK,)) == []


def test_create_tables__still_being_created__waits_until_active(rig: Rig) -> None:
    creating = answered({"Table": {"TableName": "x", "TableStatus": "CREATING"}})
    index = {"IndexName": "due-index", "IndexStatus": "CREATING"}
    filling = answered({"Table": {"TableStatus": "ACTIVE", "GlobalSecondaryIndexes": [index]}})
    rig.faults.inject("DescribeTable", refused("ResourceNotFoundException"), creating, creating, filling)
    stop = _let_time_pass(rig.clock)

    assert rig.store.create_tables((CONTROL,)) == ["test-headgate-control"]

    stop()
    assert rig.faults.left("DescribeTable") == 0


def test_create_tables__never_active__gives_up_and_names_it(rig: Rig) -> None:
    creating = answered({"Table": {"TableName": "x", "TableStatus": "CREATING"}})
    rig.faults.inject("DescribeTable", *[creating] * 1000)
    stop = _let_time_pass(rig.clock)

    with pytest.raises(StoreBusyError, match="test-headgate-control: not active after 300 s"):
        rig.store.create_tables((CONTROL,))
    stop()


def test_check_tables__missing__is_named(rig: Rig) -> None:
    rig.store.create_tables((CONTROL,))

    assert rig.store.check_tables((CONTROL, TURNS)) == [
        "table test-headgate-turns: it does not exist; create it, or correct the prefix or its name"
    ]


def test_check_tables__every_kind_of_difference__is_named(rig: Rig) -> None:
    keys = [{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "breach_sk", "KeyType": "RANGE"}]
    rig.create(
        SIGNAL_STATE,
        KeySchema=keys,
        AttributeDefinitions=[
            {"AttributeName": "PK", "AttributeType": "S"},
            {"AttributeName": "breach_pk", "AttributeType": "N"},
            {"AttributeName": "breach_sk", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "breach-index",
                "KeySchema": [{"AttributeName": "breach_pk", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
    )

    name = "table test-observability-signal-state: "
    assert rig.store.check_tables((SIGNAL_STATE,)) == [
        name + "the table is keyed by PK (S), breach_sk (S); it must be keyed by PK (S), SK (S)",
        name + "index 'breach-index' is keyed by breach_pk (N); it must be keyed by breach_pk (S), breach_sk (S)",
        name + "index 'breach-index' projects KEYS_ONLY; it must project ALL",
        name + "its stream shows NEW_IMAGE; it must show NEW_AND_OLD_IMAGES",
        name + "items do not expire; enable TTL for 'ttl'",
    ]


def test_check_tables__index_stream_and_expiry_absent_or_wrong__are_named(rig: Rig) -> None:
    request = create_request(SIGNAL_STATE, "test-observability-signal-state")
    del request["GlobalSecondaryIndexes"], request["StreamSpecification"]
    request["AttributeDefinitions"] = request["AttributeDefinitions"][:2]
    rig.client.create_table(**request)
    expiry = {"Enabled": True, "AttributeName": "expires"}
    for table in (SIGNAL_STATE, HEALTH_CHECK):
        if table is HEALTH_CHECK:
            rig.create(table)
        rig.client.update_time_to_live(TableName=f"test-{table.name}", TimeToLiveSpecification=expiry)  # type: ignore[arg-type]

    assert rig.store.check_tables((SIGNAL_STATE, HEALTH_CHECK)) == [
        "table test-observability-signal-state: index 'breach-index' is missing; create it",
        "table test-observability-signal-state: it has no stream; enable one with NEW_AND_OLD_IMAGES",
        "table test-observability-signal-state: items expire by 'expires'; they must expire by 'ttl'",
        "table test-observability-health-check: items expire by 'expires'; they must not expire",
    ]


def with_projections(table: Table, *projections: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the indexes of a table with other projections."""
    indexes = create_request(table, "any")["GlobalSecondaryIndexes"]
    return [{**index, "Projection": each} for index, each in zip(indexes, projections, strict=True)]


def test_check_tables__indexes_with_whole_items_of_an_earlier_build__are_no_difference(rig: Rig) -> None:
    whole = with_projections(INBOXES, {"ProjectionType": "ALL"})
    rig.create(INBOXES, GlobalSecondaryIndexes=whole)
    rig.client.update_time_to_live(
        TableName=f"test-{INBOXES.name}", TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"}
    )

    assert rig.store.check_tables((INBOXES,)) == []


def test_check_tables__an_index_without_what_readers_need__is_named(rig: Rig) -> None:
    few = with_projections(INBOXES, {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["name", "ttl"]})
    rig.create(INBOXES, GlobalSecondaryIndexes=few)

    assert rig.store.check_tables((INBOXES,))[0] == (
        "table test-headgate-inboxes: index 'ready-index' projects INCLUDE name, ttl; "
        "it must project INCLUDE input, name, timeout_seconds, ttl, workflow"
    )


def test_check_tables__index_of_the_operators_own__is_no_difference(rig: Rig) -> None:
    request = create_request(HEALTH_CHECK, "test-observability-health-check")
    extra = {"IndexName": "mine", "KeySchema": request["KeySchema"], "Projection": {"ProjectionType": "ALL"}}
    rig.create(HEALTH_CHECK, GlobalSecondaryIndexes=[extra])

    assert rig.store.check_tables((HEALTH_CHECK,)) == []


@pytest.mark.parametrize("table", ALL_TABLES, ids=lambda table: table.name)
def test_create_request__every_table__defines_exactly_the_attributes_its_keys_use(table: Table) -> None:
    request = create_request(table, table.name)

    schemas = [request["KeySchema"], *(index["KeySchema"] for index in request.get("GlobalSecondaryIndexes", []))]
    used = {key["AttributeName"] for schema in schemas for key in schema}
    assert {definition["AttributeName"] for definition in request["AttributeDefinitions"]} == used
    assert [key["KeyType"] for key in request["KeySchema"]] == ["HASH", "RANGE"][: len(table.key_names)]


def _let_time_pass(clock: VirtualClock) -> Any:
    """Wake all that sleep on the clock, until the function that is returned is called."""
    done = threading.Event()

    def advance() -> None:
        while not done.is_set():
            if clock.sleepers():
                clock.advance(10)
            time.sleep(0.001)

    thread = threading.Thread(target=advance)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop
