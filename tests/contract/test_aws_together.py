"""Pipelines, workflows and a server on the same tables: what the functions of one part need from those of another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.aws import activities, client, handlers, turns, wakeups
from headgate.durable.engine.function_apps import FunctionApps
from headgate.durable.model.duration import Seconds
from headgate.errors import UnknownWorkflowError
from headgate.health.model.enums import Severity
from headgate.pipelines.definition.model import Readiness, Sla, TriggerSpec
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.lifecycle.eventbridge_timers import schedule_name
from headgate.pipelines.lifecycle.hand_over import ROUND_EVENTS
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rows import RunLog, Slot
from tests import order_app
from tests.acceptance.program import Server
from tests.aws_rig import JOB, ROOT, Cloud, not_granted, noting, passing_on, sign_in, until
from tests.ministack import fresh_account
from tests.pipeline_rig import ORDERS_THERE, pipeline
from tests.shifted_clock import ShiftedClock
from tests.workflow_rig import Workflows

DATE = "2026-03-03"


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def account() -> str:
    return fresh_account()


@pytest.fixture(scope="module")
def deployed(
    ministack: str, account: str, clock: ShiftedClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cloud, Workflows]]:
    """One deployment of both kinds of functions for all tests."""
    opened: list[Cloud | Workflows] = []

    def call(name: str, event: object) -> object:
        cloud = opened[0]
        assert isinstance(cloud, Cloud)
        return cloud.call(name, event)

    with noting(account, opened) as patch, passing_on(call) as address:
        # An execution hands over after a few rounds instead of some hundreds.
        few = {"HEADGATE_PIPELINES_HAND_OVER_EVENTS": "200", "CUSTOM_METRICS": "on"}
        cloud = Cloud(ministack, account, tmp_path_factory.mktemp("home"), clock, few)
        opened.append(cloud)
        workflows = Workflows(ministack, account, tmp_path_factory.mktemp("app"), clock, cloud.environ)
        opened.append(workflows)
        patch.setattr(handlers, "lifecycle_container", lambda: cloud.container)
        for module in (activities, client, turns, wakeups):
            patch.setattr(module, "app_container", lambda: workflows.container)
        cloud.deploy(address)
        # As Terraform does after every deployment.
        workflows.invoke("sweep")
        cloud.invoke("definitions")
        yield cloud, workflows
        workflows.close()
        cloud.close()


@pytest.fixture
def both(
    deployed: tuple[Cloud, Workflows], account: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Cloud, Workflows]]:
    """The deployment; after each test, no function has asked for more than Terraform grants it."""
    sign_in(monkeypatch, account)
    order_app.done.clear()
    yield deployed
    for each in deployed:
        assert not_granted(each) == set()


def land(cloud: Cloud, pipeline_id: str, trigger: TriggerSpec, **more: Any) -> Slot:
    """Define a pipeline and write the sensor row that starts it."""
    cloud.container.pipelines.service.definitions.put(pipeline(pipeline_id, trigger=trigger, **more), "text", "ana")
    cloud.put_row(f"PIPELINE#{pipeline_id}", "SENSOR#landed", data={"M": {"date": {"S": DATE}}})
    return Slot(pipeline_id, "stream", DATE)


def ended(cloud: Cloud, slot: Slot) -> RunLog | None:
    log = cloud.container.pipelines.service.stores.runs.log(slot)
    is_over = log is not None and cloud.executions().get(log.execution) not in (None, "RUNNING")
    return log if is_over else None


def test_pipeline__its_job_is_a_workflow_of_functions__runs_it_without_a_live_worker(
    both: tuple[Cloud, Workflows],
) -> None:
    cloud, workflows = both
    slot = land(cloud, "parcels", TriggerSpec(type="workflow", config={"workflow": "ship", "input": "o-1"}))

    workflows.run(lambda: "pack o-1" in order_app.done)
    workflows.settle()
    # The event of the workflow's end wakes the run.
    cloud.invoke("clockwork")
    log = until(f"{slot} is over", lambda: ended(cloud, slot))

    assert (log.status, log.reason) == (RunStatus.COMPLETED, "")
    assert order_app.done == ["pack o-1"]
    served = {each.app: each for each in FunctionApps(cloud.container.opened.store).all()}
    assert "ship" in served["orders"].workflows


def test_pipeline__its_workflow_is_unknown__fails_at_once_with_a_sentence(both: tuple[Cloud, Workflows]) -> None:
    cloud, _ = both
    slot = land(cloud, "lost-parcels", TriggerSpec(type="workflow", config={"workflow": "shipp"}))

    log = until(f"{slot} is over", lambda: ended(cloud, slot))

    assert log.status is RunStatus.FAILED
    assert "workflow 'shipp': not loaded here" in log.reason
    assert "no live worker or function serves it" in log.reason


def test_client__an_unknown_workflow__names_it(both: tuple[Cloud, Workflows]) -> None:
    _, workflows = both

    with pytest.raises(UnknownWorkflowError, match="workflow 'shipp': not loaded here, where there is count, "):
        workflows.invoke("client", {"action": "start", "workflow": "shipp"})


def test_schedule__declared_in_the_code_of_the_app__is_stored_and_fired_by_the_sweep(
    both: tuple[Cloud, Workflows], clock: ShiftedClock
) -> None:
    _, workflows = both
    schedules = workflows.container.service.schedules
    stored = schedules.find("daily-tally")

    clock.ahead = timedelta(days=1, minutes=1)
    try:
        workflows.invoke("sweep")
        workflows.run(lambda: executions_of(workflows, "tally", "SUCCEEDED"))
    finally:
        clock.ahead = timedelta(0)

    assert stored is not None
    assert (stored.declared_by, stored.spec.workflow) == ("orders", "tally")


def executions_of(workflows: Workflows, workflow: str, status: str) -> list[str]:
    listing = workflows.container.service.client.list(workflow=workflow)
    return [row.execution_id for row in listing.executions if row.status.value == status]


def test_server__beside_the_functions_with_the_app__works_and_leaves_their_alerts_to_them(
    both: tuple[Cloud, Workflows], account: str, tmp_path: Path
) -> None:
    cloud, _ = both
    cloud.invoke("clockwork")
    while cloud.alerts():
        continue
    environ = {name: value for name, value in cloud.environ.items() if name.startswith("HEADGATE_STORE_")}
    environ |= {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "PYTHONPATH": str(ROOT),
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": cloud.region,
        "HEADGATE_PIPELINES_STATE_MACHINE_ARN": cloud.environ["STATE_MACHINE_ARN"],
        "HEADGATE_PIPELINES_SCHEDULER_ROLE_ARN": cloud.environ["SCHEDULER_ROLE_ARN"],
    }

    with (
        Server(tmp_path, "--app", "tests.order_app:app", **environ) as server,
        httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as api,
    ):
        slot = land(cloud, "late-parcels", TriggerSpec(type="workflow", config={"workflow": "shipp"}))
        until(f"{slot} has failed", lambda: ended(cloud, slot))
        # The server works on other rows of the same tables meanwhile.
        begun = api.post("/executions", json={"workflow": "ship", "input": "o-7", "id": "s-7"})
        until("the server runs the app", lambda: api.get("/executions/s-7").json()["status"] == "SUCCEEDED")
        waiting = api.get("/alerts", params={"pipeline": "late-parcels"}).json()
        cloud.invoke("clockwork")
        alerts = until("alerts arrive", lambda: [each for each in cloud.alerts() if "late-parcels" in each])

    assert begun.status_code == 201, begun.text
    assert waiting["alerts"] == []
    assert any("shipp" in each for each in alerts)
    assert len({json.loads(each)["message_id"] for each in alerts}) == len(alerts)
    assert "late-parcels" not in server.stdout + server.stderr


WAITING = {"readiness": Readiness(rules=(ORDERS_THERE,))}
CHANGE = f"WAIT#stream#{DATE}#{WaitKind.CHANGE.value}"


def waiting_token(cloud: Cloud, pipeline_id: str) -> set[str]:
    """Return the token with which a run waits for a change, or nothing."""
    row = cloud.row(f"PIPELINE#{pipeline_id}", CHANGE)
    return set() if row is None else {json.dumps(row["task_token"])}


def test_lifecycle__waits_for_more_rounds_than_a_history_holds__hands_over_and_completes(
    both: tuple[Cloud, Workflows],
) -> None:
    cloud, _ = both
    slot = land(cloud, "patient", TriggerSpec(type="lambda", config={"function": JOB}), **WAITING)
    waiters, runs = cloud.container.pipelines.service.waiters, cloud.container.pipelines.service.stores.runs
    limit = 200 // ROUND_EVENTS

    # Each wake-up is a round: MiniStack lets no wait time out.
    seen: set[str] = set()
    while len(seen) <= 2 * limit:
        seen.add(until("it waits", lambda: waiting_token(cloud, "patient") - seen).pop())
        if len(seen) <= 2 * limit:
            assert waiters.wake(slot, WaitKind.CHANGE, "test")
    held = cloud.container.pipelines.service.stores.locks.find(evaluation_key(slot))
    waiting = runs.log(slot)
    cloud.put_row("PIPELINE#patient", "SENSOR#orders", data={"M": {"count": {"N": "12"}}})
    log = until(f"{slot} is over", lambda: ended(cloud, slot))

    names = {name.rpartition("-")[2]: name for name in cloud.executions() if name.startswith("patient-")}
    assert len(names) == 3
    assert {cloud.executions()[name] for name in names.values()} == {"SUCCEEDED"}
    assert (log.status, log.attempts, log.execution) == (RunStatus.COMPLETED, 1, names["h3"])
    assert waiting is not None
    assert held is not None
    assert waiting.execution == held.owner == names["h3"]
    assert cloud.container.pipelines.service.stores.locks.find(evaluation_key(slot)) is None


def test_sla__of_a_run_that_still_waits__has_its_schedules_before_the_job_is_triggered(
    both: tuple[Cloud, Workflows],
) -> None:
    cloud, _ = both
    sla = Sla(max_duration=Seconds(3_600), expected_duration=Seconds(600))
    job = TriggerSpec(type="lambda", config={"function": JOB})
    slot = land(cloud, "promised", job, sla=sla, **WAITING)

    until("it waits", lambda: cloud.row("PIPELINE#promised", CHANGE))
    names = [schedule_name(f"sla-{kind}-promised-stream-{DATE}") for kind in ("warning", "breach")]
    found = [cloud.client("scheduler").get_schedule(Name=name, GroupName="default")["State"] for name in names]
    cloud.put_row("PIPELINE#promised", "SENSOR#orders", data={"M": {"count": {"N": "12"}}})
    log = until(f"{slot} is over", lambda: ended(cloud, slot))

    assert found == ["ENABLED", "ENABLED"]
    assert log.status is RunStatus.COMPLETED
    left = {each["Name"] for each in cloud.client("scheduler").list_schedules(GroupName="default")["Schedules"]}
    assert left.isdisjoint(names)


def test_metrics__of_functions_that_are_to_write_them__are_in_the_log(
    both: tuple[Cloud, Workflows], capsys: pytest.CaptureFixture[str]
) -> None:
    cloud, workflows = both

    cloud.invoke("clockwork")
    workflows.invoke("sweep")

    lines = [json.loads(each) for each in capsys.readouterr().out.splitlines() if each.startswith('{"_aws":')]
    assert [each["function"] for each in lines if "function.completed" in each] == ["clockwork", "sweep"]
    assert {each["severity"] for each in lines if "incident.active" in each} == {each.value for each in Severity}
    used = {(each["table"], each["capacity_type"]) for each in lines if "dynamodb.consumed_capacity" in each}
    assert {("test-headgate-pipelines", "READ"), ("test-headgate-control", "WRITE")} <= used
    assert [each for each in lines if "dynamodb.read_latency" in each] != []
