"""EXPRESS Map checks: reports states that an EXPRESS iteration cannot run, such as tasks that wait for a callback."""

from __future__ import annotations

from typing import Final

from headgate.asl.compile.problems import ProblemCode, SourceLocation
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, MapMode, StateType
from headgate.asl.model.transitions import all_machines, is_distributed, processor_of, states_of
from headgate.asl.tasks.resources import Callee, WaitMode, target_of

_OR_STANDARD: Final = 'or set "ExecutionType": "STANDARD"'


def check_express(location: SourceLocation, definition: Json) -> None:
    """Report states that only STANDARD iterations support, at any depth inside an EXPRESS Map."""
    express: list[tuple[str | int, ...]] = []
    for nested in all_machines(definition):
        config = nested.machine.get("ProcessorConfig")
        if isinstance(config, dict) and _is_express(config):
            express.append(nested.steps)
        if any(nested.steps[: len(steps)] == steps for steps in express):
            for name, state in states_of(nested.machine).items():
                _check_state(location.at(*nested.steps, "States", name), state)


def _is_express(config: dict[str, Json]) -> bool:
    return config.get("Mode") == MapMode.DISTRIBUTED and config.get("ExecutionType") == ExecutionType.EXPRESS


def _check_state(location: SourceLocation, state: dict[str, Json]) -> None:
    if state.get("Type") == StateType.TASK and isinstance(state.get("Resource"), str):
        _check_resource(location.at("Resource"), state["Resource"])
    elif state.get("Type") == StateType.MAP and is_distributed(state):
        field, _ = processor_of(state)
        place = location.at(field, "ProcessorConfig", "Mode")
        fact = "a distributed Map cannot be within an EXPRESS iteration"
        place.report(ProblemCode.NOT_IN_EXPRESS, fact, f'write "INLINE", {_OR_STANDARD}')


def _check_resource(location: SourceLocation, resource: str) -> None:
    try:
        target = target_of(resource)
    except ValueError:
        return  # Reported by the check of Resource.
    if target.wait is not WaitMode.ANSWER:
        fact = f"an EXPRESS iteration cannot wait ({target.wait.value})"
        location.report(ProblemCode.NOT_IN_EXPRESS, fact, f"call it without {target.wait.value}, {_OR_STANDARD}")
    elif target.callee is Callee.ACTIVITY:
        fact = "an EXPRESS iteration cannot wait for a worker of an activity"
        location.report(ProblemCode.NOT_IN_EXPRESS, fact, f"call a function, {_OR_STANDARD}")
