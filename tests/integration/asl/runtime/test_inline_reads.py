"""Inline reads: read-only calls of built-in activities, answered in the turn or by the activity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.durable.model.history import ActivityOptions
from headgate.durable.sdk.definitions import Activity
from headgate.errors import InvalidIdError, StoreBusyError
from tests.asl_rig import Rig, machine, task

OURS = "headgate.clerk"


class Clerk:
    """A function that can also look."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.looks: list[Any] = []

    def __call__(self, event: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(event)
        return {"by": "call"}

    def look(self, event: dict[str, Any]) -> dict[str, Any] | None:
        self.looks.append(event)
        return {"by": "look"} if event["action"] == "checkOne" else None


@pytest.fixture
def rig() -> Iterator[Rig]:
    # Replayed before every turn: what a look came to has to be remembered.
    with Rig() as made:
        yield made


def employ(rig: Rig, look: Callable[[dict[str, Any]], Any] | None = None) -> Clerk:
    clerk = Clerk()

    def call(event: dict[str, Any]) -> dict[str, Any]:
        return clerk(event)

    rig.app.activities[OURS] = Activity(call, name=OURS, options=ActivityOptions(), look=look or clerk.look)
    return clerk


def asks(*actions: str) -> dict[str, Any]:
    states: list[tuple[str, dict[str, Any]]] = []
    for place, action in enumerate(actions):
        states += [
            (f"Ask{place}", task(OURS, Parameters={"action": action}, ResultPath=f"$.answer{place}")),
            (f"Wait{place}", {"Type": "Wait", "Seconds": 10}),
        ]
    return machine(*states)


def test_function__that_looks__is_answered_without_an_activity_and_looks_once(rig: Rig) -> None:
    clerk = employ(rig)
    ended = rig.end(rig.start_internal(asks("checkOne", "checkOne")))
    assert ended.output == {"answer0": {"by": "look"}, "answer1": {"by": "look"}}
    assert (len(clerk.looks), clerk.calls) == (2, [])


def test_function__look_that_cannot_determine__is_called(rig: Rig) -> None:
    clerk = employ(rig)
    assert rig.end(rig.start_internal(asks("checkTwo"))).output == {"answer0": {"by": "call"}}
    assert clerk.calls == [{"action": "checkTwo"}]


def test_function__look_that_fails__is_called(rig: Rig) -> None:
    def busy(_event: dict[str, Any]) -> None:
        raise StoreBusyError("busy")

    clerk = employ(rig, busy)
    assert rig.end(rig.start_internal(asks("checkOne"))).output == {"answer0": {"by": "call"}}
    assert len(clerk.calls) == 1


def test_function__action_that_does_something__is_called_and_never_looked_at(rig: Rig) -> None:
    clerk = employ(rig)
    assert rig.end(rig.start_internal(asks("release"))).output == {"answer0": {"by": "call"}}
    assert clerk.looks == []


def test_function__replayed_by_a_process_that_cannot_look__goes_on_with_what_was_seen(rig: Rig) -> None:
    clerk = employ(rig)
    execution_id = rig.start_internal(asks("checkOne", "checkOne"))
    rig.app.activities[OURS].look = None

    ended = rig.end(execution_id)

    assert ended.status is ExecutionStatus.SUCCEEDED
    assert ended.output == {"answer0": {"by": "look"}, "answer1": {"by": "call"}}
    assert (len(clerk.looks), len(clerk.calls)) == (1, 1)


def test_stand_in__for_a_function_that_looks__gets_every_call(rig: Rig) -> None:
    clerk = employ(rig)
    rig.stand_in(OURS).returns({"by": "stand-in"})
    assert rig.end(rig.start_internal(asks("checkOne"))).output == {"answer0": {"by": "stand-in"}}
    assert clerk.looks == []


def test_function_of_headgate__called_by_a_machine_of_a_user__is_refused(rig: Rig) -> None:
    clerk = employ(rig)
    with pytest.raises(InvalidIdError, match="reserved for Headgate"):
        rig.start(asks("checkOne"))
    resource = "arn:aws:states:::lambda:invoke"
    computed = {"Type": "Task", "Resource": resource, "Parameters": {"FunctionName.$": "$.name", "Payload": {}}}
    ended = rig.run(machine(("Ask", computed)), {"name": OURS})
    assert (ended.status, ended.error) == (ExecutionStatus.FAILED, "States.Runtime")
    assert (clerk.calls, clerk.looks) == ([], [])
