"""Webhook channel: alerts as CloudEvents over HTTP, signed as in Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from headgate.durable.bus.events import Event
from headgate.durable.bus.forwarding import Forwarder
from headgate.errors import TransientError
from headgate.notify.enums import AlertAction
from headgate.notify.messages import Message
from headgate.settings import Secret

TYPE_PREFIX: Final = "headgate.alert"
SOURCE: Final = "/headgate/notify"
SECRET: Final = re.compile(r"[!-~]{24,512}")
_ENCODED: Final = "whsec_"


class WebhookChannel:
    """Posts to one URL. Every attempt at a message has the same `webhook-id`."""

    actions = frozenset(AlertAction)

    def __init__(self, name: str, url: str, forwarder: Forwarder) -> None:
        self.name = name
        self._url = url
        self._forwarder = forwarder

    def send(self, message: Message) -> str:
        """Post the message. Raises `NonRetryable` and `TransientError` as the forwarder does."""
        event = Event(
            id=message.message_id,
            type=f"{TYPE_PREFIX}.{message.action}",
            source=SOURCE,
            subject=message.pipeline_id,
            time=datetime.fromtimestamp(message.at_ms / 1000, UTC),
            data=msgspec.to_builtins(message),
        )
        self._forwarder.send(self._url, event, message_id=message.message_id)
        return message.message_id


def signing_key(secret: Secret) -> bytes:
    """Return the signing key of a secret: the base64 text after `whsec_`, or the text itself.

    Raises `TransientError` for invalid base64.
    """
    text = secret.reveal()
    if not text.startswith(_ENCODED):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_ENCODED), validate=True)
    except binascii.Error:
        # Without the cause, which would quote the secret.
        raise TransientError("webhook secret: the text after whsec_ is not base64; put the right one there") from None
