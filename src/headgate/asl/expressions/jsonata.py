"""JSONata: compiles the expressions between {% and %}, and evaluates them with limits on steps, depth and size."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

import msgspec
from jsonata import JException, Jsonata, Parser, Utils  # type: ignore[import-untyped]  # it has no stubs
from jsonata.regex_engine import CompiledPattern, RegexFlags  # type: ignore[import-untyped]  # nor this

from headgate.asl.errors import QUERY_EVALUATION_ERROR, StateError
from headgate.asl.expressions.jsonata_functions import SIZE_MAX, evaluation_error, library, with_nulls
from headgate.asl.expressions.scope import Evaluator, Json, Scope, constant

# A node of the library's syntax tree, which has no types.
_Node = Any

# Counted, not timed, so that a replay ends the same way on any machine. Equals a few seconds.
STEPS_MAX: Final = 500_000
# The library sets a recursion limit of 10,000, at which C code can overflow a thread's stack.
CALLS_MAX: Final = 3_000
sys.setrecursionlimit(CALLS_MAX)
# Nested evaluations and calls. Each uses up to 14 Python frames. This limit is reached before Python's own, which
# depends on the depth of the caller and would not replay alike.
DEPTH_MAX: Final = 180
# Elements or characters that count as one step.
_SIZE_OF_STEP_BITS: Final = 10
# Integral floats below this become integers: JSON has no 2.0.
_INTEGRAL_MAX: Final = 1e21

_LIBRARY: Final = library()
_CODE: Final = re.compile(r"[A-Z]\d{4}")

_OPEN: Final = "{%"
_CLOSE: Final = "%}"

# The attributes of a node that hold child nodes. In the first two groups `$` has the same value as in the node itself.
_PARTS_SAME_SCOPE: Final = ("procedure", "arguments", "expressions", "expression", "lhs", "rhs", "lhs_object")
_PARTS_BRANCHING: Final = ("condition", "then", "_else", "body")
_PARTS_INNER_SCOPE: Final = ("predicate", "stages", "group", "terms", "expr", "pattern", "update", "delete")


def is_expression(value: Json) -> TypeGuard[str]:
    """Whether a value is a JSONata expression: a string that starts with {% and ends with %}."""
    return (
        isinstance(value, str)
        and value.startswith(_OPEN)
        and value.endswith(_CLOSE)
        and len(value) >= len(_OPEN) + len(_CLOSE)
    )


# Cached for definitions that are compiled repeatedly.
@functools.lru_cache(maxsize=512)
def compile_expression(text: str) -> Evaluator:
    """Compile an expression, including its {% and %}.

    Raises `ValueError` with the position of invalid JSONata, or of what a state machine does not allow: `$$`, `$eval`,
    and at the top level `$` and bare field names. The evaluator raises `StateError` (States.QueryEvaluationError) if
    the evaluation fails, returns undefined or a value that JSON lacks, or exceeds `STEPS_MAX` or `DEPTH_MAX`.
    """
    if not is_expression(text):
        raise ValueError(f"{text!r} is not a JSONata expression; write it as '{{% expression %}}'")
    source = text[len(_OPEN) : -len(_CLOSE)].strip()
    return _Expression(source).evaluate


def compile_jsonata(value: Json) -> Evaluator:
    """Compile a JSON value that contains expressions at any depth. Raises `ValueError` as `compile_expression` does."""
    if is_expression(value):
        return compile_expression(value)
    if isinstance(value, dict) and _is_dynamic(value):
        members = tuple((key, compile_jsonata(member)) for key, member in value.items())
        return lambda scope: {key: member(scope) for key, member in members}
    if isinstance(value, list) and _is_dynamic(value):
        items = tuple(compile_jsonata(item) for item in value)
        return lambda scope: [item(scope) for item in items]
    return constant(value)


def compile_field(value: Json, field: str) -> Evaluator:
    """Compile the value of a field as `compile_jsonata` does; its errors carry the name of the field."""
    if not _is_dynamic(value):
        return constant(value)
    evaluate = compile_jsonata(value)

    def located(scope: Scope) -> Json:
        try:
            return evaluate(scope)
        except StateError as exc:
            exc.location = field
            raise

    return located


def _is_dynamic(value: Json) -> bool:
    if isinstance(value, dict):
        return any(map(_is_dynamic, value.values()))
    if isinstance(value, list):
        return any(map(_is_dynamic, value))
    return is_expression(value)


def _linear_time(pattern: str, flags: RegexFlags) -> CompiledPattern:
    """Compile a regular expression with RE2, which matches in linear time."""
    import re2  # type: ignore[import-untyped]  # imported on use: few expressions have a regular expression

    letters = ("i" if flags.case_insensitive else "") + ("m" if flags.multiline else "")
    try:
        compiled: CompiledPattern = re2.compile(f"(?{letters}){pattern}" if letters else pattern)
    except re2.error as exc:
        raise ValueError(f"the regular expression /{pattern}/ is not one of RE2's: {exc}") from exc
    return compiled


class _Expression:
    """A parsed and checked expression. Immutable, so threads may share it."""

    __slots__ = ("names", "source", "tree")

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            # A new parser: the library's cached ones keep state after an error.
            self.tree: _Node = Parser().parse(source, _linear_time)
        except JException as exc:
            raise ValueError(f"JSONata is not valid at character {exc.location} of '{source}': {exc}") from exc
        except Exception as exc:  # the parser raises arbitrary errors for some texts
            raise ValueError(
                f"JSONata is not valid: '{source}' cannot be parsed ({type(exc).__name__}: {exc})"
            ) from exc
        # The names that the expression reads: only these are bound.
        self.names = frozenset(_checked_names(self.tree, source))

    def evaluate(self, scope: Scope) -> Json:
        evaluation = _Evaluation(scope)
        try:
            value = evaluation.run(self.tree, self._bindings(scope))
        except JException as exc:
            code = f"{exc.error}: " if _CODE.fullmatch(str(exc.error)) else ""
            raise self._failed(f"threw an error during evaluation. {code}{exc}") from exc
        except Exception as exc:  # the library passes on Python's own errors, such as division by 0
            raise self._failed(f"threw an error during evaluation. {type(exc).__name__}: {exc}") from exc
        if value is None:
            raise self._failed("returned nothing (undefined).")
        return None if value is Utils.NULL_VALUE else value

    def _bindings(self, scope: Scope) -> dict[str, Json]:
        bindings = {name: _bound(scope.variables[name]) for name in self.names if name in scope.variables}
        if "states" in self.names:
            bindings["states"] = _states(scope)
        return bindings

    def _failed(self, how: str) -> StateError:
        return StateError(QUERY_EVALUATION_ERROR, f"The JSONata expression '{self.source}' {how}")


def _states(scope: Scope) -> dict[str, Json]:
    context = scope.context if isinstance(scope.context, dict) else dict(scope.context)
    states = {"input": _bound(scope.input), "context": _bound(context)}
    if scope.has_result:
        states["result"] = _bound(scope.result)
    if scope.has_error:
        states["errorOutput"] = _bound(scope.error_output)
    return states


def _bound(value: Json) -> Json:
    if value is None or isinstance(value, dict | list):
        # Few documents contain null, and the check is far cheaper than a copy.
        try:
            if b"null" not in msgspec.json.encode(value):
                return value
        except ValueError:  # a lone surrogate, which UTF-8 cannot encode
            pass
        return with_nulls(value)
    return value


class _Evaluation(Jsonata):  # type: ignore[misc]  # the library has no types
    """One evaluation: the library's interpreter with limits, and corrected where it deviates from JSONata.

    The library keeps one interpreter per thread. Each evaluation replaces it with a new one, so that evaluations share
    nothing but immutable syntax trees.
    """

    # Does not call the base constructor, which would parse an expression.
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.parser = Jsonata.get_parser()
        self.input = None
        self.environment = None
        self._steps_left = STEPS_MAX
        self._depth = 0

    def run(self, tree: _Node, bindings: dict[str, Json]) -> Json:
        """Return the value of the tree as plain JSON; None if undefined, the library's null if null."""
        frame = Jsonata.Frame(_LIBRARY)
        frame.bindings = bindings
        Jsonata.CURRENT.jsonata = self
        try:
            value = self.eval(tree, None, frame)
        finally:
            del Jsonata.CURRENT.jsonata
        if value is None or value is Utils.NULL_VALUE:
            return value
        # An input or result that is returned whole is plain already, and may be large.
        states = bindings.get("states", {})
        for name, document in (("input", self.scope.input), ("result", self.scope.result)):
            if value is states.get(name):
                return document
        return self._plain(value)

    def eval(self, expr: _Node, input: Json, environment: Json) -> Json:
        """Evaluate one node as the library does, and count it."""
        outer = self.input, self.environment
        self._descend()
        value = self._eval(expr, input, environment)
        self._depth -= 1
        self.input, self.environment = outer
        self._spend(len(value) if isinstance(value, str | list) else 0)
        return value

    def apply(self, proc: _Node, args: Json, input: Json, environment: Json) -> Json:
        """Call a function as the library does, and count its depth: callbacks nest without an evaluation in between."""
        self._descend()
        value = super().apply(proc, args, input, environment)
        self._depth -= 1
        return value

    def evaluate_numeric_expression(self, lhs: Json, rhs: Json, op: str) -> Json:
        """As the library, but with % on fractions, which it truncates."""
        if op == "%" and Utils.is_numeric(lhs) and Utils.is_numeric(rhs):
            return Utils.convert_number(math.fmod(lhs, rhs))
        return super().evaluate_numeric_expression(lhs, rhs, op)

    def evaluate_includes_expression(self, lhs: Json, rhs: Json) -> bool:
        """As the library, but 1 is not in [true]: JSONata compares without conversion."""
        if lhs is None or rhs is None:
            return False
        return any(_is_same(lhs, item) for item in (rhs if isinstance(rhs, list) else [rhs]))

    def evaluate_group_expression(self, expr: _Node, input: Json, environment: Json) -> Json:
        """As the library, which would modify an empty list of the user's document."""
        if isinstance(input, list) and not input:
            input = Utils.create_sequence()
        return super().evaluate_group_expression(expr, input, environment)

    def _descend(self) -> None:
        # The caller decrements the depth on return; after an error the evaluation ends.
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise evaluation_error(f"it nests deeper than {DEPTH_MAX} evaluations")

    def _spend(self, size: int) -> None:
        if size > SIZE_MAX:
            raise evaluation_error(f"it makes more than {SIZE_MAX} characters or elements")
        self._steps_left -= 1 + (size >> _SIZE_OF_STEP_BITS)
        if self._steps_left < 0:
            raise evaluation_error(f"it takes more than {STEPS_MAX} steps")

    def _plain(self, value: Json) -> Json:
        """Return a value in Python's own types. Raises if JSON has no such value."""
        # Counted as steps: a value with shared parts can be exponentially large when expanded.
        self._spend(len(value) if isinstance(value, str) else 0)
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            return {key: self._plain(member) for key, member in value.items()}
        if isinstance(value, float):
            if not math.isfinite(value):
                raise evaluation_error(f"{value} is not a JSON number")
            return int(value) if value.is_integer() and abs(value) < _INTEGRAL_MAX else value
        if value is Utils.NULL_VALUE or value is None:
            return None
        if isinstance(value, str | int):
            return value
        raise evaluation_error("it returned a function, which JSON does not have")


