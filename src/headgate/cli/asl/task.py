"""`headgate asl task`: completes, fails or heartbeats a Task by its task token."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.cli.api_client import Api, read_json
from headgate.cli.commands import Answer, command_group, server_command

app = command_group("Report the outcome of Tasks that wait for their task token.")

Token = Annotated[str, typer.Argument(metavar="TOKEN", help="Task token, from $$.Task.Token.")]


@server_command(app, "succeed")
def succeed(
    api: Api,
    token: Token,
    output: Annotated[
        str, typer.Option("--output", metavar="JSON", help="Result: JSON, @file, or - for standard input.")
    ] = "{}",
) -> Answer:
    """Complete a Task with its result."""
    return _report(api, "success", taskToken=token, output=read_json(output, "--output"))


@server_command(app, "fail")
def fail(
    api: Api,
    token: Token,
    error: Annotated[str, typer.Option(metavar="NAME", help="Error name, which Retry and Catch can match.")] = "",
    cause: Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the history.")] = "",
) -> Answer:
    """Fail a Task with an error."""
    return _report(api, "failure", taskToken=token, error=error, cause=cause)


@server_command(app, "heartbeat")
def heartbeat(api: Api, token: Token) -> Answer:
    """Send a heartbeat for a Task."""
    return _report(api, "heartbeat", taskToken=token)


def _report(api: Api, report: str, **body: object) -> Answer:
    api.post(f"/tasks/{report}", body)
    yield {"told": report}
    typer.echo(f"{report} reported")
