"""Source map: parses YAML and JSON into trees whose nodes know their line, column and path.

Plain scalars follow YAML 1.2: `on` and `no` are texts, `10:30` is a text and not a sexagesimal number, and a date is a
text. Tags construct nothing. Duplicate keys are refused, and so are files that are too large, too deep or, expanded by
aliases, too long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import yaml
from msgspec import Struct

from headgate.pipelines.definition.problems import Problem

TEXT_BYTES_MAX: Final = 1_048_576
DEPTH_MAX: Final = 60
NODES_MAX: Final = 50_000

_TAG: Final = "tag:yaml.org,2002:"
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT: Final = re.compile(r"[-+]?[0-9]{1,4000}")
_BASED: Final = re.compile(r"0x[0-9a-fA-F]{1,1000}|0o[0-7]{1,1000}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# JSON's surrogate pairs; the backslash itself must not be escaped.
_PAIR: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_WHOLE_MAX: Final = 2**63 - 1
_MERGE: Final = "<<"
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Event: TypeAlias = Any

Scalar = str | int | float | bool | None


class Node(Struct):
    """A value of a file with its position and path: `readiness.rules[0].check`."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int
    column: int
    path: str = ""

    def mapping(self) -> dict[str, Node]:
        """Return its fields; empty if it is no mapping."""
        return self.value if isinstance(self.value, dict) else {}

    def at(self, *keys: str) -> Node | None:
        """Return the node under a chain of keys, or None."""
        node: Node | None = self
        for key in keys:
            node = None if node is None else node.mapping().get(key)
        return node

    def plain(self) -> Any:  # noqa: ANN401 - what the file says
        """Return the value without positions."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


class Unreadable(Exception):
    """A text cannot be parsed. `problem` has position and reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text())
        self.problem = problem


def documents(text: str, source: str) -> list[Node]:
    """Return the non-empty documents of a YAML or JSON text. Raises `Unreadable`."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise Unreadable(Problem(source=source, fact="it is not text in UTF-8")) from exc
    if size > TEXT_BYTES_MAX:
        fact = f"it has {size} bytes"
        raise Unreadable(Problem(source=source, fact=fact, allowed=f"at most {TEXT_BYTES_MAX}; split it"))
    composer = _Composer(_as_yaml(text.removeprefix("\ufeff")), source)
    try:
        return [node for node in composer.documents() if node.value is not None]
    except yaml.MarkedYAMLError as exc:
        raise Unreadable(_syntax_problem(exc, source)) from exc
    except yaml.YAMLError as exc:
        raise Unreadable(Problem(source=source, fact=_first_line(str(exc)))) from exc


def _as_yaml(text: str) -> str:
    """Return JSON as valid YAML: without tabs between values and without surrogate pairs."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    return _PAIR.sub(_character, text.replace("\t", " "))


def _character(match: re.Match[str]) -> str:
    backslashes, high, low = match.groups()
    return backslashes + chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))


