"""Namespaces of dbt's tables: the naming rules of OpenLineage for each adapter."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidPayloadError
from headgate.health.ingest.dbt_namespace import namespace_of


@pytest.mark.parametrize(
    ("output", "namespace"),
    [
        ({"type": "duckdb", "path": "shop.duckdb"}, "duckdb://shop.duckdb"),
        ({"type": "postgres", "host": "db", "port": 5433}, "postgres://db:5433"),
        ({"type": "postgres", "host": "db"}, "postgres://db:5432"),
        ({"type": "redshift", "host": "c.eu.redshift", "port": "5439"}, "redshift://c.eu.redshift:5439"),
        ({"type": "bigquery", "project": "p"}, "bigquery"),
        ({"type": "snowflake", "account": "org-acct"}, "snowflake://org-acct"),
        ({"type": "snowflake", "account": "xy123"}, "snowflake://xy123.us-west-1.aws"),
        ({"type": "snowflake", "account": "xy123.eu-west-1"}, "snowflake://xy123.eu-west-1.aws"),
        ({"type": "databricks", "host": "adb.net"}, "databricks://adb.net"),
        ({"type": "athena", "region_name": "eu-west-1"}, "awsathena://athena.eu-west-1.amazonaws.com"),
        ({"type": "sqlserver", "server": "s"}, "mssql://s:1433"),
        ({"type": "trino", "host": "t", "port": 443}, "trino://t:443"),
        ({"type": "glue", "region": "eu", "role_arn": "arn:aws:iam::12:role/x"}, "arn:aws:glue:eu:12"),
    ],
)
def test_namespace_of__an_output__follows_the_naming_rules(output: dict[str, object], namespace: str) -> None:
    assert namespace_of(output) == namespace


@pytest.mark.parametrize("output", [{}, {"type": "vertica"}, {"type": "postgres"}, {"type": "duckdb", "path": ""}])
def test_namespace_of__an_output_without_a_rule_or_field__is_refused_with_the_remedy(output: dict[str, object]) -> None:
    with pytest.raises(InvalidPayloadError, match="give --namespace"):
        namespace_of(output)
