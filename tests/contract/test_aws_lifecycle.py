"""Pipelines on AWS: a row in the table becomes a run, through stream, handlers and the machine as it is shipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from headgate.aws import fanouts, handlers
from headgate.aws.fanout_container import open_fanout_container
from headgate.aws.lifecycle_topic import LifecycleTopic
from headgate.bootstrap.store import KEYS
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Exclusions, Pipeline, Readiness, Schedule, Sla, Trait, TriggerSpec
from headgate.pipelines.enums import Cause, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.eventbridge_timers import schedule_name
from headgate.pipelines.lifecycle.starter import execution_name
from headgate.pipelines.lifecycle.step_functions import START_TARGET
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.row_codec import row
from headgate.pipelines.runs.locks import evaluation_key
from headgate.pipelines.runs.rows import RunLog, Slot
from headgate.pipelines.service import PipelineService
from headgate.store.catalogue.tables import PIPELINES, RUN_LOG
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Change, ChangeKind
from headgate.triggers.aws.clients import TRIES
from tests.acceptance.program import Server
from tests.aws_faults import Faults, refused
from tests.aws_rig import JOB, Cloud, not_granted, noting, passing_on, sign_in, stream_record, until
from tests.ministack import fresh_account
from tests.pipeline_rig import LANDED, ORDERS_THERE, pipeline
from tests.shifted_clock import ShiftedClock

DATE = "2026-03-03"
PACKED = """
id: packed
owner: ana@example.com
schedules:
  - sensor: {key: landed}
readiness:
  rules:
    # Whether it is registered is looked up when the definition is applied.
    - dataset: urn:dp:shop:orders:v1
trigger: {type: lambda, config: {function: the-job}}
"""
PASSING = {"StartAt": "P", "States": {"P": {"Type": "Pass", "End": True}}}


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def account() -> str:
    return fresh_account()


@pytest.fixture(scope="module")
def deployed(
    ministack: str, account: str, clock: ShiftedClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """One deployment for all tests; each has pipelines of its own."""
    opened: list[Cloud] = []
    with (
        noting(account, opened) as patch,
        passing_on(lambda name, event: opened[0].call(name, event)) as address,
    ):
        cloud = Cloud(ministack, account, tmp_path_factory.mktemp("home"), clock)
        opened.append(cloud)
        patch.setattr(handlers, "lifecycle_container", lambda: cloud.container)
        cloud.deploy(address)
        yield cloud
        cloud.close()


@pytest.fixture
def cloud(deployed: Cloud, account: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The deployment; after each test, no function has asked for more than Terraform grants it."""
    sign_in(monkeypatch, account)
    yield deployed
    assert not_granted(deployed) == set()


def service_of(cloud: Cloud) -> PipelineService:
    return cloud.container.pipelines.service


def define(cloud: Cloud, defined: Pipeline) -> Slot:
    """Put a definition, and return a period of it."""
    service_of(cloud).definitions.put(defined, "text", "ana")
    return Slot(defined.id, "stream", DATE)


def land(cloud: Cloud, pipeline_id: str) -> None:
    """Write the row of a sensor as a program that knows nothing of Headgate does."""
    cloud.put_row(f"PIPELINE#{pipeline_id}", "SENSOR#landed", data={"M": {"date": {"S": DATE}, "rows": {"N": "7"}}})


def landed(number: int, pipeline_id: str) -> dict[str, Any]:
    image = {"data": {"M": {"date": {"S": DATE}}}}
    return stream_record(number, f"PIPELINE#{pipeline_id}", "SENSOR#landed", image)


def ended(cloud: Cloud, slot: Slot) -> RunLog:
    """Return the log of a period once its execution is over."""
    runs = service_of(cloud).stores.runs

    def look() -> RunLog | None:
        log = runs.log(slot)
        is_over = log is not None and cloud.executions().get(log.execution) not in (None, "RUNNING")
        return log if is_over else None

    found: RunLog = until(f"{slot} is over", look)
    return found


def executions(cloud: Cloud, pipeline_id: str) -> list[str]:
    return [name for name in cloud.executions() if name.startswith(f"{pipeline_id}-")]


