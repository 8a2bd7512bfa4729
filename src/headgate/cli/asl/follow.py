"""Executions of machines that are followed to their end: in this process, or on a server."""

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

FAILED_EXIT_CODE: Final = 1
INTERRUPTED_EXIT_CODE: Final = 130
_LOOK_SECONDS: Final = 0.5
# To see how far it is means to go through its history: the longer that takes, the less often it is done.
_REST_SHARE: Final = 3.0
_PAGE: Final = 1000


class Followed(Protocol):
    """An execution that was started."""

    id: str

    def news(self) -> Iterator[list[Event]]:
        """Yield events as they come, or none, again and again until it has ended. Called again, it goes on."""

    def counts(self, map_run: str) -> tuple[int, int] | None:
        """Return how many items of a map run are done, and how many there are; None if it is not there yet."""

    def stop(self) -> None:
        """Ask it to end. Raises `ExecutionClosedError` if it has."""

    def describe(self) -> dict[str, Any]:
        """Return how it is."""


class LocalExecution:
    """One that this process runs."""

    def __init__(self, service: AppService, execution_id: str, clock: Clock) -> None:
        self.id = execution_id
        self._service = service
        self._clock = clock
        self._seen = 0

    def news(self) -> Iterator[list[Event]]:
        from headgate.durable.client.blocked_on import error_line
        from headgate.durable.model.history import Status
        from headgate.serve.rest.asl.events import event_view

        service = self._service
        while True:
            generation = service.store.generation()
            # Before its history: once it has ended, the history is whole.
            row = service.client.get(self.id)
            begun_at = self._clock.monotonic()
            events = [event_view(each) for each in service.asl.executions.history(self.id) if each.id > self._seen]
            self._seen = events[-1]["id"] if events else self._seen
            yield events
            if row.status.is_closed:
                return
            if row.status is Status.STUCK:
                raise _stuck(self.id, error_line(row.failure))
            self._clock.sleep(_REST_SHARE * (self._clock.monotonic() - begun_at))
            service.store.wait(generation, _LOOK_SECONDS)

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
    """One that a server has run."""

    def __init__(self, api: Api, execution_id: str, clock: Clock) -> None:
        self.id = execution_id
        self._api = api
        self._clock = clock
        self._cursor: str | None = None

    def news(self) -> Iterator[list[Event]]:
        version = None
        while True:
            row = self._api.get(at("executions", self.id))
            begun_at = self._clock.monotonic()
            events = self._events() if row["version"] != version else []
            version = row["version"]
            yield events
            if row["status"] not in ("RUNNING", "STUCK"):
                return
            if row["status"] == "STUCK":
                raise _stuck(self.id, (row.get("failure") or {}).get("message", ""))
            self._clock.sleep(_REST_SHARE * (self._clock.monotonic() - begun_at))
            self._api.get(at("executions", self.id, "result"), wait=f"{_LOOK_SECONDS}s")

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
    """Yield the events of an execution that come after a cursor."""
    while True:
        page = api.get(at("machine-executions", execution_id, "history"), limit=_PAGE, cursor=cursor)
        yield from page["events"]
        cursor = page["cursor"]
        if cursor is None:
            return


def follow(execution: Followed, clock: Clock, *, quiet: bool) -> bool:
    """Show an execution until it has ended, and return whether it was interrupted.

    The first Ctrl-C stops the execution, the second the program.
    """
    from headgate.cli.asl.progress import Progress

    progress = Progress(clock, execution.counts)
    is_stopping = False
    with _interrupts() as interrupts:
        for events in execution.news():
            for line in [] if quiet else progress.lines(events):
                # Standard output is for what the machine ends with.
                typer.echo(line, err=True)
            if interrupts and not is_stopping:
                is_stopping = True
                typer.echo(f"stopping {execution.id}", err=True)
                try:
                    execution.stop()
                except ExecutionClosedError:
                    continue  # It has ended in the meantime, and the next look shows how.
    return is_stopping


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect the first Ctrl-C, so that nothing is left half done; the second is raised as always."""
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def _stuck(execution_id: str, failure: str) -> FatalError:
    return FatalError(
        f"execution {execution_id}: it is stuck: {failure}; mend the cause, then let it go on with "
        f"'headgate execution redrive {execution_id}'"
    )
