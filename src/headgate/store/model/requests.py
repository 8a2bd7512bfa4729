"""Store requests and results: writes, queries, pages and change batches."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headgate.store.model.conditions import Condition
from headgate.store.model.schema import Key, KeyPart, Table
from headgate.store.model.values import Item


class Put(msgspec.Struct, frozen=True, gc=False):
    """Store the whole item, replacing an existing one.

    A `quiet` put may be left out of the change stream and need not wake waiters. Use it for items that are rewritten
    unchanged (heartbeats) and for items that are only polled.
    """

    table: Table
    item: Mapping[str, Any]
    condition: Condition | None = None
    quiet: bool = False


class Update(msgspec.Struct, frozen=True):
    """Change attributes of an existing item.

    An update never creates an item: on a missing or expired one it conflicts, so that a late message does not create a
    phantom row. `add` needs a version condition, a token, or a write in the same transaction that makes its own
    condition false; otherwise a retry would count twice.
    """

    table: Table
    key: Key
    set: Mapping[str, Any] = {}
    add: Mapping[str, int | float] = {}
    remove: tuple[str, ...] = ()
    condition: Condition | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove the item if it exists."""

    table: Table
    key: Key
    condition: Condition | None = None


class Check(msgspec.Struct, frozen=True):
    """Write nothing; fail the transaction unless the condition holds."""

    table: Table
    key: Key
    condition: Condition


Write = Put | Update | Delete | Check


class StepWrites(NamedTuple):
    """The writes of a step of an execution, in order: a sequence like any other, which a backend may write faster.

    Its creator guarantees valid keys, and four tables without a change stream: those of executions, turns, activities
    and workers. The two activities differ, and only `advanced`, `ended` and `checked` have a condition.
    """

    advanced: Put
    recorded: Put
    ended: Delete
    begun: Put
    checked: Check


class Range(enum.StrEnum):
    """The comparison of a sort-key range."""

    EQUALS = "="
    BEGINS_WITH = "begins_with"
    BETWEEN = "between"
    LESS_THAN = "<"
    AT_MOST = "<="
    GREATER_THAN = ">"
    AT_LEAST = ">="


class Sort(msgspec.Struct, frozen=True):
    """A range of sort keys within one partition. `high` is for BETWEEN only, and inclusive."""

    range: Range
    low: KeyPart
    high: KeyPart | None = None


class Poll(enum.StrEnum):
    """How soon a poll must see the rows that another process writes. Those of its own process it sees at once."""

    # As soon as other processes may have committed: every few seconds where they do not say so.
    PROMPT = "prompt"
    # Within half a minute: the process that writes such rows deals with them too, unless it dies.
    RELAXED = "relaxed"


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the items of one partition of a table or index, in sort-key order.

    With `poll`, it is repeated for as long as a process runs and mostly finds nothing: a backend may answer that a
    partition is empty, or that nothing of it is due, from what it has read before.
    """

    table: Table
    partition: KeyPart
    index: str | None = None
    sort: Sort | None = None
    limit: int = 100
    cursor: str | None = None
    descending: bool = False
    consistent: bool = False
    poll: Poll | None = None


class Page(msgspec.Struct, frozen=True):
    """One page of a query. `cursor` is None on the last page."""

    items: list[Item]
    cursor: str | None = None


class ChangeKind(enum.StrEnum):
    """The kind of a change to an item."""

    INSERT = "INSERT"
    MODIFY = "MODIFY"
    REMOVE = "REMOVE"


class Change(msgspec.Struct, frozen=True):
    """One committed change to one item. `expired` marks a removal by TTL."""

    id: str
    table: Table
    kind: ChangeKind
    key: Key
    old: Item | None
    new: Item | None
    at_seconds: float
    expired: bool = False


class ChangeBatch(msgspec.Struct, frozen=True):
    """Changes in order, and the position to checkpoint once all of them are processed."""

    changes: list[Change]
    position: str


class StreamStart(enum.StrEnum):
    """Where a consumer without a checkpoint starts."""

    OLDEST = "oldest"
    NEWEST = "newest"
