"""Validator: reports every problem of a definition at once, with its path and the allowed form.

It includes states that an EXPRESS iteration cannot run, such as tasks that wait for a callback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from headgate.asl.compile import field_checks as checks
from headgate.asl.compile.field_checks import Check
from headgate.asl.compile.map_fields import check_map
from headgate.asl.compile.parser import DEFINITION_BYTES_MAX, load
from headgate.asl.compile.problems import Problem, ProblemCode, SourceLocation, listed
from headgate.asl.compile.reachability import check_flow
from headgate.asl.compile.retry_fields import check_catch, check_error_names, check_retry
from headgate.asl.compile.severities import Severity, Target
from headgate.asl.compile.state_fields import (
    EXCLUSIVE_FIELDS,
    REQUIRED_FIELDS,
    STATE_FIELDS,
    WAIT_FIELDS,
    kinds_with,
    languages_with,
)
from headgate.asl.compile.task_resources import check_resource
from headgate.asl.expressions.jsonpath import bare_word
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, Language, MapMode, StateType
from headgate.asl.model.substitution import unresolved
from headgate.asl.model.transitions import all_machines, is_distributed, processor_of, states_of
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.resources import WaitMode

__all__ = ["Problem", "ProblemCode", "findings", "load", "problems"]

_OR_STANDARD: Final = 'or set "ExecutionType": "STANDARD"'

# Far above any hand-written machine; deeper ones would exhaust the stack.
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
# Fields of an entry of Choices that are not part of its condition.
BESIDE_CONDITION: Final = ("Next", "Assign", "Comment")
_ACTIVITY: Final = ":activity:"
_CALLEE_FIELDS: Final = ("FunctionName", "StateMachineArn")


def problems(definition: Json) -> list[Problem]:
    """Return the problems of a definition; none if it can be stored.

    Whether its Tasks can run here is decided when it starts: it depends on the resource map and the settings.
    """
    return [each for each in findings(definition) if each.severity is Severity.ERROR]


def findings(definition: Json, target: Target = Target.LOCAL, tasks: LocalTasks | None = None) -> list[Problem]:
    """Return the problems of a definition, its warnings, and the notes on what only AWS can run.

    `tasks` is what Tasks can use here; without it every integration of Step Functions is accepted.
    """
    location = SourceLocation("$", [], target, tasks)
    if not isinstance(definition, dict):
        checks.wrong_type(location, definition, "an object with StartAt and States")
    elif _depth(definition) > _DEPTH_MAX:
        location.report(ProblemCode.DEFINITION_TOO_DEEP, f"it is nested more than {_DEPTH_MAX} deep", "make it flatter")
    else:
        _check_size(location, definition)
        _check_machine(location, definition, _OUTERMOST, language_of(definition, Language.JSONPATH))
        check_flow(location, definition)
        _check_express(location, definition)
        check_error_names(location, definition)
        _check_variables(location, definition)
        _check_texts(location, definition)
    return location.problems


def language_of(part: Mapping[str, Json], default: Language) -> Language:
    """Return the QueryLanguage of a machine or state, or the default."""
    language = part.get("QueryLanguage")
    return Language(language) if language in tuple(Language) else default


def _check_size(location: SourceLocation, definition: Json) -> None:
    size = len(json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > DEFINITION_BYTES_MAX:
        allowed = f"a definition has {DEFINITION_BYTES_MAX} at most"
        location.report(ProblemCode.DEFINITION_TOO_LARGE, f"it has {size} bytes", allowed)


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


def _check_machine(location: SourceLocation, machine: Json, known: Mapping[str, Check], language: Language) -> None:
    checks.fields(location, machine, known, ("StartAt", "States"))
    states = machine.get("States") if isinstance(machine, dict) else None
    if states is None:
        if isinstance(machine, dict) and "States" in machine:
            checks.wrong_type(location.at("States"), states, "an object of states")
        return
    if not isinstance(states, dict):
        checks.wrong_type(location.at("States"), states, "an object of states")
    elif not states:
        location.at("States").report(ProblemCode.EMPTY, "there is no state", "write at least one")
    else:
        for name, state in states.items():
            _check_state(location.at("States", name), state, language)


def _check_state(location: SourceLocation, state: Json, machine_language: Language) -> None:
    if not isinstance(state, dict):
        checks.wrong_type(location, state, "an object")
        return
    if state.get("Type") not in tuple(StateType):
        _report_kind(location, state)
        return
    kind, language = StateType(state["Type"]), language_of(state, machine_language)
    _check_fields(location, state, kind, language)
    if kind is StateType.TASK and isinstance(state.get("Resource"), str):
        check_resource(location.at("Resource"), state["Resource"], state.get(_call_field(language)))
    for pair in EXCLUSIVE_FIELDS.get(kind, ()):
        checks.exclusive(location, state, *pair)
    _check_transition(location, state, kind, language)
    if "Retry" in state and kind in kinds_with(language, "Retry"):
        check_retry(location.at("Retry"), state["Retry"])
    if "Catch" in state and kind in kinds_with(language, "Catch"):
        check_catch(location.at("Catch"), state["Catch"], language)
    _check_parts(location, state, kind, language, machine_language)


def _report_kind(location: SourceLocation, state: Mapping[str, Json]) -> None:
    if "Type" not in state:
        location.report(ProblemCode.MISSING_FIELD, "Type is missing", f"write {listed(StateType)}")
    else:
        checks.one_of(*StateType)(location.at("Type"), state["Type"])


def _check_fields(location: SourceLocation, state: Mapping[str, Json], kind: StateType, language: Language) -> None:
    known = STATE_FIELDS[language][kind]
    for key, value in state.items():
        if key in known:
            checks.apply(location.at(key), value, known[key])
        elif key != "Comment":
            _report_field(location.at(key), key, kind, language)
    for key in REQUIRED_FIELDS.get(kind, ()):
        if key not in state:
            location.report(ProblemCode.MISSING_FIELD, f"{key} is missing", f"a {kind} has {key}: write it")


def _call_field(language: Language) -> str:
    return "Arguments" if language is Language.JSONATA else "Parameters"


def _report_field(location: SourceLocation, key: str, kind: StateType, language: Language) -> None:
    known = STATE_FIELDS[language][kind]
    others = kinds_with(language, key)
    if languages_with(kind, key):
        fact = f"a {kind} in {language} has no {key}; it is of the other query language"
        location.report(
            ProblemCode.FIELD_NOT_IN_LANGUAGE, fact, f"a {kind} in {language} has {listed(sorted(known), 'and')}"
        )
    elif others:
        fact = f"a {kind} has no {key}; {listed(others, 'and')} have"
        location.report(
            ProblemCode.FIELD_NOT_IN_STATE, fact, f"a {kind} in {language} has {listed(sorted(known), 'and')}"
        )
    else:
        checks.unknown_field(location, key, known)


def _check_transition(location: SourceLocation, state: Mapping[str, Json], kind: StateType, language: Language) -> None:
    if "Next" in STATE_FIELDS[language][kind]:
        ends, goes_on = state.get("End") is True, "Next" in state
        if ends and goes_on:
            location.report(ProblemCode.CONFLICTING_FIELDS, "Next and End are both given", 'write Next or "End": true')
        elif not ends and not goes_on:
            location.report(ProblemCode.MISSING_FIELD, "it has neither Next nor End", 'write Next or "End": true')
    if kind is StateType.WAIT:
        allowed = [name for name in WAIT_FIELDS if name in STATE_FIELDS[language][kind]]
        if not any(name in state for name in allowed):
            location.report(ProblemCode.MISSING_FIELD, "it has no duration", f"write one of {listed(allowed)}")
        checks.exclusive(location, state, *allowed)
    timeout, heartbeat = state.get("TimeoutSeconds"), state.get("HeartbeatSeconds")
    if isinstance(timeout, int) and isinstance(heartbeat, int) and heartbeat >= timeout > 0:
        fact = f"it is {heartbeat}, and TimeoutSeconds is {timeout}"
        location.at("HeartbeatSeconds").report(ProblemCode.OUT_OF_RANGE, fact, "write less than TimeoutSeconds")


def _check_parts(
    location: SourceLocation, state: Mapping[str, Json], kind: StateType, language: Language, machine_language: Language
) -> None:
    """Check the nested parts of a state. Machines inside a Map or Parallel inherit the machine's language."""
    if kind is StateType.CHOICE and "Choices" in state:
        _check_choices(location.at("Choices"), state["Choices"], language)
    elif kind is StateType.PARALLEL and "Branches" in state:
        branches = _filled_list(location.at("Branches"), state["Branches"], "branch")
        for index, branch in enumerate(branches):
            _check_machine(location.at("Branches", index), branch, _MACHINE, machine_language)
    elif kind is StateType.MAP:
        check_map(location, state, language)
        field, processor = processor_of(state)
        if field in state:
            _check_machine(location.at(field), processor, _PROCESSOR, machine_language)


