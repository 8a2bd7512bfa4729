"""Writes docs/reference/pipeline-cases.md: every recorded case of a pipeline gone wrong, and the tests that name it.

A test names a case by a comment or its name: `# bug 17`, `# bugs 24, 25`, `# D16`, `…__bug_41`. A test compares the
page with what the tests say today.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[1]
CASES = ROOT / "docs" / "pipeline-cases.toml"
PAGE = ROOT / "docs" / "reference" / "pipeline-cases.md"
NOTE = "<!-- Written by docs/pipeline_cases.py; run it after changing the tests. -->\n"
# Where tests of pipelines are. Others number what they know of by themselves.
PATTERNS: Final = (
    "tests/*/pipelines/**/test_*.py",
    "tests/*/triggers/**/test_*.py",
    "tests/*/notify/**/test_*.py",
    "tests/*/**/test_pipeline*.py",
    "tests/contract/test_triggers_*.py",
    "tests/scenarios/test_medallion.py",
)
_BUGS: Final = re.compile(r"\bbugs? (\d+(?:(?:, | and | or )(?:bugs? )?\d+)*)")
_NAMED_BUGS: Final = re.compile(r"__bugs?_(\d+(?:_\d+)*)")
_DEFECTS: Final = re.compile(r"\bD(\d+)\b")
_NAMED_DEFECTS: Final = re.compile(r"_d(\d+)(?=_|\b)")


class Span(NamedTuple):
    """Which lines of a file belong to a test."""

    name: str
    first: int
    last: int


def cases_of(line: str) -> Iterator[str]:
    """Give the cases that a line names: in a comment, or in the name of a test."""
    comment = line.partition("#")[2] if "#" in line else ""
    for numbers in _BUGS.findall(comment) + [found.replace("_", ", ") for found in _NAMED_BUGS.findall(line)]:
        yield from re.findall(r"\d+", numbers)
    yield from (f"D{number}" for number in _DEFECTS.findall(comment))
    if line.lstrip().startswith("def test"):
        yield from (f"D{number}" for number in _NAMED_DEFECTS.findall(line))


def spans_of(tree: ast.Module) -> list[Span]:
    """Return the tests of a file, decorators with them."""
    return [
        Span(node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]


def tests_of(text: str) -> dict[str, list[str]]:
    """Return the tests of a file by the cases that they name. What stands between two tests is of the next."""
    tree = ast.parse(text)
    spans = sorted(spans_of(tree), key=lambda span: span.first)
    tables = _tables(tree)
    lines = text.splitlines()
    found: dict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        for case in cases_of(line):
            for name in _belongs_to(number, spans, tables, lines):
                if name not in found[case]:
                    found[case].append(name)
    return found


def _tables(tree: ast.Module) -> list[Span]:
    """Return what else a file has at its top: the tables and helpers that its tests use."""
    found: list[Span] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("test"):
            found.append(Span(node.name, node.lineno, node.end_lineno or 0))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append(Span(node.targets[0].id, node.lineno, node.end_lineno or 0))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(Span(node.target.id, node.lineno, node.end_lineno or 0))
    return found


def _belongs_to(number: int, spans: list[Span], tables: list[Span], lines: list[str]) -> list[str]:
    inside = [span.name for span in spans if span.first <= number <= span.last]
    if inside:
        return inside
    table = next((each.name for each in tables if each.first <= number <= each.last), None)
    if table is not None:
        used = re.compile(rf"\b{re.escape(table)}\b")
        users = [span.name for span in spans if any(used.search(each) for each in lines[span.first - 1 : span.last])]
        return users[:1]
    return [span.name for span in spans if span.first > number][:1]


def named_tests() -> dict[str, list[tuple[Path, str]]]:
    """Return every test that names a case, by case."""
    found: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    files = sorted({file for pattern in PATTERNS for file in ROOT.glob(pattern)})
    for file in files:
        for case, names in tests_of(file.read_text()).items():
            found[case] += [(file.relative_to(ROOT), name) for name in names]
    return found


def page() -> str:
    """Return the page. Raises `ValueError` for a case that has neither a test nor a reason, or both."""
    known = tomllib.loads(CASES.read_text())
    cases: dict[str, str] = known["cases"]
    reasons: dict[str, str] = known["untested"]
    named = named_tests()
    if strangers := sorted(set(named) - set(cases)):
        raise ValueError(f"tests name cases that are not recorded: {strangers}; correct the number")
    untested = [case for case in cases if case not in named]
    if untested != list(reasons):
        raise ValueError(f"cases without a test are {untested}, with a reason {list(reasons)}; test it or say why not")
    rows = [
        f"| {case} | {text} | {_tests(named.get(case, []), reasons.get(case, ''))} |" for case, text in cases.items()
    ]
    return "\n".join(
        [
            "# Recorded cases",
            "",
            NOTE,
            "What has gone wrong with control planes of this kind, in production and in their code, and the tests that",
            f"keep it from going wrong here: {len(cases) - len(untested)} of {len(cases)} cases are named by a test.",
            "",
            "| Case | What went wrong | Tests that name it, or why there is none |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _tests(found: list[tuple[Path, str]], reason: str) -> str:
    by_file: dict[Path, list[str]] = defaultdict(list)
    for file, name in found:
        by_file[file].append(name)
    shown = [f"`{file}`: {', '.join(f'`{name}`' for name in names)}" for file, names in by_file.items()]
    return "<br>".join(shown) if shown else f"None. {reason}"


def main() -> None:
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
