"""The page of tables."""

from __future__ import annotations

from collections.abc import Iterator

from docs.generator.markdown import NOTE, code
from headgate.store.catalogue.retention import ending_of
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.schema import Index, Shards, Table


def tables_page() -> str:
    lines = [
        "# Tables",
        "",
        NOTE,
        "Every table. On SQLite each is a table of `HOME/headgate.db`; on DynamoDB a table of its own.",
        "The settings `store.table_prefix` and `store.table_names` change the names. Every index projects whole",
        "items and contains only those with all of its key attributes. On DynamoDB, a value with shards is spread",
        "over so many partitions: `VALUE`, `VALUE*1`, `VALUE*2` and so on ([ADR 45](../adr/0045-shards.md)).",
        "",
    ]
    for table in ALL_TABLES:
        lines += _table_section(table)
    return "\n".join(lines)


def _table_section(table: Table) -> Iterator[str]:
    keys = " + ".join(
        f"`{part.name}` ({part.kind.value})" for part in (table.partition, table.sort) if part is not None
    )
    facts = [
        f"TTL `{table.ttl_attribute}`" if table.ttl_attribute else "no TTL",
        "change stream" if table.stream else "a stream on DynamoDB alone" if table.wakes else "no stream",
        table.billing.value,
        table.classification.value,
        *_shard_facts(table.shards),
    ]
    yield from (f"## {table.name}", "", f"{table.purpose}.", "", f"Key: {keys}. {'; '.join(facts)}.", "")
    for index in table.indexes:
        by = " + ".join(f"`{attribute.name}` ({attribute.kind.value})" for attribute in index.attributes())
        yield "; ".join((f"- Index `{index.name}`: {by}", *_shard_facts(index.shards), *_projection_facts(index)))
    if table.indexes:
        yield ""
    yield from ("| Entity | Partition | Sort | Index attributes | Ends |", "|---|---|---|---|---|")
    for entity in table.entities:
        indexed = ", ".join(f"{name} = `{pattern}`" for name, pattern in entity.index_keys.items())
        ending = ending_of(table.name, entity.name)
        end = ending.how + (f": `{ending.setting}`" if ending.setting else "")
        yield f"| {entity.name} | `{entity.partition}` | {code(entity.sort or '')} | {indexed} | {end} |"
    yield ""


def _projection_facts(index: Index) -> list[str]:
    if index.projected is None:
        return []
    named = ", ".join(f"`{name}`" for name in index.projected)
    return [f"keys and {named} only" if named else "keys only"]


def _shard_facts(shards: Shards | None) -> list[str]:
    if shards is None:
        return []
    spread = ", ".join(f"`{prefix}`" for prefix in shards.of)
    return [f"{shards.count} shards of {spread}" if spread else f"{shards.count} shards"]
