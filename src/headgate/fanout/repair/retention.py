"""Retention: deletes fan-outs past their retention in bounded steps, the fan-out's own row last."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.fanout.core.campaigns import member_delete
from headgate.fanout.core.maintenance import EXPIRING
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Fanout, fanout_of, run_key
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Delete, Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store

# Index partition of fan-outs that are being deleted; these cannot be redriven.
PURGING: Final = "PURGING"
_PAGE: Final = 500
_FANOUTS: Final = 20


class Purge:
    """Deletes fan-outs past their retention. An interrupted purge continues with the next call."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._queries = FanoutQueries(store, clock)

    def purge(self, *, rows_max: int = 5_000) -> int:
        """Delete up to about `rows_max` rows, and return the number deleted."""
        deleted = 0
        for fanout in [*self._listed(PURGING, None), *self._listed(EXPIRING, self._queries.now())]:
            if deleted >= rows_max:
                break
            if fanout.attention_pk == PURGING or self._mark(fanout):
                deleted += self._delete(fanout, rows_max - deleted)
        return deleted

    def _listed(self, partition: str, before: str | None) -> list[Fanout]:
        sort = None if before is None else Sort(Range.LESS_THAN, before)
        page = self._store.query(
            Query(table=FANOUT, index="attention-index", partition=partition, sort=sort, limit=_FANOUTS)
        )
        return [fanout_of(item) for item in page.items]

    def _mark(self, fanout: Fanout) -> bool:
        marked = replace(fanout, attention_pk=PURGING, version=fanout.version + 1)
        try:
            self._store.transact([marked.replacing(fanout.version)])
        except ConflictError:
            # It was redriven, or another process is purging it.
            return False
        return True

    def _delete(self, fanout: Fanout, rows_max: int) -> int:
        deleted, run_id = 0, fanout.run_id
        while deleted < rows_max:
            page = self._store.query(Query(table=FANOUT, partition=run_id, limit=_PAGE, consistent=True))
            keys = [Key(item["PK"], item["SK"]) for item in page.items]
            parts = [key for key in keys if key != run_key(run_id)]
            if not parts:
                member = member_delete(fanout)
                self._store.batch_write([Delete(FANOUT, run_key(run_id)), *([] if member is None else [member])])
                return deleted + 1
            self._store.batch_write([Delete(FANOUT, key) for key in parts])
            deleted += len(parts)
        return deleted
