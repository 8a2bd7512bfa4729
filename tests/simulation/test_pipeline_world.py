"""Pipelines in a world that fails: one live run a period, no lock left behind, and no wish forgotten."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.simulation.pipeline_world import PipelineWorld

SEEDS, STEPS = 8, 200


@pytest.mark.parametrize("seed", range(SEEDS))
def test_world__of_any_seed__keeps_its_promises(tmp_path: Path, seed: int) -> None:
    with closing(PipelineWorld(seed, tmp_path)) as world:
        world.run(STEPS)


def test_world__of_one_seed_twice__goes_the_same_way(tmp_path: Path) -> None:
    # Otherwise a seed that fails once could not be looked at again.
    logs = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with closing(PipelineWorld(3, tmp_path / name)) as world:
            for _ in range(60):
                world.step()
            logs.append((world.log, [(run.run_id, run.status) for run in world.all_runs()]))

    assert logs[0] == logs[1]
