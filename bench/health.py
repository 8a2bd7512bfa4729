"""Health: what calls, boards, signals, stories, gates and evidence cost on a full store, and how far lineage reaches.

`python -m bench health` fills a store with a twentieth of what it is expected to hold; `run(scale=1.0)` with all of
it. The whole load at once is `health_load`.
"""

from __future__ import annotations

from bench import health_answers, health_calls, health_evidence, health_signals, lineage
from bench.fanout_runs import quiet
from bench.health_rows import filled, sizes
from bench.measure import Figure

SCALE = 0.05
ROUNDS = 5
REQUESTS = 1_600
CONTEXTS, GATES = 200, 5_000


def run(
    scale: float = SCALE,
    rounds: int = ROUNDS,
    requests: int = REQUESTS,
    batches: int = health_signals.BATCHES,
    seconds: float = health_evidence.SECONDS,
    trial_seconds: float = health_evidence.TRIAL_SECONDS,
) -> list[Figure]:
    """Return every figure of this group. Smaller sizes show that it works, not how fast it is."""
    quiet()
    size = sizes(scale)
    with filled(scale) as home:
        # Evidence comes last: it leaves the store larger than it was.
        figures = [
            *health_calls.run(home, size, requests, rounds),
            *health_signals.run(home, size, batches, rounds),
            *health_answers.run(home, size, CONTEXTS, GATES),
            *health_evidence.run(home, size, seconds, trial_seconds),
        ]
    return [*figures, *lineage.run()]
