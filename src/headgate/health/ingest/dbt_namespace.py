"""Namespace of a dbt project's tables, by the naming rules of OpenLineage, from the output of its profile.

Tools that send OpenLineage events name the same tables under the same namespace: so one table is one dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headgate.errors import InvalidPayloadError

Output = Mapping[str, object]

_DEFAULT_PORTS: Final = {
    "postgres": 5432,
    "redshift": 5439,
    "clickhouse": 8123,
    "trino": 8080,
    "sqlserver": 1433,
    "dremio": 9047,
    "spark": 10001,
}


def namespace_of(output: Output) -> str:
    """Return the namespace of the tables that dbt writes with this output of a profile.

    Raises `InvalidPayloadError` for an adapter without a naming rule, and for an output that lacks a field.
    """
    adapter = str(output.get("type", ""))
    rule = _RULES.get(adapter)
    if rule is None:
        known = ", ".join(sorted(_RULES))
        raise InvalidPayloadError(
            f"dbt profile: adapter {adapter[:40]!r} has no naming rule ({known}); give --namespace"
        )
    return rule(output)


def _text(output: Output, *names: str) -> str:
    """Return the first of some fields that the output has."""
    for name in names:
        value = output.get(name)
        if value not in (None, ""):
            return str(value)
    raise InvalidPayloadError(f"dbt profile: the output of type {output['type']} has no {names[0]}; give --namespace")


def _host_and_port(scheme: str, *hosts: str) -> Callable[[Output], str]:
    def rule(output: Output) -> str:
        port = output.get("port") or _DEFAULT_PORTS[str(output["type"])]
        return f"{scheme}://{_text(output, *hosts)}:{port}"

    return rule


def _snowflake(output: Output) -> str:
    """Return the organization and account, or the locator completed with region and cloud."""
    account = _text(output, "account")
    if "-" not in account and "_" not in account and "." not in account:
        return f"snowflake://{account}.us-west-1.aws"
    if account.count(".") == 1:
        return f"snowflake://{account}.aws"
    return f"snowflake://{account}"


def _glue(output: Output) -> str:
    account = output.get("account_id")
    if not account:
        # arn:aws:iam::ACCOUNT:role/NAME
        parts = _text(output, "role_arn").split(":")
        account = parts[4] if len(parts) > 4 else ""
    return f"arn:aws:glue:{_text(output, 'region')}:{account}"


_RULES: Final[Mapping[str, Callable[[Output], str]]] = {
    "athena": lambda output: f"awsathena://athena.{_text(output, 'region_name')}.amazonaws.com",
    "bigquery": lambda _output: "bigquery",
    "clickhouse": _host_and_port("clickhouse", "host"),
    "databricks": lambda output: f"databricks://{_text(output, 'host')}",
    "dremio": _host_and_port("dremio", "software_host", "host"),
    "duckdb": lambda output: f"duckdb://{_text(output, 'path')}",
    "glue": _glue,
    "postgres": _host_and_port("postgres", "host"),
    "redshift": _host_and_port("redshift", "host"),
    "snowflake": _snowflake,
    "spark": _host_and_port("spark", "host"),
    "sqlserver": _host_and_port("mssql", "server", "host"),
    "trino": _host_and_port("trino", "host"),
}
