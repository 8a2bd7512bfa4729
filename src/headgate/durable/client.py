"""The client: starts executions, tells them things, and reads how they are. It never advances one itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable import payload
from headgate.durable.activities import Activities, Ended
from headgate.durable.activity_tokens import read_token
from headgate.durable.archiving import Archive
from headgate.durable.definitions import Workflow, check_execution_id, check_signal_name, check_tags
from headgate.durable.failures import ErrorInfo, ExecutionFailure
from headgate.durable.handle import Handle
from headgate.durable.history import (
    NULL,
    AnswerUpdate,
    CancelRequested,
    Event,
    Note,
    Signal,
    Started,
    Status,
    TerminateRequested,
    Turn,
    UpdateRequested,
    Woken,
)
from headgate.durable.history_reader import read_turns
from headgate.durable.interpreter import Interpreter
from headgate.durable.listing import Listing, Wanted, list_executions
from headgate.durable.logs import LogPage, LogPlace, notes_of, read_page
from headgate.durable.queries import QUERY_SECONDS, answer
from headgate.durable.records import ANSWER, OPEN, SEEN, Execution, execution_of, message
from headgate.durable.starts import Reuse, StartRequest, start_writes, takes
from headgate.durable.waits import Waits
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    ExecutionClosedError,
    InvalidIdError,
    NotFoundError,
    OutcomeUnknownError,
    PayloadTooLargeError,
    UnknownWorkflowError,
)
from headgate.ids import IdMaker
from headgate.store.conditions import absent, all_of, equals
from headgate.store.keyring import Keyring
from headgate.store.port import Store
from headgate.store.schema import Key
from headgate.store.tables import EXECUTIONS, INBOXES
from headgate.store.writes import Check, Put, Write

_TERMINATE_SECONDS: Final = 30.0
# How the names of workflows begin that are parts of the product.
OURS: Final = "headgate."
_answer_decoder: Final = msgspec.json.Decoder(AnswerUpdate)


class Client:
    """Executions of one store. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        keyring: Keyring,
        archive: Archive,
        *,
        workflows: Mapping[str, Workflow[..., Any]] | None = None,
    ) -> None:
        # Set by a worker in this process: who to tell that an execution has mail.
        self.notify: Callable[[str], None] | None = None
        self._store = store
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._archive = archive
        self._workflows = workflows if workflows is not None else {}
        self._activities = Activities(store, clock, ids, worker_id=lambda: "external", draw=lambda: 0.5)
        self.waits = Waits(store, clock)

    # Starting.

    def start(  # noqa: PLR0913 - each is a thing that callers set
        self,
        workflow: str,
        input: Raw,
        *,
        execution_id: str | None = None,
        reuse: Reuse | str = Reuse.NEVER,
        tags: Mapping[str, str] | None = None,
        memo: Raw = NULL,
        timeout_seconds: float | None = None,
        delay_seconds: float | None = None,
        first_signal: Signal | None = None,
        tells_end: bool = False,
        also: Sequence[Write] = (),
    ) -> Handle:
        """Start an execution, or find the one that is there, and return once that is durable.

        `also` is written in the transaction that starts it, and not if it is there.
        With `tells_end`, the event `headgate.execution.ended` tells of its end, in the transaction that ends it.
        Raises `UnknownWorkflowError` if no app here has the workflow, `AlreadyStartedError` if the id is taken by
        something else, `InvalidIdError`, `PayloadTooLargeError`.
        """
        definition = self._workflows.get(workflow)
        if definition is None:
            known = ", ".join(sorted(name for name in self._workflows if not name.startswith(OURS))) or "none"
            raise UnknownWorkflowError(f"workflow {workflow!r}: not loaded here; there is {known}; see --app")
        if execution_id is not None:
            check_execution_id(execution_id)
        check_size(input, f"input of workflow {workflow}")
        request = StartRequest(
            execution_id=execution_id or f"{workflow}/{self._ids.ulid()}",
            workflow=workflow,
            input=input,
            tags=check_tags(tags or {}),
            memo=memo,
            timeout_seconds=timeout_seconds if timeout_seconds is not None else definition.timeout_seconds,
            retention_seconds=definition.retention_seconds,
            delay_seconds=delay_seconds,
            tells_end=tells_end,
        )
        was_started = self._start(request, _policy(reuse), first_signal, also)
        return Handle(self, request.execution_id, was_started=was_started, returns=definition.signature.result)

    def _start(
        self, request: StartRequest, reuse: Reuse, first_signal: Signal | None, also: Sequence[Write] = ()
    ) -> bool:
        """Return whether an execution was started; if not, the one that is there is the one that was asked for."""
        earlier: Execution | None = None
        while True:
            taken_by = self._try_start(request, first_signal, earlier, also)
            if taken_by is None:
                self._told(request.execution_id)
                return True
            if takes(reuse, taken_by, request):
                if first_signal is not None and not taken_by.status.is_closed:
                    self._send(request.execution_id, first_signal)
                return False
            if not taken_by.status.is_closed:
                self.terminate(request.execution_id, "an execution of the same id was started")
                taken_by = self.wait(request.execution_id, _TERMINATE_SECONDS)
            earlier = taken_by

    def _try_start(
        self, request: StartRequest, first_signal: Signal | None, earlier: Execution | None, also: Sequence[Write]
    ) -> Execution | None:
        """Start in the place of `earlier`, and return None; or return the execution that has the id."""
        now_ms = self._now_ms()
        execution, writes = start_writes(request, now_ms, self._ids.ulid(), earlier)
        if first_signal is not None:
            # No need to know of it from an earlier start: whoever started this one sent its signal with it.
            writes.append(message(request.execution_id, first_signal, now_ms, self._ids.ulid()).put())
            writes.append(Put(INBOXES, _seen(request.execution_id, execution.first_run, first_signal.id)))
        try:
            self._store.transact([*writes, *also])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            taken_by = exc.failures[0]
            if taken_by is None:
                # The one that was there is no longer kept.
                return self._try_start(request, first_signal, None, also)
            return execution_of(taken_by)
        return None

    def signal_with_start(
        self,
        workflow: str,
        input: Raw,
        name: str,
        value: Raw,
        *,
        execution_id: str,
        tags: Mapping[str, str] | None = None,
        signal_id: str | None = None,
        reuse: Reuse | str = Reuse.CLOSED,
    ) -> Handle:
        """Send a signal, starting the execution first if there is none of this id that is open.

        With a `signal_id`, the same signal sent again while the execution is open is heard once.
        """
        signal = Signal(name, value, id=signal_id or self._ids.ulid())
        try:
            return self.start(workflow, input, execution_id=execution_id, reuse=reuse, tags=tags, first_signal=signal)
        except AlreadyStartedError:
            # It runs with another input, which is as good: the signal is what matters.
            self._send(execution_id, signal)
            return self.handle(execution_id)

    def handle(self, execution_id: str) -> Handle:
        """Return the handle of an execution, which need not exist."""
        return Handle(self, check_execution_id(execution_id, derived=True))

    # Telling.

    def signal(self, execution_id: str, name: str, value: Raw = NULL, *, signal_id: str | None = None) -> None:
        """Put a signal into an execution's inbox. It is there until the execution takes it.

        With a `signal_id`, sending it again changes nothing. Raises `NotFoundError` if there is no such execution,
        `ExecutionClosedError` if it has ended, `PayloadTooLargeError`.
        """
        check_size(value, f"payload of signal {name}")
        if signal_id is not None and not 1 <= len(signal_id) <= 200:
            raise InvalidIdError(f"signal id {signal_id[:40]!r}: use 1 to 200 characters")
        self._send(execution_id, Signal(check_signal_name(name), value, id=signal_id or ""))

    def cancel(self, execution_id: str, reason: str = "") -> None:
        """Ask an execution to end. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._send(execution_id, CancelRequested(reason[:1000]))

    def terminate(self, execution_id: str, reason: str = "") -> None:
        """Have an execution ended without asking its code. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._send(execution_id, TerminateRequested(reason[:1000]))

    def redrive(self, execution_id: str) -> None:
        """Let an execution that is stuck go on. Raises `NotFoundError`, `ConflictError` if it is not stuck."""
        row = self.get(execution_id)
        if row.status is not Status.STUCK:
            raise ConflictError(f"execution {execution_id}: it is {row.status.value}, not stuck; nothing was changed")
        freed = replace(row, version=row.version + 1, status=Status.RUNNING, failures=0, retry_at_ms=None)
        woken = message(execution_id, Woken("redriven"), self._now_ms(), self._ids.ulid())
        self._store.transact([freed.replacing(row.version), woken.put()])
        self._told(execution_id)

    def retry(self, execution_id: str) -> Handle:
        """Run an execution that has ended again from its beginning, with the same input, under the same id.

        Raises `NotFoundError`, and `ConflictError` if it has not ended.
        """
        row = self.get(execution_id)
        if not row.status.is_closed:
            raise ConflictError(f"execution {execution_id}: it is {row.status.value}; end it first, or redrive it")
        started = self.started(row)
        begun_ms = round(datetime.fromisoformat(row.started_at).timestamp() * 1000)
        timeout_seconds = None if row.timeout_at_ms is None else (row.timeout_at_ms - begun_ms) / 1000
        return self.start(
            row.workflow,
            started.input,
            execution_id=execution_id,
            reuse=Reuse.CLOSED,
            tags=row.tags,
            memo=started.memo,
            timeout_seconds=timeout_seconds,
            tells_end=row.tells_end,
        )

    def _send(self, execution_id: str, event: Event) -> None:
        # Meant for this life of the id: what is not heard before it ends must not be obeyed by the next.
        first_run = self.get(execution_id).first_run
        told = message(execution_id, event, self._now_ms(), self._ids.ulid(), first_run=first_run)
        is_open = all_of(OPEN, equals("first_run", first_run))
        writes: list[Write] = [Check(EXECUTIONS, Key(execution_id), is_open), told.put()]
        signal_id = event.id if isinstance(event, Signal) else ""
        if signal_id:
            writes.append(Put(INBOXES, _seen(execution_id, first_run, signal_id), absent()))
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            if 0 not in exc.failures:
                return  # The signal of this id is there, or was taken already.
            if exc.failures[0] is None:
                raise _unknown(execution_id) from None
            status = Status(exc.failures[0]["status"])
            if not status.is_closed:
                # Started anew under the same id between the look and the write.
                self._send(execution_id, event)
                return
            raise ExecutionClosedError(
                f"execution {execution_id}: it has ended ({status.value}) and takes no more messages; start a new one"
            ) from None
        self._told(execution_id)

    # Asking.

    def get(self, execution_id: str) -> Execution:
        """Return an execution. Raises `NotFoundError`."""
        item = self._store.get(EXECUTIONS, Key(check_execution_id(execution_id, derived=True)), consistent=True)
        if item is None:
            raise _unknown(execution_id)
        return execution_of(item)

    def list(
        self,
        *,
        status: Status | None = None,
        workflow: str | None = None,
        parent_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 100,
        cursor: str | None = None,
        ascending: bool = False,
    ) -> Listing:
        """Return executions by start time, those that match all that is given; without any, those that run."""
        wanted = Wanted(status=status, workflow=workflow, parent_id=parent_id, tags=dict(tags or {}))
        return list_executions(self._store, wanted, limit=limit, cursor=cursor, ascending=ascending)

    def started(self, row: Execution) -> Started:
        """Return how the present run of an execution began."""
        turn = next(iter(self.history(row.execution_id, after=row.first_turn - 1)), None)
        first = turn.events[0] if turn is not None and turn.events else None
        if not isinstance(first, Started):
            raise NotFoundError(f"execution {row.execution_id}: its first turn has not been taken yet")
        return first

    def history(self, execution_id: str, *, after: int = 0) -> Iterator[Turn]:
        """Give the turns of an execution from `after` on, archived or not."""
        row = self.get(execution_id)
        if row.archive is not None and after < row.archived_through:
            yield from (turn for turn in self._archive.read(row.archive) if turn.turn > after)
        first = max(after, row.archived_through) + 1
        if row.turn >= first:
            yield from read_turns(self._store, execution_id, first, row.turn)

    def logs(self, execution_id: str) -> Sequence[Note]:
        """Return what the workflow and its activities have logged, in order of time."""
        notes = chain.from_iterable(map(notes_of, self.history(execution_id)))
        return sorted(notes, key=lambda note: note.at_ms)

    def log_page(self, execution_id: str, *, limit: int = 100, cursor: str | None = None) -> LogPage:
        """Return some of what was logged, in the order in which the execution heard of it. Raises `CursorError`."""
        place = LogPlace.parse(cursor)
        last_turn = self.get(execution_id).turn
        return read_page(self.history(execution_id, after=place.turn - 1), place, last_turn, limit)

    def query(self, execution_id: str, name: str, input: Raw = NULL, *, timeout_seconds: float = QUERY_SECONDS) -> Raw:
        """Return what the code of an execution answers, as of its last turn.

        Raises `NotFoundError`, `UnknownWorkflowError`, `QueryTimeoutError`, and whatever the code raises.
        """
        row = self.get(execution_id)
        definition = self._workflows.get(row.workflow)
        if definition is None:
            raise UnknownWorkflowError(f"workflow {row.workflow!r}: not loaded here; query it where it is")
        interpreter = Interpreter(definition.function, definition.signature, execution_id)
        turns = self.history(execution_id, after=row.first_turn - 1)
        return answer(interpreter, turns, name, input, timeout_seconds)

    def update(self, execution_id: str, name: str, input: Raw = NULL, *, timeout_seconds: float = 30.0) -> Raw:
        """Have an update handler answer. Raises `ExecutionFailure` with its error, `TimeoutError`."""
        update_id = self.ask_update(execution_id, name, input)
        answer = self.waits.until(lambda: self.update_answer(execution_id, update_id), timeout_seconds)
        if answer is None:
            raise TimeoutError(f"execution {execution_id}: update {name} was not answered in {timeout_seconds} s")
        if answer.error is not None:
            raise ExecutionFailure(answer.error, execution_id=execution_id, status=Status.RUNNING.value)
        return answer.result

    def ask_update(self, execution_id: str, name: str, input: Raw = NULL) -> str:
        """Send an update and return its id. Raises `NotFoundError`, `ExecutionClosedError`."""
        check_size(input, f"input of update {name}")
        update_id = self._ids.ulid()
        self._send(execution_id, UpdateRequested(update_id, name, input))
        return update_id

    def update_answer(self, execution_id: str, update_id: str) -> AnswerUpdate | None:
        """Return what an update was answered, or None as long as it was not. Answers are kept for a day."""
        item = self._store.get(INBOXES, Key(execution_id, f"{ANSWER}{update_id}"), consistent=True)
        return None if item is None else _answer_decoder.decode(item["body"])

    def wait(self, execution_id: str, timeout_seconds: float | None = None) -> Execution:
        """Return the execution once it has ended. Raises `TimeoutError`, `NotFoundError`."""

        def look() -> Execution | None:
            row = self.get(execution_id)
            return row if row.status.is_closed else None

        row = self.waits.until(look, timeout_seconds, rung_as=execution_id)
        if row is None:
            status = self.get(execution_id).status.value
            raise TimeoutError(f"execution {execution_id}: still {status} after {timeout_seconds} s")
        return row

    def closed(self, row: Execution) -> None:
        """Wake those who wait for an execution in this process."""
        self.waits.ring(row.execution_id)

    # Completing activities from outside.

    def complete_activity(self, token: str, result: Raw = NULL) -> None:
        """End an activity with a result. Raises `SignatureError`, `StaleClaimError`, `NotFoundError`."""
        check_size(result, "result of the activity")
        self._end(token, Ended(result=result))

    def fail_activity(self, token: str, error: ErrorInfo) -> None:
        """End an attempt at an activity with an error; it may be tried again."""
        self._end(token, Ended(error=error))

    def beat_activity(self, token: str, details: Raw | None = None) -> None:
        """Record a heartbeat. Raises `StaleClaimError` or `NotFoundError` if nobody wants the result any more."""
        activity = self._activities.get(*read_token(self._keyring, token))
        self._activities.beat(activity, details)

    def _end(self, token: str, outcome: Ended) -> None:
        activity = self._activities.get(*read_token(self._keyring, token))
        if activity.subscription is not None:
            self._activities.delivered(activity, outcome)
            return
        source = self._activities.ended(activity, outcome)
        if source is not None:
            self._activities.deliver(activity, source)
        self._told(activity.execution_id)

    def _told(self, execution_id: str) -> None:
        if self.notify is not None:
            self.notify(execution_id)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def check_size(value: Raw, what: str) -> None:
    """Raise `PayloadTooLargeError` for JSON that is larger than is accepted."""
    size = len(bytes(value))
    if size > payload.BYTES_MAX:
        raise PayloadTooLargeError(f"{what}: {size:,} bytes; at most {payload.BYTES_MAX:,}; pass a reference instead")


def _policy(reuse: Reuse | str) -> Reuse:
    try:
        return Reuse(reuse)
    except ValueError:
        raise InvalidIdError(f"reuse {reuse!r}: use one of {[policy.value for policy in Reuse]}") from None


def _seen(execution_id: str, first_run: int, signal_id: str) -> dict[str, str]:
    """Return the row that says that an execution was sent the signal of this id since it was started."""
    return {"execution_id": execution_id, "message_id": f"{SEEN}{first_run}#{signal_id}"}


def _unknown(execution_id: str) -> NotFoundError:
    return NotFoundError(f"execution {execution_id}: there is none of this id; see 'headgate execution ls'")
