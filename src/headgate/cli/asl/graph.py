"""`headgate asl graph`: draws a state machine as SVG, Mermaid or text, optionally with an execution's progress."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, at
from headgate.cli.asl.files import FileOrName, Variables, is_file, read_text, read_variables
from headgate.cli.asl.follow import read_events
from headgate.cli.commands import calls_server
from headgate.errors import DefinitionError, UserError


class Format(StrEnum):
    """Output format of a drawing."""

    SVG = "svg"
    MERMAID = "mermaid"
    TEXT = "text"


_SUFFIXES: Final = {".svg": Format.SVG, ".mmd": Format.MERMAID, ".mermaid": Format.MERMAID, ".md": Format.MERMAID}


@calls_server
def graph(
    api: Api,
    machine: FileOrName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Output file. [default: standard output]"),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(help="Format. [default: by the suffix of the file, or text]", show_default=False),
    ] = None,
    execution: Annotated[str | None, typer.Option(metavar="ID", help="Mark the progress of this execution.")] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Version of a stored machine. [default: newest]")
    ] = None,
    var: Variables = None,
) -> None:
    """Draw a state machine. A server is needed only for stored machines and executions."""
    from headgate.asl.graph.render import Form, draw
    from headgate.serve.rest.asl.state_visits import statuses

    progress = None
    if execution is not None:
        version = version or api.get(at("machine-executions", execution)).get("version")
        progress = statuses(read_events(api, execution))
    definition = _definition(api, machine, version, read_variables(var))
    form = format or (Format.TEXT if output is None else _SUFFIXES.get(output.suffix.lower(), Format.TEXT))
    drawing = draw(definition, Form(form.value), progress)
    if output is None:
        typer.echo(drawing, nl=not drawing.endswith("\n"))
        return
    try:
        output.write_text(drawing, encoding="utf-8")
    except OSError as exc:
        raise UserError(f"--output {output}: cannot be written: {exc.strerror}") from exc
    typer.echo(f"{output}: {form.value}")


def _definition(api: Api, machine: str, version: int | None, variables: dict[str, str]) -> dict[str, Any]:
    from headgate.asl.documents.definition_text import read_definition

    if not is_file(machine):
        found: dict[str, Any] = api.get(at("machines", machine), version=version)["definition"]
        return found
    definition = read_definition(read_text(machine), variables)
    if not isinstance(definition, dict):
        raise DefinitionError(
            f"definition {machine}: not an object with StartAt and States; see 'headgate asl validate'"
        )
    return definition
