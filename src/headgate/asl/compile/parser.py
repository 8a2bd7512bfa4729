"""Definition parser: strict JSON that rejects duplicate names, NaN, and oversized or unencodable text."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from headgate.asl.expressions.scope import Json
from headgate.errors import DefinitionError

# The limit of CreateStateMachine.
DEFINITION_BYTES_MAX: Final = 1_048_576
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)


def load(text: str) -> Json:
    """Parse a definition.

    Raises `DefinitionError`, with line and column, for invalid JSON, for a duplicate name in an object (JSON parsers
    silently keep the last), and for text over the size limit of Step Functions.
    """
    check_size(text)
    try:
        document = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DefinitionError(f"the definition is not JSON: {where}: {error.msg}; correct it there") from error
    except ValueError as error:
        raise DefinitionError(
            f"the definition has a number that cannot be read: {error}; write a shorter one"
        ) from error
    except RecursionError as error:
        raise DefinitionError("the definition is nested deeper than can be read; make it flatter") from error
    _reject_duplicates(text)
    return document


def check_size(text: str) -> None:
    """Raise `DefinitionError` for text over the size limit of Step Functions, or that UTF-8 cannot encode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise DefinitionError(
            "the definition contains a lone surrogate, which UTF-8 cannot encode; fix its encoding"
        ) from error
    if size > DEFINITION_BYTES_MAX:
        raise DefinitionError(
            f"the definition has {size} bytes: a definition has {DEFINITION_BYTES_MAX} at most; "
            "move parts of it to machines of their own"
        )


def _reject_constant(name: str) -> NoReturn:
    raise DefinitionError(f"the definition has {name}, which is not JSON; write a number")


def _reject_duplicates(text: str) -> None:
    """Raise `DefinitionError` for a duplicate name. Scans the punctuation, as the text is known to be valid JSON."""
    open_names: list[dict[str, int]] = []
    last = ""
    last_at = 0
    for token in _TOKEN.finditer(text):
        symbol = token.group()
        if symbol in "{[":
            # Lists have no names, but nest like objects.
            open_names.append({})
        elif symbol in "}]":
            open_names.pop()
        elif symbol == ":":
            _add_name(text, open_names[-1], json.loads(last), last_at)
        elif symbol != ",":
            last, last_at = symbol, token.start()


def _add_name(text: str, names: dict[str, int], name: str, at: int) -> None:
    if name in names:
        raise DefinitionError(
            f"the definition has {name!r} twice in one object: {_place(text, names[name])} and {_place(text, at)}; "
            "keep one of them"
        )
    names[name] = at


def _place(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
