"""What several tests of alerts use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.notify.notices import Audience
from tests.unit.notify.rig import LocalService, Reply, Request, World


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(config: dict[str, Any] | None = None, **audiences: Audience) -> World:
        made.append(World(tmp_path, config, **audiences))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[Request], Reply | None]], LocalService]]:
    started: list[LocalService] = []

    def start(answer: Callable[[Request], Reply | None]) -> LocalService:
        started.append(LocalService(answer))
        return started[-1]

    yield start
    for each in started:
        each.stop()
