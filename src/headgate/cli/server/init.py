"""`headgate init`: creates a project from a template."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headgate.cli.session import Json, echo_json


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Project folder. [default: current folder]")
    ] = Path(),
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Project name. [default: name of the folder]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a project: settings, a pipeline, an archetype and an app with its job. Existing files are kept."""
    from headgate.pipelines.authoring.scaffold import project_name, write_project

    project = project_name(folder) if name is None else name
    files = write_project(folder, project)
    if as_json:
        echo_json({"name": project, "folder": str(folder), "files": [str(path) for path in files]})
        return
    for path in files:
        typer.echo(f"wrote {path}")
    change_folder = "" if folder == Path() else f"cd {folder} && "
    typer.echo(f"next: {change_folder}headgate up --app app:app --pipelines pipelines")
