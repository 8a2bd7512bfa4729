"""The page of recorded cases says what the tests say, every case has a test or a reason, and each test is there."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "pipeline-cases.md"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "pipeline_cases.py"))


def test_page__generated_anew__is_the_one_that_is_there(generator: dict[str, Any]) -> None:
    assert PAGE.read_text() == generator["page"](), "run `python docs/pipeline_cases.py`"


def test_page__every_case__is_in_it_once() -> None:
    cases = re.findall(r"^\| (D?\d+) \|", PAGE.read_text(), re.MULTILINE)

    assert cases == [*map(str, range(1, 84)), *(f"D{number}" for number in range(1, 30))]


def test_page__every_test_it_names__exists() -> None:
    for row in PAGE.read_text().splitlines():
        for file, names in re.findall(r"`(tests/[\w/.]+)`: (`test_[^|<]*)", row):
            text = (ROOT / file).read_text()
            assert [name for name in re.findall(r"`(\w+)`", names) if f"def {name}(" not in text] == []


def test_cases__without_a_test__have_a_reason_of_more_than_a_word() -> None:
    reasons = tomllib.loads((ROOT / "docs" / "pipeline-cases.toml").read_text())["untested"]

    assert all(len(reason.split()) > 5 for reason in reasons.values())


@pytest.mark.parametrize(
    ("line", "cases"),
    [
        ("    # bug 17", ["17"]),
        ("def test_a() -> None:  # bugs 24, 25", ["24", "25"]),
        ("        (1, 2),  # bug 64 and D24: the period's own day", ["64", "D24"]),
        ("def test_a__bugs_48_55() -> None:", ["48", "55"]),
        ("def test_a__bug_50_d13_d15() -> None:", ["50", "D13", "D15"]),
        ("    # D2, D20", ["D2", "D20"]),
        ('    text = "bug 17"', []),
        ("    # debugs 3 things on 3D27x", []),
    ],
)
def test_cases_of__a_line__gives_the_numbers_it_names(generator: dict[str, Any], line: str, cases: list[str]) -> None:
    assert list(generator["cases_of"](line)) == cases


def test_tests_of__table_at_the_top__is_of_the_test_that_uses_it(generator: dict[str, Any]) -> None:
    text = "TABLE = [\n    1,  # bug 7\n]\n\n\ndef test_a() -> None: ...\n\n\ndef test_b() -> None:\n    print(TABLE)\n"

    assert dict(generator["tests_of"](text)) == {"7": ["test_b"]}


def test_tests_of__comment_above_a_test__is_of_that_test(generator: dict[str, Any]) -> None:
    text = "def test_a() -> None: ...\n\n\n# D4: it read the other\ndef test_b() -> None: ...\n"

    assert dict(generator["tests_of"](text)) == {"D4": ["test_b"]}
