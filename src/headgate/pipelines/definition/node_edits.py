"""Node edits: build a definition tree from nodes of another format, which keep their source positions."""

from __future__ import annotations

from typing import Any

from headgate.pipelines.definition.source_map import Node, child_path


def node_of(value: Any, like: Node, path: str = "") -> Node:  # noqa: ANN401 - any JSON value
    """Return a value as a tree at the position of another node."""
    path = path or like.path
    if isinstance(value, Node):
        return value
    if isinstance(value, dict):
        value = {key: node_of(each, like, child_path(path, key)) for key, each in value.items()}
    elif isinstance(value, list):
        value = [node_of(each, like, child_path(path, index)) for index, each in enumerate(value)]
    return Node(value, like.line, like.column, path)


def mapping_at(parent: Node, name: str) -> Node | None:
    """Return the mapping under a name, created if absent; None if another value is there."""
    if not isinstance(parent.value, dict):
        return None
    child = parent.value.get(name)
    if child is None or child.value is None:
        child = parent.value[name] = Node({}, parent.line, parent.column, child_path(parent.path, name))
    return child if isinstance(child.value, dict) else None


def set_default(parent: Node, name: str, value: Any) -> None:  # noqa: ANN401
    """Set a value under a name that is absent."""
    if isinstance(parent.value, dict) and (name not in parent.value or parent.value[name].value is None):
        parent.value[name] = node_of(value, parent, child_path(parent.path, name))


def put(root: Node, path: str, value: Any, like: Node | None = None) -> None:  # noqa: ANN401
    """Set a value or a node under a dotted path, creating the mappings between."""
    *between, last = path.split(".")
    parent = root
    for name in between:
        below = mapping_at(parent, name)
        assert below is not None, f"{path}: something else is at {name}"
        parent = below
    assert isinstance(parent.value, dict), path
    parent.value[last] = (
        value if isinstance(value, Node) else node_of(value, like or parent, child_path(parent.path, last))
    )


def renamed(node: Node, names: dict[str, str]) -> Node:
    """Return a mapping with some fields renamed. Anything else is returned unchanged."""
    if not isinstance(node.value, dict):
        return node
    fields = {names.get(name, name): child for name, child in node.value.items()}
    return Node(fields, node.line, node.column, node.path)
