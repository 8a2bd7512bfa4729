"""Alert configuration: channels, routes, defaults and policy, validated at start.

It rejects everything that would later prevent a delivery: a misspelt channel name, an empty token, a secret in place of
a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from headgate import typed_decode
from headgate.errors import SettingsError
from headgate.notify.decisions import DEDUP_SECONDS, GROUP_AFTER, GROUP_SECONDS, AlertPolicy, EscalationStep
from headgate.notify.enums import DefaultRoute, Severity
from headgate.notify.routes import CHANNELS_MAX, Route

CONSOLE: Final = "console"
_Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Seconds = Annotated[float, Meta(ge=0.1, le=120)]
_Url = Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+[^\s]*$")]


class _Spec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Settings of one channel. Unknown fields are rejected."""

    timeout_seconds: _Seconds = 10.0


class ConsoleSpec(_Spec, frozen=True, kw_only=True, tag="console"):
    """Lines on standard error."""


class FileSpec(_Spec, frozen=True, kw_only=True, tag="file"):
    """A file with one JSON object per line."""

    path: Annotated[str, Meta(min_length=1)]
    bytes_max: Annotated[int, Meta(ge=1_000)] = 10_000_000
    kept: Annotated[int, Meta(ge=0, le=100)] = 5


class WebhookSpec(_Spec, frozen=True, kw_only=True, tag="webhook"):
    """CloudEvents over HTTP. `secret` is the reference of the signing key."""

    url: _Url
    secret: str


class SlackSpec(_Spec, frozen=True, kw_only=True, tag="slack"):
    """A channel of a Slack workspace. `token` is a reference."""

    channel: Annotated[str, Meta(pattern=r"^([CGD][A-Z0-9]{6,20}|#?[a-z0-9_-]{1,80})$")]
    token: str
    api_url: _Url = "https://slack.com/api"


class PagerDutySpec(_Spec, frozen=True, kw_only=True, tag="pagerduty"):
    """A PagerDuty service. `routing_key` is a reference."""

    routing_key: str
    api_url: _Url = "https://events.pagerduty.com"


class EmailSpec(_Spec, frozen=True, kw_only=True, tag="email"):
    """A mail server, the sender and the recipients. `password` is a reference."""

    host: Annotated[str, Meta(min_length=1)]
    sender: Annotated[str, Meta(pattern=r"^[^\s@<>,;:\"\\]{1,64}@[A-Za-z0-9.-]{1,253}$")]
    recipients: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[^\s@<>,;:\"\\]{1,64}@[A-Za-z0-9.-]{1,253}$")], ...], Meta(min_length=1)
    ]
    port: _Port = 587
    security: Annotated[str, Meta(pattern=r"^(starttls|tls|none)$")] = "starttls"
    username: str = ""
    password: str = ""


class SnsSpec(_Spec, frozen=True, kw_only=True, tag="sns"):
    """An SNS topic."""

    topic_arn: Annotated[str, Meta(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$")]


ChannelSpec = ConsoleSpec | FileSpec | WebhookSpec | SlackSpec | PagerDutySpec | EmailSpec | SnsSpec


class NotifyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of alerts. By default, all alerts go to the console."""

    channels: dict[_Name, ChannelSpec] = field(default_factory=lambda: {CONSOLE: ConsoleSpec()})
    routes: tuple[Route, ...] = ()
    # Channels by default route, for events without a matching route. A missing entry means all channels.
    defaults: dict[DefaultRoute, tuple[str, ...]] = {}
    dedup_seconds: Annotated[float, Meta(ge=0, le=604_800)] = DEDUP_SECONDS
    group_after: Annotated[int, Meta(ge=0, le=10_000)] = GROUP_AFTER
    group_seconds: Annotated[float, Meta(ge=1, le=86_400)] = GROUP_SECONDS
    escalation: tuple[EscalationStep, ...] = ()
    escalates_from: Severity = Severity.CRITICAL
    # URL prefix of the alert page; the alert id follows.
    link_prefix: str = ""

    @property
    def policy(self) -> AlertPolicy:
        return AlertPolicy(
            dedup_seconds=self.dedup_seconds,
            group_after=self.group_after,
            group_seconds=self.group_seconds,
            escalation=self.escalation,
            escalates_from=self.escalates_from,
        )

    def default_channels(self) -> dict[DefaultRoute, tuple[str, ...]]:
        """Return the channels of each default route: the configured ones, or all; for successes, none."""
        everyone = tuple(self.channels)[:CHANNELS_MAX]
        missing = {DefaultRoute.PAGE: everyone, DefaultRoute.NOTIFY: everyone, DefaultRoute.LOG: ()}
        return {route: self.defaults.get(route, missing[route]) for route in DefaultRoute}


def parse_config(given: Mapping[str, Any]) -> NotifyConfig:
    """Parse the settings of alerts. Raises `SettingsError` with the field and the allowed values."""
    try:
        config = typed_decode.convert(given, NotifyConfig)
    except msgspec.ValidationError as exc:
        raise SettingsError(f"notify: {_placed(exc)}") from exc
    if not config.channels:
        raise SettingsError("notify.channels: no channel is configured; omit the section, or name a channel")
    for place, names in _named(config):
        _check_known(place, names, config.channels)
    times = [step.after_seconds for step in config.escalation]
    if times != sorted(times) or any(seconds <= 0 for seconds in times):
        raise SettingsError("notify.escalation: after_seconds must be more than 0 and grow from step to step")
    for name, spec in config.channels.items():
        if isinstance(spec, EmailSpec) and spec.security == "none" and (spec.username or spec.password):
            raise SettingsError(f"notify.channels.{name}: a password is not sent without TLS; use starttls or tls")
    return config


def _named(config: NotifyConfig) -> list[tuple[str, Sequence[str]]]:
    named: list[tuple[str, Sequence[str]]] = [(f"routes[{n}]", each.channels) for n, each in enumerate(config.routes)]
    named += [(f"defaults.{route}", names) for route, names in config.defaults.items()]
    named += [(f"escalation[{n}]", step.channels) for n, step in enumerate(config.escalation)]
    return named


def _check_known(place: str, names: Sequence[str], channels: Mapping[str, ChannelSpec]) -> None:
    unknown = [name for name in names if name not in channels]
    if unknown:
        raise SettingsError(f"notify.{place}: no channel {unknown}; there are {sorted(channels)}")
    if len(names) > CHANNELS_MAX:
        raise SettingsError(f"notify.{place}: {len(names)} channels; at most {CHANNELS_MAX}")
    if not names and not place.startswith("defaults."):
        raise SettingsError(f"notify.{place}: it names no channel; name one, or mute these events")


def _placed(exc: msgspec.ValidationError) -> str:
    fact, _, place = str(exc).partition(" - at `$")
    return f"{place.rstrip('`').lstrip('.')}: {fact}" if place else fact
