"""Failed logins: counted by client address, logged once for each address and period, and limited.

A credential is always verified first, by a cache lookup or one indexed read, and only failures are counted. A valid
key is therefore never refused because of other clients behind the same address. Beyond the limit a failure is answered
with 429 instead of 401.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

import structlog
from prometheus_client import CollectorRegistry, Counter

from headgate.auth.rate_limits import LimiterMaker, Rate, own_limiter
from headgate.clock import Clock
from headgate.errors import RateLimitedError

# A log line for each address and period.
PERIOD_SECONDS: Final = 60.0
ADDRESSES_MAX: Final = 10_000
_log = structlog.get_logger(__name__)


class Tally(NamedTuple):
    """The failures of an address in the current period, of which `unlogged` are not in the log yet."""

    since: float
    unlogged: int


def count_failure(tally: Tally | None, now: float) -> tuple[Tally, int]:
    """Count a failure. Return the new tally, and the failures that the log line must state; 0 means no line."""
    if tally is None or now - tally.since >= PERIOD_SECONDS:
        return Tally(now, 0), 1 + (0 if tally is None else tally.unlogged)
    return Tally(tally.since, tally.unlogged + 1), 0


class FailedLogins:
    """Counts, logs and limits failed logins. Thread-safe."""

    def __init__(
        self,
        per_minute: int,
        clock: Clock,
        registry: CollectorRegistry | None = None,
        make_limiter: LimiterMaker = own_limiter,
    ) -> None:
        """Allow `per_minute` failures for each address; 0 is unlimited."""
        self._clock = clock
        self._limiter = make_limiter("login", Rate(per_minute / 60, per_minute)) if per_minute else None
        self._tallies: OrderedDict[str, Tally] = OrderedDict()
        self._lock = threading.Lock()
        self._failures = None
        if registry is not None:
            self._failures = Counter(
                "headgate_failed_logins", "Requests with an invalid API key or token.", registry=registry
            )

    def record(self, address: str) -> None:
        """Record a failure. Raises `RateLimitedError` beyond the limit."""
        now = self._clock.monotonic()
        if self._failures is not None:
            self._failures.inc()
        with self._lock:
            tally, count = count_failure(self._tallies.get(address), now)
            self._tallies[address] = tally
            self._tallies.move_to_end(address)
            dropped = self._tallies.popitem(last=False) if len(self._tallies) > ADDRESSES_MAX else None
        if count:
            _write(address, count)
        if dropped is not None and dropped[1].unlogged:
            _write(dropped[0], dropped[1].unlogged)
        wait_seconds = 0.0 if self._limiter is None else self._limiter.wait_seconds(address, now)
        if wait_seconds > 0:
            raise RateLimitedError(
                f"authorization: too many failed logins from {address}; correct the key or token, and retry later",
                retry_after_seconds=wait_seconds,
            )

    def flush(self, *, is_final: bool = False) -> None:
        """Log the failures of periods that have ended; all of them if `is_final`."""
        now = self._clock.monotonic()
        lines = []
        with self._lock:
            for address, tally in list(self._tallies.items()):
                if is_final or now - tally.since >= PERIOD_SECONDS:
                    del self._tallies[address]
                    if tally.unlogged:
                        lines.append((address, tally.unlogged))
        for address, count in lines:
            _write(address, count)


def _write(address: str, count: int) -> None:
    _log.warning("login failed", action="auth.login", client=address, failures=count)
