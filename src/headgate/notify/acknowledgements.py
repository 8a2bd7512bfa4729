"""Acknowledgements from other tools: applies what Slack and PagerDuty report, once and under the person's name."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError, UnauthenticatedError
from headgate.ids import made_at_ms
from headgate.notify.alert_rows import Alert, seen_key, seen_put
from headgate.notify.alerts import Alerts
from headgate.notify.credentials import Credential
from headgate.notify.inbound import (
    PagerDutyAck,
    SlackAck,
    pagerduty_ack,
    slack_ack,
    verify_pagerduty,
    verify_slack,
)
from headgate.store.catalogue.tables import CONTROL
from headgate.store.port import Store


class InboundAcks:
    """Verifies and applies signed requests. `slack` and `pagerduty` are the secrets by channel. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        alerts: Alerts,
        *,
        slack: Mapping[str, Credential],
        pagerduty: Mapping[str, Credential],
    ) -> None:
        self._store = store
        self._clock = clock
        self._alerts = alerts
        self._slack = slack
        self._pagerduty = pagerduty

    def verify_slack(self, channel: str, headers: Mapping[str, str], content: bytes) -> SlackAck | None:
        """Return the acknowledgement of a genuine request. Raises `UnauthenticatedError`."""
        secret = _secret(self._slack, channel, "signing_secret")
        verify_slack(secret.read(), headers, content, self._clock.seconds())
        return slack_ack(content)

    def verify_pagerduty(self, channel: str, headers: Mapping[str, str], content: bytes) -> PagerDutyAck | None:
        """Return the acknowledgement of a genuine request. Raises `UnauthenticatedError`."""
        secret = _secret(self._pagerduty, channel, "webhook_secret")
        verify_pagerduty(secret.read(), headers, content, self._clock.seconds())
        return pagerduty_ack(content)

    def apply_slack(self, ack: SlackAck) -> Alert:
        """Acknowledge the alert of a message. Idempotent. Raises `NotFoundError`."""
        return self._alerts.acknowledge(ack.alert_id, by=ack.by)

    def apply_pagerduty(self, channel: str, ack: PagerDutyAck) -> Alert | None:
        """Acknowledge the open alerts of an incident of PagerDuty. None: there are none, or the event is repeated."""
        alert = self._alert(ack.incident_key)
        if alert is None:
            return None
        seen = seen_put(f"pagerduty#{channel}#{ack.event_id}", epoch_ms(self._clock))
        if self._store.get(CONTROL, seen_key(f"pagerduty#{channel}#{ack.event_id}"), consistent=True) is not None:
            return None
        acknowledged = self._alerts.acknowledge(alert.alert_id, by=ack.by)
        # Afterwards: PagerDuty sends it again if this process dies in between. A later replay has no effect.
        with suppress(ConflictError):
            self._store.transact([seen])
        return acknowledged

    def _alert(self, key: str) -> Alert | None:
        """Return an open alert of a thread, or the latest of a dedup key."""
        for alert_id, place in sorted(self._alerts.thread(key).open.items()):
            alert = self._alerts.find(place.pipeline_id, place.at_ms, alert_id)
            if alert is not None:
                return alert
        latest = self._alerts.latest_alerts([key])[0]
        if latest is None:
            return None
        return self._alerts.find(latest.pipeline_id, made_at_ms(latest.alert_id), latest.alert_id)


def _secret(secrets: Mapping[str, Credential], channel: str, field: str) -> Credential:
    if channel not in secrets:
        # As for a wrong signature: an unknown caller learns no names of channels.
        raise UnauthenticatedError(f"channel {channel}: it accepts no such requests; a {field} must be set for it")
    return secrets[channel]
