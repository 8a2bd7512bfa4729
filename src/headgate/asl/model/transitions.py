"""Transitions: which states of a definition may follow which, read from its JSON, however broken that is."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import MapMode


class Cause(enum.StrEnum):
    """Why a machine goes from one state to another."""

    NEXT = "next"
    CHOICE = "choice"
    DEFAULT = "default"
    CATCH = "catch"


class Transition(Struct, frozen=True):
    """One way out of a state. `steps` lead from the state's JSON to the field that names the target."""

    source: str
    target: str
    cause: Cause
    steps: tuple[str | int, ...]
    # The entry of Choices or Catch that leads there.
    entry: Json = None


class Nested(Struct, frozen=True):
    """A machine inside another, or the outermost one, with the steps that lead to it."""

    steps: tuple[str | int, ...]
    machine: dict[str, Json]


def states_of(machine: Json) -> dict[str, dict[str, Json]]:
    """Return the states of a machine that are objects."""
    states = machine.get("States") if isinstance(machine, dict) else None
    if not isinstance(states, dict):
        return {}
    return {name: state for name, state in states.items() if isinstance(state, dict)}


def transitions_of(name: str, state: Mapping[str, Json]) -> Iterator[Transition]:
    """Yield the ways out of a state, in the order in which they are tried."""
    for field, cause in (("Choices", Cause.CHOICE), ("Catch", Cause.CATCH)):
        entries = state.get(field)
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and isinstance(entry.get("Next"), str):
                yield Transition(name, entry["Next"], cause, (field, index, "Next"), entry)
    for field, cause in (("Next", Cause.NEXT), ("Default", Cause.DEFAULT)):
        if isinstance(state.get(field), str):
            yield Transition(name, state[field], cause, (field,))


def successors(machine: Json) -> dict[str, list[str]]:
    """Return for each state the states of the same machine that may follow it, each once."""
    states = states_of(machine)
    return {
        name: list(dict.fromkeys(way.target for way in transitions_of(name, state) if way.target in states))
        for name, state in states.items()
    }


def processor_of(state: Mapping[str, Json]) -> tuple[str, Json]:
    """Return the name of the field in which a Map has its processor, and what is in it."""
    field = "Iterator" if "Iterator" in state and "ItemProcessor" not in state else "ItemProcessor"
    return field, state.get(field)


def is_distributed(state: Mapping[str, Json]) -> bool:
    """Whether the Map says that its iterations are executions of their own."""
    _, processor = processor_of(state)
    config = processor.get("ProcessorConfig") if isinstance(processor, dict) else None
    return isinstance(config, dict) and config.get("Mode") == MapMode.DISTRIBUTED


def machines_in(state: Mapping[str, Json]) -> Iterator[Nested]:
    """Yield the machines that a Parallel or a Map has directly inside it."""
    if state.get("Type") == "Parallel" and isinstance(state.get("Branches"), list):
        for index, branch in enumerate(state["Branches"]):
            if isinstance(branch, dict):
                yield Nested(("Branches", index), branch)
    elif state.get("Type") == "Map":
        field, processor = processor_of(state)
        if isinstance(processor, dict):
            yield Nested((field,), processor)


def all_machines(definition: Json) -> Iterator[Nested]:
    """Yield the machine and all that are nested in it, outer ones first."""
    pending = [Nested((), definition)] if isinstance(definition, dict) else []
    while pending:
        outer = pending.pop(0)
        yield outer
        for name, state in states_of(outer.machine).items():
            steps = (*outer.steps, "States", name)
            pending.extend(Nested((*steps, *inner.steps), inner.machine) for inner in machines_in(state))


def reachable(machine: Json) -> list[str]:
    """Return the states that can be come to from StartAt, nearest first."""
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
