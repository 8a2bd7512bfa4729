"""History replay: rebuilds the Step Functions history and the current frame of an execution from its turns."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import msgspec
from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.runtime.durable_host import HostDependencies, machine_workflow
from headgate.asl.runtime.execution_request import ExecutionRequest, StopReason
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.history import EventRecorder, HistoryEvent, Journal
from headgate.durable.model.history import Started, Status, TerminateRequested, Turn
from headgate.durable.model.payload import Signature
from headgate.durable.model.records import Execution
from headgate.durable.replay.interpreter import Interpreter

# The last event of an execution that was ended from outside.
_END_EVENTS = {
    Status.CANCELLED: "ExecutionAborted",
    Status.TERMINATED: "ExecutionAborted",
    Status.TIMED_OUT: "ExecutionTimedOut",
}


class ReplayResult(Struct):
    """Every event of an execution, the request of its last run, and its current frame."""

    events: list[HistoryEvent]
    request: ExecutionRequest | None = None
    frame: Frame | None = None
    # The number of events that the machine itself caused, without an end from outside.
    journaled: int = 0
    # The frame at the last entry into each state of the outermost level, in the order of first entry.
    entered: dict[str, Frame] = {}


class HistoryReplayer:
    """Replays the turns of an execution, run by run."""

    def __init__(self, dependencies: HostDependencies) -> None:
        self._dependencies = dependencies

    def replay(self, row: Execution, turns: Iterable[Turn], *, keeps_frames: bool = False) -> ReplayResult:
        """Replay the turns of an execution. Raises `DeterminismError` if this build behaves differently.

        With `keeps_frames`, the result has the frame at the last entry into each state.
        """
        result = ReplayResult([])
        interpreter: Interpreter | None = None
        try:
            for turn in turns:
                if any(isinstance(event, Started) for event in turn.events):
                    self._evict(interpreter)
                    interpreter = self._new_interpreter(row.execution_id, result, keeps_frames=keeps_frames)
                if any(isinstance(event, TerminateRequested) for event in turn.events):
                    continue  # Terminated from outside: no workflow code ran.
                if interpreter is not None:
                    interpreter.replay(turn)
        finally:
            self._evict(interpreter)
        result.journaled = result.events[-1].id if result.events else 0
        self._add_end(row, result)
        return result

    def _new_interpreter(self, execution_id: str, result: ReplayResult, *, keeps_frames: bool) -> Interpreter:
        def journal(request: ExecutionRequest) -> Journal:
            result.request = request
            if not request.events and request.resume is None:
                result.events.clear()
            return EventRecorder(lambda: interpreter.at_ms, result.events, request.events)

        def on_started(frame: Frame) -> None:
            result.frame = frame

        def on_entered(frame: Frame) -> None:
            # A copy: the machine goes on with the frame.
            result.entered[frame.state] = Frame(frame.state, deepcopy(frame.input), deepcopy(frame.variables))

        dependencies = msgspec.structs.replace(self._dependencies, journal=journal)
        function = machine_workflow(
            dependencies, on_started=on_started, on_entered=on_entered if keeps_frames else None
        )
        interpreter = Interpreter(function, Signature.of(function), execution_id)
        return interpreter

    @staticmethod
    def _evict(interpreter: Interpreter | None) -> None:
        if interpreter is not None and interpreter.closed is None:
            interpreter.evict()

    @staticmethod
    def _add_end(row: Execution, result: ReplayResult) -> None:
        kind = _END_EVENTS.get(row.status)
        if kind is None or not result.events:
            return
        last = result.events[-1]
        if last.type.startswith("Execution") and last.type != "ExecutionStarted":
            return
        details: dict[str, Json] = {}
        if row.error is not None:
            reason = StopReason.read(msgspec.json.decode(row.error).get("message", ""))
            details = {"error": reason.error, "cause": reason.cause}
        result.events.append(HistoryEvent(last.id + 1, last.id, kind, last.at_ms, details))
