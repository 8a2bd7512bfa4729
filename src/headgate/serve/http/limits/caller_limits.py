"""Caller limits: failed logins and writes, on every protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from headgate.auth.failed_logins import FailedLogins
from headgate.auth.principals import CredentialKind, Principal
from headgate.auth.rate_limits import Limiter, LimiterMaker, Rate, own_limiter
from headgate.clock import Clock
from headgate.errors import RateLimitedError
from headgate.serve.http.limits.client_address import ClientAddresses, limit_key
from headgate.settings import LimitSettings, is_loopback

# Unless set: writes a second of a caller with credentials, and of an address other than loopback.
WRITES_PER_SECOND: Final = 2_000
# Capacity of a bucket, in seconds of writes.
BURST_SECONDS: Final = 2.0


class CallerLimits:
    """Limits callers by principal and address. Thread-safe.

    Unless a limit is set, local programs without credentials are not limited. Behind a proxy that does not forward
    client addresses, the limits by address do not apply to writes.
    """

    def __init__(
        self,
        limits: LimitSettings,
        clock: Clock,
        *,
        addresses: ClientAddresses | None = None,
        registry: CollectorRegistry | None = None,
        make_limiter: LimiterMaker = own_limiter,
    ) -> None:
        """Limit this process; with a `make_limiter` of shared buckets, all serving processes together."""
        self.addresses = ClientAddresses() if addresses is None else addresses
        self.failed_logins = FailedLogins(limits.failed_logins_per_minute, clock, registry, make_limiter)
        self._clock = clock
        self._limits_local = (
            limits.writes_per_second_per_caller is not None or limits.writes_per_second_per_address is not None
        )
        self._by_caller = _limiter(make_limiter, "caller", limits.writes_per_second_per_caller)
        by_address = limits.writes_per_second_per_address if self.addresses.is_per_client else 0
        self._by_address = _limiter(make_limiter, "address", by_address)
        self._refusals = None
        if registry is not None:
            self._refusals = Counter(
                "headgate_limited_writes", "Writes refused by a rate limit.", ["limit"], registry=registry
            )

    def on_failed_login(self, peer: str, headers: Mapping[str, str]) -> None:
        """Record a failed login. Raises `RateLimitedError` beyond the limit."""
        self.failed_logins.record(limit_key(self.addresses.of(peer, headers)))

    def check_write(self, principal: Principal | None, peer: str, headers: Mapping[str, str]) -> None:
        """Count a write. Raises `RateLimitedError` beyond a limit."""
        is_local = principal is not None and principal.kind is CredentialKind.LOCAL
        if principal is not None and self._by_caller is not None and (self._limits_local or not is_local):
            self._check(self._by_caller, "caller", principal.name)
        if self._by_address is None:
            return
        address = self.addresses.of(peer, headers)
        if self._limits_local or not is_loopback(address):
            self._check(self._by_address, "address", limit_key(address))

    def _check(self, limiter: Limiter, limit: str, key: str) -> None:
        wait_seconds = limiter.wait_seconds(key, self._clock.monotonic())
        if wait_seconds > 0:
            if self._refusals is not None:
                self._refusals.labels(limit).inc()
            raise RateLimitedError(
                f"{key}: too many writes a second; send fewer, or batches (limits.writes_per_second_per_{limit})",
                retry_after_seconds=wait_seconds,
            )


def _limiter(make_limiter: LimiterMaker, name: str, per_second: int | None) -> Limiter | None:
    rate = WRITES_PER_SECOND if per_second is None else per_second
    return make_limiter(name, Rate(rate, max(1.0, rate * BURST_SECONDS))) if rate else None
