"""Validation: everything that is wrong with a definition, at once, with its place and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from headgate.asl.compile import field_checks as checks
from headgate.asl.compile.field_checks import Check
from headgate.asl.compile.map_fields import check_map
from headgate.asl.compile.parser import DEFINITION_BYTES_MAX, load
from headgate.asl.compile.problems import Code, Problem, Spot, listed
from headgate.asl.compile.reachability import check_flow
from headgate.asl.compile.retry_and_express_fields import check_catch, check_express, check_retry
from headgate.asl.compile.state_fields import (
    EXCLUSIVE_FIELDS,
    REQUIRED_FIELDS,
    STATE_FIELDS,
    WAIT_FIELDS,
    kinds_with,
    languages_with,
)
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import Language, StateType
from headgate.asl.model.substitution import unresolved
from headgate.asl.model.transitions import all_machines, processor_of, states_of

__all__ = ["Code", "Problem", "load", "problems"]

# No machine that a person writes comes near; what is deeper would exhaust the stack of whoever reads it.
_DEPTH_MAX: Final = 200

_MACHINE: Final[Mapping[str, Check]] = {
    "StartAt": checks.text,
    "States": checks.anything,
}
_OUTERMOST: Final[Mapping[str, Check]] = {
    **_MACHINE,
    "TimeoutSeconds": checks.integer(1),
    "Version": checks.one_of("1.0"),
    "QueryLanguage": checks.one_of(*Language),
}
_PROCESSOR: Final[Mapping[str, Check]] = {**_MACHINE, "ProcessorConfig": checks.anything}
_RULE: Final[Mapping[str, Check]] = {
    "Condition": checks.or_expression(checks.boolean),
    "Next": checks.text,
    "Assign": checks.assignment(checks.jsonata),
    "Output": checks.jsonata,
}
# Fields of an entry of Choices that are no part of its condition.
BESIDE_CONDITION: Final = ("Next", "Assign", "Comment")
_CALLED_BY_NAME: Final = ("FunctionName", "StateMachineArn")


def problems(definition: Json) -> list[Problem]:
    """Return everything that is wrong with a definition; nothing, if it can be compiled and run."""
    spot = Spot("$", [])
    if not isinstance(definition, dict):
        checks.wrong_type(spot, definition, "an object with StartAt and States")
    elif _depth(definition) > _DEPTH_MAX:
        spot.report(Code.DEFINITION_TOO_DEEP, f"it is nested more than {_DEPTH_MAX} deep", "make it flatter")
    else:
        _check_size(spot, definition)
        _check_machine(spot, definition, _OUTERMOST, language_of(definition, Language.JSONPATH))
        check_flow(spot, definition)
        check_express(spot, definition)
        _check_variables(spot, definition)
        _check_substitutions(spot, definition)
    return spot.found


def language_of(part: Mapping[str, Json], default: Language) -> Language:
    """Return the query language that a machine or a state asks for."""
    given = part.get("QueryLanguage")
    return Language(given) if given in tuple(Language) else default


def _check_size(spot: Spot, definition: Json) -> None:
    size = len(json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > DEFINITION_BYTES_MAX:
        allowed = f"a definition has {DEFINITION_BYTES_MAX} at most"
        spot.report(Code.DEFINITION_TOO_LARGE, f"it has {size} bytes", allowed)


def _depth(document: Json) -> int:
    deepest = 0
    pending = [(document, 1)]
    while pending:
        value, depth = pending.pop()
        deepest = max(deepest, depth)
        if deepest > _DEPTH_MAX:
            break
        if isinstance(value, dict):
            pending.extend((member, depth + 1) for member in value.values())
        elif isinstance(value, list):
            pending.extend((entry, depth + 1) for entry in value)
    return deepest


def _check_machine(spot: Spot, machine: Json, known: Mapping[str, Check], language: Language) -> None:
    checks.fields(spot, machine, known, ("StartAt", "States"))
    states = machine.get("States") if isinstance(machine, dict) else None
    if states is None:
        if isinstance(machine, dict) and "States" in machine:
            checks.wrong_type(spot.at("States"), states, "an object of states")
        return
    if not isinstance(states, dict):
        checks.wrong_type(spot.at("States"), states, "an object of states")
    elif not states:
        spot.at("States").report(Code.EMPTY, "there is no state", "write at least one")
    else:
        for name, state in states.items():
            _check_state(spot.at("States", name), state, language)


def _check_state(spot: Spot, state: Json, machine_language: Language) -> None:
    if not isinstance(state, dict):
        checks.wrong_type(spot, state, "an object")
        return
    if state.get("Type") not in tuple(StateType):
        _report_kind(spot, state)
        return
    kind, language = StateType(state["Type"]), language_of(state, machine_language)
    _check_fields(spot, state, kind, language)
    for pair in EXCLUSIVE_FIELDS.get(kind, ()):
        checks.exclusive(spot, state, *pair)
    _check_transition(spot, state, kind, language)
    if "Retry" in state and kind in kinds_with(language, "Retry"):
        check_retry(spot.at("Retry"), state["Retry"])
    if "Catch" in state and kind in kinds_with(language, "Catch"):
        check_catch(spot.at("Catch"), state["Catch"], language)
    _check_parts(spot, state, kind, language, machine_language)


def _report_kind(spot: Spot, state: Mapping[str, Json]) -> None:
    if "Type" not in state:
        spot.report(Code.MISSING_FIELD, "Type is missing", f"write {listed(StateType)}")
    else:
        checks.one_of(*StateType)(spot.at("Type"), state["Type"])


def _check_fields(spot: Spot, state: Mapping[str, Json], kind: StateType, language: Language) -> None:
    known = STATE_FIELDS[language][kind]
    for key, value in state.items():
        if key in known:
            # A placeholder that names a function is what Resource is for.
            check = checks.apply if key != "Resource" else _plain
            check(spot.at(key), value, known[key])
        elif key != "Comment":
            _report_field(spot.at(key), key, kind, language)
    for key in REQUIRED_FIELDS.get(kind, ()):
        if key not in state:
            spot.report(Code.MISSING_FIELD, f"{key} is missing", f"a {kind} has {key}: write it")


def _plain(spot: Spot, value: Json, check: Check) -> None:
    check(spot, value)


def _report_field(spot: Spot, key: str, kind: StateType, language: Language) -> None:
    known = STATE_FIELDS[language][kind]
    others = kinds_with(language, key)
    if languages_with(kind, key):
        fact = f"a {kind} in {language} has no {key}; it is of the other query language"
        spot.report(Code.FIELD_NOT_IN_LANGUAGE, fact, f"a {kind} in {language} has {listed(sorted(known), 'and')}")
    elif others:
        fact = f"a {kind} has no {key}; {listed(others, 'and')} have"
        spot.report(Code.FIELD_NOT_IN_STATE, fact, f"a {kind} in {language} has {listed(sorted(known), 'and')}")
    else:
        checks.unknown_field(spot, key, known)


def _check_transition(spot: Spot, state: Mapping[str, Json], kind: StateType, language: Language) -> None:
    if "Next" in STATE_FIELDS[language][kind]:
        ends, goes_on = state.get("End") is True, "Next" in state
        if ends and goes_on:
            spot.report(Code.CONFLICTING_FIELDS, "Next and End are both given", 'write Next or "End": true')
        elif not ends and not goes_on:
            spot.report(Code.MISSING_FIELD, "it neither goes on nor ends", 'write Next or "End": true')
    if kind is StateType.WAIT:
        allowed = [name for name in WAIT_FIELDS if name in STATE_FIELDS[language][kind]]
        given = [name for name in allowed if name in state]
        if not given:
            spot.report(Code.MISSING_FIELD, "it does not say how long to wait", f"write one of {listed(allowed)}")
        checks.exclusive(spot, state, *allowed)
    timeout, heartbeat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
    if isinstance(timeout, int) and isinstance(heartbeat, int) and heartbeat >= timeout > 0:
        fact = f"it is {heartbeat}, and TimeoutSeconds is {timeout}"
        spot.at("HeartbeatSeconds").report(Code.OUT_OF_RANGE, fact, "write less than TimeoutSeconds")


def _check_parts(
    spot: Spot, state: Mapping[str, Json], kind: StateType, language: Language, machine_language: Language
) -> None:
    """Check what is nested in a state. What is inside a Map or a Parallel has the machine's language, not its."""
    if kind is StateType.CHOICE and "Choices" in state:
        _check_choices(spot.at("Choices"), state["Choices"], language)
    elif kind is StateType.PARALLEL and "Branches" in state:
        branches = _filled_list(spot.at("Branches"), state["Branches"], "branch")
        for index, branch in enumerate(branches):
            _check_machine(spot.at("Branches", index), branch, _MACHINE, machine_language)
    elif kind is StateType.MAP:
        check_map(spot, state, language)
        field, processor = processor_of(state)
        if field in state:
            _check_machine(spot.at(field), processor, _PROCESSOR, machine_language)


