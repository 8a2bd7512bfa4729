"""Notices: the alert content of a bus event, from any component.

The event carries its own severity, route and keys, so that this package needs no list of event types: the emitter's
catalogue decides.
"""

from __future__ import annotations

import fnmatch
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.durable.bus.events import Event
from headgate.errors import InvalidPayloadError
from headgate.notify.enums import INFRASTRUCTURE, DefaultRoute, Severity

TYPE_PREFIX: Final = "headgate.pipeline."
# Field by which subscriptions filter: events that are alerts by default, or that resolve others.
NEWS_FIELD: Final = "is_news"
_KeyText = Annotated[str, Meta(min_length=1, max_length=512)]


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The alert content of an event. Notices with the same `dedup_key` are about the same problem.

    `resolves` are the dedup keys of alerts that this event resolves. `alerts` is whether it is sent without a route
    that names the event.
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
    # Channels to exclude: those that it is about.
    avoid: tuple[str, ...] = ()
    # Of incidents: the dataset, its tier and team, and the owner to route by.
    incident_id: str = ""
    dataset_urn: str = ""
    tier: str = ""
    team: str = ""
    owner: str = ""
    # Alerts with the same thread have one cause: a period of a pipeline, or an incident.
    thread: str = ""

    @property
    def thread_key(self) -> str:
        """The key of its cause: the period, or what the emitter names; empty if it stands for itself."""
        if self.thread or not self.date:
            return self.thread
        return period_thread(self.pipeline_id, self.schedule_id, self.date)


def period_thread(pipeline_id: str, schedule_id: str, date: str) -> str:
    """Return the thread of everything that goes wrong with one period of a pipeline."""
    return f"PERIOD#{pipeline_id}#{schedule_id}#{date}"


class Audience(Struct, frozen=True, kw_only=True):
    """Owner, team and tier of a pipeline or dataset, and the channels and mutes of the definition."""

    owner: str = ""
    team: str = ""
    tier: str = ""
    labels: dict[str, str] = {}
    channels: tuple[str, ...] = ()
    # Patterns of muted events.
    mute: tuple[str, ...] = ()


NO_AUDIENCE: Final = Audience()


def notice_of(event: Event) -> Notice:
    """Decode the notice of a bus event. Raises `InvalidPayloadError`."""
    try:
        return typed_decode.convert(event.decoded().data, Notice)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(
            f"event {event.id} of {event.type}: it is not a notice, {exc}; emit it with severity, route and keys"
        ) from exc


def audience_for(notice: Notice, audience: Audience) -> Audience:
    """Return the audience of a notice: that of its pipeline, with the dataset's owner, team and tier if it has one."""
    if not notice.dataset_urn:
        return audience
    return replace(audience, owner=notice.owner or notice.team, team=notice.team, tier=notice.tier)


def event_type(name: str) -> str:
    """Return the bus event type of a pipeline event."""
    return f"{TYPE_PREFIX}{name.lower()}"


def matches(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern with `*` and `?`, case-sensitively."""
    return fnmatch.fnmatchcase(text, pattern)
