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
from headgate.durable.client.handle import Handle, update_failure
from headgate.durable.client.listing import Listing, Wanted, list_executions
from headgate.durable.client.logs import LogPage, LogPlace, notes_of, read_page
from headgate.durable.client.outbox import Sender, check_size, seen, signal_of
from headgate.durable.client.result_waiters import Waits
from headgate.durable.client.start_lookup import Beginnings, limits_elsewhere
from headgate.durable.engine.activity_store import Activities, Ended
from headgate.durable.model.activity_tokens import read_token
from headgate.durable.model.archive import Archive
from headgate.durable.model.definitions import WorkflowDefinition
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import (
    NULL,
    AnswerUpdate,
    CancelRequested,
    Note,
    Signal,
    Started,
    Status,
    TerminateRequested,
    Turn,
    UpdateRequested,
    Woken,
)
from headgate.durable.model.history_reader import read_turns
from headgate.durable.model.names import check_execution_id, check_tags
from headgate.durable.model.records import ANSWER, Execution, execution_of, message
from headgate.durable.model.starts import Reuse, StartRequest, reads_alike, start_writes, takes
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.replay.query_replay import QUERY_SECONDS, answer
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    ExecutionClosedError,
    InvalidIdError,
    NotFoundError,
    OutcomeUnknownError,
    UnknownWorkflowError,
)
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import INBOXES
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Put, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

