from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headgate.asl.machines.executions import ExecutionStatus, functions_of
from headgate.asl.runtime.execution_request import compiled
from headgate.asl.runtime.interpreter import Limits
from headgate.durable.engine.membership import Member
from headgate.durable.model.history import Started, Status
from headgate.errors import (
    AlreadyStartedError,
    ExecutionClosedError,
    InvalidIdError,
    NotFoundError,
    PayloadTooLargeError,
)
from headgate.store.catalogue.tables import DEFINITIONS, WORKERS
from headgate.store.model.schema import Key
from tests.asl_rig import Rig, beside, check_events, each, machine, task

ECHO = machine(("Only", task("echo")))
LONG = {"Type": "Wait", "Seconds": 86_400}
HELD = task("work", Parameters="held")


def endless(seconds: int) -> dict[str, Any]:
    """Return a machine that looks whether it is done, and never is."""
    rule = {"Variable": "$.done", "IsPresent": True, "Next": "Done"}
    return machine(
        ("Look", {"Type": "Choice", "Choices": [rule], "Default": "Pause"}),
        ("Pause", {"Type": "Wait", "Seconds": seconds, "Next": "Look"}),
        ("Done", {"Type": "Succeed"}),
    )


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


# Names.


def test_start__same_name_and_input_while_it_runs__the_same_execution(rig: Rig) -> None:
    waits = json.dumps(machine(("W", LONG)))
    first = rig.executions.start_definition("m", waits, {"a": 1}, name="one")
    at_once = rig.executions.start_definition("m", waits, {"a": 1}, name="one")
    rig.env.advance(5.0)

    later = rig.executions.start_definition("m", waits, {"a": 1}, name="one")

    assert first == ("m:one", True)
    assert [at_once, later] == [("m:one", False)] * 2


def test_start__same_name_and_input_after_its_end__the_same_execution_and_nothing_done_again(rig: Rig) -> None:
    rig.run(ECHO, {"a": 1})

    assert rig.executions.start_definition("m", json.dumps(ECHO), {"a": 1}, name="one") == ("m:one", False)
    rig.env.run()
    assert rig.functions.count("echo") == 1


@pytest.mark.parametrize("ended", [False, True])
def test_start__same_name_with_another_input__is_refused(rig: Rig, ended: bool) -> None:
    rig.start(ECHO if ended else machine(("W", LONG)), {"a": 1})

    with pytest.raises(AlreadyStartedError, match="choose another name") as refused:
        rig.start(ECHO if ended else machine(("W", LONG)), {"a": 2})
    assert "reuse" not in str(refused.value), "a machine start has no such policy"


def test_start__same_name_and_input_after_a_redrive__the_same_execution(rig: Rig) -> None:
    rig.functions.broken = {"x"}
    definition = machine(("W", task("work", InputPath="$.what")))
    execution_id = rig.start(definition, {"what": "x"})
    rig.functions.broken.clear()
    rig.executions.redrive(execution_id)
    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED

    again = rig.executions.start_definition("m", json.dumps(definition), {"what": "x"}, name="one")

    assert again == (execution_id, False)


def test_start__same_name_and_input_after_many_runs__the_same_execution(rig: Rig) -> None:
    limits = Limits(events_a_run=4)
    definition = machine(*((f"S{number}", {"Type": "Pass"}) for number in range(6)), ("W", LONG))
    execution_id = rig.start(definition, {"a": 1}, limits=limits)
    assert rig.env.service.client.get(execution_id).run > 1

    again = rig.executions.start_definition("m", json.dumps(definition), {"a": 1}, name="one", limits=limits)

    assert again == (execution_id, False)


def test_start__same_name_and_input_after_a_new_version__the_same_execution(rig: Rig) -> None:
    rig.env.service.asl.machines.put("m", json.dumps(machine(("W", LONG))))
    first = rig.executions.start("m", {"a": 1}, name="one")
    rig.env.run()
    rig.env.service.asl.machines.put("m", json.dumps(ECHO))

    assert rig.executions.start("m", {"a": 1}, name="one") == (first[0], False)


