"""Interpreter: runs workflow code against events and collects the commands it issues. It does no I/O.

The same object advances an execution live and replays its history. Events are applied one at a time; after each, the
code runs until it only waits, and then its conditions are evaluated. So the order of the history alone determines the
order of everything.
"""

from __future__ import annotations

import random
import zlib
from asyncio import events as asyncio_events
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any, ClassVar, TypeVar

from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.failures import (
    ActivityFailure,
    ActivityTimeout,
    ChildFailure,
    ErrorInfo,
    revive,
    with_cause,
)
from headgate.durable.model.history import (
    ActivityEnded,
    ActivityOptions,
    CancelActivity,
    CancelChild,
    Cancellation,
    CancelRequested,
    CancelTimer,
    ChildEnded,
    Close,
    Command,
    ContinueAsNew,
    Event,
    MarkPatch,
    Note,
    ParentClose,
    Reapplied,
    RecordValue,
    Reset,
    SendSignal,
    Signal,
    SignalSent,
    StartActivity,
    StartChild,
    Started,
    StartTimer,
    Status,
    TimerFired,
    Turn,
    UpdateRequested,
    each_event,
    note_text,
)
from headgate.durable.model.interceptors import (
    Interceptor,
    OutboundCall,
    OutboundKind,
    SignalCall,
    WorkflowCall,
    around,
)
from headgate.durable.model.names import check_headers
from headgate.durable.model.payload_codec import INPUT, PayloadCodec, refuse_sealed
from headgate.durable.model.retry import Retry
from headgate.durable.replay import sandbox, turn_timeout
from headgate.durable.replay.deterministic_loop import DurableFuture, DurableTask, DurableTimer, TurnLoop
from headgate.durable.replay.mailbox import Mailbox
from headgate.durable.replay.outcomes import outcome_of
from headgate.durable.replay.replay_check import compare
from headgate.durable.replay.sealed_history import SealedHistory
from headgate.errors import DeterminismError, NotFoundError, WorkflowViolationError
from headgate.telemetry import bind_execution

T = TypeVar("T")


class PendingFuture(DurableFuture[T]):
    """The future of an activity, a child or a sent signal. Cancelling it issues a command."""

    __slots__ = ("_interpreter", "decode", "seq", "what")

    cancellation: ClassVar[Cancellation] = Cancellation.REQUEST

    def __init__(self, interpreter: Interpreter, seq: int, what: str, decode: Callable[[Raw], Any] | None) -> None:
        super().__init__(interpreter.loop)
        self._interpreter = interpreter
        self.seq = seq
        self.what = what
        self.decode = decode

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - asyncio's signature
        if not super().cancel(msg):
            return False
        self._interpreter.abandon(self.seq)
        return True


class AwaitedFuture(PendingFuture[T]):
    """The future of an activity whose end is awaited after its cancellation."""

    __slots__ = ()

    cancellation = Cancellation.WAIT

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - asyncio's signature
        if not self.done() and self._interpreter.request_activity_cancel(self.seq):
            return True
        return super().cancel(msg)


class AbandonedFuture(PendingFuture[T]):
    """The future of an activity that runs on after its cancellation."""

    __slots__ = ()

    cancellation = Cancellation.ABANDON


F = TypeVar("F", bound=PendingFuture[Any])


