"""Probe definitions: every problem has file, line and remedy; what would reach out of the rules is refused."""

from __future__ import annotations

import json

import pytest

from headgate.pipelines.probes.definitions import load_probe_text

SQL = "id: orders\nsql:\n  url: postgresql+psycopg://reader@db/shop\n  query: select count(*) from orders\n"


def problems(text: str) -> list[str]:
    return [problem.text() for problem in load_probe_text(text, "probes/a.yaml").problems]


def test_load__minimal__has_defaults() -> None:
    (loaded,) = load_probe_text(SQL, "probes/a.yaml").probes
    assert (loaded.probe.kind, float(loaded.probe.every), float(loaded.probe.timeout), loaded.line) == (
        "sql",
        60,
        10,
        1,
    )


def test_load__several_documents__load_alone_and_a_bad_one_is_left_out() -> None:
    loaded = load_probe_text(f"{SQL}---\nid: files\nfiles: {{path: in/*}}\n---\nid: bad\n", "probes/a.yaml")
    assert loaded.ids == {"orders", "files"}
    assert [problem.line for problem in loaded.problems] == [9]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id: Orders\nfiles: {path: x}", "a.yaml:1:5: id: 'Orders' cannot be an id"),
        ("id: ab", "it has none of its kinds; give exactly one of sql, files, delta, iceberg, http"),
        ("id: ab\nfiles: {path: x}\nhttp: {url: 'https://a'}", "it has files and http"),
        ("id: ab\nfilse: {path: x}", "did you mean files?"),
        ("id: ab\nevery: 10ms\nfiles: {path: x}", "a.yaml:2:8: every: 0.01 s is out of bounds; use 1s to 1d"),
        ("id: ab\ntimeout: 1h\nfiles: {path: x}", "timeout: 3600 s is out of bounds"),
        ("id: ab\nperiod: custom\nfiles: {path: x}", "period: a probe has no custom period"),
        ("id: ab\nperiods: 99\nfiles: {path: x}", "periods: 99 is out of bounds; use 1 to 31"),
        ("id: ab\ntimezone: Mars\nfiles: {path: x}", "timezone: "),
        ("id: ab\nfiles:\n  path: in/${date}", "a.yaml:3:9: files.path: ${date} has no value"),
        ("id: ab\nperiod: daily\nfiles: {path: 'in/${hour}'}", "${hour} has no value"),
        ("id: ab\nfiles: {path: 'in/${env:HG_SECRET_X}'}", "no secrets here"),
        ("id: ab\nfiles: {path: x, marker: a/b}", "files.marker: it is no name of a file"),
        ("id: ab\nexpect: [{check: gte, value: many}]\nfiles: {path: x}", "expect[0].value: check gte: value is "),
        ("id: ab\nexpect: [{check: atleast}]\nfiles: {path: x}", "expect[0].check: 'atleast' is not known"),
        ("id: ab\nhttp: {url: 'https://a', value: '$..['}", "http.value: '$..[' is no JSONPath"),
    ],
)
def test_load__invalid__names_place_and_remedy(text: str, said: str) -> None:
    assert any(said in problem for problem in problems(text)), problems(text)


def _sql(**fields: str) -> str:
    given = {"url": "postgresql://reader@db/shop", "query": "select 1", **fields}
    return "id: ab\nsql:\n" + "".join(f"  {name}: {json.dumps(value)}\n" for name, value in given.items())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "postgresql://reader:pw@db/shop"}, "has a password; put it into the field password"),
        ({"url": "db/shop"}, "is not one of SQLAlchemy"),
        ({"url": "postgresql://db/shop?host=169.254.169.254"}, "host cannot be set"),
        ({"url": "mysql+pymysql://db/shop?local_infile=1"}, "local_infile cannot be set"),
        ({"url": "postgresql://db/shop?options=-c%20x"}, "options cannot be set"),
        ({"password": "plain-text"}, "sql.password: it is no reference to a secret"),
        ({"password": "${env:HOME}"}, "only variables whose names begin with HG_SECRET_"),
        ({"query": "delete from orders"}, "is not a SELECT"),
        ({"query": "select 1; drop table orders"}, "has several statements"),
        ({"query": "select 1 -- ;\n; commit; select 2"}, "has several statements"),
        ({"query": "select 1 into outfile '/tmp/x'"}, "writes a file"),
        ({"query": "select 1 /*! into outfile '/tmp/x' */"}, "a comment that MySQL runs"),
        ({"query": "select count(*) from orders where day = :date"}, "it uses :date, and the probe has no period"),
        ({"query": "select count(*) from orders where day = :today"}, "uses :today; use one of :date"),
    ],
)
def test_load__sql_that_could_do_more_than_read__is_refused(fields: dict[str, str], said: str) -> None:
    found = problems(_sql(**fields))
    assert any(said in problem for problem in found), found
    assert not any("plain-text" in problem for problem in found)


@pytest.mark.parametrize(
    "query", ["select ';' from orders", "select 1 /* ; */", "select a::int from t;", "with x as (select 1) select 1"]
)
def test_load__semicolon_that_separates_nothing__is_allowed(query: str) -> None:
    assert problems(_sql(query=query)) == []


def test_load__id_twice__refuses_both_with_the_other_place() -> None:
    loaded = load_probe_text(f"{SQL}---\n{SQL}", "probes/a.yaml")
    assert loaded.ids == frozenset()
    assert "'orders' is defined at probes/a.yaml:1 too" in loaded.problems[0].text()
