"""Deployments: for each app, the build that takes new executions, and the builds that are drained.

Operators change them; every worker reads them with the rows of the fleet. Without a row, every build of an app takes
new executions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.records import item_of
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import CONTROL, DEPLOYMENT
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Query
from headgate.store.port import Store

_PAGE: Final = 500


class Deployment(Struct, frozen=True, omit_defaults=True):
    """Which builds of an app take new executions."""

    app: str
    version: int = 0
    # Takes new executions, and auto-upgraded ones; empty if any build does.
    current: str = ""
    # Takes this share of them beside the current one.
    ramping: str = ""
    ramp_percent: int = 0
    # Take none.
    draining: tuple[str, ...] = ()


class Deployments:
    """The deployments of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> dict[str, Deployment]:
        """Return every deployment, by app."""
        found: list[Deployment] = []
        cursor: str | None = None
        while True:
            page = self._store.query(
                Query(table=CONTROL, partition=DEPLOYMENT.partition, limit=_PAGE, cursor=cursor, consistent=True)
            )
            found += [typed_decode.convert(item, Deployment) for item in page.items]
            cursor = page.cursor
            if cursor is None:
                return {each.app: each for each in found}

    def change(self, app: str, change: Callable[[Deployment], Deployment]) -> Deployment:
        """Store the deployment of an app as `change` makes it, and return it."""
        key = DEPLOYMENT.key(app=app)
        while True:
            item = self._store.get(CONTROL, key, consistent=True)
            before = Deployment(app) if item is None else typed_decode.convert(item, Deployment)
            after = change(before)
            row = {**CONTROL.key_attributes(key), **item_of(after), "version": before.version + 1}
            try:
                self._store.put(CONTROL, row, condition=absent() if item is None else version_is(before.version))
            except ConflictError:
                continue
            return typed_decode.convert(row, Deployment)
