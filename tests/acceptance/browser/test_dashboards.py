"""Dashboards and alert rules: every series and label that they query exists on a server with a busy shop.

Series that only a fault or DynamoDB gives samples to take theirs from meters that record such faults.
"""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headgate.errors import ThrottledError
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE
from headgate.health.metrics import HealthMeters
from headgate.health.model.enums import SignalState
from headgate.notify.enums import AlertAction
from headgate.notify.metrics import AlertMeters
from headgate.pipelines.enums import ExpectationVerdict, RunStatus, Verdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.probes.metrics import ProbeMetrics
from headgate.pipelines.probes.model import HttpProbe, Probe, ProbeResult
from headgate.serve.execution_metrics import PROCESS_SERIES
from headgate.store.stats import StoreStats
from headgate.telemetry import Metrics
from tests.acceptance.browser.world import World
from tests.acceptance.program import until
from tests.promql import OF_PROMETHEUS, Used, used

DEPLOY: Final = Path(__file__).parents[3] / "deploy"
DASHBOARDS: Final = sorted((DEPLOY / "grafana").glob("*.json"))
Samples = dict[str, list[dict[str, str]]]
# Values of labels that the shop may not have.
VALUES: Final = {
    "status": {each.value for each in RunStatus},
    "verdict": {each.value for each in ExpectationVerdict},
    "event": {each.value for each in EventName},
    "state": {*SignalState, "queued"},
    "lane": {MAIN_LANE, SLOW_LANE},
}


def samples_of(text: str) -> Samples:
    """Return the samples of a scrape by name, each as its labels."""
    found: Samples = {}
    documented = {each.name: each for each in PROCESS_SERIES}
    for family in text_string_to_metric_families(text):
        series = documented.get(family.name)
        if series is not None and series.kind == "counter" and not family.samples:
            # Nothing was counted yet.
            found[f"{series.name}_total"] = [dict.fromkeys(series.labels, "")]
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def faults() -> Samples:
    """Return the samples of faults that the shop does not have."""
    metrics = Metrics(version="test")
    meters, stats = HealthMeters(metrics.registry), StoreStats()
    meters.failed("t", "get", ThrottledError("t: throttled"))
    stats.count_throttle("get", "table t")
    stats.consumed["t", "WRITE"] = 1.0
    meters.watch_store(stats)
    alerts = AlertMeters()
    alerts.on_failed("log", AlertAction.TRIGGER)
    metrics.registry.register(alerts)
    probe = Probe(id="p", http=HttpProbe(url="https://example.com"))
    result = ProbeResult(verdict=Verdict.PASS, reason="", at_ms=1, duration_ms=1)
    ProbeMetrics(metrics.registry).observe(probe, result)
    return samples_of(metrics.render().decode())


@pytest.fixture(scope="module")
def scraped(world: World) -> Samples:
    def scrape() -> Samples:
        key = {"authorization": f"Bearer {world.key}"}
        return samples_of(httpx.get(f"{world.server.url}/metrics", headers=key, timeout=30).text)

    def is_complete() -> bool:
        # Gauges are read at intervals.
        return {"headgate_incidents_open", "headgate_fanouts_open"} <= scrape().keys()

    until(is_complete, "the gauges are read")
    return scrape()


def panels(path: Path) -> Iterator[dict[str, Any]]:
    return (each for each in json.loads(path.read_text())["panels"] if each["type"] != "row")


def missing(queries: list[str], samples: Samples) -> list[Used]:
    """Return what the queries use and no sample has."""
    asked = [each for query in queries for each in used(query)]
    return [each for each in asked if not is_found(each, samples.get(each.name, []))]


def is_found(asked: Used, samples: list[dict[str, str]]) -> bool:
    """Whether a sample has the labels, and one or an enumeration each value."""
    known = [each for each in samples if asked.labels <= each.keys()]
    values = {(label, value) for each in known for label, value in each.items()}
    return bool(known) and all(each in values or each[1] in VALUES.get(each[0], ()) for each in asked.values)


def test_dashboards__every_query__finds_its_series_and_labels(scraped: Samples) -> None:
    samples = faults() | scraped
    queries = {path.stem: [t["expr"] for each in panels(path) for t in each["targets"]] for path in DASHBOARDS}

    assert queries.keys() == {"executions", "fanouts", "health", "pipelines", "server"}
    assert sum(map(len, queries.values())) > 80
    assert {name: missing(listed, samples) for name, listed in queries.items()} == {name: [] for name in queries}


def test_rules__every_expression__finds_its_series_and_labels(scraped: Samples) -> None:
    rules = {
        path.name: yaml.safe_load(path.read_text()) for path in sorted((DEPLOY / "prometheus").glob("*-rules.yml"))
    }
    queries = {
        name: [rule["expr"] for group in each["groups"] for rule in group["rules"]] for name, each in rules.items()
    }

    assert sum(map(len, queries.values())) > 20
    assert {name: missing(listed, faults() | scraped) for name, listed in queries.items()} == {
        name: [] for name in queries
    }


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard__file__is_what_the_description_says_and_can_be_imported(path: Path) -> None:
    described = runpy.run_path(str(DEPLOY / "dashboards.py"))
    written = {each.name: described["dashboard_json"](each) for each in described["DASHBOARDS"]}
    content = json.loads(path.read_text())
    boxes = [each["gridPos"] for each in content["panels"]]

    assert path.read_text() == written[path.stem], "run `make docs`"
    assert len({each["id"] for each in content["panels"]}) == len(boxes)
    cells = [
        (x, y)
        for box in boxes
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    ]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert max(x for x, _ in cells) < 24
    for panel in panels(path):
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= OF_PROMETHEUS.union(*(each.labels for each in used(target["expr"]))), panel["title"]


def test_used__query__gives_series_with_matchers_and_groups() -> None:
    query = 'sum by (table) (rate(a_total{job=~"x", code="1"}[$__rate_interval])) / ignoring(table) max(b) > 3'

    assert used(query) == [
        Used("a_total", frozenset({"table", "code"}), frozenset({("code", "1")})),
        Used("b", frozenset()),
    ]
    wrong = ["a_total", 'b{wrong="1"}', 'b{right="2"}', 'b{right="1"}', 'b{right=~"2"}']
    found = missing(wrong, {"b": [{"right": "1"}]})
    assert [(each.name, *each.values) for each in found] == [("a_total",), ("b", ("wrong", "1")), ("b", ("right", "2"))]
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        used("sum by (")
