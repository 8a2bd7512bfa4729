"""Hosts: which machine and process this is, and whether another process of it is still there."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def this_host() -> str:
    """Return what tells apart machines, and containers that share a name but not their processes."""
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return f"{socket.gethostname()} {processes}".strip()


def is_running(pid: int) -> bool:
    """Whether a process of this host is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
