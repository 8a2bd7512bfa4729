"""JSONata functions: those that Step Functions adds, and replacements that are bounded and deterministic."""

from __future__ import annotations

import json
import math
import random
import re
import uuid
from typing import Final

from jsonata import Functions, JException, Jsonata, Utils  # type: ignore[import-untyped]  # it has no stubs

from headgate.asl.expressions.formats import ALGORITHMS, iso_timestamp, parse_timestamp
from headgate.asl.expressions.scope import Json, Scope

# The largest string or list that an expression may build; far above the size limit of a state.
SIZE_MAX: Final = 4_000_000

# The letter of every component of a picture such as [Y0001]-[M01]; [[ is a literal bracket.
_COMPONENTS: Final = re.compile(r"(?<!\[)\[\s*([A-Za-z])")


def evaluation_error(fact: str) -> Exception:
    """Return an error with this message. The library propagates only its own exception class unchanged."""
    # D3137 is the code of $error, which formats the message verbatim; the code itself is cleared.
    error = JException("D3137", -1, fact)
    error.error = ""
    as_exception: Exception = error
    return as_exception


def with_nulls(value: Json) -> Json:
    """Return a document with the library's null instead of None, which means undefined to it."""
    if value is None:
        return Utils.NULL_VALUE
    if isinstance(value, dict):
        return {key: with_nulls(member) for key, member in value.items()}
    if isinstance(value, list):
        return [with_nulls(member) for member in value]
    return value


def _scope() -> Scope:
    # The library keeps the current evaluation of the thread here; see `jsonata._Evaluation`.
    scope: Scope = Jsonata.CURRENT.jsonata.scope
    return scope


def _now_ms() -> int:
    """Return the time of the turn, which a replay repeats."""
    scope = _scope()
    if scope.now_ms:
        return scope.now_ms
    context = scope.context
    for part, field in (("State", "EnteredTime"), ("Execution", "StartTime")):
        at_ms = parse_timestamp(context.get(part, {}).get(field))
        if at_ms is not None:
            return at_ms
    raise evaluation_error(
        "the time is not known: the context object has neither State.EnteredTime nor Execution.StartTime"
    )


def _whole(value: Json, what: str) -> int:
    if isinstance(value, bool) or value != math.floor(value):
        raise evaluation_error(f"{what} must be an integer, not {value}")
    return int(value)


def _check_size(size: int) -> None:
    if size > SIZE_MAX:
        raise evaluation_error(f"the result would be larger than {SIZE_MAX} characters or elements")


