"""Reachability: checks state names, transition targets, unreachable states, missing ends and idle loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.asl.compile.cycles import components, may_be_counted
from headgate.asl.compile.problems import ProblemCode, SourceLocation, listed, nearest
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import StateType
from headgate.asl.model.transitions import (
    NestedMachine,
    all_machines,
    machines_in,
    reachable,
    states_of,
    successors,
    transitions_of,
)

NAME_LENGTH_MAX: Final = 80
_TERMINAL: Final = (StateType.SUCCEED, StateType.FAIL)


def check_flow(location: SourceLocation, definition: Json) -> None:
    """Report the problems of names and transitions, in the machine and all machines nested in it."""
    machines_by_state: dict[str, list[NestedMachine]] = {}
    machines = list(all_machines(definition))
    for nested in machines:
        for name in states_of(nested.machine):
            machines_by_state.setdefault(name, []).append(nested)
    _check_names(location, machines_by_state)
    for nested in machines:
        place = location.at(*nested.steps)
        _check_targets(place, nested.machine, machines_by_state)
        _check_reach(place, nested.machine)
        _check_end(place, nested.machine)
        _check_idle_loops(place, nested.machine)


def _check_names(location: SourceLocation, machines_by_state: Mapping[str, list[NestedMachine]]) -> None:
    for name, owners in machines_by_state.items():
        first, *others = owners
        if not 1 <= len(name) <= NAME_LENGTH_MAX:
            fact = f"the name has {len(name)} characters"
            place = location.at(*first.steps, "States", name)
            place.report(ProblemCode.BAD_NAME, fact, f"write 1 to {NAME_LENGTH_MAX} characters")
        for other in others:
            where = location.at(*first.steps, "States", name).path
            fact = f"another state of this name is at {where}"
            allowed = "give each state of the machine, its branches and its processors a name of its own"
            location.at(*other.steps, "States", name).report(ProblemCode.DUPLICATE_STATE, fact, allowed)


def _check_targets(
    location: SourceLocation, machine: Mapping[str, Json], machines_by_state: Mapping[str, list[NestedMachine]]
) -> None:
    states = states_of(machine)
    start = machine.get("StartAt")
    if isinstance(start, str):
        _check_target(location.at("StartAt"), start, states, machines_by_state)
    for name, state in states.items():
        for transition in transitions_of(name, state):
            _check_target(location.at("States", name, *transition.steps), transition.target, states, machines_by_state)


def _check_target(
    location: SourceLocation,
    target: str,
    states: Mapping[str, Json],
    machines_by_state: Mapping[str, list[NestedMachine]],
) -> None:
    if target in states:
        return
    if target in machines_by_state:
        allowed = f"name a state of the same States: {_names(states)}"
        location.report(ProblemCode.UNKNOWN_STATE, f"{target!r} is a state of another machine", allowed)
        return
    meant = nearest(target, states)
    allowed = f"did you mean {meant}?" if meant else f"name one of {_names(states)}"
    location.report(ProblemCode.UNKNOWN_STATE, f"there is no state {target!r}", allowed)


def _names(states: Mapping[str, Json]) -> str:
    shown = list(states)[:10]
    return listed([*shown, f"{len(states) - 10} more"] if len(states) > 10 else shown) or "nothing: States is empty"


def _check_reach(location: SourceLocation, machine: Mapping[str, Json]) -> None:
    states = states_of(machine)
    if machine.get("StartAt") not in states:
        return  # Reported at StartAt; without it reachability is undefined.
    found = set(reachable(machine))
    for name in states:
        if name not in found:
            allowed = "name it in a Next, Default, Choices or Catch of a reachable state, or remove it"
            location.at("States", name).report(
                ProblemCode.UNREACHABLE_STATE, "it cannot be reached from StartAt", allowed
            )


def _check_end(location: SourceLocation, machine: Mapping[str, Json]) -> None:
    states = states_of(machine)
    for name in reachable(machine):
        state = states[name]
        transitions = list(transitions_of(name, state))
        if state.get("Type") in _TERMINAL or state.get("End") is True:
            return
        if not transitions or any(each.target not in states for each in transitions):
            return  # The invalid transition is reported already; corrected, it may lead to an end.
    if states and machine.get("StartAt") in states:
        allowed = 'write "End": true in a state, or add a Succeed or a Fail'
        location.at("States").report(ProblemCode.NO_END, "no reachable state ends the machine", allowed)


def _check_idle_loops(location: SourceLocation, machine: Mapping[str, Json]) -> None:
    """Report loops without a Wait or a Task: they exhaust the event history at once.

    A loop that may count its rounds is accepted: a machine repeats something n times that way.
    """
    states = states_of(machine)
    idle = {name for name, state in states.items() if is_idle(state)}
    following = {
        name: [to for to in targets if to in idle] for name, targets in successors(machine).items() if name in idle
    }
    for group in components(following):
        is_loop = len(group) > 1 or group[0] in following[group[0]]
        if is_loop and not may_be_counted(states[name] for name in group):
            names = [name for name in states if name in group]
            allowed = "put a Wait or a Task into the loop"
            location.at("States", names[0]).warn(
                ProblemCode.IDLE_LOOP,
                f"{listed(names, 'and')} form a loop without a Wait or a Task",
                allowed,
            )


def is_idle(state: Mapping[str, Json]) -> bool:
    """Whether a state, including the states inside it, neither waits nor calls anything."""
    kind = state.get("Type")
    if kind == StateType.WAIT:
        return state.get("Seconds") == 0
    if kind in (StateType.PARALLEL, StateType.MAP):
        return all(is_idle(inner) for nested in machines_in(state) for inner in states_of(nested.machine).values())
    return kind in (StateType.PASS, StateType.CHOICE)