def test_start__machine_that_is_kept__is_named_in_the_history_and_not_written_out(rig: Rig) -> None:
    rig.env.service.asl.machines.put("m", json.dumps(ECHO))
    first, _ = rig.executions.start("m", {"a": 1}, name="one")
    # What a newer version does is no concern of those who are under way.
    rig.env.service.asl.machines.put("m", json.dumps(machine(("W", LONG))))

    assert rig.end(first).output == {"a": 1}
    (started, *_) = next(iter(rig.env.service.client.history(first))).events
    assert isinstance(started, Started)
    assert b"StartAt" not in bytes(started.input)


def test_run__its_definition_cannot_be_read_for_a_while__goes_on_once_it_can(rig: Rig) -> None:
    store = rig.env.service.store
    rig.env.service.asl.machines.put("m", json.dumps(ECHO))
    key = Key("STATE-MACHINE#m", "v000001")
    row = store.delete(DEFINITIONS, key)
    execution_id, _ = rig.executions.start("m", {"a": 1}, name="one")

    rig.env.run()
    waiting = rig.env.service.client.get(execution_id)
    assert (waiting.status, waiting.turn, waiting.failures) == (Status.RUNNING, 0, 1)

    assert row is not None
    store.put(DEFINITIONS, row)
    rig.env.advance("1m")
    assert rig.end(execution_id).output == {"a": 1}


def test_start__without_a_name__one_of_its_own_each_time(rig: Rig) -> None:
    started = {rig.executions.start_definition("m", json.dumps(ECHO), {})[0] for _ in range(3)}

    assert len(started) == 3


@pytest.mark.parametrize("name", ["a b", "x" * 81, "a/b", "é", "a#b"])
def test_start__name_that_cannot_be__is_refused_and_says_what_can(rig: Rig, name: str) -> None:
    with pytest.raises(InvalidIdError, match="letters, digits"):
        rig.start(ECHO, name=name)


# What is refused at the start.


def test_start__input_at_the_limit__runs_and_one_byte_more_is_refused(rig: Rig) -> None:
    definition = machine(("P", {"Type": "Pass"}))
    fits = "x" * (262_144 - 2)

    assert rig.run(definition, fits).output == fits
    with pytest.raises(PayloadTooLargeError, match="262,145"):
        rig.start(definition, fits + "x", name="two")


def test_start__function_that_no_one_has__is_refused_with_its_name_wherever_it_is(rig: Rig) -> None:
    definition = machine(
        ("P", beside(machine(("M", each(("Deep", task("missing_one"))))), machine(("B", task("missing_two"))))),
    )

    with pytest.raises(NotFoundError, match=r"function missing_one, missing_two; .* there is .*echo"):
        rig.start(definition, [])
    with pytest.raises(NotFoundError):
        rig.env.service.client.get("m:one")


@pytest.mark.parametrize(("seen_seconds_ago", "is_accepted"), [(1, True), (3_600, False)])
def test_start__function_of_another_worker__counts_while_that_one_lives(
    rig: Rig, seen_seconds_ago: int, is_accepted: bool
) -> None:
    now_ms = round(1000 * rig.env.clock.seconds())
    other = Member(
        "wrk_other",
        beats=5,
        started_at_ms=now_ms - 7_200_000,
        lease_seconds=10.0,
        activities=("elsewhere",),
        seen_at_ms=now_ms - 1000 * seen_seconds_ago,
    )
    rig.env.service.store.put(WORKERS, {"fleet": "FLEET", **msgspec.to_builtins(other)})
    definition = json.dumps(machine(("T", task("elsewhere"))))

    if is_accepted:
        assert rig.executions.start_definition("m", definition, {}, name="one") == ("m:one", True)
    else:
        with pytest.raises(NotFoundError, match="elsewhere"):
            rig.executions.start_definition("m", definition, {}, name="one")


