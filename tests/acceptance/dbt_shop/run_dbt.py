"""Runs dbt and the OpenLineage client in one process of their environment, which spares the start of each.

Each stage of the project leaves its artifacts in a folder of its own: model_error, test_failure, compile_error,
freshness, green.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import sys

import duckdb
from dbt.cli.main import dbtRunner


def build(runner: dbtRunner, stage: str) -> None:
    runner.invoke(["build", "--quiet", "--target-path", stage, "--vars", f"{{{stage}: true}}"])


def main() -> None:
    with duckdb.connect("shop.duckdb") as connection:
        connection.execute("create table raw_orders as select 1 as id, timestamp '2020-01-01' as loaded_at")
    runner = dbtRunner()
    for stage in ("model_error", "test_failure", "compile_error"):
        build(runner, stage)
    runner.invoke(
        ["source", "freshness", "--quiet", "--target-path", "freshness", "--output", "freshness/sources.json"]
    )
    build(runner, "green")


def emit(url: str) -> None:
    """Send a failed run of a job, or a complete one with `--fixed`, as a Python program does."""
    from datetime import UTC, datetime

    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run
    from openlineage.client.uuid import generate_new_uuid

    client = OpenLineageClient(url=url)
    job = Job(namespace="python", name="load_rates")
    outputs = [OutputDataset(namespace="duckdb://shop.duckdb", name="shop.main.rates")]
    error = error_message_run.ErrorMessageRunFacet(
        message="rates: HTTP 503 from the bank", programmingLanguage="PYTHON"
    )
    is_fixed = "--fixed" in sys.argv
    run = Run(runId=str(generate_new_uuid()), facets={} if is_fixed else {"errorMessage": error})
    state = RunState.COMPLETE if is_fixed else RunState.FAIL
    at = datetime.now(UTC).isoformat()
    client.emit(RunEvent(eventType=state, eventTime=at, run=run, job=job, outputs=outputs, inputs=[], producer="x"))
    client.close(5)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        emit(sys.argv[1])
    else:
        main()
