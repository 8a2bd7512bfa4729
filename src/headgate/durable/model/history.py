"""History: the events that an execution consumed and the commands that it issued, turn by turn, as stored.

Replaying the events of every turn must issue the same commands again: that is how an execution survives a crash.
User values are JSON inside `Raw` and are not decoded here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Raw, Struct

from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.retry import Retry

NULL: Final = Raw(b"null")


class Status(enum.StrEnum):
    """The status of an execution."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TERMINATED = "TERMINATED"
    TIMED_OUT = "TIMED_OUT"
    # Its turn fails until the code is fixed and an operator redrives it. Messages to it are stored.
    STUCK = "STUCK"

    @property
    def is_closed(self) -> bool:
        """Whether the execution has ended."""
        return self not in _OPEN


_OPEN: Final = (Status.RUNNING, Status.STUCK)


class ParentClose(enum.StrEnum):
    """What happens to a child that is still open when its parent ends."""

    TERMINATE = "terminate"
    CANCEL = "cancel"
    ABANDON = "abandon"


class Cancellation(enum.StrEnum):
    """What workflow code does when it cancels an activity or a child that it awaits."""

    # Request cancellation, and go on at once.
    REQUEST = "request"
    # Request cancellation, and wait until the activity or the child has ended.
    WAIT = "wait"
    # Go on at once and let the activity run on; its result is dropped. Children have `parent_close` for that.
    ABANDON = "abandon"


class ActivityOptions(Struct, frozen=True, omit_defaults=True):
    """The options of an activity. Times are in seconds; None is no limit."""

    queue: str = "default"
    retry: Retry = Retry()
    start_to_close: float | None = None
    schedule_to_start: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    # Concurrency and rate limits of this key: so many slots, and `rate` starts in `per` seconds.
    limit_key: str | None = None
    concurrency: int | None = None
    rate: int | None = None
    per: float = 1.0
    cancellation: Cancellation = Cancellation.REQUEST


class Note(Struct, frozen=True, omit_defaults=True):
    """A line that user code logged."""

    at_ms: int
    level: str
    text: str
    source: str = "workflow"


class FailedAttempt(Struct, frozen=True, omit_defaults=True):
    """An attempt at an activity that failed and was followed by another."""

    attempt: int
    type: str
    message: str = ""
    trace: str = ""
    worker: str = ""
    started_at_ms: int = 0
    ended_at_ms: int = 0


_NOTE_CHARACTERS_MAX: Final = 2_000


def note_text(text: str) -> str:
    """Return a log line as stored: truncated, and without characters that UTF-8 cannot encode."""
    return text[:_NOTE_CHARACTERS_MAX].encode(errors="backslashreplace").decode()


# Events: what an execution consumes.


class Signal(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="signal"):
    """A message from outside."""

    name: str
    payload: Raw = NULL
    id: str = ""
    sender: str = ""
    headers: dict[str, str] | None = None


class Started(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="started"):
    """The first event of every run of an execution."""

    workflow: str
    input: Raw
    run: int = 1
    parent_id: str | None = None
    parent_seq: int | None = None
    timeout_at_ms: int | None = None
    # Signals that the previous run had received and not consumed.
    carried: tuple[Signal, ...] = ()
    memo: Raw = NULL
    # The seed of random numbers and ids of this run.
    seed: str = ""
    headers: dict[str, str] | None = None
    # Counts the runs of a retry policy, from 1.
    attempt: int = 1
    # The retry policy of this execution, in place of the one that its workflow declares.
    retry: Retry | None = None


class ActivityEnded(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="activity_ended"):
    """An activity has succeeded, or failed without another attempt."""

    seq: int
    result: Raw = NULL
    error: ErrorInfo | None = None
    # The time limit that ended it, if one did.
    timeout: str | None = None
    attempts: int = 1
    worker: str = ""
    started_at_ms: int = 0
    ended_at_ms: int = 0
    notes: tuple[Note, ...] = ()
    # The last attempts before this one.
    earlier: tuple[FailedAttempt, ...] = ()
    # Whether it ended by the cancellation that the code had requested and waits for.
    cancelled: bool = False


class TimerFired(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="timer_fired"):
    """A timer is due."""

    seq: int


class ChildEnded(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="child_ended"):
    """A child has ended, or could not be started."""

    seq: int
    status: Status
    result: Raw = NULL
    error: ErrorInfo | None = None


class SignalSent(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="signal_sent"):
    """A signal of this execution to another was stored, or could not be delivered."""

    seq: int
    error: ErrorInfo | None = None


