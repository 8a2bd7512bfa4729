"""Rig for the activities behind Tasks: each attempt runs on a real store, as a worker runs it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Raw

import headgate as hg
from headgate.asl.errors import StateError
from headgate.asl.service import AslService
from headgate.asl.tasks.activities import SERVICE
from headgate.asl.tasks.user_tables import UserTables
from headgate.clock import VirtualClock
from headgate.durable.model.failures import ActivityFailure, revive
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.durable.service import Service
from headgate.durable.worker.executor import perform
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import Synchronous
from headgate.store.table_names import TableNames
from tests.integration.fanout.worlds import CrashingStore
from tests.stores import open_sqlite

# The table of users that machines write, as settings declare it.
ITEMS = "app-items"
DECLARED = f"{ITEMS}:PK:SK"
EXECUTION = "machine:one"


class Rig:
    """A store, a bus, machines and fan-outs, and the activities on top of them."""

    def __init__(self, folder: Path, *, names: TableNames | None = None, declared: Sequence[str] = ()) -> None:
        self.clock = VirtualClock(1_750_000_000.0)
        self._calls = 0
        self.sqlite = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        # Only the activities go through it: what a test looks at goes past the crash.
        self.crashing = CrashingStore(self.sqlite)
        keyring = Keyring.open(folder / "keys.json", self.clock)
        blobs = FolderBlobs(folder / "blobs")
        self.app = hg.App("services")
        self.service = Service(self.app, self.crashing, self.clock, keyring, blobs)
        self.fanouts = FanoutService(self.crashing, self.clock, self.service.ids)
        self.tables = UserTables(self.crashing, [DECLARED, *declared], names)
        self.executions = AslService(self.service, self.crashing, keyring, self.fanouts, blobs, self.tables).executions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self.sqlite):
            self.app.bind(None, None)

    def attempt(self, name: str, input: Any, *, id: str = "machine:one#1#000001", attempt: int = 1) -> Any:
        """Return what an attempt at an activity returns, as JSON carries it. Raises what a workflow would see."""
        context = ActivityContext(
            activity_id=id,
            name=name,
            attempt=attempt,
            sign=lambda: "token",
            execution_id=EXECUTION,
            details=None,
            clock_ms=lambda: int(self.clock.seconds() * 1000),
            beat=lambda _, __: None,
            put_event=lambda *_: None,
        )
        ended = perform(self.app.activities[name], Raw(msgspec.json.encode(input)), context)
        assert ended is not None, "no activity of a service leaves its end to others"
        if ended.error is not None:
            raise revive(ended.error, otherwise=ActivityFailure)
        return msgspec.json.decode(ended.result)

    def call(self, service: str, action: str, parameters: Any, **options: Any) -> Any:
        """Call a service."""
        given = {"service": service, "action": action, "parameters": parameters}
        return self.attempt(SERVICE, given, **options)

    def dynamodb(self, action: str, *, table: str = ITEMS, **parameters: Any) -> Any:
        """Call DynamoDB, each time as another activity."""
        self._calls += 1
        return self.call("dynamodb", action, {"TableName": table, **parameters}, id=f"machine:one#1#{self._calls:06d}")

    def refused(self, action: str, **parameters: Any) -> StateError:
        """Return the error that a call of DynamoDB ends with."""
        try:
            answer = self.dynamodb(action, **parameters)
        except StateError as error:
            return error
        raise AssertionError(f"{action} was not refused: {answer}")


def key(partition: str = "app", sort: str = "one") -> dict[str, Any]:
    """Return the key of an item of the table that machines write."""
    return {"PK": {"S": partition}, "SK": {"S": sort}}
