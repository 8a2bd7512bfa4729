"""Every scenario runs twice: with the whole history replayed for each turn, and with coroutines that stay alive."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import headgate as hg

_MEMORY = Path("/dev/shm")

OpenEnvironment = Callable[[hg.App], hg.testing.Environment]


@pytest.fixture(autouse=True)
def stores_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the scenarios the wait for a disk, where the system has a folder in memory: they are about order alone."""
    if os.access(_MEMORY, os.W_OK):
        monkeypatch.setattr(tempfile, "tempdir", str(_MEMORY))


@pytest.fixture(params=["replayed", "live"])
def replay_always(request: pytest.FixtureRequest) -> bool:
    """Whether every turn is computed by replaying the whole history."""
    return bool(request.param == "replayed")


@pytest.fixture
def open_env(replay_always: bool) -> Iterator[OpenEnvironment]:
    """Return what opens an environment for an app, to be closed after the test."""
    with ExitStack() as exits:

        def open_for(app: hg.App) -> hg.testing.Environment:
            return exits.enter_context(hg.testing.Environment(app, replay_always=replay_always))

        yield open_for
