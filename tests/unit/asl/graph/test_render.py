"""Drawings of machines: as SVG, as Mermaid and as text."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.graph.labels import condition
from headgate.asl.graph.layout import Layout, arrange
from headgate.asl.graph.render import Form, StateMark, draw
from headgate.asl.model.transitions import all_machines, states_of

Json = Any
_EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "asl").glob("*.asl.json"))
_SVG = "{http://www.w3.org/2000/svg}"
_HOSTILE = '</text><script>alert("x")</script> & ]]>'


def _load(path: Path) -> Json:
    return json.loads(path.read_text())


def _layouts(layout: Layout) -> list[Layout]:
    return [layout, *(deeper for node in layout.nodes for inner in node.inner for deeper in _layouts(inner))]


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_svg__example__well_formed_with_every_state_and_nothing_from_outside(path: Path) -> None:
    definition = _load(path)

    text = draw(definition)

    root = ET.fromstring(text)
    titles = {title.text or "" for title in root.iter(f"{_SVG}title")}
    for nested in all_machines(definition):
        for name in states_of(nested.machine):
            assert any(title.startswith(f"{name} (") for title in titles)
    assert not re.search(r"(href|src|@import|url\((?!#))", text)
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_layout__example__no_state_lies_over_another_or_off_the_paper(path: Path) -> None:
    for layout in _layouts(arrange(_load(path))):
        for node in layout.nodes:
            assert node.width / 2 <= node.x + 0.01 <= layout.width - node.width / 2 + 0.02
            assert node.height / 2 <= node.y + 0.01 <= layout.height - node.height / 2 + 0.02
            for inner in node.inner:
                assert inner.width < node.width
                assert inner.height < node.height
        for one, other in combinations(layout.nodes, 2):
            apart_x = abs(one.x - other.x) >= (one.width + other.width) / 2
            apart_y = abs(one.y - other.y) >= (one.height + other.height) / 2
            assert apart_x or apart_y, (one.name, other.name)


@pytest.mark.parametrize("path", _EXAMPLES, ids=lambda path: path.stem)
def test_layout__example__arrows_begin_and_end_at_their_states(path: Path) -> None:
    for layout in _layouts(arrange(_load(path))):
        nodes = {node.name: node for node in layout.nodes}
        for line in layout.lines:
            source, target = nodes[line.arrow.source], nodes[line.arrow.target]
            assert line.points[0][1] == pytest.approx(source.y + source.height / 2)
            assert line.points[-1][1] == pytest.approx(target.y - target.height / 2)
            assert abs(line.points[0][0] - source.x) <= source.width / 2
            assert abs(line.points[-1][0] - target.x) <= target.width / 2


def test_svg__statuses__each_state_in_the_class_of_its_own() -> None:
    definition = _load(next(path for path in _EXAMPLES if path.name.startswith("poll")))
    statuses = {
        "Evaluate": StateMark.VISITED,
        "Pause": StateMark.CURRENT,
        "TooLate": StateMark.FAILED,
        "Nobody": StateMark.CAUGHT,
    }

    root = ET.fromstring(draw(definition, Form.SVG, statuses))

    found = {}
    for group in root.iter(f"{_SVG}g"):
        title, box = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        if title is not None and box is not None:
            found[str(title.text).split(" (")[0]] = box.get("class")
    assert found == {
        "Evaluate": "node visited",
        "Pause": "node current",
        "TooLate": "node failed",
        "IsReady": "node",
        "StartJob": "node",
        "Started": "node",
    }


@pytest.mark.parametrize("form", list(Form))
def test_draw__names_with_markup__written_as_text(form: Form) -> None:
    definition = {"Comment": _HOSTILE, "StartAt": _HOSTILE, "States": {_HOSTILE: {"Type": "Fail", "Error": _HOSTILE}}}

    text = draw(definition, form)

    if form is Form.SVG:
        assert not list(ET.fromstring(text).iter(f"{_SVG}script"))
    elif form is Form.MERMAID:
        assert "<script" not in text
        assert text.count('"') == 2
    else:
        assert _HOSTILE in text


def test_mermaid__parallel_and_catch__subgraphs_and_dotted_arrows() -> None:
    text = draw(_load(next(path for path in _EXAMPLES if path.name.startswith("publish"))), Form.MERMAID)

    assert text.startswith("flowchart TD\n")
    assert text.count("subgraph ") == text.count("  end\n") == 3
    assert re.search(r's\d+ -\.->\|"Table\.Locked"\| s\d+', text)
    assert re.search(r"start --> s\d+", text)


def test_outline__poll_loop__states_in_order_with_marks_and_the_way_back() -> None:
    definition = _load(next(path for path in _EXAMPLES if path.name.startswith("poll")))

    lines = draw(definition, Form.TEXT, {"Evaluate": StateMark.VISITED}).splitlines()

    assert lines[:2] == ["✓ Evaluate  Task · ${evaluate}  [visited]", "    → IsReady"]
    assert "    → StartJob  if readiness.status = READY" in lines
    assert lines[lines.index("○ Pause     Wait · 60 s") + 1] == "    → Evaluate ↑"


def test_outline__branches__indented_under_their_state() -> None:
    lines = draw(_load(next(path for path in _EXAMPLES if path.name.startswith("publish"))), Form.TEXT).splitlines()

    assert lines.index("    ┌ branch 1") < lines.index("    │ ○ WriteTable  Task · ${write_table}")
    assert "    ⚡ TakeBack  States.ALL" in lines


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"Variable": "$.a", "NumericGreaterThanEquals": 3}, "a ≥ 3"),
        ({"Variable": "$.a", "StringEqualsPath": "$.b"}, "a = $.b"),
        ({"Variable": "$.a", "IsPresent": False}, "a is absent"),
        ({"Not": {"Variable": "$.a", "BooleanEquals": True}}, "not (a = true)"),
        (
            {"Or": [{"Variable": "$.a", "IsNull": True}, {"Variable": "$.b", "StringMatches": "x*"}]},
            "a is null or b matches x*",
        ),
        ({"Condition": "{% $x > 1 %}"}, "$x > 1"),
    ],
)
def test_condition__rule__in_few_words(rule: Json, words: str) -> None:
    assert condition(rule) == words


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize(
    "definition",
    [
        pytest.param({"StartAt": "A", "States": {}}, id="empty"),
        pytest.param({"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "Gone"}}}, id="dangling"),
        pytest.param({"StartAt": "A", "States": {"A": {"Type": "Pass", "Next": "A"}}}, id="to-itself"),
        pytest.param(
            {"StartAt": "A", "States": {"A": {"Type": "Succeed"}, "B": {"Type": "Pass", "Next": "A"}}}, id="unreachable"
        ),
    ],
)
def test_draw__broken_machine__still_drawn(form: Form, definition: Json) -> None:
    text = draw(definition, form)

    assert ("Gone" in text) is False
    if form is Form.SVG:
        ET.fromstring(text)


def test_draw__long_chain__no_recursion_and_in_order() -> None:
    count = 1500
    states: dict[str, Json] = {f"S{i}": {"Type": "Pass", "Next": f"S{i + 1}"} for i in range(count)}
    states[f"S{count}"] = {"Type": "Succeed"}

    layout = arrange({"StartAt": "S0", "States": states})

    heights = {node.name: node.y for node in layout.nodes}
    assert all(heights[f"S{i}"] < heights[f"S{i + 1}"] for i in range(count))
