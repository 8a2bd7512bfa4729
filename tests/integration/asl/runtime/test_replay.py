from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.runtime.history import EventCounter, EventRecorder, HistoryEvent
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.replay import HistoryReplayer
from headgate.asl.runtime.task_tokens import CallbackKind
from headgate.errors import DeterminismError
from headgate.serve.rest.asl.events import event_view
from tests.asl_rig import Rig, beside, check_events, each, machine, task

LONG = {"Type": "Wait", "Seconds": 86_400}
PASS = {"Type": "Pass"}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        yield made


def test_journals__of_both_kinds__count_alike() -> None:
    tally, chronicle = EventCounter(), EventRecorder(lambda: 5, [])
    for journal in (tally, chronicle):
        assert [journal.add("A", 0), journal.add("B", 1, {"x": 1})] == [1, 2]

    assert tally.count == chronicle.count == 2
    assert chronicle.events == [HistoryEvent(1, 0, "A", 5), HistoryEvent(2, 1, "B", 5, {"x": 1})]
    assert EventRecorder(lambda: 6, chronicle.events).add("C", 2) == 3


def test_history__while_it_runs__has_only_what_has_happened(rig: Rig) -> None:
    rig.stand_in("work").waits()
    definition = machine(
        ("First", PASS),
        ("P", beside(machine(("Long", LONG)), machine(("Held", task("work", Parameters="x"))))),
    )
    execution_id = rig.start(definition, {"a": 1})

    events = rig.history(execution_id)

    assert [event.type for event in events] == [
        "ExecutionStarted",
        "PassStateEntered",
        "PassStateExited",
        "ParallelStateEntered",
        "ParallelStateStarted",
        "WaitStateEntered",
        "TaskStateEntered",
        "LambdaFunctionScheduled",
        "LambdaFunctionStarted",
    ]
    assert rig.history(execution_id) == events, "looking changes nothing"
    check_events(events)


def test_history__of_a_task__input_and_output_of_every_step(rig: Rig) -> None:
    definition = machine(("T", task("work", InputPath="$.what", ResultPath="$.got", TimeoutSeconds=9)))
    found = rig.run(definition, {"what": "x"})

    started, entered, scheduled, _, succeeded, exited, ended = rig.history(found.execution_id)

    output = {"what": "x", "got": "did x"}
    assert started.details == {"input": {"what": "x"}}
    assert entered.details == {"name": "T", "input": {"what": "x"}}
    assert scheduled.details == {"resource": "work", "input": "x", "timeoutInSeconds": 9}
    assert succeeded.details == {"output": "did x"}
    assert exited.details == {"name": "T", "output": output}
    assert (ended.type, ended.details) == ("ExecutionSucceeded", {"output": output})


def test_history__of_iterations__each_follows_from_its_own(rig: Rig) -> None:
    found = rig.run(machine(("M", each(("A", task("work")), ("B", PASS), MaxConcurrency=2))), [1, 2, 3])
    events = {event.id: event for event in rig.history(found.execution_id)}

    for event in events.values():
        if event.type != "MapIterationSucceeded":
            continue
        chain = [event]
        while chain[-1].type != "MapIterationStarted":
            chain.append(events[chain[-1].previous_id])
        assert chain[-1].details["index"] == event.details["index"]
        assert [each.type for each in reversed(chain)] == [
            "MapIterationStarted",
            "TaskStateEntered",
            "LambdaFunctionScheduled",
            "LambdaFunctionStarted",
            "LambdaFunctionSucceeded",
            "TaskStateExited",
            "PassStateEntered",
            "PassStateExited",
            "MapIterationSucceeded",
        ]
    check_events(list(events.values()))


def test_history__retried_task__has_every_attempt_and_is_entered_once(rig: Rig) -> None:
    retry = [{"ErrorEquals": ["Shaky"], "IntervalSeconds": 10, "BackoffRate": 2}]
    shaky = task("shaky", Parameters={"attempt.$": "$$.State.RetryCount", "fails": 2}, Retry=retry)
    found = rig.run(machine(("R", shaky)))

    events = rig.history(found.execution_id)

    types = [event.type for event in events]
    assert types.count("TaskStateEntered") == types.count("TaskStateExited") == 1
    assert types.count("LambdaFunctionScheduled") == 3
    at_ms = [event.at_ms for event in events if event.type == "LambdaFunctionScheduled"]
    assert [later - earlier for earlier, later in itertools.pairwise(at_ms)] == [10_000, 20_000]


def test_history__over_many_runs__goes_on_without_a_gap_and_ends_as_one_would(rig: Rig) -> None:
    states = [(f"S{number}", {"Type": "Wait", "Seconds": 1}) for number in range(12)]
    theirs = rig.history(rig.run(machine(*states), {"a": 1}, name="whole").execution_id)
    cut = rig.run(machine(*states), {"a": 1}, name="cut", limits=Limits(events_a_run=5))

    ours = rig.history(cut.execution_id)

    assert rig.env.service.client.get(cut.execution_id).run > 3
    assert [(event.id, event.type, event.previous_id, event.details) for event in ours] == [
        (event.id, event.type, event.previous_id, event.details) for event in theirs
    ]