class CancelRequested(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cancel_requested"):
    """Cancellation was requested; the execution may clean up."""

    reason: str = ""
    timed_out: bool = False


class UpdateRequested(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="update_requested"):
    """A caller waits for the answer of an update handler."""

    id: str
    name: str
    input: Raw = NULL


class TerminateRequested(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="terminate_requested"):
    """The execution ends now, without running its code."""

    reason: str = ""


class Woken(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="woken"):
    """A failed turn is retried, after a delay or a redrive."""

    reason: str = ""


class Reset(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="reset"):
    """The first event of a run that begins with the turns of an earlier run before turn `to`.

    Its turn is not computed by code: its commands open what was open at that point.
    """

    to: int
    # The kept turns, in the form of `Execution.kept_turns`.
    kept: str = ""
    reason: str = ""
    # The idempotency key of the request.
    request_id: str = ""
    # The commands whose end was dropped, so that they run again.
    repeated: tuple[int, ...] = ()
    from_failure: bool = False


Outcome = ActivityEnded | TimerFired | ChildEnded | SignalSent | Signal | UpdateRequested


class Reapplied(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="reapplied"):
    """Events that an earlier run had consumed at the point of a reset or later, in their order."""

    events: tuple[Outcome, ...] = ()


Event = (
    Started
    | ActivityEnded
    | TimerFired
    | ChildEnded
    | Signal
    | SignalSent
    | CancelRequested
    | UpdateRequested
    | TerminateRequested
    | Woken
    | Reset
    | Reapplied
)


def each_event(events: Iterable[Event]) -> Iterator[Event]:
    """Yield events in their order, those of an earlier run that a reset applies again among them."""
    for event in events:
        if isinstance(event, Reapplied):
            yield from event.events
        else:
            yield event


# Commands: what an execution issues. `seq` numbers the commands of a run and identifies each.


class StartActivity(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="start_activity"):
    """Run an activity."""

    seq: int
    name: str
    input: Raw
    options: ActivityOptions = ActivityOptions()
    headers: dict[str, str] | None = None
    # The id that an earlier run gave the activity: it stays the idempotency key after a reset.
    key: str = ""


class CancelActivity(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cancel_activity"):
    """Cancel an activity: at once, by a request whose end is awaited, or only in the code, so that it runs on."""

    seq: int
    cancellation: Cancellation = Cancellation.REQUEST


class StartTimer(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="start_timer"):
    """Fire a timer at this time."""

    seq: int
    due_at_ms: int


class CancelTimer(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cancel_timer"):
    """Cancel a timer; with `run`, that of an earlier run."""

    seq: int
    run: int = 0


class StartChild(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="start_child"):
    """Start a child execution; its end is an event."""

    seq: int
    workflow: str
    child_id: str
    input: Raw
    parent_close: ParentClose = ParentClose.TERMINATE
    timeout_seconds: float | None = None
    tags: dict[str, str] = {}
    headers: dict[str, str] | None = None
    retry: Retry | None = None


class CancelChild(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cancel_child"):
    """Cancel or terminate a child."""

    seq: int
    child_id: str
    terminate: bool = False


class ResumeChild(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="resume_child"):
    """Continue to wait for a child of an earlier run.

    With `again`, a child that did not succeed continues from its failure.
    """

    seq: int
    child: StartChild
    again: bool = False


class SendSignal(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="send_signal"):
    """Send a signal to another execution."""

    seq: int
    execution_id: str
    name: str
    payload: Raw = NULL
    headers: dict[str, str] | None = None


class EmitEvent(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="emit_event"):
    """Emit an event on the bus."""

    seq: int
    type: str
    data: Raw = NULL
    subject: str = ""
    # The idempotency key of the event; without one, every emission is an event of its own.
    id: str = ""


class RecordValue(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="record_value"):
    """Record the value of a side effect, which replay returns again."""

    seq: int
    value: Raw


class MarkPatch(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="mark_patch"):
    """Record that the code took the new branch of a patch.

    A deprecated mark has no old branch beside it, and replay does not need the code to make it again.
    """

    seq: int
    patch: str
    is_deprecated: bool = False


class AnswerUpdate(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="answer_update"):
    """Answer an update with the result or the error of its handler."""

    id: str
    result: Raw = NULL
    error: ErrorInfo | None = None
    rejected: bool = False


class SetTags(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="set_tags"):
    """Change the tags of the execution; an empty value removes a tag."""

    seq: int
    tags: dict[str, str]


class Close(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="close"):
    """The workflow has ended."""

    status: Status
    result: Raw = NULL
    error: ErrorInfo | None = None


class ContinueAsNew(Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="continue_as_new"):
    """Start a new run with this input and an empty history, under the same id."""

    input: Raw
    carried: tuple[Signal, ...] = ()
    headers: dict[str, str] | None = None
    # By the retry policy of the workflow: the number of the next attempt, and when it starts.
    attempt: int = 1
    delay_ms: int = 0


Command = (
    StartActivity
    | CancelActivity
    | StartTimer
    | CancelTimer
    | StartChild
    | CancelChild
    | ResumeChild
    | SendSignal
    | EmitEvent
    | RecordValue
    | MarkPatch
    | AnswerUpdate
    | SetTags
    | Close
    | ContinueAsNew
)


class Turn(Struct, frozen=True, omit_defaults=True):
    """One step of an execution: the events that it consumed at a time, and the commands that it issued."""

    turn: int
    run: int
    at_ms: int
    events: tuple[Event, ...]
    commands: tuple[Command, ...]
    notes: tuple[Note, ...] = ()
    worker: str = ""


_encoder: Final = msgspec.json.Encoder()
_turn_decoder: Final = msgspec.json.Decoder(Turn)
_event_decoder: Final = msgspec.json.Decoder(Event)


def dump_turn(turn: Turn) -> str:
    """Return the turn as JSON text."""
    return _encoder.encode(turn).decode()


def load_turn(text: str) -> Turn:
    """Return the turn that `dump_turn` wrote."""
    return _turn_decoder.decode(text)


def dump_event(event: Event) -> str:
    """Return an event as JSON text."""
    return _encoder.encode(event).decode()


def load_event(text: str) -> Event:
    """Return the event that `dump_event` wrote."""
    return _event_decoder.decode(text)  # type: ignore[no-any-return]


def dump_command(command: Command) -> str:
    """Return a command as JSON text."""
    return _encoder.encode(command).decode()
