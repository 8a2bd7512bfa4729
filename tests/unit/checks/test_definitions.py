"""Check files: every problem is reported with its line and field, and names of tables and columns inject nothing."""

from __future__ import annotations

import pytest

from headgate.checks.definitions import load_check_text
from headgate.checks.model import Check, NullShareCheck, UniqueCheck, VolumeCheck
from headgate.checks.queries import query_of

VALID = """\
dataset: urn:dp:orders:created
source:
  sql:
    url: duckdb:///shop.duckdb
    table: sales.orders
every: 15m
checks:
  - id: fresh
    freshness: {column: updated_at, max_age: 1h, warn_age: 30m}
  - id: rows
    volume: {column: created_at, min: 100, holidays: DE}
  - id: columns
    schema: {columns: {order_id: BIGINT, total: ""}, extra: warning}
  - id: customer
    severity: warning
    null_share: {column: customer_id, max: 0.01}
    where: status <> 'test'
  - id: key
    unique: {columns: [order_id]}
  - id: no-negative-total
    sql: {query: SELECT count(*) FROM orders WHERE total < 0, check: equals, value: 0}
  - id: usual
    anomaly: {of: volume}
"""


def problems(text: str) -> list[str]:
    return [each.text() for each in load_check_text(text, "checks/orders.yaml").problems]


def test_file__valid__has_every_kind() -> None:
    loaded = load_check_text(VALID, "checks/orders.yaml")

    assert not loaded.problems, [each.text() for each in loaded.problems]
    [file] = loaded.files
    kinds = [each.kind for each in file.file.checks]
    assert kinds == ["freshness", "volume", "schema", "null_share", "unique", "sql", "anomaly"]
    assert float(file.file.every or 0) == 900


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("max_age: 1h", "max_age: soon", 9, "is not a duration"),
        ("warn_age: 30m", "warn_age: 2h", 9, "it is not less than max_age"),
        ("id: key", "id: rows", 18, "is given twice"),
        ("id: key", "id: Key!", 18, "cannot be an id"),
        ("null_share: {column: customer_id", "null_share: {column: customer id", 16, "is no name of a column"),
        ("max: 0.01", "max: 1.5", 16, "it is no share"),
        ("table: sales.orders", "table: orders; drop table x", 5, "is no name of a table"),
        ("SELECT count(*) FROM orders WHERE total < 0", "DELETE FROM orders", 21, "is not a SELECT"),
        ("check: equals", "check: equal", 21, "is not known"),
        ("holidays: DE", "holidays: Atlantis", 11, "Atlantis"),
        ("anomaly: {of: volume}", "anomaly: {of: duration}", 23, "the pipeline whose runs are judged is missing"),
        ("anomaly: {of: volume}", "anomaly: {}\n    unique: {columns: [a]}", 22, "it has anomaly and unique"),
        ("every: 15m", "every: 15m\nnever: 1", 7, "there is no such field"),
        ("dataset: urn:dp:orders:created", "dataset: orders", 1, "dataset"),
        ("where: status <> 'test'", "where: \"1=1); DELETE FROM x; --\"", 17, "several statements"),
        ("    table:", "    password: secret\n    table:", 5, "no reference to a secret"),
    ],
)  # fmt: skip
def test_file__invalid__names_line_and_field(old: str, new: str, line: int, words: str) -> None:
    assert old in VALID

    found = problems(VALID.replace(old, new, 1))

    assert any(words in each and f"checks/orders.yaml:{line}:" in each for each in found), found


def test_file__source_of_files__refuses_checks_of_columns() -> None:
    text = VALID.replace("sql:\n    url: duckdb:///shop.duckdb\n    table: sales.orders", "files: {path: data/*.csv}")

    assert sum("it cannot read files" in each for each in problems(text)) == 4


def test_dataset__in_two_documents__is_refused() -> None:
    assert any("has checks at checks/orders.yaml:1 too" in each for each in problems(f"{VALID}---\n{VALID}"))


@pytest.mark.parametrize(
    ("check", "query"),
    [
        (
            Check(id="v1", volume=VolumeCheck(column="at"), where="x = 1"),
            "SELECT count(*) FROM t WHERE at >= '2026-03-03 06:00:00' AND at < '2026-03-03 07:00:00' AND (x = 1)",
        ),
        (Check(id="v2", volume=VolumeCheck(min=1)), "SELECT count(*) FROM t"),
        (
            Check(id="n1", null_share=NullShareCheck(column="c"), where="x = 1"),
            "SELECT avg(CASE WHEN c IS NULL THEN 1.0 ELSE 0.0 END) FROM t WHERE (x = 1)",
        ),
        (
            Check(id="u1", unique=UniqueCheck(columns=("a", "b"))),
            "SELECT count(*) FROM (SELECT a, b FROM t GROUP BY a, b HAVING count(*) > 1) AS repeated",
        ),
    ],
)
def test_query__of_each_kind__is_one_select(check: Check, query: str) -> None:
    start_ms = 1_772_517_600_000

    assert query_of(check, "t", (start_ms, start_ms + 3_600_000)) == query
