"""The access patterns that users rely on, and their own queries on their own table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import (
    FANOUT,
    IDEMPOTENCY,
    MARKER,
    PIPELINE_CONFIG,
    PIPELINE_EVENT,
    PIPELINES,
    READINESS,
    RERUN_COPY,
    RERUN_STATE,
    RUN_COPY,
    RUN_LOG,
    RUN_STATE,
    SIGNAL_STATE,
    STREAM_CHECKPOINTS,
    TRAIT_RESULT,
)
from headgate.store.model.conditions import absent, all_of, any_of, at_most, equals, version_is
from headgate.store.model.requests import ChangeKind, Put, Query, Range, Sort, Update
from headgate.store.model.schema import Entity, Key, KeyPart
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.table_names import TableNames
from tests.contract.conftest import DYNAMODB_BACKENDS, NOW, Aws, Eventually

TABLES = (FANOUT, IDEMPOTENCY, PIPELINES, SIGNAL_STATE, STREAM_CHECKPOINTS)
RUN_ID = "2b7e1516-28ae-4d2a-a6ab-f7158809cf4f"
STARTED = "2040-01-01T00:{minute:02d}:00Z"


@pytest.fixture
def names() -> TableNames:
    """The fan-out table under a name of the user's own."""
    return TableNames(overrides={"headgate-fanout": "phspectra-runs"})


def _row(entity: Entity, *, index: dict[str, KeyPart] | None = None, **fields: KeyPart) -> Item:
    row: Item = dict(PIPELINES.key_attributes(entity.key(**fields)))
    return {**row, **(entity.index_attributes(**index) if index else {})}


def _names(items: Iterable[Item]) -> list[Any]:
    return [item["SK"] for item in items]


# One table for pipelines


def test_pipelines__listed_by_the_index__come_in_the_order_of_their_ids(store: Store, eventually: Eventually) -> None:
    rows = [
        _row(PIPELINE_CONFIG, pipeline_id=name, index={"pipeline_id": name}) for name in ("billing", "orders", "users")
    ]
    store.batch_write([Put(PIPELINES, row) for row in reversed(rows)])
    store.put(PIPELINES, _row(TRAIT_RESULT, pipeline_id="orders", trait_type="freshness"))
    reruns = [_row(RERUN_STATE, rerun_id="r1", index={"rerun_id": "r1"})]
    store.batch_write([Put(PIPELINES, row) for row in reruns])

    listed = Query(table=PIPELINES, index="GSI1", partition="PIPELINES")
    eventually(lambda: store.query(listed).items, lambda found: found == rows)
    rerun = Query(table=PIPELINES, index="GSI1", partition="RERUNS")
    eventually(lambda: store.query(rerun).items, lambda found: found == reruns)


def test_pipeline__its_items__are_distinguished_by_their_prefixes(store: Store) -> None:
    rows = [
        _row(PIPELINE_CONFIG, pipeline_id="orders"),
        _row(TRAIT_RESULT, pipeline_id="orders", trait_type="freshness"),
        _row(TRAIT_RESULT, pipeline_id="orders", trait_type="volume"),
        _row(RUN_COPY, pipeline_id="orders", run_id="run-1"),
        _row(RUN_COPY, pipeline_id="orders", run_id="run-2"),
        _row(RUN_LOG, pipeline_id="orders", date="2040-01-01", schedule_id="daily"),
        _row(RUN_LOG, pipeline_id="orders", date="2040-01-02", schedule_id="daily"),
        _row(RERUN_COPY, pipeline_id="orders", rerun_id="rerun-1"),
        _row(READINESS, pipeline_id="orders"),
        _row(PIPELINE_EVENT, pipeline_id="orders", timestamp="2040-01-01T00:00:00Z", event_id="e1"),
    ]
    store.batch_write([Put(PIPELINES, row) for row in rows])

    def found(prefix: str) -> list[Any]:
        sort = Sort(Range.BEGINS_WITH, prefix)
        return _names(
            store.query(Query(table=PIPELINES, partition="PIPELINE#orders", sort=sort, consistent=True)).items
        )

    assert found("TRAIT#") == ["TRAIT#freshness", "TRAIT#volume"]
    # RUN# is no prefix of RUNLOG#.
    assert found("RUN#") == ["RUN#run-1", "RUN#run-2"]
    assert found("RUNLOG#") == ["RUNLOG#2040-01-01#daily", "RUNLOG#2040-01-02#daily"]
    assert found("RERUN#") == ["RERUN#rerun-1"]
    assert found("EVENT#") == ["EVENT#2040-01-01T00:00:00Z#e1"]


