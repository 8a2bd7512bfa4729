"""Documents agree with the code: generated pages are current, links lead somewhere, named tests and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from docs.generator.pages import PAGES
from headgate.cli.main import load
from headgate.settings import describe

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", PAGES)
def test_reference__page__is_what_the_code_says_today(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == PAGES[name](), "run `make reference`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links__every_relative_link__leads_to_a_file(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text())

    missing = [target for target in targets if "://" not in target and not (document.parent / target).exists()]

    assert missing == []


def test_architecture__every_test_it_names__exists() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", (ROOT / "ARCHITECTURE.md").read_text())

    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("name", "at_least"), [("ARCHITECTURE.md", 40), ("docs/security.md", 40)])
def test_modules__every_one_a_document_names__exists(name: str, at_least: int) -> None:
    text = (ROOT / name).read_text()
    named = {module for module in re.findall(r"`([\w/]+\.py)`", text) if not module.startswith("tests/")}
    present = [f"/{path.relative_to(ROOT / 'src' / 'headgate')}" for path in (ROOT / "src").rglob("*.py")]

    assert len(named) > at_least
    assert [module for module in sorted(named) if not any(path.endswith(f"/{module}") for path in present)] == []


def test_architecture__layer_table__lists_every_package_and_its_folders() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| [a-z -]+ \| `(\w+)` \| [^|]+ \|([^|]*)\|$", text, re.MULTILINE)
    listed = {package: set(re.findall(r"`(\w+)`", folders)) for package, folders in rows}
    packages = [folder for folder in (ROOT / "src" / "headgate").iterdir() if (folder / "__init__.py").exists()]
    present = {
        package.name: {folder.name for folder in package.iterdir() if (folder / "__init__.py").exists()}
        for package in packages
    }

    assert listed == present


@pytest.mark.parametrize(("name", "at_least"), [("failure-scenarios.md", 50), ("security.md", 90)])
def test_tests__every_one_a_document_names__exists(name: str, at_least: int) -> None:
    text = (ROOT / "docs" / name).read_text()
    named = re.findall(r"`(tests/[\w/.]+)::(?:\w+::)?(test_\w+)`", text)

    assert len(named) > at_least
    assert text.count("`tests/") == len(named)
    assert [test for path, test in named if f"def {test}(" not in (ROOT / path).read_text()] == []


def test_failure_scenarios__numbered__without_a_gap_and_counted_in_the_readme() -> None:
    text = (ROOT / "docs" / "failure-scenarios.md").read_text()
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \| ", text, re.MULTILINE)]

    assert numbers == list(range(1, len(numbers) + 1))
    assert f"each of {len(numbers)} failures" in (ROOT / "README.md").read_text()


def test_security__every_defence__has_a_test_and_every_setting_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    parts = re.split(r"^\| Attack \| Defence \| Module \| Test \|\n.*\n", text, flags=re.MULTILINE)[1:]
    defences = [line for part in parts for line in part.partition("\n\n")[0].splitlines()]
    settings = re.findall(r"^\| \[`([\w.]+)`\]", text, re.MULTILINE)

    assert len(parts) == 8
    assert len(defences) > 40
    assert [line for line in defences if "::test_" not in line.split(" | ")[-1]] == []
    assert len(settings) > 15
    assert set(settings) <= {row.key for row in describe()}


def test_commands__every_one_a_document_shows__exists() -> None:
    root = typer.main.get_command(load())
    shown = {
        match.group(1)
        for document in DOCUMENTS
        if "adr" not in document.parts
        for match in re.finditer(r"(?:\$ |`)headgate ([a-z][a-z-]*)", document.read_text())
    }

    known = set(getattr(root, "commands", {}))
    assert shown <= known
    assert {"up", "doctor", "key"} <= shown


def test_decisions__numbered__each_number_once() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "adr").glob("*.md"))

    assert len(numbers) == len(set(numbers))


def test_readme__opens_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    makefile = (ROOT / "Makefile").read_text()

    assert lines[3].startswith("make demo ")
    assert lines[4].startswith("make test ")
    assert re.search(r"^demo:", makefile, re.MULTILINE)
    assert re.search(r"^test:", makefile, re.MULTILINE)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


def test_changelog__of_the_version__is_dated_grouped_by_what_users_do_and_ends_with_the_upgrade() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    (first, *_) = re.findall(r"^## (\S+) - (\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    groups = re.findall(r"^### (.+)", text.split("\n## ")[1], re.MULTILINE)

    assert version is not None
    assert first[0] == version[1]
    assert groups[:2] == ["Pipelines", "Dataset health"]
    assert groups[-1].startswith("Upgrade from ")
    # A section of a release is read, not searched: details are on the pages that it names.
    assert len(text.split("\n## ")[1].splitlines()) < 130
