"""Dataset versions: reads archived versions, and the field-by-field difference between two configs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.errors import CursorError, DatasetNotFoundError, QueryLimitError
from headgate.health.model.datasets import Dataset
from headgate.health.registry.rows import dataset_of, latest_key, version_key
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import same
from headgate.store.port import Store

# The limit of fields that an audit entry and an event name; only contracts have more.
NAMED_MAX: Final = 200
_PLAIN: Final = re.compile(r"\w[\w-]*")


class FieldChange(Struct, frozen=True):
    """A field that differs. None stands for a missing field."""

    path: str
    before: Any
    after: Any


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldChange]:
    """Return the fields in which two configs differ, by dotted path. A list is one field."""
    return sorted(_differences(before, after, ""), key=lambda change: change.path)


def names(changes: list[FieldChange]) -> tuple[str, ...]:
    """Return the paths of changes; if there are too many, the top-level fields of those changes."""
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
    """Return the path of a member. A name with dots is quoted, so that paths are unambiguous."""
    if not _PLAIN.fullmatch(name):
        return f'{prefix}["{name}"]'
    return f"{prefix}.{name}" if prefix else name


LIMIT_MAX: Final = 1000


class Versioned(Struct, frozen=True):
    """A page of versions, and the cursor of older ones."""

    versions: list[Dataset]
    cursor: str | None = None


class History:
    """Reads archived versions and the current one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def version(self, urn: str, version: int) -> Dataset:
        """Return a version of a dataset. Raises `DatasetNotFoundError`."""
        latest = self._latest(urn)
        if version == latest.config_version:
            return latest
        item = None
        if 1 <= version < latest.config_version:
            item = self._store.get(DATASET_REGISTRY, version_key(urn, version), consistent=True)
        if item is None:
            raise DatasetNotFoundError(f"dataset {urn}: no version {version}; it has 1 to {latest.config_version}")
        return dataset_of(item)

    def page(self, urn: str, *, limit: int, cursor: str | None) -> Versioned:
        """Return versions, newest first. Raises `DatasetNotFoundError`, `QueryLimitError` and `CursorError`."""
        if not 1 <= limit <= LIMIT_MAX:
            raise QueryLimitError(f"limit is {limit}: give 1 to {LIMIT_MAX}")
        found = [] if cursor is not None else [self._latest(urn)]
        # The cursor is the oldest version returned: versions never move.
        below = _version(cursor) if cursor is not None else found[0].config_version
        if len(found) < limit and below > 1:
            span = Sort(Range.BETWEEN, _sort(urn, 1), _sort(urn, below - 1))
            query = Query(
                table=DATASET_REGISTRY,
                partition=urn,
                sort=span,
                limit=limit - len(found),
                descending=True,
                consistent=True,
            )
            found += [dataset_of(item) for item in self._store.query(query).items]
        oldest = found[-1].config_version if found else 1
        return Versioned(found, str(oldest) if oldest > 1 else None)

    def _latest(self, urn: str) -> Dataset:
        item = self._store.get(DATASET_REGISTRY, latest_key(urn), consistent=True)
        if item is None:
            raise DatasetNotFoundError(f"dataset {urn}: not registered; 'headgate dataset ls' lists the datasets")
        return dataset_of(item)


def _sort(urn: str, version: int) -> str:
    return str(version_key(urn, version).sort)


def _version(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and 1 <= len(cursor) <= 6):
        raise CursorError(f"cursor {cursor[:40]!r}: not a cursor of a history; start again without one")
    return int(cursor)
