"""Paths: JSONPath as Step Functions uses it, on the input, the context object and the workflow's variables."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Final, cast

from jsonpath import JSONPath, JSONPathEnvironment
from jsonpath.exceptions import JSONPathError
from jsonpath.lex import Lexer
from jsonpath.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath.selectors import IndexSelector, NameSelector, WildcardSelector
from msgspec import Struct

from headgate.asl.errors import StateError, runtime_error
from headgate.asl.expressions.references import Reference
from headgate.asl.expressions.scope import Json, Scope

ALLOWED: Final = (
    "$ (the input), $$ (the context object) or $name (a variable), followed by steps such as .name, ['name'], [0], "
    "[*], [0:2], [?(@.a > 1)] or ..name"
)
ALLOWED_REFERENCE: Final = "$ followed only by steps such as .name, ['name'] and [0]"

_CACHED_MAX: Final = 4096
_EXCERPT_CHARS: Final = 200
_MISSING: Final = object()
# `$$` or `$name`, then whatever is left. A name is as AWS allows it: a Unicode identifier.
_ROOT: Final = re.compile(r"\$(?P<context>\$)?(?P<variable>[^\W\d]\w*)?(?P<rest>.*)", re.DOTALL)
# AWS documents $.abc.['def ghi'], which RFC 9535 does not have. Strings are matched first, so that they stay as is.
_DOT_BEFORE_BRACKET: Final = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<!\.)\.(?=\[)""", re.DOTALL
)


class Root(enum.StrEnum):
    """What the first character or name of a path stands for."""

    INPUT = "input"
    CONTEXT = "context"
    VARIABLE = "variable"


class _Lexer(Lexer):
    """RFC 9535's, but with names that start with a digit: Step Functions takes $.2024 and $.1st."""

    key_pattern = r"[\u0080-\U0010FFFFa-zA-Z0-9_][\u0080-\U0010FFFFa-zA-Z0-9_-]*"


class _Environment(JSONPathEnvironment):
    lexer_class = _Lexer

    def setup_function_extensions(self) -> None:
        """Leave them all out: AWS documents that length(), match() and the like are not supported."""


_ENVIRONMENT: Final = _Environment(strict=True, filter_caching=False)


class Path(Struct, frozen=True):
    """A path, compiled: an evaluator that gives what the path selects.

    A definite path, one of names and indexes alone, gives the one value. Any other gives the list of all values it
    selects, which may be empty. Raises `StateError` (States.Runtime) where a definite path selects nothing.

    It is States.Runtime in Parameters and ResultSelector too, as in InputPath: the specification has the name
    States.ParameterPathFailure for those, but published histories of AWS executions that lacked a field of Parameters
    say States.Runtime, in the words used here. An indefinite path also fails when what stands before its first
    selector of many is not there ($.absent[0:2]), as an author of the specification confirms: only that selector may
    come back with nothing.
    """

    text: str
    root: Root
    # The steps up to the first that can select more than one value: all of them in a definite path.
    steps: tuple[str | int, ...]
    # How an error begins.
    subject: str
    start: Callable[[Scope], Json]
    # The whole of an indefinite path; None in a definite one.
    query: JSONPath | None = None
    # Whether the first selector of many can select only from objects and lists, and fails on anything else.
    needs_container: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether the path can select one place alone, as fields such as ItemsPath and Variable demand."""
        return self.query is None

    def __call__(self, scope: Scope) -> Json:
        found = self._found(scope)
        if found is _MISSING:
            raise self._not_found(scope)
        return found

    def is_present(self, scope: Scope) -> bool:
        """Whether the path selects anything. A null that is there is present."""
        found = self._found(scope)
        return found is not _MISSING and (self.query is None or bool(found))

    def _found(self, scope: Scope) -> Json:
        found = _at(self.start(scope), self.steps)
        if self.query is None or found is _MISSING:
            return found
        if self.needs_container and not isinstance(found, dict | list):
            return _MISSING
        try:
            # From the start, not from `found`: `$` in a filter is the whole document.
            return self.query.findall(self.start(scope))
        except JSONPathError as exc:
            raise runtime_error(f"{self.subject} could not be evaluated: {exc.args[0]}") from exc

    def _not_found(self, scope: Scope) -> StateError:
        document = self.start(scope)
        if document is _MISSING:
            return runtime_error(f"{self.subject} could not be found: its variable has not been assigned")
        return runtime_error(f"{self.subject} could not be found in the input '{_excerpt(document)}'")


def compile_path(text: Json, field: str = "") -> Path:
    """Return the path that `text` is; `field` is named in its errors.

    Raises `ValueError`, with what is allowed, when it is none.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a path. Allowed: {ALLOWED}")
    return _compiled(text, f"The JSONPath '{text}'" + (f" specified for the field '{field}'" if field else ""))


