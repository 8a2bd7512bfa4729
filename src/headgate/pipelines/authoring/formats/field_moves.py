"""Field moves: maps the fields of another format to ours, and refuses unknown fields by name."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.pipelines.definition.node_edits import put
from headgate.pipelines.definition.problems import nearest, one_of
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import DecodeReport, Path

# A prefix that keeps foreign paths apart from those of our structs.
_FOREIGN = "\x00"


class Moves:
    """The mapping of a format: dotted paths from theirs to ours. `refused` has reasons."""

    def __init__(self, moves: Mapping[str, str], refused: Mapping[str, str] | None = None) -> None:
        self._moves = moves
        self._refused = refused or {}
        self._known = (*self._moves, *self._refused)

    def apply(self, document: Node, reading: DecodeReport) -> Node:
        """Return a new document with every known field in its place. Unknown ones are reported."""
        made = Node({}, document.line, document.column)
        self._walk(document, "", made, reading)
        return made

    def _walk(self, node: Node, prefix: str, made: Node, reading: DecodeReport) -> None:
        for name, child in node.mapping().items():
            path = f"{prefix}{name}"
            if child.value is None:
                continue
            if path in self._moves:
                put(made, self._moves[path], child)
            elif path in self._refused:
                reading.refuse(child, foreign(path), self._refused[path])
            elif any(known.startswith(f"{path}.") for known in self._known):
                self._descend(child, path, made, reading)
            else:
                siblings = {
                    known.removeprefix(prefix).split(".")[0] for known in self._known if known.startswith(prefix)
                }
                hint = nearest(name, siblings)
                fact = "there is no such field"
                reading.refuse(child, foreign(path), fact, suggestion=hint, allowed=one_of(sorted(siblings)))

    def _descend(self, child: Node, path: str, made: Node, reading: DecodeReport) -> None:
        if isinstance(child.value, dict):
            self._walk(child, f"{path}.", made, reading)
        else:
            reading.refuse(child, foreign(path), "this is no mapping", allowed="give a mapping")


def foreign(path: str) -> Path:
    """Return a path for `DecodeReport` that is not of our structs."""
    return (_FOREIGN, path)


def taken(made: Node, name: str) -> Node | None:
    """Remove and return a field of the new document."""
    return made.mapping().pop(name, None)


def placed_like(made: Node, name: str, original: Node | None) -> None:
    """Give a mapping the position of the one that its fields came from."""
    part = made.at(name)
    if part is not None and original is not None:
        part.line, part.column, part.path = original.line, original.column, original.path
