"""`headgate`: the program. It reads the environment, picks the command, and turns errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from headgate.cli.session import Json, Session, echo_json, session_of
from headgate.errors import FatalError, HeadgateError
from headgate.serve import process

# Loaded when they are asked for: to make all of them known takes longer than most of them take to run.
_COMMANDS: Final = {
    "up": ("headgate.cli.admin.up", "up"),
    "worker": ("headgate.cli.durable.workflow", "worker"),
    "watchdog": ("headgate.cli.admin.watchdog", "watchdog"),
    "workers": ("headgate.cli.durable.workflow", "workers_ls"),
    "doctor": ("headgate.cli.admin.doctor", "doctor"),
    "init": ("headgate.cli.admin.init", "init"),
    "validate": ("headgate.cli.pipelines.files", "validate"),
    "plan": ("headgate.cli.pipelines.plan", "plan"),
    "diff": ("headgate.cli.pipelines.plan", "diff"),
    "why": ("headgate.cli.pipelines.explain", "why"),
}
_GROUPS: Final = {
    **dict.fromkeys(("workflow", "execution", "event", "schedule"), "durable"),
    "asl": "asl",
    **dict.fromkeys(("pipeline", "run", "period", "sensor", "trait", "marker"), "pipelines"),
    **dict.fromkeys(("backfill", "expect", "calendar", "alert"), "pipelines"),
    **dict.fromkeys(("fanout", "chunk"), "fanout"),
    **dict.fromkeys(("dataset", "signal", "incident", "evidence", "lineage", "gate", "audit", "api-key"), "health"),
    **dict.fromkeys(("key", "table"), "admin"),
    "region": "health",
}
"""The folder of each group of commands, in the order in which the help lists them."""

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
_LOADED: Final[set[str]] = set()


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
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the code an error comes from.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    session_of(context).debug = debug


def load(words: Sequence[str] = ()) -> typer.Typer:
    """Return the program with the command that the words of a command line name, or with all if they name none."""
    first = next((word for word in words if not word.startswith("-")), None)
    names = [*_COMMANDS, *_GROUPS]
    is_version = first == version.__name__ or (first is None and "--version" in words)
    wanted = [] if is_version else [first] if first in names else names
    for name in wanted:
        if name in _LOADED:
            continue
        _LOADED.add(name)
        add_command(app, name)
    return app


def add_command(program: typer.Typer, name: str) -> None:
    """Add a command or a group of commands to a program, importing its module."""
    if name in _COMMANDS:
        module, function = _COMMANDS[name]
        program.command(name)(getattr(importlib.import_module(module), function))
    else:
        module = f"headgate.cli.{_GROUPS[name]}.{name.replace('-', '_')}"
        program.add_typer(importlib.import_module(module).app, name=name)


def main() -> None:
    """Run the program. The exit code is 0, or that of the family the error belongs to."""
    process.relax_gc()
    # The one place that reads the environment; everything else is given what it needs.
    session = Session(dict(os.environ))  # noqa: TID251
    try:
        load(sys.argv[1:])(obj=session)
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
