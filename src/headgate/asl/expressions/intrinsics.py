"""Intrinsic functions such as States.Format('{}', $.a), with the limits that AWS documents."""

from __future__ import annotations

import base64
import json
import math
import random
import re
import uuid
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Final, NamedTuple, Never

from headgate.asl.errors import INTRINSIC_FAILURE, StateError
from headgate.asl.expressions.formats import ALGORITHMS
from headgate.asl.expressions.jsonpath import compile_argument
from headgate.asl.expressions.scope import Evaluator, Json, Scope, constant

DEPTH_MAX: Final = 10
RANGE_ITEMS_MAX: Final = 1000
TEXT_CHARS_MAX: Final = 10_000

_CACHED_MAX: Final = 4096
_ADDEND_MIN, _ADDEND_MAX = -(2**31), 2**31 - 1
_FORMAT: Final = "States.Format"

_CALL: Final = re.compile(r"([A-Za-z0-9_.]+)\(")
_STRING: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_KEYWORD: Final = re.compile(r"(null|true|false)(?!\w)")
_KEYWORDS: Final[dict[str, Json]] = {"null": None, "true": True, "false": False}
_SPACE: Final = re.compile(r"\s*")
# Tokens of a path, enough to find its end: a comma or a bracket inside a string is skipped.
_PATH_PART: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"()\[\],]+|[()\[\],]""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_RESERVED: Final = frozenset("'{}\\")
# Tokens of a template: an escape, {}, or an unescaped brace. In a template that comes from the data only braces can be
# escaped, and any other backslash is literal.
_LITERAL_TOKEN: Final = re.compile(r"\\(?P<escaped>.)|(?P<hole>\{\})|[{}]", re.DOTALL)
_DATA_TOKEN: Final = re.compile(r"\\(?P<escaped>[{}])|(?P<hole>\{\})|[{}]")


def compile_intrinsic(text: Json) -> Evaluator:
    """Compile a call of an intrinsic function. Raises `ValueError` with the allowed forms.

    The evaluator raises `StateError`: States.IntrinsicFailure for invalid arguments, States.Runtime for an argument
    path that selects nothing.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a call of an intrinsic function: it is no string. {_ALLOWED}")
    return _compiled(text)


@lru_cache(maxsize=_CACHED_MAX)
def _compiled(text: str) -> Evaluator:
    call = _Parser(text).whole()

    def evaluate(scope: Scope) -> Json:
        try:
            return call(scope)
        except StateError as exc:
            raise StateError(exc.error, f"The function '{text}' had the following error: {exc.cause}") from exc

    return evaluate


class _Parser:
    """Recursive-descent parser of one call."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> Evaluator:
        call = self._call(depth=1)
        if self._at != len(self._text):
            self._fail("text follows the call")
        return call

    def _call(self, depth: int) -> Evaluator:
        match = _CALL.match(self._text, self._at)
        if match is None:
            self._fail("a function's name and '(' are expected")
        name = match[1]
        function = FUNCTIONS.get(name)
        if function is None:
            self._fail(f"there is no function {name}")
        if depth > DEPTH_MAX:
            self._fail(f"calls may be nested {DEPTH_MAX} deep")
        self._at = match.end()
        arguments = self._arguments(depth, has_template=name == _FORMAT)
        if not function.takes(len(arguments)):
            self._fail(f"{name} takes {function.arity} arguments, not {len(arguments)}")
        return _calling(function, tuple(arguments))

    def _arguments(self, depth: int, *, has_template: bool) -> list[Evaluator]:
        arguments: list[Evaluator] = []
        self._skip_space()
        if self._accept(")"):
            return arguments
        while True:
            self._skip_space()
            arguments.append(self._argument(depth, is_template=has_template and not arguments))
            self._skip_space()
            if self._accept(")"):
                return arguments
            if not self._accept(","):
                self._fail("',' or ')' is expected")

    def _argument(self, depth: int, *, is_template: bool) -> Evaluator:
        following = self._text[self._at : self._at + 1]
        if following == "$":
            return self._path()
        if following == "'":
            return self._string(is_template=is_template)
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            return constant(json.loads(match[0]))
        if match := _KEYWORD.match(self._text, self._at):
            self._at = match.end()
            return constant(_KEYWORDS[match[1]])
        return self._call(depth + 1)

    def _string(self, *, is_template: bool) -> Evaluator:
        match = _STRING.match(self._text, self._at)
        if match is None:
            self._fail("the string is not closed with '")
        # AWS fails the execution; it can never succeed, so it is rejected at compile time.
        if any(found[1] not in _RESERVED for found in _ESCAPE.finditer(match[1])):
            self._fail(r"in a string only ', {, } and \ can follow a backslash")
        try:
            value = _pieces(match[1], _LITERAL_TOKEN) if is_template else _ESCAPE.sub(r"\1", match[1])
        except ValueError as exc:
            self._fail(str(exc))
        self._at = match.end()
        return constant(value)

    def _path(self) -> Evaluator:
        start, nested = self._at, 0
        while match := _PATH_PART.match(self._text, self._at):
            if nested == 0 and match[0] in (",", ")"):
                break
            nested += (match[0] in ("(", "[")) - (match[0] in (")", "]"))
            self._at = match.end()
        return compile_argument(self._text[start : self._at].rstrip())

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _accept(self, character: str) -> bool:
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _fail(self, fact: str) -> Never:
        raise ValueError(
            f"{self._text!r} is not a call of an intrinsic function: {fact}, at character {self._at}. {_ALLOWED}"
        )


