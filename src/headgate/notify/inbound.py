"""Inbound requests: verifies and reads acknowledgements that Slack and PagerDuty send, signed with a shared secret.

Slack signs a request with its time, which must be recent. PagerDuty signs the body alone, which has the time and the
id of the event: an old event is refused, and a repeated one has no effect.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import InvalidPayloadError, UnauthenticatedError
from headgate.settings import Secret

SLACK_SIGNATURE: Final = "x-slack-signature"
SLACK_TIMESTAMP: Final = "x-slack-request-timestamp"
PAGERDUTY_SIGNATURE: Final = "x-pagerduty-signature"
# The time that Slack recommends.
SLACK_SECONDS_MAX: Final = 300.0
# PagerDuty repeats a delivery for some hours. Event ids are remembered for longer than this.
PAGERDUTY_SECONDS_MAX: Final = 86_400.0
# A clock may be a little behind.
AHEAD_SECONDS_MAX: Final = 300.0
# The button of a Slack message.
ACKNOWLEDGE: Final = "headgate_acknowledge"
_ACKNOWLEDGED: Final = "incident.acknowledged"
_NAME_MAX: Final = 120


class SlackAck(Struct, frozen=True):
    """A person pressed the button of a message."""

    alert_id: str
    by: str


class PagerDutyAck(Struct, frozen=True):
    """A person acknowledged an incident of PagerDuty. `incident_key` is the dedup key of its alerts."""

    event_id: str
    incident_key: str
    by: str


def verify_slack(secret: Secret, headers: Mapping[str, str], content: bytes, now_seconds: float) -> None:
    """Raise `UnauthenticatedError` unless Slack signed this very body a moment ago."""
    timestamp, signature = headers.get(SLACK_TIMESTAMP, ""), headers.get(SLACK_SIGNATURE, "")
    if not timestamp.isascii() or not timestamp.isdigit() or len(timestamp) > 12:
        raise UnauthenticatedError(f"{SLACK_TIMESTAMP}: it is missing or not a time")
    if abs(now_seconds - int(timestamp)) > SLACK_SECONDS_MAX:
        raise UnauthenticatedError(f"{SLACK_TIMESTAMP}: it is more than {SLACK_SECONDS_MAX:.0f} s from now")
    signed = b"v0:" + timestamp.encode() + b":" + content
    _compare(SLACK_SIGNATURE, "v0=" + _digest(secret, signed), [signature])


def verify_pagerduty(secret: Secret, headers: Mapping[str, str], content: bytes, now_seconds: float) -> None:
    """Raise `UnauthenticatedError` unless PagerDuty signed this body, and its event is recent.

    During a rotation of the secret, the header has a signature of each.
    """
    signatures = [each.strip() for each in headers.get(PAGERDUTY_SIGNATURE, "").split(",")]
    _compare(PAGERDUTY_SIGNATURE, "v1=" + _digest(secret, content), signatures[:10])
    occurred_at = str(_member(_event(content), "occurred_at"))
    try:
        seconds = datetime.fromisoformat(occurred_at).timestamp()
    except ValueError:
        raise UnauthenticatedError("event.occurred_at: it is missing or not a time") from None
    if not -AHEAD_SECONDS_MAX <= now_seconds - seconds <= PAGERDUTY_SECONDS_MAX:
        raise UnauthenticatedError(f"event.occurred_at: it is more than {PAGERDUTY_SECONDS_MAX:.0f} s from now")


def slack_ack(content: bytes) -> SlackAck | None:
    """Return the acknowledgement of an interaction, or None if it is another one. Raises `InvalidPayloadError`."""
    form = parse_qs(content.decode("utf-8", "replace"), max_num_fields=10)
    payload = _object("payload", form.get("payload", [""])[0])
    if payload.get("type") != "block_actions":
        return None
    for action in _list(payload, "actions"):
        if action.get("action_id") == ACKNOWLEDGE and isinstance(action.get("value"), str):
            user = _dict(payload, "user")
            name = user.get("username") or user.get("name") or user.get("id")
            return SlackAck(action["value"], _person(name, "Slack"))
    return None


def pagerduty_ack(content: bytes) -> PagerDutyAck | None:
    """Return the acknowledgement of an event, or None if it is another one. Raises `InvalidPayloadError`."""
    event = _event(content)
    if event.get("event_type") != _ACKNOWLEDGED:
        return None
    event_id, key = _member(event, "id"), _member(_dict(event, "data"), "incident_key")
    if not isinstance(event_id, str) or not event_id or not isinstance(key, str) or not key:
        raise InvalidPayloadError("event: it has no id or no data.incident_key")
    return PagerDutyAck(event_id[:200], key, _person(_dict(event, "agent").get("summary"), "PagerDuty"))


def _person(name: object, tool: str) -> str:
    shown = " ".join(str(name or "unknown").split())[:_NAME_MAX]
    return f"{shown} ({tool})"


def _digest(secret: Secret, content: bytes) -> str:
    return hmac.new(secret.reveal().encode(), content, hashlib.sha256).hexdigest()


def _compare(header: str, expected: str, given: list[str]) -> None:
    # In constant time, so that the time says nothing.
    matches = [hmac.compare_digest(expected.encode(), each.encode("utf-8", "replace")) for each in given]
    if not any(matches):
        raise UnauthenticatedError(f"{header}: the signature is missing or wrong; check the shared secret")


def _event(content: bytes) -> dict[str, Any]:
    return _dict(_object("the body", content), "event")


def _object(what: str, content: bytes | str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = typed_decode.from_json(content, dict[str, Any])
    except msgspec.DecodeError as exc:
        raise InvalidPayloadError(f"{what}: it is not a JSON object") from exc
    return found


def _member(found: Mapping[str, Any], name: str) -> object:
    return found.get(name)


def _dict(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _list(found: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = found.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
