"""Alert enums: severities, default routes, states and channel actions."""

from __future__ import annotations

import enum
from typing import Final

# Pipeline id of events without a pipeline: of the watchdog, a channel, an alarm.
INFRASTRUCTURE: Final = "INFRASTRUCTURE"


class Severity(enum.StrEnum):
    """The severity of an alert."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """A number that increases with severity."""
        return _RANKS[self]


_RANKS: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class DefaultRoute(enum.StrEnum):
    """Where an event goes without a matching route: `page` critical ones, `notify` warnings, `log` successes."""

    PAGE = "page"
    NOTIFY = "notify"
    LOG = "log"


class AlertStatus(enum.StrEnum):
    """The state of an alert."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"
    # Stored but not sent, because a mute applies.
    MUTED = "MUTED"


class AlertAction(enum.StrEnum):
    """The action that is sent to a channel."""

    TRIGGER = "trigger"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"


class DeliveryState(enum.StrEnum):
    """The state of a delivery."""

    PENDING = "PENDING"
    SENT = "SENT"
    # Out of retries: a dead letter of the channel's subscription, which can be redelivered.
    FAILED = "FAILED"
