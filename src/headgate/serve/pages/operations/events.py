"""Event pages: the feed, subscriptions, and dead letters that can be delivered again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.serve.pages.actions import Action, Tone, allowed
from headgate.serve.pages.api_calls import ApiCaller, segment, twin
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import ALL_WORK, changes_of
from headgate.serve.pages.page import Chip, Page, PageRequest, PageRoute, following

ADDRESS: Final = "/ui/events"
SUBSCRIPTIONS: Final = f"{ADDRESS}/subscriptions"
DEAD: Final = f"{ADDRESS}/dead-letters"
LISTED: Final = 50
FEED_FILTERS: Final = ("type", "after")
DEAD_FILTERS: Final = ("subscription", "type", "kind", "cursor")


class Feed(Struct, frozen=True, kw_only=True):
    """The latest events, latest first, or those after one."""

    tabs: list[Chip]
    events: list[Any]
    filters: Mapping[str, Any]
    newer: str


class SubscriptionRow(Struct, frozen=True):
    """A subscription, and its retirement unless it is retired."""

    subscription: Any
    action: Action | None


class SubscriptionList(Struct, frozen=True, kw_only=True):
    """All subscriptions."""

    tabs: list[Chip]
    rows: list[SubscriptionRow]


class LetterRow(Struct, frozen=True):
    """A dead letter and its actions."""

    letter: Any
    actions: tuple[Action, ...]


class DeadLetterList(Struct, frozen=True, kw_only=True):
    """A page of dead letters, stuck executions first."""

    tabs: list[Chip]
    executions: list[Any]
    rows: list[LetterRow]
    filters: Mapping[str, Any]
    is_filtered: bool
    more: str


def _tabs(current: str) -> list[Chip]:
    listed = (("Feed", ADDRESS), ("Subscriptions", SUBSCRIPTIONS), ("Dead letters", DEAD))
    return [(text, address, address == current) for text, address in listed]


def _retire(api: ApiCaller, subscription: Mapping[str, Any]) -> Action | None:
    if subscription["retired_at"]:
        return None
    name = subscription["name"]
    action = Action(
        label="Retire",
        sentence="Ends the subscription: no further event is delivered to it. Registering it again starts it.",
        path=f"/subscriptions/{segment(name)}/retire",
        fields=(),
        cli=command("event", "retire", name),
        tone=Tone.DANGER,
        done="The subscription is retired.",
    )
    return allowed(api, Permission.EVENT_WRITE, action)


def letter_actions(api: ApiCaller, subscription: str, event_id: str) -> tuple[Action, ...]:
    """Return the actions on one dead letter."""
    body = {"subscription": subscription, "event_ids": [event_id]}
    found = (
        Action(
            label="Redeliver",
            sentence=f"Delivers the event to {subscription} again, with new attempts.",
            path="/dead-letters/redeliver",
            body=body,
            fields=(),
            cli=command("event", "redeliver", subscription, event_id),
            done="The event is delivered again.",
        ),
        Action(
            label="Purge",
            sentence="Deletes the dead letter. The event is not delivered.",
            path="/dead-letters/purge",
            body=body,
            fields=(),
            cli=command("event", "purge", subscription, event_id),
            tone=Tone.DANGER,
            done="The dead letter is deleted.",
        ),
    )
    return tuple(allowed(api, Permission.EVENT_WRITE, each) for each in found)


def _all_of(api: ApiCaller, subscription: str) -> tuple[Action, ...]:
    """Return the actions on all dead letters of a subscription."""
    found = (
        Action(
            label="Redeliver all",
            sentence=f"Delivers up to 1,000 dead letters of {subscription} again.",
            path="/dead-letters/redeliver",
            body={"subscription": subscription},
            fields=(),
            cli=command("event", "redeliver", subscription),
            tone=Tone.PRIMARY,
            done="The events are delivered again.",
        ),
        Action(
            label="Purge all",
            sentence=f"Deletes up to 1,000 dead letters of {subscription}. The events are not delivered.",
            path="/dead-letters/purge",
            body={"subscription": subscription, "all": True},
            fields=(),
            cli=command("event", "purge", subscription, "--all"),
            tone=Tone.DANGER,
            done="The dead letters are deleted.",
        ),
    )
    return tuple(allowed(api, Permission.EVENT_WRITE, each) for each in found)


def _feed(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    found = api.call("GET /events", query={**query, "limit": LISTED})
    # After an id the API returns the next events in order; without one, the latest.
    newer = found["next_after"] if "after" in query and found["events"] else None
    kind = {"type": query["type"]} if "type" in query else {}
    view = Feed(
        tabs=_tabs(ADDRESS),
        events=found["events"][::-1],
        filters={name: query.get(name, "") for name in FEED_FILTERS},
        newer="" if newer is None else following(ADDRESS, kind, newer).replace("cursor=", "after="),
    )
    return Page(
        template="events.html",
        title="Events",
        view=view,
        json=twin("/events", query),
        cli=command("event", "ls", *options((f"--{name}", query.get(name)) for name in FEED_FILTERS)),
        changes=changes_of(of=ALL_WORK),
        section="events",
    )


def _subscriptions(api: ApiCaller, _request: PageRequest) -> Page:
    found = api.call("GET /subscriptions")["subscriptions"]
    rows = [SubscriptionRow(each, _retire(api, each)) for each in found]
    return Page(
        template="subscriptions.html",
        title="Subscriptions",
        crumbs=(("Events", ADDRESS),),
        view=SubscriptionList(tabs=_tabs(SUBSCRIPTIONS), rows=rows),
        json=twin("/subscriptions"),
        cli=command("event", "subscriptions"),
        changes=changes_of(of=ALL_WORK),
        section="events",
    )


def _dead_letters(api: ApiCaller, request: PageRequest) -> Page:
    query = request.query
    found = api.call("GET /dead-letters", query={**query, "limit": LISTED})
    letters, subscription = found["dead_letters"], query.get("subscription")
    rows = [LetterRow(each, letter_actions(api, each["subscription"], each["event_id"])) for each in letters]
    view = DeadLetterList(
        tabs=_tabs(DEAD),
        executions=found["executions"],
        rows=rows,
        filters={name: query.get(name, "") for name in DEAD_FILTERS},
        is_filtered=any(query.get(name) for name in DEAD_FILTERS),
        more=following(DEAD, query, found["cursor"]),
    )
    given = ((f"--{name}", query.get(name)) for name in ("subscription", "type", "kind"))
    return Page(
        template="dead_letters.html",
        title="Dead letters",
        crumbs=(("Events", ADDRESS),),
        view=view,
        actions=_all_of(api, subscription) if subscription and letters else (),
        json=twin("/dead-letters", query),
        cli=command("event", "dead", *options(given)),
        changes=changes_of(of=ALL_WORK),
        section="events",
    )


PAGES: Final = (
    PageRoute("/events", _feed, FEED_FILTERS, needs="GET /events"),
    PageRoute("/events/subscriptions", _subscriptions),
    PageRoute("/events/dead-letters", _dead_letters, DEAD_FILTERS),
)
