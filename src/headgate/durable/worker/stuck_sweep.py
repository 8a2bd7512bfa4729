"""Stuck sweep: releases stuck executions that a worker's build has not tried yet.

A worker sweeps when it joins, again one lease later, because another worker may just have marked an execution as stuck
without knowledge of the new one, and then from time to time. A build that fails again is recorded in the execution's
row, so that each build costs a stuck execution one attempt.
"""

from __future__ import annotations

from typing import Final

import structlog

from headgate.clock import Clock
from headgate.durable.engine.build_routing import has_failed
from headgate.durable.engine.engine import Engine
from headgate.durable.engine.membership import Fleet
from headgate.durable.engine.stuck import released
from headgate.durable.model.history import Status
from headgate.durable.model.records import Execution, execution_of
from headgate.errors import ConflictError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Query
from headgate.store.port import Store

SWEEP_SECONDS: Final = 60.0
_PAGE: Final = 200
_log = structlog.get_logger(__name__)


class StuckSweep:
    """Sweeps for one worker. Not for several threads at once."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, fleet: Fleet, engine: Engine) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._fleet = fleet
        self._engine = engine
        self._cursor: str | None = None
        self._due_at = 0.0
        self._is_second = False

    def restart(self) -> None:
        """Begin again: this worker has joined."""
        self._cursor, self._due_at, self._is_second = None, 0.0, False

    def release_due(self) -> None:
        """Read the next page of stuck executions if that is due, and release those that this worker is to try."""
        now = self._clock.monotonic()
        if now < self._due_at:
            return
        page = self._store.query(
            Query(
                table=EXECUTIONS,
                index="status-index",
                partition=Status.STUCK.value,
                limit=_PAGE,
                cursor=self._cursor,
            )
        )
        self._cursor = page.cursor
        if page.cursor is None:
            self._due_at = now + (SWEEP_SECONDS if self._is_second else self._fleet.lease_seconds)
            self._is_second = True
        rows = [row for row in map(execution_of, page.items) if self._is_to_be_tried(row)]
        reason = f"a worker with build {self._fleet.build} has joined"
        now_ms = int(self._clock.seconds() * 1000)
        writes = [released(row, now_ms, self._ids.ulid(), reason) for row in rows]
        for row, refusal in zip(rows, self._store.transact_many(writes) if writes else [], strict=True):
            if refusal is None:
                _log.info("stuck execution released", execution_id=row.execution_id, build=self._fleet.build)
                self._engine.read_inbox(row.execution_id)
            elif not isinstance(refusal, ConflictError):
                raise refusal

    def _is_to_be_tried(self, row: Execution) -> bool:
        is_untried = self._engine.serves(row.workflow) and not has_failed(self._fleet.build, row)
        return is_untried and self._fleet.may_advance(row)
