"""Writes every page of docs/reference that comes from the code. A test compares the pages with the code."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generator.pages import PAGES

FOLDER = Path(__file__).parents[1] / "reference"


def main() -> None:
    for name, page in PAGES.items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(page())
        print(f"wrote {FOLDER.name}/{name}", file=sys.stderr)


if __name__ == "__main__":
    main()
