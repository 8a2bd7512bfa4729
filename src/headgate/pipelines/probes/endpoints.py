"""Probe endpoints: the addresses of databases that probes may connect to.

Databases are usually in a private network, and probes come from the project folder alone, so private addresses are
allowed. Link-local and metadata addresses, which give out a cloud's credentials, are not, unless the settings name
their network.
"""

from __future__ import annotations

import ipaddress

from headgate.durable.bus.egress_policy import Destinations, Resolve, is_metadata, system_resolve
from headgate.errors import DefinitionError
from headgate.pipelines.enums import FailureCategory
from headgate.pipelines.probes.errors import ProbeFailedError


class DatabaseHosts:
    """Resolves the hosts of databases, and refuses metadata services."""

    def __init__(self, destinations: Destinations, resolve: Resolve = system_resolve) -> None:
        self._destinations = destinations
        self._resolve = resolve

    def address(self, host: str, port: int) -> str:
        """Return the checked address of a host, to which the caller connects. Raises `ProbeFailedError`."""
        try:
            texts = [text.partition("%")[0] for text in self._resolve(host, port)]
            addresses = [ipaddress.ip_address(text) for text in texts]
        except (OSError, ValueError) as exc:
            raise ProbeFailedError(f"host {host}: it has no address: {exc}", FailureCategory.TRANSIENT) from exc
        if not addresses:
            raise ProbeFailedError(f"host {host}: it has no address", FailureCategory.TRANSIENT)
        for address in addresses:
            if is_metadata(address) and not self._destinations.is_in_network(address):
                raise DefinitionError(
                    f"host {host}: {address} is for a cloud's own machines; if a probe is meant to reach it, name it "
                    "in forward.private_networks"
                )
        return str(addresses[0])