def _filled_list(location: SourceLocation, value: Json, noun: str) -> list[Json]:
    if not isinstance(value, list):
        checks.wrong_type(location, value, "an array of objects")
        return []
    if not value:
        location.report(ProblemCode.EMPTY, f"there is no {noun}", "write at least one")
    return value


def _check_choices(location: SourceLocation, value: Json, language: Language) -> None:
    for index, entry in enumerate(_filled_list(location, value, "choice")):
        place = location.at(index)
        if language is Language.JSONATA:
            checks.fields(place, entry, _RULE, ("Condition", "Next"))
        elif not isinstance(entry, dict):
            checks.wrong_type(place, entry, "an object")
        else:
            others = {key: entry[key] for key in BESIDE_CONDITION if key in entry}
            known = {"Next": checks.text, "Assign": checks.assignment(checks.template)}
            checks.fields(place, others, known, ("Next",))
            checks.rule(place, {key: part for key, part in entry.items() if key not in BESIDE_CONDITION})


def _check_variables(location: SourceLocation, definition: Json) -> None:
    """Report variables of a nested machine that have the name of an outer machine's variable."""
    assigned: dict[tuple[str | int, ...], set[str]] = {}
    for nested in all_machines(definition):
        outer = set().union(*(names for steps, names in assigned.items() if nested.steps[: len(steps)] == steps))
        own = assigned.setdefault(nested.steps, set())
        for steps, name in _assignments(nested.machine):
            own.add(name)
            if name in outer:
                allowed = "choose another name: an inner machine cannot assign a variable of an outer one"
                fact = f"an outer machine also assigns {name}"
                location.at(*nested.steps, "States", *steps).report(ProblemCode.BAD_VARIABLE, fact, allowed)


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


