"""Sealed history: opens the events that an interpreter consumes, and seals the commands that it issued.

The interpreter and the code of users see plain values; everything that is stored is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import (
    ActivityEnded,
    AnswerUpdate,
    ChildEnded,
    Close,
    Command,
    ContinueAsNew,
    Event,
    Reapplied,
    RecordValue,
    SendSignal,
    Signal,
    StartActivity,
    StartChild,
    Started,
    Turn,
    UpdateRequested,
)
from headgate.durable.model.names import is_built_in
from headgate.durable.model.payload_codec import (
    ERROR,
    INPUT,
    MEMO,
    RESULT,
    PayloadCodec,
    activity_place,
    open_error,
    open_sealed,
    seal,
    seal_error,
    seal_once,
    sealed_of,
)


class SealedHistory:
    """The history of one execution, as its interpreter reads and writes it."""

    def __init__(self, codec: PayloadCodec, execution_id: str, child_id_of: Callable[[int], str | None]) -> None:
        self._codec = codec
        self._id = execution_id
        self._child_id_of = child_id_of

    def open_events(self, events: Sequence[Event]) -> list[Event]:
        """Return events with plain values. Raises `SealedPayloadError`."""
        return [self._open_event(event) for event in events]

    def open_turn(self, turn: Turn) -> Turn:
        """Return a recorded turn with plain values. Raises `SealedPayloadError`."""
        commands = [self._open_command(command) for command in turn.commands]
        return replace(turn, events=tuple(self.open_events(turn.events)), commands=tuple(commands))

    def seal_commands(self, commands: Sequence[Command]) -> tuple[Command, ...]:
        """Return commands as they are stored."""
        return tuple(self._seal_command(command) for command in commands)

    def seal_failure(self, error: ErrorInfo) -> ErrorInfo:
        """Return the error of a failed run as it is stored."""
        return seal_error(self._codec, error, self._id, ERROR)

    def _open_event(self, event: Event) -> Event:
        match event:
            case ActivityEnded():
                return replace(
                    event,
                    result=self._open(event.result, activity_place(event.seq, RESULT)),
                    error=open_error(self._codec, event.error, self._id, activity_place(event.seq, ERROR)),
                )
            case Signal():
                return self._open_signal(event)
            case Started():
                return replace(
                    event,
                    input=self._open(event.input, INPUT),
                    memo=self._open(event.memo, MEMO),
                    carried=tuple(map(self._open_signal, event.carried)),
                )
            case UpdateRequested():
                return replace(event, input=self._open(event.input, update_place(event.name)))
            case ChildEnded():
                return self._open_child_end(event)
            case Reapplied():
                return replace(event, events=tuple(self.open_events(event.events)))
            case _:
                return event

    def _open_signal(self, signal: Signal) -> Signal:
        if is_built_in(signal.name) and sealed_of(signal.payload) is None:
            return signal  # From Headgate itself, such as the end of a fan-out.
        return replace(signal, payload=self._open(signal.payload, signal_place(signal.name)))

    def _open_child_end(self, event: ChildEnded) -> ChildEnded:
        child_id = self._child_id_of(event.seq)
        if child_id is None:
            return event  # The code does not wait for it any more.
        return replace(
            event,
            result=open_sealed(self._codec, event.result, child_id, RESULT),
            error=open_error(self._codec, event.error, child_id, ERROR),
        )

    def _open_command(self, command: Command) -> Command:
        """Return a recorded command with plain values, for the comparison with what the code issues now."""
        match command:
            case StartActivity():
                return replace(command, input=self._open(command.input, activity_place(command.seq, INPUT)))
            case StartChild():
                return replace(command, input=open_sealed(self._codec, command.input, command.child_id, INPUT))
            case SendSignal():
                place = signal_place(command.name)
                return replace(command, payload=open_sealed(self._codec, command.payload, command.execution_id, place))
            case RecordValue():
                return replace(command, value=self._open(command.value, _value_place(command.seq)))
            case AnswerUpdate():
                place = answer_place(command.id)
                error = open_error(self._codec, command.error, self._id, place)
                return replace(command, result=self._open(command.result, place), error=error)
            case Close():
                error = open_error(self._codec, command.error, self._id, ERROR)
                return replace(command, result=self._open(command.result, RESULT), error=error)
            case ContinueAsNew():
                carried = tuple(map(self._open_signal, command.carried))
                return replace(command, input=self._open(command.input, INPUT), carried=carried)
            case _:
                return command

    def _seal_command(self, command: Command) -> Command:
        match command:
            case StartActivity():
                return replace(command, input=self._seal(command.input, activity_place(command.seq, INPUT)))
            case StartChild():
                return replace(command, input=seal(self._codec, command.input, command.child_id, INPUT))
            case SendSignal():
                place = signal_place(command.name)
                return replace(command, payload=seal(self._codec, command.payload, command.execution_id, place))
            case RecordValue():
                return replace(command, value=self._seal(command.value, _value_place(command.seq)))
            case AnswerUpdate() | Close():
                return self._seal_outcome(command)
            case ContinueAsNew():
                carried = tuple(
                    replace(each, payload=self._seal(each.payload, signal_place(each.name))) for each in command.carried
                )
                return replace(command, input=self._seal(command.input, INPUT), carried=carried)
            case _:
                return command

    def _seal_outcome(self, command: AnswerUpdate | Close) -> Command:
        answered = answer_place(command.id) if isinstance(command, AnswerUpdate) else None
        if command.error is not None:
            return replace(command, error=seal_error(self._codec, command.error, self._id, answered or ERROR))
        return replace(command, result=self._seal(command.result, answered or RESULT))

    def _open(self, raw: Raw, place: str) -> Raw:
        return open_sealed(self._codec, raw, self._id, place)

    def _seal(self, raw: Raw, place: str) -> Raw:
        return seal(self._codec, raw, self._id, place)


def seal_message(codec: PayloadCodec, event: Event, execution_id: str) -> Event:
    """Return a message to an execution as it is stored."""
    match event:
        case Signal():
            return replace(event, payload=seal_once(codec, event.payload, execution_id, signal_place(event.name)))
        case UpdateRequested():
            return replace(event, input=seal_once(codec, event.input, execution_id, update_place(event.name)))
        case _:
            return event


def signal_place(name: str) -> str:
    """Return the place of a signal's payload."""
    return f"signal {name}"


def update_place(name: str) -> str:
    """Return the place of an update's input."""
    return f"update {name}"


def answer_place(update_id: str) -> str:
    """Return the place of the answer to an update."""
    return f"answer {update_id}"


def _value_place(seq: int) -> str:
    return f"value {seq}"
