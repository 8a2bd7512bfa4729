"""Execution timeline: spans of activities, timers and children, marks of messages."""

from __future__ import annotations

from typing import Any

from headgate.serve.pages.work.execution_timeline import Mark, Span, timeline


def turn(
    at: int, *, events: list[Any] | None = None, commands: list[Any] | None = None, run: int = 1
) -> dict[str, Any]:
    return {"at_ms": at, "run": run, "events": events or [], "commands": commands or []}


STARTED = {"kind": "started", "workflow": "w", "input": None}
CHARGE = {"kind": "start_activity", "seq": 1, "name": "charge"}


def test_activity__ended__has_the_time_it_waited_and_the_time_it_ran() -> None:
    ended = {"kind": "activity_ended", "seq": 1, "started_at_ms": 130, "ended_at_ms": 200}
    drawn = timeline([turn(100, events=[STARTED], commands=[CHARGE]), turn(210, events=[ended])], 500, is_closed=False)

    (row,) = [each for each in drawn.rows if each.label == "charge"]
    assert row.spans == [Span(100, 130, "plain", "waited"), Span(130, 200, "good", "charge")]


def test_activity__failed_at_the_third_attempt__is_bad_and_says_so() -> None:
    ended = {"kind": "activity_ended", "seq": 1, "attempts": 3, "error": {"type": "E"}, "ended_at_ms": 300}
    drawn = timeline([turn(100, commands=[CHARGE]), turn(310, events=[ended])], 500, is_closed=False)

    assert drawn.rows[0].spans == [Span(100, 300, "bad", "charge, attempt 3")]


def test_activity__not_ended__is_open() -> None:
    drawn = timeline([turn(100, commands=[CHARGE])], 500, is_closed=False)

    assert drawn.rows[0].spans == [Span(100, None, "busy", "charge")]
    assert drawn.now == 500


def test_timer__cancelled__ends_then() -> None:
    timer = {"kind": "start_timer", "seq": 2, "due_at_ms": 900}
    drawn = timeline(
        [turn(100, commands=[timer]), turn(150, commands=[{"kind": "cancel_timer", "seq": 2}])], 500, is_closed=True
    )

    assert drawn.rows[0].spans == [Span(100, 150, "warn", "cancelled")]
    assert drawn.now is None


def test_sequence_numbers__used_again_in_a_later_run__are_other_rows() -> None:
    ended = {"kind": "activity_ended", "seq": 1, "ended_at_ms": 300}
    drawn = timeline(
        [turn(100, commands=[CHARGE]), turn(200, commands=[CHARGE], run=2), turn(310, events=[ended], run=2)],
        500,
        is_closed=False,
    )

    assert [row.spans[-1].to for row in drawn.rows] == [None, 300]


def test_messages__signals_and_the_end__are_marks_of_one_row() -> None:
    signal = {"kind": "signal", "name": "approved"}
    closed = {"kind": "close", "status": "SUCCEEDED"}
    drawn = timeline([turn(100, events=[STARTED]), turn(200, events=[signal], commands=[closed])], 500, is_closed=True)

    assert drawn.rows[0].marks == [
        Mark(100, "busy", "started"),
        Mark(200, "odd", "signal approved"),
        Mark(200, "good", "succeeded"),
    ]
