"""User tables: the tables that DynamoDB Tasks of machines may use, stored apart from every table of Headgate.

Settings declare each table with the names of its keys, which are text. All items are rows of one table of the store,
under the name of the user's table: no name of a Task leads to another table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from headgate.errors import InvalidItemError, SettingsError
from headgate.store.catalogue.tables import ALL_TABLES, TASK_ITEM, TASK_ITEMS
from headgate.store.model.requests import Check, Delete, Page, Put, Query, Sort, Update, Write
from headgate.store.model.schema import Key, KeyAttribute, KeyPart, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.table_names import TableNames

_ARN: Final = re.compile(r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]*:[0-9]*:table/([A-Za-z0-9_.-]+)")
_DECLARATION: Final = re.compile(r"([A-Za-z0-9_.-]{3,200}):([A-Za-z0-9_.-]{1,200})(?::([A-Za-z0-9_.-]{1,200}))?")
_RESERVED: Final = frozenset(TASK_ITEMS.key_names)
# The sort key of an item whose table has none.
_NO_SORT: Final = "-"


class DeclaredTables:
    """The tables that settings declare for Tasks. Their `Table` is the user's view; no backend knows it."""

    def __init__(self, declarations: Sequence[str] = (), names: TableNames | None = None) -> None:
        """Raises `SettingsError` for an invalid declaration, or for a name that a table of Headgate has."""
        own = names or TableNames()
        # Compared without case: a name that differs in case only would be mistaken for Headgate's.
        self._own = {name.lower() for table in ALL_TABLES for name in (table.name, own.physical(table))}
        self._tables = {table.name: table for table in map(self._declared, declarations)}

    @property
    def names(self) -> list[str]:
        """The names of the declared tables."""
        return sorted(self._tables)

    def find(self, name: str) -> Table | None:
        """Return the table of this name or ARN, if it is declared."""
        return self._tables.get(_plain(name))

    def is_own(self, name: str) -> bool:
        """Whether a name or ARN is that of a table of Headgate."""
        return name.rpartition(":table/")[2].partition("/")[0].strip().lower() in self._own

    def _declared(self, text: str) -> Table:
        found = _DECLARATION.fullmatch(text)
        if found is None:
            raise SettingsError(
                f"tasks.tables: {text[:80]!r}: write name:partition_key or name:partition_key:sort_key, "
                "such as orders:id"
            )
        name, partition, sort = found.groups()
        if name.lower() in self._own:
            raise SettingsError(f"tasks.tables: {name} is a table of Headgate itself; choose another name")
        if {partition, sort} & _RESERVED or partition == sort:
            raise SettingsError(
                f"tasks.tables: {text[:80]!r}: the keys must differ, and must not be {' or '.join(sorted(_RESERVED))}"
            )
        return Table(name, "A table of a user", KeyAttribute(partition), None if sort is None else KeyAttribute(sort))


class UserTables(DeclaredTables):
    """The items of the declared tables in a store."""

    def __init__(self, store: Store, declarations: Sequence[str] = (), names: TableNames | None = None) -> None:
        """Raises `SettingsError` as `DeclaredTables` does."""
        super().__init__(declarations, names)
        self._store = store

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        """Return an item. Raises `InvalidItemError` for a key that is not text."""
        row = self._store.get(TASK_ITEMS, _stored_key(table, key), consistent=consistent)
        return None if row is None else _item(row)

    def query(self, table: Table, partition: KeyPart, sort: Sort | None, options: Query) -> Page:
        """Return a page of items of one partition; `options` has its limit, order and cursor."""
        if sort is not None:
            for value in (sort.low, *(() if sort.high is None else (sort.high,))):
                _text(value, table.key_names[-1])
        stored = _partition(table, partition)
        page = self._store.query(replace(options, table=TASK_ITEMS, partition=stored, sort=sort, index=None))
        return replace(page, items=[_item(row) for row in page.items])

    def stored(self, write: Write) -> Write:
        """Return a write of an item as the write of its row. Raises `InvalidItemError`."""
        match write:
            case Put():
                _check_free(write.item)
                key = _stored_key(write.table, write.table.key_of(write.item))
                return replace(write, table=TASK_ITEMS, item={**write.item, **TASK_ITEMS.key_attributes(key)})
            case Update():
                _check_free((*write.set, *write.add, *write.remove))
                return replace(write, table=TASK_ITEMS, key=_stored_key(write.table, write.key))
            case Delete():
                return replace(write, table=TASK_ITEMS, key=_stored_key(write.table, write.key))
            case Check():
                return replace(write, table=TASK_ITEMS, key=_stored_key(write.table, write.key))


def _plain(name: str) -> str:
    arn = _ARN.fullmatch(name)
    return name if arn is None else arn[1]


def _stored_key(table: Table, key: Key) -> Key:
    sort = _NO_SORT if table.sort is None else _text(key.sort, table.sort.name)
    return Key(_partition(table, key.partition), sort)


def _partition(table: Table, value: object) -> KeyPart:
    return TASK_ITEM.key(table=table.name, partition=_text(value, table.partition.name), sort=_NO_SORT).partition


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidItemError(f"{name}: the keys of a table of tasks.tables are text, and not empty; write it as S")
    return value


def _item(row: Item) -> Item:
    return {name: value for name, value in row.items() if name not in _RESERVED}


def _check_free(names: Iterable[str]) -> None:
    for name in names:
        if name in _RESERVED:
            raise InvalidItemError(f"attribute {name}: the name is reserved for Headgate; choose another")
