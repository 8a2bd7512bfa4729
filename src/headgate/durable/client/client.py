"""Client: starts executions, sends them messages, and reads their state. It never advances an execution itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.client.failed_attempts import TURNS_MAX, AttemptFailure, attempt_failures
from headgate.durable.client.handle import Handle, update_failure
from headgate.durable.client.listing import ExecutionFilter, Listing, list_executions, start_text
from headgate.durable.client.logs import LogPage, LogPlace, notes_of, read_page
from headgate.durable.client.outbox import MessageSender, check_size, received_row, signal_of
from headgate.durable.client.query_routing import QueryRouter
from headgate.durable.client.resets import REASON_CHARACTERS_MAX, Messages, ResetResult, Resets
from headgate.durable.client.result_waiters import ResultWaiters
from headgate.durable.client.sealing import Sealing
from headgate.durable.client.start_lookup import StartEventLookup, declared_limits, servers
from headgate.durable.engine.activity_store import Activities, AttemptResult, notes_so_far
from headgate.durable.engine.inbox import delayed_start
from headgate.durable.engine.stuck import released
from headgate.durable.model.activity_tokens import read_token
from headgate.durable.model.archive import Archive
from headgate.durable.model.declarations import WorkflowDefinition
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
)
from headgate.durable.model.history_reader import read_turns, turn_ranges
from headgate.durable.model.interceptors import Interceptor
from headgate.durable.model.names import (
    check_execution_id,
    check_headers,
    check_new_execution_id,
    check_not_built_in,
    check_tags,
    check_update_id,
    is_built_in,
)
from headgate.durable.model.observer import NULL_OBSERVER, DurableObserver
from headgate.durable.model.payload_codec import is_sealed_text, sealed_of
from headgate.durable.model.records import (
    ANSWER,
    Activity,
    Execution,
    activity_of,
    execution_of,
    is_repaired_by,
    message,
    with_repair,
)
from headgate.durable.model.retry import Retry, load_retry
from headgate.durable.model.starts import Reuse, StartRequest, is_same_input, satisfies, start_writes
from headgate.durable.replay.interpreter import Interpreter
from headgate.durable.replay.query_replay import QUERY_SECONDS, answer
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    ExecutionClosedError,
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    UnknownWorkflowError,
)
from headgate.ids import IdMaker
from headgate.span_export import SpanRecord
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from headgate.telemetry import Tracing, traceparent

_TERMINATE_SECONDS: Final = 30.0
# Dispatching takes milliseconds, and the sweep for what a dead worker has left runs every few seconds.
_DISPATCH_SECONDS: Final = 10.0
_FIRST_TURN_SECONDS: Final = 2.0
# An execution may have thousands of open activities.
_OPEN_MAX: Final = 200
_answer_decoder: Final = msgspec.json.Decoder(AnswerUpdate)


class Client:
    """Executions of one store. Safe to use from many threads."""

    def __init__(  # noqa: PLR0913 - the components of a client
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        keyring: Keyring,
        archive: Archive,
        *,
        workflows: Mapping[str, WorkflowDefinition] | None = None,
        waiters: ResultWaiters | None = None,
        observer: DurableObserver = NULL_OBSERVER,
        interceptors: Sequence[Interceptor] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing if tracing is not None else Tracing()
        # They wrap what workflows and handles do through this client.
        self.interceptors = tuple(interceptors)
        self._store = store
        self._clock = clock
        self._ids = ids
        self._keyring = keyring
        self._archive = archive
        self._workflows = workflows if workflows is not None else {}
        self._activities = Activities(store, clock, ids, worker_id=lambda: "external", draw=lambda: 0.5)
        self._observer = observer
        self._sealing = Sealing(self._workflows)
        self._sender = MessageSender(store, clock, ids, observer, self._sealing)
        self._waiters = waiters if waiters is not None else ResultWaiters(store, clock)
        self._router = QueryRouter(store, clock, ids, self._waiters)
        self._resets = Resets(store, clock, ids, archive, observer)
        self._start_events = StartEventLookup(store, archive)

    # Starting.

    def start(  # noqa: PLR0913 - each is an option of callers
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
        retry: Retry | None = None,
        first_signal: Signal | None = None,
        tells_end: bool = False,
        also: Sequence[Write] = (),
        is_internal: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Handle[Any]:
        """Start an execution, or find the existing one, and return once the start is durable.

        `retry` is in place of the retry policy that the workflow declares.
        `also` is written in the transaction that starts it, and not if it exists already.
        With `tells_end`, the transaction that ends the execution emits the event `headgate.execution.ended`.
        Only an internal start may name a built-in workflow or replace one of its executions.
        Raises `UnknownWorkflowError` if neither the app nor a live worker has the workflow, `AlreadyStartedError` if a
        different execution has the id, `InvalidPayloadError` for a built-in workflow, `InvalidIdError`,
        `PayloadTooLargeError`.
        """
        if not is_internal:
            check_not_built_in("workflow", workflow)
        if execution_id is not None:
            check_new_execution_id(execution_id)
        execution_id = execution_id or f"{workflow}/{self._ids.ulid()}"
        definition = self._workflows.get(workflow)
        limits = definition or declared_limits(self._store, workflow, self._now_ms(), self._workflows)
        check_size(input, f"input of workflow {workflow}")
        parent, began = traceparent(), self._clock.seconds()
        request = StartRequest(
            execution_id=execution_id,
            workflow=workflow,
            input=input,
            tags=check_tags(tags or {}),
            memo=memo,
            timeout_seconds=timeout_seconds if timeout_seconds is not None else limits.timeout_seconds,
            retention_seconds=limits.retention_seconds,
            delay_seconds=delay_seconds,
            retry=retry,
            tells_end=tells_end,
            headers=check_headers(headers) if headers else None,
            traceparent=self._tracing.child_of(parent),
        )
        was_started = self._start(self._sealing.start(request), _policy(reuse), first_signal, also)
        if was_started and self._tracing.is_on:
            self._end_span(request, parent, began)
        returns = Any if definition is None else definition.signature.result
        return Handle(self, request.execution_id, was_started=was_started, returns=returns)

    def _end_span(self, request: StartRequest, parent: str, began: float) -> None:
        attributes = {"headgate.execution_id": request.execution_id, "headgate.workflow": request.workflow}
        start_ns, end_ns = int(began * 1_000_000_000), int(self._clock.seconds() * 1_000_000_000)
        record = SpanRecord("execution.start", request.traceparent, parent, start_ns, end_ns, attributes)
        self._tracing.finish(record)

    def _start(
        self, request: StartRequest, reuse: Reuse, first_signal: Signal | None, also: Sequence[Write] = ()
    ) -> bool:
        """Return whether an execution was started; if not, the existing one satisfies the request."""
        earlier: Execution | None = None
        while True:
            existing = self._try_start(request, first_signal, earlier, also)
            if existing is None:
                self._observer.on_message_stored(request.execution_id)
                return True
            if is_built_in(existing.workflow) and not is_built_in(request.workflow):
                raise _taken_by_built_in(existing)
            if self._satisfies(reuse, existing, request, first_signal):
                try:
                    if first_signal is not None:
                        self._sender.send(request.execution_id, first_signal)
                except ExecutionClosedError:
                    if existing.status.is_closed:
                        raise
                    continue  # It has ended just now, and may have to be started after all.
                return False
            if first_signal is not None and self._sender.was_sent(existing, first_signal.id):
                return False  # An earlier call has sent this signal.
            if not existing.status.is_closed:
                self.terminate(request.execution_id, "an execution of the same id was started")
                existing = self.wait(request.execution_id, _TERMINATE_SECONDS)
            earlier = self._dispatched(existing)

    def _dispatched(self, row: Execution) -> Execution:
        """Return a closed execution once all commands of its last turn are dispatched: a new run would drop the rest.

        Raises `ConflictError` if no worker dispatches them in time.
        """
        if row.dispatched is None:
            return row

        def dispatched() -> Execution | None:
            current = self.get(row.execution_id)
            return current if current.dispatched is None else None

        # The local worker, if there is one, dispatches them now.
        self._observer.on_message_stored(row.execution_id)
        found = self._waiters.wait(dispatched, _DISPATCH_SECONDS, name=row.execution_id)
        if found is None:
            raise ConflictError(
                f"execution {row.execution_id}: it has ended, and commands of its last turn are not dispatched yet; "
                f"start a worker that has workflow {row.workflow}, or try again"
            )
        return found

    def _satisfies(self, reuse: Reuse, current: Execution, request: StartRequest, first_signal: Signal | None) -> bool:
        """Whether the existing execution satisfies a request.

        Raises `AlreadyStartedError` if it does not, and may not be replaced.
        """
        try:
            return satisfies(reuse, current, request)
        except AlreadyStartedError:
            # A signal may go to an execution with another input.
            if first_signal is not None or self._is_same_input(current, request):
                return True
            raise

    def _is_same_input(self, current: Execution, request: StartRequest) -> bool:
        """Whether the workflow decodes both inputs to the same values, such as with and without a default.

        Only for inputs that differ as JSON: a digest of decoded values would change with every new field.
        """
        definition = self._workflows.get(request.workflow)
        if definition is None or current.workflow != request.workflow:
            return False
        started = self._start_events.of_life(current)
        if started is None:
            return False
        one, other = [
            self._sealing.opened_input(request.workflow, request.execution_id, each)
            for each in (started.input, request.input)
        ]
        return is_same_input(definition.signature, one, other)

    def _try_start(
        self, request: StartRequest, first_signal: Signal | None, earlier: Execution | None, also: Sequence[Write]
    ) -> Execution | None:
        """Start the execution, replacing `earlier`, and return None; or return the execution that has the id."""
        now_ms = self._now_ms()
        execution, writes = start_writes(request, now_ms, self._ids.ulid(), earlier)
        if first_signal is not None:
            # A new life of the id has received no signal yet, so that the row needs no condition.
            sealed = self._sealing.message(execution, first_signal)
            sent = message(request.execution_id, sealed, now_ms, self._ids.ulid(), traceparent=traceparent())
            writes.append(sent.put())
            writes.append(Put(INBOXES, received_row(request.execution_id, execution.first_run, first_signal.id)))
        try:
            self._store.transact([*writes, *also])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            existing = exc.failures[0]
            if existing is None:
                # The earlier execution has been deleted.
                return self._try_start(request, first_signal, None, also)
            return execution_of(existing)
        return None

    def signal_with_start(  # noqa: PLR0913 - each is an option of callers
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
        retry: Retry | None = None,
        signal_id: str | None = None,
        reuse: Reuse | str = Reuse.CLOSED,
        headers: Mapping[str, str] | None = None,
    ) -> Handle[Any]:
        """Send a signal, and start the execution first if none of this id is open.

        `signal_id` is an idempotency key: the same signal sent again is received once and starts nothing again, while
        the execution is stored. Raises `ExecutionClosedError` if it has ended and `reuse` does not allow to replace it,
        and what `start` and `signal` raise.
        """
        return self.start(
            workflow,
            input,
            execution_id=execution_id,
            reuse=reuse,
            tags=tags,
            memo=memo,
            timeout_seconds=timeout_seconds,
            retry=retry,
            first_signal=signal_of(name, value, self._ids.ulid() if signal_id is None else signal_id, headers),
            headers=headers,
        )

    def handle(self, execution_id: str, *, returns: Any = Any) -> Handle[Any]:  # noqa: ANN401 - a type of any kind
        """Return the handle of an execution, which need not exist. Its result is decoded as `returns`."""
        return Handle(self, check_execution_id(execution_id, derived=True), returns=returns)

    # Messages.

    def signal(
        self,
        execution_id: str,
        name: str,
        value: Raw = NULL,
        *,
        signal_id: str | None = None,
        is_internal: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Put a signal into an execution's inbox, where it stays until the execution receives it.

        `signal_id` is an idempotency key, valid even after the execution has ended. Raises `NotFoundError` if there is
        no such execution, `ExecutionClosedError` if it has ended, `InvalidPayloadError` if its workflow is built in and
        the signal is not internal, `PayloadTooLargeError`.
        """
        self._sender.send(execution_id, signal_of(name, value, signal_id, headers), is_internal=is_internal)

    def cancel(self, execution_id: str, reason: str = "") -> None:
        """Request cancellation of an execution. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._sender.send(execution_id, CancelRequested(reason[:1000]))

    def terminate(self, execution_id: str, reason: str = "") -> None:
        """End an execution without running its code. Raises `NotFoundError`, `ExecutionClosedError`."""
        self._sender.send(execution_id, TerminateRequested(reason[:1000]))

    def redrive(self, execution_id: str, *, reason: str = "", request_id: str = "") -> None:
        """Retry the turn of a stuck execution. Raises `NotFoundError`, `ConflictError` if it is not stuck.

        A second request with the same `request_id` changes nothing.
        """
        row = self.get(execution_id)
        if request_id and is_repaired_by(row, request_id):
            return
        if row.status is not Status.STUCK:
            raise ConflictError(f"execution {execution_id}: it is {row.status.value}, not stuck; nothing was changed")
        # Every build is tried again: an operator may have fixed what the code depends on.
        again = replace(row, failures=0, failed_builds=(), unfit_builds=())
        if request_id:
            again = with_repair(again, request_id)
        why = f"redriven: {reason[:REASON_CHARACTERS_MAX]}" if reason else "redriven"
        self._store.transact(released(again, self._now_ms(), self._ids.ulid(), why))
        self._observer.on_message_stored(execution_id)

    def retry(self, execution_id: str) -> Handle[Any]:
        """Run an ended execution again from the start, with its first input, under the same id.

        Raises `NotFoundError`, and `ConflictError` if it has not ended.
        """
        row = self.get(execution_id)
        if not row.status.is_closed:
            raise ConflictError(f"execution {execution_id}: it is {row.status.value}; end it first, or redrive it")
        started = self._start_events.of_life(row)
        if started is None:
            raise NotFoundError(
                f"execution {execution_id}: it ended ({row.status.value}) before it began, and its input was not kept; "
                "start it anew with reuse 'closed'"
            )
        started_ms = round(datetime.fromisoformat(row.started_at).timestamp() * 1000)
        timeout_seconds = None if row.timeout_at_ms is None else (row.timeout_at_ms - started_ms) / 1000
        return self.start(
            row.workflow,
            started.input,
            execution_id=execution_id,
            reuse=Reuse.CLOSED,
            tags=row.tags,
            memo=started.memo,
            timeout_seconds=timeout_seconds,
            retry=load_retry(row.retry),
            tells_end=row.tells_end,
            headers=started.headers,
            # The input is the stored one, so that a retry changes nothing of it.
            is_internal=is_built_in(row.workflow),
        )

    def reset(
        self,
        execution_id: str,
        to: int | str,
        *,
        messages: Messages | str = Messages.KEEP,
        reason: str = "",
        request_id: str = "",
    ) -> ResetResult:
        """Compute an execution again from turn `to`, or run the activity `to` (NAME or NAME#SEQ) again and go on.

        `messages` is whether the signals and updates from there on are applied again. A second request with the same
        `request_id` changes nothing. Raises `NotFoundError`, `ConflictError`, and `InvalidPayloadError` if the workflow
        is built in.
        """
        try:
            kept = Messages(messages)
        except ValueError:
            raise InvalidPayloadError(
                f"signals {messages!r}: use one of {[choice.value for choice in Messages]}"
            ) from None
        return self._resets.reset(execution_id, to, messages=kept, reason=reason, request_id=request_id)

    def retry_from_failure(self, execution_id: str, *, reason: str = "", request_id: str = "") -> ResetResult:
        """Continue an execution from where it failed, with today's code and without repeating completed activities.

        A stuck one is redriven. A second request with the same `request_id` changes nothing. Raises `NotFoundError`,
        and `ConflictError` if it has not failed.
        """
        row = self.get(execution_id)
        if row.status is Status.STUCK and not is_repaired_by(row, request_id):
            self.redrive(execution_id, reason=reason, request_id=request_id)
            return ResetResult(execution_id, row.workflow, row.run, row.turn + 1)
        return self._resets.retry_from_failure(execution_id, reason=reason, request_id=request_id)

    # Reads.

    def get(self, execution_id: str) -> Execution:
        """Return an execution. Raises `NotFoundError`."""
        return self._sender.get(execution_id)

    def list(  # noqa: PLR0913 - each is a filter of callers
        self,
        *,
        status: Status | None = None,
        workflow: str | None = None,
        parent_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        text: str = "",
        limit: int = 100,
        cursor: str | None = None,
        ascending: bool = False,
    ) -> Listing:
        """Return executions by start time that match every filter; without a filter, the running ones.

        They were started from `since` on and before `until`; `text` is in the id, the workflow, a tag or the error.
        """
        filter = ExecutionFilter(
            status=status,
            workflow=workflow,
            parent_id=parent_id,
            tags=dict(tags or {}),
            text=text,
            started_since=start_text(since),
            started_until=start_text(until),
        )
        return list_executions(self._store, filter, limit=limit, cursor=cursor, ascending=ascending)

    def started(self, row: Execution, *, first: bool = False) -> Started:
        """Return the start event of the current run, or the `first` of this life of the id. Raises `NotFoundError`."""
        started = self._start_events.of_life(row) if first else self._start_events.of_run(row)
        if started is None:
            raise NotFoundError(f"execution {row.execution_id}: its first turn has not been taken yet")
        return started

    def history(self, execution_id: str, *, after: int = 0) -> Iterator[Turn]:
        """Give the turns of an execution after turn `after`, archived or not."""
        row = self.get(execution_id)
        if row.archive is not None and after < row.archived_through:
            yield from (turn for turn in self._archive.read(row.archive) if turn.turn > after)
        first = max(after, row.archived_through) + 1
        if row.turn >= first:
            yield from read_turns(self._store, execution_id, first, row.turn)

    def logs(self, execution_id: str) -> Sequence[Note]:
        """Return the log lines of the workflow and its activities, in order of time."""
        notes = chain.from_iterable(map(notes_of, self.history(execution_id)))
        return sorted(notes, key=lambda note: note.at_ms)

    def log_page(self, execution_id: str, *, limit: int = 100, cursor: str | None = None) -> LogPage:
        """Return a page of log lines, in the order of the turns that recorded them. Raises `CursorError`.

        The last page ends with the lines of failed attempts at activities that have not ended.
        """
        place = LogPlace.parse(cursor)
        row = self.get(execution_id)
        page = read_page(self.history(execution_id, after=place.turn - 1), place, row.turn, limit)
        if page.cursor is not None:
            return page
        pending = [note for activity in self._open_activities(row) for note in notes_so_far(activity)]
        return replace(page, notes=[*page.notes, *sorted(pending, key=lambda note: note.at_ms)])

    def failures(self, execution_id: str, *, limit: int = 20) -> Sequence[AttemptFailure]:
        """Return the last failed attempts at activities, newest first, with their tracebacks."""
        row = self.get(execution_id)
        turns = self.history(execution_id, after=max(0, row.turn - TURNS_MAX))
        return attempt_failures(turns, self._open_activities(row), limit)

    def _open_activities(self, row: Execution) -> Sequence[Activity]:
        """Return the activities of an execution that have not ended, up to a limit."""
        if row.status.is_closed:
            return []
        query = Query(table=ACTIVITIES, index="execution-index", partition=row.execution_id, limit=_OPEN_MAX)
        keys = [Key(item["activity_id"]) for item in self._store.query(query).items]
        items = self._store.get_many(ACTIVITIES, keys) if keys else []
        return [activity_of(item) for item in items if item is not None]

    def query(self, execution_id: str, name: str, input: Raw = NULL, *, timeout_seconds: float = QUERY_SECONDS) -> Raw:
        """Return the answer of a query handler, as of the last turn. Waits for the first turn of a new execution.

        If the workflow is not loaded here, a live worker that has it answers.

        Raises `NotFoundError`, `UnknownWorkflowError`, `QueryTimeoutError`, and what the handler raises.
        """
        row = self.get(execution_id)
        definition = self._workflows.get(row.workflow)
        if definition is None:
            if not servers(self._store, row.workflow, self._now_ms()):
                raise UnknownWorkflowError(
                    f"execution {execution_id}: queries need the code of workflow {row.workflow!r}, which is not loaded"
                    " here, and no live worker has it; start one with --app"
                )
            started = self._start_events.of_life(row)
            if started is not None and sealed_of(started.input) is not None:
                # A request in the store would have the input of the query in plain text.
                raise UnknownWorkflowError(
                    f"execution {execution_id}: payloads of workflow {row.workflow!r} are encrypted: query it through "
                    "a server that has loaded its app (--app)"
                )
            return self._router.ask(row, name, input, timeout_seconds)
        row = self._begun(row)
        interpreter = Interpreter(
            definition.function, definition.signature, execution_id, definition.interceptors, definition.codec
        )
        return answer(interpreter, self._run_turns(row), name, input, timeout_seconds)

    def _run_turns(self, row: Execution) -> Iterator[Turn]:
        """Give the turns of the current run, archived or not."""
        ranges = [*turn_ranges(row.kept_turns), (row.first_turn, row.turn)]
        for turn in self.history(row.execution_id, after=ranges[0][0] - 1):
            if any(first <= turn.turn <= last for first, last in ranges):
                yield turn

    def _begun(self, row: Execution) -> Execution:
        """Return the execution after its first turn, which sets up its handlers; or as it is if that does not come."""
        if _has_begun(row) or delayed_start(self._store, row):
            return row

        def begun() -> Execution | None:
            found = self.get(row.execution_id)
            return found if _has_begun(found) else None

        return self._waiters.wait(begun, _FIRST_TURN_SECONDS) or row

    def update(self, execution_id: str, name: str, input: Raw = NULL, *, timeout_seconds: float = 30.0) -> Raw:
        """Send an update and return its answer. Raises `UpdateFailure` with the handler's error, `TimeoutError`."""
        update_id = self.ask_update(execution_id, name, input)
        answer = self._waiters.wait(lambda: self.update_answer(execution_id, update_id), timeout_seconds)
        if answer is None:
            raise TimeoutError(f"execution {execution_id}: update {name} was not answered in {timeout_seconds} s")
        if self._sealing.is_in_use:
            answer = self._sealing.answer(self.get(execution_id), answer)
        if answer.error is not None:
            raise update_failure(answer, name, execution_id)
        return answer.result

    def ask_update(self, execution_id: str, name: str, input: Raw = NULL, *, update_id: str | None = None) -> str:
        """Send an update and return its id.

        `update_id` is an idempotency key: the same update sent again is handled once, and has the same answer. Raises
        `NotFoundError`, `ExecutionClosedError`, `InvalidIdError`.
        """
        check_size(input, f"input of update {name}")
        if update_id is None:
            update_id = self._ids.ulid()
            self._sender.send(execution_id, UpdateRequested(update_id, name, input), is_internal=False)
        else:
            check_update_id(update_id)
            self._sender.send(execution_id, UpdateRequested(update_id, name, input), is_internal=False, is_once=True)
        return update_id

    def update_answer(self, execution_id: str, update_id: str) -> AnswerUpdate | None:
        """Return the answer to an update, or None if there is none yet. Answers are stored for a day."""
        item = self._store.get(INBOXES, Key(execution_id, f"{ANSWER}{update_id}"), consistent=True)
        return None if item is None else _answer_decoder.decode(item["body"])

    def wait(self, execution_id: str, timeout_seconds: float | None = None) -> Execution:
        """Return the execution once it has ended. Raises `TimeoutError`, `NotFoundError`."""

        def closed() -> Execution | None:
            row = self.get(execution_id)
            return row if row.status.is_closed else None

        row = self._waiters.wait(closed, timeout_seconds, name=execution_id)
        if row is None:
            status = self.get(execution_id).status.value
            raise TimeoutError(f"execution {execution_id}: still {status} after {timeout_seconds} s")
        return row

    def opened(self, row: Execution) -> Execution:
        """Return an ended execution with its result and error as its workflow returned them.

        Raises `SealedPayloadError` if they are encrypted and cannot be read here.
        """
        return self._sealing.opened(row)

    # Completion of activities from outside.

    def complete_activity(self, token: str, result: Raw = NULL) -> None:
        """End an activity with a result. Raises `SignatureError`, `StaleClaimError`, `NotFoundError`."""
        check_size(result, "result of the activity")
        self._end(token, AttemptResult(result=result))

    def fail_activity(self, token: str, error: ErrorInfo) -> None:
        """End an attempt at an activity with an error; its retry policy applies."""
        self._end(token, AttemptResult(error=error))

    def beat_activity(self, token: str, details: Raw | None = None) -> bool:
        """Record a heartbeat. Raises `StaleClaimError` or `NotFoundError` if the activity was cancelled.

        Returns False if it is to end itself: it was cancelled, and its workflow waits for its end.
        """
        activity = self._activities.get(*read_token(self._keyring, token))
        if details is not None and is_sealed_text(activity.input):
            details = self._sealing.details(self.get(activity.execution_id), activity.seq, details)
        return not self._activities.record_heartbeat(activity, details).is_cancel_requested

    def _end(self, token: str, result: AttemptResult) -> None:
        activity = self._activities.get(*read_token(self._keyring, token))
        if activity.subscription is not None:
            self._activities.end_delivery(activity, result)
            return
        if is_sealed_text(activity.input):
            workflow = self.get(activity.execution_id).workflow
            result = self._sealing.result(workflow, activity.execution_id, activity.seq, result)
        source = self._activities.end_attempt(activity, result)
        if source is not None:
            self._activities.send_end(activity, source)
        self._observer.on_message_stored(activity.execution_id)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _has_begun(row: Execution) -> bool:
    return row.turn >= row.first_turn or row.status is not Status.RUNNING


def _taken_by_built_in(existing: Execution) -> AlreadyStartedError:
    return AlreadyStartedError(
        f"execution {existing.execution_id}: the id belongs to an execution of {existing.workflow}, which is part of "
        "Headgate; use another id",
        current={"execution_id": existing.execution_id, "status": existing.status.value},
    )


def _policy(reuse: Reuse | str) -> Reuse:
    try:
        return Reuse(reuse)
    except ValueError:
        raise InvalidIdError(f"reuse {reuse!r}: use one of {[policy.value for policy in Reuse]}") from None
