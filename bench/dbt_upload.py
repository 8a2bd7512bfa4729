"""dbt ingestion: the manifest, run results and catalog of a project with 2,000 models, first and again."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from bench.measure import Figure, seconds
from bench.rows import open_at
from headgate.clock import SystemClock
from headgate.health.ingest.service import DbtReport
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.cache.read_through import Cache
from headgate.store.keyring import Keyring

MODELS: Final = 2_000
TESTS_EACH: Final = 3
COLUMNS: Final = 10
GOAL_SECONDS: Final = 5.0


def run() -> list[Figure]:
    clock = SystemClock()
    now_ms = int(clock.seconds() * 1000)
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        store = open_at(Path(folder), clock)
        health = HealthService(
            store,
            clock,
            IdMaker(clock),
            Cache(clock=clock),
            Keyring.generate(clock),
            FolderBlobs(Path(folder) / "evidence"),
        )
        reports: list[DbtReport] = []

        def upload(at_ms: int) -> None:
            manifest, results = artifacts(at_ms)
            reports.append(health.ingestion.dbt(manifest, run_results=results, namespace="postgres://db:5432"))

        cpu = time.process_time()
        first = seconds(lambda: upload(now_ms - 60_000))
        again = seconds(lambda: upload(now_ms - 30_000))
        cpu = time.process_time() - cpu
        health.close()
        store.close()
    counts = reports[0]
    assert (counts.datasets, counts.results, counts.refused) == (MODELS, MODELS * (1 + TESTS_EACH), [])
    return [
        Figure(
            f"dbt upload: {counts.datasets:,} models, {counts.results:,} results ({counts.failed:,} failed), "
            f"{counts.signals:,} signals",
            f"{first:.2f} s, the next one {again:.2f} s",
            f"<= {GOAL_SECONDS:.0f} s",
            max(first, again) <= GOAL_SECONDS,
            notes=f"{cpu / 2:.1f} s of CPU each; {MODELS * COLUMNS:,} columns, {counts.lineage:,} lineage specs",
        )
    ]


def artifacts(at_ms: int) -> tuple[bytes, bytes]:
    """Return the manifest and the run results of the project."""
    nodes: dict[str, Any] = {}
    results: list[dict[str, Any]] = []
    for number in range(MODELS):
        name = f"model.shop.m{number}"
        columns = {f"c{n}": {"name": f"c{n}", "description": "A column.", "data_type": "int"} for n in range(COLUMNS)}
        nodes[name] = {
            "unique_id": name, "resource_type": "model", "package_name": "shop", "name": f"m{number}",
            "relation_name": f'"dw"."shop"."m{number}"', "description": "A model.", "columns": columns,
            "config": {"materialized": "table", "meta": {"owner": f"team-{number % 20}"}, "tags": ["nightly"]},
            "depends_on": {"nodes": [f"model.shop.m{parent}" for parent in range(max(0, number - 3), number)]},
            "raw_code": "select 1 -- " + "x" * 2_000,
        }  # fmt: skip
        results.append({"unique_id": name, "status": "success", "message": "OK", "execution_time": 1.5})
        for test in range(TESTS_EACH):
            test_id = f"test.shop.not_null_m{number}_c{test}.{number}"
            nodes[test_id] = {
                "unique_id": test_id, "resource_type": "test", "package_name": "shop",
                "name": f"not_null_m{number}_c{test}",
                "attached_node": name, "column_name": f"c{test}", "test_metadata": {"name": "not_null"},
                "depends_on": {"nodes": [name]},
            }  # fmt: skip
            is_failed = number % 100 == 0 and test == 0
            status, message = ("fail", "Got 3 results, configured to fail if != 0") if is_failed else ("pass", None)
            results.append({"unique_id": test_id, "status": status, "message": message, "failures": 3 * is_failed})
    about = {"generated_at": instant(at_ms), "invocation_id": f"inv-{at_ms}", "project_name": "shop"}
    return (
        msgspec.json.encode({"metadata": _metadata("manifest", 12) | about, "nodes": nodes}),
        msgspec.json.encode({"metadata": _metadata("run-results", 6) | about, "results": results}),
    )


def _metadata(kind: str, version: int) -> dict[str, str]:
    return {"dbt_schema_version": f"https://schemas.getdbt.com/dbt/{kind}/v{version}.json", "adapter_type": "postgres"}
