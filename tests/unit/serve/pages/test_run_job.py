"""Job of a run: which report of a failure the page shows."""

from __future__ import annotations

from typing import Any, Final

from headgate.serve.pages.pipelines.event_lines import event_lines
from headgate.serve.pages.pipelines.run_job import Failure, failure_of

RUN: Final[dict[str, Any]] = {"category": "PERMANENT", "reason": "workflow load failed"}
ENTRIES: Final = [{"event": "fail", "error": "ValueError: no rows"}, {"event": "fail", "error": "an earlier one"}]


def _event(name: str, run_id: str, second: int) -> dict[str, Any]:
    return {"name": name, "run_id": run_id, "date": "2026-01-16", "timestamp": f"2026-01-16T00:00:{second:02}.000Z"}


def test_failure__of_a_workflow__is_what_it_raised_with_its_traceback() -> None:
    raised = {"type": "KeyError", "message": "'amount'", "trace": "File jobs.py, line 3"}

    found = failure_of(RUN, {"failure": None, "error": raised}, ENTRIES)

    assert found == Failure("KeyError", "'amount'", "File jobs.py, line 3")


def test_failure__of_an_outside_job__is_its_latest_error_or_else_the_reason_of_the_run() -> None:
    assert failure_of(RUN, None, ENTRIES) == Failure("PERMANENT", "ValueError: no rows", "")
    assert failure_of(RUN, None, []) == Failure("PERMANENT", "workflow load failed", "")


def test_lines__checks_of_two_runs__are_one_line_for_each() -> None:
    events = [
        _event("READINESS_CHECKED", "b", 9),
        _event("RUN_STATE_CHANGED", "b", 8),
        _event("RUN_STATE_CHANGED", "b", 7),
        _event("READINESS_CHECKED", "b", 6),
        _event("READINESS_CHECKED", "a", 5),
        _event("READINESS_CHECKED", "b", 4),
    ]

    lines = event_lines(events)

    assert [(each.event["name"], each.event["run_id"], each.count) for each in lines] == [
        ("READINESS_CHECKED", "b", 3),
        ("RUN_STATE_CHANGED", "b", 1),
        ("RUN_STATE_CHANGED", "b", 1),
        ("READINESS_CHECKED", "a", 1),
    ]
    assert lines[0].first_at == events[-1]["timestamp"]
    assert event_lines(events, has_more=True)[0].first_at is None
