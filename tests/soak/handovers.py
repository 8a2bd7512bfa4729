"""Hand-overs: a run waits for as many rounds as a window of 23 hours at 30 seconds has, on Step Functions of MiniStack.

Each wake-up is a round. The limit of events is lowered, so that there are many hand-overs.

Every round leaves a row of its evaluation and one of its event beside the pipeline, and reads the newest one with a
limit. MiniStack compares the key condition with every row of the partition, whatever the limit, so that its time for a
round grows with the rounds (51 ms of CPU at first, 169 ms after 1,600), until functions on a busy machine give up their
calls. DynamoDB reads what the limit says. The rows therefore end here as retention ends them, only sooner.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from headgate.aws import handlers
from headgate.clock import SystemClock
from headgate.pipelines.definition.model import Readiness, TriggerSpec
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.lifecycle.hand_over import ROUND_EVENTS
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.runs.rows import RunLog, Slot
from tests.aws_rig import JOB, PIPELINES, Cloud, noting, passing_on, until
from tests.ministack import Ministack, fresh_account
from tests.pipeline_rig import ORDERS_THERE, pipeline
from tests.soak.figures import Figure

EVENTS_MAX: Final = 1_000
# On a loaded machine a function may be retried after its store did not respond.
PATIENCE_SECONDS: Final = 300.0
# After how many rounds the rows of earlier ones are deleted, but for the newest.
EXPIRY_ROUNDS: Final = 100
_ROWS_KEPT: Final = 10
DATE: Final = "2026-03-03"


def run(folder: Path, rounds: int) -> list[Figure]:
    """Wake a waiting run `rounds` times, then let it proceed; return what became of its executions."""
    server = Ministack.start(folder)
    try:
        opened: list[Cloud] = []
        with (
            noting(account := fresh_account(), opened) as patch,
            passing_on(lambda name, event: opened[0].call(name, event)) as address,
        ):
            lowered = {"HEADGATE_PIPELINES_HAND_OVER_EVENTS": str(EVENTS_MAX)}
            cloud = Cloud(server.endpoint, account, folder, SystemClock(), lowered)
            opened.append(cloud)
            patch.setattr(handlers, "lifecycle_container", lambda: cloud.container)
            cloud.deploy(address)
            log = _wait_and_run(cloud, rounds)
            return _figures(cloud, log, rounds)
    finally:
        server.stop()


def _wait_and_run(cloud: Cloud, rounds: int) -> RunLog:
    service = cloud.container.pipelines.service
    waiting = Readiness(rules=(ORDERS_THERE,))
    job = TriggerSpec(type="lambda", config={"function": JOB})
    service.definitions.put(pipeline("patient", trigger=job, readiness=waiting), "text", "soak")
    slot = Slot("patient", "stream", DATE)
    cloud.put_row("PIPELINE#patient", "SENSOR#landed", data={"M": {"date": {"S": DATE}}})
    last = ""
    for number in range(rounds):
        if number % EXPIRY_ROUNDS == EXPIRY_ROUNDS - 1:
            _expire_rows(cloud)
        last = until("it waits", partial(_new_token, cloud, last), within_seconds=PATIENCE_SECONDS)
        assert service.waiters.wake(slot, WaitKind.CHANGE, "soak")
    until("it waits", partial(_new_token, cloud, last), within_seconds=PATIENCE_SECONDS)
    cloud.put_row("PIPELINE#patient", "SENSOR#orders", data={"M": {"count": {"N": "12"}}})

    def ended() -> RunLog | None:
        log = service.stores.runs.log(slot)
        return log if log is not None and not log.is_live and "RUNNING" not in cloud.executions().values() else None

    found: RunLog = until("it ends", ended, within_seconds=PATIENCE_SECONDS)
    return found


def _expire_rows(cloud: Cloud) -> None:
    """Delete the rows of earlier evaluations and events of the pipeline, as their retention does in the end."""
    table = cloud.client("dynamodb")
    for prefix in ("EVAL#", "EVENT#"):
        pages = table.get_paginator("query").paginate(
            TableName=PIPELINES,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
            ExpressionAttributeValues={":pk": {"S": "PIPELINE#patient"}, ":sk": {"S": prefix}},
            ProjectionExpression="PK, SK",
        )
        for key in [item for page in pages for item in page["Items"]][:-_ROWS_KEPT]:
            table.delete_item(TableName=PIPELINES, Key=key)


def _new_token(cloud: Cloud, last: str) -> str:
    """Return the token with which the run waits, or nothing if it is still the last one."""
    row = cloud.row("PIPELINE#patient", f"WAIT#stream#{DATE}#{WaitKind.CHANGE.value}")
    token = "" if row is None else str(row["task_token"]["S"])
    return "" if token == last else token


def _figures(cloud: Cloud, log: RunLog, rounds: int) -> list[Figure]:
    statuses = cloud.executions()
    longest = max(_events(cloud, name) for name in statuses)
    # An execution that continues evaluates at once, so that each waits once less than it evaluates.
    wanted = 1 + rounds // (EVENTS_MAX // ROUND_EVENTS - 1)
    return [
        Figure(
            "rounds of evaluation, and executions that made them", f"{rounds}, {len(statuses)}", len(statuses) == wanted
        ),
        Figure(
            "executions that did not succeed",
            f"{sum(each != 'SUCCEEDED' for each in statuses.values())}",
            set(statuses.values()) == {"SUCCEEDED"},
        ),
        Figure("the longest history, in events", f"{longest}", longest < 2 * EVENTS_MAX),
        Figure(
            "status and attempts of the run",
            f"{log.status.value}, {log.attempts}",
            log.status is RunStatus.COMPLETED and log.attempts == 1,
        ),
    ]


def _events(cloud: Cloud, name: str) -> int:
    arn = f"{cloud.environ['STATE_MACHINE_ARN'].replace(':stateMachine:', ':execution:')}:{name}"
    pages = cloud.client("stepfunctions").get_paginator("get_execution_history").paginate(executionArn=arn)
    return sum(len(page["events"]) for page in pages)