def _filled_list(spot: Spot, value: Json, noun: str) -> list[Json]:
    if not isinstance(value, list):
        checks.wrong_type(spot, value, "an array of objects")
        return []
    if not value:
        spot.report(Code.EMPTY, f"there is no {noun}", "write at least one")
    return value


def _check_choices(spot: Spot, value: Json, language: Language) -> None:
    for index, entry in enumerate(_filled_list(spot, value, "choice")):
        place = spot.at(index)
        if language is Language.JSONATA:
            checks.fields(place, entry, _RULE, ("Condition", "Next"))
        elif not isinstance(entry, dict):
            checks.wrong_type(place, entry, "an object")
        else:
            beside = {key: entry[key] for key in BESIDE_CONDITION if key in entry}
            known = {"Next": checks.text, "Assign": checks.assignment(checks.template)}
            checks.fields(place, beside, known, ("Next",))
            checks.rule(place, {key: part for key, part in entry.items() if key not in BESIDE_CONDITION})


def _check_variables(spot: Spot, definition: Json) -> None:
    """Report variables that a nested machine assigns although a machine around it has one of that name."""
    assigned: dict[tuple[str | int, ...], set[str]] = {}
    for nested in all_machines(definition):
        around = set().union(*(names for steps, names in assigned.items() if nested.steps[: len(steps)] == steps))
        own = assigned.setdefault(nested.steps, set())
        for steps, name in _assignments(nested.machine):
            own.add(name)
            if name in around:
                allowed = "choose another name: an inner machine cannot assign a variable of an outer one"
                fact = f"the machine around this one assigns {name}, too"
                spot.at(*nested.steps, "States", *steps).report(Code.BAD_VARIABLE, fact, allowed)


