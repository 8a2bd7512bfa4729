"""One Chromium and one server with a busy shop, for all browser tests.

They last as long as the tests of this folder. pytest-xdist gives tests to workers in the order of their folders, so
that one worker runs all of these.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.acceptance.browser.person import Person
from tests.acceptance.browser.world import SECONDS_MAX, World, running_world


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world")) as found:
        yield found


@pytest.fixture(scope="package")
def chromium(world: World) -> Iterator[Browser]:
    # The world is made first: while Playwright runs, no other event loop can be run in this thread.
    del world
    program = shutil.which("chromium")
    assert program is not None, "chromium: not installed; 'make services' installs it"
    expect.set_options(timeout=SECONDS_MAX * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def person(chromium: Browser, world: World) -> Iterator[Person]:
    found = Person(chromium, world.server.url, world.key)
    yield found
    found.close()


@pytest.fixture(scope="package")
def reader(chromium: Browser, world: World) -> Iterator[Person]:
    """A person who may only read."""
    found = Person(chromium, world.server.url, world.viewer_key)
    yield found
    found.close()


class Screenshots:
    """Screenshots of pages in the folder that HEADGATE_SCREENSHOTS names; without it none, which is faster."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def take(self, page: Page, name: str, *, full_page: bool = False) -> None:
        if self._folder is not None:
            page.screenshot(path=self._folder / f"{name}.png", full_page=full_page)


@pytest.fixture(scope="package")
def screenshots() -> Screenshots:
    named = os.environ.get("HEADGATE_SCREENSHOTS")
    if named is None:
        return Screenshots(None)
    Path(named).mkdir(parents=True, exist_ok=True)
    return Screenshots(Path(named))
