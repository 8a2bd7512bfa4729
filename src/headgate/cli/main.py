"""`headgate`: the program. It reads the environment, picks the command, and turns errors into exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from headgate.cli import (
    api_key,
    audit,
    chunk,
    dataset,
    doctor,
    event,
    evidence,
    execution,
    fanout,
    gate,
    incident,
    key,
    lineage,
    schedule,
    signal,
    table,
    up,
    worker,
    workflow,
)
from headgate.cli.session import Json, Session, echo_json, session_of
from headgate.errors import FatalError, HeadgateError

app = typer.Typer(
    name="headgate",
    help="A control plane for data pipelines: nothing flows until it is safe.",
    no_args_is_help=True,
    add_completion=False,
    # As markup, "[default: …]" in a help text would vanish.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("worker")(worker.worker)
app.command("workers")(workflow.workers_ls)
app.command("doctor")(doctor.doctor)
app.add_typer(workflow.app, name="workflow")
app.add_typer(execution.app, name="execution")
app.add_typer(event.app, name="event")
app.add_typer(schedule.app, name="schedule")
app.add_typer(fanout.app, name="fanout")
app.add_typer(chunk.app, name="chunk")
app.add_typer(dataset.app, name="dataset")
app.add_typer(signal.app, name="signal")
app.add_typer(incident.app, name="incident")
app.add_typer(evidence.app, name="evidence")
app.add_typer(lineage.app, name="lineage")
app.add_typer(gate.app, name="gate")
app.add_typer(audit.app, name="audit")
app.add_typer(api_key.app, name="api-key")
app.add_typer(key.app, name="key")
app.add_typer(table.app, name="table")


@app.command()
def version(as_json: Json = False) -> None:
    """Show the version."""
    from headgate import __version__

    if as_json:
        echo_json({"name": "headgate", "version": __version__})
    else:
        typer.echo(f"headgate {__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def program(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error comes from.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    session_of(context).debug = debug


def main() -> None:
    """Run the program. The exit code is 0, or that of the family the error belongs to."""
    # The one place that reads the environment; everything else is given what it needs.
    session = Session(dict(os.environ))  # noqa: TID251
    try:
        app(obj=session)
    except HeadgateError as error:
        sys.exit(_report(session, error, error.message, error.code, error.exit_code))
    except Exception as error:  # noqa: BLE001 - the top of the process
        message = f"a bug in Headgate: {type(error).__name__}: {error}; run again with --debug and report what it shows"
        sys.exit(_report(session, error, message, FatalError.code, FatalError.exit_code))


def _report(session: Session, error: Exception, message: str, code: str, exit_code: int) -> int:
    if session.debug:
        traceback.print_exception(error)
    typer.echo(f"error: {message}\ncode: {code}", err=True)
    return exit_code
