"""Execution timeline: the history of an execution as rows of spans and marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

ROWS_MAX: Final = 300


class Span(Struct, frozen=True):
    """A time that something took. `to` is None while it goes on."""

    from_: int
    to: int | None
    tone: str
    text: str


class Mark(Struct, frozen=True):
    """A moment."""

    at: int
    tone: str
    text: str


class Row(Struct):
    """One line of the timeline."""

    label: str
    href: str
    spans: list[Span]
    marks: list[Mark]


class Timeline(Struct, frozen=True):
    """Rows on one time axis. `now` is None for a closed execution. `left_out` counts rows beyond the limit."""

    from_: int
    to: int
    now: int | None
    rows: list[Row]
    left_out: int

    def json(self) -> dict[str, Any]:
        """Return the form that the page's script draws."""
        return {
            "from": self.from_,
            "to": self.to,
            "now": self.now,
            "rows": [
                {
                    "label": row.label,
                    "href": row.href or None,
                    "spans": [
                        {"from": each.from_, "to": each.to, "tone": each.tone, "text": each.text} for each in row.spans
                    ],
                    "marks": [{"at": each.at, "tone": each.tone, "text": each.text} for each in row.marks],
                }
                for row in self.rows
            ],
        }


def timeline(turns: Sequence[Mapping[str, Any]], now_ms: int, *, is_closed: bool) -> Timeline:
    """Return the rows of a history: activities, timers and children as spans, messages and the end as marks."""
    rows: list[Row] = []
    open_rows: dict[tuple[int, int], Row] = {}
    messages = Row("messages", "", [], [])
    for turn in turns:
        at, run = turn["at_ms"], turn["run"]
        for event in turn["events"]:
            _end(open_rows.get((run, event.get("seq", -1))), event, at)
            mark = _message(event, at)
            if mark is not None:
                messages.marks.append(mark)
        for command in turn["commands"]:
            row = _begin(command, at)
            if row is not None:
                rows.append(row)
                open_rows[run, command["seq"]] = row
            elif command["kind"] in ("cancel_timer", "cancel_activity") and command.get("cancellation") is None:
                _cancel(open_rows.get((command.get("run") or run, command["seq"])), at)
            elif command["kind"] == "close":
                tone = "good" if command["status"] == "SUCCEEDED" else "bad"
                messages.marks.append(Mark(at, tone, command["status"].lower()))
    shown = ([messages] if messages.marks else []) + rows[:ROWS_MAX]
    started = turns[0]["at_ms"] if turns else now_ms
    ended = turns[-1]["at_ms"] if turns else now_ms
    return Timeline(
        started, max(ended, started + 1), None if is_closed else now_ms, shown, max(0, len(rows) - ROWS_MAX)
    )


def _begin(command: Mapping[str, Any], at: int) -> Row | None:
    match command["kind"]:
        case "start_activity":
            return Row(command["name"], "", [Span(at, None, "busy", command["name"])], [])
        case "start_timer":
            return Row("timer", "", [Span(at, None, "plain", "waits")], [])
        case "start_child":
            child = command["child_id"]
            return Row(f"child {command['workflow']}", child, [Span(at, None, "odd", child)], [])
        case _:
            return None


def _end(row: Row | None, event: Mapping[str, Any], at: int) -> None:
    if row is None or not row.spans:
        return
    span = row.spans[0]
    match event["kind"]:
        case "activity_ended":
            is_failed = event.get("error") is not None or event.get("timeout")
            started = event.get("started_at_ms") or span.from_
            ended = event.get("ended_at_ms") or at
            attempts = event.get("attempts", 1)
            text = span.text if attempts == 1 else f"{span.text}, attempt {attempts}"
            ran = Span(started, ended, "bad" if is_failed else "good", text)
            # Before it ran it waited, for a worker or for the next attempt.
            row.spans[:] = [Span(span.from_, started, "plain", "waited"), ran] if started > span.from_ else [ran]
        case "timer_fired":
            row.spans[:] = [Span(span.from_, at, "plain", "waited")]
        case "child_ended":
            row.spans[:] = [Span(span.from_, at, "good" if event["status"] == "SUCCEEDED" else "bad", span.text)]


def _cancel(row: Row | None, at: int) -> None:
    if row is not None and row.spans and row.spans[-1].to is None:
        row.spans[-1] = Span(row.spans[-1].from_, at, "warn", "cancelled")


def _message(event: Mapping[str, Any], at: int) -> Mark | None:
    match event["kind"]:
        case "started":
            return Mark(at, "busy", "started" if event.get("run", 1) == 1 else f"continued as run {event['run']}")
        case "reset":
            return Mark(at, "warn", f"reset to turn {event['to']}")
        case "signal":
            return Mark(at, "odd", f"signal {event['name']}")
        case "update_requested":
            return Mark(at, "odd", f"update {event['name']}")
        case "cancel_requested":
            return Mark(at, "warn", f"cancellation requested: {event.get('reason', '')}".rstrip(": "))
        case "terminate_requested":
            return Mark(at, "bad", f"terminated: {event.get('reason', '')}".rstrip(": "))
        case _:
            return None
