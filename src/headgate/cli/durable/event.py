"""`headgate event`: emits and lists events; manages subscriptions, dead letters and replays."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from headgate.cli.api_client import Api, at, read_payload
from headgate.cli.commands import Answer, add_action, command_group, server_command
from headgate.cli.options import Since, Until
from headgate.cli.output import compact, short, show_facts, show_table
from headgate.cli.session import Json, echo_json
from headgate.cli.times import past_time

app = command_group("Manage events, subscriptions and dead letters.")

Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Event type, or a pattern such as 'order.*'.")]
Subscription = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Subscription name.")]
EventIds = Annotated[
    list[str] | None, typer.Argument(metavar="[EVENT]...", help="Event ids. [default: all that match]")
]
OlderThan = Annotated[
    str | None, typer.Option("--older-than", metavar="DURATION", help="Filter by the time of the final failure.")
]
NewerThan = Annotated[
    str | None, typer.Option("--newer-than", metavar="DURATION", help="Filter by the time of the final failure.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the matches.")]
_RECONNECT_SECONDS = 1.0
_PAGE = 1000


class DeadLetterKind(StrEnum):
    """Kind of a dead letter."""

    DELIVERY = "delivery"
    EXECUTION = "execution"


@server_command(app, "emit")
def emit(
    api: Api,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="Event type, such as order.created.")],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="JSON, @file, or - for standard input.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="CloudEvents subject.")] = None,
    source: Annotated[str | None, typer.Option(metavar="URI", help="CloudEvents source.")] = None,
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="Event id; an event with the same id is emitted once.")
    ] = None,
) -> Answer:
    """Emit an event and print its id."""
    body = {
        "type": type,
        "data": read_payload(data, "--data", is_event=True),
        "subject": subject,
        "source": source,
        "id": id,
    }
    answer = api.post("/events", body)
    yield answer
    typer.echo(answer["ids"][0])


@server_command(app, "ls")
def ls(
    api: Api,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only events accepted after this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of results.")] = 50,
) -> Answer:
    """List the newest events, or those after an event."""
    found = api.get("/events", type=type, after=after, limit=limit)["events"]
    yield found
    rows = [(each["id"], short(each["accepted_at"]), each["type"], _data(each)) for each in found]
    show_table(("ID", "ACCEPTED", "TYPE", "DATA"), rows, nothing="no events")


@server_command(app, "tail")
def tail(
    api: Api,
    type: Type = None,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Start after this event instead of now.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many events.")] = None,
    as_json: Json = False,
) -> None:
    """Follow new events until interrupted."""
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
        SystemClock().sleep(_RECONNECT_SECONDS)


@server_command(app, "subscriptions")
def subscriptions(api: Api) -> Answer:
    """List subscriptions."""
    found = api.get("/subscriptions")["subscriptions"]
    yield found
    rows = [
        (
            each["name"],
            each["app"],
            each["types"],
            each.get("forward_to", ""),
            "retired" if each.get("retired_at") else "active",
        )
        for each in found
    ]
    show_table(("SUBSCRIPTION", "APP", "TYPES", "FORWARDED TO", "STATUS"), rows, nothing="no subscriptions")


add_action(
    app,
    "retire",
    "/subscriptions/{subscription}/retire",
    "Retire a subscription: it gets no more events until an app that declares it starts again.",
    "{subscription}: retired",
    subscription=Subscription,
)


@server_command(app, "dead")
def dead(
    api: Api,
    subscription: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by subscription.")] = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    kind: Annotated[DeadLetterKind | None, typer.Option("--kind", help="Filter by kind. [default: both]")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of results.")] = 100,
) -> Answer:
    """List dead letters: deliveries without retries left, and stuck executions."""
    query = {"subscription": subscription, "type": type, "older_than": older_than, "newer_than": newer_than}
    query["kind"] = None if kind is None else kind.value
    stuck: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    cursor = None
    while (left := limit - len(found) - len(stuck)) > 0:
        page = api.get("/dead-letters", **query, limit=min(_PAGE, left), cursor=cursor)
        stuck += page["executions"]
        found += page["dead_letters"]
        cursor = page["cursor"]
        if cursor is None:
            break
    yield [
        *({"kind": DeadLetterKind.EXECUTION.value, **each} for each in stuck),
        *({"kind": DeadLetterKind.DELIVERY.value, **each} for each in found),
    ]
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
        typer.echo(f"more than {limit} results; raise --limit")


def _show_stuck(stuck: list[dict[str, Any]]) -> None:
    rows = [(each["id"], each["workflow"], each["failures"], short(each["since"]), _error(each)) for each in stuck]
    show_table(("STUCK EXECUTION", "WORKFLOW", "FAILURES", "SINCE", "ERROR"), rows, nothing="")
    typer.echo(f"fix the code, then redrive each: {stuck[0]['redrive']}\n")


@server_command(app, "dead-letter")
def dead_letter(
    api: Api,
    subscription: Subscription,
    event_id: Annotated[str, typer.Argument(metavar="EVENT", help="Event id.")],
) -> Answer:
    """Show a dead letter: the event and the error of the last attempt."""
    found = api.get(at("dead-letters", subscription, event_id))
    yield found
    trace = found["error"].get("trace", "")
    show_facts({**found, "error": _error(found), "event": compact(found["event"])})
    if trace:
        typer.echo(f"\n{trace.rstrip()}")


@server_command(app, "redeliver")
def redeliver(
    api: Api,
    subscription: Subscription,
    event_ids: EventIds = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    dry_run: DryRun = False,
) -> Answer:
    """Deliver dead letters of a subscription again: by id, by filter, or all."""
    selection = {"event_ids": event_ids or [], "type": type, "older_than": older_than, "newer_than": newer_than}
    body = {"subscription": subscription, **selection, "dry_run": dry_run}
    count = _apply_to_dead_letters(api, "redeliver", body)
    yield {"count": count, "dry_run": dry_run}
    typer.echo(f"{subscription}: {count} {'would be ' if dry_run else ''}redelivered")


@server_command(app, "purge")
def purge(
    api: Api,
    subscription: Subscription,
    event_ids: EventIds = None,
    type: Type = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    all: Annotated[bool, typer.Option("--all", help="All dead letters of the subscription.")] = False,
    dry_run: DryRun = False,
) -> Answer:
    """Delete dead letters of a subscription: by id or by filter."""
    selection = {"event_ids": event_ids or [], "type": type, "older_than": older_than, "newer_than": newer_than}
    body = {"subscription": subscription, **selection, "all": all, "dry_run": dry_run}
    count = _apply_to_dead_letters(api, "purge", body)
    yield {"count": count, "dry_run": dry_run}
    typer.echo(f"{subscription}: {count} {'would be ' if dry_run else ''}deleted")


def _apply_to_dead_letters(api: Api, action: str, body: dict[str, Any]) -> int:
    """Apply an action to dead letters page by page, and return their number."""
    count: int = 0
    cursor = None
    while True:
        answer = api.post(f"/dead-letters/{action}", {**body, "cursor": cursor})
        count += answer["count"]
        if not answer["more"]:
            return count
        cursor = answer["cursor"]


@server_command(app, "replay")
def replay(
    api: Api,
    subscription: Subscription,
    since: Since,
    until: Until,
    type: Annotated[list[str] | None, typer.Option(metavar="TYPE", help="Filter by event type. Repeatable.")] = None,
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="Replay id; the same id resumes an interrupted replay.")
    ] = None,
) -> Answer:
    """Deliver past events to a subscription again."""
    times = {"since": past_time(since, "--since"), "until": past_time(until, "--until")}
    body = {**times, "types": type or [], "id": id}
    answer = api.post(at("subscriptions", subscription, "replay"), body)
    yield answer
    typer.echo(f"{subscription}: {answer['count']} redelivered")


@server_command(app, "replays")
def replays(api: Api, subscription: Subscription) -> Answer:
    """List the replays of a subscription."""
    found = api.get(at("subscriptions", subscription, "replays"))["replays"]
    yield found
    rows = [
        (each["id"], each["status"], each["count"], short(each["since"]), short(each["until"]), each.get("types"))
        for each in found
    ]
    show_table(("REPLAY", "STATUS", "DELIVERIES", "SINCE", "UNTIL", "TYPES"), rows, nothing="no replays")


@server_command(app, "stop-replay")
def stop_replay(
    api: Api,
    subscription: Subscription,
    id: Annotated[str, typer.Argument(metavar="ID", help="Replay id.")],
) -> Answer:
    """Stop a replay and drop its pending deliveries. Deliveries in progress continue."""
    dropped = 0
    cursor = None
    while True:
        answer = api.post(at("subscriptions", subscription, "replays", id, "stop"), {"cursor": cursor})
        dropped += answer["dropped"]
        cursor = answer.get("cursor")
        if cursor is None:
            break
    yield {**answer["replay"], "dropped": dropped}
    typer.echo(f"{id}: stopped after {answer['replay']['count']} deliveries, {dropped} dropped")


def _error(letter: dict[str, Any]) -> str:
    return f"{letter['error']['type']}: {letter['error']['message']}"


def _data(each: dict[str, Any]) -> str:
    event = each["event"]
    return compact(event["data"]) if "data" in event else ("(bytes)" if "data_base64" in event else "")