def _is_same(left: Json, right: Json) -> bool:
    if left is right:
        return True
    if isinstance(left, dict | list):
        return False
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _checked_names(tree: _Node, source: str) -> Iterator[str]:
    """Yield the names of all variables and functions in a tree. Raises `ValueError` for disallowed syntax."""
    # Each node with whether `$` is the root there, which has no value in a state machine.
    pending: list[tuple[_Node, bool]] = [(tree, True)]
    while pending:
        node, is_top = pending.pop()
        if isinstance(node, list | tuple):
            pending.extend((part, is_top) for part in node)
            continue
        if not isinstance(node, Parser.Symbol):
            continue
        problem = _problem(node, is_top=is_top)
        if problem:
            raise ValueError(f"JSONata is not allowed at character {node.position} of '{source}': {problem}")
        if node.type == "variable":
            yield str(node.value)
        pending.extend(_parts(node, is_top=is_top))


def _problem(node: _Node, *, is_top: bool) -> str | None:
    if node.type == "variable" and node.value == "$":
        return "$$ has no value in a state machine; write $states.input for the input of the state"
    if node.type == "variable" and node.value == "" and is_top:
        return "$ has no value at the top level; write $states.input for the input of the state"
    if node.type in ("name", "wildcard", "descendant") and is_top:
        return (
            f"'{node.value}' is looked up in $, which has no value at the top level; write $states.input.{node.value}"
        )
    if node.type == "function" and node.procedure.type == "variable" and node.procedure.value == "eval":
        return "$eval is not supported; $parse reads JSON"
    return None


def _parts(node: _Node, *, is_top: bool) -> Iterator[tuple[_Node, bool]]:
    if node.type == "path":
        yield node.steps[0], is_top
        yield node.steps[1:], False
    for part in (*_PARTS_SAME_SCOPE, *_PARTS_BRANCHING):
        # The arguments of a lambda are the names it declares.
        if not (part == "arguments" and node.type == "lambda"):
            yield getattr(node, part), is_top
    for part in _PARTS_INNER_SCOPE:
        yield getattr(node, part), False
