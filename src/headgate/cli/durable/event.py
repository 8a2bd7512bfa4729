"""`headgate event`: emit events, follow them, see what failed, deliver it again or throw it away."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli import times as moments
from headgate.cli.api_client import Api, asks, at, read_payload
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import Since, Until

app = typer.Typer(help="Events, subscriptions and dead letters.", no_args_is_help=True, rich_markup_mode=None)

Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="A type, or a pattern such as 'order.*'.")]
Subscription = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]
EventIds = Annotated[list[str] | None, typer.Argument(metavar="[EVENT]...", help="These alone.")]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="DURATION", help="Those that failed for good longer ago.")
]
NewerThan = Annotated[
    str | None, typer.Option("--newer-than", metavar="DURATION", help="Those that failed for good since.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count them.")]
_COME_BACK_SECONDS = 1.0
_PAGE = 1000


class Kind(StrEnum):
    """What can be given up."""

    DELIVERY = "delivery"
    EXECUTION = "execution"


@app.command("emit")
@asks
def emit(
    api: Api,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Such as order.created.")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT")] = None,
    source: Annotated[str | None, typer.Option(metavar="URI")] = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="The same again is the same event.")] = None,
    as_json: Json = False,
) -> None:
    """Put an event on the bus, and print the id it is kept under."""
    body = {
        "type": type,
        "data": read_payload(data, "--data", is_event=True),
        "subject": subject,
        "source": source,
        "id": id,
    }
    answer = api.post("/events", body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(answer["ids"][0])


@app.command("ls")
@asks
def ls(
    api: Api,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Those that were accepted after this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 50,
    as_json: Json = False,
) -> None:
    """List events: the latest, or those after one."""
    found = api.get("/events", type=type, after=after, limit=limit)["events"]
    if as_json:
        echo_json(found)
        return
    rows = [(each["id"], short(each["accepted_at"]), each["type"], _data(each)) for each in found]
    show_table(("ID", "ACCEPTED", "TYPE", "DATA"), rows, nothing="no events")


@app.command("tail")
@asks
def tail(
    api: Api,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Begin after this one, and not now.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    as_json: Json = False,
) -> None:
    """Follow events as they come, until it is interrupted."""
    from headgate.clock import SystemClock

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
@asks
def subscriptions(api: Api, as_json: Json = False) -> None:
    """List who wants which events."""
    found = api.get("/subscriptions")["subscriptions"]
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


@app.command("retire")
@asks
def retire(api: Api, subscription: Subscription, as_json: Json = False) -> None:
    """Deliver no more events to a subscription, until an app that declares it starts again."""
    answer = api.post(at("subscriptions", subscription, "retire"))
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{subscription}: it is retired")


@app.command("dead")
@asks
def dead(
    api: Api,
    subscription: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    kind: Annotated[Kind | None, typer.Option("--kind", help="Only these; both without it.")] = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    as_json: Json = False,
) -> None:
    """List what was given up: deliveries that failed for good, and executions that are stuck."""
    asked = {"subscription": subscription, "type": type, "older_than": older_than, "newer_than": newer_than}
    asked["kind"] = None if kind is None else kind.value
    stuck: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    cursor = None
    while (left := limit - len(found) - len(stuck)) > 0:
        page = api.get("/dead-letters", **asked, limit=min(_PAGE, left), cursor=cursor)
        stuck += page["executions"]
        found += page["dead_letters"]
        cursor = page["cursor"]
        if cursor is None:
            break
    if as_json:
        executions = [{"kind": Kind.EXECUTION.value, **each} for each in stuck]
        echo_json([*executions, *({"kind": Kind.DELIVERY.value, **each} for each in found)])
        return
    if stuck:
        _show_stuck(stuck)
    if stuck and not found:
        return
    rows = [
        (
            each["event_id"],
            each["subscription"],
            each["event"]["type"],
            each["attempts"],
            short(each["dead_at"]),
            _error(each),
        )
        for each in found
    ]
    show_table(("EVENT", "SUBSCRIPTION", "TYPE", "ATTEMPTS", "DEAD SINCE", "ERROR"), rows, nothing="no dead letters")
    if cursor is not None:
        typer.echo(f"and more than these {limit}; see --limit")


def _show_stuck(stuck: list[dict[str, Any]]) -> None:
    rows = [(each["id"], each["workflow"], each["failures"], short(each["since"]), _error(each)) for each in stuck]
    show_table(("STUCK EXECUTION", "WORKFLOW", "FAILURES", "SINCE", "ERROR"), rows, nothing="")
    typer.echo(f"mend the code, then let each go on: {stuck[0]['redrive']}\n")


@app.command("dead-letter")
@asks
def dead_letter(
    api: Api,
    subscription: Subscription,
    event_id: Annotated[str, typer.Argument(metavar="EVENT")],
    as_json: Json = False,
) -> None:
    """Show a delivery that failed for good: the event, and the error of the last attempt."""
    found = api.get(at("dead-letters", subscription, event_id))
    if as_json:
        echo_json(found)
        return
    trace = found["error"].get("trace", "")
    show_facts({**found, "error": _error(found), "event": compact(found["event"])})
    if trace:
        typer.echo(f"\n{trace.rstrip()}")


@app.command("redeliver")
@asks
def redeliver(
    api: Api,
    subscription: Subscription,
    event_ids: EventIds = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Deliver dead letters of a subscription again: those that are named, those that match, or all."""
    asked = {"event_ids": event_ids or [], "type": type, "older_than": older_than, "newer_than": newer_than}
    count = _on_letters(api, "redeliver", {"subscription": subscription, **asked, "dry_run": dry_run})
    _say(subscription, count, "delivered again", dry_run=dry_run, as_json=as_json)


