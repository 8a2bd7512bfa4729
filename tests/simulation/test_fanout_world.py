"""Seeded histories of fan-outs whose splitters, workers, tenders and operators crash, freeze and race."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.fanout_world import World, shrink_limits
from tests.simulation.seeds import seeds

# Read here, because tests themselves see no setting of the machine.
SEEDS = seeds(8)
STEPS = 250


@pytest.mark.parametrize("seed", SEEDS)
def test_world__seeded_faults__every_chunk_is_counted_once_and_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    shrink_limits(monkeypatch.setattr)
    world = World(seed, tmp_path)
    try:
        world.run(STEPS)
    finally:
        world.close()
