"""What a peer's start script is asked and answers. Standard library only: it runs in the peers' environment."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

# Runs that each script starts before it measures.
WARM_UP_STARTS = 1


@dataclass(frozen=True)
class StartAnswer:
    """What one run of a peer's script measured: milliseconds from asking for a run to the first line of its job."""

    version: str
    way: str
    starts_ms: list[float]


def asked() -> tuple[Path, int]:
    """Return the empty folder that the script may write to, and how many runs to start, from the command line."""
    folder, starts = sys.argv[1:]
    return Path(folder), int(starts)


def tell(answer: StartAnswer) -> None:
    """Print the answer as the script's last line."""
    print(json.dumps(asdict(answer)), flush=True)


def parse_answer(output: str) -> StartAnswer:
    """Return the answer in a script's output, which may hold a peer's own messages before it.

    Raises `ValueError` if there is none.
    """
    lines = output.splitlines()
    if not lines:
        raise ValueError("the script printed nothing")
    return StartAnswer(**json.loads(lines[-1]))
