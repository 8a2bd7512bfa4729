"""The SQL of one table: its columns, its statements, and how an item becomes a row."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.store.model.conditions import VERSION
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.sqlite.row_cache import Parameters, RecentRows

_LAST_CHARACTER: Final = "\U0010ffff"
_COMPARISONS: Final = {
    Range.EQUALS: "=",
    Range.LESS_THAN: "<",
    Range.AT_MOST: "<=",
    Range.GREATER_THAN: ">",
    Range.AT_LEAST: ">=",
}


class TableRows:
    """A row has the key, a copy of every attribute an index or the TTL needs, and the whole item as JSON text.

    The item is kept whole so that reading is one column and one decode; the copies are what SQLite
    indexes. Rows live in the primary key's own tree (WITHOUT ROWID), so a point read is one descent.
    """

    def __init__(self, table: Table, physical: str) -> None:
        self.table = table
        self.name = _quoted(physical)
        self._physical = physical
        self._columns = {table.partition.name: "pk"}
        if table.sort is not None:
            self._columns[table.sort.name] = "sk"
        self._partition = table.partition.name
        self._sort = None if table.sort is None else table.sort.name
        self._keys = list(self._columns.values())
        self._copies = list(table.index_attributes)
        self._columns |= {attribute: _quoted(f"i_{attribute}") for attribute in self._copies}
        self._statements: dict[tuple[str | None, str | None, bool, bool], str] = {}
        self._upserts: dict[int, str] = {}
        self._selects: dict[int, str] = {}
        # Bound once: building a row is on the path of every write.
        self._copied = (*self._copies, *([table.ttl_attribute] if table.ttl_attribute else []))
        self._row_attributes = (*table.key_names, *self._copied)
        self._placing = _placing_decoder(tuple(dict.fromkeys((*self._copied, VERSION))))
        self.recent = RecentRows(self.select)

    def key_of(self, item: Item) -> Parameters:
        """Return the key of an item that has one."""
        return (item[self._partition],) if self._sort is None else (item[self._partition], item[self._sort])

    def row(self, item: Item, body: str) -> tuple[Any, ...]:
        """Return the values of `upsert`'s parameters."""
        get = item.get
        return (*[get(name) for name in self._row_attributes], body)

    def upserted(self, item: Item, body: str) -> tuple[str, list[Any]]:
        """Return the statement that stores an item in place of what is there, and the values of its parameters.

        Columns of what the item lacks are left out: to be given a None costs Python's SQLite as much as the others do.
        """
        values: list[Any] = []
        present = 0
        for place, name in enumerate(self._row_attributes):
            value = item.get(name)
            if value is not None:
                present |= 1 << place
                values.append(value)
        values.append(body)
        statement = self._upserts.get(present)
        if statement is None:
            columns = [*self._keys, *self.copied_columns.values()]
            given = [column for place, column in enumerate(columns) if present & 1 << place]
            statement = self._upserts[present] = self._upsert([*given, "body"])
        return statement, values

    def placed(self, body: str) -> Item | None:
        """Return what decides about the place of an item, and its version; the rest of it is not looked at.

        None for what has to be looked at as a whole: a body with tags, or that is no item.
        """
        if '"$' in body:
            return None
        try:
            return msgspec.structs.asdict(self._placing.decode(body))
        except msgspec.DecodeError:
            return None

    def places_alike(self, left: Item, right: Item) -> bool:
        """Whether two items of one key have the same place in every index."""
        # A loop rather than `all`: every rewrite of a row asks this, and a generator costs more than the few there are.
        for name in self._copied:  # noqa: SIM110 - as above
            if left.get(name) != right.get(name):
                return False
        return True

    @cached_property
    def copied_columns(self) -> dict[str, str]:
        """The columns that copy an attribute of the body, by attribute."""
        copied = {attribute: self._columns[attribute] for attribute in self._copies}
        return copied | ({self.table.ttl_attribute: "expires"} if self.table.ttl_attribute else {})

    @cached_property
    def create_table(self) -> str:
        columns = [f"{key} NOT NULL" for key in self._keys]
        columns += self.copied_columns.values()
        columns += ["body TEXT NOT NULL", f"PRIMARY KEY ({', '.join(self._keys)})"]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)}) WITHOUT ROWID"

    @cached_property
    def create_indexes(self) -> dict[str, str]:
        """The statements that create the table's indexes, by the name of the index."""
        found = {}
        for index in self.table.indexes:
            columns = [self._columns[attribute.name] for attribute in index.attributes()]
            present = [column for column in columns if column not in self._keys]
            found[self._index_name(index.name)] = (columns, present)
        if self.table.ttl_attribute is not None:
            found[self._index_name("expires")] = (["expires"], ["expires"])
        return {
            name: f"CREATE INDEX {_quoted(name)} ON {self.name} ({', '.join(columns)})" + _where_present(present)
            for name, (columns, present) in found.items()
        }

    def _index_name(self, name: str) -> str:
        # A colon cannot be in the name of a table, so no index is ever called like one.
        return f"{self._physical}:{name}"

    @cached_property
    def _where_key(self) -> str:
        return " AND ".join(f"{key} = ?" for key in self._keys)

    @cached_property
    def select(self) -> str:
        return f"SELECT body FROM {self.name} WHERE {self._where_key}"

    def select_many(self, count: int) -> str:
        """Return the statement that reads the rows of several keys, with the keys before each body."""
        statement = self._selects.get(count)
        if statement is None:
            statement = self._selects[count] = self._select_many(count)
        return statement

    def _select_many(self, count: int) -> str:
        places = ", ".join([f"({', '.join('?' for _ in self._keys)})"] * count)
        # Looked up one by one from the list: with IN over several columns SQLite would go through the whole table.
        same = " AND ".join(f"{key} = wanted.column{number}" for number, key in enumerate(self._keys, 1))
        return f"SELECT {', '.join(self._keys)}, body FROM (VALUES {places}) AS wanted CROSS JOIN {self.name} ON {same}"

    @cached_property
    def upsert(self) -> str:
        return self._upsert([*self._keys, *self.copied_columns.values(), "body"])

    def _upsert(self, columns: list[str]) -> str:
        places = ", ".join("?" * len(columns))
        return f"INSERT OR REPLACE INTO {self.name} ({', '.join(columns)}) VALUES ({places})"

    @cached_property
    def rewrite(self) -> str:
        """Replaces the body alone, for an item that keeps its place in every index: their pages stay untouched."""
        return f"UPDATE {self.name} SET body = ? WHERE {self._where_key}"

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM {self.name} WHERE {self._where_key}"

    @cached_property
    def select_expired(self) -> str:
        return (
            f"SELECT {', '.join(self._keys)}, body FROM {self.name} "
            "WHERE expires IS NOT NULL AND expires <= ? ORDER BY expires LIMIT ?"
        )

    def query(self, query: Query, position: dict[str, Any] | None, now: float) -> tuple[str, list[Any]]:
        """Return the statement and parameters that answer one page, one row more than the limit."""
        sort = query.sort
        shape, bounds = (None, []) if sort is None else _bounds(sort)
        parameters = [query.partition, *bounds]
        if position is not None:
            parameters += [position[attribute] for attribute in self._order(query.index)]
        if self.table.ttl_attribute is not None:
            parameters.append(now)
        parameters.append(query.limit + 1)
        key = (query.index, shape, position is not None, query.descending)
        statement = self._statements.get(key)
        if statement is None:
            statement = self._statements[key] = self._page_statement(*key)
        return statement, parameters

    def _page_statement(self, index: str | None, shape: str | None, resumed: bool, descending: bool) -> str:  # noqa: FBT001
        partition, sort = self._path(index)
        where = [f"{partition} = ?"]
        if index is not None and sort is not None:
            # Said aloud for SQLite's planner, which uses a partial index only when the query implies its WHERE.
            where.append(f"{sort} IS NOT NULL")
        if shape is not None:
            where.append(shape.format(column=sort))
        order = [self._columns[attribute] for attribute in self._order(index)]
        if resumed:
            where.append(f"({', '.join(order)}) {'<' if descending else '>'} ({', '.join('?' * len(order))})")
        if self.table.ttl_attribute is not None:
            where.append("(expires IS NULL OR expires > ?)")
        by = ", ".join(f"{column} DESC" if descending else column for column in order)
        hint = "" if index is None else f" INDEXED BY {_quoted(self._index_name(index))}"
        return f"SELECT body FROM {self.name}{hint} WHERE {' AND '.join(where)} ORDER BY {by} LIMIT ?"

    def _order(self, index: str | None) -> list[str]:
        """Return the attributes that order rows within a partition."""
        keys = list(self.table.key_names)
        if index is None:
            return keys[-1:]
        sort = self.table.index(index).sort
        return list(dict.fromkeys([*([sort.name] if sort else []), *keys]))

    def _path(self, index: str | None) -> tuple[str, str | None]:
        """Return the columns of the partition key and the sort key that a query goes by."""
        if index is None:
            return "pk", ("sk" if self.table.sort is not None else None)
        keyed = self.table.index(index)
        return self._columns[keyed.partition.name], (None if keyed.sort is None else self._columns[keyed.sort.name])


