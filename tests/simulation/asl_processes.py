"""Simulated processes that run state machines and crash at any store call, with comparable outcomes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Raw

from headgate.asl.expressions.scope import Json
from headgate.asl.machines import task_activities
from headgate.asl.machines.executions import ExecutionStatus, MachineExecutions
from headgate.asl.machines.registry import MachineRegistry, checked_definition
from headgate.asl.model.definition import MapSpec
from headgate.asl.runtime.durable_host import WORKFLOW, DurableHost, HostDependencies, machine_workflow
from headgate.asl.runtime.history import HistoryEvent
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.replay import HistoryReplayer
from headgate.asl.runtime.state_visit import StateVisit
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback, sign_token
from headgate.durable.bus.bus import Bus
from headgate.durable.client.client import Client
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.archive import Archive, Archiver
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.records import Activity
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Workflow
from headgate.durable.worker.worker import Worker
from headgate.errors import StaleClaimError
from headgate.store.sqlite.store import SqliteStore
from tests.asl_rig import Functions
from tests.simulation.durable_processes import LEASE_SECONDS, Machine, Process, ProcessStore, SeededIds

MACHINE = "story"
# So that a loop of a few rounds continues as new.
LIMITS = Limits(events_a_run=12)


@dataclass(frozen=True)
class Outcome:
    """How an execution went, without what may differ from run to run: times, and the order of what is concurrent."""

    status: ExecutionStatus
    output: str
    error: str
    cause: str
    # The states of the machine itself in their order, and how often each event happened.
    entered: tuple[str, ...]
    events: tuple[tuple[str, int], ...]


@dataclass
class AslMachine(Machine):
    """A machine whose functions note what is really done."""

    functions: Functions = field(default_factory=Functions)


class NotingStore(ProcessStore):
    """A store that knows which calls were made."""

    def __init__(self, store: SqliteStore, lagging: SqliteStore | None = None) -> None:
        super().__init__(store, lagging)
        self.names: list[str] = []

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.names.append(name)
        return super()._call(name, method, args, kwargs)


class AslProcess(Process):
    """A process with nothing but state machines and the functions that they call."""

    store: NotingStore

    def __init__(self, machine: AslMachine, *, live_max: int = 2_000, replay_always: bool = False) -> None:
        # Not the app of the other simulations: a process lives so shortly here that declaring it would take longest.
        self.store = NotingStore(machine.store, machine.lagging)
        self.frozen_until = 0.0
        self.held: list[tuple[Activity, AttemptResult | None]] = []
        self.app = App("machines")
        self._machine = machine
        app, store, keyring, clock = self.app, self._as_store(), machine.keyring, machine.clock
        ids = SeededIds(clock, random.Random(machine.draw.getrandbits(64)))
        archive = Archive(machine.blobs)
        self.bus = Bus(store, clock, ids)
        self.client = Client(store, clock, ids, keyring, archive, workflows=app.workflows)
        app.bind(self.client, self.bus)
        machine.functions.declare(app)
        machines = MachineRegistry(store, clock)
        dependencies = HostDependencies(
            sign=lambda execution_id, signal: sign_token(keyring, execution_id, signal),
            options_of=self._options_of,
            distribute=_distribute,
            definition_of=machines.definition,
            read_inline=self._read_inline,
        )
        app.workflows[WORKFLOW] = Workflow(
            machine_workflow(dependencies),
            name=WORKFLOW,
            timeout_seconds=None,
            retention_seconds=None,
            client=app.client,
        )
        self.executions = MachineExecutions(
            self.client,
            machines,
            HistoryReplayer(dependencies),
            keyring,
            clock,
            ids,
            known_functions=lambda: set(app.activities),
        )
        # The machines here have no fan-outs.
        fanouts: Any = None
        task_activities.register(app, self.executions, self.bus, store, fanouts)
        self.worker = Worker(
            app,
            store,
            clock,
            ids,
            keyring,
            self.bus,
            archiver=Archiver(store, clock, archive),
            limits=WorkerLimits(cached_max=live_max),
            replay_always=replay_always,
            lease_seconds=LEASE_SECONDS,
            draw=machine.draw.random,
        )

    def _as_store(self) -> Any:
        return self.store

    def _options_of(self, name: str, input: Raw) -> ActivityOptions | None:
        del input
        return self.app.activities[name].activity_options

    def _read_inline(self, name: str, input: Json) -> Json:
        look = self.app.activities[name].look
        return None if look is None else look(input)

    def start(self, definition: Mapping[str, Any], input: Json, name: str) -> str:
        text = checked_definition(json.dumps(definition))
        execution_id, _ = self.executions.start_definition(MACHINE, text, input, name=name, limits=LIMITS)
        return execution_id

    def answer(self, token: str, callback: TaskCallback | None = None) -> bool:
        """Answer a token, and return whether anyone waited for it."""
        try:
            self.executions.send_callback(token, callback or TaskCallback(CallbackKind.SUCCESS, "answered"))
        except StaleClaimError:
            return False
        return True

    def outcome(self, execution_id: str, definition: Mapping[str, Any]) -> Outcome:
        found = self.executions.describe(execution_id)
        events = self.executions.history(execution_id)
        counts = Counter(map(_kind, events))
        return Outcome(
            found.status,
            json.dumps(found.output, sort_keys=True),
            found.error,
            _without_trace(found.cause),
            tuple(name for name in map(_entered, events) if name in definition["States"]),
            tuple(sorted(counts.items())),
        )


def _distribute(host: DurableHost, visit: StateVisit, spec: MapSpec, input: Json) -> Awaitable[Json]:
    raise AssertionError(f"{visit.state.name}: no machine here has a distributed Map")


def _kind(event: HistoryEvent) -> str:
    return " ".join([event.type, *(str(event.details[name]) for name in ("name", "index") if name in event.details)])


def _entered(event: HistoryEvent) -> str:
    return str(event.details["name"]) if event.type.endswith("StateEntered") else ""


def _without_trace(cause: str) -> str:
    return cause.partition('"stackTrace"')[0]
