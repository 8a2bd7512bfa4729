"""Rig for state machines in virtual time, with scripted functions that record their calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import headgate as hg
from headgate.asl.machines.executions import ExecutionDescription, MachineExecutions
from headgate.asl.machines.registry import checked_definition
from headgate.asl.runtime.history import HistoryEvent
from headgate.asl.runtime.interpreter import Limits
from headgate.asl.runtime.task_tokens import CallbackKind, TaskCallback
from headgate.durable.model.failures import ExecutionFailure
from headgate.settings import Settings
from headgate.store.catalogue.tables import ACTIVITIES, TIMERS
from headgate.store.sqlite.scan import items
from headgate.store.sqlite.store import SqliteStore
from headgate.store.table_names import TableNames
from headgate.testing import Environment, StandIn

Definition = Mapping[str, Any]


def machine(*states: tuple[str, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return a machine whose states follow each other; one that says where it goes, goes there."""
    made: dict[str, dict[str, Any]] = {}
    for place, (name, state) in enumerate(states):
        goes = {"Next", "End", "Choices"} & state.keys() or state["Type"] in ("Succeed", "Fail")
        after = {"Next": states[place + 1][0]} if place + 1 < len(states) else {"End": True}
        made[name] = {**state, **({} if goes else after)}
    return {"StartAt": states[0][0], "States": made, **fields}


def task(function: str, **fields: Any) -> dict[str, Any]:
    return {"Type": "Task", "Resource": f"${{{function}}}", **fields}


def each(*states: tuple[str, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return an inline Map whose iterations have these states."""
    return {"Type": "Map", "ItemProcessor": machine(*states), **fields}


def beside(*branches: Definition, **fields: Any) -> dict[str, Any]:
    return {"Type": "Parallel", "Branches": list(branches), **fields}


class Functions:
    """What Tasks call. `calls` has every call in order, and outlives whatever crashes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.tokens: list[str] = []
        # Missing at first, and repaired later.
        self.broken: set[Any] = set()

    def declare(self, app: hg.App) -> None:
        """Give an app the functions."""
        for function in (self.echo, self.fail, self.shaky, self.keep, self.work):
            app.activity(name=function.__name__)(function)

    def count(self, function: str) -> int:
        return sum(name == function for name, _ in self.calls)

    def inputs(self, function: str) -> list[Any]:
        return [given for name, given in self.calls if name == function]

    def echo(self, event: Any) -> Any:
        """Return what was given."""
        self.calls.append(("echo", event))
        return event

    def fail(self, event: Any) -> Any:
        """Fail as asked."""
        self.calls.append(("fail", event))
        raise _named(event.get("error", "Refused"))(event.get("message", "no"))

    def shaky(self, event: Any) -> Any:
        """Fail until the attempt that is asked for: how often it was really called has no say in it."""
        self.calls.append(("shaky", event))
        if event["attempt"] < event["fails"]:
            raise _named("Shaky")(f"attempt {event['attempt']}")
        return {"attempt": event["attempt"]}

    def keep(self, event: Any) -> None:
        """Keep a token for someone."""
        self.calls.append(("keep", event))
        self.tokens.append(event["token"])

    def work(self, event: Any) -> Any:
        """Do a thing, unless it is broken."""
        self.calls.append(("work", event))
        if event in self.broken:
            raise _named("Broken")(str(event))
        return f"did {event}"


def _named(error: str) -> type[Exception]:
    return type(error, (Exception,), {})


class Rig:
    """An app with the functions, in virtual time, replayed before every turn unless configured otherwise."""

    def __init__(self, *, replay_always: bool = True, settings: Settings | None = None) -> None:
        self.app = hg.App("machines")
        self.functions = Functions()
        self.functions.declare(self.app)
        self.env = Environment(self.app, replay_always=replay_always, settings=settings)

    def __enter__(self) -> Self:
        self.env.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.env.__exit__()

    @property
    def executions(self) -> MachineExecutions:
        return self.env.service.asl.executions

    # Executions.

    def start(
        self, definition: Definition, input: Any = None, *, name: str = "one", limits: Limits | None = None
    ) -> str:
        """Start a machine and do all that can be done at once."""
        text = checked_definition(json.dumps(definition))
        execution_id, _ = self.executions.start_definition(
            "m", text, {} if input is None else input, name=name, limits=limits
        )
        self.env.run()
        return execution_id

    def start_internal(self, definition: Definition, *, name: str = "one") -> str:
        """Store and start a machine as Headgate does with its own, which may call its functions."""
        self.executions.machines.put("headgate-m", json.dumps(definition), is_internal=True)
        execution_id, _ = self.executions.start("headgate-m", {}, name=name, is_internal=True)
        self.env.run()
        return execution_id

    def end(self, execution_id: str) -> ExecutionDescription:
        """Let time pass until an execution has ended, and return how."""
        with suppress(ExecutionFailure):
            self.env.result(self.env.service.client.handle(execution_id))
        return self.executions.describe(execution_id)

    def run(self, definition: Definition, input: Any = None, **options: Any) -> ExecutionDescription:
        return self.end(self.start(definition, input, **options))

    def answer(self, token: str, callback: CallbackKind, output: Any = None, error: str = "", cause: str = "") -> None:
        """Answer a token, and do what follows from it."""
        self.executions.send_callback(token, TaskCallback(callback, output, error, cause))
        self.env.run()

    def stand_in(self, function: str) -> StandIn:
        return self.env.stand_in(self.app.activities[function])

    # Looking.

    def history(self, execution_id: str) -> list[HistoryEvent]:
        return self.executions.history(execution_id)

    def types(self, execution_id: str) -> list[str]:
        return [event.type for event in self.history(execution_id)]

    def entered(self, execution_id: str) -> list[str]:
        return entered(self.history(execution_id))

    def rows_left(self) -> list[str]:
        """Return the activities and timers that are in the store."""
        store = self.env.service.store
        assert isinstance(store, SqliteStore)
        now = self.env.clock.seconds()
        found = [row["activity_id"] for row in items(store.read_sql, ACTIVITIES, TableNames(), now)]
        return [*found, *(row["timer_id"] for row in items(store.read_sql, TIMERS, TableNames(), now))]


def entered(events: Sequence[HistoryEvent]) -> list[str]:
    """Return the names of the states that were entered, in order."""
    return [event.details["name"] for event in events if event.type.endswith("StateEntered")]


def check_events(events: Sequence[HistoryEvent]) -> None:
    """Numbers go on without gaps, and every event follows from an earlier one."""
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert all(event.previous_id < event.id for event in events)
    assert [event.at_ms for event in events] == sorted(event.at_ms for event in events)
