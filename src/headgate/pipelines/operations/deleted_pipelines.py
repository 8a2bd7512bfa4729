"""Deleted pipelines: adds those that an earlier release deleted to the index by which retention finds their runs.

Earlier releases left a deleted pipeline out of every index. The definition rows are read once for a store; a row of
the control table records that it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headgate.errors import ConflictError
from headgate.pipelines.catalog.rows import DELETED, KIND, config_key
from headgate.store.catalogue.tables import CONTROL, PIPELINES
from headgate.store.model.conditions import all_of, equals, lacks
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

DONE: Final = Key("DEDUP#deleted-pipelines-indexed", "DEDUP")
_PREFIX: Final = f"{KIND}#"


class DeletedPipelines:
    """Indexes deleted pipelines once. `definition_rows` yields every row of the definitions table."""

    def __init__(self, store: Store, definition_rows: Callable[[], Iterable[Item]]) -> None:
        self._store = store
        self._definition_rows = definition_rows
        self._is_done = False

    def index_once(self) -> int:
        """Add deleted pipelines without an index entry to the index, and return how many. Idempotent."""
        if self._is_done or self._store.get(CONTROL, DONE, consistent=True) is not None:
            self._is_done = True
            return 0
        names = {str(row["PK"]).removeprefix(_PREFIX) for row in self._definition_rows() if _is_pipeline(row)}
        count = sum(self._index(name) for name in sorted(names))
        self._store.put(CONTROL, {**CONTROL.key_attributes(DONE), "count": count})
        self._is_done = True
        return count

    def _index(self, pipeline_id: str) -> int:
        entry = {"GSI1PK": DELETED, "GSI1SK": pipeline_id}
        unlisted = all_of(equals("deleted", value=True), lacks("GSI1PK"))
        try:
            self._store.update(PIPELINES, config_key(pipeline_id), set=entry, condition=unlisted)
        except ConflictError:
            # It is in use, or in the index already.
            return 0
        return 1


def _is_pipeline(row: Item) -> bool:
    return str(row["PK"]).startswith(_PREFIX)
