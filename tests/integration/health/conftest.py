"""A rig of signals and incidents on a real store in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import VirtualClock
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import Synchronous
from tests.health_rig import Rig
from tests.stores import open_sqlite

MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """Makes rigs, each on a store of its own."""
    with ExitStack() as stack:
        made: list[Path] = []

        def make(**more: Any) -> Rig:
            folder = tmp_path / f"rig{len(made)}"
            folder.mkdir()
            made.append(folder)
            clock = VirtualClock()
            store = stack.enter_context(closing(open_sqlite(folder, clock=clock, synchronous=Synchronous.NORMAL)))
            return Rig(store, clock, Keyring.generate(clock), folder, **more)

        yield make


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig()
