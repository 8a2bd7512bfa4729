"""The words of alerts: severities, routes, states and what a channel can be asked to do."""

from __future__ import annotations

import enum
from typing import Final

# Whose events these are that are nobody's pipeline: of the watchdog, of a channel, of an alarm.
INFRASTRUCTURE: Final = "INFRASTRUCTURE"


class Severity(enum.StrEnum):
    """How bad it is."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """A number that is greater the worse it is."""
        return _RANKS[self]


_RANKS: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}


class DefaultRoute(enum.StrEnum):
    """Where an event goes if nobody has said otherwise: to wake someone, to be seen, or only to be kept."""

    PAGE = "page"
    NOTIFY = "notify"
    LOG = "log"


class AlertStatus(enum.StrEnum):
    """Where an alert stands."""

    OPEN = "OPEN"
    ACKNOWLEDGED = "ACKNOWLEDGED"
    RESOLVED = "RESOLVED"
    # Kept and never sent: someone asked not to hear of it.
    MUTED = "MUTED"


class Action(enum.StrEnum):
    """What a channel is asked to tell."""

    TRIGGER = "trigger"
    ACKNOWLEDGE = "acknowledge"
    RESOLVE = "resolve"


class DeliveryState(enum.StrEnum):
    """How far the message to one channel has come."""

    PENDING = "PENDING"
    SENT = "SENT"
    # Given up: it is a dead letter of the channel's subscription, and can be redelivered.
    FAILED = "FAILED"
