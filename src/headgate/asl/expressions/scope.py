"""The scope: what an expression of a state may look at, in either query language."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

# A JSON value as Python has it. The documents are the users' own: nothing more can be said of their shape.
Json: TypeAlias = Any


class Scope(Struct):
    """What `$`, `$$`, `$name` and `$states` stand for while one field of a state is evaluated."""

    # What `$` is in JSONPath: the raw input, the effective input or the result, whichever the field works on.
    data: Json
    # What `$$` and `$states.context` are.
    context: Mapping[str, Json]
    variables: Mapping[str, Json]
    # Drawn alike on replay. For States.UUID, States.MathRandom, $random and $uuid.
    draw: random.Random
    # `$states.input`, `$states.result` and `$states.errorOutput`; only JSONata sees them.
    input: Json = None
    result: Json = None
    error_output: Json = None
    # The time of the turn, which is the same on replay. 0: not known, the time at which the state was entered counts.
    now_ms: int = 0
    has_result: bool = False
    has_error: bool = False


# A field of a state, compiled. Raises `StateError` (States.Runtime and its like) when it cannot be evaluated.
Evaluator: TypeAlias = Callable[[Scope], Json]


class Member(dict[str, Json]):
    """An item of a Map that is a member of an object: its name is its Key."""


def constant(value: Json) -> Evaluator:
    """Return an evaluator that always gives `value`."""
    return lambda _: value
