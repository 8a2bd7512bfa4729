"""JSONata: the expressions between {% and %}, compiled once and evaluated within bounds."""

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
from headgate.asl.expressions.jsonata_functions import SIZE_MAX, library, refused, with_nulls
from headgate.asl.expressions.scope import Evaluator, Json, Scope, constant

# A node of the library's syntax tree, which has no types.
_Node = Any

# Counted, not timed: on replay the same expression must end the same way, however busy the machine is. A few seconds.
STEPS_MAX: Final = 500_000
# Importing the library lets the process nest 10,000 calls, so many that code in C could overflow a thread's stack.
CALLS_MAX: Final = 3_000
sys.setrecursionlimit(CALLS_MAX)
# Nested evaluations and calls. Each takes up to 14 of Python's own calls; and those must not be the ones to run out,
# since how many are left depends on who calls.
DEPTH_MAX: Final = 180
# Elements or characters that are handled in the time of one step.
_SIZE_OF_STEP_BITS: Final = 10
# JSON numbers up to here are written without an exponent, so 2.0 is 2.
_INTEGRAL_MAX: Final = 1e21

_LIBRARY: Final = library()
_CODE: Final = re.compile(r"[A-Z]\d{4}")

_OPEN: Final = "{%"
_CLOSE: Final = "%}"

# Where a node has its parts. What `$` means in the first it means in the node too; in the second it is another value.
_PARTS_ALIKE: Final = ("procedure", "arguments", "expressions", "expression", "lhs", "rhs", "lhs_object")
_PARTS_BRANCHING: Final = ("condition", "then", "_else", "body")
_PARTS_WITHIN: Final = ("predicate", "stages", "group", "terms", "expr", "pattern", "update", "delete")


def is_expression(value: Json) -> TypeGuard[str]:
    """Whether a value is a JSONata expression: a text from {% to %}, with nothing around them."""
    return (
        isinstance(value, str)
        and value.startswith(_OPEN)
        and value.endswith(_CLOSE)
        and len(value) >= len(_OPEN) + len(_CLOSE)
    )


# A state machine keeps what it was compiled to; this is for those that are compiled again and again.
@functools.lru_cache(maxsize=512)
def compile_expression(text: str) -> Evaluator:
    """Return the evaluator of an expression, which is written with its {% and %}.

    Raises `ValueError`, with the position, for what is not JSONata or not allowed in a state machine: `$$`, `$eval`,
    and at the top level `$` and names of fields without anything before them. The evaluator raises `StateError`
    (States.QueryEvaluationError) when evaluation fails, comes to nothing (undefined) or to what JSON does not have,
    or goes beyond `STEPS_MAX` or `DEPTH_MAX`.
    """
    if not is_expression(text):
        raise ValueError(f"{text!r} is not a JSONata expression; write it as '{{% expression %}}'")
    source = text[len(_OPEN) : -len(_CLOSE)].strip()
    return _Expression(source).evaluate


def compile_jsonata(value: Json) -> Evaluator:
    """Return the evaluator of a JSON value that has expressions in place of any of its values, at any depth.

    Raises `ValueError` as `compile_expression` does.
    """
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
    """Return the evaluator of what a field has, as `compile_jsonata` does. Its errors say which field it was."""
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
    """Compile a regular expression so that no text takes for ever to match: Python's own engine may."""
    import re2  # type: ignore[import-untyped]  # Only where an expression has one.

    letters = ("i" if flags.case_insensitive else "") + ("m" if flags.multiline else "")
    try:
        compiled: CompiledPattern = re2.compile(f"(?{letters}){pattern}" if letters else pattern)
    except re2.error as exc:
        raise ValueError(f"the regular expression /{pattern}/ is not one of RE2's: {exc}") from exc
    return compiled


class _Expression:
    """An expression, parsed and checked. Evaluation leaves it as it is, so threads may share it."""

    __slots__ = ("names", "source", "tree")

    def __init__(self, source: str) -> None:
        self.source = source
        try:
            # A parser of its own: those that the library keeps are not clean after an error.
            self.tree: _Node = Parser().parse(source, _linear_time)
        except JException as exc:
            raise ValueError(f"JSONata is not valid at character {exc.location} of '{source}': {exc}") from exc
        except Exception as exc:  # the parser falls over some texts, with whatever it meets first
            raise ValueError(
                f"JSONata is not valid: '{source}' cannot be parsed ({type(exc).__name__}: {exc})"
            ) from exc
        # What the expression may look up: nothing else need be bound for it.
        self.names = frozenset(_checked_names(self.tree, source))

    def evaluate(self, scope: Scope) -> Json:
        evaluation = _Evaluation(scope)
        try:
            value = evaluation.run(self.tree, self._bindings(scope))
        except JException as exc:
            code = f"{exc.error}: " if _CODE.fullmatch(str(exc.error)) else ""
            raise self._failed(f"threw an error during evaluation. {code}{exc}") from exc
        except Exception as exc:  # the library lets Python's own errors through, such as division by 0
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
        # Few documents have a null, and to find out is far cheaper than to copy them.
        try:
            if b"null" not in msgspec.json.encode(value):
                return value
        except ValueError:  # half a surrogate pair, which Python's texts may have and UTF-8 may not
            pass
        return with_nulls(value)
    return value