def child_path(path: str, key: str | int) -> str:
    """Return the path of a child."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    shown = key if _PLAIN_KEY.fullmatch(key) else f"{key!r}"
    return f"{path}.{shown}" if path else shown


def moved(node: Node, path: str) -> Node:
    """Return a copy under another path."""
    value = node.value
    if isinstance(value, dict):
        value = {key: moved(child, child_path(path, key)) for key, child in value.items()}
    elif isinstance(value, list):
        value = [moved(child, child_path(path, index)) for index, child in enumerate(value)]
    return Node(value, node.line, node.column, path)


class _Composer:
    """Builds trees from the events of the YAML parser, in one pass."""

    def __init__(self, text: str, source: str) -> None:
        self._events: Iterator[_Event] = yaml.parse(text, Loader=_Loader)
        self._source = source
        self._anchors: dict[str, Node] = {}
        self._count = 0

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                # Aliases are local to a document.
                self._anchors = {}
                self._count = 0
                yield self._node(next(self._events), "", 0)

    def _node(self, event: _Event, path: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise self._refused(event, path, f"it is nested deeper than {DEPTH_MAX} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        self._counted(event, path)
        node = Node(None, event.start_mark.line + 1, event.start_mark.column + 1, path)
        if isinstance(event, yaml.MappingStartEvent):
            self._check_tag(event, path, "map")
            node.value = self._mapping(path, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, path, "seq")
            node.value = self._sequence(path, depth)
        else:
            node.value = self._scalar(event, path)
        # Registered last, so that no node can contain itself.
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _counted(self, event: _Event, path: str) -> None:
        self._count += 1
        if self._count > NODES_MAX:
            raise self._refused(event, path, f"it has more than {NODES_MAX} values, aliases counted in full")

    def _alias(self, event: _Event, path: str) -> Node:
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise self._refused(event, path, f"no anchor &{event.anchor} comes before this alias")
        return self._copied(anchor, event, path)

    def _copied(self, node: Node, event: _Event, path: str) -> Node:
        """Return the copy of an alias, counted, at the path of the alias and the position of the anchor."""
        self._counted(event, path)
        value = node.value
        if isinstance(value, dict):
            value = {key: self._copied(child, event, child_path(path, key)) for key, child in value.items()}
        elif isinstance(value, list):
            value = [self._copied(child, event, child_path(path, index)) for index, child in enumerate(value)]
        return Node(value, node.line, node.column, path)

    def _sequence(self, path: str, depth: int) -> list[Node]:
        items: list[Node] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, child_path(path, len(items)), depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> dict[str, Node]:
        fields: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path)
            value = self._node(next(self._events), child_path(path, key), depth + 1)
            if key == _MERGE and event.implicit[0]:
                self._merge(value, event, path, merged)
            elif key in fields:
                raise self._refused(
                    event, child_path(path, key), f"it is given twice, first at line {fields[key].line}"
                )
            else:
                fields[key] = value
        return {**{key: node for key, node in merged.items() if key not in fields}, **fields}

    def _merge(self, node: Node, event: _Event, path: str, merged: dict[str, Node]) -> None:
        parts = node.value if isinstance(node.value, list) else [node]
        for part in parts:
            if not isinstance(part.value, dict):
                raise self._refused(event, path, "<< takes a mapping, or a list of them")
            for key, child in part.value.items():
                merged.setdefault(key, moved(child, child_path(path, key)))

    def _key(self, event: _Event, path: str) -> str:
        if isinstance(event, yaml.AliasEvent):
            named = self._anchors.get(str(event.anchor))
            if named is not None and isinstance(named.value, str):
                return named.value
        if not isinstance(event, yaml.ScalarEvent):
            raise self._refused(event, path, "the name of a field is a text")
        return str(event.value)

    def _scalar(self, event: _Event, path: str) -> Scalar:
        if event.implicit[0] and event.tag is None:
            return _plain(event.value)
        if event.tag in (None, "!", f"{_TAG}str"):
            return str(event.value)
        value = _plain(event.value)
        self._check_tag(
            event, path, {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value), "")
        )
        return value

    def _check_tag(self, event: _Event, path: str, name: str) -> None:
        if event.tag not in (None, "!", f"{_TAG}{name}"):
            raise self._refused(event, path, f"the tag {event.tag.replace(_TAG, '!!')} cannot be used here")

    def _refused(self, event: _Event, path: str, fact: str) -> Unreadable:
        mark = event.start_mark
        return Unreadable(
            Problem(source=self._source, line=mark.line + 1, column=mark.column + 1, field=path, fact=fact)
        )


def _plain(text: str) -> Scalar:
    """Return the value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return _whole(int(text), text)
    if _BASED.fullmatch(text):
        return _whole(int(text, 0), text)
    if _FLOAT.fullmatch(text):
        return _finite(float(text), text)
    return text


def _whole(number: int, text: str) -> Scalar:
    """Return an integer; one beyond 64 bits becomes the nearest float."""
    if -_WHOLE_MAX <= number <= _WHOLE_MAX:
        return number
    try:
        return float(number)
    except OverflowError:
        return text


def _finite(number: float, text: str) -> Scalar:
    # Too large for a float, and infinity cannot be stored.
    return number if math.isfinite(number) else text


def _syntax_problem(error: _Event, source: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    fact = f"this is not YAML: {error.problem or 'it cannot be read'}"
    if error.context:
        fact += f" {error.context}"
    line, column = (0, 0) if mark is None else (mark.line + 1, mark.column + 1)
    return Problem(source=source, line=line, column=column, fact=_first_line(fact))


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0]