class _Function(NamedTuple):
    apply: Callable[..., Json]
    arguments_min: int
    # None: any number.
    arguments_max: int | None
    # Whether `apply` takes the source of random numbers as its first argument.
    needs_random: bool = False

    @property
    def arity(self) -> str:
        if self.arguments_max is None:
            return f"{self.arguments_min} or more"
        if self.arguments_min == self.arguments_max:
            return str(self.arguments_min)
        return f"{self.arguments_min} to {self.arguments_max}"

    def takes(self, count: int) -> bool:
        return self.arguments_min <= count and (self.arguments_max is None or count <= self.arguments_max)


def _calling(function: _Function, arguments: tuple[Evaluator, ...]) -> Evaluator:
    apply = function.apply

    def call(scope: Scope) -> Json:
        values = [argument(scope) for argument in arguments]
        try:
            return apply(scope.random, *values) if function.needs_random else apply(*values)
        except (ValueError, RecursionError) as exc:
            raise StateError(INTRINSIC_FAILURE, str(exc)) from exc

    return call


def _format(template: Json, *values: Json) -> str:
    # A literal template was split when it was compiled.
    pieces = template if isinstance(template, tuple) else _pieces(_text(template), _DATA_TOKEN)
    if len(values) != len(pieces) - 1:
        raise ValueError(f"the template has {len(pieces) - 1} {{}}, and there are {len(values)} arguments for them")
    return pieces[0] + "".join(_shown(value) + piece for value, piece in zip(values, pieces[1:], strict=True))


def _pieces(template: str, token: re.Pattern[str]) -> tuple[str, ...]:
    pieces, at = [""], 0
    for found in token.finditer(template):
        pieces[-1] += template[at : found.start()] + (found["escaped"] or "")
        at = found.end()
        if found["hole"]:
            pieces.append("")
        elif not found["escaped"]:
            raise ValueError(f"'{found[0]}' in the template is no part of {{}}: write \\{found[0]}")
    pieces[-1] += template[at:]
    return tuple(pieces)


