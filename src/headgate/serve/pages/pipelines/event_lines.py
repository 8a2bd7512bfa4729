"""Event lines: the events of a pipeline or run, with the checks of a run as one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.pipelines.events.names import EventName

# Events read for the lines of a page: a run that waits long is checked often.
EVENTS_MAX: Final = 200
_REPEATED: Final = frozenset({EventName.READINESS_CHECKED})


class EventLine(Struct, frozen=True):
    """The latest of `count` events of one kind, and the time of the first; None if there may be earlier ones."""

    event: Any
    count: int
    first_at: str | None


def event_lines(events: Iterable[Mapping[str, Any]], *, has_more: bool = False) -> list[EventLine]:
    """Return the lines of events, latest first. Checks of the same run are one line, where the latest of them is.

    `has_more`: there are events before these.
    """
    lines: list[list[Mapping[str, Any]]] = []
    checks: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for event in events:
        key = (event["name"], event["run_id"], event["date"])
        if event["name"] in _REPEATED and key in checks:
            checks[key].append(event)
            continue
        line = [event]
        lines.append(line)
        checks.setdefault(key, line)
    return [EventLine(line[0], len(line), None if has_more else line[-1]["timestamp"]) for line in lines]
