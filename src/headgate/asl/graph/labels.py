"""Labels of a drawing: captions of states, labels of arrows, marks of progress."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import StateType
from headgate.asl.model.transitions import Transition, TransitionKind, is_distributed, states_of, transitions_of

LENGTH_MAX: Final = 38
# Pseudo-states. No state name contains NUL.
START: Final[str] = "\x00start"
END: Final[str] = "\x00end"

_SIGNS: Final = {
    "GreaterThanEquals": "≥",
    "LessThanEquals": "≤",
    "GreaterThan": ">",
    "LessThan": "<",
    "Equals": "=",
    "Matches": "matches",
}
_TESTS: Final = {
    "IsPresent": ("is present", "is absent"),
    "IsNull": ("is null", "is not null"),
    "IsString": ("is a string", "is not a string"),
    "IsNumeric": ("is a number", "is not a number"),
    "IsBoolean": ("is a boolean", "is not a boolean"),
    "IsTimestamp": ("is a timestamp", "is not a timestamp"),
}


class StateMark(enum.StrEnum):
    """The progress of an execution in a state."""

    VISITED = "visited"
    CURRENT = "current"
    FAILED = "failed"
    # It failed, and a Catch handled the error.
    CAUGHT = "caught"


MARKS: Final[Mapping[StateMark, str]] = {
    StateMark.VISITED: "✓",
    StateMark.CURRENT: "▶",
    StateMark.FAILED: "✗",
    StateMark.CAUGHT: "↷",
}


class Arrow(Struct, frozen=True):
    """All transitions of one kind between two states."""

    source: str
    target: str
    cause: TransitionKind
    labels: tuple[str, ...] = ()


def arrows_of(machine: Mapping[str, Json], *, has_ends: bool) -> list[Arrow]:
    """Return the arrows of a machine; with `has_ends` also from the start and to the end."""
    states = states_of(machine)
    merged: dict[tuple[str, str, TransitionKind], list[str]] = {}
    if has_ends and machine.get("StartAt") in states:
        merged[START, machine["StartAt"], TransitionKind.NEXT] = []
    for name, state in states.items():
        for transition in transitions_of(name, state):
            if transition.target in states:
                merged.setdefault((name, transition.target, transition.cause), []).extend(_labels(transition))
        if has_ends and (state.get("End") is True or state.get("Type") in (StateType.SUCCEED, StateType.FAIL)):
            merged[name, END, TransitionKind.NEXT] = []
    return [Arrow(source, to, cause, tuple(labels)) for (source, to, cause), labels in merged.items()]


def _labels(transition: Transition) -> list[str]:
    match transition.cause:
        case TransitionKind.CHOICE:
            return [condition(transition.entry)]
        case TransitionKind.DEFAULT:
            return ["otherwise"]
        case TransitionKind.CATCH:
            errors = transition.entry.get("ErrorEquals")
            return [", ".join(map(str, errors)) if isinstance(errors, list) else "error"]
        case TransitionKind.NEXT:
            return []


def condition(rule: Json) -> str:
    """Return a choice rule as a short text."""
    if not isinstance(rule, dict):
        return "?"
    if "Condition" in rule:
        written = str(rule["Condition"])
        return written.removeprefix("{%").removesuffix("%}").strip()
    if "Not" in rule:
        return f"not ({condition(rule['Not'])})"
    for name, word in (("And", " and "), ("Or", " or ")):
        parts = rule.get(name)
        if isinstance(parts, list):
            return word.join(condition(part) for part in parts)
    return _comparison(rule)


def _comparison(rule: Mapping[str, Json]) -> str:
    variable = str(rule.get("Variable", "?")).removeprefix("$.")
    for key, value in rule.items():
        if key in _TESTS:
            return f"{variable} {_TESTS[key][0 if value is True else 1]}"
        plain = key.removesuffix("Path")
        for ending, sign in _SIGNS.items():
            if plain.endswith(ending):
                return f"{variable} {sign} {value if isinstance(value, str) else str(value).lower()}"
    return variable


def caption(state: Mapping[str, Json]) -> str:
    """Return the type of a state with its main detail."""
    kind = str(state.get("Type", "?"))
    match kind:
        case StateType.TASK:
            detail = str(state.get("Resource", "")).removeprefix("arn:aws:states:::")
            detail = detail.rpartition(":function:")[2]
        case StateType.WAIT:
            detail = _wait(state)
        case StateType.FAIL:
            detail = str(state.get("Error") or state.get("ErrorPath") or "")
        case StateType.MAP:
            detail = "distributed" if is_distributed(state) else "inline"
        case _:
            detail = ""
    return f"{kind} · {detail}" if detail else kind


def _wait(state: Mapping[str, Json]) -> str:
    seconds = state.get("Seconds")
    if isinstance(seconds, int | float):
        return f"{seconds:g} s"
    for field in ("Seconds", "SecondsPath", "Timestamp", "TimestampPath"):
        if field in state:
            return str(state[field])
    return ""


def shortened(text: str, length_max: int = LENGTH_MAX) -> str:
    """Return the text on one line, truncated with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length_max else f"{line[: length_max - 1]}…"
