"""The functions that the machines in this folder call. Tables are files in the folder `tables`, a partition a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headgate as hg

app = hg.App("examples")
TABLES = Path("tables")

# Retry and Catch go by the names of classes, and names in Step Functions often have a dot.
PartitionMissing = type("Partition.Missing", (Exception,), {})


@app.activity
def list_partitions(event: dict[str, Any]) -> list[str]:
    return (TABLES / str(event["table"])).read_text().split()


@app.activity
def check_partition(event: dict[str, Any]) -> dict[str, str]:
    partition = event["partition"]
    if partition.startswith("!"):
        raise PartitionMissing(f"{partition[1:]} has no files")
    return {"status": "OK"}


@app.activity
def ask_owner(event: dict[str, Any]) -> None:
    # Where a person would be sent a message with a link.
    Path("approval.token").write_text(event["token"])


@app.activity
def drop_table(event: dict[str, Any]) -> dict[str, str]:
    (TABLES / event["table"]).unlink(missing_ok=True)
    return {"dropped": event["table"]}


@app.activity
def evaluate(event: dict[str, Any]) -> dict[str, str]:
    return {"status": "READY" if (TABLES / event["pipeline"]).exists() else "WAITING"}


@app.activity
def start_job(event: dict[str, Any]) -> dict[str, str]:
    return {"started": event["job"]}


@app.activity
def write_table(event: dict[str, Any]) -> dict[str, Any]:
    TABLES.mkdir(exist_ok=True)
    (TABLES / event["table"]).write_text("\n".join(event["partitions"]))
    return event


@app.activity
def check_table(event: dict[str, Any]) -> dict[str, int]:
    return {"row_count": len(event["partitions"])}


@app.activity
def write_documentation(event: dict[str, Any]) -> dict[str, str]:
    return {"page": f"docs/{event['table']}"}


@app.activity
def take_back(event: dict[str, Any]) -> dict[str, Any]:
    (TABLES / event["table"]).unlink(missing_ok=True)
    return event


@app.activity
def load(event: dict[str, Any]) -> dict[str, Any]:
    return {"status": "LOADED", "cost": 3, "attempt": event["attempt"]}


@app.activity
def reprocess_batch(event: dict[str, Any]) -> dict[str, int]:
    return {"reprocessed": len(event["Items"])}