class StepFunctions:
    """The functions, called by position; an undefined or absent argument is None."""

    @staticmethod
    def partition(array: Json, size: Json) -> Json:
        if array is None or size is None:
            return None
        step = _whole(size, "The chunk size of $partition")
        if step < 1:
            raise evaluation_error(f"the chunk size of $partition must be at least 1, not {step}")
        items = list(array)
        return [items[start : start + step] for start in range(0, len(items), step)]

    @staticmethod
    def range_of(first: Json, last: Json, delta: Json) -> Json:
        if first is None or last is None or delta is None:
            return None
        start, end, step = (_whole(value, "An argument of $range") for value in (first, last, delta))
        if step == 0:
            raise evaluation_error("the delta of $range must not be 0")
        # The last element is part of the range.
        values = range(start, end + (1 if step > 0 else -1), step)
        _check_size(len(values))
        return list(values)

    @staticmethod
    def hash_of(source: Json, algorithm: Json) -> Json:
        if source is None or algorithm is None:
            return None
        if algorithm not in ALGORITHMS:
            raise evaluation_error(f"the algorithm of $hash must be one of {', '.join(ALGORITHMS)}, not {algorithm}")
        return ALGORITHMS[algorithm](source.encode(), usedforsecurity=False).hexdigest()

    @staticmethod
    def random_number(seed: Json) -> float:
        if seed is None:
            return _scope().random.random()
        return random.Random(_whole(seed, "The seed of $random")).random()

    @staticmethod
    def uuid_text() -> str:
        return str(uuid.UUID(int=_scope().random.getrandbits(128), version=4))

    @staticmethod
    def parse(text: Json) -> Json:
        if text is None:
            return None
        if not isinstance(text, str):
            raise evaluation_error(f"$parse reads text, not a value of type {type(text).__name__}")
        try:
            return with_nulls(json.loads(text, parse_constant=_not_json))
        except ValueError as exc:
            raise evaluation_error(f"$parse was given text that is not JSON: {exc}") from exc

    @staticmethod
    def shuffle(array: Json) -> Json:
        if array is None:
            return None
        items = list(array)
        _scope().random.shuffle(items)
        return items

    @staticmethod
    def now(picture: Json, timezone: Json) -> Json:
        return Functions.datetime_from_millis(_now_ms(), picture, timezone)

    @staticmethod
    def millis() -> int:
        return _now_ms()

    @staticmethod
    def to_millis(timestamp: Json, picture: Json) -> Json:
        if timestamp is None or picture is None:
            return Functions.datetime_to_millis(timestamp, picture)
        # Components that a picture lacks default to today's. The library would read the clock, which is not
        # deterministic, so the date is filled in here.
        letters = set(_COMPONENTS.findall(picture))
        if not letters & set("YXxwW"):
            year, month, day = iso_timestamp(_now_ms())[:10].split("-")
            prefix, shape = f"{year}-", "[Y0001]-"
            if not letters & set("Md"):
                prefix, shape = f"{prefix}{month}-", f"{shape}[M01]-"
                if "D" not in letters:
                    prefix, shape = f"{prefix}{day}-", f"{shape}[D01]-"
            timestamp, picture = prefix + timestamp, shape + picture
        return Functions.datetime_to_millis(timestamp, picture)

    @staticmethod
    def distinct(value: Json) -> Json:
        # The library's version treats 1 and true as equal, and is quadratic.
        if not isinstance(value, list) or len(value) <= 1:
            return value
        firsts: dict[str, Json] = {}
        for item in value:
            firsts.setdefault(Functions.string([item], None), item)
        return Utils.create_sequence_from_iter(firsts.values())

    @staticmethod
    def pad(text: Json, width: Json, char: Json) -> Json:
        if isinstance(width, int | float):
            _check_size(math.ceil(abs(width)))
        return Functions.pad(text, width, char)

    @staticmethod
    def join(texts: Json, separator: Json) -> Json:
        if texts is not None:
            _check_size(sum(map(len, texts)) + len(texts) * len(separator or ""))
        return Functions.join(texts, separator)

    @staticmethod
    def replace(text: Json, pattern: Json, replacement: Json, limit: Json) -> Json:
        if isinstance(text, str) and isinstance(replacement, str):
            matches = len(text) + 1 if limit is None else min(len(text) + 1, limit)
            _check_size(matches * len(replacement))
        return Functions.replace(text, pattern, replacement, limit)

    @staticmethod
    def evaluate(*_: Json) -> Json:
        raise evaluation_error("$eval is not supported; $parse reads JSON")


def _not_json(name: str) -> Json:
    raise ValueError(f"{name} is not a JSON number")


_SIGNATURES: Final = (
    ("partition", "<an:a>", "partition"),
    ("range", "<nnn:a>", "range_of"),
    ("hash", "<ss:s>", "hash_of"),
    ("random", "<n?:n>", "random_number"),
    ("uuid", "<:s>", "uuid_text"),
    ("parse", "<s-:x>", "parse"),
    ("shuffle", "<a:a>", "shuffle"),
    ("now", "<s?s?:s>", "now"),
    ("millis", "<:n>", "millis"),
    ("toMillis", "<s-s?:n>", "to_millis"),
    ("distinct", "<x:x>", "distinct"),
    ("pad", "<s-ns?:s>", "pad"),
    ("join", "<a<s>s?:s>", "join"),
    ("replace", "<s-(sf)(sf)n?:s>", "replace"),
    ("eval", "<sx?:x>", "evaluate"),
)


def library() -> Json:
    """Return the frame of every expression: these functions, and JSONata's own in the frame behind it."""
    frame = Jsonata.Frame(Jsonata.static_frame)
    for name, signature, method in _SIGNATURES:
        frame.bind(name, Jsonata.function(name, signature, StepFunctions, method))
    return frame
