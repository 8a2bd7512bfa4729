"""A running server with a busy shop: the past from `history`, and what happens now through the API.

Something is in each state that a page shows: healthy, held, late, missed, failed, running, waiting, paused, stuck.
Tests of pages only read what is here; tests of actions make what they change, so that any test can run alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from tests.acceptance.browser.history import PAYMENTS, POOLS, PROFILE, RAW, write_history, write_project
from tests.acceptance.program import Server, run, until

SECONDS_MAX: Final = 40.0
SIGNATURE: Final = "MISSING_FIELD:amount"
ORDER: Final = "order-4711"
STUCK: Final = "ledger-monday"
FAILED: Final = "prices-of-acme"
RETRIED: Final = "payment-9"
PAYMENTS_MACHINE: Final = "pay-suppliers"
INVOICES: Final = "settle-invoices"
# A dataset whose monitor is silent, and one whose incident was resolved while it was broken.
SILENT: Final = "urn:dp:market:supplier_stock:v1"
SETTLED: Final = "urn:dp:market:returns:v1"
HOUR: Final = timedelta(hours=1)
_SETTINGS: Final = """
[pipelines.pools]
{pools}

[notify.channels.log]
kind = "file"
path = "alerts.jsonl"

[notify.defaults]
page = ["log"]
notify = ["log"]
"""
MACHINE: Final[dict[str, Any]] = {
    "Comment": "Check an invoice, then wait for the payment",
    "StartAt": "Check amount",
    "States": {
        "Check amount": {
            "Type": "Choice",
            "Choices": [{"Variable": "$.amount", "NumericGreaterThan": 1000, "Next": "Check both"}],
            "Default": "Wait for payment",
        },
        "Check both": {
            "Type": "Parallel",
            "Branches": [
                {"StartAt": "Check credit", "States": {"Check credit": {"Type": "Pass", "End": True}}},
                {"StartAt": "Check limit", "States": {"Check limit": {"Type": "Pass", "End": True}}},
            ],
            "Next": "Is it known?",
        },
        "Is it known?": {
            "Type": "Choice",
            "Choices": [{"Variable": "$[0].customer", "IsPresent": False, "Next": "Refuse"}],
            "Default": "Wait for payment",
        },
        "Refuse": {"Type": "Fail", "Error": "UnknownCustomer", "Cause": "the invoice names no customer"},
        "Wait for payment": {"Type": "Wait", "Seconds": 86_400, "Next": "Book"},
        "Book": {"Type": "Pass", "End": True},
    },
}

# Its Task fails, and waits for the next attempt whenever it is looked at.
RETRYING_MACHINE: Final[dict[str, Any]] = {
    "StartAt": "Send",
    "States": {
        "Send": {
            "Type": "Task",
            "Resource": "read_prices",
            "Retry": [{"ErrorEquals": ["States.ALL"], "IntervalSeconds": 3600, "MaxAttempts": 5}],
            "End": True,
        }
    },
}


class World:
    """The server, a key of each role that tests need, and what pages show."""

    def __init__(self, server: Server, project: Path, key: str, viewer_key: str, today: str) -> None:
        self.server = server
        self.project = project
        self.key = key
        self.viewer_key = viewer_key
        self.today = today
        self.incident_id = ""
        self.silenced_id = ""
        self.runs: dict[str, str] = {}
        self.fanout_id = ""
        self.open_fanout_id = ""
        self.chunk_id = ""
        self.backfill_id = ""
        self.alert_id = ""
        self.job_id = ""
        self.orders = 0
        self._made = 0
        self._http = httpx.Client(
            base_url=f"{server.url}/api/v1", timeout=30, headers={"authorization": f"Bearer {key}"}
        )

    def close(self) -> None:
        self._http.close()

    # Calls of the API.

    def call(self, method: str, path: str, body: object = None, **query: Any) -> Any:
        """Return the answer of the API. Fails unless it succeeds."""
        answer = self._http.request(method, path, json=body, params=query)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    def post(self, path: str, body: object) -> Any:
        return self.call("POST", path, body)

    def put(self, path: str, body: object) -> Any:
        return self.call("PUT", path, body)

    def wait(self, what: str, is_true: Callable[[], object]) -> None:
        """Wait until the server says so."""
        until(lambda: bool(is_true()), what, SECONDS_MAX)

    def name(self, kind: str) -> str:
        """Return a name that nothing else has."""
        self._made += 1
        return f"{kind}-{self._made}"

    # Things to look at and to act on.

    def dataset(self, urn: str, **more: Any) -> str:
        """Register a dataset."""
        self.post("/datasets", {"dataset_urn": urn, "owner_team": "shop-data", "tier": "TIER_2", **more})
        return urn

    def signal(self, urn: str, state: str, kind: str = "CONTRACT_COMPLIANCE", **more: Any) -> None:
        """Report a signal of the last minute."""
        now = datetime.now(UTC)
        value = {
            "state": state,
            "score": {"OK": 1.0, "WARNING": 0.97}.get(state, 0.71),
            "slo_threshold": 0.99,
            "window_start": _text(now - timedelta(minutes=1)),
            "window_end": _text(now),
            "metrics": {"evidence_count": 1_240, "pass_count": 880, "fail_count": 360},
            **({} if state == "OK" else {"failure_signature": SIGNATURE}),
            **more,
        }
        self.put(f"/datasets/{quote(urn, safe='')}/signals/{kind}", value)

    def incident(self, urn: str) -> str:
        """Return the open incident of a dataset."""

        def found() -> list[Any]:
            items: list[Any] = self.get("/incidents", dataset_urn=urn, status=["OPEN", "ACKNOWLEDGED"])["items"]
            return items

        self.wait(f"an incident of {urn}", found)
        return str(found()[0]["incident_id"])

    def troubled(self, kind: str = "troubled") -> tuple[str, str]:
        """Make a dataset with an incident of its own, and return both."""
        urn = self.dataset(f"urn:dp:trial:{self.name(kind)}:v1")
        self.signal(urn, "CRITICAL")
        return urn, self.incident(urn)

    def run_of(self, pipeline: str, date: str, *statuses: str) -> str:
        """Return the run of a period once it has one of the statuses."""

        def found() -> str:
            runs = self.get(f"/pipelines/{pipeline}/runs", limit=50)["runs"]
            wanted = (each for each in runs if each["date"] == date and each["status"] in statuses)
            return next((str(each["run_id"]) for each in wanted), "")

        self.wait(f"{pipeline} of {date}: {' or '.join(statuses)}", found)
        return found()

    def start(self, pipeline: str, date: str) -> None:
        """Request a run."""
        self.post(f"/pipelines/{pipeline}/runs", {"date": date, "reason": "trial"})

    def execution(self, workflow: str, value: object, execution_id: str, *statuses: str) -> str:
        """Start an execution, and return its id once it has one of the statuses."""
        self.post("/executions", {"workflow": workflow, "id": execution_id, "input": value})
        if statuses:
            self.wait(f"{execution_id}: {statuses}", lambda: self.status(execution_id) in statuses)
        return execution_id

    def status(self, execution_id: str) -> str:
        return str(self.get(f"/executions/{quote(execution_id, safe='')}")["status"])

    def fanout(self, handler: str, items: int, run_id: str, **more: Any) -> str:
        """Create a fan-out with one chunk an item."""
        body = {"group": "trial", "handler": handler, "range": [0, items], "chunk_size": 1, "run_id": run_id}
        self.post("/fanouts", {**body, "max_attempts": 1, **more})
        return run_id

    def machine_execution(self, value: Mapping[str, Any], name: str) -> str:
        return str(self.post(f"/machines/{INVOICES}/executions", {"input": value, "name": name})["id"])

    def refund(self, name: str) -> None:
        """Emit an event that the subscription cannot handle, and wait for its dead letter."""
        self.post("/events", {"type": "order.refunded", "subject": name, "data": {"order": name}, "id": name})
        self.wait(f"the dead letter {name}", lambda: name in json.dumps(self.get("/dead-letters")))

    # The story.

    def tell(self) -> None:
        """Have everything that pages show."""
        self.wait("the checks of today", self._are_checks_done)
        self._trouble_with_data()
        self.execution("fulfil_order", "4711", ORDER)
        self.execution("audit_ledger", "monday", STUCK)
        self.execution("price_import", "acme", FAILED)
        self.execution("pay_supplier", "9", RETRIED)
        for number in range(6):
            self.execution("load_orders", f"2026-01-0{number + 1}", f"load-{number + 1}")
        self.put(f"/machines/{INVOICES}", MACHINE)
        for name, value in (("acme", {"amount": 120}), ("globex", {"amount": 4_000})):
            self.machine_execution(value, name)
        self.put(f"/machines/{PAYMENTS_MACHINE}", RETRYING_MACHINE)
        self.post(f"/machines/{PAYMENTS_MACHINE}/executions", {"input": "invoice-7", "name": "invoice-7"})
        for name, cron in (("nightly-load", "0 3 * * *"), ("hourly-check", "@hourly"), ("monthly-close", "0 4 1 * *")):
            self.post("/schedules", {"id": name, "workflow": "load_orders", "cron": cron, "input": name})
        self.call("POST", "/schedules/monthly-close/pause", {"reason": "the books are closed by hand this month"})
        for number in range(3):
            self.post("/events", {"type": "order.paid", "subject": f"order-{number}", "data": {"total": 12.5}})
        mute = {"pipeline": "loyalty-*", "event": "*", "duration": "2h", "reason": "the programme moves"}
        self.post("/alert-mutes", mute)
        self._job_of_another_tool()
        self.refund("refund-1")
        self.refund("refund-2")
        self._of_pipelines()
        self.open_fanout_id = self.fanout("market_jobs:slow", 60, "recompute-stock", submitted_by="ann@example.com")
        self.wait("the stuck execution", lambda: self.status(STUCK) == "STUCK")
        self.wait("the failed execution", lambda: self.status(FAILED) == "FAILED")
        self.wait("a failed attempt", lambda: bool(self.get(f"/executions/{RETRIED}/failures")["failures"]))
        machine = quote(f"{PAYMENTS_MACHINE}:invoice-7", safe="")
        self.wait("a failed Task", lambda: bool(self.get(f"/executions/{machine}/failures")["failures"]))
        self.wait("the order waits", lambda: "signal" in json.dumps(self.get(f"/executions/{ORDER}")["waits_for"]))

    def check(self, check_id: str) -> Any:
        """Return a check of the payments."""
        return self.get(f"/datasets/{quote(PAYMENTS, safe='')}/checks/{check_id}")

    def _are_checks_done(self) -> bool:
        """Whether each check of the payments ran since the server was started; the past ends hours before."""
        checks = self.get(f"/datasets/{quote(PAYMENTS, safe='')}/checks")["checks"]
        return all(str(each["at"]) > _text(datetime.now(UTC) - HOUR) for each in checks)

    def _trouble_with_data(self) -> None:
        # The run of today reports that it succeeded; what it wrote is found to be bad after that.
        self.run_of("orders-load", self.today, "COMPLETED")
        signal = f"/datasets/{quote(RAW, safe='')}/signals"
        self.wait("the signal of its run", lambda: "PIPELINE_RUN" in str(self.get(signal)))
        now = datetime.now(UTC)
        for number, (result, version) in enumerate(
            (("PASS", "v41"), ("PASS", "v41"), ("FAIL", "v42"), ("FAIL", "v42"))
        ):
            failed = {"failed_gates": ["G4_CONTRACT"], "reason_codes": [SIGNATURE]} if result == "FAIL" else {}
            evidence = {
                "evidence_id": f"evd-01HQXY8MNP4QR7ST9V{number:08d}",
                "dataset_urn": RAW,
                "created_at": _text(
                    now - timedelta(minutes=6 if result == "PASS" else 0) + timedelta(milliseconds=number)
                ),
                "producer": {"producer_id": "shop-api", "version": version, "confidence": "HIGH"},
                "source": {"topic": "shop.orders", "partition": 0, "offset": 1_882_340 + number},
                "validation": {"result": result, **failed},
            }
            self.post("/evidence", evidence)
        sample = ["evd-01HQXY8MNP4QR7ST9V00000002", "evd-01HQXY8MNP4QR7ST9V00000003"]
        self.signal(RAW, "CRITICAL", evidence_sample=sample)
        self.signal(PROFILE, "WARNING", "FRESHNESS")
        self.incident_id = self.incident(RAW)
        slo = {"freshness": {"max_delay_seconds": 600}}
        self.dataset(SILENT, display_name="Supplier stock", slos=slo)
        self.signal(SILENT, "OK", "FRESHNESS", window_start=_text(now - HOUR), window_end=_text(now - HOUR))
        self.dataset(SETTLED)
        self.signal(SETTLED, "CRITICAL")
        self.silenced_id = self.incident(SETTLED)
        self.call("PATCH", f"/incidents/{self.silenced_id}", {"status": "RESOLVED", "reason": "known"})

    def _job_of_another_tool(self) -> None:
        """Report a run as OpenLineage does, which is applied a moment later."""
        ran = {"runId": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}
        for kind in ("START", "COMPLETE"):
            event = {
                "eventType": kind,
                "eventTime": _text(datetime.now(UTC)),
                "producer": "https://example.org/etl",
                "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
                "run": ran,
                "job": {"namespace": "airflow", "name": "stock.count"},
                "inputs": [{"namespace": "warehouse", "name": "raw.stock"}],
                "outputs": [{"namespace": "warehouse", "name": "clean.stock"}],
            }
            self.post("/lineage", event)
        self.wait("the job of the other tool", lambda: self.get("/jobs")["items"])
        self.job_id = str(self.get("/jobs")["items"][0]["job_id"])

    def _of_pipelines(self) -> None:
        for pipeline, statuses in (
            ("orders-score", ("FAILED",)),
            ("ledger-export", ("FAILED",)),
            ("supplier-prices", ("FAILED",)),
            ("warehouse-vacuum", ("RUNNING",)),
            ("revenue-report", ("PENDING",)),
        ):
            self.runs[pipeline] = self.run_of(pipeline, self.today, *statuses)
        days = datetime.fromisoformat(self.today)
        first, last = (f"{days - timedelta(days=back):%Y-%m-%d}" for back in (40, 36))
        asked = {"from": first, "to": last, "concurrency": 2, "reason": "stock was counted again"}
        self.backfill_id = str(self.post("/pipelines/stock-sync/backfills", asked)["backfill_id"])
        self.fanout_id = str(self.get(f"/runs/{self.runs['orders-score']}")["job_id"])
        failures = self.get(f"/fanouts/{self.fanout_id}/failures", limit=1)
        self.chunk_id = str(failures["chunks"][0]["chunk_id"])
        self.wait("an alert", lambda: self.get("/alerts")["alerts"])
        self.alert_id = str(self.get("/alerts")["alerts"][0]["alert_id"])


@contextmanager
def running_world(folder: Path, *, orders: int = 300) -> Iterator[World]:
    """Write a home, serve it, and fill it."""
    now = datetime.now(UTC)
    project, home = folder / "shop", folder / "home"
    write_project(project, now, orders=orders)
    write_history(home, project, now)
    pools = "\n".join(f"{name} = {size}" for name, size in POOLS.items())
    (project / "headgate.toml").write_text(_SETTINGS.format(pools=pools))
    made = run("api-key", "first", "--home", home, "--json", folder=project)
    key = json.loads(made.stdout)["text"]
    options = ("--home", str(home), "--app", "market_app:app", "--pipelines", "pipelines")
    with Server(project, *options, HEADGATE_AUTH_REQUIRED="true") as server:
        reader = httpx.post(
            f"{server.url}/api/v1/api-keys",
            json={"principal": "reader", "roles": ["viewer"]},
            headers={"authorization": f"Bearer {key}"},
            timeout=20,
        )
        assert reader.is_success, reader.text
        world = World(server, project, key, reader.json()["text"], f"{now:%Y-%m-%d}")
        world.orders = orders
        try:
            world.tell()
            yield world
        finally:
            world.close()
            # The job that runs outlives the server.
            (project / "stop").touch()


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
