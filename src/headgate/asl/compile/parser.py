"""Reading: a definition from its text, with what JSON parsers let pass and a person did not mean refused."""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn

from headgate.asl.expressions.scope import Json
from headgate.errors import DefinitionError

# What CreateStateMachine takes.
DEFINITION_BYTES_MAX: Final = 1_048_576
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]', re.DOTALL)


def load(text: str) -> Json:
    """Return the JSON that a text holds.

    Raises `DefinitionError`, with line and column, for what is not JSON, for a name that stands twice in one object
    (a parser would silently keep the last), and for a text that is larger than Step Functions takes.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise DefinitionError("the definition holds half a character, which is no text; mend its encoding") from error
    if size > DEFINITION_BYTES_MAX:
        raise DefinitionError(
            f"the definition has {size} bytes: a definition has {DEFINITION_BYTES_MAX} at most; "
            "move parts of it to machines of their own"
        )
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise DefinitionError(f"the definition is not JSON: {where}: {error.msg}; mend the text there") from error
    except ValueError as error:
        raise DefinitionError(
            f"the definition has a number that cannot be read: {error}; write a shorter one"
        ) from error
    except RecursionError as error:
        raise DefinitionError("the definition is nested deeper than can be read; make it flatter") from error
    _refuse_duplicates(text)
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise DefinitionError(f"the definition has {name}, which is not JSON; write a number")


def _refuse_duplicates(text: str) -> None:
    """Go through the names of every object. The text is known to be JSON: the marks between strings say enough."""
    open_names: list[dict[str, int]] = []
    last = ""
    last_at = 0
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            # A list has no names, but is closed like an object.
            open_names.append({})
        elif mark in "}]":
            open_names.pop()
        elif mark == ":":
            _note(text, open_names[-1], json.loads(last), last_at)
        elif mark != ",":
            last, last_at = mark, token.start()


def _note(text: str, names: dict[str, int], name: str, at: int) -> None:
    if name in names:
        raise DefinitionError(
            f"the definition has {name!r} twice in one object: {_place(text, names[name])} and {_place(text, at)}; "
            "keep one of them"
        )
    names[name] = at


def _place(text: str, at: int) -> str:
    return f"line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
