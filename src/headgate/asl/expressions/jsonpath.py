"""JSONPath as Step Functions uses it: paths on the input, the context object and variables."""

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
# `$$` or `$name`, then the rest. As on AWS, a name is a Unicode identifier.
_ROOT: Final = re.compile(r"\$(?P<context>\$)?(?P<variable>[^\W\d]\w*)?(?P<rest>.*)", re.DOTALL)
# AWS documents $.abc.['def ghi'], which RFC 9535 lacks. Strings are matched first, to stay unchanged.
_DOT_BEFORE_BRACKET: Final = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<!\.)\.(?=\[)""", re.DOTALL
)


# A word without quotes after a comparison in a filter, as in [?(@.kind==Receipt)]. Strings are matched first.
_BARE_WORD: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?P<sign>[=!<>]=|[<>])\s*(?!(?:true|false|null)\b)(?P<word>[A-Za-z_][\w-]*)"""
)


class Root(enum.StrEnum):
    """The document that a path starts from."""

    INPUT = "input"
    CONTEXT = "context"
    VARIABLE = "variable"


class _Lexer(Lexer):
    """The lexer of RFC 9535, extended by names that start with a digit: Step Functions accepts $.2024 and $.1st."""

    key_pattern = r"[\u0080-\U0010FFFFa-zA-Z0-9_][\u0080-\U0010FFFFa-zA-Z0-9_-]*"


class _Environment(JSONPathEnvironment):
    lexer_class = _Lexer

    def setup_function_extensions(self) -> None:
        """Register none: AWS documents that length(), match() etc. are not supported."""


_ENVIRONMENT: Final = _Environment(strict=True, filter_caching=False)


class Path(Struct, frozen=True):
    """A compiled path: an evaluator that returns the selected values.

    A definite path (names and indexes only) returns one value. Any other returns the list of selected values, which
    may be empty. Raises `StateError` (States.Runtime) if a definite path selects nothing.

    Parameters and ResultSelector also raise States.Runtime: the specification names States.ParameterPathFailure, but
    published AWS histories show States.Runtime with the wording used here. An indefinite path fails if its definite
    prefix selects nothing ($.absent[0:2]), as an author of the specification confirms.
    """

    text: str
    root: Root
    # The definite prefix: the steps before the first that can select several values.
    steps: tuple[str | int, ...]
    # The beginning of an error message.
    subject: str
    start: Callable[[Scope], Json]
    # The whole path if it is indefinite, otherwise None.
    query: JSONPath | None = None
    # Whether the first indefinite selector fails on a scalar.
    needs_container: bool = False

    @property
    def is_reference(self) -> bool:
        """Whether the path is definite, as ItemsPath and Variable require."""
        return self.query is None

    def __call__(self, scope: Scope) -> Json:
        value = self._select(scope)
        if value is _MISSING:
            raise self._not_found(scope)
        return value

    def is_present(self, scope: Scope) -> bool:
        """Whether the path selects anything, including null."""
        value = self._select(scope)
        return value is not _MISSING and (self.query is None or bool(value))

    def _select(self, scope: Scope) -> Json:
        value = _at(self.start(scope), self.steps)
        if self.query is None or value is _MISSING:
            return value
        if self.needs_container and not isinstance(value, dict | list):
            return _MISSING
        try:
            # From the start, not from `value`: `$` in a filter is the whole document.
            return self.query.findall(self.start(scope))
        except JSONPathError as exc:
            raise runtime_error(f"{self.subject} could not be evaluated: {exc.args[0]}") from exc

    def _not_found(self, scope: Scope) -> StateError:
        document = self.start(scope)
        if document is _MISSING:
            return runtime_error(f"{self.subject} could not be found: its variable has not been assigned")
        return runtime_error(f"{self.subject} could not be found in the input '{_excerpt(document)}'")


def compile_path(text: Json, field: str = "") -> Path:
    """Compile a path; its errors name `field`. Raises `ValueError` with the allowed forms."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a path. Allowed: {ALLOWED}")
    return _compiled(text, f"The JSONPath '{text}'" + (f" specified for the field '{field}'" if field else ""))


def compile_argument(text: str) -> Path:
    """Compile a path that is an argument of an intrinsic function. Raises as `compile_path` does."""
    return _compiled(text, f"The JsonPath argument for the field '{text}'")


def compile_reference(text: Json) -> Reference:
    """Compile a reference path for ResultPath. Raises `ValueError` with the allowed forms.

    The context object and variables are read-only, and negative indexes are not allowed.
    """
    path = compile_path(text)
    from_end = any(isinstance(step, int) and step < 0 for step in path.steps)
    if path.root is not Root.INPUT or path.query is not None or from_end:
        raise ValueError(f"{text!r} is not a reference path. Allowed: {ALLOWED_REFERENCE}")
    return Reference(path.text, path.steps)


def bare_word(text: str) -> str | None:
    """Return the first word without quotes that a filter of a path compares with."""
    return next((found["word"] for found in _BARE_WORD.finditer(text) if found["word"]), None)


@lru_cache(maxsize=_CACHED_MAX)
def _compiled(text: str, subject: str) -> Path:
    # Step Functions ignores white space after a path.
    match = _ROOT.fullmatch(text.rstrip())
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
        # In strict mode the result is never a compound path, which the signature also allows.
        return cast("JSONPath", _ENVIRONMENT.compile(plain))
    except (JSONPathError, RecursionError) as exc:
        # Published definitions compare with words without quotes; they are texts.
        quoted = _BARE_WORD.sub(_quoted, plain)
        if quoted != plain:
            return _query(text, quoted.removeprefix("$"))
        raise ValueError(f"{text!r} is not a path: {exc.args[0]}. Allowed: {ALLOWED}") from exc


def _quoted(found: re.Match[str]) -> str:
    return f"{found['sign']}'{found['word']}'" if found["word"] else found[0]


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
    # On a scalar a wildcard and a recursive descent select nothing; a filter or a slice is an error.
    is_wildcard = all(isinstance(selector, WildcardSelector) for selector in segment.selectors)
    return not is_wildcard and not isinstance(segment, JSONPathRecursiveDescentSegment)


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
