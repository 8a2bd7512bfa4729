"""Definition files of state machines: reads them with their variables and validates them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.input_files import read_content
from headgate.cli.output import counted
from headgate.cli.session import Json, echo_json
from headgate.errors import DefinitionError, UserError

if TYPE_CHECKING:
    from headgate.serve.rest.asl.checks import Checked

INVALID_EXIT_CODE: Final = 2
File = Annotated[str, typer.Argument(metavar="FILE", help="Definition in JSON; - for standard input.")]
FileOrName = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="Definition in JSON, or the name of a stored machine.")
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="Value of ${NAME} in the definition. Repeatable."),
]


def is_file(argument: str) -> bool:
    """Whether an argument is a file rather than the name of a machine, which has no dot or slash."""
    return argument == "-" or "." in argument or "/" in argument or Path(argument).is_file()


def machine_name(file: str) -> str:
    """Return the machine name of a file: the file name without its suffix."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", Path(file).name.partition(".")[0]).lstrip("-_")
    return plain[:80] or "machine"


def read_text(file: str) -> str:
    """Return the text of a definition. Raises `UserError`, and `DefinitionError` if it is not UTF-8."""
    try:
        return read_content(file, "definition").decode()
    except UnicodeDecodeError as exc:
        raise DefinitionError(f"definition {file}: not UTF-8 text") from exc


def read_variables(texts: list[str] | None) -> dict[str, str]:
    """Parse variables written as NAME=VALUE. Raises `UserError`."""
    variables = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--var {text!r}: write NAME=VALUE")
        variables[name] = value
    return variables


def read_valid(file: str, variables: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return a valid definition as text and as JSON. Prints the problems of an invalid one and exits with 2."""
    from headgate.serve.rest.asl.checks import check_definition, read_definition

    text = read_text(file)
    found = check_definition(text, variables)
    if not found.valid:
        _show(file, found)
        raise typer.Exit(INVALID_EXIT_CODE)
    definition: dict[str, Any] = read_definition(text, variables)
    return text, definition


def validate(
    file: File,
    var: Variables = None,
    strict_budget: Annotated[
        bool,
        typer.Option(
            "--strict-budget", help="Reject loops that can exceed the 25,000 history events of Step Functions."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Validate a definition and list every problem with its location. The exit code is 2 for problems.

    No server is needed. Loops that can exceed the history limit of Step Functions are warnings.
    """
    from headgate.serve.rest.asl.checks import check_definition

    found = check_definition(read_text(file), read_variables(var), strict_budget=strict_budget)
    if as_json:
        echo_json({"file": file, **_plain(found)})
    else:
        _show(file, found)
    if not found.valid:
        raise typer.Exit(INVALID_EXIT_CODE)


def _show(file: str, found: Checked) -> None:
    for problem in found.problems:
        typer.echo(f"{file}: {problem}", err=True)
    for warning in found.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)
    if not found.valid:
        typer.echo(f"error: {file}: {counted(len(found.problems), 'problem')}\ncode: bad_definition", err=True)
        return
    if found.costs is None:
        return
    summary = f"{file}: valid; {counted(found.states, 'state')}, {found.costs.events_per_pass} events per pass"
    loops = len(found.costs.loops)
    typer.echo(summary + (f", {counted(loops, 'loop')}" if loops else ""))


def _plain(found: Checked) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain
