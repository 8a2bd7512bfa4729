"""Event budget: estimates the history events of an execution on Step Functions, and finds loops that exceed its limit.

Counts the events of states that succeed at the first attempt; each retry of a Task adds three. Each loop is judged
alone. Unknown values, such as the number of items or the duration of a Wait with a path, are reported as unknown.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from headgate.asl.compile.cycles import components, loops, may_be_counted
from headgate.asl.compile.problems import Problem, ProblemCode, json_path, listed
from headgate.asl.expressions.scope import Json
from headgate.asl.model.definition import ExecutionType, StateType
from headgate.asl.model.transitions import is_distributed, machines_in, processor_of, states_of, successors
from headgate.asl.tasks.resources import WaitMode

_Steps: TypeAlias = tuple[str | int, ...]

# The limit of Step Functions: an execution fails when its history is full.
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
    # Entered, started, succeeded, exited, plus the events inside.
    StateType.PARALLEL: 4,
    StateType.MAP: 4,
}
# MapRunStarted and MapRunSucceeded. Each iteration has a history of its own.
_MAP_RUN_EVENTS: Final = 2
# MapIterationStarted and MapIterationSucceeded.
_ITERATION_EVENTS: Final = 2
# ExecutionStarted and ExecutionSucceeded.
_EXECUTION_EVENTS: Final = 2
_WAITS: Final = tuple(wait.value for wait in WaitMode if wait.value)
# TaskSubmitted, for a Task that waits for a job or a callback.
_SUBMITTED_EVENTS: Final = 1


class LoopVerdict(enum.StrEnum):
    """Whether the events of a loop fit the history."""

    # Within the machine's timeout its waits allow no more rounds than the history holds.
    HOLDS = "HOLDS"
    # Its waits allow more.
    EXCEEDS = "EXCEEDS"
    # Depends on values that only an execution has.
    UNKNOWN = "UNKNOWN"
    # It has no wait and no visible end.
    UNBOUNDED = "UNBOUNDED"


class LoopCost(Struct, frozen=True):
    """One loop of a machine. `path` is the location of its first state."""

    path: str
    states: tuple[str, ...]
    events_per_round: int
    # The rounds that fit the history if every other state runs once.
    rounds_max: int
    # The sum of its known waits; None if none is known.
    seconds_per_round: float | None
    verdict: LoopVerdict
    reason: str


class MapItemCost(Struct, frozen=True):
    """The events per item of an inline Map with an unknown number of items. `path` is the location of the Map."""

    path: str
    events_per_item: int


class EventBudget(Struct, frozen=True):
    """The events of a machine. `children` are distributed iterations, each with a history of its own."""

    # The longest path with each state visited at most once, without the items of the Maps in `iterations`.
    events_per_pass: int
    iterations: tuple[MapItemCost, ...]
    loops: tuple[LoopCost, ...]
    # Whether `loops` is complete; the search is bounded.
    has_all_loops: bool
    children: tuple[tuple[str, EventBudget], ...] = ()

    @property
    def problems(self) -> list[Problem]:
        """The loops and passes that exceed the history, or that have no bound."""
        found = [_problem(loop) for loop in self.loops if loop.verdict in (LoopVerdict.EXCEEDS, LoopVerdict.UNBOUNDED)]
        if self.events_per_pass > EVENTS_MAX:
            fact = f"one pass writes {self.events_per_pass} events, and a history holds {EVENTS_MAX}"
            found.append(Problem("$", ProblemCode.BUDGET_EXCEEDED, fact, "move states into a machine of their own"))
        for _, child in self.children:
            found.extend(child.problems)
        return found


def event_budget(definition: Json) -> EventBudget:
    """Return the event budget of a valid definition."""
    return _history(definition, (), definition.get("TimeoutSeconds"))


class _FoundLoop(Struct, frozen=True):
    """A loop, and how many copies of it run in one history: the number of items of an enclosing Map."""

    path: str
    states: dict[str, dict[str, Json]]
    events: int
    copies: int | None


class _HistoryTotals(Struct):
    """Accumulates the costs of one history."""

    iterations: list[MapItemCost]
    loops: list[_FoundLoop]
    children: list[tuple[str, EventBudget]]
    has_all_loops: bool = True
    # Copies of the current machine. None: an enclosing Map has an unknown number of items.
    copies: int | None = 1


def _history(machine: Mapping[str, Json], steps: _Steps, timeout_seconds: float | None) -> EventBudget:
    totals = _HistoryTotals([], [], [])
    events = _EXECUTION_EVENTS + _pass(machine, steps, totals)
    judged = tuple(_judged(found, events, timeout_seconds) for found in totals.loops)
    return EventBudget(events, tuple(totals.iterations), judged, totals.has_all_loops, tuple(totals.children))


def _pass(machine: Mapping[str, Json], steps: _Steps, totals: _HistoryTotals) -> int:
    """Return the events of the most expensive path through a machine, with each state visited at most once."""
    states = states_of(machine)
    costs = {name: _cost(state, (*steps, "States", name), totals) for name, state in states.items()}
    following = successors(machine)
    found, is_all = loops(following)
    totals.has_all_loops = totals.has_all_loops and is_all
    for names in found:
        path = json_path("$", (*steps, "States", names[0]))
        loop = {name: states[name] for name in names}
        totals.loops.append(_FoundLoop(path, loop, sum(costs[name] for name in names), totals.copies))
    # The states of a component count together; components come in reverse topological order.
    after: dict[str, int] = {}
    for group in components(following):
        beyond = max((after[to] for name in group for to in following[name] if to not in group), default=0)
        total = sum(costs[name] for name in group) + beyond
        after.update(dict.fromkeys(group, total))
    return after.get(machine.get("StartAt", ""), 0)


def _cost(state: Mapping[str, Json], steps: _Steps, totals: _HistoryTotals) -> int:
    kind = state.get("Type", "")
    own = _EVENTS.get(kind, 0)
    if kind == StateType.TASK:
        return own + (_SUBMITTED_EVENTS if _waits_for_job(state) else 0)
    if kind == StateType.PARALLEL:
        return own + sum(_pass(inner.machine, (*steps, *inner.steps), totals) for inner in machines_in(state))
    if kind == StateType.MAP:
        return own + _map_cost(state, steps, totals)
    return own


def _waits_for_job(state: Mapping[str, Json]) -> bool:
    # By the end of the text: a definition for AWS may name services that are unknown here.
    return str(state["Resource"]).endswith(_WAITS)


def _map_cost(state: Mapping[str, Json], steps: _Steps, totals: _HistoryTotals) -> int:
    field, processor = processor_of(state)
    inside = (*steps, field)
    if is_distributed(state):
        # The history of an express execution has no limit.
        if processor["ProcessorConfig"].get("ExecutionType") != ExecutionType.EXPRESS:
            totals.children.append((json_path("$", inside), _history(processor, inside, None)))
        return _MAP_RUN_EVENTS
    items = state.get("Items")
    count = len(items) if isinstance(items, list) else None
    outer_copies = totals.copies
    totals.copies = None if outer_copies is None or count is None else outer_copies * count
    per_item = _ITERATION_EVENTS + _pass(processor, inside, totals)
    totals.copies = outer_copies
    if count is not None:
        return count * per_item
    totals.iterations.append(MapItemCost(json_path("$", steps), per_item))
    return 0


def _judged(found: _FoundLoop, events_per_pass: int, timeout_seconds: float | None) -> LoopCost:
    """Judge one loop, assuming that every other state runs once."""
    seconds = _known_pause(found.states.values())
    others = max(events_per_pass - found.events * (found.copies or 1), 0)
    rounds = max(EVENTS_MAX - others, 0) // max(found.events * (found.copies or 1), 1)
    verdict, reason = _verdict(found, seconds, timeout_seconds, rounds)
    return LoopCost(found.path, tuple(found.states), found.events, rounds, seconds, verdict, reason)


def _verdict(
    found: _FoundLoop, seconds: float | None, timeout_seconds: float | None, rounds: int
) -> tuple[LoopVerdict, str]:
    if seconds is not None and timeout_seconds is not None:
        possible = int(timeout_seconds // seconds) + 1
        reason = (
            f"it can make {possible} rounds in the {timeout_seconds:g} s of the machine; the history holds {rounds}"
        )
        if possible > rounds:
            return LoopVerdict.EXCEEDS, reason
        if found.copies is None:
            return LoopVerdict.UNKNOWN, f"{reason}, for one item; the number of items is unknown"
        return LoopVerdict.HOLDS, reason
    if seconds is not None:
        full = f"the history is full after {rounds * seconds:.0f} s"
        return LoopVerdict.UNKNOWN, f"{full}, and the machine has no TimeoutSeconds that ends it before"
    if may_be_counted(found.states.values()):
        return LoopVerdict.UNKNOWN, "it compares numbers, so it may end by counting; the number of rounds is unknown"
    pauses = [name for name, state in found.states.items() if _may_pause(state)]
    if pauses:
        return LoopVerdict.UNKNOWN, f"the duration of {listed(pauses, 'and')} is only known at run time"
    return LoopVerdict.UNBOUNDED, f"it has no wait, and the history is full after {rounds} rounds"


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


def _problem(loop: LoopCost) -> Problem:
    fact = f"the loop {' → '.join((*loop.states, loop.states[0]))} exceeds the history: {loop.reason}"
    if loop.verdict is LoopVerdict.UNBOUNDED:
        allowed = "put a Wait into it, and give the machine TimeoutSeconds"
        return Problem(loop.path, ProblemCode.UNBOUNDED_LOOP, fact, allowed)
    allowed = f"wait longer in each round, or write a TimeoutSeconds that allows {loop.rounds_max} rounds at most"
    return Problem(loop.path, ProblemCode.BUDGET_EXCEEDED, fact, allowed)
