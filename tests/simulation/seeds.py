"""Seeds of the simulations: a few in every test run, any number from any first one in a soak."""

from __future__ import annotations

import os
from typing import Any

import pytest


def seeds(usual: int) -> list[Any]:
    """Return the seeds to run: `usual` many from 0, or HEADGATE_TEST_SEEDS many from HEADGATE_TEST_FIRST_SEED."""
    first = int(os.environ.get("HEADGATE_TEST_FIRST_SEED", "0"))
    count = int(os.environ.get("HEADGATE_TEST_SEEDS", str(usual)))
    return [pytest.param(seed, marks=pytest.mark.seeded) for seed in range(first, first + count)]
