"""Table rows: the SQL of one table, and the mapping between items and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, Final, TypedDict

import msgspec

from headgate import typed_decode
from headgate.store.faults import StoreFaults
from headgate.store.model.conditions import VERSION
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.sqlite.row_cache import Parameters, RecentRows

_LAST_CHARACTER: Final = "\U0010ffff"
# Remembered combinations of attributes. The rows of most tables have a few.
_SHAPES_MAX: Final = 256
# SQLite's integers have 64 bits.
_WORD: Final = 1 << 63
_COMPARISONS: Final = {
    Range.EQUALS: "=",
    Range.LESS_THAN: "<",
    Range.AT_MOST: "<=",
    Range.GREATER_THAN: ">",
    Range.AT_LEAST: ">=",
}


class TableRows:
    """The statements of one table.

    A row has the key columns, a copy of every attribute that an index or the TTL needs, and the whole item as JSON in
    `body`: a read is one column and one decode, and SQLite indexes the copies. Tables are WITHOUT ROWID, so a point
    read is one B-tree descent. A table that is `refreshed` has a copy of the version as well, so that one UPDATE both
    checks it and writes the item.
    """

    def __init__(self, table: Table, physical: str, faults: StoreFaults | None = None) -> None:
        self.table = table
        self.has_stream = table.stream
        self.has_versions = table.refreshed
        # No item has an attribute with an empty name.
        self.ttl_attribute = table.ttl_attribute or ""
        self.name = _quoted(physical)
        self._physical = physical
        self._columns = {table.partition.name: "pk"}
        if table.sort is not None:
            self._columns[table.sort.name] = "sk"
        # Returns the key of an item as statement parameters.
        self.key_of: Callable[[Item], Parameters] = _values_of(table.key_names)
        self._keys = list(self._columns.values())
        self._copies = list(table.index_attributes)
        self._columns |= {attribute: _quoted(f"i_{attribute}") for attribute in self._copies}
        self._statements: dict[tuple[str | None, str | None, bool, bool], str] = {}
        # By the attributes of an item: the statement that writes it, and the function that returns its parameters.
        self._shapes: dict[tuple[str, ...], tuple[str, Callable[[Item], tuple[Any, ...]]]] = {}
        self._moves: dict[tuple[str, ...], tuple[str, Callable[[Item], tuple[Any, ...]]]] = {}
        self._refreshes: dict[tuple[str, ...], tuple[str, Callable[[Item], tuple[Any, ...]]]] = {}
        self._selects: dict[int, str] = {}
        # Precomputed, because every write builds a row.
        self._copied = (*self._copies, *([table.ttl_attribute] if table.ttl_attribute else []))
        self._row_attributes = (*table.key_names, *self._copied)
        self._partial = _partial_decoder(tuple(dict.fromkeys((*self._copied, VERSION))))
        self.recent = RecentRows(self.select)
        # The conditions of the store, which reads record.
        self.faults = StoreFaults() if faults is None else faults

    def row(self, item: Item, body: str) -> tuple[Any, ...]:
        """Return the parameters of `upsert`."""
        version = (column_version(item),) if self.has_versions else ()
        return (*map(item.get, self._row_attributes), *version, body)

    def upsert_of(self, item: Item, body: str) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that inserts or replaces an item, and its parameters.

        Columns of missing attributes are left out: binding a None costs as much as binding a value.
        """
        names = tuple(item)
        statement, values_of = self._shapes.get(names) or self._shape(names)
        return statement, (*values_of(item), body)

    def _shape(self, names: tuple[str, ...]) -> tuple[str, Callable[[Item], tuple[Any, ...]]]:
        copied = [self.copied_columns[name] for name in self._copied]
        columns = dict(zip(self._row_attributes, [*self._keys, *copied], strict=True))
        used = [name for name in columns if name in names]
        if len(self._shapes) >= _SHAPES_MAX:
            self._shapes.clear()
        written, values_of = [columns[name] for name in used], _values_of(used)
        if self.has_versions:
            written, values_of = [*written, "version"], _with_version(values_of)
        made = self._upsert([*written, "body"]), values_of
        self._shapes[names] = made
        return made

    def move_of(self, item: Item, body: str, key: Parameters) -> tuple[str, Parameters]:
        """Return the statement that replaces the row of a key by an item with another key, and its parameters.

        It is a delete and an upsert in one. The row of the key exists.
        """
        names = tuple(item)
        statement, values_of = self._moves.get(names) or self._move(names)
        return statement, (*values_of(item), body, *key)

    def _move(self, names: tuple[str, ...]) -> tuple[str, Callable[[Item], tuple[Any, ...]]]:
        present = [name for name in self._copied if name in names]
        written = [f"{column} = ?" for column in [*self._keys, *(self.copied_columns[name] for name in present)]]
        none = [f"{self.copied_columns[name]} = NULL" for name in self._copied if name not in names]
        if len(self._moves) >= _SHAPES_MAX:
            self._moves.clear()
        columns = ", ".join([*written, "body = ?", *none])
        statement = f"UPDATE OR REPLACE {self.name} SET {columns} WHERE {self._where_key}"
        made = self._moves[names] = statement, _values_of([*self.table.key_names, *present])
        return made

    def refresh_of(self, item: Item, body: str, version: int) -> tuple[str, Parameters]:
        """Return the statement that rewrites an item of a refreshed table under a version, and its parameters.

        The statement changes no row unless the current item has this version and the index keys of the new one.
        """
        names = tuple(item)
        statement, values_of = self._refreshes.get(names) or self._refresh(names)
        return statement, (body, column_version(item), *values_of(item), version)

    def _refresh(self, names: tuple[str, ...]) -> tuple[str, Callable[[Item], tuple[Any, ...]]]:
        present = [name for name in self._copied if name in names]
        same = [f"{self.copied_columns[name]} = ?" for name in present]
        none = [f"{self.copied_columns[name]} IS NULL" for name in self._copied if name not in names]
        if len(self._refreshes) >= _SHAPES_MAX:
            self._refreshes.clear()
        statement = " AND ".join([self.rewrite, *same, "version = ?", *none])
        made = self._refreshes[names] = statement, _values_of([*self.table.key_names, *present])
        return made

    def index_keys_and_version(self, body: str) -> Item | None:
        """Decode only the indexed attributes, the TTL and the version of an item.

        Returns None for a body that needs a full decode: one with tags or that is corrupt.
        """
        if '"$' in body:
            return None
        try:
            return self._partial.decode(body)
        except msgspec.DecodeError:
            return None

    def same_index_keys(self, left: Item, right: Item) -> bool:
        """Whether two items with the same key have the same index keys and TTL."""
        # Without a loop in Python: every rewrite of a row calls this.
        return tuple(map(left.get, self._copied)) == tuple(map(right.get, self._copied))

    @cached_property
    def copied_columns(self) -> dict[str, str]:
        """The columns that copy attributes of the body, by attribute."""
        copied = {attribute: self._columns[attribute] for attribute in self._copies}
        copied |= {self.table.ttl_attribute: "expires"} if self.table.ttl_attribute else {}
        return copied | ({VERSION: "version"} if self.has_versions else {})

    @cached_property
    def create_table(self) -> str:
        columns = [f"{key} NOT NULL" for key in self._keys]
        columns += self.copied_columns.values()
        columns += ["body TEXT NOT NULL", f"PRIMARY KEY ({', '.join(self._keys)})"]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(columns)}) WITHOUT ROWID"

    @cached_property
    def create_indexes(self) -> dict[str, str]:
        """The CREATE INDEX statements, by index name."""
        indexes = {}
        for index in self.table.indexes:
            columns = [self._columns[attribute.name] for attribute in index.attributes()]
            present = [column for column in columns if column not in self._keys]
            indexes[self._index_name(index.name)] = (columns, present)
        if self.table.ttl_attribute is not None:
            indexes[self._index_name("expires")] = (["expires"], ["expires"])
        return {
            name: f"CREATE INDEX {_quoted(name)} ON {self.name} ({', '.join(columns)})" + _where_present(present)
            for name, (columns, present) in indexes.items()
        }

    def _index_name(self, name: str) -> str:
        # Table names hold no colon, so an index never has the name of a table.
        return f"{self._physical}:{name}"

    @cached_property
    def _where_key(self) -> str:
        return " AND ".join(f"{key} = ?" for key in self._keys)

    @cached_property
    def select(self) -> str:
        return f"SELECT body FROM {self.name} WHERE {self._where_key}"

    def select_many(self, count: int) -> str:
        """Return the statement that reads `count` keys; its columns are the key and the body."""
        statement = self._selects.get(count)
        if statement is None:
            statement = self._selects[count] = self._select_many(count)
        return statement

    def _select_many(self, count: int) -> str:
        places = ", ".join([f"({', '.join('?' for _ in self._keys)})"] * count)
        # A join with the key list does one lookup per key; IN over several columns would scan the table.
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
        """Updates the body only, for an item whose index keys are unchanged, which leaves the index pages alone."""
        version = ", version = ?" if self.has_versions else ""
        return f"UPDATE {self.name} SET body = ?{version} WHERE {self._where_key}"

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
        """Return the statement and parameters of one page; it selects one row more than the limit."""
        sort = query.sort
        # A page after the first begins at its position. Of two bounds on one side SQLite uses only the first for the
        # search, so that each page would read the pages before it again: the other one must not be usable.
        passed = None if position is None else ("<" if query.descending else ">")
        shape, bounds = (None, []) if sort is None else _bounds(sort, passed)
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

    def count(self, query: Query, by: str | None, most: int, now: float) -> tuple[str, list[Any]]:
        """Return the statement and parameters that count up to `most` rows by the value of an attribute."""
        page, parameters = self.query(query, None, now)
        parameters[-1] = most
        value = "''" if by is None else self._columns[by]
        # The attribute is a column, so that no body is read.
        counted = page.replace("SELECT body FROM", f"SELECT {value} AS value FROM", 1)
        return f"SELECT value, COUNT(*) FROM ({counted}) GROUP BY value", parameters

    def _page_statement(self, index: str | None, shape: str | None, resumed: bool, descending: bool) -> str:  # noqa: FBT001
        partition, sort = self._path(index)
        where = [f"{partition} = ?"]
        if index is not None and sort is not None:
            # SQLite's planner uses a partial index only if the query implies its WHERE.
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
        """Return the partition and sort key columns of the table or an index."""
        if index is None:
            return "pk", ("sk" if self.table.sort is not None else None)
        keyed = self.table.index(index)
        return self._columns[keyed.partition.name], (None if keyed.sort is None else self._columns[keyed.sort.name])


