"""The page for users of Temporal and DBOS: each line of its table is part of the example that runs."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from-temporal-and-dbos.md"


def test_table__every_line_of_code__is_in_the_example() -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = {line.strip() for line in example.splitlines()}
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    concepts = [row[2].strip(" |`") for row in rows if row[0] not in ("| Temporal", "| Wanted") and "](" not in row[2]]

    assert len(concepts) > 30
    # A part of a line counts where the table leaves out what the example does with it.
    assert [code for code in concepts if not any(code in line for line in lines)] == []


def test_table__what_others_have__names_a_section_that_exists() -> None:
    sections = re.findall(r"\]\(([\w-]+\.md)#([\w-]+)\)", PAGE.read_text())

    assert len(sections) > 5
    for name, anchor in sections:
        headings = re.findall(r"^#+ (.+)$", (PAGE.parent / name).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, anchor
