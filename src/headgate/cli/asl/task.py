"""`headgate asl task`: what whoever has the token of a Task can say of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, asks, read_json
from headgate.cli.session import Json, echo_json

app = typer.Typer(help="Tasks that wait for their token.", no_args_is_help=True, rich_markup_mode=None)

Token = Annotated[str, typer.Argument(metavar="TOKEN", help="What $$.Task.Token gave.")]


@app.command("succeed")
@asks
def succeed(
    api: Api,
    token: Token,
    output: Annotated[
        str, typer.Option("--output", metavar="JSON", help="Its result: JSON, @file, or - for standard input.")
    ] = "{}",
    as_json: Json = False,
) -> None:
    """End a Task with its result."""
    _say(api, "success", {"taskToken": token, "output": read_json(output, "--output")}, as_json=as_json)


@app.command("fail")
@asks
def fail(
    api: Api,
    token: Token,
    error: Annotated[str, typer.Option(metavar="NAME", help="What its Retry and Catch may name.")] = "",
    cause: Annotated[str, typer.Option(metavar="TEXT", help="For whoever reads the history.")] = "",
    as_json: Json = False,
) -> None:
    """End a Task with an error."""
    _say(api, "failure", {"taskToken": token, "error": error, "cause": cause}, as_json=as_json)


@app.command("heartbeat")
@asks
def heartbeat(api: Api, token: Token, as_json: Json = False) -> None:
    """Say that someone works on a Task."""
    _say(api, "heartbeat", {"taskToken": token}, as_json=as_json)


def _say(api: Api, what: str, body: dict[str, Any], *, as_json: bool) -> None:
    api.post(f"/tasks/{what}", body)
    if as_json:
        echo_json({"told": what})
    else:
        typer.echo(f"the Task is told: {what}")
