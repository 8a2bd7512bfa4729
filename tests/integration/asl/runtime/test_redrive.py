from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.interpreter import Limits
from headgate.durable.model.history import Status
from headgate.errors import (
    ConflictError,
)
from tests.asl_rig import Rig, beside, check_events, each, machine, task

ECHO = machine(("Only", task("echo")))
LONG = {"Type": "Wait", "Seconds": 86_400}
HELD = task("work", Parameters="held")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


NESTED = machine(
    ("First", task("work", Parameters="first", ResultPath=None)),
    (
        "P",
        beside(
            machine(
                ("M", each(("Before", task("echo")), ("Item", task("work")), ItemsPath="$.items", MaxConcurrency=2)),
            ),
            machine(("Fine", task("work", Parameters="fine"))),
            machine(
                ("Mark", {"Type": "Pass", "Assign": {"mark": "kept"}}), ("Wrong", task("work", Parameters="wrong"))
            ),
            ResultPath="$.done",
        ),
    ),
    ("Last", task("work", Parameters="last", ResultPath=None)),
)


def test_redrive__map_in_a_parallel__only_what_did_not_succeed_is_done_again(rig: Rig) -> None:
    rig.functions.broken = {"b", "d"}
    execution_id = rig.start(NESTED, {"items": ["a", "b", "c", "d"]})
    assert rig.end(execution_id).error == "Broken"
    done = {what for what in rig.functions.inputs("work") if what not in rig.functions.broken}
    rig.functions.broken.clear()
    before = len(rig.functions.calls)

    assert rig.executions.redrive(execution_id) == 1
    found = rig.end(execution_id)

    expected = [["did a", "did b", "did c", "did d"], "did fine", "did wrong"]
    assert (found.status, found.redrive_count) == (ExecutionStatus.SUCCEEDED, 1)
    assert found.output == {"items": ["a", "b", "c", "d"], "done": expected}
    again = [given for name, given in rig.functions.calls[before:] if name == "work"]
    assert not done & set(again), "what had succeeded was done again"
    assert sorted(again) == sorted({"first", "fine", "wrong", "a", "b", "c", "d", "last"} - done)
    check_events(rig.history(execution_id))


def test_redrive__that_fails_again__can_be_redriven_again_and_counts(rig: Rig) -> None:
    rig.functions.broken = {"a", "b", "c"}
    definition = machine(("M", each(("Item", task("work")), MaxConcurrency=1)))
    execution_id = rig.start(definition, ["a", "b", "c"])
    for count, result in enumerate(["a", "b", "c"], start=1):
        assert rig.end(execution_id).status is ExecutionStatus.FAILED
        rig.functions.broken.discard(result)
        assert rig.executions.redrive(execution_id) == count

    found = rig.end(execution_id)

    assert (found.output, found.redrive_count) == (["did a", "did b", "did c"], 3)
    assert rig.functions.inputs("work") == ["a", "a", "b", "b", "c", "c"]
    assert rig.types(execution_id).count("ExecutionRedriven") == 3
    check_events(rig.history(execution_id))


def test_redrive__of_a_task_with_retries__has_all_its_attempts_again(rig: Rig) -> None:
    retry = [{"ErrorEquals": ["Broken"], "IntervalSeconds": 1, "MaxAttempts": 2}]
    rig.functions.broken = {"x"}
    execution_id = rig.start(machine(("W", task("work", Parameters="x", Retry=retry))))
    assert rig.end(execution_id).status is ExecutionStatus.FAILED
    rig.executions.redrive(execution_id)
    assert rig.end(execution_id).status is ExecutionStatus.FAILED

    assert rig.functions.count("work") == 6


def test_redrive__context_and_variables__the_count_is_seen_and_what_was_assigned_is_kept(rig: Rig) -> None:
    rig.functions.broken = {"x"}
    definition = machine(
        ("Set", {"Type": "Pass", "Assign": {"kept": {"deep": [1]}}}),
        ("W", task("work", Parameters="x")),
        ("Out", {"Type": "Pass", "Parameters": {"n.$": "$$.Execution.RedriveCount", "kept.$": "$kept"}}),
    )
    execution_id = rig.start(definition)
    rig.functions.broken.clear()
    rig.executions.redrive(execution_id)

    assert rig.end(execution_id).output == {"n": 1, "kept": {"deep": [1]}}


@pytest.mark.parametrize("how", ["stop", "timeout"])
def test_redrive__of_what_was_ended_from_outside__goes_on_and_the_history_has_both(rig: Rig, how: str) -> None:
    rig.stand_in("work").waits_once()
    limit: dict[str, Any] = {"TimeoutSeconds": 60} if how == "timeout" else {}
    execution_id = rig.start(machine(("First", {"Type": "Pass"}), ("W", HELD), **limit), limits=Limits(events_max=50))
    if how == "stop":
        rig.executions.stop(execution_id, cause="wait")
    rig.env.advance(61.0)
    ended = "ExecutionTimedOut" if how == "timeout" else "ExecutionAborted"
    assert rig.types(execution_id)[-1] == ended
    assert rig.rows_left() == []

    rig.executions.redrive(execution_id)

    assert rig.end(execution_id).output == "did held"
    types = rig.types(execution_id)
    assert types[types.index(ended) + 1] == "ExecutionRedriven"
    assert rig.entered(execution_id) == ["First", "W", "W"]
    check_events(rig.history(execution_id))


def test_map__results_that_are_too_large_together__fails_before_a_redrive_would_have_to_carry_them(rig: Rig) -> None:
    items = each(("Much", task("echo")), MaxConcurrency=1, ResultPath=None)
    much = rig.stand_in("echo").returns("x" * 200_000)
    execution_id = rig.start(machine(("Items", items)), list(range(32)))

    assert rig.end(execution_id).error == "States.DataLimitExceeded"
    assert len(much.calls) == 2


def test_redrive__what_runs_or_succeeded__is_refused(rig: Rig) -> None:
    rig.run(ECHO)
    rig.start(machine(("W", LONG)), name="two")

    with pytest.raises(ConflictError, match="SUCCEEDED"):
        rig.executions.redrive("m:one")
    with pytest.raises(ConflictError, match="RUNNING"):
        rig.executions.redrive("m:two")


def test_redrive__stopped_before_its_first_state__runs_from_its_start(rig: Rig) -> None:
    rig.executions.start_definition("m", json.dumps(ECHO), {"a": 1}, name="one")
    rig.executions.stop("m:one")
    rig.env.run()
    assert rig.executions.describe("m:one").status is ExecutionStatus.ABORTED

    rig.executions.redrive("m:one")

    assert rig.end("m:one").output == {"a": 1}


def test_redrive__of_a_child__runs_it_again_or_says_who_can(rig: Rig) -> None:
    inner = machine(("Fails", {"Type": "Fail", "Error": "Op"}))
    rig.env.service.asl.machines.put("inner", json.dumps(inner))
    execution_id = rig.start(machine(("Outer", {"Type": "Task", "Resource": "machine:inner.sync"})))
    child_id = rig.env.service.client.list(parent_id=execution_id, status=Status.FAILED).executions[0].execution_id

    try:
        rig.executions.redrive(child_id)
    except ConflictError as exc:
        assert execution_id in str(exc)
    else:
        assert rig.end(child_id).redrive_count == 1
