"""Tracebacks: the frames of the user's own code, which say where to look first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(r'\s*File "(?P<path>[^"]+)", line \d+')
# Frames of Headgate, of the standard library and of installed packages.
_PACKAGE: Final = Path(__file__).parents[2]
_OTHERS: Final = re.compile(rf"^{re.escape(str(_PACKAGE))}/|/lib(?:64)?/python3|/site-packages/|^<")


def own_frames(trace: str) -> str:
    """Return the frames of a traceback that are neither Headgate's nor a library's; all if there are none of these."""
    kept: list[str] = []
    is_own = False
    for line in trace.splitlines():
        found = _FRAME.match(line)
        if found is not None:
            is_own = _OTHERS.search(found["path"]) is None
        if is_own:
            kept.append(line)
    return "\n".join(kept) or trace
