"""Every table of the catalogue, with every one of its indexes, works on every backend."""

from __future__ import annotations

from collections.abc import Callable

from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Index, KeyAttribute, KeyKind, KeyPart, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import Eventually, contents

TABLES = ALL_TABLES


def _value(attribute: KeyAttribute, number: int) -> KeyPart:
    return number if attribute.kind is KeyKind.NUMBER else f"{attribute.name}-{number}"


def _sample(table: Table, number: int) -> Item:
    """Return an item that is in every index of its table."""
    keys = [table.partition, *([table.sort] if table.sort is not None else [])]
    indexed = [attribute for index in table.indexes for attribute in index.attributes()]
    # Partitions are shared, sort keys differ.
    partitions = {table.partition.name, *(index.partition.name for index in table.indexes)}
    item = {
        attribute.name: _value(attribute, 0 if attribute.name in partitions else number)
        for attribute in (*indexed, *keys)
    }
    return {**item, "number": number}


def test_table__any_of_the_catalogue__stores_and_gives_back(store: Store) -> None:
    stored = {table.name: _sample(table, 1) for table in ALL_TABLES}
    for table in ALL_TABLES:
        store.put(table, stored[table.name])

    found = {table.name: contents(store, table, stored[table.name][table.partition.name]) for table in ALL_TABLES}

    assert found == {name: [item] for name, item in stored.items()}


def test_table__any_of_the_catalogue__deletes(store: Store) -> None:
    for table in ALL_TABLES:
        item = _sample(table, 1)
        store.put(table, item)

        assert store.delete(table, table.key_of(item)) == item
        assert store.get(table, table.key_of(item), consistent=True) is None


def test_index__any_of_the_catalogue__finds_its_items(store: Store, eventually: Eventually) -> None:
    stored = {table.name: _sample(table, 1) for table in ALL_TABLES}
    for table in ALL_TABLES:
        store.put(table, stored[table.name])

    for table in ALL_TABLES:
        for index in table.indexes:
            query = _query(table, index, stored[table.name])
            kept = table.projection(index.name)
            item = {name: each for name, each in stored[table.name].items() if kept is None or name in kept}
            eventually(_read(store, query), _is(item))


def _read(store: Store, query: Query) -> Callable[[], list[Item]]:
    return lambda: store.query(query).items


def _is(item: Item) -> Callable[[list[Item]], bool]:
    return lambda found: found == [item]


def _query(table: Table, index: Index, item: Item) -> Query:
    sort = None if index.sort is None else Sort(Range.EQUALS, item[index.sort.name])
    return Query(table=table, index=index.name, partition=item[index.partition.name], sort=sort)