def test_run_logs__latest_first__come_by_date(store: Store) -> None:
    store.batch_write(
        [
            Put(PIPELINES, _row(RUN_LOG, pipeline_id="orders", date=f"2040-01-{day:02d}", schedule_id="daily"))
            for day in range(1, 15)
        ]
    )

    page = store.query(
        Query(
            table=PIPELINES,
            partition="PIPELINE#orders",
            sort=Sort(Range.BEGINS_WITH, "RUNLOG#"),
            descending=True,
            limit=3,
            consistent=True,
        )
    )

    assert _names(page.items) == [f"RUNLOG#2040-01-{day}#daily" for day in (14, 13, 12)]


def test_events__of_a_span_of_time__are_a_range_of_keys(store: Store) -> None:
    for hour in range(6):
        at = f"2040-01-01T{hour:02d}:00:00Z"
        store.put(PIPELINES, _row(PIPELINE_EVENT, pipeline_id="orders", timestamp=at, event_id=f"e{hour}"))

    sort = Sort(Range.BETWEEN, "EVENT#2040-01-01T02", "EVENT#2040-01-01T04")
    page = store.query(Query(table=PIPELINES, partition="PIPELINE#orders", sort=sort, consistent=True))

    assert _names(page.items) == ["EVENT#2040-01-01T02:00:00Z#e2", "EVENT#2040-01-01T03:00:00Z#e3"]


def test_run__truth_and_list_copy__change_together_under_the_version(store: Store) -> None:
    truth, copy = _row(RUN_STATE, run_id="r"), _row(RUN_COPY, pipeline_id="orders", run_id="r")
    store.transact(
        [
            Put(PIPELINES, {**truth, "status": "PENDING", "version": 1}, absent()),
            Put(PIPELINES, {**copy, "status": "PENDING"}, absent()),
        ]
    )

    def move(version: int, status: str) -> None:
        store.transact(
            [
                Update(
                    PIPELINES, Key("RUN#r", "STATE"), set={"status": status}, add={"version": 1},
                    condition=version_is(version),
                ),
                Update(PIPELINES, Key("PIPELINE#orders", "RUN#r"), set={"status": status}),
            ]
        )  # fmt: skip

    move(1, "TRIGGERING")
    with pytest.raises(ConflictError) as caught:
        move(1, "RUNNING")

    assert caught.value.current == {**truth, "status": "TRIGGERING", "version": 2}
    assert store.get(PIPELINES, Key("PIPELINE#orders", "RUN#r"), consistent=True) == {**copy, "status": "TRIGGERING"}


def test_marker__when_it_is_put__is_reported_by_the_stream_with_its_date(store: Store, eventually: Eventually) -> None:
    marker = {**_row(MARKER, pipeline_id="orders", date="2040-01-01", schedule_id="h23"), "date": "2040-01-01"}
    store.put(PIPELINES, marker)

    batch = eventually(lambda: store.changes(PIPELINES, "router"), lambda batch: len(batch.changes) == 1)

    assert batch.changes[0].kind is ChangeKind.INSERT
    assert batch.changes[0].key == Key("MARKER#orders", "2040-01-01#h23")
    assert batch.changes[0].new == marker


def test_readiness__cached_with_a_ttl__is_gone_in_time(store: Store, clock: VirtualClock) -> None:
    row = {**_row(READINESS, pipeline_id="orders"), "status": "READY", "ttl": NOW + 300}
    store.put(PIPELINES, row)
    assert store.get(PIPELINES, READINESS.key(pipeline_id="orders"), consistent=True) == row

    clock.advance(301)

    assert store.get(PIPELINES, READINESS.key(pipeline_id="orders"), consistent=True) is None


# A late window never overwrites a newer one


