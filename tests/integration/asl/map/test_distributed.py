"""Distributed Map: inputs, results, redrive and failures of its iterations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.asl.errors import (
    DATA_LIMIT_EXCEEDED,
    EXCEED_TOLERATED_FAILURE_THRESHOLD,
    ITEM_READER_FAILED,
    RUNTIME,
    TASK_FAILED,
    TIMEOUT,
)
from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.map import coordinator
from headgate.asl.map.item_readers import blob_name
from headgate.asl.map.ledger import MapLedger
from headgate.asl.map.messages import FailureTolerance
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.model.history import Status
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource
from headgate.fanout.model.states import FanoutStatus
from tests.integration.asl.map_rig import MapRig, each

BOTH = pytest.mark.parametrize("kind", ["STANDARD", "EXPRESS"])
PASS: tuple[str, dict[str, Any]] = ("Pass", {"Type": "Pass"})
WAIT: tuple[str, dict[str, Any]] = ("Wait", {"Type": "Wait", "Seconds": 10})
PREPARE: tuple[str, dict[str, Any]] = ("Prepare", {"Type": "Task", "Resource": "prepare"})
DOUBLE: tuple[str, dict[str, Any]] = ("Double", {"Type": "Task", "Resource": "double"})
JSON = {
    "Resource": "arn:aws:states:::s3:getObject",
    "ReaderConfig": {"InputType": "JSON"},
    "Parameters": {"Bucket": "in", "Key": "items.json"},
}


@pytest.fixture
def rig() -> Iterator[MapRig]:
    with MapRig() as made:
        yield made


# What iterations are given, and what becomes of their outputs.


@BOTH
def test_map__items_in_the_input__gives_the_outputs_in_their_order(rig: MapRig, kind: str) -> None:
    assert rig.run(each(kind), [3, 1, 2]) == [6, 2, 4]
    run = rig.map_run
    assert run.status is FanoutStatus.SUCCEEDED
    assert (run.items_total, run.chunks_total, run.chunks_completed) == (3, 3, 3)
    rig.check_ledger()


@BOTH
def test_map__no_items__gives_an_empty_list(rig: MapRig, kind: str) -> None:
    assert rig.run(each(kind), []) == []
    assert rig.map_run.status is FanoutStatus.SUCCEEDED


@BOTH
def test_map__what_is_no_list__fails(rig: MapRig, kind: str) -> None:
    assert rig.run(each(kind), 5) == RUNTIME
    assert rig.map_runs == []


@BOTH
def test_map__it_succeeds__leaves_the_events_of_a_map_run(rig: MapRig, kind: str) -> None:
    rig.run(each(kind), [1])
    assert rig.events() == [
        "ExecutionStarted",
        "MapStateEntered",
        "MapStateStarted",
        "MapRunStarted",
        "MapRunSucceeded",
        "MapStateSucceeded",
        "MapStateExited",
        "ExecutionSucceeded",
    ]
    started = rig.executions.history("m:one")
    assert started[2].details == {"length": 1}
    assert started[3].details == {"mapRunArn": rig.map_run.run_id}


@BOTH
def test_selector__of_state_and_context__makes_each_input(rig: MapRig, kind: str) -> None:
    fields = {
        "ItemsPath": "$.items",
        "ItemSelector": {
            "all.$": "$.of",
            "item.$": "$$.Map.Item.Value",
            "place.$": "$$.Map.Item.Index",
            "from.$": "$$.Map.Item.Source",
            "one.$": "$$.Execution.Name",
        },
    }
    found = rig.run(each(kind, PASS, **fields), {"of": 2, "items": ["a", "b"]})
    same = {"all": 2, "from": "STATE_DATA", "one": "one"}
    assert found == [{**same, "item": "a", "place": 0}, {**same, "item": "b", "place": 1}]


def test_items__of_an_object__are_its_members(rig: MapRig) -> None:
    fields = {
        "Items": "{% $states.input.of %}",
        "ItemSelector": {"name": "{% $states.context.Map.Item.Key %}", "v": "{% $states.context.Map.Item.Value %}"},
    }
    assert rig.run(each("EXPRESS", PASS, **fields), {"of": {"a": 1, "b": 2}}) == [
        {"name": "a", "v": 1},
        {"name": "b", "v": 2},
    ]


@BOTH
def test_iterations__of_a_jsonata_machine__are_jsonata_too(rig: MapRig, kind: str) -> None:
    state = ("Add", {"Type": "Pass", "Output": "{% $states.input + 1 %}"})
    assert rig.run(each(kind, state, Items="{% [1, 2] %}"), {}) == [2, 3]


@BOTH
@pytest.mark.parametrize(
    ("batcher", "batches"),
    [
        ({"MaxItemsPerBatch": 2}, [[1, 2], [3, 4], [5]]),
        ({"MaxItemsPerBatchPath": "$.size"}, [[1, 2, 3], [4, 5]]),
        # {"Items":[]} has 12 bytes, and each item 2 with its comma.
        ({"MaxInputBytesPerBatch": 16}, [[1, 2], [3, 4], [5]]),
        ({"MaxInputBytesPerBatch": 1000, "MaxItemsPerBatch": 4}, [[1, 2, 3, 4], [5]]),
    ],
)
def test_batcher__by_number_and_by_size__makes_the_batches(
    rig: MapRig, kind: str, batcher: dict[str, Any], batches: list[list[int]]
) -> None:
    found = rig.run(each(kind, PASS, ItemsPath="$.items", ItemBatcher=batcher), {"size": 3, "items": [1, 2, 3, 4, 5]})
    assert found == [{"Items": batch} for batch in batches]
    assert (rig.map_run.chunks_total, rig.map_run.items_total) == (len(batches), 5)
    rig.check_ledger()


@BOTH
def test_batcher__with_an_input_for_all__adds_it_to_each_batch(rig: MapRig, kind: str) -> None:
    batcher = {"MaxItemsPerBatch": 1, "BatchInput": {"by.$": "$.who"}}
    found = rig.run(each(kind, PASS, ItemsPath="$.items", ItemBatcher=batcher), {"who": "me", "items": [1, 2]})
    assert found == [{"BatchInput": {"by": "me"}, "Items": [1]}, {"BatchInput": {"by": "me"}, "Items": [2]}]


def test_batcher__an_item_larger_than_a_batch__fails(rig: MapRig) -> None:
    batcher = {"MaxInputBytesPerBatch": 100}
    assert rig.run(each("EXPRESS", PASS, ItemBatcher=batcher), ["x" * 200]) == DATA_LIMIT_EXCEEDED


def test_result__too_large_for_a_state__fails(rig: MapRig) -> None:
    large = ("Large", {"Type": "Pass", "Result": "x" * 200_000})
    assert rig.run(each("EXPRESS", large), [1, 2]) == DATA_LIMIT_EXCEEDED


# Readers.


@BOTH
def test_reader__of_a_blob__has_the_items(rig: MapRig, kind: str) -> None:
    rig.blobs.put(blob_name("in", "items.json"), b"[1,2,3]")
    fields = {"ItemReader": {**JSON, "ReaderConfig": {"InputType": "JSON", "MaxItemsPath": "$.most"}}}
    assert rig.run(each(kind, **fields), {"most": 2}) == [2, 4]


def test_reader__of_what_is_not_there__fails_and_begins_anew_when_redriven(rig: MapRig) -> None:
    assert rig.run(each("EXPRESS", ItemReader=JSON), {}) == ITEM_READER_FAILED
    assert rig.events()[-3:] == ["MapRunFailed", "MapStateFailed", "ExecutionFailed"]
    assert rig.map_run.status is FanoutStatus.CANCELLED
    assert "items.json" in (rig.map_run.split_error or "")

    rig.blobs.put(blob_name("in", "items.json"), b"[1]")
    rig.env.advance(1)
    rig.executions.redrive("m:one")
    assert rig.ended("m:one") == [2]
    assert [run.status for run in rig.map_runs] == [FanoutStatus.CANCELLED, FanoutStatus.SUCCEEDED]


# Failures.


@pytest.mark.parametrize(
    ("tolerance", "failed", "total", "is_exceeded"),
    [
        (FailureTolerance(), 0, 10, False),
        (FailureTolerance(), 1, 10, True),
        (FailureTolerance(count=2), 2, 10, False),
        (FailureTolerance(count=2), 3, 10, True),
        (FailureTolerance(percentage=20), 2, 10, False),
        (FailureTolerance(percentage=20), 3, 10, True),
        (FailureTolerance(percentage=0), 1, 10, True),
        (FailureTolerance(percentage=100), 10, 10, False),
        (FailureTolerance(count=0, percentage=50), 1, 10, True),
        (FailureTolerance(count=5, percentage=10), 2, 10, True),
    ],
)
def test_tolerance__of_failed_items__is_exceeded_by_either_limit(
    tolerance: FailureTolerance, failed: int, total: int, is_exceeded: bool
) -> None:
    assert tolerance.is_exceeded(failed, total) is is_exceeded


@BOTH
def test_failure__not_tolerated__fails_the_map_run(rig: MapRig, kind: str) -> None:
    rig.broken = {1}
    assert rig.run(each(kind, MaxConcurrency=1), [1, 2, 3]) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    assert rig.events()[-3:] == ["MapRunFailed", "MapStateFailed", "ExecutionFailed"]
    run = rig.map_run
    assert run.is_finished
    dead = list(rig.queries.failures(run.run_id))
    assert [(chunk.start, chunk.error_class) for chunk in dead] == [(0, "ValueError")]
    assert dead[0].error == "1 is broken"
    rig.check_ledger()


@BOTH
def test_failure__tolerated__is_reported_in_the_result(rig: MapRig, kind: str) -> None:
    rig.broken = {2}
    found = rig.run(each(kind, ToleratedFailurePercentage=50), [1, 2, 3])
    assert [found[0], found[2]] == [2, 6]
    assert (found[1]["Status"], found[1]["Error"], found[1]["Input"]) == ("FAILED", "ValueError", "2")
    assert rig.map_run.status is FanoutStatus.PARTIAL
    rig.check_ledger()


@BOTH
def test_failure__of_a_batch__counts_all_its_items(rig: MapRig, kind: str) -> None:
    fail = ("Stop", {"Type": "Fail", "Error": "Bad"})
    batcher = {"MaxItemsPerBatch": 3}
    definition = each(kind, fail, ItemBatcher=batcher, ToleratedFailureCount=2)
    assert rig.run(definition, [1, 2, 3]) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    assert rig.map_run.counts["items_failed"] == 3
    rig.check_ledger()


@BOTH
def test_failure__that_a_retry_repairs__is_none(rig: MapRig, kind: str) -> None:
    def mend(_: object) -> None:
        if rig.calls["double 1"] == 2:
            rig.broken = set()

    rig.broken, rig.on_double = {1}, mend
    retry = [{"ErrorEquals": ["ValueError"], "IntervalSeconds": 1, "MaxAttempts": 1, "MaxDelaySeconds": 2}]
    state = ("Double", {"Type": "Task", "Resource": "double", "Retry": retry})
    assert rig.run(each(kind, state), [1]) == [2]


def test_retry__of_the_state__begins_another_map_run(rig: MapRig) -> None:
    def mend(_: object) -> None:
        if rig.calls["double 1"] == 2:
            rig.broken = set()

    rig.broken, rig.on_double = {1}, mend
    retry = [{"ErrorEquals": [EXCEED_TOLERATED_FAILURE_THRESHOLD], "MaxAttempts": 1}]
    assert rig.run(each("STANDARD", Retry=retry), [1]) == [2]
    assert [run.status for run in rig.map_runs] == [FanoutStatus.FAILED, FanoutStatus.SUCCEEDED]


def test_standard__others_run_when_too_many_have_failed__aborts_them(rig: MapRig) -> None:
    rig.broken = {1}
    choose = (
        "Choose",
        {"Type": "Choice", "Choices": [{"Variable": "$", "NumericEquals": 1, "Next": "Double"}], "Default": "Wait"},
    )
    definition = each("STANDARD", WAIT, DOUBLE)
    processor = definition["States"]["Each"]["ItemProcessor"]
    processor["StartAt"] = "Choose"
    processor["States"]["Choose"] = choose[1]
    assert rig.run(definition, [2, 1, 3]) == EXCEED_TOLERATED_FAILURE_THRESHOLD
    assert sorted(row.status for row in rig.children()) == [Status.CANCELLED, Status.CANCELLED, Status.FAILED]
    assert rig.map_run.counts["cancelled"] == 2
    assert rig.calls == {"double 1": 1}
    rig.check_ledger()


# Executions of their own.


def test_standard__iterations_that_wait__go_as_many_at_once_as_allowed(rig: MapRig) -> None:
    handle = rig.start(each("STANDARD", WAIT, MaxConcurrency=2), [1, 2, 3, 4, 5])
    for running, done in ((2, 0), (2, 2), (1, 4)):
        counts = rig.queries.counts(rig.map_run)
        assert (counts.running, counts.done) == (running, done)
        rig.env.advance(10)
    assert rig.ended(handle.id) == [1, 2, 3, 4, 5]


def test_standard__a_task_with_a_token__is_ended_by_it(rig: MapRig) -> None:
    given = {"item.$": "$", "token.$": "$$.Task.Token"}
    state = ("Send", {"Type": "Task", "Resource": "send.waitForTaskToken", "Parameters": given})
    handle = rig.start(each("STANDARD", state), ["a", "b"])
    for item, token in sorted(rig.sent.items()):
        rig.executions.send_callback(token, TaskCallback(CallbackKind.SUCCESS, output=f"{item} done"))
    assert rig.ended(handle.id) == ["a done", "b done"]


def test_standard__the_time_of_an_iteration_is_up__it_failed(rig: MapRig) -> None:
    definition = each("STANDARD", WAIT, ToleratedFailureCount=1)
    definition["States"]["Each"]["ItemProcessor"]["TimeoutSeconds"] = 5
    found = rig.run(definition, [1])
    assert (found[0]["Error"], found[0]["Status"]) == (TIMEOUT, "FAILED")


def test_standard__many_iterations__have_lanes_that_begin_anew(rig: MapRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "ITERATIONS_INSIDE_MAX", 5)
    monkeypatch.setattr(coordinator, "ITERATIONS_A_RUN_MAX", 3)
    assert rig.run(each("STANDARD", MaxConcurrency=2), list(range(15))) == [2 * n for n in range(15)]
    lanes = rig.env.service.client.list(workflow=coordinator.WORKER).executions
    assert len(lanes) == 2
    assert max(lane.run for lane in lanes) > 1
    assert rig.calls == {f"double {n}": 1 for n in range(15)}
    rig.check_ledger()


@pytest.mark.parametrize("inside", [5, 100])
def test_cancel__of_the_execution__ends_the_map_run_and_its_iterations(
    rig: MapRig, monkeypatch: pytest.MonkeyPatch, inside: int
) -> None:
    monkeypatch.setattr(coordinator, "ITERATIONS_INSIDE_MAX", inside)
    handle = rig.start(each("STANDARD", PREPARE, WAIT, DOUBLE, MaxConcurrency=3), [1, 2, 3, 4, 5, 6])
    rig.executions.stop(handle.id, cause="enough")
    rig.env.run()

    assert rig.executions.describe(handle.id).status is ExecutionStatus.ABORTED
    assert "MapRunAborted" in rig.events()
    assert rig.map_run.status is FanoutStatus.CANCELLED
    assert rig.map_run.counts["cancelled"] == 6
    assert [row.status for row in rig.children()] == [Status.CANCELLED] * 3
    rig.check_ledger()

    # What was under way goes on where it was.
    rig.executions.redrive(handle.id)
    assert rig.ended(handle.id) == [2, 4, 6, 8, 10, 12]
    assert rig.calls == {f"{name} {n}": 1 for n in range(1, 7) for name in ("prepare", "double")}
    assert "MapRunRedriven" in rig.events()
    rig.check_ledger()


def test_cancel__of_the_map_run_by_hand__fails_the_state(rig: MapRig) -> None:
    handle = rig.start(each("STANDARD", WAIT, MaxConcurrency=1), [1, 2])
    rig.fanouts.control.cancel(rig.map_run.run_id)
    assert rig.ended(handle.id) == TASK_FAILED
    assert rig.map_run.is_finished
    rig.check_ledger()


def test_pause__of_the_map_run__begins_nothing_until_it_is_resumed(rig: MapRig) -> None:
    handle = rig.start(each("STANDARD", WAIT, MaxConcurrency=1), [1, 2])
    rig.fanouts.control.pause(rig.map_run.run_id)
    rig.env.advance(60)
    assert rig.queries.counts(rig.map_run).pending == 1

    rig.fanouts.control.resume(rig.map_run.run_id)
    assert rig.ended(handle.id) == [1, 2]


def test_redrive__of_a_failed_iteration__goes_on_from_the_state_that_failed(rig: MapRig) -> None:
    rig.broken = {2}
    definition = each("STANDARD", PREPARE, DOUBLE)
    assert rig.run(definition, [1, 2]) == EXCEED_TOLERATED_FAILURE_THRESHOLD

    rig.broken = set()
    rig.executions.redrive("m:one")
    assert rig.ended("m:one") == [2, 4]
    assert rig.calls == {"prepare 1": 1, "double 1": 1, "prepare 2": 1, "double 2": 2}
    assert len(rig.children()) == 3


def test_standard__a_map_within__is_a_map_run_of_its_own(rig: MapRig) -> None:
    inner = each("EXPRESS")["States"]["Each"]
    assert rig.run(each("STANDARD", ("Inner", inner)), [[1, 2], [3]]) == [[2, 4], [6]]
    assert len(rig.queries.by_group("m/Each/Inner").fanouts) == 2


def test_claim__several_claimants__each_starts_at_a_random_place_and_every_chunk_is_claimed(
    rig: MapRig,
) -> None:
    order = Order(group="g", chunk_size=1, policy=Policy(max_attempts=1))
    rig.fanouts.splitter.split(order, ListSource(list(range(6))), run_id="map-1")
    ledger = MapLedger(rig.fanouts, randrange=lambda _: 4)

    def claim(claimants: int) -> list[int]:
        claimed = ledger.claim("map-1", 1, lambda chunk, _: chunk.chunk_id, claimants=claimants)
        return [each.chunk.start for each in claimed]

    assert claim(claimants=1) == [0]
    assert [claim(claimants=40) for _ in range(5)] == [[4], [5], [1], [2], [3]]
    assert claim(claimants=40) == []
