"""Recovery fields: what Retry and Catch may say.

Express fields: what the iterations of an EXPRESS Map cannot ask for, as they wait for nobody and live in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.asl import errors as failures
from headgate.asl.compile.field_checks import (
    Check,
    anything,
    assignment,
    fields,
    integer,
    jsonata,
    number,
    one_of,
    or_null,
    reference,
    template,
    text,
    wrong_type,
)
from headgate.asl.compile.problems import Code, Spot, nearest
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, Jitter, Language, MapMode, StateType
from headgate.asl.model.transitions import all_machines, is_distributed, processor_of, states_of
from headgate.asl.tasks.resources import Callee, WaitMode, target_of

# AWS: "greater than 0 and less than 31622400", which is a leap year.
_DELAY_SECONDS_MAX: Final = 31_622_399

_RETRIER: Final[Mapping[str, Check]] = {
    "ErrorEquals": anything,
    "IntervalSeconds": integer(1),
    "MaxAttempts": integer(0),
    "BackoffRate": number(1.0),
    "MaxDelaySeconds": integer(1, _DELAY_SECONDS_MAX),
    "JitterStrategy": one_of(*Jitter),
}
_CATCHERS: Final[Mapping[Language, Mapping[str, Check]]] = {
    Language.JSONPATH: {
        "ErrorEquals": anything,
        "Next": text,
        "ResultPath": or_null(reference),
        "Assign": assignment(template),
    },
    Language.JSONATA: {"ErrorEquals": anything, "Next": text, "Output": jsonata, "Assign": assignment(jsonata)},
}
_INTERVAL_SECONDS: Final = 1

_NAMES: Final = frozenset(
    value for value in vars(failures).values() if isinstance(value, str) and value.startswith("States.")
)


def check_retry(spot: Spot, value: Json) -> None:
    """Report what is wrong with the Retry of a state."""
    for place, retrier, is_last in _entries(spot, value):
        fields(place, retrier, _RETRIER, ("ErrorEquals",))
        if isinstance(retrier, dict):
            _check_errors(place, retrier, is_last=is_last)
            _check_delays(place, retrier)


def check_catch(spot: Spot, value: Json, language: Language) -> None:
    """Report what is wrong with the Catch of a state."""
    for place, catcher, is_last in _entries(spot, value):
        fields(place, catcher, _CATCHERS[language], ("ErrorEquals", "Next"))
        if isinstance(catcher, dict):
            _check_errors(place, catcher, is_last=is_last)


def _entries(spot: Spot, value: Json) -> list[tuple[Spot, Json, bool]]:
    if not isinstance(value, list):
        wrong_type(spot, value, "an array of objects")
        return []
    return [(spot.at(index), entry, index == len(value) - 1) for index, entry in enumerate(value)]


def _check_errors(spot: Spot, entry: Mapping[str, Json], *, is_last: bool) -> None:
    if "ErrorEquals" not in entry:
        return
    place, names = spot.at("ErrorEquals"), entry["ErrorEquals"]
    if not isinstance(names, list):
        wrong_type(place, names, "an array of error names")
        return
    if not names:
        place.report(Code.EMPTY, "it names no error", f"write at least one name, or {failures.ALL} for every error")
    for index, name in enumerate(names):
        if not isinstance(name, str):
            wrong_type(place.at(index), name, "the name of an error")
        else:
            _check_name(place.at(index), name)
    if failures.ALL in names and (len(names) > 1 or not is_last):
        fact = f"{failures.ALL} stands beside other names" if len(names) > 1 else f"entries follow {failures.ALL}"
        place.report(Code.MISPLACED_CATCH_ALL, fact, f"write {failures.ALL} alone, and in the last entry")


def _check_name(spot: Spot, name: str) -> None:
    # Names that begin like this are AWS's own. One that is almost one of them never matches: it was mistyped.
    if name.startswith("States.") and name not in _NAMES:
        meant = nearest(name, _NAMES)
        if meant is not None:
            spot.report(Code.UNKNOWN_ERROR, f"no state fails with {name}", f"did you mean {meant}?")


def _check_delays(spot: Spot, retrier: Mapping[str, Json]) -> None:
    longest, interval = retrier.get("MaxDelaySeconds"), retrier.get("IntervalSeconds", _INTERVAL_SECONDS)
    if isinstance(longest, int) and isinstance(interval, int) and 0 < longest <= interval:
        fact = f"it is {longest}, and IntervalSeconds is {interval}"
        spot.at("MaxDelaySeconds").report(Code.OUT_OF_RANGE, fact, "write more than IntervalSeconds")


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
    if state.get("Type") == StateType.TASK and isinstance(state.get("Resource"), str):
        _check_resource(spot.at("Resource"), state["Resource"])
    elif state.get("Type") == StateType.MAP and is_distributed(state):
        field, _ = processor_of(state)
        place = spot.at(field, "ProcessorConfig", "Mode")
        fact = "a distributed Map cannot be within an EXPRESS iteration"
        place.report(Code.NOT_IN_EXPRESS, fact, f'write "INLINE", {_OTHERWISE}')


def _check_resource(spot: Spot, resource: str) -> None:
    try:
        target = target_of(resource)
    except ValueError:
        return  # Reported as what it is.
    if target.wait is not WaitMode.ANSWER:
        fact = f"an EXPRESS iteration cannot wait ({target.wait.value})"
        spot.report(Code.NOT_IN_EXPRESS, fact, f"call it without {target.wait.value}, {_OTHERWISE}")
    elif target.callee is Callee.ACTIVITY:
        fact = "an EXPRESS iteration cannot wait for a worker of an activity"
        spot.report(Code.NOT_IN_EXPRESS, fact, f"call a function, {_OTHERWISE}")