_TERMINATE_SECONDS: Final = 30.0
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
        workflows: Mapping[str, WorkflowDefinition] | None = None,
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
        self._sender = Sender(store, clock, ids, self._told)
        self._beginnings = Beginnings(store, archive)
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
        Raises `UnknownWorkflowError` if neither the app nor a live worker has it, `AlreadyStartedError` if the id is
        taken by something else, `InvalidIdError`, `PayloadTooLargeError`.
        """
        definition = self._workflows.get(workflow)
        limits = definition or limits_elsewhere(self._store, workflow, self._now_ms(), self._workflows)
        if execution_id is not None:
            check_execution_id(execution_id)
        check_size(input, f"input of workflow {workflow}")
        request = StartRequest(
            execution_id=execution_id or f"{workflow}/{self._ids.ulid()}",
            workflow=workflow,
            input=input,
            tags=check_tags(tags or {}),
            memo=memo,
            timeout_seconds=timeout_seconds if timeout_seconds is not None else limits.timeout_seconds,
            retention_seconds=limits.retention_seconds,
            delay_seconds=delay_seconds,
            tells_end=tells_end,
        )
        was_started = self._start(request, _policy(reuse), first_signal, also)
        returns = Any if definition is None else definition.signature.result
        return Handle(self, request.execution_id, was_started=was_started, returns=returns)

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
            if self._is_taken(reuse, taken_by, request, first_signal):
                try:
                    if first_signal is not None:
                        self._sender.send(request.execution_id, first_signal)
                except ExecutionClosedError:
                    if taken_by.status.is_closed:
                        raise
                    continue  # It has ended in this moment, and may have to be started after all.
                return False
            if first_signal is not None and self._sender.was_sent(taken_by, first_signal.id):
                return False  # With the run that it started, or that was there then.
            if not taken_by.status.is_closed:
                self.terminate(request.execution_id, "an execution of the same id was started")
                taken_by = self.wait(request.execution_id, _TERMINATE_SECONDS)
            earlier = taken_by

    def _is_taken(self, reuse: Reuse, current: Execution, request: StartRequest, first_signal: Signal | None) -> bool:
        """Whether what is there will do. Raises `AlreadyStartedError` if it will not, and must not be replaced."""
        try:
            return takes(reuse, current, request)
        except AlreadyStartedError:
            # One that runs with another input is as good for a signal, which is what matters.
            if first_signal is not None or self._reads_alike(current, request):
                return True
            raise

    def _reads_alike(self, current: Execution, request: StartRequest) -> bool:
        """Whether the workflow takes both inputs for the same, such as with and without what is a default of it.

        Asked only if they are not equal as JSON: a digest of what is read would change with every field that is added.
        """
        definition = self._workflows.get(request.workflow)
        if definition is None or current.workflow != request.workflow:
            return False
        began = self._beginnings.of_life(current)
        return began is not None and reads_alike(definition.signature, began.input, request.input)

    def _try_start(
        self, request: StartRequest, first_signal: Signal | None, earlier: Execution | None, also: Sequence[Write]
    ) -> Execution | None:
        """Start in the place of `earlier`, and return None; or return the execution that has the id."""
        now_ms = self._now_ms()
        execution, writes = start_writes(request, now_ms, self._ids.ulid(), earlier)
        if first_signal is not None:
            # No need to know of it from an earlier start: whoever started this one sent its signal with it.
            writes.append(message(request.execution_id, first_signal, now_ms, self._ids.ulid()).put())
            writes.append(Put(INBOXES, seen(request.execution_id, execution.first_run, first_signal.id)))
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

    def signal_with_start(  # noqa: PLR0913 - each is a thing that callers set
        self,
        workflow: str,
        input: Raw,
        name: str,
        value: Raw,
        *,
        execution_id: str,
        tags: Mapping[str, str] | None = None,
        memo: Raw = NULL,
        timeout_seconds: float | None = None,
        signal_id: str | None = None,
        reuse: Reuse | str = Reuse.CLOSED,
    ) -> Handle:
        """Send a signal, starting the execution first if there is none of this id that is open.

        With a `signal_id`, the same signal sent again is heard once: as long as the execution is kept, nothing is
        started for it again. Raises `ExecutionClosedError` if it has ended and `reuse` lets none take its place, and
        what `start` and `signal` do.
        """
        return self.start(
            workflow,
            input,
            execution_id=execution_id,
            reuse=reuse,
            tags=tags,
            memo=memo,
            timeout_seconds=timeout_seconds,
            first_signal=signal_of(name, value, self._ids.ulid() if signal_id is None else signal_id),
        )

    def handle(self, execution_id: str) -> Handle:
        """Return the handle of an execution, which need not exist."""
        return Handle(self, check_execution_id(execution_id, derived=True))

    # Telling.

    def signal(self, execution_id: str, name: str, value: Raw = NULL, *, signal_id: str | None = None) -> None:
        """Put a signal into an execution's inbox. It is there until the execution takes it.

        With a `signal_id`, sending it again changes nothing, also after the end. Raises `NotFoundError` if there is no
        such execution, `ExecutionClosedError` if it has ended, `PayloadTooLargeError`.
        """
        self._sender.send(execution_id, signal_of(name, value, signal_id))

    def cancel(self, execution_id: str, reason: str = "") -> None:
        """Ask an execution to end. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._sender.send(execution_id, CancelRequested(reason[:1000]))

    def terminate(self, execution_id: str, reason: str = "") -> None:
        """Have an execution ended without asking its code. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._sender.send(execution_id, TerminateRequested(reason[:1000]))

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
        """Run an execution that has ended again from its beginning, with its first input, under the same id.

        Raises `NotFoundError`, and `ConflictError` if it has not ended.
        """
        row = self.get(execution_id)
        if not row.status.is_closed:
            raise ConflictError(f"execution {execution_id}: it is {row.status.value}; end it first, or redrive it")
        started = self._beginnings.of_life(row)
        if started is None:
            raise NotFoundError(
                f"execution {execution_id}: it ended ({row.status.value}) before it began, and its input was not kept; "
                "start it anew with reuse 'closed'"
            )
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

    # Asking.

    def get(self, execution_id: str) -> Execution:
        """Return an execution. Raises `NotFoundError`."""
        return self._sender.get(execution_id)

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

    def started(self, row: Execution, *, first: bool = False) -> Started:
        """Return how the present run of an execution began, or this life of its id. Raises `NotFoundError`."""
        found = self._beginnings.of_life(row) if first else self._beginnings.of_run(row)
        if found is None:
            raise NotFoundError(f"execution {row.execution_id}: its first turn has not been taken yet")
        return found

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
        """Have an update handler answer. Raises `UpdateFailure` with its error, `TimeoutError`."""
        update_id = self.ask_update(execution_id, name, input)
        answer = self.waits.until(lambda: self.update_answer(execution_id, update_id), timeout_seconds)
        if answer is None:
            raise TimeoutError(f"execution {execution_id}: update {name} was not answered in {timeout_seconds} s")
        if answer.error is not None:
            raise update_failure(answer, name, execution_id)
        return answer.result

    def ask_update(self, execution_id: str, name: str, input: Raw = NULL) -> str:
        """Send an update and return its id. Raises `NotFoundError`, `ExecutionClosedError`."""
        check_size(input, f"input of update {name}")
        update_id = self._ids.ulid()
        self._sender.send(execution_id, UpdateRequested(update_id, name, input))
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


def _policy(reuse: Reuse | str) -> Reuse:
    try:
        return Reuse(reuse)
    except ValueError:
        raise InvalidIdError(f"reuse {reuse!r}: use one of {[policy.value for policy in Reuse]}") from None