def _check_texts(location: SourceLocation, definition: Json) -> None:
    """Report every `${name}` that is not a callee, and warn of words without quotes in filters.

    A placeholder would be used literally here; for AWS a deployment replaces it.
    """
    pending: list[tuple[tuple[str | int, ...], Json]] = [((), definition)]
    while pending:
        steps, value = pending.pop()
        if isinstance(value, str):
            word = bare_word(value) if value.startswith("$") and "[?" in value else None
            if word is not None:
                allowed = f"write '{word}' with quotes"
                location.at(*steps).warn(ProblemCode.BAD_PATH, f"{word} in the filter is read as text", allowed)
            for name in unresolved(value):
                allowed = "give the variable when loading; only a callee may stay a placeholder"
                location.at(*steps).report_only_aws(
                    ProblemCode.UNRESOLVED_SUBSTITUTION, f"${{{name}}} was not replaced", allowed
                )
        elif isinstance(value, dict):
            members = [(key, member) for key, member in value.items() if not _may_be_placeholder(steps, key, value)]
            pending.extend(((*steps, key), member) for key, member in reversed(members))
        elif isinstance(value, list):
            pending.extend(((*steps, index), entry) for index, entry in reversed(list(enumerate(value))))


def _may_be_placeholder(steps: tuple[str | int, ...], key: str, holder: Mapping[str, Json]) -> bool:
    if key == "Comment":
        return True
    if key == "Resource":
        return holder.get("Type") == StateType.TASK
    return key in _CALLEE_FIELDS and bool(steps) and steps[-1] in ("Parameters", "Arguments")


def _check_express(location: SourceLocation, definition: Json) -> None:
    """Report states that only STANDARD iterations support, at any depth inside an EXPRESS Map."""
    express: list[tuple[str | int, ...]] = []
    for nested in all_machines(definition):
        match nested.machine.get("ProcessorConfig"):
            case {"Mode": MapMode.DISTRIBUTED, "ExecutionType": ExecutionType.EXPRESS}:
                express.append(nested.steps)
        if any(nested.steps[: len(steps)] == steps for steps in express):
            for name, state in states_of(nested.machine).items():
                _check_express_state(location.at(*nested.steps, "States", name), state)


def _check_express_state(location: SourceLocation, state: dict[str, Json]) -> None:
    if state.get("Type") == StateType.TASK and isinstance(state.get("Resource"), str):
        _check_express_resource(location.at("Resource"), state["Resource"])
    elif state.get("Type") == StateType.MAP and is_distributed(state):
        field, _ = processor_of(state)
        place = location.at(field, "ProcessorConfig", "Mode")
        fact = "a distributed Map cannot be within an EXPRESS iteration"
        place.report(ProblemCode.NOT_IN_EXPRESS, fact, f'write "INLINE", {_OR_STANDARD}')


def _check_express_resource(location: SourceLocation, resource: str) -> None:
    # By the end of the text: a definition for AWS may name services that are unknown here.
    wait = next((wait for wait in WaitMode if wait.value and resource.endswith(wait.value)), WaitMode.ANSWER)
    if wait is not WaitMode.ANSWER:
        fact = f"an EXPRESS iteration cannot wait ({wait.value})"
        location.report(ProblemCode.NOT_IN_EXPRESS, fact, f"call it without {wait.value}, {_OR_STANDARD}")
    elif _ACTIVITY in resource:
        fact = "an EXPRESS iteration cannot wait for a worker of an activity"
        location.report(ProblemCode.NOT_IN_EXPRESS, fact, f"call a function, {_OR_STANDARD}")
