"""What a peer's script is asked and what it answers. Standard library only: it runs in the peers' environment."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter

# What each script does before it measures, so that pools, connections and caches are there.
WARM_UP_STEPS = 20
WARM_UP_EXECUTIONS = 10


@dataclass(frozen=True)
class Shape:
    """How much work one run does. Both sides of a comparison are given the same."""

    serial_steps: int
    """Steps of the one workflow that runs alone."""
    executions: int
    """Workflows that run at once."""
    steps: int
    """Steps of each of those."""
    starts: int
    """Workflows started one after the other to time the way to their first line."""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Answer:
    """What one run of a peer's script measured."""

    peer: str
    version: str
    durability: str
    serial_per_second: float
    at_once_per_second: float
    start_p50_ms: float
    start_p99_ms: float
    others_per_second: dict[str, float] = field(default_factory=dict)
    """Rates of steps that promise less than those above, by name. They are printed without a goal."""


def asked() -> tuple[Path, Shape]:
    """Return the empty folder that the script may write to, and its work, from the command line."""
    folder, shape = sys.argv[1:]
    return Path(folder), Shape(**json.loads(shape))


def tell(answer: Answer) -> None:
    """Print the answer as the script's last line."""
    print(json.dumps(asdict(answer)), flush=True)


def parse_answer(output: str) -> Answer:
    """Return the answer in a script's output, which may hold a peer's own messages before it.

    Raises `ValueError` if there is none.
    """
    lines = output.splitlines()
    if not lines:
        raise ValueError("the script printed nothing")
    return Answer(**json.loads(lines[-1]))


def rate(steps: int, started: float) -> float:
    """Return how many steps a second that was, by the clock that `started` was read from."""
    return round(steps / (perf_counter() - started), 1)


def middle(samples: Sequence[float]) -> float:
    return round(statistics.median(samples), 2)


def nearly_worst(samples: Sequence[float]) -> float:
    """Return the 99th percentile: the smallest sample that no more than 1 % of them exceed."""
    return round(sorted(samples)[math.ceil(0.99 * len(samples)) - 1], 2)
