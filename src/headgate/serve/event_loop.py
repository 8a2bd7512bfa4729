"""The event loop that servers run on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final

# Python's own is 5 ms: as long as many an answer may take in all.
SWITCH_SECONDS: Final = 0.001


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes a loop: uvloop's, or None for asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        # It does not exist for Windows; asyncio's own loop does the same, more slowly.
        return None
    return uvloop.new_event_loop


def give_way() -> None:
    """Let threads that compute give way to the loop sooner than Python would."""
    sys.setswitchinterval(SWITCH_SECONDS)
