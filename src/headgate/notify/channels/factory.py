"""Channel factory: builds channels from their settings, and checks every secret at start."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.forwarding import Forwarder
from headgate.ids import IdMaker
from headgate.notify.channels.console import ConsoleChannel
from headgate.notify.channels.file import FileChannel
from headgate.notify.channels.http_post import HttpPoster
from headgate.notify.channels.pagerduty import ROUTING_KEY, PagerDutyChannel
from headgate.notify.channels.slack import TOKEN, SlackChannel
from headgate.notify.channels.slack_threads import KEPT_SECONDS, SlackThreads
from headgate.notify.channels.smtp import PASSWORD, EmailChannel, MailServer
from headgate.notify.channels.sns import SnsChannel, aws_client, secret_fetch
from headgate.notify.channels.webhook import SECRET, WebhookChannel, signing_key
from headgate.notify.configuration import (
    ChannelSpec,
    ConsoleSpec,
    EmailSpec,
    FileSpec,
    NotifyConfig,
    PagerDutySpec,
    SlackSpec,
    SnsSpec,
    WebhookSpec,
)
from headgate.notify.credentials import Credential
from headgate.notify.messages import Channel
from headgate.store.port import Store

# A shared secret of Slack or PagerDuty.
INBOUND: Final = re.compile(r"[!-~]{16,512}")


class ChannelDependencies(Struct, frozen=True, kw_only=True):
    """Dependencies of channels. `home` is the base of relative file paths."""

    store: Store
    clock: Clock
    ids: IdMaker
    home: Path
    threads_kept_seconds: int = KEPT_SECONDS
    destinations: Destinations = Destinations()
    aws_region: str | None = None
    aws_endpoint_url: str | None = None
    resolve: Resolve = system_resolve
    tls: ssl.SSLContext | None = None


def open_channels(config: NotifyConfig, dependencies: ChannelDependencies) -> dict[str, Channel]:
    """Return every channel by name. Raises `SettingsError` for one that could not deliver."""
    return {name: _ChannelFactory(name, dependencies).build(spec) for name, spec in config.channels.items()}


def inbound_secret(name: str, field: str, reference: str, dependencies: ChannelDependencies) -> Credential:
    """Return the secret that verifies requests of a channel's service. Raises `SettingsError`."""
    return _ChannelFactory(name, dependencies).credential(field, reference, INBOUND)


class _ChannelFactory:
    """Builds one channel."""

    def __init__(self, name: str, dependencies: ChannelDependencies) -> None:
        self._name = name
        self._dependencies = dependencies

    def build(self, spec: ChannelSpec) -> Channel:
        match spec:
            case ConsoleSpec():
                return ConsoleChannel(self._name)
            case FileSpec():
                path = self._dependencies.home / Path(spec.path).expanduser()
                return FileChannel(self._name, path, bytes_max=spec.bytes_max, kept=spec.kept)
            case WebhookSpec():
                return self._webhook(spec)
            case SlackSpec():
                around = self._dependencies
                threads = SlackThreads(around.store, around.clock, around.ids, kept_seconds=around.threads_kept_seconds)
                token = self.credential("token", spec.token, TOKEN)
                return SlackChannel(
                    self._name,
                    spec.channel,
                    token,
                    self._poster(spec.timeout_seconds),
                    threads,
                    spec.api_url,
                    has_button=bool(spec.signing_secret),
                )
            case PagerDutySpec():
                key = self.credential("routing_key", spec.routing_key, ROUTING_KEY)
                return PagerDutyChannel(self._name, key, self._poster(spec.timeout_seconds), spec.api_url)
            case EmailSpec():
                return self._email(spec)
            case SnsSpec():
                client = aws_client(
                    "sns", region=spec.topic_arn.split(":")[3], endpoint_url=self._dependencies.aws_endpoint_url
                )
                return SnsChannel(self._name, spec.topic_arn, client)

    def _webhook(self, spec: WebhookSpec) -> WebhookChannel:
        secret = self.credential("secret", spec.secret, SECRET)
        signing_key(secret.read())
        forwarder = Forwarder(
            self._dependencies.clock,
            destinations=self._dependencies.destinations,
            secret_for=lambda _url: signing_key(secret.read()),
            timeout_seconds=spec.timeout_seconds,
            resolve=self._dependencies.resolve,
            tls=self._dependencies.tls,
        )
        return WebhookChannel(self._name, spec.url, forwarder)

    def _email(self, spec: EmailSpec) -> EmailChannel:
        server = MailServer(
            host=spec.host,
            port=spec.port,
            security=spec.security,
            username=spec.username,
            timeout_seconds=spec.timeout_seconds,
        )
        password = self.credential("password", spec.password, PASSWORD) if spec.username else None
        return EmailChannel(
            self._name, server, spec.sender, spec.recipients, password=password, tls=self._dependencies.tls
        )

    def credential(self, field: str, reference: str, form: re.Pattern[str]) -> Credential:
        """Return a secret by reference, which can be read. Raises `SettingsError`."""
        what = f"notify.channels.{self._name}.{field}"
        credential = Credential(what, reference, form, self._dependencies.clock, self._fetch())
        credential.check()
        return credential

    def _fetch(self) -> Callable[[str], str]:
        return secret_fetch(region=self._dependencies.aws_region, endpoint_url=self._dependencies.aws_endpoint_url)

    def _poster(self, timeout_seconds: float) -> HttpPoster:
        dependencies = self._dependencies
        return HttpPoster(
            dependencies.clock,
            destinations=dependencies.destinations,
            timeout_seconds=timeout_seconds,
            resolve=dependencies.resolve,
            tls=dependencies.tls,
        )
