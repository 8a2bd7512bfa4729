"""Worker names: the short form of a worker's name for lists, plots and messages."""

from __future__ import annotations

from typing import Final, overload

_NAMESPACE: Final = " pid:["


@overload
def short_worker_name(name: str) -> str: ...
@overload
def short_worker_name(name: str | None) -> str | None: ...
def short_worker_name(name: str | None) -> str | None:
    """Return the process number and host, `4711@vm`, of a name that Headgate has made, and other names as they are.

    The whole name also has the process namespace of a container and a unique part, see `maintenance.worker_name`.
    """
    host, _, rest = (name or "").partition("|")
    pid, _, unique = rest.partition("|")
    if not (host and pid.isdigit() and unique):
        return name
    return f"{pid}@{host.partition(_NAMESPACE)[0]}"