class Interpreter:
    """One run of one execution, in memory."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: payload.Signature,
        execution_id: str,
        interceptors: Sequence[Interceptor] = (),
        codec: PayloadCodec | None = None,
        *,
        retry: Retry | None = None,
        traceparent: str = "",
    ) -> None:
        """`retry` is for failed runs. `traceparent` is the trace context that log lines of the code belong to."""
        self._retry = retry
        self.execution_id = execution_id
        self.headers: dict[str, str] | None = None
        self._interceptors = interceptors
        self._sealed = None if codec is None else SealedHistory(codec, execution_id, self._child_id)
        self.loop = TurnLoop(  # type: ignore[abstract]  # it refuses the other methods by name
            self, zlib.crc32(execution_id.encode())
        )
        self.mailbox = Mailbox(self)
        self.replaying = False
        self.notes: list[Note] = []
        self.started: Started | None = None
        self.at_ms = 0
        self.closed: Close | ContinueAsNew | None = None
        self._function = function
        # A separate context: context variables of the calling thread must not leak into workflow code.
        self._context = Context()
        self._context.run(bind_execution, execution_id, traceparent)
        self.signature = signature
        self._main: DurableTask[Any] | None = None
        self._seq = 0
        self._commands: list[Command] = []
        self._pending: dict[int, PendingFuture[Any]] = {}
        self._children: dict[int, StartChild] = {}
        # Activities and children whose cancellation was requested, and whose end the code still awaits.
        self._asked_to_cancel: set[int] = set()
        self._timers: dict[int, DurableTimer] = {}
        self._recorded: dict[int, Command] = {}
        self._patches: dict[str, bool] = {}
        self._cancel: CancelRequested | None = None
        self._random: random.Random | None = None
        self._asking = False
        self._is_gone = False
        self._broken: BaseException | None = None

    # For the engine.

    def advance(self, at_ms: int, events: Sequence[Event]) -> tuple[int, tuple[Command, ...]]:
        """Apply `events`, and return how many were consumed and the commands issued.

        Events after the one that ended the run are not consumed. Raises `WorkflowViolationError` if the code violated a
        rule, and `InvalidPayloadError` if its input does not match its declaration; the interpreter cannot be used
        after that, unless it is `SealedPayloadError`.
        """
        if self._sealed is None or self.replaying:
            return self._advance(at_ms, events)
        consumed, commands = self._advance(at_ms, self._sealed.open_events(events))
        return consumed, self._sealed.seal_commands(commands)

    def _advance(self, at_ms: int, events: Sequence[Event]) -> tuple[int, tuple[Command, ...]]:
        self._commands = []
        # The clock of an execution never runs backwards, whatever the machine's does, and the code never sees a timer
        # fire before its time.
        self.at_ms = max(at_ms, self.at_ms)
        if self._timers:
            fired = [
                self._timers[e.seq] for e in each_event(events) if isinstance(e, TimerFired) and e.seq in self._timers
            ]
            self.at_ms = max([self.at_ms, *[_due_ms(timer.when()) for timer in fired]])
        self.loop.now_seconds = self.at_ms / 1000
        try:
            consumed = self._inside(self._context.run, self._apply_all, events)
            violation = sandbox.violation() or self.loop.violation or self._broken
            if violation is not None:
                raise violation
        except BaseException:
            # The run has not ended after all: its tasks are still to be closed.
            self.closed = None
            raise
        commands = tuple(self._commands)
        if self.closed is not None:
            self.evict()
        return consumed, commands

    def replay(self, turn: Turn) -> None:
        """Replay a recorded turn. Raises `DeterminismError` if the code now issues other commands."""
        if turn.events and type(turn.events[0]) is Reset:
            return  # No code computed it.
        if self._sealed is not None:
            turn = self._sealed.open_turn(turn)
        self.replaying = True
        self._recorded = {command.seq: command for command in turn.commands if hasattr(command, "seq")}
        try:
            consumed, commands = self.advance(turn.at_ms, turn.events)
            self._pass_deprecated_marks()
        finally:
            self.replaying = False
            self._recorded = {}
        difference = compare(turn.commands, commands)
        if difference is None and consumed < len(turn.events):
            difference = f"the code ended after {consumed} of {len(turn.events)} events"
        if difference is not None:
            raise DeterminismError(
                f"execution {self.execution_id} turn {turn.turn}: {difference}; "
                "restore what the code did, or guard the change with hg.patched()"
            )

    def evict(self) -> None:
        """Close every task. `finally` blocks run; commands that they issue are refused and dropped."""
        self._is_gone = True
        with suppress(WorkflowViolationError):
            # An endless clean-up was interrupted, and the turn timeout has logged it.
            self._inside(self.loop.kill)

    def query(self, name: str, input: Raw) -> Raw:
        """Return the answer of a query handler. Raises `NotFoundError` if the code registered none of this name."""
        handler = self.mailbox.queries.get(name)
        if handler is None:
            raise NotFoundError(
                f"execution {self.execution_id}: no query {name!r}; it answers {sorted(self.mailbox.queries)}"
            )

        def ask() -> Any:  # noqa: ANN401 - any answer of user code
            args, kwargs = handler.signature.unpack(input, what=f"query {name}")
            return handler.function(*args, **kwargs)

        self._asking = True
        try:
            answer = self._inside(self._context.run, ask)
        finally:
            self._asking = False
        return payload.encode(answer, what=f"answer of query {name}")

    def _inside(self, work: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - any arguments
        """Run `work` as workflow code: on the loop, in the sandbox, and with the time limit of a turn."""
        watched = turn_timeout.begin(self.execution_id)
        hooks = self.loop.enter()
        sandbox.enter(self.execution_id)
        try:
            return turn_timeout.run(watched, work, *args)
        finally:
            sandbox.leave()
            self.loop.leave(hooks)

    # For workflow code.

    def start_activity(
        self, name: str, input: Raw, options: ActivityOptions, decode: Callable[[Raw], Any]
    ) -> PendingFuture[Any]:
        headers = self.outbound_headers(OutboundKind.ACTIVITY, name, input) if self._interceptors else self.headers
        seq = self.next_seq()
        self._commands.append(StartActivity(seq, name, input, options, headers))
        if options.cancellation is Cancellation.REQUEST:
            return self._expect(seq, name, decode)
        kind = AwaitedFuture if options.cancellation is Cancellation.WAIT else AbandonedFuture
        future: PendingFuture[Any] = kind(self, seq, name, decode)
        self._pending[seq] = future
        return future

    def outbound_headers(self, kind: OutboundKind, name: str, input: Raw) -> dict[str, str] | None:
        """Return the headers of what the code starts or sends: those of the execution, as interceptors change them."""
        if not self._interceptors:
            return self.headers
        call = OutboundCall(kind, name, input, dict(self.headers or {}))
        for each in self._interceptors:
            each.outbound(call)
        return check_headers(call.headers) or None

    def start_child(self, command: StartChild, decode: Callable[[Raw], Any], kind: type[F]) -> F:
        self._commands.append(command)
        self._children[command.seq] = command
        future = kind(self, command.seq, command.workflow, decode)
        self._pending[command.seq] = future
        return future

    def is_child_recorded(self) -> bool:
        """Whether the history has a started child as the next command: then its input needs no check."""
        return isinstance(self._recorded.get(self._seq + 1), StartChild)

    def send_signal(self, execution_id: str, name: str, value: Raw) -> PendingFuture[Any]:
        headers = self.outbound_headers(OutboundKind.SIGNAL, name, value)
        seq = self.next_seq()
        self._commands.append(SendSignal(seq, execution_id, name, value, headers))
        return self._expect(seq, name, None)

    def issue(self, command: Command) -> None:
        """Issue a command without a result."""
        self._refuse_if_mute()
        self._commands.append(command)

    def record(self, value: Callable[[], Raw]) -> Raw:
        """Return the result of `value`, or on replay the recorded one."""
        seq = self.next_seq()
        recorded = self._recorded.get(seq)
        result = recorded.value if isinstance(recorded, RecordValue) else sandbox.lifted(value)
        self._commands.append(RecordValue(seq, result))
        return result

    def patched(self, patch: str) -> bool:
        """Whether this execution takes the new branch of a patch."""
        if patch not in self._patches:
            self._refuse_if_mute()
            recorded = self._recorded_mark(patch)
            self._patches[patch] = recorded is not None or not self.replaying
            if self._patches[patch]:
                self._mark(patch, is_deprecated=recorded is not None and recorded.is_deprecated)
        return self._patches[patch]

    def deprecate_patch(self, patch: str) -> None:
        """Mark a patch that has no old branch any more."""
        if patch in self._patches:
            return
        self._refuse_if_mute()
        recorded = self._recorded_mark(patch)
        self._patches[patch] = True
        if recorded is not None or not self.replaying:
            self._mark(patch, is_deprecated=recorded is None or recorded.is_deprecated)

    def _recorded_mark(self, patch: str) -> MarkPatch | None:
        """Return the mark of a patch in the turn that is replayed."""
        marks = (each for each in self._recorded.values() if isinstance(each, MarkPatch) and each.patch == patch)
        return next(marks, None)

    def _mark(self, patch: str, *, is_deprecated: bool) -> None:
        self._pass_deprecated_marks(until=patch)
        self._seq += 1
        self._commands.append(MarkPatch(self._seq, patch, is_deprecated))

    def _pass_deprecated_marks(self, until: str | None = None) -> None:
        """Count recorded marks that the code no longer makes, up to that of `until`: they have numbers of their own."""
        while True:
            recorded = self._recorded.get(self._seq + 1)
            if not isinstance(recorded, MarkPatch) or not recorded.is_deprecated or recorded.patch == until:
                return
            self._seq += 1

    def random(self) -> random.Random:
        """Return the random generator of this run, with the same seed on replay."""
        if self._random is None:
            assert self.started is not None
            self._random = random.Random(f"{self.started.seed}#{self.started.run}")
        return self._random

    def next_seq(self) -> int:
        """Return the number of the next command of this run."""
        if self._is_gone or self._asking:
            self._refuse_if_mute()
        if self._recorded:
            self._pass_deprecated_marks()
        self._seq += 1
        return self._seq

    def abandon(self, seq: int) -> None:
        """Cancel a command whose future was cancelled."""
        future = self._pending.pop(seq, None)
        if future is None or future.decode is None:
            # A signal is sent once the command was issued, whether or not it is awaited.
            return
        if future.cancellation is Cancellation.ABANDON:
            self._commands.append(CancelActivity(seq, Cancellation.ABANDON))
            return
        if future.cancellation is Cancellation.WAIT:
            # In place of a request in the same turn.
            self._commands = [c for c in self._commands if not (isinstance(c, CancelActivity) and c.seq == seq)]
        child = self._children.pop(seq, None)
        if self._take_back(seq):
            return
        if child is not None:
            self._commands.append(CancelChild(seq, child.child_id))
        else:
            self._commands.append(CancelActivity(seq))

    def request_activity_cancel(self, seq: int) -> bool:
        """Request cancellation of an activity, once, and keep its future. False if it has not left this turn."""
        if seq not in self._pending or any(isinstance(c, StartActivity) and c.seq == seq for c in self._commands):
            return False
        if seq not in self._asked_to_cancel:
            self._asked_to_cancel.add(seq)
            self._commands.append(CancelActivity(seq, Cancellation.WAIT))
        return True

    def request_cancel(self, seq: int) -> bool:
        """Request cancellation of a child, once, and keep its future. False if the child has not left this turn."""
        child = self._children.get(seq)
        if child is None or child in self._commands:
            return False
        if seq not in self._asked_to_cancel:
            self._asked_to_cancel.add(seq)
            self._commands.append(CancelChild(seq, child.child_id))
        return True

    def break_off(self, error: BaseException) -> None:
        """Have `advance` raise this error, whatever the code does with it: the turn cannot be completed."""
        self._broken = error

    def note(self, level: str, text: str) -> None:
        """Add a line to the execution's log; replay adds none."""
        if not self.replaying and not self._is_gone:
            self.notes.append(Note(self.at_ms, level, note_text(text)))

    # The host of the loop.

    def start_timer(self, timer: DurableTimer) -> None:
        timer.seq = self.next_seq()
        self._timers[timer.seq] = timer
        self._commands.append(StartTimer(timer.seq, _due_ms(timer.when())))

    def cancel_timer(self, timer: DurableTimer) -> None:
        if self._timers.pop(timer.seq, None) is not None and not self._take_back(timer.seq):
            self._commands.append(CancelTimer(timer.seq))

    def report(self, message: str, error: BaseException | None) -> None:
        if self._is_gone:
            return
        self.note("ERROR", message if error is None else f"{message}: {type(error).__name__}: {error}")
        if isinstance(error, WorkflowViolationError):
            self._broken = error

    # Events.

    def _apply_all(self, events: Sequence[Event]) -> int:
        for place, event in enumerate(events):
            self._apply(event)
            self._settle()
            if self._main is not None and self._main.done():
                self._close(self._main)
                return place + 1
        return len(events)

    def _settle(self) -> None:
        # Conditions are evaluated only when no task is ready: a flag that is set after an await counts.
        while True:
            self.loop.drain()
            if not self.mailbox.check_conditions():
                return

    def _apply(self, event: Event) -> None:
        match event:  # `Woken` needs no action.
            case ActivityEnded():
                self._end_activity(event)
            case TimerFired():
                self._fire(event.seq)
            case Signal():
                self._receive(event)
            case ChildEnded():
                self._end_child(event)
            case SignalSent():
                self._end(event.seq, event.error, NotFoundError)
            case Started():
                self._start(event)
            case _:
                self._apply_request(event)

    def _apply_request(self, event: Event) -> None:
        match event:
            case CancelRequested():
                # The last request before the code ends is the one that ended it.
                self._cancel = event
                if self._main is not None:
                    self._main.cancel(event.reason or None)
            case UpdateRequested():
                self.mailbox.update(event)
            case Reapplied():
                self._reapply(event)

    def _reapply(self, event: Reapplied) -> None:
        for each in event.events:
            if self._main is None or not self._main.done():
                self._apply(each)
                self._settle()
            elif isinstance(each, Signal):
                self.mailbox.buffer(each)  # For the next run, if the code continues as new.

    def _receive(self, signal: Signal) -> None:
        for each in self._interceptors:
            each.signal(SignalCall(self.execution_id, signal.name, signal.headers or {}))
        self.mailbox.deliver(signal)

    def _start(self, event: Started) -> None:
        self.started = event
        self.headers = event.headers
        if event.retry is not None:
            self._retry = event.retry
        if self._sealed is None:
            refuse_sealed(event.input, self.execution_id, INPUT)
        for signal in event.carried:
            self.mailbox.deliver(signal)
        args, kwargs = self.signature.unpack(event.input, what=f"input of {event.workflow}")
        run = self._function(*args, **kwargs) if not self._interceptors else self._intercepted(event, args, kwargs)
        self._main = self.loop.create_task(run, name="main")
        if self._cancel is not None:
            # Cancelled before the start: no line of it runs.
            self._main.cancel(self._cancel.reason or None)

    async def _intercepted(self, event: Started, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        call = WorkflowCall(event.workflow, self.execution_id, event.run, event.headers or {}, args, kwargs)
        with around(each.workflow(call) for each in self._interceptors):
            call.result = await self._function(*call.args, **call.kwargs)
        return call.result

    def _end_activity(self, event: ActivityEnded) -> None:
        future = self._pending.pop(event.seq, None)
        if future is None or future.done():
            return
        if event.error is None:
            self._resolve(future, event.result)
            return
        if event.cancelled:
            future.cancel()
            return
        facts: dict[str, Any] = {"activity": future.what, "attempts": event.attempts}
        if event.timeout is not None:
            future.set_exception(with_cause(ActivityTimeout(event.error, kind=event.timeout, **facts)))
        else:
            future.set_exception(revive(event.error, otherwise=ActivityFailure, **facts))

    def _end_child(self, event: ChildEnded) -> None:
        child = self._children.pop(event.seq, None)
        future = self._pending.pop(event.seq, None)
        if future is None or future.done():
            return
        if event.status is Status.SUCCEEDED:
            self._resolve(future, event.result)
            return
        if event.status is Status.CANCELLED and event.seq in self._asked_to_cancel:
            future.cancel()
            return
        error = event.error or ErrorInfo(type=event.status.value, message=f"the child ended {event.status.value}")
        child_id = child.child_id if child is not None else ""
        future.set_exception(revive(error, otherwise=ChildFailure, execution_id=child_id, status=event.status.value))

    def _end(self, seq: int, error: ErrorInfo | None, kind: type[Exception]) -> None:
        future = self._pending.pop(seq, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(kind(error.message))
            # A sent signal is often not awaited; then a missing target needs no warning.
            future.exception()

    def _resolve(self, future: PendingFuture[Any], result: Raw) -> None:
        assert future.decode is not None
        try:
            value = future.decode(result)
        except Exception as exc:  # noqa: BLE001 - raised in the awaiting code: the result is not of its type
            future.set_exception(exc)
        else:
            future.set_result(value)

    def _fire(self, seq: int) -> None:
        timer = self._timers.pop(seq, None)
        if timer is not None and not timer.cancelled():
            timer._scheduled = False  # type: ignore[attr-defined]
            timer._run()

    def _close(self, main: DurableTask[Any]) -> None:
        outcome = self._retried(outcome_of(main, self._cancel, self.mailbox.unconsumed(), self.headers))
        for seq in list(self._timers):
            self._timers[seq].cancel()
        for future in list(self._pending.values()):
            child = self._children.pop(future.seq, None)
            if child is None:
                # Nothing waits for the end of an activity any more.
                PendingFuture.cancel(future)
            elif child.parent_close is not ParentClose.ABANDON and not self._take_back(future.seq):
                terminate = child.parent_close is ParentClose.TERMINATE
                self._commands.append(CancelChild(future.seq, child.child_id, terminate))
            self._pending.pop(future.seq, None)
        self.closed = outcome
        self.mailbox.refuse_updates()
        self._commands.append(outcome)

    def _retried(self, outcome: Close | ContinueAsNew) -> Close | ContinueAsNew:
        """Return the next attempt in place of a failure, if the retry policy of the workflow allows it."""
        error = outcome.error if isinstance(outcome, Close) and outcome.status is Status.FAILED else None
        if self._retry is None or error is None:
            return outcome
        assert self.started is not None, "workflow code runs after it was started"
        attempt = self.started.attempt
        if not self._retry.again(attempt, error):
            return outcome
        delay_seconds = self._retry.delay_seconds(attempt, self.random().random())
        # Log lines are not encrypted.
        logged = error if self._sealed is None else self._sealed.seal_failure(error)
        self.note("WARNING", f"attempt {attempt} failed: {logged}; the next one starts in {delay_seconds:g} s")
        unread = self.mailbox.unconsumed()
        return ContinueAsNew(self.started.input, unread, self.headers, attempt + 1, round(1000 * delay_seconds))

    def _expect(self, seq: int, what: str, decode: Callable[[Raw], Any] | None) -> PendingFuture[Any]:
        future: PendingFuture[Any] = PendingFuture(self, seq, what, decode)
        self._pending[seq] = future
        return future

    def _child_id(self, seq: int) -> str | None:
        """Return the id of a child that the code waits for."""
        child = self._children.get(seq)
        return None if child is None else child.child_id

    def _take_back(self, seq: int) -> bool:
        """Drop a command that was issued in this turn."""
        for place in range(len(self._commands) - 1, -1, -1):
            command = self._commands[place]
            if getattr(command, "seq", None) == seq and not isinstance(command, CancelChild | CancelActivity):
                del self._commands[place]
                return True
        return False

    def _refuse_if_mute(self) -> None:
        if self._is_gone:
            raise WorkflowViolationError(f"execution {self.execution_id} has left memory; only its clean-up goes on")
        if self._asking:
            raise WorkflowViolationError("a query only reads: it cannot call activities, wait, or send anything")


def running() -> Interpreter | None:
    """Return the interpreter whose workflow code is running in this thread, if any."""
    loop = asyncio_events._get_running_loop()
    if loop is None or type(loop) is not TurnLoop:
        return None
    host = loop._host
    return host if isinstance(host, Interpreter) else None


def current(what: str) -> Interpreter:
    """Return the running interpreter. Raises `WorkflowViolationError` outside of a workflow."""
    interpreter = running()
    if interpreter is None:
        raise WorkflowViolationError(f"{what} belongs into a workflow, and none is running here")
    return interpreter


def _due_ms(when_seconds: float) -> int:
    return round(when_seconds * 1000)
