"""Function apps: the apps whose workflows and activities are served by functions, which are no live workers.

Functions join the fleet only while they perform an activity. The sweep registers what they serve, so that other
processes can start their workflows, and show what waits for them, at any time.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.engine.membership import Member, list_members
from headgate.durable.model.records import item_of
from headgate.store.catalogue.tables import CONTROL, FUNCTION_APP
from headgate.store.model.requests import Query
from headgate.store.port import Store

_PAGE: Final = 500


class FunctionApp(Struct, frozen=True, omit_defaults=True):
    """What the functions of an app serve. They pin no execution: one version of a function is deployed at a time."""

    app: str
    build: str = ""
    workflows: tuple[str, ...] = ()
    activities: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    # The schedules that the app declares, with the digest of each.
    schedules: tuple[str, ...] = ()
    # The patches in the code of its workflows, by workflow.
    patches: dict[str, list[str]] = {}
    registered_at_ms: int = 0

    def as_member(self, now_ms: int) -> Member:
        """Return it as a worker that is alive now, for decisions and displays that are about workers."""
        return Member(
            worker_id=f"functions of {self.app}",
            beats=0,
            started_at_ms=self.registered_at_ms,
            lease_seconds=0.0,
            app=self.app,
            build=self.build,
            workflows=self.workflows,
            activities=self.activities,
            queues=self.queues,
            schedules=self.schedules,
            patches=self.patches,
            seen_at_ms=now_ms,
        )


class FunctionApps:
    """The function apps of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def register(self, served: FunctionApp) -> bool:
        """Store what the functions of an app serve. False if that is stored already."""
        key = FUNCTION_APP.key(app=served.app)
        item = self._store.get(CONTROL, key, consistent=True)
        if item is not None:
            stored = typed_decode.convert(item, FunctionApp)
            if replace(stored, registered_at_ms=served.registered_at_ms) == served:
                return False
        self._store.put(CONTROL, {**CONTROL.key_attributes(key), **item_of(served)})
        return True

    def schedules(self, app: str) -> tuple[str, ...]:
        """Return the schedules that the functions of an app declare, with the digest of each."""
        item = self._store.get(CONTROL, FUNCTION_APP.key(app=app))
        return () if item is None else typed_decode.convert(item, FunctionApp).schedules

    def all(self) -> list[FunctionApp]:
        """Return every function app."""
        found: list[FunctionApp] = []
        cursor: str | None = None
        while True:
            page = self._store.query(
                Query(table=CONTROL, partition=FUNCTION_APP.partition, limit=_PAGE, cursor=cursor, consistent=True)
            )
            found += [typed_decode.convert(item, FunctionApp) for item in page.items]
            cursor = page.cursor
            if cursor is None:
                return found


def serving_members(store: Store, now_ms: int) -> list[Member]:
    """Return the live workers, and the functions of each function app as one worker."""
    alive = [member for member in list_members(store) if member.seems_alive(now_ms)]
    return [*alive, *(each.as_member(now_ms) for each in FunctionApps(store).all())]