def test_functions_of__all_kinds_of_resources__those_that_a_worker_has_to_have() -> None:
    definition = machine(
        ("A", task("a")),
        ("B", {"Type": "Task", "Resource": "arn:aws:lambda:eu-west-1:123456789012:function:b:$LATEST"}),
        ("C", {"Type": "Task", "Resource": "arn:aws:states:eu-west-1:123456789012:activity:c"}),
        ("D", {"Type": "Task", "Resource": "arn:aws:states:::sns:publish", "Parameters": {"Message": "x"}}),
        ("E", {"Type": "Task", "Resource": "machine:other.sync"}),
        ("F", {"Type": "Task", "Resource": "f.waitForTaskToken", "Parameters": {"token.$": "$$.Task.Token"}}),
    )

    assert functions_of(compiled(json.dumps(definition))) == {"a", "b", "c", "f"}


def test_start__machine_that_is_not_there__is_refused(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="headgate asl ls"):
        rig.executions.start("nobody")


# Looking at it.


def test_describe__while_it_runs__the_states_it_is_in_with_those_of_branches(rig: Rig) -> None:
    definition = machine(
        ("P", beside(machine(("Left", LONG)), machine(("M", each(("Item", LONG), ItemsPath="$.items"))))),
    )
    execution_id = rig.start(definition, {"items": [1, 2]})

    found = rig.executions.describe(execution_id)

    assert (found.status, found.ended_at, found.input) == (ExecutionStatus.RUNNING, "", {"items": [1, 2]})
    assert found.states == ("P", "Left", "M", "Item", "Item")


def test_describe__after_it_failed__the_error_and_its_cause(rig: Rig) -> None:
    found = rig.run(machine(("F", {"Type": "Fail", "Error": "Bad", "Cause": "because"})))

    assert (found.status, found.error, found.cause) == (ExecutionStatus.FAILED, "Bad", "because")
    assert (found.output, found.states) == (None, ())


def test_describe__execution_of_a_workflow__is_not_one_of_a_machine(rig: Rig) -> None:
    @rig.app.workflow(check=False)
    async def plain() -> int:
        return 1

    rig.env.start(plain, id="plain")

    with pytest.raises(NotFoundError, match="headgate execution"):
        rig.executions.describe("plain")


# Stopping.


def test_stop__in_the_middle__nothing_of_it_goes_on(rig: Rig) -> None:
    rig.stand_in("work").waits()
    definition = machine(
        ("P", beside(machine(("Held", HELD)), machine(("Long", LONG)), machine(("M", each(("Item", HELD)))))),
        TimeoutSeconds=999_999,
    )
    execution_id = rig.start(definition, [1, 2])
    assert len(rig.rows_left()) >= 5

    rig.executions.stop(execution_id, error="Operator", cause="had enough")
    rig.env.run()

    found = rig.executions.describe(execution_id)
    assert (found.status, found.error, found.cause) == (ExecutionStatus.ABORTED, "Operator", "had enough")
    assert rig.rows_left() == []
    last = rig.history(execution_id)[-1]
    assert (last.type, dict(last.details)) == ("ExecutionAborted", {"error": "Operator", "cause": "had enough"})
    check_events(rig.history(execution_id))


def test_stop__what_has_ended_or_never_was__is_refused(rig: Rig) -> None:
    rig.run(ECHO)

    with pytest.raises(ExecutionClosedError):
        rig.executions.stop("m:one")
    with pytest.raises(NotFoundError):
        rig.executions.stop("m:none")


def test_stop__machine_that_waits_for_a_machine__ends_both_and_both_can_be_looked_at(rig: Rig) -> None:
    rig.env.service.asl.machines.put("inner", json.dumps(machine(("Long", LONG))))
    execution_id = rig.start(machine(("Outer", {"Type": "Task", "Resource": "machine:inner.sync"})))
    child_id = next(row.execution_id for row in rig.env.service.client.list(parent_id=execution_id).executions)
    assert rig.executions.describe(child_id).states == ("Long",)

    rig.executions.stop(execution_id)
    rig.env.run()

    assert rig.executions.describe(execution_id).status is ExecutionStatus.ABORTED
    assert rig.executions.describe(child_id).status is ExecutionStatus.ABORTED
    assert rig.types(child_id)[-1] == "ExecutionAborted"


