"""Definition files of state machines: reads them with their variables, and prints what validation found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli.input_files import read_content
from headgate.cli.output import counted
from headgate.errors import DefinitionError, UserError
from headgate.exit_codes import ExitCode

if TYPE_CHECKING:
    from headgate.serve.rest.asl.checks import Checked

File = Annotated[str, typer.Argument(metavar="FILE", help="Definition in JSON or YAML; - for standard input.")]
FileOrName = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="Definition in JSON or YAML, or the name of a stored machine.")
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
    from headgate.asl.documents.definition_text import read_definition
    from headgate.serve.rest.asl.checks import check_definition

    text = read_text(file)
    found = check_definition(text, variables)
    if not found.valid:
        show_checked(file, found)
        raise typer.Exit(ExitCode.INVALID)
    definition: dict[str, Any] = read_definition(text, variables)
    return text, definition


def show_checked(file: str, found: Checked) -> None:
    """Print the problems, warnings and notes of a definition, and its size if it is valid."""
    for problem in found.problems:
        typer.echo(f"{file}: {problem}", err=True)
    for warning in found.warnings:
        typer.echo(f"{file}: warning: {warning}", err=True)
    for note in found.notes:
        typer.echo(f"{file}: note: {note}", err=True)
    if not found.valid:
        typer.echo(f"error: {file}: {counted(len(found.problems), 'problem')}\ncode: bad_definition", err=True)
        return
    if found.costs is None:
        return
    summary = f"{file}: valid; {counted(found.states, 'state')}, {found.costs.events_per_pass} events per pass"
    loops = len(found.costs.loops)
    typer.echo(summary + (f", {counted(loops, 'loop')}" if loops else ""))
