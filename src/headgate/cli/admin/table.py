"""`headgate table`: the tables of the catalogue, and making them where a backend does not do it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headgate.cli.admin.table_costs import costs
from headgate.cli.admin.table_restore import compare, mend, swap
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.errors import UserError

if TYPE_CHECKING:
    from headgate.settings import Settings

app = typer.Typer(help="The tables that hold everything.", no_args_is_help=True, rich_markup_mode=None)


@app.command("ls")
def list_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List every table: its name here and what it is for; with --json also its keys and indexes."""
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
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    shown.add_column("TABLE", no_wrap=True)
    shown.add_column("PURPOSE")
    for row in rows:
        shown.add_row(str(row["table"]), str(row["purpose"]))
    Console().print(shown)


@app.command("create")
def create_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Create the tables that DynamoDB lacks, and wait until they can be used."""
    from headgate.bootstrap.store import create_dynamodb_tables
    from headgate.clock import SystemClock

    created = create_dynamodb_tables(_dynamodb(session_of(context).settings(config, home=home)), SystemClock())
    if as_json:
        echo_json({"created": created})
    elif created:
        typer.echo("\n".join(f"created {name}" for name in created))
    else:
        typer.echo("every table is there")


@app.command("check")
def check_tables(context: typer.Context, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Compare the tables in DynamoDB with the catalogue. The exit code is 1 if they differ."""
    from headgate.bootstrap.store import check_dynamodb_tables
    from headgate.clock import SystemClock

    differences = check_dynamodb_tables(_dynamodb(session_of(context).settings(config, home=home)), SystemClock())
    if as_json:
        echo_json({"differences": differences})
    else:
        typer.echo("\n".join(differences) or "the tables are as the catalogue says")
    if differences:
        raise typer.Exit(1)


def _dynamodb(settings: Settings) -> Settings:
    if settings.store.backend != "dynamodb":
        raise UserError("store.backend is sqlite, which makes its tables when it is opened; nothing to do here")
    return settings


app.command("compare")(compare)
app.command("mend")(mend)
app.command("swap")(swap)
app.command("costs")(costs)