@pytest.mark.parametrize("how", ["stopped", "timed-out", "failed"])
def test_child__ended_otherwise_than_well__its_parent_receives_how(rig: Rig, how: str) -> None:
    limit = {"TimeoutSeconds": 60} if how == "timed-out" else {}
    last = {"Type": "Fail", "Error": "Op", "Cause": "why"}
    inner = machine(("Long", {"Type": "Wait", "Seconds": 600}), ("Last", last), **limit)
    rig.env.service.asl.machines.put("inner", json.dumps(inner))
    execution_id = rig.start(machine(("Outer", {"Type": "Task", "Resource": "machine:inner.sync"})))
    child_id = rig.env.service.client.list(parent_id=execution_id).executions[0].execution_id
    if how == "stopped":
        rig.executions.stop(child_id, error="Op", cause="why")

    found = rig.end(execution_id)

    facts = json.loads(found.cause)
    assert (found.status, found.error, facts["ExecutionArn"]) == (ExecutionStatus.FAILED, "States.TaskFailed", child_id)
    assert facts["Status"] == rig.executions.describe(child_id).status.value
    if how != "timed-out":
        assert (facts["Error"], facts["Cause"]) == ("Op", "why")


def test_terminate__of_its_execution__is_an_end_that_can_be_looked_at_and_redriven(rig: Rig) -> None:
    execution_id = rig.start(machine(("W", LONG), ("Last", task("echo"))))
    rig.env.service.client.terminate(execution_id, "away with it")
    rig.env.run()
    assert rig.executions.describe(execution_id).status is ExecutionStatus.ABORTED

    rig.executions.redrive(execution_id)

    assert rig.end(execution_id).status is ExecutionStatus.SUCCEEDED


# Limits.


def test_machine_timeout__in_a_state_of_a_later_run__is_timed_out_and_nothing_is_left(rig: Rig) -> None:
    execution_id = rig.start({**endless(10), "TimeoutSeconds": 300}, limits=Limits(events_a_run=10))
    assert rig.end(execution_id).status is ExecutionStatus.TIMED_OUT

    assert rig.env.service.client.get(execution_id).run > 5
    assert rig.entered(execution_id).count("Pause") == 30
    assert rig.types(execution_id)[-1] == "ExecutionTimedOut"
    assert rig.rows_left() == []
    check_events(rig.history(execution_id))


def test_machine_timeout__caught_by_nothing_in_it__ends_it_whatever_its_states_catch(rig: Rig) -> None:
    rig.stand_in("work").waits()
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "After"}]
    definition = machine(("W", {**HELD, "Catch": catch}), ("After", {"Type": "Pass"}), TimeoutSeconds=30)

    found = rig.run(definition)

    assert (found.status, rig.entered(found.execution_id)) == (ExecutionStatus.TIMED_OUT, ["W"])


CATCH = {"Catch": [{"ErrorEquals": ["States.ALL"], "Next": "Caught"}]}
FAILS = task("fail", Parameters={}, Retry=[{"ErrorEquals": ["States.ALL"], "MaxAttempts": 90, "BackoffRate": 1}])


@pytest.mark.parametrize(
    "definition",
    [
        endless(1),
        machine(("P", beside(endless(1), **CATCH)), ("Caught", {"Type": "Pass"})),
        machine(("M", each(("I", {"Type": "Pass"}), ItemsPath="$.items", **CATCH)), ("Caught", {"Type": "Pass"})),
        machine(("T", {**FAILS, **CATCH}), ("Caught", {"Type": "Pass"})),
    ],
    ids=["loop", "in-a-branch", "map", "retry"],
)
def test_events_max__reached__fails_as_step_functions_does(rig: Rig, definition: dict[str, Any]) -> None:
    found = rig.run(definition, {"items": list(range(60))}, limits=Limits(events_max=50))

    assert (found.status, found.error) == (ExecutionStatus.FAILED, "States.Runtime")
    assert "maximum number of history events" in found.cause
    # An execution in progress at that moment is still recorded as aborted.
    assert len(rig.history(found.execution_id)) <= 50 + 2 * 40 + 4
    assert rig.rows_left() == []


def test_events_max__by_default__there_is_none(rig: Rig) -> None:
    assert Limits().events_max is None
