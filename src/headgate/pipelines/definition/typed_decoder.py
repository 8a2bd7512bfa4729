"""Typed decoder: decodes a tree into structs and collects all problems in one pass."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, TypeVar, cast

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.inspect import Field, StructType, Type

from headgate.durable.model.duration import seconds_of
from headgate.pipelines.definition.problems import Problem, nearest, one_of, shown
from headgate.pipelines.definition.source_map import Node, child_path

S = TypeVar("S", bound=Struct)

# The path of a value in a struct: field names, map keys, list indexes.
Path = tuple[str | int, ...]

DURATION_FORMS: Final = 'use a number of seconds, or a text such as "90s", "5m", "1h30m" or "2d"'
_BAD: Final = object()
_WORDS: Final[dict[type, str]] = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a mapping",
    type(None): "nothing",
}  # fmt: skip


class DecodeReport:
    """The problems of one document, and the node of each part of the struct."""

    def __init__(self, source: str, root: Node) -> None:
        self.source = source
        self.root = root
        self.problems: list[Problem] = []
        self._nodes: dict[Path, Node] = {(): root}
        self._bad: set[Path] = set()

    def note(self, path: Path, node: Node) -> None:
        """Record the node of a part of the struct."""
        self._nodes[path] = node

    def is_given(self, path: Path) -> bool:
        """Whether the file has a value there."""
        return path in self._nodes

    def is_bad(self, path: Path) -> bool:
        """Whether the value there, above or below could not be decoded."""
        return any(bad[: len(path)] == path or path[: len(bad)] == bad for bad in self._bad)

    def refuse(self, node: Node, path: Path, fact: str, *, allowed: str = "", suggestion: str = "") -> None:
        """Report a value that could not be decoded; further problems of it are suppressed."""
        self._bad.add(path)
        self._report(node, node.path, fact, allowed, suggestion)

    def refuse_read(self, path: Path, fact: str, *, allowed: str = "") -> None:
        """Report a decoded value that is invalid; further problems of it are suppressed."""
        self.report(path, fact, allowed=allowed)
        self._bad.add(path)

    def refuse_missing(
        self, parent: Node, path: Path, name: str, *, fact: str = "it is missing", allowed: str = ""
    ) -> None:
        """Report a missing required field."""
        self._bad.add(path)
        self._report(parent, child_path(parent.path, name), fact, allowed, "")

    def report(
        self,
        path: Path,
        fact: str,
        *,
        allowed: str = "",
        suggestion: str = "",
        warning: bool = False,
        involved: tuple[Path, ...] = (),
    ) -> None:
        """Report a problem of a decoded value, unless it or an involved value could not be decoded."""
        if any(self.is_bad(each) for each in (path, *involved)):
            return
        node, rest = self._nearest(path)
        field = node.path
        for key in rest:
            field = child_path(field, key)
        self._report(node, field, fact, allowed, suggestion, is_warning=warning)

    def _nearest(self, path: Path) -> tuple[Node, Path]:
        """Return the node of a path, or of its nearest ancestor with the rest of the path."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._nodes:
                return self._nodes[path[:length]], path[length:]
        return self.root, path

    def _report(
        self, node: Node, field: str, fact: str, allowed: str, suggestion: str, *, is_warning: bool = False
    ) -> None:
        problem = Problem(
            source=self.source,
            line=node.line,
            column=node.column,
            field=field,
            fact=fact,
            allowed=allowed,
            suggestion=suggestion,
            is_warning=is_warning,
        )
        if problem not in self.problems:
            self.problems.append(problem)


def read_struct(node: Node, kind: type[S], reading: DecodeReport) -> S:
    """Decode a document into a struct, with defaults for values that could not be decoded; see `reading`."""
    read = _struct(node, _info(kind), (), reading)
    return cast("S", read) if read is not _BAD else cast("S", _placeholder(_info(kind)))


def name_in_files(name: str) -> str:
    """Return a field name without the underscore that avoids a Python keyword."""
    return name.removesuffix("_")


@cache
def _info(kind: type[Struct]) -> StructType:
    return cast("StructType", msgspec.inspect.type_info(kind))


