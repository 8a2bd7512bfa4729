"""The page of metrics names every series that a running server exports, with its type and labels."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.program import Server

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_metrics__of_a_running_server__are_on_the_page_with_type_and_labels(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \| ([^|]*) \|", PAGE.read_text(), re.MULTILINE)
    page = {name.removesuffix("_total"): (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    with Server(tmp_path) as server:
        assert httpx.get(f"{server.url}/api/v1/pipelines", timeout=20.0).status_code == 200
        text = httpx.get(f"{server.url}/metrics", timeout=20.0).text

    families = {each.name: each for each in text_string_to_metric_families(text)}
    # Those of the Python runtime and of the process come from the Prometheus client.
    ours = {
        name: each
        for name, each in families.items()
        if not name.startswith(("python_", "process_")) and not (name.endswith("_created") and each.type == "gauge")
    }

    assert len(ours) > 50
    assert sorted(ours.keys() - page.keys()) == []
    for name, family in ours.items():
        kind, labels = page[name]
        assert family.type == kind, name
        shown = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert shown <= labels, name
