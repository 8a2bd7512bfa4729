"""Visits: one entry into one state. What its fields may look at, and how input and output are made by them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, QUERY_EVALUATION_ERROR, RUNTIME, StateError
from headgate.asl.expressions.references import WHOLE
from headgate.asl.expressions.scope import Evaluator, Json, Scope
from headgate.asl.model.definition import Catcher, Kind, Language, State
from headgate.asl.runtime.resume_point import Frame

_encoder: Final = msgspec.json.Encoder()


class Lane(Struct):
    """A machine, branch or iteration on its way: what it may look at, and the last event that it caused."""

    context: Mapping[str, Json]
    # What the machines around it have assigned before it began.
    variables: Mapping[str, Json] = {}
    event_id: int = 0


class Done(Struct, frozen=True):
    """How a state ended: what goes on to which state. `next` is None where the machine ends."""

    output: Json
    next: str | None
    assigned: Mapping[str, Json] = {}


class Visit:
    """A state, the data it was given, and the attempt it is at."""

    __slots__ = (
        "context", "draw", "entered_at", "frame", "lane", "now_ms", "retry_count", "state", "token", "variables"
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        frame: Frame,
        lane: Lane,
        entered_at: str,
        *,
        draw: random.Random,
        now_ms: Callable[[], int],
    ) -> None:
        self.state = state
        self.frame = frame
        self.lane = lane
        self.entered_at = entered_at
        self.draw = draw
        self.now_ms = now_ms
        self.retry_count = 0
        self.token = ""
        self.variables = {**lane.variables, **frame.variables} if lane.variables else frame.variables
        self.context = self._context()

    def again(self) -> None:
        """Begin another attempt."""
        self.retry_count += 1
        self.token = ""
        self.frame.forget_branches()
        self.context = self._context()

    def take_token(self, token: str) -> None:
        """Let the fields of this attempt see a task token."""
        self.token = token
        self.context = {**self.context, "Task": {"Token": token}}

    def scope(self, data: Json) -> Scope:
        """Return what the fields of the state may look at, `$` being `data`."""
        return Scope(data, self.context, self.variables, self.draw, self.frame.input, now_ms=self.now_ms())

    def effective_input(self) -> Json:
        """Return the input as the state's own fields make it."""
        state = self.state
        if state.language is Language.JSONATA:
            return state.arguments(self.scope(self.frame.input)) if state.arguments is not None else self.frame.input
        data = self.frame.input
        if state.input_path is not None:
            data = state.input_path(self.scope(data))
        if state.parameters is not None:
            data = state.parameters(self.scope(data))
        return data

    def selected_input(self) -> Json:
        """Return the input as InputPath selects it, which is what the other paths of a state look at."""
        if self.state.input_path is None:
            return self.frame.input
        return self.state.input_path(self.scope(self.frame.input))

    def done(self, result: Json, next: str | None = None) -> Done:
        """Return how a state ended that has this result."""
        state = self.state
        scope = self.scope(result)
        if state.language is Language.JSONATA:
            scope = replace(scope, data=self.frame.input, result=result, has_result=True)
            output = state.output(scope) if state.output is not None else result
            return Done(output, next or state.next, _assigned(state.assign, scope))
        assigned = _assigned(state.assign, scope)
        if state.result_selector is not None:
            result = state.result_selector(scope)
        merged = (
            self.frame.input if state.discards_result else (state.result_path or WHOLE).write(self.frame.input, result)
        )
        if state.output_path is not None:
            merged = state.output_path(self.scope(merged))
        return Done(merged, next or state.next, assigned)

    def passed(self, effective: Json, *, next: str | None, assign: Evaluator | None, output: Evaluator | None) -> Done:
        """Return how a state ended that has no result: its input goes on."""
        scope = self.scope(effective)
        assigned = _assigned(assign, scope)
        if self.state.language is Language.JSONATA:
            return Done(output(scope) if output is not None else effective, next, assigned)
        return Done(self.state.output_path(scope) if self.state.output_path is not None else effective, next, assigned)

    def caught(self, error: StateError, catcher: Catcher) -> Done:
        """Return how a state ended whose error is caught."""
        given = error.output
        scope = replace(self.scope(given), error_output=given, has_error=True)
        assigned = _assigned(catcher.assign, scope)
        if self.state.language is Language.JSONATA:
            output = catcher.output(scope) if catcher.output is not None else given
        elif catcher.result_path is None:
            output = self.frame.input
        else:
            output = catcher.result_path.write(self.frame.input, given)
        return Done(output, catcher.next, assigned)

    def wrong(self, field: str, cause: str) -> StateError:
        """Return the error of a field that came to something it cannot be."""
        if self.state.language is Language.JSONATA:
            return StateError(QUERY_EVALUATION_ERROR, cause, field)
        return StateError(RUNTIME, cause)

    def check_size(self, value: Json, what: str, bytes_max: int) -> None:
        """Raise `StateError` if a document is larger than Step Functions lets pass."""
        check_size(value, f"The state/task '{self.state.name}' returned {what}", bytes_max)

    def _context(self) -> Mapping[str, Json]:
        state: dict[str, Json] = {"EnteredTime": self.entered_at, "Name": self.state.name}
        if self.state.kind in _RETRIED:
            state["RetryCount"] = self.retry_count
        return {**self.lane.context, "State": state}


_RETRIED: Final = frozenset({Kind.TASK, Kind.PARALLEL, Kind.MAP})


def check_size(value: Json, what: str, bytes_max: int) -> None:
    """Raise `StateError` for a document whose JSON is larger than `bytes_max`."""
    if len(_encoder.encode(value)) > bytes_max:
        raise StateError(
            DATA_LIMIT_EXCEEDED, f"{what} with a size exceeding the maximum number of bytes service limit."
        )


def _assigned(assign: Evaluator | None, scope: Scope) -> Mapping[str, Json]:
    return assign(scope) if assign is not None else {}