def compile_argument(text: str) -> Path:
    """Return the path that `text` is, as an argument of an intrinsic function. Raises as `compile_path` does."""
    return _compiled(text, f"The JsonPath argument for the field '{text}'")


def compile_reference(text: Json) -> Reference:
    """Return the place that `text` names, for ResultPath. Raises `ValueError`, with what is allowed, if it is none.

    The context object and variables cannot be written to, and a place counted from the end of a list is none.
    """
    path = compile_path(text)
    from_end = any(isinstance(step, int) and step < 0 for step in path.steps)
    if path.root is not Root.INPUT or path.query is not None or from_end:
        raise ValueError(f"{text!r} is not a reference path. Allowed: {ALLOWED_REFERENCE}")
    return Reference(path.text, path.steps)


@lru_cache(maxsize=_CACHED_MAX)
def _compiled(text: str, subject: str) -> Path:
    match = _ROOT.fullmatch(text)
    if match is None or (match["context"] and match["variable"]):
        raise ValueError(f"{text!r} is not a path. Allowed: {ALLOWED}")
    query = _query(text, match["rest"])
    steps = _leading_steps(query.segments)
    root, start = _root(match)
    if len(steps) == len(query.segments):
        return Path(text, root, steps, subject, start)
    return Path(text, root, steps, subject, start, query, _needs_container(query.segments[len(steps)]))


def _query(text: str, rest: str) -> JSONPath:
    plain = "$" + _DOT_BEFORE_BRACKET.sub(lambda found: found["string"] or "", rest)
    try:
        # Strict, so never the compound of several paths that the signature also allows for.
        return cast("JSONPath", _ENVIRONMENT.compile(plain))
    except (JSONPathError, RecursionError) as exc:
        raise ValueError(f"{text!r} is not a path: {exc.args[0]}. Allowed: {ALLOWED}") from exc


def _root(match: re.Match[str]) -> tuple[Root, Callable[[Scope], Json]]:
    if match["context"]:
        return Root.CONTEXT, _context
    if (name := match["variable"]) is not None:
        return Root.VARIABLE, lambda scope: scope.variables.get(name, _MISSING)
    return Root.INPUT, attrgetter("data")


def _context(scope: Scope) -> Json:
    context = scope.context
    return context if isinstance(context, dict) else dict(context)


def _leading_steps(segments: tuple[JSONPathSegment, ...]) -> tuple[str | int, ...]:
    steps: list[str | int] = []
    for segment in segments:
        if isinstance(segment, JSONPathRecursiveDescentSegment) or len(segment.selectors) != 1:
            break
        selector = segment.selectors[0]
        if isinstance(selector, NameSelector):
            steps.append(selector.name)
        elif isinstance(selector, IndexSelector):
            steps.append(selector.index)
        else:
            break
    return tuple(steps)


def _needs_container(segment: JSONPathSegment) -> bool:
    # Everything under a scalar is nothing, and all of it is nothing: neither is an error. A filter or a slice is.
    everything = all(isinstance(selector, WildcardSelector) for selector in segment.selectors)
    return not everything and not isinstance(segment, JSONPathRecursiveDescentSegment)


def _at(value: Json, steps: tuple[str | int, ...]) -> Json:
    for step in steps:
        if isinstance(step, str):
            if not isinstance(value, dict):
                return _MISSING
            value = value.get(step, _MISSING)
        elif isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return _MISSING
    return value


def _excerpt(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text if len(text) <= _EXCERPT_CHARS else f"{text[:_EXCERPT_CHARS]}..."
