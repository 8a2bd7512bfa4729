"""Entry point of `headgate`: reads the environment, loads the requested command and maps errors to exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from headgate.cli.help import WIDTH_MAX, HelpGroup
from headgate.cli.session import Json, Session, echo_json, session_of
from headgate.errors import FatalError, HeadgateError
from headgate.exit_codes import ExitCode
from headgate.serve import process

# Imported on demand: importing every command takes longer than most commands take to run.
_COMMANDS: Final = {
    "up": ("headgate.cli.server.up", "up"),
    "demo": ("headgate.cli.server.demo", "demo"),
    "watchdog": ("headgate.cli.server.watchdog", "watchdog"),
    "reload": ("headgate.cli.server.reload", "reload"),
    "doctor": ("headgate.cli.server.doctor", "doctor"),
    "init": ("headgate.cli.server.init", "init"),
    "open": ("headgate.cli.navigation.open", "open_page"),
    "backup": ("headgate.cli.admin.backup", "backup"),
    "restore": ("headgate.cli.admin.restore", "restore"),
    "upgrade": ("headgate.cli.admin.upgrade", "upgrade"),
    "vacuum": ("headgate.cli.admin.vacuum", "vacuum"),
}
# Earlier spellings, which work and are not listed.
_HIDDEN: Final = {
    "workers": ("headgate.cli.durable.worker", "workers"),
    "validate": ("headgate.cli.pipelines.files", "validate"),
    "plan": ("headgate.cli.pipelines.plan", "plan"),
    "diff": ("headgate.cli.pipelines.plan", "diff"),
    "why": ("headgate.cli.pipelines.explain", "why"),
}
_GROUPS: Final = {
    **dict.fromkeys(("worker", "workflow", "execution", "deploy", "event", "schedule"), "durable"),
    "asl": "asl",
    **dict.fromkeys(("pipeline", "run", "period", "sensor", "trait", "marker", "probe"), "pipelines"),
    **dict.fromkeys(("backfill", "pool", "expect", "calendar", "alert"), "pipelines"),
    **dict.fromkeys(("fanout", "chunk"), "fanout"),
    **dict.fromkeys(
        ("dataset", "check", "signal", "incident", "evidence", "lineage", "job", "gate", "audit", "api-key"), "health"
    ),
    **dict.fromkeys(("key", "table", "settings", "session"), "admin"),
    "aws": "aws",
    "completion": "navigation",
    "region": "health",
}
"""Folder of each command group, in the order of the help."""

app = typer.Typer(
    name="headgate",
    cls=HelpGroup,
    help="Control plane for data pipelines.",
    no_args_is_help=True,
    add_completion=False,
    # Markup would swallow "[default: …]" in help texts.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH_MAX},
)
_LOADED: Final[set[str]] = set()
# click.ClickException; typer does not export it.
_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[2]


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version."""
    from headgate import __version__

    if as_json:
        echo_json({"name": "headgate", "version": __version__})
    else:
        typer.echo(f"headgate {__version__}")


def _print_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    session_of(context).debug = debug


def load(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the program with the command that the arguments select, or with all commands if they select none.

    Completion needs all of them too.
    """
    first = next((each for each in arguments if not each.startswith("-")), None)
    names = [*_COMMANDS, *_GROUPS, *_HIDDEN]
    is_version = first == version.__name__ or (first is None and "--version" in arguments)
    selected = [] if is_version else [first] if first in names and first != "completion" else names
    for name in selected:
        if name in _LOADED:
            continue
        _LOADED.add(name)
        add_command(app, name)
    return app


def add_command(program: typer.Typer, name: str) -> None:
    """Import the module of a command or command group and add it to a program."""
    if name in _COMMANDS or name in _HIDDEN:
        module, function = {**_COMMANDS, **_HIDDEN}[name]
        program.command(name, hidden=name in _HIDDEN)(getattr(importlib.import_module(module), function))
    else:
        module = f"headgate.cli.{_GROUPS[name]}.{name.replace('-', '_')}"
        program.add_typer(importlib.import_module(module).app, name=name)


def main() -> None:
    """Run the program. The exit code is 0, or that of the error. With `--json`, errors are JSON on standard error."""
    process.relax_gc()
    # The only place that reads the environment.
    session = Session(dict(os.environ), is_json="--json" in sys.argv)  # noqa: TID251
    try:
        # Not standalone: typer has exit codes of its own, and prints wrong usage as text also under --json.
        ended = load(sys.argv[1:])(obj=session, standalone_mode=False)
        sys.exit(ended if isinstance(ended, int) else ExitCode.OK)
    except _UsageError as error:
        if not session.is_json:
            error.show()
            sys.exit(ExitCode.INVALID)
        sys.exit(_report(session, error, error.format_message(), "usage", ExitCode.INVALID))
    except typer.Abort as error:
        sys.exit(_report(session, error, "aborted", "aborted", ExitCode.FAILED))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except HeadgateError as error:
        sys.exit(_report(session, error, error.message, error.code, error.exit_code))
    except Exception as error:  # noqa: BLE001 - top of the process
        message = f"internal error: {type(error).__name__}: {error}; run again with --debug and report the traceback"
        sys.exit(_report(session, error, message, FatalError.code, FatalError.exit_code))


def _report(session: Session, error: Exception, message: str, code: str, exit_code: int) -> int:
    if session.debug:
        traceback.print_exception(error)
    if session.is_json:
        echo_json({"error": {"code": code, "message": message, "exit_code": exit_code}}, to_stderr=True)
    else:
        typer.echo(f"error: {message}\ncode: {code}", err=True)
    return exit_code
