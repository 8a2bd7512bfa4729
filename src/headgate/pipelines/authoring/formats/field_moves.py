"""Moves of fields from one format to another: each known field to its place, each unknown one refused by name."""

from __future__ import annotations

from collections.abc import Mapping

from headgate.pipelines.definition.node_edits import put
from headgate.pipelines.definition.problems import nearest, one_of
from headgate.pipelines.definition.source_map import Node
from headgate.pipelines.definition.typed_decoder import Path, Reading

# Beside the paths of structs, so that what is refused in a file of another format is not taken for one of those.
_FOREIGN = "\x00"


class Moves:
    """Where the fields of a format go: paths with dots, from theirs to ours. `refused` has reasons."""

    def __init__(self, moves: Mapping[str, str], refused: Mapping[str, str] | None = None) -> None:
        self._moves = moves
        self._refused = refused or {}
        self._known = (*self._moves, *self._refused)

    def apply(self, document: Node, reading: Reading) -> Node:
        """Return a new document with every known field in its place. The others are reported."""
        made = Node({}, document.line, document.column)
        self._walk(document, "", made, reading)
        return made

    def _walk(self, node: Node, prefix: str, made: Node, reading: Reading) -> None:
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

    def _descend(self, child: Node, path: str, made: Node, reading: Reading) -> None:
        if isinstance(child.value, dict):
            self._walk(child, f"{path}.", made, reading)
        else:
            reading.refuse(child, foreign(path), "this is no mapping", allowed="give a mapping")


def foreign(path: str) -> Path:
    """Return a path for `Reading` that is none of our struct's."""
    return (_FOREIGN, path)


def taken(made: Node, name: str) -> Node | None:
    """Return a field of the document that is being made, and take it out."""
    return made.mapping().pop(name, None)


def placed_like(made: Node, name: str, original: Node | None) -> None:
    """Have a mapping that was put together stand where the one stood that its fields were taken from."""
    part = made.at(name)
    if part is not None and original is not None:
        part.line, part.column, part.path = original.line, original.column, original.path
