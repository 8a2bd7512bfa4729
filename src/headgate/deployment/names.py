"""Names of AWS resources that are made from names of an app."""

from __future__ import annotations

import hashlib
import re
from typing import Final

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST: Final = 6


def resource_name(name: str, characters_max: int) -> str:
    """Return a part of a resource's name: the name itself, with a digest if it had to be changed."""
    safe = _UNSAFE.sub("-", name)[:characters_max]
    if safe == name:
        return safe
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{safe[: characters_max - _DIGEST - 1]}-{digest}"
