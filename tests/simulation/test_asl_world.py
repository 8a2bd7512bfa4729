"""Seeded histories of a fleet that runs state machines. The same seed gives the same history."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.asl_processes import Outcome
from tests.simulation.asl_stories import STORIES, new_machine, undisturbed
from tests.simulation.asl_world import AslWorld
from tests.simulation.seeds import seeds

# Read here, because tests themselves see no setting of the machine.
SEEDS = seeds(8)
STEPS = 200


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return what every story comes to when nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    template = new_machine(folder / "template")
    return {name: undisturbed(template, folder / name, story)[1] for name, story in STORIES.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_world__seeded_faults__every_machine_comes_to_the_same(
    tmp_path: Path, seed: int, expected: dict[str, Outcome]
) -> None:
    world = AslWorld(seed, tmp_path, STORIES, expected)
    try:
        world.run(STEPS)
    finally:
        world.close()
