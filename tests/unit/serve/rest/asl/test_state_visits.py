"""How far an execution has come, derived from its events: which state each belongs to, and how the visits ended."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.asl.graph.render import StateMark
from headgate.asl.runtime.history import HistoryEvent
from headgate.serve.rest.asl.events import error_text, event_view
from headgate.serve.rest.asl.state_visits import Visits, statuses

Row = tuple[int, str, dict[str, Any]]


def events(*rows: Row) -> list[dict[str, Any]]:
    """Events from the numbers of those before them, their types and details; a second apart."""
    made = [
        HistoryEvent(number, before, type, number * 1000, details)
        for number, (before, type, details) in enumerate(rows, 1)
    ]
    return [event_view(each) for each in made]


FAILED = {"error": "E", "cause": "c"}
START: Row = (0, "ExecutionStarted", {"input": {}})
TASK: tuple[Row, ...] = (
    START,
    (1, "TaskStateEntered", {"name": "A", "input": {}}),
    (2, "LambdaFunctionFailed", FAILED),
)
PARALLEL: tuple[Row, ...] = (
    START,
    (1, "ParallelStateEntered", {"name": "P", "input": {}}),
    (2, "ParallelStateStarted", {}),
    (3, "TaskStateEntered", {"name": "L", "input": {}}),
    (3, "WaitStateEntered", {"name": "R", "input": {}}),
    (4, "LambdaFunctionFailed", FAILED),
    (5, "WaitStateAborted", {}),
    (3, "ParallelStateFailed", FAILED),
)
MAP: tuple[Row, ...] = (
    START,
    (1, "MapStateEntered", {"name": "M", "input": []}),
    (2, "MapStateStarted", {"length": 2}),
    (3, "MapIterationStarted", {"name": "M", "index": 0}),
    (4, "PassStateEntered", {"name": "I", "input": 0}),
    (3, "MapIterationStarted", {"name": "M", "index": 1}),
    (6, "PassStateEntered", {"name": "I", "input": 1}),
    (5, "PassStateExited", {"name": "I", "output": 0}),
    (8, "MapIterationSucceeded", {"name": "M", "index": 0}),
)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((START,), {}),
        (TASK[:2], {"A": StateMark.CURRENT}),
        ((*TASK, (3, "ExecutionFailed", FAILED)), {"A": StateMark.FAILED}),
        ((*TASK, (3, "TaskStateExited", {"name": "A", "output": {}})), {"A": StateMark.CAUGHT}),
        (
            (*TASK, (3, "LambdaFunctionSucceeded", {"output": 1}), (4, "TaskStateExited", {"name": "A", "output": 1})),
            {"A": StateMark.VISITED},
        ),
        # It was redriven, and is at work again; then it succeeds.
        (
            (
                *TASK,
                (3, "ExecutionFailed", FAILED),
                (4, "ExecutionRedriven", {"redriveCount": 1}),
                (5, "TaskStateEntered", {"name": "A", "input": {}}),
            ),
            {"A": StateMark.CURRENT},
        ),
        (
            (
                *TASK,
                (3, "ExecutionFailed", FAILED),
                (4, "ExecutionRedriven", {"redriveCount": 1}),
                (5, "TaskStateEntered", {"name": "A", "input": {}}),
                (6, "TaskStateExited", {"name": "A", "output": {}}),
            ),
            {"A": StateMark.VISITED},
        ),
        (
            (*PARALLEL, (8, "ExecutionFailed", FAILED)),
            {"P": StateMark.FAILED, "L": StateMark.FAILED, "R": StateMark.VISITED},
        ),
        (
            (*PARALLEL, (8, "ParallelStateExited", {"name": "P", "output": {}})),
            {"P": StateMark.CAUGHT, "L": StateMark.FAILED, "R": StateMark.VISITED},
        ),
        (MAP, {"M": StateMark.CURRENT, "I": StateMark.CURRENT}),
        (
            (
                *MAP,
                (7, "PassStateExited", {"name": "I", "output": 1}),
                (10, "MapIterationSucceeded", {"name": "M", "index": 1}),
                (11, "MapStateSucceeded", {}),
                (12, "MapStateExited", {"name": "M", "output": [0, 1]}),
            ),
            {"M": StateMark.VISITED, "I": StateMark.VISITED},
        ),
    ],
)
def test_statuses__events_so_far__says_how_each_state_stands(
    rows: tuple[Row, ...], expected: dict[str, StateMark]
) -> None:
    assert statuses(events(*rows)) == expected


def test_visits__in_a_map__know_their_iteration_and_are_counted() -> None:
    visits = Visits()

    taken = [visits.take(each) for each in events(*MAP)]

    assert [(each.name, each.index, each.depth) for each in taken if each is not None] == [
        ("M", None, 0),
        ("M", None, 0),
        ("M", None, 0),
        ("I", 0, 1),
        ("M", None, 0),
        ("I", 1, 1),
        ("I", 0, 1),
        ("M", None, 0),
    ]
    assert taken[1] is not None
    assert (taken[1].items, taken[1].done) == (2, 1)


def test_visits__redriven_after_an_end_inside_of_a_branch__goes_on_outside() -> None:
    visits = Visits()
    rows = (
        *MAP,
        (7, "PassStateAborted", {}),
        (10, "ExecutionAborted", {"cause": "enough"}),
        (11, "ExecutionRedriven", {"redriveCount": 1}),
        (12, "MapStateEntered", {"name": "M", "input": []}),
    )

    last = [visits.take(each) for each in events(*rows)][-1]

    assert last is not None
    assert (last.name, last.depth, last.index) == ("M", 0, None)


@pytest.mark.parametrize(
    ("type", "key"),
    [
        ("ChoiceStateEntered", "stateEnteredEventDetails"),
        ("MapStateExited", "stateExitedEventDetails"),
        ("TaskSubmitted", "taskSubmittedEventDetails"),
        ("ActivityTimedOut", "activityTimedOutEventDetails"),
        ("MapRunStarted", "mapRunStartedEventDetails"),
        ("ParallelStateFailed", None),
        ("LambdaFunctionStarted", None),
        ("WaitStateAborted", None),
    ],
)
def test_event__details__are_where_step_functions_has_them(type: str, key: str | None) -> None:
    shown = event_view(HistoryEvent(2, 1, type, 0, {"name": "A", "timeoutInSeconds": 5.0}))

    assert shown == {
        "id": 2,
        "previousEventId": 1,
        "timestamp": "1970-01-01T00:00:00.000Z",
        "type": type,
        **({} if key is None else {key: {"name": "A", "timeoutInSeconds": 5}}),
    }


@pytest.mark.parametrize(
    ("error", "cause", "expected"),
    [
        ("E", "", "E"),
        ("", "why", "why"),
        ("E", "one\n two", "E: one two"),
        ("E", '{"errorMessage": "why", "errorType": "E"}', "E: why"),
        ("E", '{"other": 1}', 'E: {"other": 1}'),
        ("E", "[" * 100_000, "E: " + "[" * 199 + "…"),
    ],
)
def test_said__error_and_cause__is_one_short_line(error: str, cause: str, expected: str) -> None:
    assert error_text(error, cause) == expected