@cache
def _placing_decoder(attributes: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that looks at those attributes alone. A process may open many stores of the same tables."""
    shape = msgspec.defstruct("Placing", [(name, Any, None) for name in attributes])
    return typed_decode.json_decoder(shape)


def _where_present(columns: list[str]) -> str:
    return f" WHERE {' AND '.join(f'{column} IS NOT NULL' for column in columns)}" if columns else ""


def _bounds(sort: Sort) -> tuple[str, list[Any]]:
    """Return the SQL of a range, `{column}` standing for the sort key, and its parameters."""
    if sort.range is Range.BETWEEN:
        return "{column} BETWEEN ? AND ?", [sort.low, sort.high]
    if sort.range is Range.BEGINS_WITH:
        end = _after_prefix(str(sort.low))
        return ("{column} >= ?", [sort.low]) if end is None else ("{column} >= ? AND {column} < ?", [sort.low, end])
    return f"{{column}} {_COMPARISONS[sort.range]} ?", [sort.low]


def parameters(key: Key) -> Parameters:
    """Return a key as the statements take it."""
    return key if key.sort is not None else key[:1]


def _after_prefix(prefix: str) -> str | None:
    """Return the smallest text greater than everything that starts with `prefix`, or None if there is none."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    # U+D800 to U+DFFF are no characters: the next one after U+D7FF is U+E000.
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
