"""Stream batches: the records that a Lambda is given at once, each dealt with by itself.

Lambda gives a batch again from the first record on that is reported. So every record of it is dealt with, whatever
became of another, but for those of a row whose earlier change failed: changes of a row are heard in their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from headgate.aws.stream_records import change_of, key_of, sequence_of
from headgate.store.model.requests import Change
from headgate.store.model.schema import Key, Table

_REMEMBERED_MAX: Final = 10_000
_log = structlog.get_logger(__name__)


class StreamBatches:
    """Deals with batches of one table. What it remembers saves work, and is never needed: all can be heard twice."""

    def __init__(self, table: Table, restore: Callable[[Change], Change], hear: Callable[[Change], None]) -> None:
        self._table = table
        self._restore = restore
        self._hear = hear
        self._heard: OrderedDict[str, None] = OrderedDict()

    def __call__(self, records: Sequence[Mapping[str, Any]], is_over: Callable[[], bool]) -> list[str]:
        """Return the sequence numbers of the records that have to come again. `is_over` says that time is up."""
        held_up: set[Key] = set()
        return [sequence_of(record) for record in records if is_over() or not self._is_dealt_with(record, held_up)]

    def _is_dealt_with(self, record: Mapping[str, Any], held_up: set[Key]) -> bool:
        event_id = str(record.get("eventID"))
        if event_id in self._heard:
            return True
        key: Key | None = None
        try:
            key = key_of(self._table, record)
            if key in held_up:
                return False
            self._hear(self._restore(change_of(self._table, record)))
        except Exception as exc:  # noqa: BLE001 - rows are written by others too: what one leads to stops no other
            _log.error(
                "record failed", action="stream-router", event_id=event_id, key=str(key), error=str(exc), exc_info=True
            )
            held_up |= {key} if key is not None else set()
            return False
        self._heard[event_id] = None
        if len(self._heard) > _REMEMBERED_MAX:
            self._heard.popitem(last=False)
        return True
