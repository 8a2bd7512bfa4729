"""Visits: which entry into which state the events of an execution belong to, and how each of them ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from headgate.asl.graph.render import Status
from headgate.serve.rest.asl.events import details_of

Event = Mapping[str, Any]

_FAILURES: Final = ("Failed", "TimedOut")
# After these the first state of a branch or of an iteration is entered.
_OPENS: Final = ("ParallelStateStarted", "MapIterationStarted")
_ENDS: Final = ("ExecutionFailed", "ExecutionTimedOut", "ExecutionAborted")
# If a state was visited several times, the first of these that is true of a visit is said of it.
_ORDER: Final = (Status.CURRENT, Status.FAILED, Status.CAUGHT, Status.VISITED)


class Visit(Struct, eq=False):
    """One entry into one state. `parent` is the visit of the Parallel or the Map around it."""

    name: str
    kind: str
    entered_at: datetime
    parent: Visit | None = None
    # Of the iteration of a Map that it is in.
    index: int | None = None
    status: Status = Status.CURRENT
    # Of a Map: how many items it has, and how many of them are done.
    items: int = 0
    done: int = 0
    # Of a distributed Map: the fan-out that counts them.
    map_run: str = ""

    @property
    def depth(self) -> int:
        """How many states it is inside of."""
        return 0 if self.parent is None else self.parent.depth + 1

    def is_inside(self, other: Visit) -> bool:
        """Whether it belongs to a branch or an iteration of the other, at any depth."""
        return self.parent is not None and (self.parent is other or self.parent.is_inside(other))


class Visits:
    """Follows the events of an execution, in their order."""

    def __init__(self) -> None:
        self._visits: dict[int, Visit | None] = {}
        self._types: dict[int, str] = {}
        self._indexes: dict[int, int] = {}
        self._open: dict[int, Visit] = {}
        self._statuses: dict[str, set[Status]] = {}

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
            visit = None  # It goes on outside of all branches, wherever it was when it ended.
        self._visits[number] = visit
        self._types[number] = type
        if visit is not None:
            self._learn(visit, type, previous, details)
        if type in _ENDS:
            self._close(list(self._open.values()), Status.FAILED)
        elif type == "ExecutionRedriven":
            # What failed is tried again, and what becomes of it then is what counts.
            for told in self._statuses.values():
                told.discard(Status.FAILED)
        return visit

    def map_runs(self) -> list[Visit]:
        """Return the distributed Maps that the execution is in."""
        return [visit for visit in self._open.values() if visit.map_run]

    def statuses(self) -> dict[str, Status]:
        """Return how far the execution has come, by the name of each state that it was in."""
        told = {name: set(found) for name, found in self._statuses.items()}
        for visit in self._open.values():
            told.setdefault(visit.name, set()).add(Status.CURRENT)
        return {name: next(each for each in _ORDER if each in found) for name, found in told.items() if found}

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
        """Return the visit of the Map whose iteration begins or ends."""
        if type == "MapIterationStarted":
            self._indexes[number] = details["index"]
        # An iteration ends after the last state that it was in, if it came to any.
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
            # What is still open inside of it is what made it fail.
            self._close([each for each in self._open.values() if each.is_inside(visit)], Status.FAILED)
            self._close([visit], Status.CAUGHT if is_caught else Status.VISITED)
        elif type.endswith("StateAborted"):
            self._close([visit], Status.VISITED)

    def _close(self, visits: Iterable[Visit], status: Status) -> None:
        for visit in visits:
            visit.status = status
            self._open.pop(id(visit), None)
            self._statuses.setdefault(visit.name, set()).add(status)


def statuses(events: Iterable[Event]) -> dict[str, Status]:
    """Return how far an execution with these events has come, by the name of each state that it was in."""
    visits = Visits()
    for event in events:
        visits.take(event)
    return visits.statuses()