@app.command("purge")
@asks
def purge(
    api: Api,
    subscription: Subscription,
    event_ids: EventIds = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    all: Annotated[bool, typer.Option("--all", help="All of the subscription's.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Throw dead letters of a subscription away: those that are named, or those that match."""
    asked = {"event_ids": event_ids or [], "type": type, "older_than": older_than, "newer_than": newer_than}
    body = {"subscription": subscription, **asked, "all": all, "dry_run": dry_run}
    _say(subscription, _on_letters(api, "purge", body), "thrown away", dry_run=dry_run, as_json=as_json)


def _on_letters(api: Api, action: str, body: dict[str, Any]) -> int:
    """Do something to dead letters page by page, and return to how many."""
    count: int = 0
    cursor = None
    while True:
        answer = api.post(f"/dead-letters/{action}", {**body, "cursor": cursor})
        count += answer["count"]
        if not answer["more"]:
            return count
        cursor = answer["cursor"]


def _say(subscription: str, count: int, done: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        echo_json({"count": count, "dry_run": dry_run})
    else:
        typer.echo(f"{subscription}: {count} {'would be ' if dry_run else ''}{done}")


@app.command("replay")
@asks
def replay(
    api: Api,
    subscription: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    since: Since,
    until: Until,
    type: Annotated[list[str] | None, typer.Option(metavar="TYPE", help="Only these.")] = None,
    id: Annotated[str | None, typer.Option(metavar="ID", help="The same again goes on where it was left.")] = None,
    as_json: Json = False,
) -> None:
    """Deliver events of the past to a subscription again."""
    times = {"since": moments.asked(since, "--since"), "until": moments.asked(until, "--until")}
    body = {**times, "types": type or [], "id": id}
    answer = api.post(at("subscriptions", subscription, "replay"), body)
    if as_json:
        echo_json(answer)
    else:
        typer.echo(f"{subscription}: {answer['count']} delivered again")


@app.command("replays")
@asks
def replays(api: Api, subscription: Subscription, as_json: Json = False) -> None:
    """List replays of past events to a subscription."""
    found = api.get(at("subscriptions", subscription, "replays"))["replays"]
    if as_json:
        echo_json(found)
        return
    rows = [
        (each["id"], each["status"], each["count"], short(each["since"]), short(each["until"]), each.get("types"))
        for each in found
    ]
    show_table(("REPLAY", "", "DELIVERIES", "SINCE", "UNTIL", "TYPES"), rows, nothing="no replays")


@app.command("stop-replay")
@asks
def stop_replay(
    api: Api,
    subscription: Subscription,
    id: Annotated[str, typer.Argument(metavar="ID", help="The replay.")],
    as_json: Json = False,
) -> None:
    """Stop a replay, and drop its deliveries that still wait; what a worker has taken goes on."""
    dropped = 0
    cursor = None
    while True:
        answer = api.post(at("subscriptions", subscription, "replays", id, "stop"), {"cursor": cursor})
        dropped += answer["dropped"]
        cursor = answer.get("cursor")
        if cursor is None:
            break
    if as_json:
        echo_json({**answer["replay"], "dropped": dropped})
    else:
        typer.echo(f"{id}: stopped after {answer['replay']['count']} deliveries, of which {dropped} were dropped")


def _error(letter: dict[str, Any]) -> str:
    return f"{letter['error']['type']}: {letter['error']['message']}"


def _data(each: dict[str, Any]) -> str:
    event = each["event"]
    return compact(event["data"]) if "data" in event else ("(bytes)" if "data_base64" in event else "")
