"""Collections of state machines: validates each machine of a folder for AWS, and runs each with recorded answers.

The folder is that of HEADGATE_SOAK_COLLECTIONS, with one folder for each collection. It is not part of the repository.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from headgate.asl.compile.severities import Severity, Target
from headgate.asl.compile.validator import findings
from headgate.asl.documents.folder import FoundDefinition, find_definitions
from headgate.asl.machines.executions import ExecutionStatus
from headgate.asl.machines.registry import checked_definition
from headgate.asl.model.transitions import all_machines, states_of
from headgate.asl.runtime.interpreter import Limits
from headgate.durable.model.failures import ExecutionFailure
from headgate.durable.sdk.app import App
from headgate.errors import HeadgateError
from headgate.settings import Settings, TaskSettings
from headgate.testing import Environment
from tests.soak.figures import Figure
from tests.soak.recorded_answers import CALLS, TEXT, Answers, deployed

FOLDER: Final = "HEADGATE_SOAK_COLLECTIONS"
_MACHINE: Final = "machine"
_CASE: Final = "answered"
# Others are expressions, or stand for something that the author of the definition fills in.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
# A loop that the answers do not end is cut off.
_LIMITS: Final = Limits(data_bytes_max=16 * 1_048_576, events_max=2_000)
# What a machine says itself, or what depends on the answers alone: paths, items and comparisons.
_OF_THE_DATA: Final = (
    "could not be found in the input",
    "must be a list",
    "must be an array",
    "maximum number of history events",
    "returned nothing (undefined)",
)


def run() -> list[Figure]:
    """Print each machine that does not succeed, and return the counts."""
    folder = Path(os.environ.get(FOLDER, ""))
    if not os.environ.get(FOLDER) or not folder.is_dir():
        raise SystemExit(f"{FOLDER}: name the folder with the collections")
    found = find_definitions(folder, {}).definitions
    valid = [each for each in found if _is_valid(each)]
    outcomes = Counter(_reported(each) for each in valid)
    figures = [
        Figure("definitions found", f"{len(found)}", bool(found)),
        Figure("valid for AWS", f"{len(valid)}", bool(valid)),
    ]
    for outcome, count in outcomes.most_common():
        figures.append(Figure(f"run: {outcome}", f"{count}", not outcome.startswith("defect")))
    return figures


def _is_valid(found: FoundDefinition) -> bool:
    if found.error is not None:
        print(f"{found.name}: {found.error.message}", file=sys.stderr)
        return False
    problems = [each for each in findings(found.definition, Target.AWS) if each.severity is Severity.ERROR]
    for problem in problems:
        print(f"{found.name}: {problem}", file=sys.stderr)
    return not problems


def _reported(found: FoundDefinition) -> str:
    try:
        outcome, cause = _outcome(deployed(found.definition))
    except (HeadgateError, TimeoutError) as exc:
        outcome, cause = f"defect: {type(exc).__name__}", str(exc)
    if cause:
        print(f"{found.name}: {outcome}: {cause[:300]}", file=sys.stderr)
    return outcome


def _outcome(definition: dict[str, Any]) -> tuple[str, str]:
    """Run a machine with recorded answers; return how it ended, and the cause if it did not succeed."""
    answers = Answers(definition)
    with tempfile.TemporaryDirectory(prefix="headgate-soak-") as project:
        resources = Path(project) / "answers.json"
        resources.write_text(json.dumps(_mocks(definition, answers)))
        settings = Settings(project=Path(project), tasks=TaskSettings(resources=resources))
        with Environment(App("soak"), settings=settings) as environment:
            for blob, content in _objects(definition, answers):
                environment.opened.blobs.put(blob, content)
            executions = environment.service.asl.executions
            execution_id, _ = executions.start_definition(
                _MACHINE,
                checked_definition(json.dumps(definition)),
                answers.input,
                name="soak",
                limits=_LIMITS,
                test_case=_CASE,
            )
            with contextlib.suppress(ExecutionFailure):
                environment.result(environment.service.client.handle(execution_id))
            ended = executions.describe(execution_id)
    if ended.status is ExecutionStatus.SUCCEEDED:
        return "succeeded", ""
    return _failure(definition, ended.error or "", ended.cause or ""), ended.cause or "no cause"


def _failure(definition: dict[str, Any], error: str, cause: str) -> str:
    raised = {state.get("Error") for each in all_machines(definition) for state in states_of(each.machine).values()}
    if error in raised or not error.startswith("States."):
        return "failed by a Fail of its own"
    is_of_the_data = error != "States.Runtime" or any(reason in cause for reason in _OF_THE_DATA)
    return f"failed with {error}, as the answers do not fit" if is_of_the_data else f"defect: {error}"


def _mocks(definition: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Return a MockConfigFile that answers every Task."""
    numbers = [*map(str, range(CALLS - 1)), f"{CALLS - 1}-999999"]
    response = {number: {"Return": answers.answer(call)} for call, number in enumerate(numbers)}
    tasks = [
        name
        for each in all_machines(definition)
        for name, state in states_of(each.machine).items()
        if state.get("Type") == "Task"
    ]
    return {
        "StateMachines": {_MACHINE: {"TestCases": {_CASE: dict.fromkeys(tasks, "any")}}},
        "MockedResponses": {"any": response},
    }


def _objects(definition: dict[str, Any], answers: Answers) -> list[tuple[str, bytes]]:
    """Return the blobs that the ItemReaders of a machine read."""
    found = []
    for each in all_machines(definition):
        for state in states_of(each.machine).values():
            reader = state.get("ItemReader")
            if isinstance(reader, dict):
                parameters = reader.get("Parameters") or reader.get("Arguments") or {}
                bucket, key = parameters.get("Bucket", TEXT), parameters.get("Key", TEXT)
                kind = reader.get("ReaderConfig", {}).get("InputType", "JSON")
                item = json.dumps(answers.answer(0))
                content = {"CSV": answers.table, "JSONL": item.encode()}.get(kind, f"[{item}]".encode())
                if all(isinstance(part, str) and _NAME.fullmatch(part) for part in (bucket, key)):
                    found.append((f"buckets/{bucket}/{key}", content))
    return found
