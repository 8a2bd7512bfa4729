"""Resets of executions of state machines: they run again from a state by its name, with the input of its entry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.interpreter import Limits
from headgate.errors import ConflictError, NotFoundError
from tests.asl_rig import Rig, beside, check_events, machine, task

STEPS = machine(
    ("First", task("work", Parameters="first", ResultPath="$.first", Assign={"kept": "variable"})),
    ("Second", task("work", Parameters="second", ResultPath="$.second")),
    ("Third", task("echo", Parameters={"seen.$": "$", "variable.$": "$kept"})),
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


def test_reset__to_a_state__runs_it_and_what_follows_with_its_input_and_variables(rig: Rig) -> None:
    execution_id = rig.start(STEPS, {"order": 1})
    first = rig.end(execution_id)
    assert first.status is ExecutionStatus.SUCCEEDED
    assert rig.functions.inputs("work") == ["first", "second"]

    assert rig.executions.reset(execution_id, "Second", reason="a wrong rate") == 1

    found = rig.end(execution_id)
    assert (found.status, found.redrive_count, found.output) == (ExecutionStatus.SUCCEEDED, 1, first.output)
    assert rig.functions.inputs("work") == ["first", "second", "second"]
    assert found.output["variable"] == "variable"
    assert rig.types(execution_id).count("ExecutionRedriven") == 1
    check_events(rig.history(execution_id))


def test_reset__repeated_with_its_key__happens_once_and_another_key_resets_again(rig: Rig) -> None:
    execution_id = rig.start(STEPS, {})
    rig.end(execution_id)
    assert [rig.executions.reset(execution_id, "Third", request_id="k-1") for _ in range(2)] == [1, 1]
    rig.end(execution_id)
    assert rig.executions.reset(execution_id, "Third", request_id="k-1") == 1
    assert rig.executions.reset(execution_id, "Third", request_id="k-2") == 2
    rig.end(execution_id)
    assert rig.executions.reset(execution_id, "Third", request_id="k-1") == 2
    assert rig.functions.count("echo") == 3


def test_reset__of_a_state_that_ran_before_a_failure__then_goes_on(rig: Rig) -> None:
    rig.functions.broken = {"second"}
    execution_id = rig.start(STEPS, {})
    assert rig.end(execution_id).status is ExecutionStatus.FAILED
    rig.functions.broken.clear()
    rig.executions.reset(execution_id, "First")
    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED
    assert rig.functions.inputs("work") == ["first", "second", "first", "second"]


def test_reset__running_unknown_or_inside_of_a_parallel__is_refused_with_the_remedy(rig: Rig) -> None:
    nested = machine(
        ("Wait", {"Type": "Wait", "Seconds": 60}),
        ("Both", beside(machine(("Inner", task("work", Parameters="inner"))))),
        ("Never", {"Type": "Pass"}),
    )
    execution_id = rig.start(nested, {})
    rig.env.run()
    with pytest.raises(ConflictError, match="headgate asl stop"):
        rig.executions.reset(execution_id, "Wait")
    rig.functions.broken = {"inner"}
    rig.end(execution_id)
    for state in ("Inner", "Never", "Nowhere"):
        with pytest.raises(NotFoundError, match="it has entered Wait, Both; the states of a Parallel or Map begin"):
            rig.executions.reset(execution_id, state)
    rig.functions.broken.clear()
    rig.executions.reset(execution_id, "Both")
    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED


def test_reset__after_continue_as_new__finds_states_of_earlier_runs(rig: Rig) -> None:
    steps = machine(*((f"S{n}", task("work", Parameters=f"s{n}", ResultPath=None)) for n in range(6)))
    execution_id = rig.start(steps, {"n": 1}, limits=Limits(events_a_run=8))
    rig.end(execution_id)
    rig.executions.reset(execution_id, "S1")
    assert rig.end(execution_id).output == {"n": 1}
    assert rig.functions.inputs("work") == [f"s{n}" for n in range(6)] + [f"s{n}" for n in range(1, 6)]