class _Evaluation(Jsonata):  # type: ignore[misc]  # the library has no types
    """One evaluation. The library's interpreter with bounds, and corrected where it departs from JSONata.

    The library keeps an interpreter for every thread, whichever expression was made last. It is given a new one for
    every evaluation instead, so that evaluations have nothing in common but syntax trees, which stay as they are.
    """

    # Not calling the constructor: it would parse an expression.
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.parser = Jsonata.get_parser()
        self.input = None
        self.environment = None
        self._steps_left = STEPS_MAX
        self._depth = 0

    def run(self, tree: _Node, bindings: dict[str, Json]) -> Json:
        """Return the value of the tree in plain JSON; None if undefined, the library's null if null."""
        frame = Jsonata.Frame(_LIBRARY)
        frame.bindings = bindings
        Jsonata.CURRENT.jsonata = self
        try:
            value = self.eval(tree, None, frame)
        finally:
            del Jsonata.CURRENT.jsonata
        if value is None or value is Utils.NULL_VALUE:
            return value
        # A document that is passed on whole is plain already, and may be large.
        states = bindings.get("states", {})
        for name, document in (("input", self.scope.input), ("result", self.scope.result)):
            if value is states.get(name):
                return document
        return self._plain(value)

    def eval(self, expr: _Node, input: Json, environment: Json) -> Json:
        """Evaluate one node, as the library does, and count it."""
        outer = self.input, self.environment
        self._descend()
        value = self._eval(expr, input, environment)
        self._depth -= 1
        self.input, self.environment = outer
        self._spend(len(value) if isinstance(value, str | list) else 0)
        return value

    def apply(self, proc: _Node, args: Json, input: Json, environment: Json) -> Json:
        """Call a function, as the library does. Functions that call back nest without an evaluation in between."""
        self._descend()
        value = super().apply(proc, args, input, environment)
        self._depth -= 1
        return value

    def evaluate_numeric_expression(self, lhs: Json, rhs: Json, op: str) -> Json:
        """The library's, but for % of numbers with a fraction, which it cuts off."""
        if op == "%" and Utils.is_numeric(lhs) and Utils.is_numeric(rhs):
            return Utils.convert_number(math.fmod(lhs, rhs))
        return super().evaluate_numeric_expression(lhs, rhs, op)

    def evaluate_includes_expression(self, lhs: Json, rhs: Json) -> bool:
        """The library's, but 1 is not in [true]: JSONata compares without converting."""
        if lhs is None or rhs is None:
            return False
        return any(_is_same(lhs, item) for item in (rhs if isinstance(rhs, list) else [rhs]))

    def evaluate_group_expression(self, expr: _Node, input: Json, environment: Json) -> Json:
        """The library's, which would write into an empty list even if it is of the users' document."""
        if isinstance(input, list) and not input:
            input = Utils.create_sequence()
        return super().evaluate_group_expression(expr, input, environment)

    def _descend(self) -> None:
        # Whoever comes back up says so itself; after an error nobody does, because nothing goes on.
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise refused(f"it nests deeper than {DEPTH_MAX} evaluations")

    def _spend(self, size: int) -> None:
        if size > SIZE_MAX:
            raise refused(f"it makes more than {SIZE_MAX} characters or elements")
        self._steps_left -= 1 + (size >> _SIZE_OF_STEP_BITS)
        if self._steps_left < 0:
            raise refused(f"it takes more than {STEPS_MAX} steps")

    def _plain(self, value: Json) -> Json:
        """Return a value in Python's own types. Raises where JSON has no such value."""
        # Counted too: a value that is small because its parts are shared can be endless when written out.
        self._spend(len(value) if isinstance(value, str) else 0)
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            return {key: self._plain(member) for key, member in value.items()}
        if isinstance(value, float):
            if not math.isfinite(value):
                raise refused(f"{value} is not a JSON number")
            return int(value) if value.is_integer() and abs(value) < _INTEGRAL_MAX else value
        if value is Utils.NULL_VALUE or value is None:
            return None
        if isinstance(value, str | int):
            return value
        raise refused("it returned a function, which JSON does not have")


def _is_same(left: Json, right: Json) -> bool:
    if left is right:
        return True
    if isinstance(left, dict | list):
        return False
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _checked_names(tree: _Node, source: str) -> Iterator[str]:
    """Yield the names of all variables and functions of a tree, and refuse what a state machine may not use."""
    # Whether `$` is the root there, which a state machine does not have.
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
    for part in (*_PARTS_ALIKE, *_PARTS_BRANCHING):
        # The arguments of a lambda are the names it declares.
        if not (part == "arguments" and node.type == "lambda"):
            yield getattr(node, part), is_top
    for part in _PARTS_WITHIN:
        yield getattr(node, part), False