def test_signal__late_window_with_the_right_version__conflicts_with_the_newer_one(store: Store) -> None:
    key = Key("urn:dp:orders:order_created:v1", "FRESHNESS")
    newer = {"PK": key.partition, "SK": key.sort, "state": "OK", "window_end": "2040-01-01T00:10:00Z", "version": 2}
    store.put(SIGNAL_STATE, newer)

    def apply(window_end: str, version: int) -> None:
        fresh = {**newer, "state": "CRITICAL", "window_end": window_end, "version": version + 1}
        condition = any_of(absent(), all_of(version_is(version), at_most("window_end", window_end)))
        store.put(SIGNAL_STATE, fresh, condition=condition)

    with pytest.raises(ConflictError) as caught:
        apply("2040-01-01T00:05:00Z", 2)
    assert caught.value.current == newer

    apply("2040-01-01T00:15:00Z", 2)
    stored = store.get(SIGNAL_STATE, key, consistent=True)
    assert stored is not None
    assert (stored["state"], stored["version"]) == ("CRITICAL", 3)


# One partition for a run and its chunks


def _run_row(run_id: str = RUN_ID, survey: str = "grs-15", created_at: str = "2040-01-01T00:00:00Z") -> Item:
    return {
        "PK": run_id,
        "SK": "RUN",
        "GSI1_PK": survey,
        "GSI1_SK": created_at,
        "survey": survey,
        "created_at": created_at,
        "jobs_total": 5,
        "jobs_completed": 1,
        "jobs_failed": 1,
        "n_spectra": 2300,
        "n_chunks": 5,
        "params": '{"beta": 3.5}',
    }


def _chunk_row(start: int, status: str, **attributes: Any) -> Item:
    row = {
        "PK": RUN_ID,
        "SK": f"CHUNK#chunk-{start:07d}",
        "status": status,
        "chunk_key": f"chunks/{RUN_ID}/chunk-{start:07d}.npz",
        "n_spectra": 500,
        "created_at": "2040-01-01T00:00:00Z",
    }
    return {**row, **attributes}


CHUNKS = [
    _chunk_row(
        0, "COMPLETED", started_at=STARTED.format(minute=1), completed_at=STARTED.format(minute=2), duration_ms=1
    ),
    _chunk_row(500, "FAILED", started_at=STARTED.format(minute=1), error="ValueError: bad spectrum"),
    _chunk_row(1000, "IN_PROGRESS", started_at=STARTED.format(minute=1)),
    _chunk_row(1500, "IN_PROGRESS", started_at=STARTED.format(minute=40)),
    _chunk_row(2000, "PENDING", n_spectra=300),
]


@pytest.fixture
def run(store: Store) -> Store:
    """A store with one run of five chunks, and other runs around it."""
    store.batch_write([Put(FANOUT, row) for row in (_run_row(), *CHUNKS)])
    store.put(FANOUT, _run_row("earlier", created_at="2039-12-31T00:00:00Z"))
    store.put(FANOUT, _run_row("elsewhere", survey="vgps", created_at="2040-02-01T00:00:00Z"))
    return store


def _chunks_of(store: Store) -> list[Item]:
    sort = Sort(Range.BEGINS_WITH, "CHUNK#")
    return store.query(Query(table=FANOUT, partition=RUN_ID, sort=sort, limit=1000, consistent=True)).items


def test_fanout__get_a_run__is_one_item(run: Store) -> None:
    assert run.get(FANOUT, Key(RUN_ID, "RUN"), consistent=True) == _run_row()


def test_fanout__list_all_chunks__come_in_the_order_of_their_starts(run: Store) -> None:
    assert _chunks_of(run) == CHUNKS


def test_fanout__latest_run_of_a_survey_since_a_time__is_the_first_of_the_index(
    run: Store, eventually: Eventually
) -> None:
    query = Query(
        table=FANOUT,
        index="GSI1",
        partition="grs-15",
        sort=Sort(Range.AT_LEAST, "2039-01-01T00:00:00Z"),
        descending=True,
        limit=1,
    )

    eventually(lambda: run.query(query).items, lambda found: found == [_run_row()])


def test_fanout__no_run_since_a_time__is_an_empty_answer(run: Store, eventually: Eventually) -> None:
    since = Sort(Range.AT_LEAST, "2040-01-01T00:00:01Z")
    eventually(
        lambda: run.query(Query(table=FANOUT, index="GSI1", partition="grs-15")).items, lambda found: len(found) == 2
    )

    assert run.query(Query(table=FANOUT, index="GSI1", partition="grs-15", sort=since)).items == []


