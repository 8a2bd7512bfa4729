"""Declarations: what workflows are declared with, made known to processes that do not have their code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from headgate.store.catalogue.tables import DEFINITION, DEFINITIONS
from headgate.store.model.requests import Put
from headgate.store.model.values import Item
from headgate.store.port import Store

_KIND: Final = "workflow"
_PAGE: Final = 100


class Limits(NamedTuple):
    """The time-out and the retention of a workflow's executions, as far as it is declared with any."""

    timeout_seconds: float | None = None
    retention_seconds: float | None = None


class Declarations:
    """What every app has said of its workflows. Of two that say it of the same name, the last one counts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def declare(self, app: str, workflows: Mapping[str, Limits]) -> None:
        """Make the limits of an app's workflows known to all processes."""
        wanted = [_item(app, name, limits) for name, limits in workflows.items()]
        for start in range(0, len(wanted), _PAGE):
            page = wanted[start : start + _PAGE]
            found = self._store.get_many(DEFINITIONS, [DEFINITIONS.key_of(item) for item in page], consistent=True)
            changed = [item for item, stored in zip(page, found, strict=True) if item != stored]
            if changed:
                self._store.batch_write([Put(DEFINITIONS, item) for item in changed])

    def limits(self, workflow: str) -> Limits:
        """Return what a workflow is declared with; no limits if nobody has declared it."""
        item = self._store.get(DEFINITIONS, DEFINITION.key(kind=_KIND, name=workflow))
        return Limits() if item is None else Limits(item["timeout_seconds"], item["retention_seconds"])


def _item(app: str, name: str, limits: Limits) -> Item:
    key = DEFINITIONS.key_attributes(DEFINITION.key(kind=_KIND, name=name))
    return {**key, **DEFINITION.index_attributes(kind=_KIND), "app": app, **limits._asdict()}
