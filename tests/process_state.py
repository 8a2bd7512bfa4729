"""Whether a process of a test still runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended and is not collected yet does not.

    The answer is "no such file" for a process that is gone, "no such process" for one that ends meanwhile.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def is_gone(pid: int) -> bool:
    return not is_alive(pid)
