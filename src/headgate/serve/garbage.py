"""How servers and workers have Python look for garbage: seldom, and only among what came after the start.

What requests and turns leave behind is freed as it is let go of; only what refers to itself waits for the collector. By
default that walks over the young after every 700 objects, and over everything there is before long: a batch of a
thousand items would be walked over many times while it is at work, and the caches with it, while everyone else waits.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_MAX: Final = 20_000
_OLDER: Final = (20, 20)


def look_seldom() -> None:
    """Look for garbage less often from now on: a program that begins makes little, and much that stays."""
    gc.set_threshold(YOUNG_MAX, *_OLDER)


def settle() -> None:
    """Take what is there for good, and look for garbage less often from now on."""
    gc.collect()
    gc.freeze()
    look_seldom()
