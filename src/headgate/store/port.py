"""The store port: the narrow waist through which all durable state goes.

Every backend passes the suite in `tests/contract`. The rules below bind on each of them alike:

- A method that raises has changed nothing, with two exceptions that say so: `batch_write` is not
  atomic, and after `OutcomeUnknownError` the caller must read.
- A condition that does not hold raises `ConflictError`, which carries the current item.
- An expired item is absent: to reads, to conditions, and to updates.
- Limits: 400 KB an item (see `spill` for what happens first), 100 writes (99 with a token) and 4 MB a
  transaction, one write for each item in it, 2,048 bytes a partition key, 1,024 a sort key.
- Bad input raises `InvalidItemError`, `ItemTooLargeError`, `TransactionLimitError` or `CursorError`
  before anything is sent. A backend that cannot be reached raises a `TransientError` after its
  deadline; one that must not be trusted raises a `FatalError`.
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
    """Items in tables. Safe to use from many threads; never carry one over a fork."""

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        """Return the item, or None. Claims, gates and compare-and-swap read with `consistent=True`."""

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        """Return the items in the order of `keys`, None for each that is not there. Not one snapshot."""

    def query(self, query: Query) -> Page:
        """Return up to `limit` live items of one partition, and a cursor if there are more."""

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        """Answer several queries in one call, in their order."""

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        """Store the whole item, replacing what is there."""

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
        """Change attributes of an existing item and return the item as it then stands."""

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        """Remove the item and return what was there."""

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        """Apply all of `writes` or none.

        With a `token`, the same call again within ten minutes changes nothing and succeeds; another
        call under the same token raises `TokenReusedError`.
        """

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        """Apply several transactions in their order, each all or nothing by itself, with one wait for the disk.

        Returns for each the error that refused it, or None. A later one sees what an earlier one wrote. Raises as
        `transact` does for bad input, before any is applied; what else it raises leaves open which were applied.
        """

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        """Apply all of `writes` or none, as `transact` does, without keeping the caller's thread.

        `done` is called once, from whichever thread commits, with None when the writes are durable or with the
        error. It must neither block nor raise. Bad input is raised here and now.
        """

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        """Apply unconditional writes of distinct items, each atomic by itself. If it raises, some may be done."""

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        """Return what changed in `table` since the consumer's checkpoint, in order for each key, at least once.

        An empty batch means: nothing new yet. Raises `StreamTrimmedError` if changes were lost because
        the consumer was away for longer than 24 hours.
        """

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        """Remember that the consumer has dealt with everything up to `position`."""

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return a number to give to `wait`. Read it before looking for work, so that no commit is missed."""

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        """Return once something was committed after `generation` was read, by any process, or at the time-out.

        What is about none of `topics` does not count, and with `others` what this process commits, as far as the
        backend can tell. `generation` was asked for with the same. A return is a hint to look, not a promise that
        there is something to find.
        """

    def wake(self) -> None:
        """Have those in this process return whose `generation` was read before: they may be wanted for something else.

        A backend that looks every second lets them find out by themselves.
        """

    def sweep(self, *, limit: int = 1000) -> int:
        """Delete up to `limit` expired rows and return how many. A backend that expires by itself returns 0."""

    def check_health(self) -> None:
        """Raise what is wrong, if the store cannot serve a consistent read now."""

    def close(self) -> None:
        """Finish what was accepted and let go of every resource. Closing twice is allowed."""
