"""Inspection: how an execution of a machine went, found by going through its history once more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.requests import Request, Stopped
from headgate.asl.runtime.durable_host import Surroundings, machine_workflow
from headgate.asl.runtime.history import Chronicle, Event, Journal
from headgate.asl.runtime.resume_point import Frame
from headgate.durable.model.history import Started, Status, TerminateRequested, Turn
from headgate.durable.model.payload import Signature
from headgate.durable.model.records import Execution
from headgate.durable.replay.interpreter import Interpreter

# How Step Functions calls an end that the machine itself had no part in.
_ENDS = {
    Status.CANCELLED: "ExecutionAborted",
    Status.TERMINATED: "ExecutionAborted",
    Status.TIMED_OUT: "ExecutionTimedOut",
}


class Inspected(Struct):
    """What was found: every event, how the last run began, and where the machine stands."""

    events: list[Event]
    request: Request | None = None
    frame: Frame | None = None
    # How many events the machine itself has caused; an end from outside is not among them.
    journaled: int = 0


class Inspector:
    """Goes through the turns of an execution, run by run."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings

    def inspect(self, row: Execution, turns: Iterable[Turn]) -> Inspected:
        """Return what the turns of an execution amount to. Raises `DeterminismError` if this build does otherwise."""
        found = Inspected([])
        interpreter: Interpreter | None = None
        try:
            for turn in turns:
                if any(isinstance(event, Started) for event in turn.events):
                    self._let_go(interpreter)
                    interpreter = self._begin(row.execution_id, found)
                if any(isinstance(event, TerminateRequested) for event in turn.events):
                    continue  # Ended from outside, without asking the code.
                if interpreter is not None:
                    interpreter.replay(turn)
        finally:
            self._let_go(interpreter)
        found.journaled = found.events[-1].id if found.events else 0
        self._add_end(row, found)
        return found

    def _begin(self, execution_id: str, found: Inspected) -> Interpreter:
        made: list[Interpreter] = []

        def journal(request: Request) -> Journal:
            found.request = request
            if not request.events and request.resume is None:
                found.events.clear()
            return Chronicle(lambda: made[0].at_ms, found.events, request.events)

        surroundings = msgspec.structs.replace(self._surroundings, journal=journal)
        function = machine_workflow(surroundings, seen=_seer(found))
        made.append(Interpreter(function, Signature.of(function), execution_id))
        return made[0]

    @staticmethod
    def _let_go(interpreter: Interpreter | None) -> None:
        if interpreter is not None and interpreter.closed is None:
            interpreter.evict()

    @staticmethod
    def _add_end(row: Execution, found: Inspected) -> None:
        kind = _ENDS.get(row.status)
        if kind is None or not found.events:
            return
        last = found.events[-1]
        if last.type.startswith("Execution") and last.type != "ExecutionStarted":
            return
        details: dict[str, Json] = {}
        if row.error is not None:
            stopped = Stopped.read(msgspec.json.decode(row.error).get("message", ""))
            details = {"error": stopped.error, "cause": stopped.cause}
        found.events.append(Event(last.id + 1, last.id, kind, last.at_ms, details))


def _seer(found: Inspected) -> Callable[[Frame], None]:
    def see(frame: Frame) -> None:
        found.frame = frame

    return see
