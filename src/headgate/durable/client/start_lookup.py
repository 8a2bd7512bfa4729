"""Start lookup: finds the start event of an execution in its history, archive, inbox or timer.

Also finds the live workers that serve a workflow, for processes that have not loaded its code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from headgate.durable.engine.function_apps import FunctionApps
from headgate.durable.engine.inbox import delayed_start
from headgate.durable.engine.membership import Member, list_members
from headgate.durable.model.archive import Archive
from headgate.durable.model.declarations import Declarations, Limits
from headgate.durable.model.history import Started, Turn, load_event
from headgate.durable.model.history_reader import first_turn_of_run, read_run, read_turns
from headgate.durable.model.names import is_built_in
from headgate.durable.model.records import URGENT, Execution, message_of
from headgate.errors import UnknownWorkflowError
from headgate.store.catalogue.tables import INBOXES
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.port import Store


class StartEventLookup:
    """Finds the start events of the executions of a store."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self._store = store
        self._archive = archive

    def of_run(self, row: Execution) -> Started | None:
        """Return the start event of the current run; None if its first turn has not been taken yet."""
        if row.kept_turns:
            return _started(read_run(self._store, row, self._archive), row.run)
        return _started(self._turns(row, row.run), row.run)

    def of_life(self, row: Execution) -> Started | None:
        """Return the first start event of this life of the id, before any continue-as-new; None if it is not stored.

        A start that no turn has consumed yet is found too.
        """
        started = _started(self._turns(row, row.first_run), row.first_run)
        if started is None and row.run == row.first_run:
            return self._pending(row)
        return started

    def _turns(self, row: Execution, run: int) -> Iterator[Turn]:
        """Give the turns of a run of this life of the id. Its runs are archived together."""
        if row.archive is not None and (row.turn <= row.archived_through or row.reset_id):
            # A run that was reset after it was archived is in the archive, and later ones are not.
            archived = [turn for turn in self._archive.read(row.archive) if turn.run == run]
            yield from archived
            if archived or row.turn <= row.archived_through:
                return
        first = row.first_turn
        if run < row.run:
            first = first_turn_of_run(self._store, row.execution_id, run, row.archived_through + 1, row.first_turn)
        if first <= row.turn:
            yield from read_turns(self._store, row.execution_id, first, row.turn)

    def _pending(self, row: Execution) -> Started | None:
        query = Query(
            table=INBOXES,
            partition=row.execution_id,
            sort=Sort(Range.BEGINS_WITH, URGENT),
            limit=100,
            consistent=True,
        )
        events = [load_event(message_of(item).body) for item in self._store.query(query).items]
        events += [source.event for source in delayed_start(self._store, row)]
        return next((each for each in events if isinstance(each, Started) and each.run == row.run), None)


def _started(turns: Iterable[Turn], run: int) -> Started | None:
    """Return the start event of a run: in its first turn, or later if messages came before a delayed start."""
    for turn in turns:
        if turn.run > run:
            return None
        for event in turn.events:
            if isinstance(event, Started):
                return event
    return None


def servers(store: Store, workflow: str, now_ms: int) -> list[Member]:
    """Return the live workers that serve a workflow, without functions: those answer no queries."""
    return [each for each in list_members(store) if workflow in each.workflows and each.seems_alive(now_ms)]


def is_served(store: Store, workflow: str, now_ms: int) -> bool:
    """Whether a live worker or the functions of an app serve a workflow."""
    if any(workflow in each.workflows for each in FunctionApps(store).all()):
        return True
    return bool(servers(store, workflow, now_ms))


def declared_limits(store: Store, workflow: str, now_ms: int, loaded: Collection[str]) -> Limits:
    """Return the limits that other workers have declared for a workflow that is not `loaded` here.

    Raises `UnknownWorkflowError` if neither a live worker nor functions serve it.
    """
    if not is_served(store, workflow, now_ms):
        known = ", ".join(sorted(name for name in loaded if not is_built_in(name))) or "none"
        raise UnknownWorkflowError(
            f"workflow {workflow!r}: not loaded here, where there is {known}, and no live worker or "
            "function serves it; see --app, and 'headgate workflow ls'"
        )
    return Declarations(store).limits(workflow)
