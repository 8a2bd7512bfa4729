"""Queries: what the code of an execution answers as of its last turn, found by replaying its history, in time."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Final

from msgspec import Raw

from headgate.durable.model.history import TerminateRequested, Turn
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.replay.turn_timeout import all_turns
from headgate.errors import QueryTimeoutError, WorkflowViolationError

QUERY_SECONDS: Final = 10.0


def answer(interpreter: Interpreter, turns: Iterable[Turn], name: str, input: Raw, timeout_seconds: float) -> Raw:
    """Return what a new interpreter answers after these turns, and let go of it.

    Raises `QueryTimeoutError` if reading, replaying and asking take longer than they may, and whatever these raise.
    """
    ends_at = monotonic() + timeout_seconds
    try:
        with all_turns(timeout_seconds):
            for turn in turns:
                if monotonic() >= ends_at:
                    raise _late(interpreter, name, timeout_seconds, f"its history was replayed up to turn {turn.turn}")
                if not any(isinstance(event, TerminateRequested) for event in turn.events):
                    interpreter.replay(turn)
            return interpreter.query(name, input)
    except WorkflowViolationError as exc:
        if monotonic() < ends_at:
            raise
        raise _late(interpreter, name, timeout_seconds, str(exc)) from exc
    finally:
        if interpreter.closed is None:
            interpreter.evict()


def _late(interpreter: Interpreter, name: str, timeout_seconds: float, fact: str) -> QueryTimeoutError:
    return QueryTimeoutError(
        f"execution {interpreter.execution_id}: query {name} has no answer after {timeout_seconds:g} s: {fact}; "
        "answer from what the workflow keeps, and let a long one continue as new"
    )