# Excluded on its date: an execution of it ends as soon as it has begun.
DORMANT = (replace(LANDED, exclude=Exclusions(dates=(DATE,))),)
LAMBDA_JOB = TriggerSpec(type="lambda", config={"function": JOB, "payload": {"pipeline": "${pipeline}"}})


def test_sensor_row__written_by_any_program__becomes_one_completed_run(cloud: Cloud) -> None:
    fresh = Trait(evaluator="builtin:sensor-threshold", config={"sensorType": "landed", "field": "rows", "min": 1})
    slot = define(cloud, pipeline("silver", trigger=LAMBDA_JOB, readiness=Readiness(traits={"fresh": fresh})))

    land(cloud, "silver")

    log = ended(cloud, slot)
    assert (log.status, log.attempts) == (RunStatus.COMPLETED, 1)
    assert cloud.jobs.count({"pipeline": "silver"}) == 1
    assert executions(cloud, "silver") == [log.execution]
    assert cloud.executions()[log.execution] == "SUCCEEDED"
    assert service_of(cloud).stores.locks.find(evaluation_key(slot)) is None
    (letter,) = until("it is published", lambda: cloud.published("silver"))
    assert (letter["eventType"], letter["runId"]) == ("PIPELINE_COMPLETED", log.run_id)


def test_waiting_run__what_it_waits_for_comes_and_its_job_ends__is_woken_through_the_api_both_times(
    cloud: Cloud,
) -> None:
    machine = cloud.client("stepfunctions").create_state_machine(
        name="job", definition=json.dumps(PASSING), roleArn="arn:aws:iam::123456789012:role/any"
    )["stateMachineArn"]
    job = TriggerSpec(type="step-function", config={"state_machine_arn": machine})
    slot = define(cloud, pipeline("gold", trigger=job, readiness=Readiness(rules=(ORDERS_THERE,))))
    land(cloud, "gold")
    until("it waits for orders", lambda: cloud.row("PIPELINE#gold", f"WAIT#stream#{DATE}#{WaitKind.CHANGE.value}"))

    cloud.put_row("PIPELINE#gold", "SENSOR#orders", data={"M": {"count": {"N": "12"}}})
    until("it waits for its job", lambda: cloud.row("PIPELINE#gold", f"WAIT#stream#{DATE}#{WaitKind.JOB.value}"))
    service_of(cloud).jobs.complete(service_of(cloud).stores.runs.log(slot).run_id, is_success=True)  # type: ignore[union-attr]

    log = ended(cloud, slot)
    assert (log.status, cloud.executions()[log.execution]) == (RunStatus.COMPLETED, "SUCCEEDED")
    assert executions(cloud, "gold") == [log.execution]


def count(items: list[int]) -> int:
    """Handle a chunk of the fan-out below."""
    return len(items)


def test_fan_out__job_of_a_pipeline__sends_its_chunks_over_sqs_to_the_chunk_function(
    cloud: Cloud, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"range": [0, 30], "chunk_size": 10, "handler": "tests.contract.test_aws_lifecycle:count"}
    job = TriggerSpec(type="fan-out", config=config, check_interval=Seconds(1))
    slot = define(cloud, pipeline("bronze", trigger=job))
    functions = open_fanout_container({**cloud.environ, "HEADGATE_FANOUT_HANDLERS": "tests"}, clock)
    monkeypatch.setattr(fanouts, "fanout_container", lambda: functions)

    cloud.invoke("definitions")
    land(cloud, "bronze")
    messages = until("its chunks are in the queue", lambda: cloud.chunks() or None)
    while len(messages) < 3:
        messages += until("the others", lambda: cloud.chunks() or None)
    answer = cloud.invoke("chunk-worker", {"Records": messages})

    assert answer == {"batchItemFailures": []}
    # The end of a fan-out is an event, which the clockwork delivers to the run that waits for it.
    cloud.invoke("clockwork")
    log = ended(cloud, slot)
    assert (log.status, cloud.executions()[log.execution]) == (RunStatus.COMPLETED, "SUCCEEDED")
    functions.close()


