"""Client address: the address of a caller, for limits and the log.

It is the peer of the connection, or, behind a proxy, the last entry of the header that the proxy sets. Earlier entries
come from the client and prove nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

UNKNOWN: Final = "unknown"
_IPV6_PREFIX: Final = 64


class ClientAddresses:
    """Determines client addresses. Without a header it is the peer of the connection."""

    def __init__(self, header: str | None = None, *, is_behind_proxy: bool = False) -> None:
        self._header = None if header is None else header.lower()
        # Whether the address belongs to a client, and not to a proxy that all of them share.
        self.is_per_client = header is not None or not is_behind_proxy

    def of(self, peer: str, headers: Mapping[str, str]) -> str:
        """Return the address of a caller. `peer` is `HOST:PORT`, or in gRPC's form (`ipv4:127.0.0.1:5000`)."""
        if self._header is not None:
            forwarded = normalized(headers.get(self._header, "").rpartition(",")[2].strip())
            if forwarded is not None:
                return forwarded
        return peer_address(peer)


@lru_cache(maxsize=4096)
def peer_address(peer: str) -> str:
    """Return the host of a peer."""
    if peer.startswith("unix:"):
        return "127.0.0.1"
    text = peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")
    return normalized(text.rpartition(":")[0]) or UNKNOWN


def normalized(text: str) -> str | None:
    """Return an IP address in its usual form, without brackets, zone and port; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=4096)
def limit_key(address: str) -> str:
    """Return the key of an address in limits: an IPv6 client has a whole /64 at its disposal."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return address
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))
