"""The page of components names sources, tests and states that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "components.md"
MACHINE: Final = ROOT / "deploy" / "statemachine.asl.json"


def tables() -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the head and the rows of each table."""
    for found in re.finditer(r"(?m)^(\|.*\|)\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE.read_text()):
        head, rows = found[1], found[2].splitlines()
        yield cells(head), [cells(row) for row in rows]


def cells(line: str) -> list[str]:
    return [each.strip() for each in line.strip("|").split("|")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_components__of_every_design__have_sources_and_tests_that_exist() -> None:
    missing: list[str] = []
    count = 0
    for head, rows in tables():
        for row in rows:
            count += 1
            by_column = dict(zip(head, row, strict=True))
            sources, tests = names(by_column["Source"]), names(by_column["Test"])
            assert sources, row
            assert tests, row
            for source in sources:
                path = ROOT / source if source.startswith("deploy/") else ROOT / "src" / "headgate" / source
                missing += [] if path.is_file() else [source]
            for test in tests:
                file, _, function = test.partition("::")
                path = ROOT / "tests" / file
                is_there = path.is_file() and (not function or f"def {function}(" in path.read_text())
                missing += [] if is_there else [test]

    assert missing == []
    assert count > 90


def test_components__states_of_the_lifecycle__are_those_of_the_machine() -> None:
    machine = json.loads(MACHINE.read_text())["States"]
    inner = {name for state in machine.values() for name in state.get("ItemProcessor", {}).get("States", {})}

    named = [state for head, rows in tables() if "States" in head for row in rows for state in names(row[1])]

    assert len(named) > 40
    assert [name for name in named if name not in {*machine, *inner}] == []
