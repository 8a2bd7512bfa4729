"""Differences between two versions of a dataset, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.store.model.values import same

# As many as an audit entry and an event name; there are no configs with more fields than this, only contracts.
NAMED_MAX: Final = 200
_PLAIN: Final = re.compile(r"\w[\w-]*")


class FieldChange(Struct, frozen=True):
    """One field that differs. None stands for a field that is not there."""

    path: str
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldChange]:
    """Return the fields in which two configs differ, by dotted path in order. A list is one field."""
    return sorted(_differences(before, after, ""), key=lambda change: change.path)


def names(changes: list[FieldChange]) -> tuple[str, ...]:
    """Return the paths of changes; of more than can be named, the fields that they are in."""
    if len(changes) <= NAMED_MAX:
        return tuple(change.path for change in changes)
    return tuple(sorted({_PLAIN.findall(change.path)[0] for change in changes}))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[FieldChange]:
    for name in {*before, *after}:
        old, new = before.get(name), after.get(name)
        path = _path(prefix, name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, path)
        elif not same(old, new):
            yield FieldChange(path, old, new)


def _path(prefix: str, name: str) -> str:
    """Return the path of a member. A name that itself has dots is quoted, so that paths stay readable one way."""
    if not _PLAIN.fullmatch(name):
        return f'{prefix}["{name}"]'
    return f"{prefix}.{name}" if prefix else name