def _shown(value: Json) -> str:
    if isinstance(value, str):
        return value
    # The specification: MUST NOT be a JSON array or object.
    if isinstance(value, list | dict):
        raise ValueError("a list or an object cannot be put into a template: use States.JsonToString")
    # Numbers look the same in Python and JSON; null and booleans do not.
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _string_to_json(text: Json) -> Json:
    return json.loads(_whole_text(_text(text)), parse_constant=_no_constant, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _whole_text(text: str) -> str:
    """Return JSON text, or raise `ValueError` if it contains an escaped lone surrogate."""
    if "\\u" in text:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    return text


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


def _json_to_string(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _array_partition(array: Json, size: Json) -> list[list[Json]]:
    items, chunk = _list(array), _integer(size)
    if chunk < 1:
        raise ValueError(f"the size of a chunk must be 1 or more, not {chunk}")
    return [items[start : start + chunk] for start in range(0, len(items), chunk)]


def _array_contains(array: Json, value: Json) -> bool:
    identity = _identity(value)
    return any(_identity(item) == identity for item in _list(array))


def _array_range(first: Json, last: Json, step: Json) -> list[int]:
    start, end, by = _integer(first), _integer(last), _integer(step)
    if by == 0:
        raise ValueError("the step of a range must not be 0")
    count = (end - start) // by + 1
    if count > RANGE_ITEMS_MAX:
        raise ValueError(f"a range may have {RANGE_ITEMS_MAX} items, not {count}")
    return [start + by * index for index in range(count)]


def _array_get_item(array: Json, index: Json) -> Json:
    items, at = _list(array), _integer(index)
    if not 0 <= at < len(items):
        raise ValueError(f"the index {at} is outside of a list of {len(items)}")
    return items[at]


def _array_unique(array: Json) -> list[Json]:
    # The first of equal items keeps its position.
    unique: dict[Hashable, Json] = {}
    for item in _list(array):
        unique.setdefault(_identity(item), item)
    return list(unique.values())


def _base64_encode(text: Json) -> str:
    return base64.b64encode(_limited(_text(text)).encode()).decode()


def _base64_decode(text: Json) -> str:
    # MIME base64, which AWS documents, allows white space between lines.
    return base64.b64decode("".join(_limited(_text(text)).split()), validate=True).decode()


def _hash(data: Json, algorithm: Json) -> str:
    # AWS documents "an object string": other values are hashed as JSON.
    text = data if isinstance(data, str) else _json_to_string(data)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {algorithm!r}: use {', '.join(ALGORITHMS)}")
    return ALGORITHMS[algorithm](_limited(text).encode()).hexdigest()


def _json_merge(first: Json, second: Json, deep: Json) -> dict[str, Json]:
    if deep is not False:
        raise ValueError("the third argument must be false: objects are merged at the top alone")
    if not isinstance(first, dict) or not isinstance(second, dict):
        raise ValueError("only objects can be merged")
    return {**first, **second}


def _math_random(source: random.Random, start: Json, end: Json, *seed: Json) -> int:
    low, high = _integer(start), _integer(end)
    if low >= high:
        raise ValueError(f"the end, which is not drawn itself, must be above the start: {low}, {high}")
    return (random.Random(_integer(seed[0])) if seed else source).randrange(low, high)


def _math_add(first: Json, second: Json) -> int:
    addends = _integer(first), _integer(second)
    if not all(_ADDEND_MIN <= addend <= _ADDEND_MAX for addend in addends):
        raise ValueError(f"the numbers must be from {_ADDEND_MIN} to {_ADDEND_MAX}")
    return sum(addends)


def _string_split(text: Json, delimiters: Json) -> list[str]:
    # Each character is a delimiter, as documented, and empty parts are dropped: AWS histories show ",,a," as ["a"].
    string, characters = _text(text), _text(delimiters)
    if not characters:
        return [string] if string else []
    return [part for part in re.split(f"[{re.escape(characters)}]", string) if part]


def _uuid(source: random.Random) -> str:
    return str(uuid.UUID(int=source.getrandbits(128), version=4))


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a string is expected, not {_kind(value)}")
    return value


def _limited(text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise ValueError(f"a text may have {TEXT_CHARS_MAX} characters, not {len(text)}")
    return text


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError(f"a list is expected, not {_kind(value)}")
    return value


def _integer(value: Json) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError(f"a number is expected, not {_kind(value)}")
    # Rounded to the nearest integer, as documented.
    return math.floor(value + 0.5)


def _kind(value: Json) -> str:
    kinds = {str: "a string", list: "a list", dict: "an object", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "such a number")


def _identity(value: Json) -> Hashable:
    """Return a hashable key that is equal for equal JSON values: true differs from 1, but 1 equals 1.0."""
    if isinstance(value, bool):
        return (value,)
    if isinstance(value, list):
        return ("list", *map(_identity, value))
    if isinstance(value, dict):
        return frozenset((name, _identity(member)) for name, member in value.items())
    return value  # type: ignore[no-any-return]


FUNCTIONS: Final = {
    _FORMAT: _Function(_format, 1, None),
    "States.StringToJson": _Function(_string_to_json, 1, 1),
    "States.JsonToString": _Function(_json_to_string, 1, 1),
    "States.Array": _Function(lambda *values: list(values), 0, None),
    "States.ArrayPartition": _Function(_array_partition, 2, 2),
    "States.ArrayContains": _Function(_array_contains, 2, 2),
    "States.ArrayRange": _Function(_array_range, 3, 3),
    "States.ArrayGetItem": _Function(_array_get_item, 2, 2),
    "States.ArrayLength": _Function(lambda array: len(_list(array)), 1, 1),
    "States.ArrayUnique": _Function(_array_unique, 1, 1),
    "States.Base64Encode": _Function(_base64_encode, 1, 1),
    "States.Base64Decode": _Function(_base64_decode, 1, 1),
    "States.Hash": _Function(_hash, 2, 2),
    "States.JsonMerge": _Function(_json_merge, 3, 3),
    "States.MathRandom": _Function(_math_random, 2, 3, needs_random=True),
    "States.MathAdd": _Function(_math_add, 2, 2),
    "States.StringSplit": _Function(_string_split, 2, 2),
    "States.UUID": _Function(_uuid, 0, 0, needs_random=True),
}
_ALLOWED: Final = (
    f"Allowed: {', '.join(FUNCTIONS)}, each with arguments in parentheses that are 'strings', numbers, null, true, "
    "false, paths or such calls"
)
