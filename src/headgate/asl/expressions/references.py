"""Reference paths: the location in a document that ResultPath writes to."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.asl.errors import RESULT_PATH_MATCH_FAILURE, StateError
from headgate.asl.expressions.scope import Json


class Reference(Struct, frozen=True):
    """A location as names and list indexes. Without steps it is the whole document."""

    text: str
    steps: tuple[str | int, ...]

    def write(self, document: Json, value: Json) -> Json:
        """Return a copy of the document with `value` at this location; missing objects are created.

        Raises `StateError` (States.ResultPathMatchFailure) if a step meets a scalar, or an index outside its list.
        """
        return _written(document, self.steps, value, self.text)


WHOLE: Final = Reference("$", ())


def _written(document: Json, steps: tuple[str | int, ...], value: Json, text: str) -> Json:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(document, list) or step >= len(document):
            raise _mismatch(text, document)
        return [*document[:step], _written(document[step], rest, value, text), *document[step + 1 :]]
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise _mismatch(text, document)
    return {**document, step: _written(document.get(step), rest, value, text)}


def _mismatch(text: str, document: Json) -> StateError:
    kind = type(document).__name__
    return StateError(RESULT_PATH_MATCH_FAILURE, f"Unable to apply ResultPath {text} to an input of type {kind}")
