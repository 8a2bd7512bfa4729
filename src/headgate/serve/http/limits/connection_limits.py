"""Connection limits: what a client may send and hold before it is authenticated, decided from sizes and times."""

from __future__ import annotations

import resource
from collections import Counter
from contextlib import nullcontext
from typing import Final, NamedTuple

from headgate.serve.http.limits.client_address import limit_key
from headgate.serve.http.limits.shared_connections import SharedConnections
from headgate.settings import LimitSettings

# A body that arrives more slowly than this makes no progress.
BODY_BYTES_PER_SECOND_MIN: Final = 256
# Descriptors that are left to the store, to child processes and to the gRPC port.
DESCRIPTORS_RESERVED: Final = 256
CONNECTIONS_MIN: Final = 16


class Refusal(NamedTuple):
    """Why a request or connection is refused."""

    status: int
    code: str
    detail: str


def check_head(limits: LimitSettings, *, line_bytes: int, head_bytes: int, headers: int) -> Refusal | None:
    """Return why a request head is refused, complete or not, or None."""
    if line_bytes > limits.request_line_bytes:
        return Refusal(
            414,
            "request_line_too_long",
            f"the request line is longer than {limits.request_line_bytes:,} bytes; send long arguments in a body",
        )
    if headers > limits.headers:
        return Refusal(431, "too_many_headers", f"the request has more than {limits.headers:,} headers; send fewer")
    if head_bytes > limits.header_bytes:
        return Refusal(
            431,
            "headers_too_large",
            f"the headers are larger than {limits.header_bytes:,} bytes; send less",
        )
    return None


def is_body_late(limits: LimitSettings, *, seconds: float, received_bytes: int) -> bool | None:
    """Whether a body made no progress in the last `seconds`; None if it is too early to tell."""
    if seconds < limits.body_seconds:
        return None
    return received_bytes < BODY_BYTES_PER_SECOND_MIN * limits.body_seconds


def connections_max(limits: LimitSettings) -> int:
    """Return the maximum number of connections, which the file descriptors of the process may lower."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return limits.connections
    return max(CONNECTIONS_MIN, min(limits.connections, descriptors - DESCRIPTORS_RESERVED))


def raise_descriptor_limit(limits: LimitSettings) -> None:
    """Raise the soft limit of file descriptors, up to the hard one, if the connections need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + DESCRIPTORS_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if raised > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


class ConnectionCounter:
    """Counts the open connections of a server, in total and by client address."""

    def __init__(
        self, limits: LimitSettings, *, is_behind_proxy: bool = False, shared: SharedConnections | None = None
    ) -> None:
        """With `shared`, the limits hold for all serving processes together."""
        self._shared = shared
        self._shared_max = limits.connections
        self._total_max = connections_max(limits)
        # The connections of a proxy belong to many clients.
        self._address_max = self._total_max if is_behind_proxy else limits.connections_per_address
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def add(self, address: str) -> Refusal | None:
        """Count a connection, or return why it is refused. A refused one is not counted."""
        client, address = address, limit_key(address)
        shared = self._shared
        with nullcontext() if shared is None else shared.locked():
            if self._total >= self._total_max or (shared is not None and shared.total >= self._shared_max):
                return Refusal(503, "too_many_connections", "the server has no connection left; retry later")
            if (self._by_address[address] if shared is None else shared.at(address)) >= self._address_max:
                return Refusal(
                    503,
                    "too_many_connections",
                    f"{client} has {self._address_max:,} connections; close some (limits.connections_per_address)",
                )
            self._total += 1
            self._by_address[address] += 1
            if shared is not None:
                shared.add(address, 1)
        return None

    def is_ahead(self, uncounted: int) -> bool:
        """Whether this serving process has more connections than another one, with those not counted yet."""
        return self._shared is not None and self._shared.is_ahead(uncounted)

    def remove(self, address: str) -> None:
        """Forget a connection that was counted."""
        address = limit_key(address)
        self._total -= 1
        if self._shared is not None:
            self._shared.add(address, -1)
        self._by_address[address] -= 1
        if self._by_address[address] <= 0:
            del self._by_address[address]