def test_fanout__stuck_and_failed_chunks__are_reported_by_their_attributes(run: Store) -> None:
    chunks = _chunks_of(run)

    stuck = [c["SK"] for c in chunks if c["status"] == "IN_PROGRESS" and c["started_at"] < STARTED.format(minute=30)]
    failed = [(c["SK"], c["error"]) for c in chunks if c["status"] == "FAILED"]

    assert stuck == ["CHUNK#chunk-0001000"]
    assert failed == [("CHUNK#chunk-0000500", "ValueError: bad spectrum")]


def test_fanout__counter_of_a_run_that_does_not_exist__raises_no_phantom(store: Store) -> None:
    with pytest.raises(ConflictError):
        store.transact([Update(FANOUT, Key("nowhere", "RUN"), add={"jobs_completed": 1})], token="t")

    assert store.get(FANOUT, Key("nowhere", "RUN"), consistent=True) is None


def test_fanout__chunk_taken_by_two_workers__is_taken_once(run: Store) -> None:
    key = Key(RUN_ID, "CHUNK#chunk-0002000")

    run.update(FANOUT, key, set={"status": "IN_PROGRESS", "owner": "a"}, condition=equals("status", "PENDING"))
    with pytest.raises(ConflictError) as caught:
        run.update(FANOUT, key, set={"status": "IN_PROGRESS", "owner": "b"}, condition=equals("status", "PENDING"))

    assert caught.value.current is not None
    assert caught.value.current["owner"] == "a"
    assert caught.value.current["n_spectra"] == 300


# Queries that users make with the AWS CLI, as it sends them


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_aws_cli__get_the_run_summary__finds_the_run(run: Store, aws: Aws) -> None:
    answer = aws.dynamodb.get_item(TableName="phspectra-runs", Key={"PK": {"S": RUN_ID}, "SK": {"S": "RUN"}})

    assert answer["Item"] == {
        "PK": {"S": RUN_ID},
        "SK": {"S": "RUN"},
        "GSI1_PK": {"S": "grs-15"},
        "GSI1_SK": {"S": "2040-01-01T00:00:00Z"},
        "survey": {"S": "grs-15"},
        "created_at": {"S": "2040-01-01T00:00:00Z"},
        "jobs_total": {"N": "5"},
        "jobs_completed": {"N": "1"},
        "jobs_failed": {"N": "1"},
        "n_spectra": {"N": "2300"},
        "n_chunks": {"N": "5"},
        "params": {"S": '{"beta": 3.5}'},
    }


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_aws_cli__list_all_chunks_for_a_run__finds_them_in_order(run: Store, aws: Aws) -> None:
    answer = aws.dynamodb.query(
        TableName="phspectra-runs",
        KeyConditionExpression="PK = :pk AND begins_with(SK, :prefix)",
        ExpressionAttributeValues={":pk": {"S": RUN_ID}, ":prefix": {"S": "CHUNK#"}},
    )

    assert [item["SK"]["S"] for item in answer["Items"]] == [f"CHUNK#chunk-{n:07d}" for n in range(0, 2001, 500)]
    assert [item["status"]["S"] for item in answer["Items"]] == [chunk["status"] for chunk in CHUNKS]


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_aws_cli__find_stuck_chunks__finds_those_in_progress(run: Store, aws: Aws) -> None:
    answer = aws.dynamodb.query(
        TableName="phspectra-runs",
        KeyConditionExpression="PK = :pk AND begins_with(SK, :prefix)",
        FilterExpression="#s = :status",
        ExpressionAttributeNames={"#s": "status"},
        ExpressionAttributeValues={":pk": {"S": RUN_ID}, ":prefix": {"S": "CHUNK#"}, ":status": {"S": "IN_PROGRESS"}},
    )

    assert [item["SK"]["S"] for item in answer["Items"]] == ["CHUNK#chunk-0001000", "CHUNK#chunk-0001500"]


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_aws_cli__find_the_most_recent_run_for_a_survey__finds_it(run: Store, aws: Aws, eventually: Eventually) -> None:
    answer = eventually(
        lambda: aws.dynamodb.query(
            TableName="phspectra-runs",
            IndexName="GSI1",
            KeyConditionExpression="GSI1_PK = :survey",
            ExpressionAttributeValues={":survey": {"S": "grs-15"}},
            ScanIndexForward=False,
            Limit=1,
        ),
        lambda answer: len(answer["Items"]) == 1,
    )

    assert answer["Items"][0]["PK"] == {"S": RUN_ID}
    assert answer["Items"][0]["SK"] == {"S": "RUN"}
