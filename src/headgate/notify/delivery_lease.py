"""Delivery lease: the one alert configuration that is in force on tables that several deployments share.

Deliveries are rows that any process could claim, and each process routes alerts by its own configuration. So a server
without a configuration could send to its console what the functions are to send to SNS. The lease names the deployment
that delivers, and processes of another one leave the alerts alone.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError
from headgate.notify.configuration import NotifyConfig
from headgate.store.catalogue.tables import ALERT_DELIVERER, CONTROL
from headgate.store.model.conditions import absent, version_is
from headgate.store.port import Store

# Ten ticks of the functions: a short outage of the deliverer does not hand the alerts to another deployment.
LEASE_SECONDS: Final = 600.0


class DeliveryLease(Struct, frozen=True, omit_defaults=True):
    """Which deployment delivers alerts, by which configuration, and until when."""

    holder: str
    digest: str
    until_ms: int
    version: int = 0


def config_digest(config: NotifyConfig) -> str:
    """Return what identifies an alert configuration."""
    return hashlib.blake2b(msgspec.json.encode(config, order="deterministic"), digest_size=8).hexdigest()


def may_take(stored: DeliveryLease | None, holder: str, digest: str, now_ms: int) -> bool:
    """Whether a deployment may take the lease: it is free or expired, or its own, or has the same configuration."""
    return stored is None or stored.until_ms <= now_ms or stored.holder == holder or stored.digest == digest


class DeliveryLeases:
    """The delivery lease of a store, for one deployment."""

    def __init__(self, store: Store, clock: Clock, config: NotifyConfig, *, holder: str) -> None:
        """`holder` names the deployment: its processes share the lease, and a changed configuration takes effect."""
        self._store = store
        self._clock = clock
        self._digest = config_digest(config)
        self._holder = holder

    def take(self) -> str:
        """Take or extend the lease. Returns an empty text, or the holder that has it instead."""
        key = ALERT_DELIVERER.key()
        while True:
            now_ms = epoch_ms(self._clock)
            item = self._store.get(CONTROL, key, consistent=True)
            stored = None if item is None else typed_decode.convert(item, DeliveryLease)
            if stored is not None and not may_take(stored, self._holder, self._digest, now_ms):
                return stored.holder
            version = 0 if stored is None else stored.version
            taken = DeliveryLease(self._holder, self._digest, now_ms + round(1000 * LEASE_SECONDS), version + 1)
            row = {**CONTROL.key_attributes(key), **msgspec.to_builtins(taken)}
            try:
                self._store.put(CONTROL, row, condition=absent() if stored is None else version_is(version))
            except ConflictError:
                continue
            return ""
