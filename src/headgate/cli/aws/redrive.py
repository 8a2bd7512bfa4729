"""`headgate aws redrive`: hands what functions gave up on to them again."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from headgate.cli.output import counted
from headgate.cli.session import Config, Home, Json, echo_json, session_of
from headgate.exit_codes import ExitCode


def redrive(
    context: typer.Context,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The Terraform variable name, which begins all names.")
    ] = "headgate",
    region: Annotated[
        str | None, typer.Option(metavar="NAME", help="Region of the deployment. [default: store.aws_region]")
    ] = None,
    discard_gone: Annotated[
        bool, typer.Option("--discard-gone", help="Also drop batches whose records the stream no longer has.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Process failed stream batches, failed events and records of lost invocations again.

    Batches are read again from the stream, which keeps them for a day. What fails again stays in its queue for another
    attempt. The exit code is 1 if something failed again.
    """
    from headgate.deployment.redrive import Redrive
    from headgate.triggers.aws.clients import AwsClients

    store = session_of(context).settings(config, home=home, **{"store.aws_region": region}).store
    with closing(AwsClients(region=store.aws_region, endpoint_url=store.aws_endpoint_url)) as clients:
        driver = Redrive(clients, name)
        outcomes = list(driver.batches(discards_gone=discard_gone))
        events = driver.events()
        invocations = driver.invocations()
    if as_json:
        echo_json({"batches": outcomes, "events": events, "invocations": invocations})
    else:
        for each in outcomes:
            what = f"{each.batch.function}: {counted(each.records, 'record')} processed"
            typer.echo(f"{what}; {each.error}" if each.error else what)
        left = sum(1 for each in outcomes if each.error)
        typer.echo(f"batches: {len(outcomes) - left} processed, {left} failed again")
        if events is not None:
            typer.echo(f"events: {events.published} published, {events.refused} refused again, {events.missing} gone")
        if invocations is not None:
            typer.echo(f"lost invocations: {invocations.counted} counted, {invocations.refused} refused again")
    refused = [each.refused for each in (events, invocations) if each is not None]
    if any(each.error for each in outcomes) or any(refused):
        raise typer.Exit(ExitCode.FAILED)
