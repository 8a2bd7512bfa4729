"""Stream batches: process the stream records of one invocation, with partial batch failures.

Lambda repeats a batch from its first failed record. Each record is processed on its own, except that records of a row
whose earlier change failed are skipped: the changes of a row are processed in order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import structlog

from headgate.aws.stream_records import record_key, sequence_number, stream_change
from headgate.store.model.requests import Change
from headgate.store.model.schema import Key, Table

_REMEMBERED_MAX: Final = 10_000
_log = structlog.get_logger(__name__)


class StreamBatches:
    """Processes the stream of one table. It skips records it has processed; that only saves work."""

    def __init__(self, table: Table, restore: Callable[[Change], Change], on_change: Callable[[Change], None]) -> None:
        self._table = table
        self._restore = restore
        self._on_change = on_change
        self._processed: OrderedDict[str, None] = OrderedDict()

    def __call__(self, records: Sequence[Mapping[str, Any]], is_out_of_time: Callable[[], bool]) -> list[str]:
        """Process records, and return the sequence numbers of those that failed or ran out of time."""
        failed_keys: set[Key] = set()
        return [
            sequence_number(record) for record in records if is_out_of_time() or not self._process(record, failed_keys)
        ]

    def _process(self, record: Mapping[str, Any], failed_keys: set[Key]) -> bool:
        event_id = str(record.get("eventID"))
        if event_id in self._processed:
            return True
        key: Key | None = None
        try:
            key = record_key(self._table, record)
            if key in failed_keys:
                return False
            self._on_change(self._restore(stream_change(self._table, record)))
        except Exception as exc:  # noqa: BLE001 - others write rows too: one bad record must not block the rest
            _log.error(
                "record failed", action="stream-router", event_id=event_id, key=str(key), error=str(exc), exc_info=True
            )
            failed_keys |= {key} if key is not None else set()
            return False
        self._processed[event_id] = None
        if len(self._processed) > _REMEMBERED_MAX:
            self._processed.popitem(last=False)
        return True
