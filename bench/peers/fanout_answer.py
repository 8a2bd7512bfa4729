"""What a peer's fan-out script is asked and answers. Standard library only: it runs in the peers' environment."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# What each script maps before it measures, so that pools, connections and servers are there.
WARM_UP_ITEMS = 20


@dataclass(frozen=True)
class FanoutAnswer:
    """What one run of a peer's script measured: no-op items a second, from handing them in to the last result."""

    version: str
    durability: str
    items_per_second: float


def asked() -> tuple[Path, int]:
    """Return the empty folder that the script may write to, and how many items to map, from the command line."""
    folder, items = sys.argv[1:]
    return Path(folder), int(items)


def tell(answer: FanoutAnswer) -> None:
    """Print the answer as the script's last line."""
    print(json.dumps(asdict(answer)), flush=True)


def parse_answer(output: str) -> FanoutAnswer:
    """Return the answer in a script's output, which may hold a peer's own messages before it.

    Raises `ValueError` if there is none.
    """
    lines = output.splitlines()
    if not lines:
        raise ValueError("the script printed nothing")
    return FanoutAnswer(**json.loads(lines[-1]))
