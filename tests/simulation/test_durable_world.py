"""Seeded histories of a fleet that crashes, freezes and races. The same seed gives the same history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.durable_app import Journal, make_app
from tests.simulation.durable_world import INPUTS, World
from tests.simulation.seeds import seeds

# Read here, because tests themselves see no setting of the machine.
SEEDS = seeds(8)
STEPS = 250


def test_app__as_it_is_simulated__passes_the_source_check() -> None:
    app = make_app(Journal(), check=True)

    assert set(INPUTS) < set(app.workflows)


@pytest.mark.parametrize("seed", SEEDS)
def test_world__seeded_faults__nothing_is_lost_or_done_again(tmp_path: Path, seed: int) -> None:
    world = World(seed, tmp_path)
    try:
        world.run(STEPS)
    finally:
        world.close()
