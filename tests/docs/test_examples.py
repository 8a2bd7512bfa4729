"""Every example in the how-to pages runs, in the order of its page."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from headgate.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
# Their files import each other and need a server: `test_walkthroughs.py` and `test_fanout_queue.py` run them.
# That of `use-airflow` needs Airflow: `python -m tests.soak airflow` runs it.
WALKED = {"call-from-a-program", "run-chunks-from-a-queue", "use-airflow"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python") and page.stem not in WALKED],
    ids=lambda page: page.stem,
)
def test_python_examples__run_from_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "\n".join(blocks(page, "python"))

    # A module like any other: dataclasses look theirs up by name.
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    exec(compile(source, str(page), "exec", dont_inherit=True), module.__dict__)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.stem)
def test_settings_examples__are_accepted(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        tomllib.loads(text)
        file = tmp_path / f"{number}.toml"
        file.write_text(text)

        settings = Settings.load({}, file, {})

        if "backend" in text:
            assert settings.store.backend == "dynamodb"
            assert settings.store.table_names == {"headgate-fanout": "acme-runs"}
