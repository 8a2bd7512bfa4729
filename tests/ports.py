"""Ports for the servers that tests start, one after the other.

They lie below the range from which the kernel takes the ports of connections: a port of that range that is free now may
belong to somebody's connection when the server binds it. Each process of pytest has a share of its own.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

_FIRST: Final = 20_000
_SHARE: Final = 1_000
_SHARES: Final = 12
_worker: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Beginning anywhere: a soak or a second run may have the same share.
_places: Final = itertools.count(os.getpid())


def free_port() -> int:
    """Return a port on which no one listens, and that this process does not return again soon."""
    for _ in range(_SHARE):
        port = _FIRST + _worker % _SHARES * _SHARE + next(_places) % _SHARE
        with socket.socket() as probe:
            # As servers do: connections of an earlier one may linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port is free from {_FIRST} on")
