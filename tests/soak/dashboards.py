"""Dashboards: a real Prometheus scrapes a server with a busy shop, and evaluates every query and alert rule.

It needs Debian's `prometheus`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from tests.acceptance.browser.world import World, running_world
from tests.acceptance.program import until
from tests.promql import used
from tests.soak.figures import Figure

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
# What only a fault or DynamoDB counts, and what the shop does not do.
WITHOUT_DATA: Final = frozenset(
    {
        "dynamodb_consumed_capacity_total",
        "dynamodb_errors_total",
        "dynamodb_throttle_count_total",
        "headgate_alerts_failed_total",
        "headgate_probe_looks_total",
        "headgate_probe_seconds_bucket",
        "headgate_turn_failures_total",
    }
)
SCRAPE_SECONDS: Final = 2
# Rates need two scrapes, and the gauge of incidents is read each minute.
SETTLE_SECONDS: Final = 75.0


def run(folder: Path) -> list[Figure]:
    """Evaluate all queries; return how many have data."""
    program = shutil.which("prometheus")
    if program is None:
        raise FileNotFoundError("prometheus is missing; install Debian's package prometheus")
    with running_world(folder / "world") as world, Prometheus(program, folder, world) as prometheus:
        time.sleep(SETTLE_SECONDS)
        return [*_rules(folder), *_queries(prometheus), *_alerts(prometheus)]


class Prometheus:
    """A Prometheus on a free port that scrapes a world with the rules of deploy/prometheus."""

    def __init__(self, program: str, folder: Path, world: World) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        home = folder / "prometheus"
        shutil.copytree(DEPLOY / "prometheus", home)
        config = yaml.safe_load((home / "prometheus.yml").read_text())
        config["global"] = dict.fromkeys(config["global"], f"{SCRAPE_SECONDS}s")
        config["scrape_configs"][0]["static_configs"] = [{"targets": [world.server.url.removeprefix("http://")]}]
        (home / "prometheus.yml").write_text(yaml.safe_dump(config))
        (home / "headgate.key").write_text(world.viewer_key)
        self._log = (home / "log").open("wb")
        command = [program, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data"]
        self._process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], cwd=home, stdout=self._log, stderr=subprocess.STDOUT
        )

    def __enter__(self) -> Prometheus:
        until(self._is_ready, "Prometheus is ready", 60)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Prometheus ended"
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=5).is_success
        except httpx.TransportError:
            return False

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of a query now. Raises for a query that Prometheus refuses."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=30)
        assert answer.is_success, f"{expr}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Return the alert rules as Prometheus evaluates them."""
        groups = httpx.get(f"{self.url}/api/v1/rules", timeout=30).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


def _rules(folder: Path) -> list[Figure]:
    files = sorted(path.name for path in (DEPLOY / "prometheus").glob("*-rules.yml"))
    home = folder / "prometheus"
    checks = (["check", "config", "prometheus.yml"], ["check", "rules", *files])
    ended = [subprocess.run(["promtool", *each], cwd=home, check=False, capture_output=True) for each in checks]
    holds = all(each.returncode == 0 for each in ended)
    return [Figure("promtool check config and check rules", f"{len(files)} files of rules", holds=holds)]


def _queries(prometheus: Prometheus) -> list[Figure]:
    queries = {
        (path.stem, panel["title"], target["expr"])
        for path in (DEPLOY / "grafana").glob("*.json")
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    }
    empty = []
    for name, title, expr in sorted(queries):
        real = expr.replace("$__rate_interval", "1m").replace("$job", "headgate")
        if not prometheus.query(real) and not WITHOUT_DATA & {each.name for each in used(expr)}:
            empty.append(f"{name}: {title}")
    return [
        Figure("queries of the dashboards that Prometheus evaluated", f"{len(queries)}", holds=len(queries) > 80),
        Figure("queries without data, besides those about faults and DynamoDB", "; ".join(empty) or "none", not empty),
    ]


def _alerts(prometheus: Prometheus) -> list[Figure]:
    rules = prometheus.rules()
    failing = [each["name"] for each in rules if each["health"] != "ok"]
    return [Figure("alert rules that Prometheus evaluates", f"{len(rules)}, failing: {failing or 'none'}", not failing)]