def _assignments(machine: Mapping[str, Json]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for name, state in states_of(machine).items():
        holders: list[tuple[tuple[str | int, ...], Json]] = [((name,), state)]
        for field in ("Choices", "Catch"):
            entries = state.get(field)
            if isinstance(entries, list):
                holders.extend(((name, field, index), entry) for index, entry in enumerate(entries))
        for steps, holder in holders:
            values = holder.get("Assign") if isinstance(holder, dict) else None
            for key in values if isinstance(values, dict) else ():
                yield (*steps, "Assign", key), key.removesuffix(".$")


def _check_substitutions(spot: Spot, definition: Json) -> None:
    """Report `${name}` wherever it does not name something to call: it would be taken for what it says."""
    pending: list[tuple[tuple[str | int, ...], Json]] = [((), definition)]
    while pending:
        steps, value = pending.pop()
        if isinstance(value, str):
            for name in unresolved(value):
                allowed = "give the variable when loading; only what is called may be named like this"
                spot.at(*steps).report(Code.UNRESOLVED_SUBSTITUTION, f"${{{name}}} was not replaced", allowed)
        elif isinstance(value, dict):
            members = [(key, member) for key, member in value.items() if not _may_stay(steps, key, value)]
            pending.extend(((*steps, key), member) for key, member in reversed(members))
        elif isinstance(value, list):
            pending.extend(((*steps, index), entry) for index, entry in reversed(list(enumerate(value))))


def _may_stay(steps: tuple[str | int, ...], key: str, holder: Mapping[str, Json]) -> bool:
    if key == "Comment":
        return True
    if key == "Resource":
        return holder.get("Type") == StateType.TASK
    return key in _CALLED_BY_NAME and bool(steps) and steps[-1] in ("Parameters", "Arguments")
