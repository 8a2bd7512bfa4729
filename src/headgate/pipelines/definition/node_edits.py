"""Edits of trees: making a document of ours from the nodes of another, which keep their places and paths."""

from __future__ import annotations

from typing import Any

from headgate.pipelines.definition.source_map import Node, child_path


def made(value: Any, like: Node, path: str = "") -> Node:  # noqa: ANN401 - any JSON value
    """Return a value as a tree that stands where another node does."""
    path = path or like.path
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        value = {key: made(each, like, child_path(path, key)) for key, each in value.items()}
    elif isinstance(value, list):
        value = [made(each, like, child_path(path, index)) for index, each in enumerate(value)]
    return Node(value, like.line, like.column, path)


def mapping_at(parent: Node, name: str) -> Node | None:
    """Return the mapping under a name, made if there is nothing; None if something else is there."""
    if not isinstance(parent.value, dict):
        return None
    found = parent.value.get(name)
    if found is None or found.value is None:
        found = parent.value[name] = Node({}, parent.line, parent.column, child_path(parent.path, name))
    return found if isinstance(found.value, dict) else None


def give(parent: Node, name: str, value: Any) -> None:  # noqa: ANN401
    """Put a value under a name where there is nothing."""
    if isinstance(parent.value, dict) and (name not in parent.value or parent.value[name].value is None):
        parent.value[name] = made(value, parent, child_path(parent.path, name))


def put(root: Node, path: str, value: Any, like: Node | None = None) -> None:  # noqa: ANN401
    """Put a value or a node under a path of names with dots, making what lies between."""
    *between, last = path.split(".")
    parent = root
    for name in between:
        below = mapping_at(parent, name)
        assert below is not None, f"{path}: something else is at {name}"
        parent = below
    assert isinstance(parent.value, dict), path
    parent.value[last] = (
        value if isinstance(value, Node) else made(value, like or parent, child_path(parent.path, last))
    )


def renamed(node: Node, names: dict[str, str]) -> Node:
    """Return a mapping with some of its fields under other names. Anything else is returned as it is."""
    if not isinstance(node.value, dict):
        return node
    fields = {names.get(name, name): child for name, child in node.value.items()}
    return Node(fields, node.line, node.column, node.path)
