"""SQL probes mean the same on PostgreSQL, MariaDB, DuckDB and SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from msgspec import Struct

from headgate.pipelines.enums import FailureCategory, Verdict
from headgate.pipelines.probes.model import ProbeResult
from tests.databases import PASSWORD, Database, start_mariadb, start_postgres
from tests.probe_rig import probe, runner

ENVIRON = {"HG_SECRET_DB": PASSWORD}
_ROWS = [
    "create table orders (day varchar(10), amount numeric(10,2), loaded_at timestamp)",
    "insert into orders values ('2026-03-03', 10.50, '2026-03-03 06:00:00'), ('2026-03-03', 2, '2026-03-03 07:30:00'),"
    " ('2026-03-04', 7, '2026-03-04 05:00:00')",
]


class Target(Struct):
    """A database with the table `orders`."""

    name: str
    url: str
    password: str | None
    root: Path
    # Selects for longer than any time-out here.
    slow: str


def _filled(url: str, password: str | None) -> None:
    made = sqlalchemy.engine.make_url(url).set(password=password)
    engine = sqlalchemy.create_engine(made, poolclass=sqlalchemy.pool.NullPool)
    with engine.begin() as connection:
        sequence = ["create sequence numbers"] if url.startswith("mysql") else []
        for statement in (*_ROWS, *sequence):
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()


def _server(start: Callable[[], Database], name: str, slow: str, root: Path) -> Iterator[Target]:
    database = start()
    try:
        _filled(database.url, PASSWORD)
        yield Target(name, database.url, "${env:HG_SECRET_DB}", root, slow)
    finally:
        database.stop()


@pytest.fixture(scope="module", params=["postgresql", "mariadb", "duckdb", "sqlite"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    root = tmp_path_factory.mktemp("db")
    counted = (
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000000000) select max(i) from n"
    )
    match request.param:
        case "postgresql":
            yield from _server(start_postgres, "postgresql", "select count(*) from pg_sleep(30)", root)
        case "mariadb":
            yield from _server(start_mariadb, "mariadb", "select sleep(30) + count(*) from orders", root)
        case "duckdb":
            url = f"duckdb:///{root}/shop.duckdb"
            _filled(url, None)
            slow = "select count(*) from range(3000000) a, range(3000000) b where a.range * b.range % 7 = 3"
            yield Target("duckdb", url, None, root, slow)
        case _:
            url = f"sqlite:///{root}/shop.db"
            _filled(url, None)
            yield Target("sqlite", url, None, root, counted)


def look(target: Target, query: str, date: str = "", *, timeout: str = "10s", **fields: Any) -> ProbeResult:
    sql = {"url": target.url, "query": query, **({} if target.password is None else {"password": target.password})}
    return runner(target.root, environ=ENVIRON).run(probe(sql=sql, timeout=timeout, **fields), date)


def test_count__rows_of_the_period__are_compared(target: Target) -> None:
    query = "select count(*) from orders where day = :date"
    expect = [{"check": "gte", "value": 2}]
    enough = look(target, query, "2026-03-03", period="daily", expect=expect)
    assert (enough.verdict, enough.seen, enough.reason) == (Verdict.PASS, {"value": 2}, "value is 2")
    few = look(target, query, "2026-03-04", period="daily", expect=expect)
    assert (few.verdict, few.seen) == (Verdict.FAIL, {"value": 1})
    assert "is 1, at least 2 is needed" in few.reason


def test_max_timestamp__has_an_age(target: Target) -> None:
    expect = [{"check": "age_gt", "value": "1d"}]
    result = look(target, "select max(loaded_at) from orders", expect=expect)
    if target.name == "sqlite":
        # SQLite has no times, only texts; without an offset they are none.
        assert result.verdict is Verdict.UNKNOWN
        return
    assert result.verdict is Verdict.PASS, result.reason
    assert result.seen == {"value": "2026-03-04T05:00:00+00:00"}


def test_scalar__sum_and_null__are_plain_values(target: Target) -> None:
    total = look(target, "select sum(amount) from orders where day = '2026-03-03'")
    assert total.seen == {"value": 12.5}
    nothing = look(target, "select max(amount) from orders where day = 'never'")
    assert (nothing.verdict, nothing.reason) == (Verdict.FAIL, "value is missing")


@pytest.mark.parametrize(("query", "said"), [("select day from orders", "several rows"), ("select 1, 2", "2 columns")])
def test_query__not_one_value__is_unknown(target: Target, query: str, said: str) -> None:
    result = look(target, query)
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.PERMANENT)
    assert said in result.reason


def test_query__takes_too_long__ends_at_the_timeout(target: Target) -> None:
    result = look(target, target.slow, timeout="1s")
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.TIMEOUT), result.reason
    assert result.duration_ms < 20_000


def test_query__unknown_table__is_unknown_and_not_failed(target: Target) -> None:
    result = look(target, "select count(*) from no_such_table")
    assert result.verdict is Verdict.UNKNOWN
    assert "no_such_table" in result.reason


def test_transaction__write_inside_a_query__is_refused_by_the_database(target: Target) -> None:
    writes = {
        "postgresql": "with gone as (delete from orders returning 1) select count(*) from gone",
        "mariadb": "select nextval(numbers)",
        "duckdb": "select count(*) from (from read_csv_auto('/etc/passwd'))",
        "sqlite": "select load_extension('x')",
    }
    result = look(target, writes[target.name])
    assert result.verdict is Verdict.UNKNOWN, result.reason
    if target.name == "mariadb":
        assert "READ ONLY transaction" in result.reason
    assert look(target, "select count(*) from orders").seen == {"value": 3}


def test_password__wrong__is_nowhere_in_the_result(target: Target) -> None:
    if target.password is None:
        target = Target(target.name, target.url + "-missing", None, target.root, "")
        assert look(target, "select 1").verdict is Verdict.UNKNOWN
        return
    sql = {"url": target.url, "query": "select 1", "password": target.password}
    result = runner(target.root, environ={"HG_SECRET_DB": "wrong-and-s3cret"}).run(probe(sql=sql))
    assert (result.verdict, result.category) == (Verdict.UNKNOWN, FailureCategory.TRANSIENT)
    assert "wrong-and-s3cret" not in repr(result)
