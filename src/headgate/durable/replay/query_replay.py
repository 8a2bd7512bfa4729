"""Query replay: answers a query by replaying the history of an execution up to its last turn."""

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
    """Return the answer of a new interpreter after these turns, and evict it.

    Raises `QueryTimeoutError` if the replay and the handler take too long, and what the handler raises.
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
