"""Split resumption: continues splits whose process has died, and says of those that cannot be continued why.

The row of a fan-out has the order and how far its split is; a source that can be read again is enough to continue. A
split that goes on elsewhere is not harmed: both advance the same row under its version.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog

from headgate.errors import HeadgateError, OutcomeUnknownError, TransientError
from headgate.fanout.core.maintenance import is_process_gone
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.rows import Fanout, timestamp_ms
from headgate.fanout.model.sources import source_of
from headgate.fanout.model.states import FanoutStatus
from headgate.file_roots import FileRoots

# After this time without progress, the process of a split counts as dead, wherever it was.
SILENT_SECONDS: Final = 60.0
_log = structlog.get_logger(__name__)


class SplitResumption:
    """Resumes interrupted splits. For one thread."""

    def __init__(
        self, queries: FanoutQueries, splitter: Splitter, files: FileRoots | None, *, has_files: bool = True
    ) -> None:
        """Input files must be below `files`; None: anywhere.

        A process without files (`has_files`) leaves splits of files to the servers on the same tables.
        """
        self._queries = queries
        self._splitter = splitter
        self._files = files
        self._has_files = has_files

    def run_once(self) -> int:
        """Resume every split that was interrupted, and return their number. Raises transient errors of the store."""
        resumed = 0
        for fanout in self._queries.every_active():
            if is_interrupted(fanout, self._queries.now_ms()):
                resumed += self._resume(fanout)
        return resumed

    def _resume(self, fanout: Fanout) -> bool:
        described: dict[str, Any] = msgspec.json.decode(fanout.source) if fanout.source else {}
        if not self._has_files and "path" in described:
            # An error on the row would keep the server that has the file from resuming it.
            return False
        try:
            source = source_of(described, self._files)
            if source is None:
                return self._give_up(fanout)
            _log.info("split resumed", run_id=fanout.run_id, items=fanout.split_through)
            self._splitter.split(order_of(fanout), source, run_id=fanout.run_id)
        except (TransientError, OutcomeUnknownError):
            raise
        except HeadgateError as exc:
            _log.warning("split not resumed", run_id=fanout.run_id, error=str(exc))
            self._splitter.store_error(fanout.run_id, str(exc))
            return False
        return True

    def _give_up(self, fanout: Fanout) -> bool:
        """Say that a split cannot be resumed here. A workflow that waits for its fan-out splits it again itself."""
        if fanout.waiter is None:
            message = "its process died, and the items came with the request; send the request again with the same id"
            _log.warning("split not resumed", run_id=fanout.run_id, error=message)
            self._splitter.store_error(fanout.run_id, message)
        return False


def is_interrupted(fanout: Fanout, now_ms: int) -> bool:
    """Whether the split of a fan-out has not ended, and the process that made it is gone."""
    if fanout.status is not FanoutStatus.SPLITTING or fanout.cancelled_at is not None or fanout.split_error is not None:
        return False
    silent_ms = now_ms - timestamp_ms(fanout.updated_at or fanout.created_at)
    return is_process_gone(fanout.splitter) or silent_ms > 1000 * SILENT_SECONDS


def order_of(fanout: Fanout) -> Order:
    """Return the order that a fan-out was split by."""
    return Order(
        group=fanout.group,
        chunk_size=fanout.chunk_size,
        handler=fanout.handler,
        params=msgspec.json.decode(fanout.params) if fanout.params else {},
        policy=fanout.rules(),
        queue_url=fanout.queue_url,
        campaign=fanout.campaign,
        submitted_by=fanout.submitted_by,
        waiter=fanout.waiter,
        waiter_signal=fanout.waiter_signal,
    )
