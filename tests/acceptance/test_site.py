"""The documents build as a site, strictly, and its pages load nothing from other hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from docs.site import external_loads

ROOT = Path(__file__).parents[2]


def test_site__built_strictly__has_every_page_and_loads_nothing_from_other_hosts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs.site"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )

    assert done.returncode == 0, done.stderr
    pages = ROOT / ".site" / "pages"
    assert "<h1" in (pages / "docs" / "tutorial-loop" / "index.html").read_text()
    assert list(external_loads(pages)) == []


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example.org/css">',
        '<img alt="x" src="//cdn.example.org/x.png">',
    ],
)
def test_external_loads__of_a_page_with_one__names_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(text)

    assert len(list(external_loads(tmp_path))) == 1