def test_server__beside_the_functions__shows_what_they_do_and_takes_orders(
    cloud: Cloud, account: str, tmp_path: Path
) -> None:
    slot = define(cloud, pipeline("shown", trigger=LAMBDA_JOB, readiness=Readiness(rules=(ORDERS_THERE,))))
    environ = {name: value for name, value in cloud.environ.items() if name.startswith("HEADGATE_STORE_")}
    environ |= {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_BACKEND": "dynamodb",
        "HEADGATE_STORE_AWS_REGION": cloud.region,
        "HEADGATE_PIPELINES_STATE_MACHINE_ARN": cloud.environ["STATE_MACHINE_ARN"],
        "HEADGATE_PIPELINES_SCHEDULER_ROLE_ARN": cloud.environ["SCHEDULER_ROLE_ARN"],
    }

    with Server(tmp_path, **environ) as server, httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as client:
        begun = client.post("/pipelines/shown/runs", json={"date": DATE, "reason": "the file came by mail"})
        until("it waits for orders", lambda: cloud.row("PIPELINE#shown", f"WAIT#stream#{DATE}#change"))
        why = client.get("/pipelines/shown/why", params={"date": DATE})
        pushed = client.post("/pipelines/shown/sensors/orders", json={"period": DATE, "data": {"count": 12}})
        log = ended(cloud, slot)
        shown = client.get(f"/runs/{log.run_id}")

    assert (begun.status_code, why.status_code, pushed.is_success) == (202, 200, True), pushed.text
    assert "orders" in why.json()["sentence"]
    assert (shown.json()["status"], shown.json()["note"]) == ("COMPLETED", "the file came by mail")
    assert executions(cloud, "shown") == [log.execution]


def test_router__records_reported_twice__start_nothing_twice(cloud: Cloud) -> None:
    slot = define(cloud, pipeline("twice", trigger=LAMBDA_JOB))
    record = landed(1, "twice")

    answers = [cloud.invoke("stream-router", {"Records": [record, record]})]
    ended(cloud, slot)
    # Another container does not know what this one has received.
    cloud.container.batches._processed.clear()
    answers.append(cloud.invoke("stream-router", {"Records": [record]}))

    assert answers == [{"batchItemFailures": []}] * 2
    assert len(executions(cloud, "twice")) == 1
    assert cloud.jobs.count({"pipeline": "twice"}) == 1


def test_router__a_poison_record__is_reported_and_holds_up_no_other_row(cloud: Cloud) -> None:
    for name in ("poison", "before", "after"):
        define(cloud, pipeline(name, trigger=LAMBDA_JOB, schedules=DORMANT))
    poison, following = landed(12, "poison"), landed(13, "poison")
    poison["dynamodb"]["NewImage"]["data"] = {"NOT-A-TYPE": 1}
    records = [landed(11, "before"), poison, following, landed(14, "after")]

    answer = cloud.invoke("stream-router", {"Records": records})

    # The changes of one row are delivered in order, or not yet.
    reported = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    assert reported == [record["dynamodb"]["SequenceNumber"] for record in (poison, following)]
    assert [len(executions(cloud, name)) for name in ("poison", "before", "after")] == [0, 1, 1]
    # Once given up, it blocks nothing.
    assert cloud.invoke("stream-router", {"Records": records[2:]}) == {"batchItemFailures": []}
    assert [len(executions(cloud, name)) for name in ("poison", "before", "after")] == [1, 1, 1]


def test_router__step_functions_is_busy__reports_the_record_and_starts_it_when_redelivered(
    cloud: Cloud,
) -> None:
    define(cloud, pipeline("busy", trigger=LAMBDA_JOB, schedules=DORMANT))
    faults = Faults(cloud.container.clients.client("stepfunctions"))
    faults.inject("StartExecution", *[refused("ThrottlingException")] * TRIES)
    event = {"Records": [landed(31, "busy")]}

    first = cloud.invoke("stream-router", event)

    assert faults.left("StartExecution") == 0
    assert [each["itemIdentifier"] for each in first["batchItemFailures"]] == [
        event["Records"][0]["dynamodb"]["SequenceNumber"]
    ]
    assert cloud.invoke("stream-router", event) == {"batchItemFailures": []}
    assert len(executions(cloud, "busy")) == 1


