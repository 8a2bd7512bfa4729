"""Executions of state machines that were recorded once replay for good, and are shown in the same words."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import MapSpec
from headgate.asl.runtime.durable_host import WORKFLOW, DurableHost, HostDependencies, machine_workflow
from headgate.asl.runtime.execution_request import ExecutionRequest
from headgate.asl.runtime.history import HistoryEvent
from headgate.asl.runtime.replay import HistoryReplayer
from headgate.asl.runtime.state_visit import StateVisit
from headgate.durable.model.history import Command, RecordValue, Started
from headgate.durable.model.payload import Signature
from headgate.durable.model.records import Execution
from headgate.durable.replay import sandbox
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.sdk.definitions import Workflow
from headgate.errors import DeterminismError
from headgate.testing import replay
from tests.asl_rig import check_events
from tests.replay.recorded_machines import EVENTS_TOLD, MACHINES, SCENARIOS, Telling, record, told_path
from tests.replay.recordings import Recording, load, plain_turns, read
from tests.replay.test_recorded_histories import plain

PATHS = sorted(MACHINES.glob("*.json"))
KINDS = ("Task", "Pass", "Choice", "Wait", "Succeed", "Fail", "Parallel", "Map")

each_recording = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def _no_token(execution_id: str, signal: str) -> str:
    raise AssertionError(f"{execution_id}: a token that was recorded is not signed again ({signal})")


def _distribute(host: DurableHost, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]:
    raise AssertionError(f"{visit.state.name}: no machine here has a distributed Map")


def _no_definition(machine: str, version: int) -> str:
    raise AssertionError(f"{machine}: a recording has its definition, and not the one that is kept as {version}")


DEPENDENCIES = HostDependencies(
    sign=_no_token, options_of=lambda *_: None, distribute=_distribute, definition_of=_no_definition
)
FUNCTION = machine_workflow(DEPENDENCIES)


@pytest.fixture(autouse=True)
def guarded() -> None:
    """Refuse in workflow code what a worker refuses."""
    sandbox.install()


def workflow() -> Workflow[[ExecutionRequest], Json]:
    return Workflow(FUNCTION, name=WORKFLOW, timeout_seconds=None, retention_seconds=None, client=lambda: None)


def told(path: Path) -> Telling:
    return msgspec.json.decode(told_path(path).read_bytes(), type=Telling)


def row_of(recording: Recording, telling: Telling) -> Execution:
    return Execution(
        execution_id=recording.execution_id,
        workflow=recording.workflow,
        status=telling.status,
        error=telling.error,
        started_at="",
        version=1,
        first_run=1,
    )


def asked_for(commands: Sequence[Command]) -> list[Any]:
    """Return commands without the options of activities: those are of the app, and may change."""
    return [{name: part for name, part in each.items() if name != "options"} for each in plain(commands)]


def without_traces(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Return events whose causes name no lines: lines move."""
    return [
        msgspec.structs.replace(
            event,
            details={
                name: re.sub(r',?"stackTrace":\[.*\]', "", value) if isinstance(value, str) else value
                for name, value in event.details.items()
            },
        )
        for event in events
    ]


@each_recording
def test_recording__replayed__asks_for_the_same(path: Path) -> None:
    recording = read(path)

    replay(workflow(), recording.execution_id, recording.turns)


@each_recording
def test_recording__cut_after_any_turn__replays_without_a_difference(path: Path) -> None:
    recording = read(path)

    for count in range(len(recording.turns) + 1):
        replay(workflow(), recording.execution_id, recording.turns[:count])


@each_recording
def test_recording__gone_on_with_live_after_any_turn__asks_for_what_was_recorded(path: Path) -> None:
    recording = read(path)

    for _, group in groupby(recording.turns, key=lambda turn: turn.run):
        turns = list(group)
        for place, turn in enumerate(turns):
            if any(isinstance(command, RecordValue) for command in turn.commands):
                continue  # Lived again, another token would be drawn.
            interpreter = Interpreter(FUNCTION, Signature.of(FUNCTION), recording.execution_id)
            for earlier in turns[:place]:
                interpreter.replay(earlier)
            consumed, commands = interpreter.advance(turn.at_ms, turn.events)
            assert consumed == len(turn.events)
            assert asked_for(commands) == asked_for(turn.commands), f"turn {turn.turn}"
            interpreter.evict()


@each_recording
def test_recording__inspected__is_told_in_the_same_words(path: Path) -> None:
    recording, telling = read(path), told(path)
    row = row_of(recording, telling)

    events = HistoryReplayer(DEPENDENCIES).replay(row, recording.turns).events

    check_events(events)
    again = Telling.of(row, without_traces(events))
    assert (again.count, again.events) == (telling.count, without_traces(telling.events))


@each_recording
def test_recording__with_another_definition__is_refused(path: Path) -> None:
    """Take the timer or activity that the first turn asked for away from the machine."""
    recording = read(path)
    text = path.read_text()
    first = recording.turns[0].events[0]
    assert isinstance(first, Started)
    assert recording.workflow == WORKFLOW
    start = msgspec.json.decode(bytes(first.input))
    state = msgspec.json.decode(start["definition"])["StartAt"]
    changed = msgspec.json.decode(text)
    changed["turns"][0]["events"][0]["input"]["definition"] = msgspec.json.encode(
        {"StartAt": state, "States": {state: {"Type": "Pass", "End": True}}}
    ).decode()

    with pytest.raises(DeterminismError):
        replay(workflow(), recording.execution_id, load(msgspec.json.encode(changed)).turns)


def test_recordings__together__have_every_scenario_and_every_kind_of_state() -> None:
    assert {path.stem for path in PATHS} == {scenario.__name__ for scenario in SCENARIOS}
    assert len(PATHS) >= 12
    types = {event.type for path in PATHS for event in told(path).events}
    missing = {f"{kind}StateEntered" for kind in KINDS} - types
    assert not missing, "record a machine with these: python -m tests.replay.recorded_machines"
    assert {"ExecutionRedriven", "ExecutionTimedOut", "ExecutionAborted", "TaskStateAborted"} <= types


def test_recordings__as_files__have_more_than_one_run_where_it_matters_and_no_path_of_a_machine() -> None:
    runs = {path.stem: read(path).turns[-1].run for path in PATHS}

    assert {name for name, count in runs.items() if count > 1} == {"looped", "redriven"}
    for path in PATHS:
        assert not re.search(r'File \\+"/', path.read_text() + told_path(path).read_text())


def test_record__made_anew__gives_every_recording_and_the_same_words(tmp_path: Path) -> None:
    made = record(tmp_path, [])

    assert sorted(path.name for path in made) == [path.name for path in PATHS]
    for path in made:
        anew, committed = told(path), told(MACHINES / path.name)
        assert anew.count == committed.count
        assert [(each.id, each.type) for each in anew.events] == [(each.id, each.type) for each in committed.events]
        assert len(plain_turns(read(path).turns)) == len(read(MACHINES / path.name).turns)
    assert told(tmp_path / "looped.json").count > EVENTS_TOLD * 2
    assert record(tmp_path, []) == []
