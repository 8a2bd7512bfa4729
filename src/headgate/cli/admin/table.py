"""`headgate table`: lists, creates and checks tables; compares and repairs restored ones; estimates costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headgate.cli.admin.table_costs import costs
from headgate.cli.admin.table_restore import compare, repair, swap
from headgate.cli.commands import command_group
from headgate.cli.output import show_table
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.settings import Settings

app = command_group("Manage the tables of the store.")


@app.command("ls")
def list_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List every table and its purpose; JSON adds its keys and indexes."""
    from headgate.store.catalogue.tables import ALL_TABLES
    from headgate.store.table_names import TableNames

    settings = session_of(context).settings(config, home=home)
    names = TableNames(settings.store.table_prefix, settings.store.table_names)
    rows = [
        {
            "table": names.physical(table),
            "key": list(table.key_names),
            "indexes": [index.name for index in table.indexes],
            "ttl": table.ttl_attribute,
            "stream": table.stream,
            "purpose": table.purpose,
        }
        for table in ALL_TABLES
    ]
    if as_json:
        echo_json(rows)
        return
    show_table(("TABLE", "PURPOSE"), [(row["table"], row["purpose"]) for row in rows], nothing="no tables")


@app.command("create")
def create_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Create missing DynamoDB tables and wait until they are active."""
    from headgate.bootstrap.store import create_dynamodb_tables
    from headgate.clock import SystemClock

    created = create_dynamodb_tables(_dynamodb(session_of(context).settings(config, home=home)), SystemClock())
    if as_json:
        echo_json({"created": created})
    elif created:
        typer.echo("\n".join(f"created {name}" for name in created))
    else:
        typer.echo("all tables exist")


@app.command("check")
def check_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Compare the DynamoDB tables with the catalogue. The exit code is 1 if they differ."""
    from headgate.bootstrap.store import check_dynamodb_tables
    from headgate.clock import SystemClock

    differences = check_dynamodb_tables(_dynamodb(session_of(context).settings(config, home=home)), SystemClock())
    if as_json:
        echo_json({"differences": differences})
    else:
        typer.echo("\n".join(differences) or "all tables match the catalogue")
    if differences:
        raise typer.Exit(ExitCode.FAILED)


def _dynamodb(settings: Settings) -> Settings:
    if settings.store.backend != "dynamodb":
        raise UserError("store.backend is sqlite, which creates its tables itself")
    return settings


app.command("compare")(compare)
app.command("repair")(repair)
# The name in earlier releases.
app.command("mend", hidden=True)(repair)
app.command("swap")(swap)
app.command("costs")(costs)
