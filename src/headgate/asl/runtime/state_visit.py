"""State visit: one entry into a state. It evaluates the state's fields to make its input and its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, QUERY_EVALUATION_ERROR, RUNTIME, StateError
from headgate.asl.expressions.references import WHOLE
from headgate.asl.expressions.scope import Evaluator, Json, Scope
from headgate.asl.model.definition import Catcher, Language, State, StateType
from headgate.asl.runtime.frame import Frame

_encoder: Final = msgspec.json.Encoder()


class Branch(Struct):
    """A running machine, branch or iteration: its context object, its variables and its last history event."""

    context: Mapping[str, Json]
    # Assigned by the enclosing machines before this one started.
    variables: Mapping[str, Json] = {}
    event_id: int = 0


class StateOutcome(Struct, frozen=True):
    """The output of a state, and the next state; None ends the machine."""

    output: Json
    next: str | None
    assigned: Mapping[str, Json] = {}


class StateVisit:
    """A state with its input and its current attempt."""

    __slots__ = (
        "branch", "context", "entered_at", "frame", "now_ms", "random", "retry_count", "state", "token", "variables"
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        frame: Frame,
        branch: Branch,
        entered_at: str,
        *,
        random: Random,
        now_ms: Callable[[], int],
    ) -> None:
        self.state = state
        self.frame = frame
        self.branch = branch
        self.entered_at = entered_at
        self.random = random
        self.now_ms = now_ms
        self.retry_count = 0
        self.token = ""
        self.variables = {**branch.variables, **frame.variables} if branch.variables else frame.variables
        self.context = self._context()

    def start_attempt(self) -> None:
        """Start another attempt."""
        self.retry_count += 1
        self.token = ""
        self.frame.clear_branches()
        self.context = self._context()

    def set_token(self, token: str) -> None:
        """Put a task token into the context object of this attempt."""
        self.token = token
        self.context = {**self.context, "Task": {"Token": token}}

    def scope(self, data: Json) -> Scope:
        """Return the scope in which the state's fields are evaluated, with `data` as `$`."""
        return Scope(data, self.context, self.variables, self.random, self.frame.input, now_ms=self.now_ms())

    def effective_input(self) -> Json:
        """Return the input after InputPath and Parameters, or Arguments."""
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
        """Return the input after InputPath: the other paths of a state are evaluated on it."""
        if self.state.input_path is None:
            return self.frame.input
        return self.state.input_path(self.scope(self.frame.input))

    def outcome(self, result: Json, next: str | None = None) -> StateOutcome:
        """Return the outcome of a state that has a result."""
        state = self.state
        scope = self.scope(result)
        if state.language is Language.JSONATA:
            scope = replace(scope, data=self.frame.input, result=result, has_result=True)
            output = state.output(scope) if state.output is not None else result
            return StateOutcome(output, next or state.next, _assigned(state.assign, scope))
        assigned = _assigned(state.assign, scope)
        if state.result_selector is not None:
            result = state.result_selector(scope)
        merged = (
            self.frame.input if state.discards_result else (state.result_path or WHOLE).write(self.frame.input, result)
        )
        if state.output_path is not None:
            merged = state.output_path(self.scope(merged))
        return StateOutcome(merged, next or state.next, assigned)

    def outcome_without_result(
        self, effective: Json, *, next: str | None, assign: Evaluator | None, output: Evaluator | None
    ) -> StateOutcome:
        """Return the outcome of a state that passes its input on."""
        scope = self.scope(effective)
        assigned = _assigned(assign, scope)
        if self.state.language is Language.JSONATA:
            return StateOutcome(output(scope) if output is not None else effective, next, assigned)
        return StateOutcome(
            self.state.output_path(scope) if self.state.output_path is not None else effective, next, assigned
        )

    def caught_outcome(self, error: StateError, catcher: Catcher) -> StateOutcome:
        """Return the outcome of a state whose error is caught."""
        error_output = error.output
        scope = replace(self.scope(error_output), error_output=error_output, has_error=True)
        assigned = _assigned(catcher.assign, scope)
        if self.state.language is Language.JSONATA:
            output = catcher.output(scope) if catcher.output is not None else error_output
        elif catcher.result_path is None:
            output = self.frame.input
        else:
            output = catcher.result_path.write(self.frame.input, error_output)
        return StateOutcome(output, catcher.next, assigned)

    def field_error(self, field: str, cause: str) -> StateError:
        """Return the error for a field whose value is invalid."""
        if self.state.language is Language.JSONATA:
            return StateError(QUERY_EVALUATION_ERROR, cause, field)
        return StateError(RUNTIME, cause)

    def check_size(self, value: Json, what: str, bytes_max: int) -> None:
        """Raise `StateError` if a document exceeds the size limit of Step Functions."""
        check_size(value, f"The state/task '{self.state.name}' returned {what}", bytes_max)

    def _context(self) -> Mapping[str, Json]:
        state: dict[str, Json] = {"EnteredTime": self.entered_at, "Name": self.state.name}
        if self.state.kind in _RETRIED:
            state["RetryCount"] = self.retry_count
        return {**self.branch.context, "State": state}


_RETRIED: Final = frozenset({StateType.TASK, StateType.PARALLEL, StateType.MAP})


def check_size(value: Json, what: str, bytes_max: int) -> None:
    """Raise `StateError` for a document whose JSON is larger than `bytes_max`."""
    if len(_encoder.encode(value)) > bytes_max:
        raise StateError(
            DATA_LIMIT_EXCEEDED, f"{what} with a size exceeding the maximum number of bytes service limit."
        )


def _assigned(assign: Evaluator | None, scope: Scope) -> Mapping[str, Json]:
    return assign(scope) if assign is not None else {}