def _struct(node: Node, kind: StructType, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401 - of the field's type
    if not isinstance(node.value, dict):
        return _wrong(node, path, reading, "a mapping")
    fields = {name_in_files(field.encode_name): field for field in kind.fields}
    by_any_name = {field.name: field for field in kind.fields} | fields
    values: dict[str, Any] = {}
    for name, child in node.value.items():
        field = by_any_name.get(name)
        if field is None:
            reading.refuse(
                child, (*path, name), "there is no such field", suggestion=nearest(name, fields), allowed=one_of(fields)
            )
            continue
        below = (*path, field.name)
        # A key without a value counts as absent.
        if child.value is None:
            continue
        reading.note(below, child)
        value = _value(child, field.type, below, reading)
        if value is not _BAD:
            values[field.name] = _default(field) if value == _default(field) else value
    for name, field in fields.items():
        if field.required and field.name not in values:
            if not reading.is_bad((*path, field.name)):
                reading.refuse_missing(node, (*path, field.name), name, allowed=f"give {_words(field.type)}")
            values[field.name] = _placeholder(field.type)
    return kind.cls(**values)


def _default(field: Field) -> Any:  # noqa: ANN401
    if field.default is not NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not NODEFAULT else _BAD


def _value(node: Node, kind: Type, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    match kind:
        case msgspec.inspect.UnionType():
            return _value(node, _member(kind), path, reading)
        case StructType():
            return _struct(node, kind, path, reading)
        case msgspec.inspect.VarTupleType():
            return _tuple(node, kind.item_type, path, reading)
        case msgspec.inspect.DictType():
            return _map(node, kind.value_type, path, reading)
        case msgspec.inspect.EnumType():
            return _enum(node, kind.cls, path, reading)
        case msgspec.inspect.CustomType():
            return _seconds(node, path, reading)
        case msgspec.inspect.AnyType():
            _note_below(node, path, reading)
            return node.plain()
    return _scalar(node, kind, path, reading)


def _note_below(node: Node, path: Path, reading: DecodeReport) -> None:
    """Record the nodes of a free-form value, so that a later check of it names the line."""
    children: Iterable[tuple[str | int, Node]] = ()
    if isinstance(node.value, dict):
        children = node.value.items()
    elif isinstance(node.value, list):
        children = enumerate(node.value)
    for key, child in children:
        reading.note((*path, key), child)
        _note_below(child, (*path, key), reading)


def _member(kind: msgspec.inspect.UnionType) -> Type:
    """Return the one type of a union besides None and unset."""
    return next(member for member in kind.types if not isinstance(member, msgspec.inspect.NoneType))


def _tuple(node: Node, item: Type, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    if not isinstance(node.value, list):
        return _wrong(node, path, reading, f"a list, each of them {_words(item)}")
    items = []
    for index, child in enumerate(node.value):
        reading.note((*path, index), child)
        value = _value(child, item, (*path, index), reading)
        # A placeholder keeps the index of later items.
        items.append(_placeholder(item) if value is _BAD else value)
    return tuple(items)


def _map(node: Node, item: Type, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    if not isinstance(node.value, dict):
        return _wrong(node, path, reading, "a mapping")
    values = {}
    for key, child in node.value.items():
        reading.note((*path, key), child)
        value = _value(child, item, (*path, key), reading)
        if value is not _BAD:
            values[key] = value
    return values


def _enum(node: Node, kind: type[enum.Enum], path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    known = [str(member.value) for member in kind]
    if node.value in known:
        return kind(node.value)
    text = node.value if isinstance(node.value, str) else ""
    fact = f"{shown(node.plain())} is not known"
    reading.refuse(node, path, fact, suggestion=nearest(text, known), allowed=one_of(known))
    return _BAD


def _seconds(node: Node, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    try:
        return seconds_of(node.value)
    except ValueError:
        reading.refuse(node, path, f"{shown(node.plain())} is not a duration", allowed=DURATION_FORMS)
        return _BAD


def _scalar(node: Node, kind: Type, path: Path, reading: DecodeReport) -> Any:  # noqa: ANN401
    value, wanted = node.value, _python_type(kind)
    if type(value) is wanted:
        return value
    if wanted is float and type(value) is int:
        return float(value)
    hint = " in quotes" if wanted is str and not isinstance(value, dict | list) else ""
    return _wrong(node, path, reading, _WORDS[wanted] + hint)


def _wrong(node: Node, path: Path, reading: DecodeReport, wanted: str) -> Any:  # noqa: ANN401
    is_part = isinstance(node.value, dict | list)
    what = _WORDS[type(node.value)] if is_part or node.value is None else shown(node.value)
    reading.refuse(node, path, f"{what} is not what can stand here", allowed=f"give {wanted}")
    return _BAD


def _words(kind: Type) -> str:
    match kind:
        case msgspec.inspect.UnionType():
            return _words(_member(kind))
        case StructType():
            return f"a mapping with {', '.join(name_in_files(field.encode_name) for field in kind.fields)}"
        case msgspec.inspect.VarTupleType():
            return "a list"
        case msgspec.inspect.CustomType():
            return "a duration"
        case msgspec.inspect.EnumType():
            return f"one of {', '.join(str(member.value) for member in kind.cls)}"
    return _WORDS.get(_python_type(kind), "a value")


def _python_type(kind: Type) -> type:
    match kind:
        case msgspec.inspect.StrType():
            return str
        case msgspec.inspect.BoolType():
            return bool
        case msgspec.inspect.IntType():
            return int
        case msgspec.inspect.FloatType():
            return float
        case msgspec.inspect.DictType():
            return dict
    return object


def _placeholder(kind: Type) -> Any:  # noqa: ANN401
    """Return a placeholder for a value that could not be decoded, so that the rest can be checked."""
    match kind:
        case StructType():
            return kind.cls(**{field.name: _placeholder(field.type) for field in kind.fields if field.required})
        case msgspec.inspect.VarTupleType():
            return ()
        case msgspec.inspect.EnumType():
            return next(iter(kind.cls))
    wanted = _python_type(kind)
    return None if wanted is object else wanted()
