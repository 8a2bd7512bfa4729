"""Flow: whether a machine can go where its states say, come to each of them, and come to an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headgate.asl.compile.cycles import components, may_be_counted
from headgate.asl.compile.problems import Code, Spot, listed, nearest
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


def check_flow(spot: Spot, definition: Json) -> None:
    """Report, for the machine and all nested in it, what is wrong with names and with what follows what."""
    homes: dict[str, list[NestedMachine]] = {}
    machines = list(all_machines(definition))
    for nested in machines:
        for name in states_of(nested.machine):
            homes.setdefault(name, []).append(nested)
    _check_names(spot, homes)
    for nested in machines:
        place = spot.at(*nested.steps)
        _check_targets(place, nested.machine, homes)
        _check_reach(place, nested.machine)
        _check_end(place, nested.machine)
        _check_idle_loops(place, nested.machine)


def _check_names(spot: Spot, homes: Mapping[str, list[NestedMachine]]) -> None:
    for name, nesteds in homes.items():
        first, *others = nesteds
        if not 1 <= len(name) <= NAME_LENGTH_MAX:
            fact = f"the name has {len(name)} characters"
            place = spot.at(*first.steps, "States", name)
            place.report(Code.BAD_NAME, fact, f"write 1 to {NAME_LENGTH_MAX} characters")
        for other in others:
            where = spot.at(*first.steps, "States", name).path
            fact = f"a state of this name is at {where}"
            allowed = "give each state of the machine, its branches and its processors a name of its own"
            spot.at(*other.steps, "States", name).report(Code.DUPLICATE_STATE, fact, allowed)


def _check_targets(spot: Spot, machine: Mapping[str, Json], homes: Mapping[str, list[NestedMachine]]) -> None:
    states = states_of(machine)
    start = machine.get("StartAt")
    if isinstance(start, str):
        _check_target(spot.at("StartAt"), start, states, homes)
    for name, state in states.items():
        for way in transitions_of(name, state):
            _check_target(spot.at("States", name, *way.steps), way.target, states, homes)


def _check_target(
    spot: Spot, target: str, states: Mapping[str, Json], homes: Mapping[str, list[NestedMachine]]
) -> None:
    if target in states:
        return
    if target in homes:
        allowed = f"name a state of the same States: {_names(states)}"
        spot.report(Code.UNKNOWN_STATE, f"{target!r} is a state of another machine", allowed)
        return
    meant = nearest(target, states)
    allowed = f"did you mean {meant}?" if meant else f"name one of {_names(states)}"
    spot.report(Code.UNKNOWN_STATE, f"there is no state {target!r}", allowed)


def _names(states: Mapping[str, Json]) -> str:
    shown = list(states)[:10]
    return listed([*shown, f"{len(states) - 10} more"] if len(states) > 10 else shown) or "nothing: States is empty"


def _check_reach(spot: Spot, machine: Mapping[str, Json]) -> None:
    states = states_of(machine)
    if machine.get("StartAt") not in states:
        return  # Reported where it is named; without a start nothing could be said of the others.
    found = set(reachable(machine))
    for name in states:
        if name not in found:
            allowed = "name it in a Next, Default, Choices or Catch of a state that is reached, or leave it out"
            spot.at("States", name).report(Code.UNREACHABLE_STATE, "no way leads here from StartAt", allowed)


def _check_end(spot: Spot, machine: Mapping[str, Json]) -> None:
    states = states_of(machine)
    for name in reachable(machine):
        state = states[name]
        ways = list(transitions_of(name, state))
        if state.get("Type") in _TERMINAL or state.get("End") is True:
            return
        if not ways or any(way.target not in states for way in ways):
            return  # Reported as what it is; mended, it may well lead to an end.
    if states and machine.get("StartAt") in states:
        allowed = 'write "End": true in a state, or add a Succeed or a Fail'
        spot.at("States").report(Code.NO_END, "no state that is reached ends the machine", allowed)


def _check_idle_loops(spot: Spot, machine: Mapping[str, Json]) -> None:
    """Report loops in which nothing waits and nothing works: they run through the history in no time.

    A loop that may count its rounds is let through: it is how a machine repeats something n times.
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
            spot.at("States", names[0]).report(
                Code.IDLE_LOOP,
                f"{listed(names, 'and')} lead to each other, and nothing in between waits or works",
                allowed,
            )


def is_idle(state: Mapping[str, Json]) -> bool:
    """Whether a state takes no time: it neither waits nor calls anything, nor does a state inside it."""
    kind = state.get("Type")
    if kind == StateType.WAIT:
        return state.get("Seconds") == 0
    if kind in (StateType.PARALLEL, StateType.MAP):
        return all(is_idle(inner) for nested in machines_in(state) for inner in states_of(nested.machine).values())
    return kind in (StateType.PASS, StateType.CHOICE)
