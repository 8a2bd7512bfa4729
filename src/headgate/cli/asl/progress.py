"""Progress of a state machine execution: formats a line for each state that is entered, exited or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from headgate.asl.graph.labels import MARKS, StateMark
from headgate.clock import Clock
from headgate.serve.rest.asl.events import details_of, error_text
from headgate.serve.rest.asl.state_visits import Visit, Visits

Event = Mapping[str, Any]
# Returns the processed and total items of a map run; None while they are unknown.
Counts = Callable[[str], tuple[int, int] | None]

# Iterations of a Map with more items are counted instead of printed.
ITEMS_SHOWN_MAX: Final = 10
# Interval of the item counts.
COUNT_SECONDS: Final = 1.0
_FAILURES: Final = ("Failed", "TimedOut")


class Progress:
    """Formats events as lines. `counts` returns the progress of a distributed Map."""

    def __init__(self, clock: Clock, counts: Counts = lambda _: None) -> None:
        self._visits = Visits()
        self._clock = clock
        self._count = counts
        self._counted_at = -COUNT_SECONDS
        self._elapsed = 0.0
        self._started_at: datetime | None = None
        # Counted Maps, each with the last printed number of processed items.
        self._counted: dict[int, tuple[Visit, int]] = {}

    def lines(self, events: Sequence[Event]) -> Iterator[str]:
        """Yield the lines for the next events."""
        for event in events:
            moment = datetime.fromisoformat(event["timestamp"])
            self._started_at = self._started_at or moment
            self._elapsed = (moment - self._started_at).total_seconds()
            visit = self._visits.take(event)
            text = self._event_text(event, visit, moment)
            if text is not None:
                yield self._line(visit, text)
        yield from self._counts()

    def _event_text(self, event: Event, visit: Visit | None, moment: datetime) -> str | None:
        type, details = event["type"], details_of(event)
        if type == "ExecutionRedriven":
            return f"redriven, {details.get('redriveCount', 1)}"
        if visit is None or type.startswith("Execution"):
            return None
        if type.endswith(_FAILURES) and "error" in details:
            return f"{MARKS[StateMark.FAILED]} {visit.name}  {error_text(details['error'], details.get('cause', ''))}"
        if type == "MapStateStarted" and visit.items > ITEMS_SHOWN_MAX and not self._is_hidden(visit):
            self._counted[id(visit)] = (visit, 0)
        if self._is_hidden(visit):
            return None
        return self._state_text(event, visit, (moment - visit.entered_at).total_seconds())

    def _state_text(self, event: Event, visit: Visit, seconds: float) -> str | None:
        type = event["type"]
        if type.endswith("StateEntered"):
            return f"{MARKS[StateMark.CURRENT]} {visit.name}"
        if type == "MapStateStarted" and visit.items:
            return f"  {visit.name}: {visit.items} items"
        if type == "MapRunStarted":
            return f"  {visit.name}: map run {visit.map_run}"
        if type.endswith("StateExited"):
            self._counted.pop(id(visit), None)
            mark = MARKS[StateMark.CAUGHT if visit.status is StateMark.CAUGHT else StateMark.VISITED]
            return f"{mark} {visit.name}  {seconds:.2f}s"
        if type.endswith("StateAborted"):
            return f"{MARKS[StateMark.FAILED]} {visit.name}  aborted"
        return None

    def _is_hidden(self, visit: Visit) -> bool:
        parent = visit.parent
        return parent is not None and (id(parent) in self._counted or self._is_hidden(parent))

    def _counts(self) -> Iterator[str]:
        now = self._clock.monotonic()
        if now - self._counted_at < COUNT_SECONDS:
            return
        self._counted_at = now
        if self._started_at is not None:
            # By the clock, because completed items cause no events.
            self._elapsed = max(self._elapsed, (self._clock.now() - self._started_at).total_seconds())
        for visit in self._visits.map_runs():
            found = self._count(visit.map_run)
            if found is not None:
                visit.done, visit.items = found
            self._counted.setdefault(id(visit), (visit, 0))
        for key, (visit, printed) in self._counted.items():
            if visit.done != printed:
                self._counted[key] = (visit, visit.done)
                yield self._line(visit, f"  {visit.name}: {visit.done} of {visit.items} items processed")

    def _line(self, visit: Visit | None, text: str) -> str:
        index = "" if visit is None or visit.index is None else f"[{visit.index}] "
        depth = 0 if visit is None else visit.depth
        return f"{self._elapsed:8.2f}s  {'  ' * depth}{index}{text}"
