"""`headgate event`: emit events, follow them, see what failed and deliver it again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headgate.cli.api import Server, api_of, at, read_json
from headgate.cli.output import compact, short, show_table
from headgate.cli.session import Config, Home, Json, echo_json

app = typer.Typer(help="Events, subscriptions and dead letters.", no_args_is_help=True, rich_markup_mode=None)

Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="A type, or a pattern such as 'order.*'.")]
_COME_BACK_SECONDS = 1.0


@app.command("emit")
def emit(  # noqa: PLR0913 - each is an option
    context: typer.Context,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as order.created.")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    source: Annotated[str | None, typer.Option(metavar="URI")] = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="The same again is the same event.")] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put an event on the bus, and print the id it is kept under."""
    body = {"type": type, "data": read_json(data, "--data"), "subject": subject, "source": source, "id": id}
    answer = api_of(context, server, home, config).post("/events", body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(answer["ids"][0])


@app.command("ls")
def ls(
    context: typer.Context,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Those that were accepted after this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List events: the latest, or those after one."""
    found = api_of(context, server, home, config).get("/events", type=type, after=after, limit=limit)["events"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["id"], short(each["accepted_at"]), each["type"], _data(each)) for each in found]
    show_table(("ID", "ACCEPTED", "TYPE", "DATA"), rows, nothing="no events")


@app.command("tail")
def tail(
    context: typer.Context,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin after this one, and not now.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Follow events as they come, until it is interrupted."""
    from headgate.clock import SystemClock

    api = api_of(context, server, home, config)
    count = 0
    while True:
        for _, event_id, each in api.follow("/events/tail", after=after, type=type):
            after = event_id
            count += 1
            if as_json:
                echo_json(each)
            else:
                typer.echo(f"{each['id']}  {short(each['accepted_at'])}  {each['type']}  {_data(each)}".rstrip())
            if count == limit:
                return
        SystemClock().sleep(_COME_BACK_SECONDS)


@app.command("subscriptions")
def subscriptions(
    context: typer.Context, server: Server = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """List who wants which events."""
    found = api_of(context, server, home, config).get("/subscriptions")["subscriptions"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["name"],
            each["app"],
            each["types"],
            each.get("forward_to", ""),
            "retired" if each.get("retired_at") else "in force",
        )
        for each in found
    ]
    show_table(("SUBSCRIPTION", "APP", "TYPES", "FORWARDED TO", ""), rows, nothing="no subscriptions")


@app.command("dead")
def dead(
    context: typer.Context,
    subscription: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 100,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List deliveries that failed for good."""
    page = api_of(context, server, home, config).get("/dead-letters", subscription=subscription, limit=limit)
    found = page["dead_letters"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            each["event_id"],
            each["subscription"],
            each["attempts"],
            short(each["dead_at"]),
            f"{each['error']['type']}: {each['error']['message']}",
        )
        for each in found
    ]
    show_table(("EVENT", "SUBSCRIPTION", "ATTEMPTS", "DEAD SINCE", "ERROR"), rows, nothing="no dead letters")
    if page["cursor"] is not None:
        typer.echo(f"and more than these {limit}; see --limit")


@app.command("redeliver")
def redeliver(
    context: typer.Context,
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    event_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[EVENT]...", help="These alone; otherwise all of the subscription's.")
    ] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Deliver dead letters again."""
    api = api_of(context, server, home, config)
    count = 0
    while True:
        answer = api.post("/dead-letters/redeliver", {"subscription": subscription, "event_ids": event_ids or []})
        count += answer["count"]
        if not answer["more"] or not answer["count"]:
            break
    if as_json:
        echo_json({"count": count})
    else:
        typer.echo(f"{subscription}: {count} delivered again")


@app.command("replay")
def replay(  # noqa: PLR0913
    context: typer.Context,
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    since: Annotated[str, typer.Option(metavar="TIME", help="Such as 2026-01-31T00:00:00Z.")],
    until: Annotated[str, typer.Option(metavar="TIME", help="Not included.")],
    type: Annotated[list[str] | None, typer.Option(metavar="TYPE", help="Only these.")] = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="The same again goes on where it was left.")] = None,
    server: Server = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Deliver events of the past to a subscription again."""
    body = {"since": since, "until": until, "types": type or [], "id": id}
    answer = api_of(context, server, home, config).post(at("subscriptions", subscription, "replay"), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{subscription}: {answer['count']} delivered again")


def _data(each: dict[str, Any]) -> str:
    event = each["event"]
    return compact(event["data"]) if "data" in event else ("(bytes)" if "data_base64" in event else "")