def test_router__no_time_left__begins_nothing_and_reports_all(cloud: Cloud) -> None:
    define(cloud, pipeline("hurried", trigger=LAMBDA_JOB))
    records = [landed(21, "hurried"), landed(22, "hurried")]

    answer = cloud.invoke("stream-router", {"Records": records}, left_ms=1_000)

    reported = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    assert reported == [record["dynamodb"]["SequenceNumber"] for record in records]
    assert executions(cloud, "hurried") == []


def test_engine__a_later_start__is_one_schedule_that_starts_under_the_same_name(cloud: Cloud) -> None:
    slot = define(cloud, pipeline("later", trigger=LAMBDA_JOB))
    starter = service_of(cloud).starter
    name = execution_name(slot, Cause.MARKER)

    assert [starter.start_run(slot, Cause.MARKER, delay_seconds=3_600) for _ in range(2)] == [True, False]

    scheduler = cloud.client("scheduler")
    found = scheduler.get_schedule(Name=schedule_name(f"start-{name}"), GroupName="default")
    assert found["Target"]["Arn"] == START_TARGET
    given = json.loads(found["Target"]["Input"])
    cloud.client("stepfunctions").start_execution(
        stateMachineArn=given["StateMachineArn"], name=given["Name"], input=given["Input"]
    )
    assert ended(cloud, slot).execution == name
    assert not starter.start_run(slot, Cause.MARKER, delay_seconds=3_600)


def test_engine__a_token_that_is_over__is_stale(cloud: Cloud) -> None:
    define(cloud, pipeline("stale", trigger=LAMBDA_JOB))
    waiters = service_of(cloud).waiters
    slot = Slot("stale", "stream", DATE)
    waiters.register(slot, WaitKind.JOB, "a token that nobody waits with")

    assert not waiters.wake(slot, WaitKind.JOB, "over")
    assert cloud.row("PIPELINE#stale", f"WAIT#stream#{DATE}#{WaitKind.JOB.value}") is None


def test_sla__of_a_run__is_asked_for_at_its_moment_and_taken_back_at_its_end(cloud: Cloud, clock: ShiftedClock) -> None:
    sla = Sla(max_duration=Seconds(3_600), expected_duration=Seconds(600))
    slot = define(cloud, pipeline("promised", trigger=LAMBDA_JOB, sla=sla))
    now = clock.now()
    call = {"pipelineId": "promised", "scheduleId": "stream", "date": DATE, "sensorArrivalAt": now.isoformat()}
    names = {kind: schedule_name(f"sla-{kind}-promised-stream-{DATE}") for kind in ("warning", "breach")}
    scheduler = cloud.client("scheduler")

    answer = cloud.invoke("sla-monitor", {**call, "mode": "schedule"})

    found = {kind: scheduler.get_schedule(Name=name, GroupName="default") for kind, name in names.items()}
    for kind, field in (("warning", "warningAt"), ("breach", "breachAt")):
        due = datetime.fromisoformat(str(answer[field]))
        at = datetime.fromisoformat(found[kind]["ScheduleExpression"][3:-1] + "+00:00")
        assert timedelta(0) <= at - due < timedelta(seconds=1)
        assert found[kind]["ActionAfterCompletion"] == "DELETE"
        assert found[kind]["Target"]["DeadLetterConfig"]["Arn"] == cloud.environ["SCHEDULE_FAILURES_ARN"]
    fired = {kind: json.loads(each["Target"]["Input"]) for kind, each in found.items()}
    assert found["breach"]["Target"]["Arn"] == cloud.environ["SLA_MONITOR_ARN"]
    assert cloud.invoke("sla-monitor", fired["breach"]) == {"alerted": False}
    clock.ahead = timedelta(hours=2)
    try:
        assert cloud.invoke("sla-monitor", fired["breach"]) == {"alerted": True}
    finally:
        clock.ahead = timedelta(0)
    assert EventName.RELATIVE_SLA_BREACH in [
        event.name for event in service_of(cloud).events.ls(slot.pipeline_id).events
    ]

    cloud.invoke("sla-monitor", {**call, "mode": "cancel"})

    for name in names.values():
        with pytest.raises(scheduler.exceptions.ResourceNotFoundException):
            scheduler.get_schedule(Name=name, GroupName="default")


