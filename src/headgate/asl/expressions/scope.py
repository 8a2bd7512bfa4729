"""Scope: the values that an expression of a state can read, in either query language."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias

from msgspec import Struct

# A JSON value. Documents belong to users, so their shape is unknown.
Json: TypeAlias = Any


class Scope(Struct):
    """The values of `$`, `$$`, `$name` and `$states` for one evaluation of a field."""

    # `$` in JSONPath: the raw input, the effective input or the result, depending on the field.
    data: Json
    # `$$` and `$states.context`.
    context: Mapping[str, Json]
    variables: Mapping[str, Json]
    # Seeded, so that a replay draws the same numbers. For States.UUID, States.MathRandom, $random and $uuid.
    random: Random
    # `$states.input`, `$states.result` and `$states.errorOutput`; JSONata only.
    input: Json = None
    result: Json = None
    error_output: Json = None
    # The time of the turn, which a replay repeats. 0: unknown; the state's EnteredTime is used instead.
    now_ms: int = 0
    has_result: bool = False
    has_error: bool = False


# A compiled field of a state. Raises `StateError` if the evaluation fails.
Evaluator: TypeAlias = Callable[[Scope], Json]


class Member(dict[str, Json]):
    """A Map item that is a member of an object, with its Key and Value."""


def constant(value: Json) -> Evaluator:
    """Return an evaluator that always returns `value`."""
    return lambda _: value
