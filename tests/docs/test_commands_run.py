"""Pages with commands in blocks: a test types each, but for programs that cannot run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.docs.test_commands_shown import PAGES, ROOT


class NotTyped(NamedTuple):
    """Beginnings of lines that no test types, and what they need."""

    lines: tuple[str, ...]
    reason: str


_AWS: Final = ("headgate aws ", "aws ")
NOT_TYPED: Final = {
    "README.md": NotTyped(
        ("make ", "headgate period why "),
        "CI runs `make test`, tests/acceptance/test_demo.py the demo, and tests/docs/test_walkthroughs.py the example",
    ),
    "CONTRIBUTING.md": NotTyped(("make ",), "CI runs `make test`; the others install tools, or take hours"),
    "docs/how-to/deploy-to-aws.md": NotTyped(
        (*_AWS, "pip install "),
        "needs an AWS account; `python -m tests.soak aws laptop` type such commands on an emulator",
    ),
    "docs/how-to/run-workflows-on-aws.md": NotTyped(
        _AWS, "needs an AWS account; tests/contract/test_aws_workflows.py runs the functions on an emulator"
    ),
    "docs/how-to/run-in-containers.md": NotTyped(
        ("docker ", "kubectl ", "aws "),
        "needs a container engine, a cluster and an AWS account; tests/docs/test_container_files.py checks the files",
    ),
    "docs/operations/install.md": NotTyped(
        ("useradd ", "install ", "cp ", "systemctl ", "journalctl "),
        "needs root and systemd as the first process; tests/docs/test_operations.py verifies the unit",
    ),
}
_TYPED_BY = ("docs", "acceptance", "soak", "scenarios", "integration")
_COMMAND = re.compile(
    r"^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:\S*/)?"
    r"(?:headgate|make|curl|docker|kubectl|pip|python3?|aws|useradd|install|cp|systemctl|systemd-\w+|journalctl) .*)$"
)


def commands(page: Path) -> list[str]:
    """Return the commands in the blocks of a page."""
    blocks = re.findall(r"^```(?:console|bash|sh)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [found[1] for line in lines if (found := _COMMAND.match(line))]


def _is_typed(page: Path, tests: str) -> bool:
    """Whether a test reads the page by its name."""
    if page.name == "README.md":
        return f'"{page.parent.name}" / "README.md"' in tests
    return f'"{page.name}"' in tests or f"{page.stem}.md" in tests or f'"{page.stem}"' in tests


def test_pages__with_commands__are_typed_by_a_test_but_for_lines_that_cannot_run() -> None:
    tests = "\n".join(
        path.read_text()
        for folder in _TYPED_BY
        for path in (ROOT / "tests" / folder).rglob("*.py")
        if path.name != Path(__file__).name
    )
    shown = {str(page.relative_to(ROOT)): found for page in PAGES if (found := commands(page))}
    missing = [
        f"{name}: {line}"
        for name, lines in shown.items()
        if not _is_typed(ROOT / name, tests)
        for line in lines
        if name not in NOT_TYPED or not line.startswith(NOT_TYPED[name].lines)
    ]

    assert len(shown) > 25
    assert missing == []
    unused = [
        f"{name}: {beginning}"
        for name, each in NOT_TYPED.items()
        for beginning in each.lines
        if not re.search(rf"^(\$ )?{re.escape(beginning)}", (ROOT / name).read_text(), re.MULTILINE)
    ]
    assert unused == []
    # What can run here does: another page is no reason for a longer list.
    assert len(NOT_TYPED) <= 6


def test_reasons__that_name_a_test__name_one_that_exists() -> None:
    named = [path for each in NOT_TYPED.values() for path in re.findall(r"tests/[\w/]+\.py", each.reason)]

    assert len(named) > 2
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_make__targets_that_documents_name__exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {found for page in PAGES for found in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.MULTILINE)}

    assert len(named) > 10
    assert named - targets == set()
