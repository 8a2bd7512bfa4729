"""Notices: what an event on the bus says to whoever is to be told, whichever part of the product it comes from.

The event carries its own severity, route and keys, so that nothing here has a list of event types that could be
forgotten: what the emitter's catalogue says is what is done.
"""

from __future__ import annotations

import fnmatch
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from headgate import typed_decode
from headgate.durable.bus.events import Event
from headgate.errors import InvalidPayloadError
from headgate.notify.enums import INFRASTRUCTURE, DefaultRoute, Severity

TYPE_PREFIX: Final = "headgate.pipeline."
# What the bus is asked for by this filter: events that are told by default, or put an end to others.
NEWS: Final = "is_news"
_KeyText = Annotated[str, Meta(min_length=1, max_length=512)]


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing to be told. `dedup_key` names the trouble; another notice with it is about the same one.

    `resolves` are the keys of troubles that are over with this. `alerts` is whether it is told without a route that
    asks for it by name.
    """

    event: _KeyText
    event_id: _KeyText
    severity: Severity
    route: DefaultRoute
    alerts: bool
    is_news: bool
    text: str
    dedup_key: _KeyText
    at_ms: int
    pipeline_id: _KeyText = INFRASTRUCTURE
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""
    message: str = ""
    hint: str = ""
    resolves: tuple[str, ...] = ()
    detail: dict[str, Any] = {}
    # Channels that it is not to go to: those that it is about.
    avoid: tuple[str, ...] = ()


class Audience(Struct, frozen=True, kw_only=True):
    """Who a pipeline belongs to, and where its own definition wants its events: asked when there is one to tell."""

    owner: str = ""
    labels: dict[str, str] = {}
    channels: tuple[str, ...] = ()
    # Patterns of events that nobody is told of.
    mute: tuple[str, ...] = ()


NOBODY: Final = Audience()


def notice_of(event: Event) -> Notice:
    """Return what an event on the bus is to tell. Raises `InvalidPayloadError` for one that does not say it."""
    try:
        return typed_decode.convert(event.decoded().data, Notice)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(
            f"event {event.id} of {event.type}: it is no notice, {exc}; emit it with its severity, route and keys"
        ) from exc


def event_type(name: str) -> str:
    """Return the type under which an event of a pipeline is on the bus."""
    return f"{TYPE_PREFIX}{name.lower()}"


def is_like(text: str, pattern: str) -> bool:
    """Whether a text fits a pattern with `*` and `?`, in which case matters."""
    return fnmatch.fnmatchcase(text, pattern)
