"""Alert configuration: channels, routes, defaults and policy, validated at start.

It rejects everything that would later prevent a delivery: a misspelt channel name, an empty token, a secret in place of
a reference. `[notify]` in headgate.toml and notify.toml have the same format; the reference is generated from here.
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
from headgate.settings import about

CONSOLE: Final = "console"
NOTIFY: Final = "notify"
_Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
_Port = Annotated[int, Meta(ge=1, le=65_535)]
_Seconds = Annotated[float, Meta(ge=0.1, le=120)]
_Url = Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+[^\s]*$")]
_Mail = Annotated[str, Meta(pattern=r"^[^\s@<>,;:\"\\]{1,64}@[A-Za-z0-9.-]{1,253}$")]


class _Spec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Settings of one channel. Unknown fields are rejected."""

    timeout_seconds: Annotated[_Seconds, about("Time limit of one message.")] = 10.0


class ConsoleSpec(_Spec, frozen=True, kw_only=True, tag="console"):
    """Lines on standard error."""


class FileSpec(_Spec, frozen=True, kw_only=True, tag="file"):
    """A file with one JSON object per line."""

    path: Annotated[str, Meta(min_length=1), about("The file; relative to the home folder.")]
    bytes_max: Annotated[int, Meta(ge=1_000), about("Size at which it is rotated.")] = 10_000_000
    kept: Annotated[int, Meta(ge=0, le=100), about("Number of rotated files that stay beside it.")] = 5


class WebhookSpec(_Spec, frozen=True, kw_only=True, tag="webhook"):
    """CloudEvents over HTTP, signed as in Standard Webhooks."""

    url: Annotated[_Url, about("Address that receives the alerts.")]
    secret: Annotated[str, about("Reference of the signing key.")]


class SlackSpec(_Spec, frozen=True, kw_only=True, tag="slack"):
    """A channel of a Slack workspace, with one thread per cause."""

    channel: Annotated[
        str,
        Meta(pattern=r"^([CGD][A-Z0-9]{6,20}|#?[a-z0-9_-]{1,80})$"),
        about("Id or name of the channel."),
    ]
    token: Annotated[str, about("Reference of the bot token, with the scope `chat:write`.")]
    signing_secret: Annotated[
        str,
        about(
            "Reference of the app's signing secret. With it, alerts have a button that acknowledges them; the request "
            "URL of the app is `PUBLIC_URL/api/v1/notify/slack/NAME`."
        ),
    ] = ""
    api_url: Annotated[_Url, about("Base URL of Slack's API.")] = "https://slack.com/api"


class PagerDutySpec(_Spec, frozen=True, kw_only=True, tag="pagerduty"):
    """A PagerDuty service, over Events API v2, with one incident per cause."""

    routing_key: Annotated[str, about("Reference of the integration key.")]
    webhook_secret: Annotated[
        str,
        about(
            "Reference of the secret of a V3 webhook subscription to `incident.acknowledged`, which is sent to "
            "`PUBLIC_URL/api/v1/notify/pagerduty/NAME`. With it, an acknowledgement there counts here."
        ),
    ] = ""
    api_url: Annotated[_Url, about("Base URL of the Events API.")] = "https://events.pagerduty.com"


class EmailSpec(_Spec, frozen=True, kw_only=True, tag="email"):
    """A mail server, the sender and the recipients."""

    host: Annotated[str, Meta(min_length=1), about("Host of the SMTP server.")]
    sender: Annotated[_Mail, about("Address of the sender.")]
    recipients: Annotated[tuple[_Mail, ...], Meta(min_length=1), about("Addresses of the recipients.")]
    port: Annotated[_Port, about("Port of the SMTP server.")] = 587
    security: Annotated[
        str, Meta(pattern=r"^(starttls|tls|none)$"), about("`starttls`, `tls`, or `none` without a password.")
    ] = "starttls"
    username: Annotated[str, about("User of the SMTP server.")] = ""
    password: Annotated[str, about("Reference of the user's password.")] = ""


class SnsSpec(_Spec, frozen=True, kw_only=True, tag="sns"):
    """An SNS topic; needs the extra `aws`."""

    topic_arn: Annotated[
        str,
        Meta(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$"),
        about("ARN of the topic."),
    ]


ChannelSpec = ConsoleSpec | FileSpec | WebhookSpec | SlackSpec | PagerDutySpec | EmailSpec | SnsSpec
CHANNEL_SPECS: Final = (ConsoleSpec, FileSpec, WebhookSpec, SlackSpec, PagerDutySpec, EmailSpec, SnsSpec)


class NotifyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of alerts. By default, warnings and critical alerts go to the console."""

    channels: Annotated[dict[_Name, ChannelSpec], about("Channels by name.")] = field(
        default_factory=lambda: {CONSOLE: ConsoleSpec()}
    )
    routes: Annotated[tuple[Route, ...], about("Routes, evaluated in order.")] = ()
    defaults: Annotated[
        dict[DefaultRoute, tuple[str, ...]],
        about(
            "Channels of alerts without a matching route: `page` for critical ones, `notify` for warnings, `log` for "
            "successes. Without an entry, `page` and `notify` go to all channels, `log` to none."
        ),
    ] = {}
    dedup_seconds: Annotated[
        float, Meta(ge=0, le=604_800), about("Time in which a repeated alert is only counted.")
    ] = DEDUP_SECONDS
    group_after: Annotated[
        int,
        Meta(ge=0, le=10_000),
        about(
            "Alerts of one kind after which the rest of the window is one digest; 0 sends each. Critical alerts are "
            "grouped by pipeline or dataset only."
        ),
    ] = GROUP_AFTER
    group_seconds: Annotated[float, Meta(ge=1, le=86_400), about("Length of that window.")] = GROUP_SECONDS
    escalation: Annotated[
        tuple[EscalationStep, ...], about("Further channels for an alert that is not acknowledged.")
    ] = ()
    escalates_from: Annotated[Severity, about("Lowest severity that escalates.")] = Severity.CRITICAL
    link_prefix: Annotated[
        str, about("URL before the alert id in links; by default links lead to pages below `public_url`.")
    ] = ""

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


def parse_config(given: Mapping[str, Any], source: str = "") -> NotifyConfig:
    """Parse the settings of alerts. Raises `SettingsError` with the source, the field and the allowed values."""
    try:
        return _parsed(given)
    except SettingsError as exc:
        raise SettingsError(f"{source}: {exc.message}") if source else exc from exc


def _parsed(given: Mapping[str, Any]) -> NotifyConfig:
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