def test_clockwork__a_period_is_due__begins_it_and_delivers_what_is_reported(cloud: Cloud, clock: ShiftedClock) -> None:
    define(cloud, pipeline("hourly", trigger=LAMBDA_JOB, period="hourly", schedules=(Schedule(cron="0 * * * *"),)))
    cloud.invoke("clockwork")
    before = executions(cloud, "hourly")

    clock.ahead = timedelta(hours=1)
    try:
        cloud.invoke("clockwork")
        (name,) = executions(cloud, "hourly")
        until("it is over", lambda: cloud.executions()[name] == "SUCCEEDED")
        delivered = cloud.invoke("clockwork")["delivered"]
    finally:
        clock.ahead = timedelta(0)

    assert before == []
    assert delivered > 0


def test_watchdog__an_execution_that_was_aborted__is_found_and_its_run_ended(cloud: Cloud, clock: ShiftedClock) -> None:
    slot = define(cloud, pipeline("aborted", trigger=LAMBDA_JOB, readiness=Readiness(rules=(ORDERS_THERE,))))
    land(cloud, "aborted")
    until("it waits", lambda: cloud.row("PIPELINE#aborted", f"WAIT#stream#{DATE}#{WaitKind.CHANGE.value}"))
    (name,) = executions(cloud, "aborted")
    arn = cloud.environ["STATE_MACHINE_ARN"].replace(":stateMachine:", ":execution:")
    assert cloud.invoke("watchdog")["failed"] == {}

    cloud.client("stepfunctions").stop_execution(executionArn=f"{arn}:{name}")
    clock.ahead = timedelta(hours=1)
    try:
        report = cloud.invoke("watchdog")
    finally:
        clock.ahead = timedelta(0)

    assert report["failed"] == {}
    log = service_of(cloud).stores.runs.log(slot)
    assert log is not None
    assert log.status is RunStatus.FAILED
    assert service_of(cloud).stores.locks.find(evaluation_key(slot)) is None


def test_topic__rows_that_change_again_or_are_reported_twice__is_reported_once_that_a_period_ended(
    cloud: Cloud,
) -> None:
    topic = LifecycleTopic(cloud.container.clients.client("sns"), cloud.environ["LIFECYCLE_TOPIC_ARN"])
    slot = Slot("told", "stream", DATE)
    key = RUN_LOG.key(**slot._asdict())
    under_way = RunLog(
        **slot._asdict(), status=RunStatus.RUNNING, version=1, created_at_ms=0, updated_at_ms=0, run_id="run_1"
    )
    done = replace(under_way, status=RunStatus.COMPLETED, version=2, updated_at_ms=1_000)

    for old, new in ((None, under_way), (under_way, done), (done, replace(done, version=3))):
        before = None if old is None else row(key, old)
        topic.on_change(Change("1", PIPELINES, ChangeKind.MODIFY, key, before, row(key, new), at_seconds=0.0))

    assert until("it is published", lambda: cloud.published("told")) == [
        {
            "eventType": "PIPELINE_COMPLETED",
            "pipelineId": "told",
            "scheduleId": "stream",
            "date": DATE,
            "runId": "run_1",
            "status": "COMPLETED",
            "timestamp": "1970-01-01T00:00:01.000Z",
        }
    ]


def test_container__a_secret_with_keys__signs_with_those_of_all_others(cloud: Cloud, clock: ShiftedClock) -> None:
    theirs = Keyring.open(cloud.container.package / KEYS, clock)

    signed = cloud.container.opened.keyring.sign(Purpose.TOKEN, b"order 7")

    assert theirs.verify(Purpose.TOKEN, signed) == b"order 7"


def test_definitions__of_the_package__become_the_current_ones_and_a_check_changes_nothing(cloud: Cloud) -> None:
    folder = cloud.container.package / "pipelines"
    folder.mkdir()
    (folder / "packed.yaml").write_text(PACKED)
    assert "pipelines" in cloud.invoke("definitions", {"check": True})
    assert "packed" not in {each.pipeline.id for each in service_of(cloud).definitions.all().pipelines}

    answer = cloud.invoke("definitions")

    assert answer["pipelines"] >= 1
    assert service_of(cloud).definitions.get("packed").pipeline.owner == "ana@example.com"
