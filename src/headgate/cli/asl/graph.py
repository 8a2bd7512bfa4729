"""`headgate asl graph`: a machine as a picture, as Mermaid or as text, coloured by how an execution went."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headgate.cli.api_client import Api, asks, at
from headgate.cli.asl.files import FileOrName, Variables, is_file, read_text, read_variables
from headgate.cli.asl.follow import read_events
from headgate.errors import DefinitionError, UserError


class Format(StrEnum):
    """What a drawing is made of."""

    SVG = "svg"
    MERMAID = "mermaid"
    TEXT = "text"


_ENDINGS: Final = {".svg": Format.SVG, ".mmd": Format.MERMAID, ".mermaid": Format.MERMAID, ".md": Format.MERMAID}


@asks
def graph(
    api: Api,
    machine: FileOrName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it. [default: standard output]"),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(help="[default: as the ending of the file says, or text]", show_default=False),
    ] = None,
    execution: Annotated[
        str | None, typer.Option(metavar="ID", help="Show how far this execution of it has come.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Of a machine on the server. [default: newest]")
    ] = None,
    var: Variables = None,
) -> None:
    """Draw a machine. A file is drawn here; the server is asked for machines by name, and for executions."""
    from headgate.asl.graph.render import Form, draw
    from headgate.serve.rest.asl.state_visits import statuses

    how_far = None
    if execution is not None:
        version = version or api.get(at("machine-executions", execution)).get("version")
        how_far = statuses(read_events(api, execution))
    definition = _definition(api, machine, version, read_variables(var))
    form = format or (Format.TEXT if output is None else _ENDINGS.get(output.suffix.lower(), Format.TEXT))
    drawn = draw(definition, Form(form.value), how_far)
    if output is None:
        typer.echo(drawn, nl=not drawn.endswith("\n"))
        return
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as exc:
        raise UserError(f"--output {output}: it cannot be written: {exc.strerror}") from exc
    typer.echo(f"{output}: {form.value}")


def _definition(api: Api, machine: str, version: int | None, variables: dict[str, str]) -> dict[str, Any]:
    from headgate.serve.rest.asl.checks import read_definition

    if not is_file(machine):
        found: dict[str, Any] = api.get(at("machines", machine), version=version)["definition"]
        return found
    definition = read_definition(read_text(machine), variables)
    if not isinstance(definition, dict):
        raise DefinitionError(f"definition {machine}: it is not an object with StartAt and States; see 'asl validate'")
    return definition
