"""Activities invoked asynchronously: a function of the real package runs them, and what it loses is counted.

The emulator invokes the function and sends a record of what failed to the queue, as Lambda does. It applies the
configuration of no alias and leaves parts of the record out, so that the documented record is delivered here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.aws import activities, client, turns, wakeups
from headgate.durable.client.handle import Handle
from headgate.durable.model.history import ActivityEnded
from headgate.durable.serverless.lost_invocations import load_record
from headgate.durable.serverless.wakeups import ActivityWake, Due, dump_due
from headgate.store.catalogue.tables import ACTIVITIES
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from tests import async_app
from tests.async_app import dispatch
from tests.aws_rig import WORKFLOW_FUNCTIONS, not_granted, noting, sign_in
from tests.ministack import REGION, fresh_account
from tests.packaged_function import make_packaged_function, unpack
from tests.packaged_function import not_granted as not_granted_to_package
from tests.shifted_clock import ShiftedClock
from tests.workflow_rig import TABLE_PREFIX, Workflows

NAME = "headgate-activity-weigh"


class Scales(Workflows):
    """The workflow functions of an app, one activity of which is a function of the package."""

    def __init__(self, endpoint: str, account: str, folder: Path, clock: ShiftedClock) -> None:
        arn = f"arn:aws:lambda:{REGION}:{account}:function:{NAME}"
        of_app = {"HEADGATE_APP": "tests.async_app:app", "ACTIVITY_FUNCTION_ARNS": json.dumps({"weigh": arn})}
        super().__init__(endpoint, account, folder, clock, more=of_app)
        (folder / "task").mkdir()
        unpack(folder / "task", {"async_app.py": Path(async_app.__file__).read_text()})
        self.notes = folder / "notes"
        self.lost = self._sqs.create_queue(QueueName="lost", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
        functions = self.container.clients.client("lambda")
        environ = {
            **self.environ,
            "HEADGATE_APP": "async_app:app",
            "HEADGATE_HOME": str(folder / "function"),
            "AWS_ACCESS_KEY_ID": account,
            "AWS_SECRET_ACCESS_KEY": "-",
        }
        handler = WORKFLOW_FUNCTIONS["activity"]["handler"]
        role = f"arn:aws:iam::{account}:role/any"
        make_packaged_function(
            functions, role, NAME, handler, folder / "task", self.notes, environ, timeout_seconds=120
        )
        functions.put_function_event_invoke_config(
            FunctionName=NAME,
            MaximumRetryAttempts=0,
            DestinationConfig={"OnFailure": {"Destination": f"arn:aws:sqs:{REGION}:{account}:lost"}},
        )

    def row(self, execution_id: str) -> Item:
        item = self.container.opened.store.get(ACTIVITIES, Key(f"{execution_id}#1#000001"), consistent=True)
        return item or {}

    def count(self, *records: str) -> list[str]:
        """Bring records to the function that counts them, and return those that it reports as failed."""
        found = [{"messageId": f"m-{number}", "body": each} for number, each in enumerate(records)]
        answer = self.invoke("lost-activities", {"Records": found})
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def account() -> str:
    return fresh_account()


@pytest.fixture(scope="module")
def deployed(
    ministack: str, account: str, clock: ShiftedClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scales]:
    opened: list[Workflows] = []
    with noting(account, opened) as patch:
        rig = Scales(ministack, account, tmp_path_factory.mktemp("scales"), clock)
        opened.append(rig)
        for module in (activities, client, turns, wakeups):
            patch.setattr(module, "app_container", lambda: rig.container)
        yield rig
        rig.close()


@pytest.fixture
def aws(deployed: Scales, account: str, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scales]:
    """The deployment; after each test, no function has asked for more than Terraform grants it."""
    sign_in(monkeypatch, account)
    yield deployed
    clock.ahead = timedelta(0)
    assert not_granted(deployed) == set()
    assert (
        not_granted_to_package({"activity": WORKFLOW_FUNCTIONS["activity"]}, {"activity": deployed.notes}, TABLE_PREFIX)
        == set()
    )


def invocation_record(wake: ActivityWake, *, condition: str = "RetriesExhausted", message: str = "") -> str:
    """Return a record as Lambda documents it. There is no response to an event that became too old."""
    response = {
        "responseContext": {"statusCode": 200, "executedVersion": "7", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": message},
    }
    return json.dumps(
        {
            "version": "1.0",
            "timestamp": "2026-03-03T18:16:05.568Z",
            "requestContext": {
                "requestId": "e4b46cbf-b738-0000-8880-a18cdf61200e",
                "functionArn": f"arn:aws:lambda:{REGION}:123456789012:function:{NAME}:live",
                "condition": condition,
                "approximateInvokeCount": 3,
            },
            "requestPayload": json.loads(dump_due(Due(wake, 0))),
            **(response if message else {}),
        }
    )


def end_of(aws: Scales, handle: Handle[Any]) -> ActivityEnded:
    history = aws.container.service.client.history(handle.id)
    (ended,) = [event for turn in history for event in turn.events if isinstance(event, ActivityEnded)]
    return ended


def test_activity__invoked_asynchronously__is_performed_by_its_own_function(aws: Scales) -> None:
    handle = dispatch.start("p-1", id="a-1")

    aws.run(lambda: handle.describe().status == "SUCCEEDED", within_seconds=90)

    assert handle.result(timeout_seconds=5) == "p-1 weighed in attempt 1"
    assert aws.received(aws.tasks) == []
    # The event may come twice.
    assert aws.invoke("activity", json.loads(dump_due(Due(ActivityWake("a-1#1#000001", "default", "weigh", 1), 0))))


def test_activity__its_function_dies__is_lost_with_the_reason_and_tried_again(aws: Scales) -> None:
    handle = dispatch.start("p-2", 1, id="a-2")
    (record,) = aws.run(lambda: aws.received(aws.lost), within_seconds=90)
    claimed = aws.row("a-2")

    # Twice: what the first one has sent waits for the lease of the function that died.
    check = aws.container.lost_invocations.count(load_record(record["body"]))
    assert aws.count(record["body"]) == []
    assert check is not None
    assert aws.held_back() == 1
    assert aws.row("a-2") == claimed
    aws.invoke("waker", {"Records": [{"messageId": "m", "body": dump_due(check), "eventSource": "aws:sqs"}]})

    aws.run(lambda: handle.describe().status == "SUCCEEDED", within_seconds=90)
    assert handle.result(timeout_seconds=5) == "p-2 weighed in attempt 2"
    (failed,) = end_of(aws, handle).earlier
    assert failed.type == "WorkerDied"
    assert "RetriesExhausted" in failed.message


def test_activity__its_invocations_never_begin__fails_after_its_attempts_and_hangs_no_workflow(
    aws: Scales, clock: ShiftedClock
) -> None:
    handle = dispatch.start("p-3", id="a-3")
    aws.run(lambda: aws.row("a-3"))
    # No stream: the function is never invoked.
    aws.changes("headgate-activities")

    for attempt in (1, 2, 3):
        wake = ActivityWake("a-3#1#000001", "default", "weigh", attempt)
        expired = invocation_record(wake, condition="EventAgeExceeded")
        assert aws.count(expired, expired) == []
        aws.changes("headgate-activities")
    aws.run(lambda: handle.describe().status == "FAILED")

    ended = end_of(aws, handle)
    assert ended.attempts == 3
    assert ended.error is not None
    assert ended.error.type == "InvocationFailed"
    assert ended.error.message.endswith("Lambda gave up its invocation: EventAgeExceeded")
    assert len(ended.earlier) == 2


def test_record__of_an_attempt_that_is_over__changes_nothing_and_an_unreadable_one_holds_up_no_other(
    aws: Scales,
) -> None:
    handle = dispatch.start("p-4", id="a-4")
    aws.run(lambda: aws.row("a-4"))
    aws.changes("headgate-activities")
    wake = ActivityWake("a-4#1#000001", "default", "weigh", 1)
    later = ActivityWake("a-4#1#000001", "default", "weigh", 2)
    ended = ActivityWake("nobody#1#000001", "default", "weigh", 1)
    before = aws.row("a-4")

    assert aws.count("{}", "no JSON", invocation_record(later), invocation_record(ended)) == ["m-0", "m-1"]
    assert aws.row("a-4") == before

    assert aws.count(invocation_record(wake, message="Runtime exited: signal: killed")) == []
    waiting = aws.row("a-4")
    assert waiting["attempt"] == 1
    assert "RetriesExhausted: Runtime exited: signal: killed" in waiting["last_error"]
    aws.run(lambda: handle.describe().status == "SUCCEEDED", within_seconds=90)
    assert handle.result(timeout_seconds=5) == "p-4 weighed in attempt 2"
