"""Rig for distributed Maps: an environment with counting functions and the ledger of its map runs."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

from headgate.asl.machines.executions import MACHINE_TAG, MachineExecutions
from headgate.asl.map.item_readers import blob_name
from headgate.asl.runtime.durable_host import WORKFLOW
from headgate.durable.client.handle import Handle
from headgate.durable.model.failures import ExecutionFailure
from headgate.durable.model.records import Execution
from headgate.durable.sdk.app import App
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Fanout
from headgate.fanout.service import FanoutService
from headgate.store.blobs.folder import FolderBlobs
from headgate.testing import Environment

MACHINE = "m"


class MapRig:
    """Runs machines whose only state is a distributed Map."""

    def __init__(self) -> None:
        self.app = App("maps")
        self.calls: Counter[str] = Counter()
        self.broken: set[Any] = set()
        # Called with each input of `double` before it answers.
        self.on_double: Callable[[Any], None] = lambda _: None
        self.sent: dict[Any, str] = {}
        self._lock = threading.Lock()
        self._declare()
        self.env = Environment(self.app)

    def _declare(self) -> None:
        def double(x: Any) -> Any:
            with self._lock:
                self.calls[f"double {x}"] += 1
            self.on_double(x)
            if x in self.broken:
                raise ValueError(f"{x} is broken")
            return 2 * x

        def prepare(x: Any) -> Any:
            with self._lock:
                self.calls[f"prepare {x}"] += 1
            return x

        def send(order: dict[str, Any]) -> None:
            self.sent[order["item"]] = order["token"]

        for function in (double, prepare, send):
            self.app.activity(function)

    def __enter__(self) -> Self:
        self.env.__enter__()
        # The fan-outs of map runs are worked on by their executions, and not by a worker for chunks.
        return self

    def __exit__(self, *_: object) -> None:
        self.env.__exit__()

    # What is there.

    @property
    def executions(self) -> MachineExecutions:
        return self.env.service.asl.executions

    @property
    def fanouts(self) -> FanoutService:
        return FanoutService(self.env.service.store, self.env.clock, self.env.service.ids)

    @property
    def queries(self) -> FanoutQueries:
        return self.fanouts.queries

    @property
    def map_runs(self) -> list[Fanout]:
        """The fan-outs of the Map, the first one first."""
        return list(reversed(self.queries.by_group(f"{MACHINE}/Each").fanouts))

    @property
    def map_run(self) -> Fanout:
        assert len(self.map_runs) == 1
        return self.map_runs[0]

    def children(self) -> list[Execution]:
        """The executions of iterations."""
        found = self.env.service.client.list(workflow=WORKFLOW).executions
        return [row for row in found if row.tags.get(MACHINE_TAG) == f"{MACHINE}/Each"]

    @property
    def blobs(self) -> FolderBlobs:
        blobs = self.env.service.archive._blobs
        assert isinstance(blobs, FolderBlobs)
        return blobs

    def read(self, bucket: str, key: str) -> Any:
        return json.loads(self.blobs.get(blob_name(bucket, key)))

    # What is done.

    def start(self, definition: dict[str, Any], input: Any = None) -> Handle:
        execution_id, _ = self.executions.start_definition(MACHINE, json.dumps(definition), input, name="one")
        self.env.run()
        return self.env.service.client.handle(execution_id)

    def run(self, definition: dict[str, Any], input: Any = None) -> Any:
        """Return what an execution ends with: its output, or its error."""
        handle = self.start(definition, input)
        return self.ended(handle.id)

    def ended(self, execution_id: str) -> Any:
        """Return what an execution ends with, letting time pass until it does."""
        handle = self.env.service.client.handle(execution_id)
        self.env.run()
        if not handle.describe().status.is_closed:
            # How it failed is what is asked below.
            with suppress(ExecutionFailure):
                self.env.result(handle)
        described = self.executions.describe(execution_id)
        return described.error or described.output

    def events(self, execution_id: str = f"{MACHINE}:one") -> list[str]:
        return [event.type for event in self.executions.history(execution_id)]

    def check_ledger(self) -> None:
        """Fail unless the rows of all map runs add up to their counts."""
        for fanout in self.map_runs:
            report = self.fanouts.reconciler.reconcile(fanout.run_id)
            assert report.is_clean, report


def each(execution_type: str, *states: tuple[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a machine that does these states for each item; without states it calls `double`."""
    given = states or (("Double", {"Type": "Task", "Resource": "double"}),)
    chained = {
        name: {**state, **({"Next": given[place + 1][0]} if place + 1 < len(given) else {"End": True})}
        for place, (name, state) in enumerate(given)
    }
    processor = {
        "ProcessorConfig": {"Mode": "DISTRIBUTED", "ExecutionType": execution_type},
        "StartAt": given[0][0],
        "States": chained,
    }
    state = {"Type": "Map", "ItemProcessor": processor, "End": True, **fields}
    language = {"QueryLanguage": "JSONata"} if "Items" in fields else {}
    return {**language, "StartAt": "Each", "States": {"Each": state}}
