"""Definitions that commands are given as files: read with their variables, checked, and named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate.cli.input_files import read_content
from headgate.cli.session import Json, echo_json
from headgate.errors import DefinitionError, UserError

if TYPE_CHECKING:
    from headgate.serve.rest.asl.checks import Checked

INVALID_EXIT_CODE: Final = 2
File = Annotated[str, typer.Argument(metavar="FILE", help="A definition in JSON; - is standard input.")]
FileOrName = Annotated[
    str, typer.Argument(metavar="FILE|NAME", help="A definition in JSON, or a machine that the server keeps.")
]
Variables = Annotated[
    list[str] | None,
    typer.Option("--var", metavar="NAME=VALUE", help="For ${NAME} in the definition. Repeatable."),
]


def is_file(given: str) -> bool:
    """Whether an argument that is a file or the name of a machine is a file: no name has a dot or a slash."""
    return given == "-" or "." in given or "/" in given or Path(given).is_file()


def machine_name(file: str) -> str:
    """Return the name of the machine that a file defines: that of the file, without its ending."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", Path(file).name.partition(".")[0]).lstrip("-_")
    return plain[:80] or "machine"


def read_text(file: str) -> str:
    """Return the text of a definition. Raises `UserError`, and `DefinitionError` for what is no text."""
    try:
        return read_content(file, "definition").decode()
    except UnicodeDecodeError as exc:
        raise DefinitionError(f"definition {file}: it is not text in UTF-8; save it as UTF-8") from exc


def read_variables(given: list[str] | None) -> dict[str, str]:
    """Return variables that were given as NAME=VALUE. Raises `UserError`."""
    variables = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--var {text!r}: write NAME=VALUE")
        variables[name] = value
    return variables


def read_checked(file: str, variables: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return a definition as text and as JSON. What is wrong with it is shown, and ends the command with 2."""
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
        typer.Option("--strict-budget", help="Refuse loops that outrun the 25,000 events of a history on AWS."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say everything that is wrong with a definition: where, and what is allowed. The exit code is 2 if anything is.

    No server is asked. Loops that only Step Functions' history would not hold are warnings.
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
        typer.echo(f"error: {file}: {_counted(len(found.problems), 'problem')}\ncode: bad_definition", err=True)
        return
    if found.costs is None:
        return
    told = f"{file}: valid; {_counted(found.states, 'state')}, {found.costs.events_per_pass} events in one pass"
    loops = len(found.costs.loops)
    typer.echo(told + (f", {_counted(loops, 'loop')}" if loops else ""))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _plain(found: Checked) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain
