"""Live updates: when pages are notified of a batch."""

from __future__ import annotations

import random

from headgate.serve.pages.change_feed import PACE_SECONDS
from headgate.serve.pages.live_updates import delay_seconds

# For rendering and sending it.
LEFT_SECONDS = 0.1


def test_delay__a_lone_page__is_notified_at_once() -> None:
    assert delay_seconds(1, 0.5, 1.0) < 0.01


def test_delay__a_crowd__some_are_ahead_and_the_others_are_spread_within_a_second_of_the_change() -> None:
    draw = random.Random(1)
    delays = sorted(delay_seconds(200, draw.random(), draw.random()) for _ in range(200))

    ahead = [each for each in delays if each == 0]
    others = delays[len(ahead) :]
    assert 1 <= len(ahead) <= 30
    assert others[0] >= 0.1
    assert others[-1] - others[0] > 0.15
    # In any part of the spread that a rendering may take, fewer than the server lets wait.
    assert max(sum(start <= each < start + 0.05 for each in others) for start in others) < 64
    assert PACE_SECONDS + others[-1] < 1 - LEFT_SECONDS
