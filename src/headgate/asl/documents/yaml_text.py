"""YAML definitions: YAML 1.2 with the short forms of CloudFormation's functions, such as `!Sub`.

As in CloudFormation there are no aliases or merges, so that the size of the text bounds the document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml
from msgspec import Struct

from headgate.asl.documents.cloudformation import call, evaluated
from headgate.asl.expressions.scope import Json
from headgate.errors import DefinitionError

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STANDARD: Final = "tag:yaml.org,2002:"
_TYPE_NAMES: Final = {type(None): "null", bool: "bool", int: "int", float: "float"}
_WORDS: Final[Mapping[str, Json]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_NUMBER: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_COLLECTIONS: Final = frozenset({None, "!", f"{_STANDARD}map", f"{_STANDARD}seq"})
# Deeper than any machine that the validator accepts.
_DEPTH_MAX: Final = 1_000


class _Open(Struct):
    """A collection that is being read."""

    # None for a sequence.
    members: dict[str, Json] | None
    entries: list[Json]
    tag: str | None
    # The name that awaits its value.
    key: str | None = None


def load_yaml(text: str, fill: Callable[[str], str], *, allow_duplicates: bool = False) -> Json:
    """Parse YAML; `fill` replaces the placeholders that functions produce. Raises `DefinitionError` with the line.

    With `allow_duplicates` the last of several members of one name counts, as it does for CloudFormation's tools.
    """
    try:
        return _Reader(fill, allow_duplicates=allow_duplicates).read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        fact = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise DefinitionError(f"the definition is neither JSON nor YAML{where}: {fact}; correct it there") from error


class _Reader:
    """Builds a document from the events of one parse. It does not recurse: the text may be nested deeply."""

    def __init__(self, fill: Callable[[str], str], *, allow_duplicates: bool) -> None:
        self._fill = fill
        self._allow_duplicates = allow_duplicates
        self._open: list[_Open] = []
        self._documents: list[Json] = []

    def read(self, text: str) -> Json:
        for event in yaml.parse(text, Loader=_LOADER):
            self._take(event)
        if len(self._documents) > 1:
            raise DefinitionError(f"the definition has {len(self._documents)} YAML documents; keep one")
        return self._documents[0] if self._documents else None

    def _take(self, event: Any) -> None:  # noqa: ANN401 - an event of the parser
        match event:
            case yaml.AliasEvent():
                raise _refused(event, "an alias", "write the value itself, as in CloudFormation")
            case yaml.ScalarEvent():
                self._add_scalar(event)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                if len(self._open) >= _DEPTH_MAX:
                    raise _refused(event, f"more than {_DEPTH_MAX} levels", "make it flatter")
                if event.tag not in _COLLECTIONS and not _is_function(event.tag):
                    raise _refused(event, f"the tag {event.tag}", "leave it out")
                if self._awaits_name():
                    raise _refused(event, "a collection as a name", "write the name as text")
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                self._open.append(_Open({} if is_mapping else None, [], event.tag))
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                done = self._open.pop()
                self._add(self._evaluated(done.tag, done.entries if done.members is None else done.members))

    def _add_scalar(self, event: Any) -> None:  # noqa: ANN401 - an event of the parser
        if self._awaits_name():
            self._begin_member(event)
        elif _is_function(event.tag):
            self._add(self._evaluated(event.tag, event.value))
        else:
            self._add(self._scalar(event))

    def _awaits_name(self) -> bool:
        return bool(self._open) and self._open[-1].members is not None and self._open[-1].key is None

    def _begin_member(self, event: Any) -> None:  # noqa: ANN401 - an event of the parser
        holder = self._open[-1]
        assert holder.members is not None, "only a mapping awaits a name"
        if event.value in holder.members and not self._allow_duplicates:
            raise _refused(event, f"{event.value!r} twice in one object", "keep one of them")
        if event.value == "<<" and event.implicit[0]:
            raise _refused(event, "a merge", "write the members themselves, as in CloudFormation")
        # A name stays as written: `on:` and `1:` are text in JSON too.
        holder.key = event.value

    def _scalar(self, event: Any) -> Json:  # noqa: ANN401 - an event of the parser
        if event.tag is None and not event.implicit[0]:
            return event.value
        if event.tag in (None, "!"):
            return event.value if event.tag == "!" else _plain_value(event)
        if event.tag == f"{_STANDARD}str":
            return event.value
        value = _plain_value(event)
        if event.tag != f"{_STANDARD}{_TYPE_NAMES.get(type(value), 'str')}":
            raise _refused(event, f"the tag {event.tag} on {event.value!r}", "leave it out")
        return value

    def _evaluated(self, tag: str | None, value: Json) -> Json:
        if tag is None or not _is_function(tag):
            return value
        result = call(tag.removeprefix("!"), evaluated(value))
        return self._fill(result) if isinstance(result, str) else result

    def _add(self, value: Json) -> None:
        if not self._open:
            self._documents.append(value)
            return
        holder = self._open[-1]
        if holder.members is None:
            holder.entries.append(value)
        else:
            assert holder.key is not None, "a member has a name"
            holder.members[holder.key] = value
            holder.key = None


def _plain_value(event: Any) -> Json:  # noqa: ANN401 - an event of the parser
    """Return the value of a scalar without quotes, by the core schema of YAML 1.2."""
    text: str = event.value
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        try:
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        except ValueError as error:
            raise _refused(event, "a number that cannot be read", "write a shorter one") from error
    if _NUMBER.fullmatch(text):
        number = float(text)
        if math.isfinite(number):
            return number
    if text.lower().lstrip("+-") in (".inf", ".nan") or _NUMBER.fullmatch(text):
        raise _refused(event, f"{text}, which is not JSON", "write a number")
    return text


def _is_function(tag: str | None) -> bool:
    return tag is not None and tag.startswith("!") and tag != "!"


def _refused(event: Any, fact: str, remedy: str) -> DefinitionError:  # noqa: ANN401 - an event of the parser
    mark = event.start_mark
    return DefinitionError(f"the definition has {fact}: line {mark.line + 1}, column {mark.column + 1}; {remedy}")
