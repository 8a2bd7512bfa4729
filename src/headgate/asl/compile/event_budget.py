"""Budget: how many events an execution writes into Step Functions' history, and which loops outrun its limit.

What is counted is what a state writes when it succeeds at the first attempt; every retry of a Task adds three events
more. Each loop is judged by itself. What cannot be known from a definition,
such as the number of items or how long a Wait with a path is, is said to be unknown and not guessed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from headgate.asl.compile.cycles import components, loops, may_be_counted
from headgate.asl.compile.problems import Code, Problem, json_path, listed
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, StateType
from headgate.asl.model.transitions import is_distributed, machines_in, processor_of, states_of, successors
from headgate.asl.tasks.resources import WaitMode, target_of

_Steps: TypeAlias = tuple[str | int, ...]

# What the history of an execution holds; the execution fails when it is full.
EVENTS_MAX: Final = 25_000

# Entered and exited; a Fail is not exited.
_EVENTS: Final[Mapping[str, int]] = {
    StateType.PASS: 2,
    StateType.CHOICE: 2,
    StateType.WAIT: 2,
    StateType.SUCCEED: 2,
    StateType.FAIL: 1,
    # Entered, scheduled, started, succeeded, exited.
    StateType.TASK: 5,
    # Entered, started, succeeded, exited; what is inside comes on top.
    StateType.PARALLEL: 4,
    StateType.MAP: 4,
}
# MapRunStarted and MapRunSucceeded. What the iterations write goes into histories of their own.
_MAP_RUN_EVENTS: Final = 2
# MapIterationStarted and MapIterationSucceeded.
_ITERATION_EVENTS: Final = 2
# ExecutionStarted and ExecutionSucceeded.
_EXECUTION_EVENTS: Final = 2
# TaskSubmitted, of a task that goes on after its call was answered.
_SUBMITTED_EVENTS: Final = 1


class Verdict(enum.StrEnum):
    """Whether a loop stays within the history."""

    # Its pauses let it make no more rounds in the time that the machine has than the history holds.
    HOLDS = "HOLDS"
    # They let it make more.
    EXCEEDS = "EXCEEDS"
    # It depends on what only an execution knows.
    UNKNOWN = "UNKNOWN"
    # Nothing slows it down, and nothing that can be seen ends it.
    UNBOUNDED = "UNBOUNDED"


class Loop(Struct, frozen=True):
    """One loop of a machine. `path` is where the first of its states is."""

    path: str
    states: tuple[str, ...]
    events_per_round: int
    # How many rounds the history holds if everything else in the machine is passed once.
    rounds_max: int
    # What its pauses come to at least; None if no pause has a length that is known.
    seconds_per_round: float | None
    verdict: Verdict
    reason: str


class Iteration(Struct, frozen=True):
    """An inline Map whose number of items is not known. `path` is where the Map is."""

    path: str
    events_per_item: int


class Budget(Struct, frozen=True):
    """What a machine costs. Costs of distributed iterations are `children`, each with a history of its own."""

    # One way through the machine, with every state visited once at most and no item in the Maps of `iterations`.
    events_per_pass: int
    iterations: tuple[Iteration, ...]
    loops: tuple[Loop, ...]
    # Whether `loops` are all the loops there are; machines with very many are not searched to the end.
    has_all_loops: bool
    children: tuple[tuple[str, Budget], ...] = ()

    @property
    def problems(self) -> list[Problem]:
        """What is certain to be too much, or not held back by anything."""
        found = [_problem(loop) for loop in self.loops if loop.verdict in (Verdict.EXCEEDS, Verdict.UNBOUNDED)]
        if self.events_per_pass > EVENTS_MAX:
            fact = f"one pass writes {self.events_per_pass} events, and a history holds {EVENTS_MAX}"
            found.append(Problem("$", Code.BUDGET_EXCEEDED, fact, "move states into a machine of their own"))
        for _, child in self.children:
            found.extend(child.problems)
        return found


def budget(definition: Json) -> Budget:
    """Return what a machine costs. The definition is taken to be valid."""
    return _history(definition, (), definition.get("TimeoutSeconds"))


class _Found(Struct, frozen=True):
    """A loop before it is judged, and how many of it run in the same history: as many as a Map around it has items."""

    path: str
    states: dict[str, dict[str, Json]]
    events: int
    copies: int | None


class _Tally(Struct):
    """What is collected on the way through one history."""

    iterations: list[Iteration]
    loops: list[_Found]
    children: list[tuple[str, Budget]]
    has_all_loops: bool = True
    # Of the machine that is being gone through. None: a Map around it has a number of items that is not known.
    copies: int | None = 1


def _history(machine: Mapping[str, Json], steps: _Steps, timeout_seconds: float | None) -> Budget:
    tally = _Tally([], [], [])
    events = _EXECUTION_EVENTS + _pass(machine, steps, tally)
    judged = tuple(_judged(found, events, timeout_seconds) for found in tally.loops)
    return Budget(events, tuple(tally.iterations), judged, tally.has_all_loops, tuple(tally.children))


def _pass(machine: Mapping[str, Json], steps: _Steps, tally: _Tally) -> int:
    """Return the events of the costliest way through a machine, no state of it being visited twice."""
    states = states_of(machine)
    costs = {name: _cost(state, (*steps, "States", name), tally) for name, state in states.items()}
    following = successors(machine)
    found, is_all = loops(following)
    tally.has_all_loops = tally.has_all_loops and is_all
    for names in found:
        path = json_path("$", (*steps, "States", names[0]))
        loop = {name: states[name] for name in names}
        tally.loops.append(_Found(path, loop, sum(costs[name] for name in names), tally.copies))
    # States that lead to each other count together; the groups come with those that follow first.
    after: dict[str, int] = {}
    for group in components(following):
        beyond = max((after[to] for name in group for to in following[name] if to not in group), default=0)
        total = sum(costs[name] for name in group) + beyond
        after.update(dict.fromkeys(group, total))
    return after.get(machine.get("StartAt", ""), 0)


def _cost(state: Mapping[str, Json], steps: _Steps, tally: _Tally) -> int:
    kind = state.get("Type", "")
    own = _EVENTS.get(kind, 0)
    if kind == StateType.TASK:
        return own + (_SUBMITTED_EVENTS if _waits_for_job(state) else 0)
    if kind == StateType.PARALLEL:
        return own + sum(_pass(inner.machine, (*steps, *inner.steps), tally) for inner in machines_in(state))
    if kind == StateType.MAP:
        return own + _map_cost(state, steps, tally)
    return own


def _waits_for_job(state: Mapping[str, Json]) -> bool:
    return target_of(state["Resource"]).wait is not WaitMode.ANSWER


def _map_cost(state: Mapping[str, Json], steps: _Steps, tally: _Tally) -> int:
    field, processor = processor_of(state)
    inside = (*steps, field)
    if is_distributed(state):
        # The history of an express execution has no limit.
        if processor["ProcessorConfig"].get("ExecutionType") != ExecutionType.EXPRESS:
            tally.children.append((json_path("$", inside), _history(processor, inside, None)))
        return _MAP_RUN_EVENTS
    items = state.get("Items")
    count = len(items) if isinstance(items, list) else None
    around = tally.copies
    tally.copies = None if around is None or count is None else around * count
    per_item = _ITERATION_EVENTS + _pass(processor, inside, tally)
    tally.copies = around
    if count is not None:
        return count * per_item
    tally.iterations.append(Iteration(json_path("$", steps), per_item))
    return 0


def _judged(found: _Found, events_per_pass: int, timeout_seconds: float | None) -> Loop:
    """Judge one loop, as if everything else in the machine were passed once."""
    seconds = _known_pause(found.states.values())
    others = max(events_per_pass - found.events * (found.copies or 1), 0)
    rounds = max(EVENTS_MAX - others, 0) // max(found.events * (found.copies or 1), 1)
    verdict, reason = _verdict(found, seconds, timeout_seconds, rounds)
    return Loop(found.path, tuple(found.states), found.events, rounds, seconds, verdict, reason)


def _verdict(found: _Found, seconds: float | None, timeout_seconds: float | None, rounds: int) -> tuple[Verdict, str]:
    if seconds is not None and timeout_seconds is not None:
        possible = int(timeout_seconds // seconds) + 1
        reason = (
            f"it can make {possible} rounds in the {timeout_seconds:g} s of the machine; the history holds {rounds}"
        )
        if possible > rounds:
            return Verdict.EXCEEDS, reason
        if found.copies is None:
            return Verdict.UNKNOWN, f"{reason}, of one item; how many items there are cannot be known"
        return Verdict.HOLDS, reason
    if seconds is not None:
        lasts = f"the history lasts for {rounds * seconds:.0f} s"
        return Verdict.UNKNOWN, f"{lasts}, and no TimeoutSeconds of the machine ends it before"
    if may_be_counted(found.states.values()):
        return Verdict.UNKNOWN, "it compares numbers, and may end by them; how soon cannot be known"
    pauses = [name for name, state in found.states.items() if _may_pause(state)]
    if pauses:
        return Verdict.UNKNOWN, f"how long {listed(pauses, 'and')} takes is known to an execution alone"
    return Verdict.UNBOUNDED, f"nothing in it waits, and after {rounds} rounds the history is full"


def _known_pause(states: Iterable[Mapping[str, Json]]) -> float | None:
    seconds = [state.get("Seconds") for state in states if state.get("Type") == StateType.WAIT]
    return sum(pause for pause in seconds if isinstance(pause, int | float)) or None


def _may_pause(state: Mapping[str, Json]) -> bool:
    kind = state.get("Type")
    if kind == StateType.WAIT:
        return state.get("Seconds") != 0
    if kind == StateType.TASK:
        return _waits_for_job(state)
    return any(_may_pause(inner) for nested in machines_in(state) for inner in states_of(nested.machine).values())


def _problem(loop: Loop) -> Problem:
    fact = f"the loop {' → '.join((*loop.states, loop.states[0]))} outruns the history: {loop.reason}"
    if loop.verdict is Verdict.UNBOUNDED:
        allowed = "put a Wait into it, and give the machine TimeoutSeconds"
        return Problem(loop.path, Code.UNBOUNDED_LOOP, fact, allowed)
    allowed = f"wait longer in each round, or write a TimeoutSeconds that allows {loop.rounds_max} rounds at most"
    return Problem(loop.path, Code.BUDGET_EXCEEDED, fact, allowed)
