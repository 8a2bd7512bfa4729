"""Store port: the interface to all durable state, implemented by the SQLite and DynamoDB backends.

Every backend passes the suite in `tests/contract` and keeps these rules:

- A method that raises has changed nothing, with two exceptions: `batch_write` is not atomic, and after
  `OutcomeUnknownError` the caller must read.
- A condition that does not hold raises `ConflictError`, which carries the current item.
- An expired item is absent to reads, conditions and updates.
- Limits: 400 KB per item (large attributes spill to blobs first), 100 writes (99 with a token) and 4 MB per
  transaction, one write per item in it, 2,048 bytes per partition key, 1,024 per sort key.
- Invalid input raises `InvalidItemError`, `ItemTooLargeError`, `TransactionLimitError` or `CursorError` before
  anything is sent. An unreachable backend raises a `TransientError` after its deadline, a corrupt or misconfigured
  one a `FatalError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headgate.errors import HeadgateError
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import ChangeBatch, Delete, Page, Put, Query, StreamStart, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.topics import ANYTHING, Topics


class Store(Protocol):
    """Items in tables. Thread-safe; must not be used after a fork."""

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        """Return the item, or None. Claims, gates and compare-and-swap read with `consistent=True`."""

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        """Return the items in the order of `keys`, None for each missing one. Not a snapshot."""

    def query(self, query: Query) -> Page:
        """Return up to `limit` unexpired items of one partition, and a cursor if there are more."""

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        """Run several queries in one call; the pages are in the order of the queries."""

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        """Count unexpired items of one partition by the text of a key attribute `by`; without it, under "".

        Of more than `most` items, `most` are counted. `limit` and `cursor` of the query do not apply. An estimate for
        displays and metrics: an index may lag.
        """

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        """Store the whole item, replacing an existing one."""

    def update(
        self,
        table: Table,
        key: Key,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, int | float] | None = None,
        remove: Sequence[str] = (),
        condition: Condition | None = None,
    ) -> Item:
        """Change attributes of an existing item and return the new item."""

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        """Remove the item and return it, or None if it did not exist."""

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        """Apply all of `writes` or none.

        With an idempotency `token`, repeating the call within ten minutes succeeds without effect; a different call
        with the same token raises `TokenReusedError`.
        """

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        """Apply several transactions in order, each atomic by itself, with a single disk sync.

        Returns the error of each, or None. A later transaction sees the writes of an earlier one. Invalid input raises
        as in `transact` before any is applied; after any other error, some may have been applied.
        """

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        """Apply all of `writes` or none, as `transact` does, without blocking the caller.

        The committing thread calls `done` once, with None when the writes are durable or with the error. `done` must
        neither block nor raise. Invalid input raises immediately.
        """

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        """Apply unconditional writes of distinct items, each atomic by itself. After an error, some may be applied."""

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        """Return the changes of `table` since the consumer's checkpoint, ordered per key, at least once.

        An empty batch means that there is nothing new yet. Raises `StreamTrimmedError` if the consumer's checkpoint is
        older than the retention of 24 hours.
        """

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        """Record that the consumer has processed everything up to `position`."""

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return the current generation for `wait`. Read it before polling for work, so that no commit is missed."""

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Block until any process commits after `generation` was read, or until the timeout.

        Commits outside `topics` do not count, and with `others` neither do this process's own, as far as the backend
        can tell them apart. Pass the same arguments to `generation`. Spurious returns are allowed.
        """

    def wake(self) -> None:
        """Wake every `wait` in this process, for example at shutdown.

        A backend that polls every second may leave the waiters to their next poll.
        """

    def sweep(self, *, limit: int = 1000) -> int:
        """Delete up to `limit` expired rows and return their number; 0 on a backend with native TTL."""

    def check_health(self) -> None:
        """Raise an error if the store cannot serve a consistent read now."""

    def close(self) -> None:
        """Finish accepted writes and release all resources. Idempotent."""
