"""What can be asked of the store: writes, queries, and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from headgate.store.model.conditions import Condition
from headgate.store.model.schema import Key, KeyPart, Table
from headgate.store.model.values import Item


class Put(msgspec.Struct, frozen=True):
    """Store the whole item, replacing what is there.

    One that is `quiet` is no news: a backend may leave it out of the table's change stream, and need not wake those who
    wait for something to happen. It is for items that are confirmed again and again as they were, and whose next change
    is told as any other, and for those that someone looks for at times of their own.
    """

    table: Table
    item: Mapping[str, Any]
    condition: Condition | None = None
    quiet: bool = False


class Update(msgspec.Struct, frozen=True):
    """Change attributes of an item that exists.

    An update never creates an item: on a missing or expired one it conflicts, so that a late message
    cannot raise a phantom row. `add` takes part only under a version, in a transaction with a token, or
    beside a write whose condition it makes false itself, because only those make a retry harmless.
    """

    table: Table
    key: Key
    set: Mapping[str, Any] = {}
    add: Mapping[str, int | float] = {}
    remove: tuple[str, ...] = ()
    condition: Condition | None = None


class Delete(msgspec.Struct, frozen=True):
    """Remove the item, if there is one."""

    table: Table
    key: Key
    condition: Condition | None = None


class Check(msgspec.Struct, frozen=True):
    """Write nothing, but let the transaction pass only if the condition holds."""

    table: Table
    key: Key
    condition: Condition


Write = Put | Update | Delete | Check


class Range(enum.StrEnum):
    """The shapes a sort-key range can take."""

    EQUALS = "="
    BEGINS_WITH = "begins_with"
    BETWEEN = "between"
    LESS_THAN = "<"
    AT_MOST = "<="
    GREATER_THAN = ">"
    AT_LEAST = ">="


class Sort(msgspec.Struct, frozen=True):
    """A range of sort keys within one partition. `high` is used by BETWEEN alone, and is included."""

    range: Range
    low: KeyPart
    high: KeyPart | None = None


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the items of one partition of a table or index, in the order of their sort keys."""

    table: Table
    partition: KeyPart
    index: str | None = None
    sort: Sort | None = None
    limit: int = 100
    cursor: str | None = None
    descending: bool = False
    consistent: bool = False


class Page(msgspec.Struct, frozen=True):
    """Part of an answer. `cursor` is None on the last page."""

    items: list[Item]
    cursor: str | None = None


class ChangeKind(enum.StrEnum):
    """What happened to an item."""

    INSERT = "INSERT"
    MODIFY = "MODIFY"
    REMOVE = "REMOVE"


class Change(msgspec.Struct, frozen=True):
    """One committed change to one item. `expired` marks a removal by TTL rather than by a caller."""

    id: str
    table: Table
    kind: ChangeKind
    key: Key
    old: Item | None
    new: Item | None
    at_seconds: float
    expired: bool = False


class ChangeBatch(msgspec.Struct, frozen=True):
    """Changes in order, and the position to checkpoint once all of them are dealt with."""

    changes: list[Change]
    position: str


class StreamStart(enum.StrEnum):
    """Where a consumer begins that has no checkpoint yet."""

    OLDEST = "oldest"
    NEWEST = "newest"
