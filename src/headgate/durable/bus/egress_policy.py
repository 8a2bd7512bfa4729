"""Egress policy: the addresses that events may be forwarded to, so that no subscription reaches internal networks."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, TransientError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Sequence[str]]

# Metadata services of clouds, which give out credentials. The first looks like a public address; the link-local ones,
# which most clouds use, are excluded as such.
_METADATA: Final = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "100.100.100.200", "fd00:ec2::254")))
# IPv6 ranges that embed an IPv4 address in their last 32 bits.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOW_32_BITS: Final = (1 << 32) - 1


def system_resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host by the operating system's resolver. Raises `OSError`."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in infos))


class Destinations(Struct, frozen=True):
    """The allowed destinations; by default, public addresses over TLS.

    `hosts` are names or addresses that need not be public; `networks` are ranges such as 10.0.0.0/8 that any name may
    resolve to; `plain_http` allows HTTP without TLS. Metadata services need an entry in `networks`: a name may resolve
    elsewhere tomorrow. Raises `SettingsError` for an invalid range.
    """

    hosts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    plain_http: bool = False

    def __post_init__(self) -> None:
        _ranges(self.networks)

    def check_scheme(self, scheme: str) -> None:
        """Raise `NonRetryable` for an address that must not be used."""
        if scheme == "https" or (scheme == "http" and self.plain_http):
            return
        remedy = "; use https, or set forward.plain_http" if scheme == "http" else "; use https"
        raise NonRetryable(f"{scheme or 'no scheme'}: events are sent over TLS{remedy}")

    def addresses(self, host: str, port: int, resolve: Resolve) -> list[str]:
        """Return the checked addresses of a host. The caller connects to these, without another lookup.

        Raises `NonRetryable` if any of them must not be reached, and `TransientError` if the host has none.
        """
        try:
            addresses = [_parsed(text) for text in resolve(host, port)]
        except (OSError, UnicodeError) as exc:
            raise TransientError(f"host {host}: it has no address: {exc}") from exc
        if not addresses:
            raise TransientError(f"host {host}: it has no address")
        is_named = _plain(host) in map(_plain, self.hosts)
        for address in addresses:
            if is_public(address) or self.is_in_network(address):
                continue
            if not is_named:
                raise NonRetryable(
                    f"host {host}: {address} is not a public address; name the host in forward.private_hosts, or its "
                    "network in forward.private_networks, to send events there"
                )
            if is_metadata(address):
                raise NonRetryable(
                    f"host {host}: {address} is for a cloud's own machines; if events are meant for it, name it in "
                    "forward.private_networks"
                )
        return [str(address) for address in addresses]

    def is_in_network(self, address: Address) -> bool:
        """Whether the settings name the network of an address."""
        return any(address in network for network in _ranges(self.networks) if network.version == address.version)


def is_public(address: Address) -> bool:
    """Whether an address is public: not of this machine, its network, or a metadata service."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inside(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in _METADATA


def is_metadata(address: Address) -> bool:
    """Whether an address is link-local or of a cloud's metadata service, which gives out credentials."""
    inner = _inside(address) if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_link_local or address in _METADATA or (inner is not None and is_metadata(inner))


@lru_cache(maxsize=16)
def _ranges(networks: tuple[str, ...]) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(network) for network in networks)
    except ValueError as exc:
        raise SettingsError(f"forward.private_networks: {exc}; use a range such as 10.0.0.0/8") from exc


def _inside(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the embedded IPv4 address of an IPv6 address, where the connection may end up."""
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & _LOW_32_BITS)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo is not None else None)


def _plain(host: str) -> str:
    return host.lower().rstrip(".").strip("[]")


def _parsed(text: str) -> Address:
    try:
        # The zone of a link-local address names an interface; such an address is never public.
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError as exc:
        raise OSError(f"{text!r} is not an address") from exc
