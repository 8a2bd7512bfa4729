"""Follows an execution of a state machine until it ends, in this process or on a server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

import typer

from headgate.cli.api_client import Api, at
from headgate.errors import ExecutionClosedError, FatalError, NotFoundError

if TYPE_CHECKING:
    from headgate.bootstrap.store import AppService
    from headgate.clock import Clock

Event = dict[str, Any]

_POLL_SECONDS: Final = 0.5
# Pause between polls as a multiple of the time that reading the history took.
_PAUSE_FACTOR: Final = 3.0
_PAGE: Final = 1000


class FollowedExecution(Protocol):
    """A started execution."""

    id: str

    def event_batches(self) -> Iterator[list[Event]]:
        """Yield the new events of each poll, possibly none, until the execution ends."""

    def counts(self, map_run: str) -> tuple[int, int] | None:
        """Return the processed and total items of a map run; None if it does not exist yet."""

    def stop(self) -> None:
        """Request its end. Raises `ExecutionClosedError` if it has ended."""

    def describe(self) -> dict[str, Any]:
        """Return its description."""


class LocalExecution:
    """Execution that runs in this process."""

    def __init__(self, service: AppService, execution_id: str, clock: Clock) -> None:
        self.id = execution_id
        self._service = service
        self._clock = clock
        self._last_event_id = 0

    def event_batches(self) -> Iterator[list[Event]]:
        from headgate.durable.client.blocked_on import error_line
        from headgate.durable.model.history import Status
        from headgate.serve.rest.asl.events import event_view

        service = self._service
        while True:
            generation = service.store.generation()
            # Read before the history, so that the history of a closed execution is complete.
            row = service.client.get(self.id)
            started_at = self._clock.monotonic()
            events = [
                event_view(each) for each in service.asl.executions.history(self.id) if each.id > self._last_event_id
            ]
            self._last_event_id = events[-1]["id"] if events else self._last_event_id
            yield events
            if row.status.is_closed:
                return
            if row.status is Status.STUCK:
                raise _stuck_error(self.id, error_line(row.failure))
            self._clock.sleep(_PAUSE_FACTOR * (self._clock.monotonic() - started_at))
            service.store.wait(generation, _POLL_SECONDS)

    def counts(self, map_run: str) -> tuple[int, int] | None:
        from headgate.fanout.core.queries import FanoutQueries

        queries = FanoutQueries(self._service.store, self._clock)
        found = queries.find(map_run)
        if found is None:
            return None
        counts = queries.counts(found)
        return counts.items_ok + counts.items_failed, counts.items_total

    def stop(self) -> None:
        self._service.asl.executions.stop(self.id, cause="interrupted")

    def describe(self) -> dict[str, Any]:
        import msgspec

        from headgate.serve.rest.asl.models import execution_view

        found: dict[str, Any] = msgspec.to_builtins(execution_view(self._service.asl.executions.describe(self.id)))
        return found


class RemoteExecution:
    """Execution on a server."""

    def __init__(self, api: Api, execution_id: str, clock: Clock) -> None:
        self.id = execution_id
        self._api = api
        self._clock = clock
        self._cursor: str | None = None

    def event_batches(self) -> Iterator[list[Event]]:
        version = None
        while True:
            row = self._api.get(at("executions", self.id))
            started_at = self._clock.monotonic()
            events = self._events() if row["version"] != version else []
            version = row["version"]
            yield events
            if row["status"] not in ("RUNNING", "STUCK"):
                return
            if row["status"] == "STUCK":
                raise _stuck_error(self.id, (row.get("failure") or {}).get("message", ""))
            self._clock.sleep(_PAUSE_FACTOR * (self._clock.monotonic() - started_at))
            self._api.get(at("executions", self.id, "result"), wait=f"{_POLL_SECONDS}s")

    def _events(self) -> list[Event]:
        events = list(read_events(self._api, self.id, self._cursor))
        self._cursor = str(events[-1]["id"]) if events else self._cursor
        return events

    def counts(self, map_run: str) -> tuple[int, int] | None:
        try:
            counts = self._api.get(at("fanouts", map_run))["counts"]
        except NotFoundError:
            return None
        return counts["items_ok"] + counts["items_failed"], counts["items_total"]

    def stop(self) -> None:
        self._api.post(at("machine-executions", self.id, "stop"), {"cause": "interrupted"})

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self._api.get(at("machine-executions", self.id))
        return found


def read_events(api: Api, execution_id: str, cursor: str | None = None) -> Iterator[Event]:
    """Yield the events of an execution after a cursor."""
    while True:
        page = api.get(at("machine-executions", execution_id, "history"), limit=_PAGE, cursor=cursor)
        yield from page["events"]
        cursor = page["cursor"]
        if cursor is None:
            return


def follow(execution: FollowedExecution, clock: Clock, *, quiet: bool) -> bool:
    """Print the progress of an execution until it ends, and return whether it was interrupted.

    The first Ctrl-C stops the execution, the second the program.
    """
    from headgate.cli.asl.progress import Progress

    progress = Progress(clock, execution.counts)
    is_stopping = False
    with _interrupts() as interrupts:
        for events in execution.event_batches():
            for line in [] if quiet else progress.lines(events):
                # Standard output is for the output of the machine.
                typer.echo(line, err=True)
            if interrupts and not is_stopping:
                is_stopping = True
                typer.echo(f"stopping {execution.id}", err=True)
                try:
                    execution.stop()
                except ExecutionClosedError:
                    continue  # It has ended; the next poll returns its outcome.
    return is_stopping


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Record the first Ctrl-C and raise `KeyboardInterrupt` at the second."""
    received: list[int] = []

    def record(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = signal.signal(signal.SIGINT, record)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)


def _stuck_error(execution_id: str, failure: str) -> FatalError:
    return FatalError(
        f"execution {execution_id}: stuck: {failure}; fix the cause, then run "
        f"'headgate execution redrive {execution_id}'"
    )
