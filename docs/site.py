"""Builds the documentation as a site of static pages in the folder `.site/pages`. Run by `make site`.

The build is strict: a link or an anchor that leads nowhere, and a page without a place in the navigation, fail it.
Pages load nothing from other hosts.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / ".site"
# What the site is made of, at the same relative places, so that links work in a checkout and on the site.
SOURCES: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "examples",
    "deploy/systemd",
)
# Pages of docs/how-to for operators; the others are for those who build.
OPERATIONS: Final = frozenset(
    {
        "back-up-and-restore",
        "dashboards",
        "deploy-new-code",
        "deploy-to-aws",
        "look-inside",
        "observe-executions",
        "operate-many-pipelines",
        "operate-on-aws",
        "run-in-containers",
        "run-on-aws",
        "run-workflows-on-aws",
        "send-alerts",
        "sign-in",
        "size-the-server",
    }
)
Nav = list[dict[str, Any]]


def main() -> None:
    """Build the site, and exit with an error if it has warnings."""
    source = staged(FOLDER / "source")
    configuration = load_config(str(ROOT / "mkdocs.yml"), nav=navigation(source))
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    build(configuration)
    loads = list(external_loads(FOLDER / "pages"))
    if loads:
        sys.exit("\n".join(["pages load from other hosts:", *loads]))
    print(f"built {(FOLDER / 'pages').relative_to(ROOT)}/index.html", file=sys.stderr)


def staged(folder: Path) -> Path:
    """Return a folder with links to what the site is made of."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SOURCES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    return folder


def navigation(source: Path) -> Nav:
    """Return the navigation: every page once, by title."""
    how_to = sorted((source / "docs" / "how-to").glob("*.md"))
    operating = [path for path in how_to if path.stem in OPERATIONS]
    building = [path for path in how_to if path.stem not in OPERATIONS]
    return [
        {
            "Start": [
                *_entries(source, [source / "README.md"]),
                *_entries(source, sorted(source.glob("examples/**/*.md"))),
            ]
        },
        {"Tutorial": _entries(source, sorted((source / "docs").glob("tutorial*.md")))},
        {"How-to": _entries(source, building)},
        {
            "Concepts": [
                *_entries(source, sorted((source / "docs" / "concepts").glob("*.md"))),
                *_entries(source, [source / "docs" / "comparison.md", source / "docs" / "glossary.md"]),
            ]
        },
        {
            "Reference": [
                *_entries(source, sorted((source / "docs" / "reference").glob("*.md"))),
                *_entries(source, sorted((source / "docs" / "reference" / "rest").glob("*.md"))),
            ]
        },
        {
            "Operations": [
                *_entries(source, sorted((source / "docs" / "operations").glob("*.md"))),
                *_entries(source, operating),
                *_entries(
                    source,
                    [source / "docs" / f"{name}.md" for name in ("failure-scenarios", "reliability", "security")]
                    + [source / "SECURITY.md"],
                ),
            ]
        },
        {
            "Decisions": [
                *_entries(source, [source / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")]),
                *_entries(source, sorted((source / "docs" / "adr").glob("*.md"))),
            ]
        },
    ]


def _entries(source: Path, pages: list[Path]) -> Nav:
    return [{_title(page): str(page.relative_to(source))} for page in pages]


def _title(page: Path) -> str:
    found = re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)
    assert found is not None, f"{page}: it has no title"
    return found[1].replace("`", "")


def external_loads(pages: Path) -> Iterator[str]:
    """Give what built pages would load from other hosts: scripts, styles, fonts, images and frames."""
    for page in pages.rglob("*.html"):
        for found in re.finditer(
            r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//[^"]*"|<link(?![^>]*rel="?canonical)[^>]*\shref="(?:https?:)?//[^"]*"',
            page.read_text(),
        ):
            yield f"{page.relative_to(pages)}: {found[0]}"
    for style in pages.rglob("*.css"):
        for found in re.finditer(r"url\([\"']?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", style.read_text()):
            yield f"{style.relative_to(pages)}: {found[0]}"


if __name__ == "__main__":
    main()
