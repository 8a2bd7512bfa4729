"""The screenshots of README and docs, made from the shop of the browser tests: `make screenshots`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from tests.acceptance.browser.history import RAW
from tests.acceptance.browser.person import Person
from tests.acceptance.browser.world import ORDER, World, running_world

FOLDER: Final = Path(__file__).parents[3] / "docs" / "images"
BYTES_MAX: Final = 300_000
_ORDERS: Final = 2_000
_WIDTH: Final = 1280


def addresses(world: World) -> dict[str, tuple[str, int]]:
    """Return the page and the height of each screenshot."""
    return {
        "now": ("", 900),
        "incident": (f"/incidents/{world.incident_id}", 900),
        "lineage": (f"/lineage?dataset={quote(RAW, safe='')}&steps=all", 560),
        "pipeline": ("/pipelines/revenue-report", 1030),
        "fan-out": (f"/fanouts/{world.fanout_id}", 900),
        "execution": (f"/executions/{ORDER}", 760),
    }


def main(folder: Path = FOLDER) -> None:
    """Write the screenshots."""
    program = shutil.which("chromium")
    assert program is not None, "chromium: not installed; 'make services' installs it"
    with (
        tempfile.TemporaryDirectory() as place,
        running_world(Path(place), orders=_ORDERS) as world,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        person = Person(browser, world.server.url, world.key)
        for name, (address, height) in addresses(world).items():
            person.page.set_viewport_size({"width": _WIDTH, "height": height})
            page = person.open(f"/ui{address}")
            # The canvas is drawn once its cells are loaded.
            page.wait_for_timeout(500)
            path = folder / f"{name}.png"
            page.screenshot(path=path)
            size = path.stat().st_size
            assert size <= BYTES_MAX, f"{path}: {size:,} bytes; at most {BYTES_MAX:,}"
            sys.stdout.write(f"{path.name}: {size:,} bytes\n")
        person.close()
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
