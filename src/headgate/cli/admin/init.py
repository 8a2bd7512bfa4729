"""`headgate init`: a new project, ready to be served."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.session import Json, echo_json


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where. [default: here]")] = Path(),
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is called. [default: as the folder is]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a new project: settings, a pipeline, an archetype and the app with its job. Nothing there is touched."""
    from headgate.pipelines.authoring.scaffold import project_name, write_project

    called = project_name(folder) if name is None else name
    files = write_project(folder, called)
    if as_json:
        echo_json({"name": called, "folder": str(folder), "files": [str(path) for path in files]})
        return
    for path in files:
        typer.echo(f"wrote {path}")
    here = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"next: {here}headgate up --app app:app --pipelines pipelines")
