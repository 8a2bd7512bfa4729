"""State visits: assigns events of an execution to state visits, and derives the status of each state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from headgate.asl.graph.render import StateMark
from headgate.serve.rest.asl.events import details_of

Event = Mapping[str, Any]

_FAILURES: Final = ("Failed", "TimedOut")
# The next state entered after these is the first of a branch or iteration.
_OPENS: Final = ("ParallelStateStarted", "MapIterationStarted")
_ENDS: Final = ("ExecutionFailed", "ExecutionTimedOut", "ExecutionAborted")
# Precedence of statuses for a state with several visits.
_ORDER: Final = (StateMark.CURRENT, StateMark.FAILED, StateMark.CAUGHT, StateMark.VISITED)


class Visit(Struct, eq=False):
    """One visit of a state. `parent` is the visit of the enclosing Parallel or Map."""

    name: str
    kind: str
    entered_at: datetime
    parent: Visit | None = None
    # Index of the enclosing Map iteration.
    index: int | None = None
    status: StateMark = StateMark.CURRENT
    # Of a Map: total and completed items.
    items: int = 0
    done: int = 0
    # Of a distributed Map: its fan-out.
    map_run: str = ""

    @property
    def depth(self) -> int:
        """Nesting depth."""
        return 0 if self.parent is None else self.parent.depth + 1

    def is_inside(self, other: Visit) -> bool:
        """Whether it is nested in `other`, at any depth."""
        return self.parent is not None and (self.parent is other or self.parent.is_inside(other))


class Visits:
    """Processes the events of an execution in order."""

    def __init__(self) -> None:
        self._visits: dict[int, Visit | None] = {}
        self._types: dict[int, str] = {}
        self._indexes: dict[int, int] = {}
        self._open: dict[int, Visit] = {}
        self._statuses: dict[str, set[StateMark]] = {}

    def take(self, event: Event) -> Visit | None:
        """Return the visit that an event belongs to; None before the first state."""
        number, previous, type = event["id"], event["previousEventId"], event["type"]
        before = self._visits.get(previous)
        details = details_of(event)
        visit = before
        if type.endswith("StateEntered"):
            visit = self._entered(event, details["name"], before)
        elif type.startswith("MapIteration"):
            visit = self._iterated(number, type, details, before)
        elif type == "ExecutionRedriven":
            visit = None  # A redrive continues at the top level.
        self._visits[number] = visit
        self._types[number] = type
        if visit is not None:
            self._learn(visit, type, previous, details)
        if type in _ENDS:
            self._close(list(self._open.values()), StateMark.FAILED)
        elif type == "ExecutionRedriven":
            # Failed states run again, and the new outcome counts.
            for outcomes in self._statuses.values():
                outcomes.discard(StateMark.FAILED)
        return visit

    def map_runs(self) -> list[Visit]:
        """Return the open visits of distributed Maps."""
        return [visit for visit in self._open.values() if visit.map_run]

    def statuses(self) -> dict[str, StateMark]:
        """Return the status of each visited state, by name."""
        by_name = {name: set(found) for name, found in self._statuses.items()}
        for visit in self._open.values():
            by_name.setdefault(visit.name, set()).add(StateMark.CURRENT)
        return {name: next(each for each in _ORDER if each in found) for name, found in by_name.items() if found}

    def _entered(self, event: Event, name: str, before: Visit | None) -> Visit:
        previous = event["previousEventId"]
        is_inside = self._types.get(previous) in _OPENS
        parent = before if is_inside or before is None else before.parent
        index = self._indexes.get(previous) if is_inside else None if before is None else before.index
        kind = event["type"].removesuffix("StateEntered")
        visit = Visit(name, kind, datetime.fromisoformat(event["timestamp"]), parent, index)
        self._open[id(visit)] = visit
        return visit

    def _iterated(self, number: int, type: str, details: Mapping[str, Any], before: Visit | None) -> Visit | None:
        """Return the visit of the Map of an iteration event."""
        if type == "MapIterationStarted":
            self._indexes[number] = details["index"]
        # The end of an iteration follows its last state, if it entered any.
        visit = before if before is None or before.name == details["name"] else before.parent
        if visit is not None and type == "MapIterationSucceeded":
            visit.done += 1
        return visit

    def _learn(self, visit: Visit, type: str, previous: int, details: Mapping[str, Any]) -> None:
        if type == "MapStateStarted":
            visit.items = details.get("length", 0)
        elif type in ("MapRunStarted", "MapRunRedriven"):
            visit.map_run = details.get("mapRunArn", "")
        elif type.endswith("StateExited"):
            is_caught = self._types.get(previous, "").endswith(_FAILURES)
            # Visits still open inside it caused the failure.
            self._close([each for each in self._open.values() if each.is_inside(visit)], StateMark.FAILED)
            self._close([visit], StateMark.CAUGHT if is_caught else StateMark.VISITED)
        elif type.endswith("StateAborted"):
            self._close([visit], StateMark.VISITED)

    def _close(self, visits: Iterable[Visit], status: StateMark) -> None:
        for visit in visits:
            visit.status = status
            self._open.pop(id(visit), None)
            self._statuses.setdefault(visit.name, set()).add(status)


def statuses(events: Iterable[Event]) -> dict[str, StateMark]:
    """Return the status of each state visited in these events, by name."""
    visits = Visits()
    for event in events:
        visits.take(event)
    return visits.statuses()
