"""PagerDuty channel: Events API v2, with one incident per dedup key."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import msgspec

from headgate.durable.model.failures import NonRetryable
from headgate.durable.model.records import instant
from headgate.errors import TransientError
from headgate.notify.channels.http_post import HttpPoster
from headgate.notify.credentials import Credential
from headgate.notify.enums import AlertAction
from headgate.notify.messages import Message, line

API_URL: Final = "https://events.pagerduty.com"
ROUTING_KEY: Final = re.compile(r"[A-Za-z0-9]{32}")
_SUMMARY_MAX: Final = 1_024
_KEY_MAX: Final = 255
_DETAILS_BYTES_MAX: Final = 32_768


class PagerDutyChannel:
    """Sends events to one service. PagerDuty deduplicates by key."""

    actions = frozenset(AlertAction)

    def __init__(self, name: str, routing_key: Credential, poster: HttpPoster, api_url: str = API_URL) -> None:
        self.name = name
        self._routing_key = routing_key
        self._poster = poster
        self._url = f"{api_url.rstrip('/')}/v2/enqueue"

    def send(self, message: Message) -> str:
        """Send the event, and return the key of the incident. Raises `NonRetryable` if PagerDuty rejects it."""
        key = incident_key(message.thread or message.dedup_key)
        if message.action is AlertAction.RESOLVE and message.others_open:
            # One incident for the whole thread: it is resolved with its last alert.
            return key
        body: dict[str, Any] = {
            "routing_key": self._routing_key.read().reveal(),
            "event_action": message.action.value,
            "dedup_key": key,
        }
        if message.action is AlertAction.TRIGGER:
            body["payload"] = _payload(message)
            body["client"] = "Headgate"
            if message.link:
                body["client_url"] = message.link
                body["links"] = [{"href": message.link, "text": "Open in Headgate"}]
        answer = self._poster.post(self._url, body, headers={})
        if answer.status == 202:
            return str(answer.body.get("dedup_key", key))
        reason = line([answer.body.get("message", ""), *(answer.body.get("errors") or [])], 300)
        if 400 <= answer.status < 500:
            raise NonRetryable(
                f"channel {self.name}: PagerDuty refused it with {answer.status}: {reason}; check the routing key"
            )
        raise TransientError(f"channel {self.name}: PagerDuty answered {answer.status}: {reason}")


def incident_key(dedup_key: str) -> str:
    """Return the incident key: the dedup key, or a prefix and digest if it is too long for PagerDuty."""
    if len(dedup_key) <= _KEY_MAX:
        return dedup_key
    digest = hashlib.blake2b(dedup_key.encode(), digest_size=16).hexdigest()
    return f"{dedup_key[: _KEY_MAX - 33]}#{digest}"


def _payload(message: Message) -> dict[str, Any]:
    details: dict[str, Any] = {"hint": message.hint, "lines": list(message.lines), "count": message.count}
    if len(msgspec.json.encode(message.detail)) <= _DETAILS_BYTES_MAX:
        details["detail"] = message.detail
    return {
        "summary": line(message.title, _SUMMARY_MAX),
        "source": message.dataset_urn or message.pipeline_id,
        "severity": message.severity.value,
        "timestamp": instant(message.at_ms),
        "component": message.dataset_urn or message.schedule_id or message.pipeline_id,
        "group": message.date or message.pipeline_id,
        "class": message.event,
        "custom_details": details,
    }
