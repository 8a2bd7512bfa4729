"""Every page with the address at which the shop has something to show on it.

A new page needs a line in `PAGES`: the path of its `PageRoute`, and an address of `World` with content. Without it
`test_pages__every_route__is_looked_at` fails. If nothing in the shop appears on the page, extend `World.tell`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from tests.acceptance.browser.history import PAYMENTS, RAW, SCORED
from tests.acceptance.browser.world import (
    FAILED,
    INVOICES,
    ORDER,
    PAYMENTS_MACHINE,
    RETRIED,
    SETTLED,
    SILENT,
    STUCK,
    World,
)

PAGES: Final[dict[str, Callable[[World], str]]] = {
    "": lambda _: "",
    "/datasets": lambda _: "/datasets",
    "/datasets/{dataset_urn:str}": lambda _: f"/datasets/{quote(SCORED, safe='')}",
    "/incidents": lambda _: "/incidents",
    "/incidents/{incident_id:str}": lambda world: f"/incidents/{world.incident_id}",
    "/lineage": lambda _: f"/lineage?dataset={quote(RAW, safe='')}",
    "/jobs": lambda _: "/jobs",
    "/jobs/{job_id:str}": lambda world: f"/jobs/{quote(world.job_id, safe='')}",
    "/pipelines": lambda _: "/pipelines",
    "/pipelines/{pipeline_id:str}": lambda _: "/pipelines/revenue-report",
    "/runs": lambda _: "/runs",
    "/runs/{run_id:str}": lambda world: f"/runs/{world.runs['orders-score']}",
    "/expectations": lambda _: "/expectations",
    "/backfills": lambda _: "/backfills",
    "/backfills/{backfill_id:str}": lambda world: f"/backfills/{world.backfill_id}",
    "/executions": lambda _: "/executions",
    "/executions/{execution_id:str}": lambda _: f"/executions/{ORDER}",
    "/fanouts": lambda _: "/fanouts",
    "/fanouts/{run_id:str}": lambda world: f"/fanouts/{world.fanout_id}",
    "/fanouts/{run_id:str}/chunks/{chunk_id:str}": lambda world: f"/fanouts/{world.fanout_id}/chunks/{world.chunk_id}",
    "/machines": lambda _: "/machines",
    "/machines/{name:str}": lambda _: f"/machines/{INVOICES}",
    "/machine-executions/{execution_id:str}": lambda _: f"/machine-executions/{INVOICES}%3Aglobex",
    "/schedules": lambda _: "/schedules",
    "/schedules/{schedule_id:str}": lambda _: "/schedules/nightly-load",
    "/events": lambda _: "/events",
    "/events/subscriptions": lambda _: "/events/subscriptions",
    "/events/dead-letters": lambda _: "/events/dead-letters",
    "/alerts": lambda _: "/alerts",
    "/alerts/{alert_id:str}": lambda world: f"/alerts/{world.alert_id}",
    "/workers": lambda _: "/workers",
    "/audit": lambda _: "/audit?verify=true",
    "/settings": lambda _: "/settings",
    "/operations": lambda _: "/operations",
}
# Further states of pages, which have parts of their own.
STATES: Final[dict[str, Callable[[World], str]]] = {
    "run-with-output": lambda world: f"/runs/{world.runs['warehouse-vacuum']}",
    "run-with-traceback": lambda world: f"/runs/{world.runs['ledger-export']}",
    "run-that-waits": lambda world: f"/runs/{world.runs['revenue-report']}",
    "execution-stuck": lambda _: f"/executions/{STUCK}",
    "execution-failed": lambda _: f"/executions/{FAILED}",
    "execution-retrying": lambda _: f"/executions/{RETRIED}",
    "machine-execution-retrying": lambda _: f"/machine-executions/{PAYMENTS_MACHINE}%3Ainvoice-7",
    "fan-out-open": lambda world: f"/fanouts/{world.open_fanout_id}",
    "pipeline-failed": lambda _: "/pipelines/orders-score",
    "pipeline-missed": lambda _: "/pipelines/fx-rates",
    "dataset-overdue": lambda _: f"/datasets/{quote(SILENT, safe='')}",
    "dataset-silenced": lambda _: f"/datasets/{quote(SETTLED, safe='')}",
    "dataset-with-checks": lambda _: f"/datasets/{quote(PAYMENTS, safe='')}",
    "incident-silenced": lambda world: f"/incidents/{world.silenced_id}",
    "dataset-critical": lambda _: f"/datasets/{quote(RAW, safe='')}",
}


def file_name(path: str) -> str:
    """Return the name of the screenshot of a page."""
    words = path.replace("{", "").replace("}", "").replace(":str", "").strip("/").replace("/", "-")
    return words or "now"
