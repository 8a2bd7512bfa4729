"""Seeded histories on every backend. A failure prints its seed; the same seed gives the same history."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.store.port import Store
from tests.simulation.model import Simulation
from tests.stores import open_sqlite

STEPS = 120


@pytest.mark.parametrize("seed", range(40))
def test_sqlite__seeded_history__agrees_with_the_model_after_every_step(tmp_path: Path, seed: int) -> None:
    clock = VirtualClock()

    def reopen() -> Store:
        return open_sqlite(tmp_path, clock=clock)

    simulation = Simulation(seed, clock, reopen)
    told = []
    for _ in range(STEPS):
        try:
            told.append(simulation.step())
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}, step {len(told)}, after {told[-3:]}") from exc
    simulation.check_stream()
    simulation.store.close()