@cache
def _partial_decoder(attributes: tuple[str, ...]) -> msgspec.json.Decoder[Item]:
    """Return a decoder of these attributes only, shared by all stores of the process."""
    shape = TypedDict("Placing", dict.fromkeys(attributes, Any), total=False)  # type: ignore[misc]  # known at run time
    return typed_decode.json_decoder(shape)


def _values_of(names: Sequence[str]) -> Callable[[Item], tuple[Any, ...]]:
    """Return a function from an item to the values of these attributes, without a loop in Python for each row."""
    if len(names) > 1:
        return itemgetter(*names)
    (only,) = names
    return lambda item: (item[only],)


def _with_version(values_of: Callable[[Item], tuple[Any, ...]]) -> Callable[[Item], tuple[Any, ...]]:
    return lambda item: (*values_of(item), column_version(item))


def column_version(item: Item) -> int | None:
    """Return what the version column has of an item: a version that fits, else nothing."""
    version = item.get(VERSION)
    return version if type(version) is int and -_WORD <= version < _WORD else None


def _where_present(columns: list[str]) -> str:
    return f" WHERE {' AND '.join(f'{column} IS NOT NULL' for column in columns)}" if columns else ""


def _bounds(sort: Sort, passed: str | None) -> tuple[str, list[Any]]:
    """Return the SQL of a range, with `{column}` for the sort key, and its parameters.

    Bounds of the side `passed`, ">" for lower and "<" for upper ones, are checked but not searched.
    """
    if sort.range is Range.BETWEEN:
        bounds = [(">=", sort.low), ("<=", sort.high)]
    elif sort.range is Range.BEGINS_WITH:
        end = _after_prefix(str(sort.low))
        bounds = [(">=", sort.low), *([] if end is None else [("<", end)])]
    else:
        bounds = [(_COMPARISONS[sort.range], sort.low)]
    # SQLite searches an index only by a bare column.
    columns = ["+{column}" if comparison[0] == passed else "{column}" for comparison, _ in bounds]
    clauses = [f"{column} {comparison} ?" for column, (comparison, _) in zip(columns, bounds, strict=True)]
    return " AND ".join(clauses), [value for _, value in bounds]


def parameters(key: Key) -> Parameters:
    """Return a key as statement parameters."""
    return key if key.sort is not None else key[:1]


def _after_prefix(prefix: str) -> str | None:
    """Return the smallest text greater than everything that starts with `prefix`, or None if there is none."""
    stem = prefix.rstrip(_LAST_CHARACTER)
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    # U+D800 to U+DFFF are surrogates: the character after U+D7FF is U+E000.
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
