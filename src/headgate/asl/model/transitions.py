"""Transitions between states, read from the JSON of a definition; invalid parts are skipped."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import MapMode


class TransitionKind(enum.StrEnum):
    """The field that causes a transition."""

    NEXT = "next"
    CHOICE = "choice"
    DEFAULT = "default"
    CATCH = "catch"


class Transition(Struct, frozen=True):
    """One transition. `steps` is the path from the state's JSON to the field that names the target."""

    source: str
    target: str
    cause: TransitionKind
    steps: tuple[str | int, ...]
    # The entry of Choices or Catch.
    entry: Json = None


class NestedMachine(Struct, frozen=True):
    """A machine in a definition, with the path from the definition to it."""

    steps: tuple[str | int, ...]
    machine: dict[str, Json]


def states_of(machine: Json) -> dict[str, dict[str, Json]]:
    """Return the states of a machine that are objects."""
    states = machine.get("States") if isinstance(machine, dict) else None
    if not isinstance(states, dict):
        return {}
    return {name: state for name, state in states.items() if isinstance(state, dict)}


def transitions_of(name: str, state: Mapping[str, Json]) -> Iterator[Transition]:
    """Yield the transitions of a state in the order of evaluation."""
    for field, cause in (("Choices", TransitionKind.CHOICE), ("Catch", TransitionKind.CATCH)):
        entries = state.get(field)
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and isinstance(entry.get("Next"), str):
                yield Transition(name, entry["Next"], cause, (field, index, "Next"), entry)
    for field, cause in (("Next", TransitionKind.NEXT), ("Default", TransitionKind.DEFAULT)):
        if isinstance(state.get(field), str):
            yield Transition(name, state[field], cause, (field,))


def successors(machine: Json) -> dict[str, list[str]]:
    """Return the possible next states of each state, without duplicates."""
    states = states_of(machine)
    return {
        name: list(dict.fromkeys(each.target for each in transitions_of(name, state) if each.target in states))
        for name, state in states.items()
    }


def processor_of(state: Mapping[str, Json]) -> tuple[str, Json]:
    """Return the name and the value of the field that holds a Map's processor."""
    field = "Iterator" if "Iterator" in state and "ItemProcessor" not in state else "ItemProcessor"
    return field, state.get(field)


def is_distributed(state: Mapping[str, Json]) -> bool:
    """Whether the Map has the mode DISTRIBUTED."""
    _, processor = processor_of(state)
    config = processor.get("ProcessorConfig") if isinstance(processor, dict) else None
    return isinstance(config, dict) and config.get("Mode") == MapMode.DISTRIBUTED


def machines_in(state: Mapping[str, Json]) -> Iterator[NestedMachine]:
    """Yield the branches of a Parallel, or the processor of a Map."""
    if state.get("Type") == "Parallel" and isinstance(state.get("Branches"), list):
        for index, branch in enumerate(state["Branches"]):
            if isinstance(branch, dict):
                yield NestedMachine(("Branches", index), branch)
    elif state.get("Type") == "Map":
        field, processor = processor_of(state)
        if isinstance(processor, dict):
            yield NestedMachine((field,), processor)


def all_machines(definition: Json) -> Iterator[NestedMachine]:
    """Yield the machine and all machines nested in it, breadth first."""
    pending = [NestedMachine((), definition)] if isinstance(definition, dict) else []
    while pending:
        outer = pending.pop(0)
        yield outer
        for name, state in states_of(outer.machine).items():
            steps = (*outer.steps, "States", name)
            pending.extend(NestedMachine((*steps, *inner.steps), inner.machine) for inner in machines_in(state))


def reachable(machine: Json) -> list[str]:
    """Return the states reachable from StartAt, nearest first."""
    following = successors(machine)
    start = machine.get("StartAt") if isinstance(machine, dict) else None
    found = {start: None} if isinstance(start, str) and start in following else {}
    pending = list(found)
    for name in pending:
        for target in following[name]:
            if target not in found:
                found[target] = None
                pending.append(target)
    return list(found)
