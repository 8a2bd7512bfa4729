"""Records executions of state machines on a real store: `python -m tests.replay.recorded_machines [NAME ...]`.

Beside each history is how it is shown in the words of Step Functions. As with workflows, one that is committed stays as
it was written: name it only if it is meant to be lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from headgate.asl.runtime.history import HistoryEvent
from headgate.asl.runtime.task_tokens import CallbackKind
from headgate.asl.tasks.activities import SERVICE
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution
from headgate.settings import Settings, TaskSettings
from tests.asl_rig import Rig, beside, each, machine, task
from tests.replay.record import ROOT, _without_machine
from tests.replay.recordings import laid_out, plain_turns

MACHINES = Path(__file__).parent / "machines"
EVENTS_TOLD = 60
PASS = {"Type": "Pass"}
WAIT = {"Type": "Wait", "Seconds": 30}
ASK = {"Type": "Task", "Resource": "${keep}.waitForTaskToken", "Parameters": {"token.$": "$$.Task.Token"}}
QUEUE = "arn:aws:states:::sqs:sendMessage.waitForTaskToken"
JOB = "arn:aws:states:::glue:startJobRun.sync"
ENTRIES = [
    {"resource": "*:function:price", "function": "echo"},
    {"resource": "sqs:sendMessage", "answer": {"approved": True}},
    {"resource": "aws-sdk:s3:*", "error": "S3.NoSuchKeyException", "cause": "gone"},
]
CAUGHT = [{"ErrorEquals": ["States.ALL"], "Next": "Caught", "ResultPath": "$.caught"}]


class Telling(msgspec.Struct):
    """How a recorded execution stands, and its history as Step Functions would show it."""

    status: Status
    error: str | None
    count: int
    # The first and the last, if there are more than a person reads.
    events: list[HistoryEvent]

    @classmethod
    def of(cls, row: Execution, events: list[HistoryEvent]) -> Telling:
        some = events if len(events) <= 2 * EVENTS_TOLD else events[:EVENTS_TOLD] + events[-EVENTS_TOLD:]
        return cls(row.status, row.error, len(events), some)


def mapped(rig: Rig) -> str:
    processor = [("Do", task("work")), ("Mark", {"Type": "Pass", "Assign": {"seen.$": "$"}})]
    items = each(*processor, ItemsPath="$.items", MaxConcurrency=2, ResultPath="$.done")
    return rig.run(machine(("Items", items), ("End", {"Type": "Succeed"})), {"items": ["a", "b", "ü"]}).execution_id


def parallel(rig: Rig) -> str:
    rig.stand_in("echo").waits()
    fails = machine(("First", WAIT), ("Fails", task("fail", Parameters={"error": "Refused"})))
    held = machine(("Held", task("echo")))
    branches = beside(fails, held, machine(("Long", {"Type": "Wait", "Seconds": 9_000})), Catch=CAUGHT)
    return rig.run(machine(("Both", branches), ("Caught", PASS)), {"a": 1}).execution_id


def retried(rig: Rig) -> str:
    retry = [
        {
            "ErrorEquals": ["Shaky"],
            "IntervalSeconds": 2,
            "MaxAttempts": 4,
            "MaxDelaySeconds": 5,
            "JitterStrategy": "FULL",
        }
    ]
    shaky = task("shaky", Parameters={"attempt.$": "$$.State.RetryCount", "fails": 3}, Retry=retry)
    return rig.run(machine(("Try", shaky))).execution_id


def waited(rig: Rig) -> str:
    until = {"Type": "Wait", "TimestampPath": "$.until"}
    states = machine(("Some", {"Type": "Wait", "SecondsPath": "$.seconds"}), ("Until", until), ("Past", until))
    return rig.run(states, {"seconds": 1.0, "until": "2025-06-15T16:00:00Z"}).execution_id


def drawn(rig: Rig) -> str:
    made = {"id.$": "States.UUID()", "number.$": "States.MathRandom(1, 1000000)", "at.$": "$$.State.EnteredTime"}
    draw = {"Type": "Pass", "Parameters": made}
    use = task("echo", Parameters=made)
    return rig.run(machine(("Draw", draw), ("Use", task("echo")), ("Pause", WAIT), ("Last", use))).execution_id


def chosen(rig: Rig) -> str:
    rules = [
        {"Variable": "$.n", "NumericGreaterThan": 5, "Next": "Much"},
        {"And": [{"Variable": "$.n", "IsPresent": True}, {"Variable": "$.n", "NumericLessThan": 3}], "Next": "Add"},
    ]
    add = {"Type": "Pass", "Parameters": {"n.$": "States.MathAdd($.n, 2)"}}
    states = machine(
        ("Choose", {"Type": "Choice", "Choices": rules, "Default": "Little"}),
        ("Add", {**add, "Next": "Pause"}),
        ("Pause", {**WAIT, "Next": "Choose"}),
        ("Much", {"Type": "Succeed"}),
        ("Little", {"Type": "Fail", "Error": "TooLittle", "CausePath": "States.Format('only {}', $.n)"}),
    )
    return rig.run(states, {"n": 0}).execution_id


def asked(rig: Rig) -> str:
    retry = [{"ErrorEquals": ["States.HeartbeatTimeout", "Again"], "IntervalSeconds": 1}]
    states = machine(("Ask", {**ASK, "HeartbeatSeconds": 60, "TimeoutSeconds": 600, "Retry": retry}), ("Last", PASS))
    execution_id = rig.start(states)
    rig.env.advance(50.0)
    rig.answer(rig.functions.tokens[0], CallbackKind.HEARTBEAT)
    rig.env.advance(62.0)
    rig.answer(rig.functions.tokens[1], CallbackKind.FAILURE, error="Again", cause="no idea")
    rig.env.advance(3.0)
    rig.answer(rig.functions.tokens[2], CallbackKind.SUCCESS, {"yes": [1, None]})
    return rig.end(execution_id).execution_id


def looped(rig: Rig) -> str:
    """Long enough to continue as new: each round has some hundred events."""
    rule = {"Variable": "$.n", "NumericGreaterThanEquals": 9, "Next": "Done"}
    states = machine(
        ("Set", {"Type": "Pass", "Assign": {"items.$": "States.ArrayRange(1, 35, 1)"}}),
        ("Round", {"Type": "Pass", "Parameters": {"n.$": "States.MathAdd($.n, 1)"}, "Assign": {"last.$": "$.n"}}),
        ("Items", each(("Item", PASS), ItemsPath="$items", ResultPath=None)),
        ("Pause", WAIT),
        ("Enough", {"Type": "Choice", "Choices": [rule], "Default": "Round"}),
        ("Done", {"Type": "Pass", "Parameters": {"last.$": "$last", "n.$": "$.n"}}),
    )
    return rig.run(states, {"n": 0}).execution_id


def redriven(rig: Rig) -> str:
    rig.functions.broken = {"b"}
    inner = machine(("Items", each(("Do", task("work")), ItemsPath="$.items")))
    states = machine(
        ("Set", {"Type": "Pass", "Assign": {"kept": 1}}), ("Both", beside(inner, machine(("Pause", WAIT))))
    )
    execution_id = rig.start(states, {"items": ["a", "b", "c"]})
    rig.functions.broken.clear()
    rig.executions.redrive(execution_id)
    return rig.end(execution_id).execution_id


def jsonata(rig: Rig) -> str:
    work = {
        "Type": "Task",
        "Resource": "${work}",
        "Arguments": "{% $states.input & $suffix %}",
        "Output": "{% $states.result %}",
    }
    states: list[tuple[str, dict[str, Any]]] = [
        ("Set", {"Type": "Pass", "Assign": {"suffix": "{% '-' & $string($count($states.input.items)) %}"}}),
        ("Items", {"Type": "Map", "Items": "{% $states.input.items %}", "ItemProcessor": machine(("Do", work))}),
        ("Pause", {"Type": "Wait", "Seconds": "{% 2 * 3 %}"}),
        (
            "Last",
            {"Type": "Pass", "Output": {"all": "{% $join($states.input, ',') %}", "random": "{% $random() < 1 %}"}},
        ),
    ]
    return rig.run(machine(*states, QueryLanguage="JSONata"), {"items": ["x", "y"]}).execution_id


def timed_out(rig: Rig) -> str:
    rig.stand_in("work").waits()
    held = task("work", Parameters="x", TimeoutSeconds=40, Catch=CAUGHT, ResultPath=None)
    return rig.run(
        machine(("Held", held), ("Caught", {"Type": "Wait", "Seconds": 9_000}), TimeoutSeconds=120), {}
    ).execution_id


def stopped(rig: Rig) -> str:
    rig.stand_in("work").waits()
    execution_id = rig.start(
        machine(("Both", beside(machine(("Pause", WAIT)), machine(("Do", task("work", Parameters=1))))))
    )
    rig.executions.stop(execution_id, error="Operator", cause="enough")
    rig.env.run()
    return execution_id


def nested(rig: Rig) -> str:
    rig.env.service.asl.machines.put("inner", json.dumps(machine(("Pause", WAIT), ("Do", task("work")))))
    resource = "arn:aws:states:::states:startExecution"
    call = {"Type": "Task", "Parameters": {"StateMachineArn": "inner", "Input": {"x": 1}}}
    states = machine(
        ("Await", {**call, "Resource": f"{resource}.sync:2", "OutputPath": "$.Output"}),
        ("Begin", {**call, "Resource": resource, "OutputPath": "$.StartDate"}),
    )
    return rig.run(states).execution_id


def routed(rig: Rig) -> str:
    """Calls that a resource map replaces, and a job of AWS that is polled."""
    job = {"id": "jr_1", "scope": {"JobName": "nightly"}}
    ended = {"is_ended": True, "result": {"Id": "jr_1", "JobRunState": "SUCCEEDED"}}
    rig.stand_in(SERVICE).returns_once(job).returns_once({"is_ended": False, "result": None}).returns_once(ended)
    missing = {"Type": "Task", "Resource": "arn:aws:states:::aws-sdk:s3:getObject", "Parameters": {"Bucket": "b"}}
    states = machine(
        ("Price", {"Type": "Task", "Resource": "arn:aws:lambda:eu-west-1:1:function:price"}),
        ("Work", {**task("work", Parameters="unmapped"), "ResultPath": "$.work"}),
        ("Ask", {"Type": "Task", "Resource": QUEUE, "Parameters": {"token.$": "$$.Task.Token"}, "ResultPath": "$.ask"}),
        ("Job", {"Type": "Task", "Resource": JOB, "Parameters": {"JobName": "nightly"}, "ResultPath": "$.job"}),
        ("Missing", {**missing, "Catch": CAUGHT}),
        ("Caught", PASS),
    )
    return rig.run(states, {"n": 1}).execution_id


def _settings(scenario: Callable[[Rig], str], folder: Path) -> Settings | None:
    """Return the settings of a scenario that has a resource map."""
    if scenario is not routed:
        return None
    (folder / "resources.json").write_text(json.dumps({"resources": ENTRIES}))
    tasks = TaskSettings(resources=Path("resources.json"), aws=("glue:startJobRun:nightly",))
    return Settings(project=folder, tasks=tasks)


SCENARIOS: tuple[Callable[[Rig], str], ...] = (
    mapped, parallel, retried, waited, drawn, chosen, asked, looped, redriven, jsonata, timed_out, stopped, nested,
    routed,
)  # fmt: skip


def record(folder: Path, wanted: Iterable[str]) -> list[Path]:
    """Write what is wanted, or what is missing if nothing is named, and return the files of histories."""
    wanted, written = list(wanted), []
    for scenario in SCENARIOS:
        path = folder / f"{scenario.__name__}.json"
        if scenario.__name__ not in wanted and (wanted or path.exists()):
            continue
        with TemporaryDirectory() as project, Rig(settings=_settings(scenario, Path(project))) as rig:
            execution_id = scenario(rig)
            client = rig.env.service.client
            row = client.get(execution_id)
            turns = plain_turns(client.history(execution_id))
            path.write_text(_without_machine(laid_out(execution_id, row.workflow, turns)))
            telling = Telling.of(row, rig.history(execution_id))
        told_path(path).write_text(_without_machine(_laid_out(telling)))
        written.append(path)
    return written


def told_path(path: Path) -> Path:
    """Return where it is written what the history in `path` amounts to."""
    return path.with_suffix(".events")


def _laid_out(telling: Telling) -> str:
    head = json.dumps({"status": telling.status, "error": telling.error, "count": telling.count}, ensure_ascii=False)[
        :-1
    ]
    events = ",\n".join(json.dumps(msgspec.to_builtins(event), ensure_ascii=False) for event in telling.events)
    return f'{head}, "events": [\n{events}\n]}}\n'


if __name__ == "__main__":
    MACHINES.mkdir(exist_ok=True)
    for made in record(MACHINES, sys.argv[1:]):
        print(made.relative_to(ROOT))