def test_history__name_used_again_by_its_id__is_that_of_the_present_life(rig: Rig) -> None:
    found = rig.run(machine(("A", task("echo"))), {"a": 1})
    rig.env.service.client.retry(found.execution_id)
    rig.env.run()

    events = rig.history(found.execution_id)

    assert rig.functions.count("echo") == 2
    assert [event.type for event in events].count("ExecutionStarted") == 1
    check_events(events)


def test_inspect__after_archiving__finds_the_same(rig: Rig) -> None:
    found = rig.run(machine(("M", each(("A", task("work")))), ("W", {"Type": "Wait", "Seconds": 5})), [1, 2])
    before = rig.history(found.execution_id)
    rig.env.advance("400d")
    assert rig.env.service.client.get(found.execution_id).archive is not None

    assert rig.history(found.execution_id) == before
    assert rig.executions.describe(found.execution_id) == found


def test_inspect__stands_where_the_machine_stands__frame_by_frame(rig: Rig) -> None:
    rig.functions.broken = {"b"}
    ask = {"Type": "Task", "Resource": "${keep}.waitForTaskToken", "Parameters": {"token.$": "$$.Task.Token"}}
    definition = machine(
        (
            "P",
            beside(
                machine(("M", each(("Ask", {**ask, "ResultPath": None}), ("Do", task("work"))))),
                machine(("Mark", {"Type": "Pass", "Assign": {"mark": 1}}), ("Long", LONG)),
            ),
        ),
    )
    execution_id = rig.start(definition, ["a", "b"])
    rig.answer(rig.functions.tokens[0], CallbackKind.SUCCESS)
    rig.answer(rig.functions.tokens[1], CallbackKind.SUCCESS)
    assert rig.executions.describe(execution_id).status is ExecutionStatus.FAILED

    frame = rig.executions.replay(rig.env.service.client.get(execution_id)).frame

    assert frame is not None
    items, long = frame.branches[0], frame.branches[1]
    assert (frame.state, frame.input, frame.outputs) == ("P", ["a", "b"], {})
    assert (items.state, items.outputs, list(items.branches)) == ("M", {0: "did a"}, [1])
    assert (items.branches[1].state, items.branches[1].input) == ("Do", "b")
    assert (long.state, long.variables) == ("Long", {"mark": 1})


def test_replay__history_that_this_build_would_not_make__is_refused(rig: Rig) -> None:
    found = rig.run(machine(("W", {"Type": "Wait", "Seconds": 5}), ("A", task("echo"))), {})
    client = rig.env.service.client
    turns = list(client.history(found.execution_id))
    replayer: HistoryReplayer = rig.executions._replayer

    with pytest.raises(DeterminismError):
        replayer.replay(client.get(found.execution_id), [turns[0], *turns[2:]])


def test_history__an_expression_that_fails__is_there_once_with_its_state_and_field(rig: Rig) -> None:
    retry = [{"ErrorEquals": ["States.QueryEvaluationError"], "MaxAttempts": 1}]
    asks = {"Type": "Task", "Resource": "${echo}", "Arguments": {"a": {"b": "{% $nobody %}"}}, "Retry": retry}
    catch = [{"ErrorEquals": ["States.ALL"], "Next": "Is", "Output": "{% $states.errorOutput.Error %}"}]
    definition = machine(
        ("P", beside(machine(("Asks", asks)), Catch=catch)),
        ("Is", {"Type": "Choice", "Choices": [{"Condition": "{% 1 %}", "Next": "End"}]}),
        ("End", {"Type": "Succeed"}),
        QueryLanguage="JSONata",
    )
    execution_id = rig.start(definition, {})
    rig.end(execution_id)

    events = rig.history(execution_id)

    assert [event.type for event in events] == [
        "ExecutionStarted",
        "ParallelStateEntered",
        "ParallelStateStarted",
        "TaskStateEntered",
        "EvaluationFailed",
        "EvaluationFailed",
        "ParallelStateFailed",
        "ParallelStateExited",
        "ChoiceStateEntered",
        "EvaluationFailed",
        "ExecutionFailed",
    ]
    failed = [event.details for event in events if event.type == "EvaluationFailed"]
    assert [(each["state"], each["location"], each["error"]) for each in failed] == [
        ("Asks", "Arguments", "States.QueryEvaluationError"),
        ("Asks", "Arguments", "States.QueryEvaluationError"),
        ("Is", "Condition", "States.QueryEvaluationError"),
    ]
    assert "$nobody" in failed[0]["cause"]
    assert event_view(events[4])["evaluationFailedEventDetails"] == failed[0]
    check_events(events)
