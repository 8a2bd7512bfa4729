"""Loops: which states of a machine can come back to themselves, and whether something counts the rounds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from headgate.asl.expressions.scope import Json

# How many loops are looked at one by one. Machines that people write have a handful.
LOOPS_MAX: Final = 200
# How far the search for loops goes. It is bounded apart from their number, for few loops can be hard to find.
_STEPS_MAX: Final = 100_000
# A comparison of order in a JSONata condition, but not the arrow of `~>`.
_ORDER: Final = re.compile(r"(?<!~)[<>]")
# What gives a state another output than its input, or a variable another value.
_CHANGING: Final = ("Assign", "Output", "Parameters", "Result", "ResultPath", "ResultSelector", "Arguments")


def components(following: Mapping[str, list[str]]) -> list[list[str]]:
    """Return the groups of states that can be come to from each other, those that follow others first (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    open_states: set[str] = set()
    groups: list[list[str]] = []
    for root in following:
        if root in number:
            continue
        # A stack of our own: a machine may be longer than Python's allows.
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
                    groups.append(_taken(stack, name))
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


def _taken(stack: list[str], name: str) -> list[str]:
    """Take what is on the stack from `name` on."""
    group = [stack.pop()]
    while group[-1] != name:
        group.append(stack.pop())
    return group[::-1]


def loops(following: Mapping[str, list[str]]) -> tuple[list[tuple[str, ...]], bool]:
    """Return the loops in which no state stands twice, and whether these are all there are.

    Each loop is given once, from the state of it that is written first.
    """
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
    """Whether a loop of these states may end by counting: it compares numbers, and changes what it compares.

    It says no only of loops that certainly do not count. What a comparison comes to cannot be known beforehand.
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
