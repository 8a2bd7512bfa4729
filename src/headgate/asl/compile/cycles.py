"""Cycles: finds the loops of a machine, and whether a loop may count its rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from headgate.asl.expressions.scope import Json

# The most loops that are enumerated. Hand-written machines have a handful.
LOOPS_MAX: Final = 200
# The most steps of the search, which can be long even for few loops.
_STEPS_MAX: Final = 100_000
# A comparison of order in a JSONata condition, but not the arrow of `~>`.
_ORDER: Final = re.compile(r"(?<!~)[<>]")
# Fields that change the data of a state or a variable.
_CHANGING: Final = ("Assign", "Output", "Parameters", "Result", "ResultPath", "ResultSelector", "Arguments")


def components(following: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the strongly connected components in reverse topological order (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    open_states: set[str] = set()
    groups: list[list[str]] = []
    for root in following:
        if root in number:
            continue
        # Iterative: a machine may be deeper than Python's recursion limit.
        work = [(root, iter(following[root]))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        open_states.add(root)
        while work:
            name, rest = work[-1]
            target = next(rest, None)
            if target is None:
                work.pop()
                if lowest[name] == number[name]:
                    groups.append(_popped_through(stack, name))
                    open_states.difference_update(groups[-1])
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
            elif target not in number:
                number[target] = lowest[target] = len(number)
                stack.append(target)
                open_states.add(target)
                work.append((target, iter(following[target])))
            elif target in open_states:
                lowest[name] = min(lowest[name], number[target])
    return groups


def _popped_through(stack: list[str], name: str) -> list[str]:
    """Pop the stack down to and including `name`."""
    group = [stack.pop()]
    while group[-1] != name:
        group.append(stack.pop())
    return group[::-1]


def loops(following: Mapping[str, list[str]]) -> tuple[list[tuple[str, ...]], bool]:
    """Return the simple loops, each from its first state in the definition, and whether the search was complete."""
    order = {name: index for index, name in enumerate(following)}
    found: list[tuple[str, ...]] = []
    steps = 0
    for group in components(following):
        members = set(group)
        for start in sorted(group, key=order.__getitem__):
            trail = [start]
            work = [iter(following[start])]
            while work:
                steps += 1
                if len(found) >= LOOPS_MAX or steps >= _STEPS_MAX:
                    return found, False
                target = next(work[-1], None)
                if target is None:
                    work.pop()
                    trail.pop()
                elif target == start:
                    found.append(tuple(trail))
                elif target in members and order[target] > order[start] and target not in trail:
                    trail.append(target)
                    work.append(iter(following[target]))
    return found, True


def may_be_counted(states: Iterable[Mapping[str, Json]]) -> bool:
    """Whether a loop may end by counting: it compares numbers, and changes data.

    False only for loops that certainly do not count; the comparison itself is not evaluated.
    """
    loop = list(states)
    compares = any(_compares_numbers(rule) for state in loop for rule in _entries(state, "Choices"))
    changes = any(
        field in part for state in loop for part in (state, *_entries(state, "Choices")) for field in _CHANGING
    )
    return compares and (changes or any(state.get("Type") in ("Task", "Map", "Parallel") for state in loop))


def _entries(state: Mapping[str, Json], field: str) -> list[Json]:
    entries = state.get(field)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _compares_numbers(rule: Json) -> bool:
    if isinstance(rule, list):
        return any(_compares_numbers(part) for part in rule)
    if not isinstance(rule, dict):
        return False
    for key, value in rule.items():
        if key.startswith("Numeric"):
            return True
        if key == "Condition" and isinstance(value, str) and _ORDER.search(value):
            return True
        if key in ("And", "Or", "Not") and _compares_numbers(value):
            return True
    return False
