"""Express fields: what the iterations of an EXPRESS Map cannot ask for, as they wait for nobody and live in memory."""

from __future__ import annotations

from typing import Final

from headgate.asl.calls import Callee, Wait, target_of
from headgate.asl.definition import ExecutionType, Kind, MapMode
from headgate.asl.findings import Code, Spot
from headgate.asl.scope import Json
from headgate.asl.transitions import all_machines, is_distributed, processor_of, states_of

_OTHERWISE: Final = 'or set "ExecutionType": "STANDARD"'


def check_express(spot: Spot, definition: Json) -> None:
    """Report what only the iterations of a STANDARD Map can do, wherever it is nested in those of an EXPRESS one."""
    express: list[tuple[str | int, ...]] = []
    for nested in all_machines(definition):
        config = nested.machine.get("ProcessorConfig")
        if isinstance(config, dict) and _is_express(config):
            express.append(nested.steps)
        if any(nested.steps[: len(steps)] == steps for steps in express):
            for name, state in states_of(nested.machine).items():
                _check_state(spot.at(*nested.steps, "States", name), state)


def _is_express(config: dict[str, Json]) -> bool:
    return config.get("Mode") == MapMode.DISTRIBUTED and config.get("ExecutionType") == ExecutionType.EXPRESS


def _check_state(spot: Spot, state: dict[str, Json]) -> None:
    if state.get("Type") == Kind.TASK and isinstance(state.get("Resource"), str):
        _check_resource(spot.at("Resource"), state["Resource"])
    elif state.get("Type") == Kind.MAP and is_distributed(state):
        field, _ = processor_of(state)
        place = spot.at(field, "ProcessorConfig", "Mode")
        fact = "a distributed Map cannot be within an EXPRESS iteration"
        place.report(Code.NOT_IN_EXPRESS, fact, f'write "INLINE", {_OTHERWISE}')


def _check_resource(spot: Spot, resource: str) -> None:
    try:
        target = target_of(resource)
    except ValueError:
        return  # Reported as what it is.
    if target.wait is not Wait.ANSWER:
        fact = f"an EXPRESS iteration cannot wait ({target.wait.value})"
        spot.report(Code.NOT_IN_EXPRESS, fact, f"call it without {target.wait.value}, {_OTHERWISE}")
    elif target.callee is Callee.ACTIVITY:
        fact = "an EXPRESS iteration cannot wait for a worker of an activity"
        spot.report(Code.NOT_IN_EXPRESS, fact, f"call a function, {_OTHERWISE}")
