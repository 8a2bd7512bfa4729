"""Workflows on AWS: executions run to their end by nothing but handlers that queues and streams call."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.aws import activities, client, turns, wakeups
from headgate.aws.invocation import MARGIN_MS, TransientLambdaError
from headgate.durable.model.history import ActivityEnded
from headgate.durable.serverless.sqs import AHEAD_SECONDS
from headgate.durable.serverless.wakeups import AT_ONCE_MS, Due, WorkerWake, dump_due, load_due
from headgate.errors import InvalidPayloadError, NotFoundError
from headgate.store.catalogue.tables import ACTIVITIES, TURNS, WORKERS
from headgate.store.model.schema import Key
from headgate.triggers.aws.clients import TRIES
from tests import order_app
from tests.aws_faults import Faults, refused
from tests.aws_rig import Context, not_granted, noting, sign_in
from tests.ministack import fresh_account
from tests.order_app import count, fetch, fulfil, ponder
from tests.shifted_clock import ShiftedClock
from tests.workflow_rig import Workflows, reversed_twice

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture(scope="module")
def account() -> str:
    return fresh_account()


@pytest.fixture(scope="module")
def deployed(
    ministack: str, account: str, clock: ShiftedClock, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workflows]:
    """One set of tables and queues for all tests; each has executions of its own."""
    opened: list[Workflows] = []
    with noting(account, opened) as patch:
        rig = Workflows(ministack, account, tmp_path_factory.mktemp("home"), clock)
        opened.append(rig)
        for module in (activities, client, turns, wakeups):
            patch.setattr(module, "app_container", lambda: rig.container)
        yield rig
        rig.close()


@pytest.fixture
def aws(deployed: Workflows, account: str, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflows]:
    """The deployment; after each test, no function has asked for more than Terraform grants it."""
    sign_in(monkeypatch, account)
    order_app.done.clear()
    order_app.go_on.clear()
    yield deployed
    order_app.go_on.set()
    deployed.bring = lambda records: [records]
    deployed.is_deaf = False
    deployed.container = deployed.opened
    clock.ahead = timedelta(0)
    assert not_granted(deployed) == set()


def message(due: Due) -> dict[str, Any]:
    """Return a message of the queue for later whose time has come."""
    return {"messageId": "m-1", "body": dump_due(due), "eventSource": "aws:sqs"}


def test_order__driven_by_handlers_alone__is_fulfilled_across_signal_timer_and_child(
    aws: Workflows, clock: ShiftedClock
) -> None:
    # Too large for an item, so that the order, its history and its activity are in the bucket.
    order = {"id": "o-1", "note": "n" * 500_000}
    asked = {"action": "start", "workflow": "fulfil", "input": order, "id": "o-1"}
    assert [aws.invoke("client", asked)["created"] for _ in range(2)] == [True, False]
    handle = fulfil.handle("o-1")
    aws.run(lambda: aws.schedules())
    assert handle.describe().awaits == ("approved",)
    (expiry,) = aws.schedules()

    aws.invoke("client", {"action": "signal", "id": "o-1", "name": "approved", "payload": {"by": "ada"}})
    # The timer of three days is cancelled, and its schedule with it; that of an hour is there.
    (hour,) = aws.run(lambda: [each for each in aws.schedules() if each["Name"] != expiry["Name"]])
    aws.run(lambda: len(aws.schedules()) == 1)
    soon = hour["Target"]
    ahead = datetime.fromisoformat(hour["ScheduleExpression"][3:-1] + "+00:00").timestamp()
    assert 0 <= ahead - (load_due(soon["Input"]).at_ms / 1000 - AHEAD_SECONDS) < 1
    clock.ahead = HOUR - timedelta(minutes=5)
    aws.send_later(soon["Input"])
    aws.settle()
    # A schedule comes minutes early, and a queue keeps the rest.
    assert (aws.held_back(), handle.describe().status) == (1, "RUNNING")
    clock.ahead = HOUR
    aws.send_later(soon["Input"])

    assert aws.run(lambda: aws.invoke("client", {"action": "show", "id": "o-1"})["status"] == "SUCCEEDED")
    assert handle.result(timeout_seconds=5) == "receipt-o-1: approved by ada, sent as parcel-o-1"
    assert order_app.done == ["charge o-1", "pack o-1"]
    assert soon["Arn"] == expiry["Target"]["Arn"] == aws.environ["LATER_QUEUE_ARN"]
    first = aws.container.opened.store.get_raw(TURNS, Key("o-1", 1))
    assert first is not None
    assert len(json.dumps(first, default=str)) < 10_000


def test_wakes__doubled_and_reordered__do_nothing_twice_and_lose_nothing(aws: Workflows) -> None:
    aws.invoke("sweep")
    aws.bring = reversed_twice
    handles = [count.start(3, id=f"c-{number}") for number in range(2)]
    aws.invoke("client", {"action": "emit", "type": "order.paid", "data": {"id": "o-2"}})
    for handle in handles:
        for _ in range(3):
            handle.signal("one", None)

    aws.run(lambda: all(each.describe().status == "SUCCEEDED" for each in handles))
    aws.run(lambda: order_app.done)
    assert aws.run(lambda: order_app.ship.handle("ship-o-2").describe().status == "SUCCEEDED")

    assert [handle.result(timeout_seconds=5) for handle in handles] == [3, 3]
    assert order_app.done == ["pack o-2"]


def test_wakes__all_of_them_lost__are_made_up_for_by_the_sweep(aws: Workflows, clock: ShiftedClock) -> None:
    handle = fetch.start("o-3", id="f-3")
    aws.is_deaf = True
    aws.settle()
    assert aws.invoke("sweep")["sent"] == 0

    # The start, the activity, its second attempt half an hour later and its end: none of it sends an alert.
    for minute in range(60):
        clock.ahead = timedelta(minutes=minute)
        aws.invoke("sweep")
        aws.settle()

    assert handle.result(timeout_seconds=5) == "there"
    assert order_app.done == ["flaky o-3"] * 2


def test_waker__sqs_is_away_after_the_commit__sends_it_when_redelivered(aws: Workflows) -> None:
    handle = order_app.ship.start("o-4", id="s-4")
    records = aws.changes("headgate-inboxes")
    faults = Faults(aws.container.clients.client("sqs"))
    faults.inject("SendMessageBatch", *[refused("ThrottlingException")] * TRIES)

    with pytest.raises(TransientLambdaError):
        aws.invoke("waker", {"Records": records})

    assert faults.left("SendMessageBatch") == 0
    assert aws.received(aws.turns) == []
    aws.invoke("waker", {"Records": records})
    assert aws.run(lambda: handle.describe().status == "SUCCEEDED")
    assert order_app.done == ["pack o-4"]


def test_waker__a_schedule_is_refused_for_good__holds_up_no_one_and_the_timer_is_found_when_overdue(
    aws: Workflows, clock: ShiftedClock
) -> None:
    faults = Faults(aws.container.clients.client("scheduler"))
    faults.inject("CreateSchedule", refused("ValidationException"))
    handle = fulfil.start({"id": "o-9"}, id="o-9")
    aws.run(lambda: handle.describe().awaits and faults.left("CreateSchedule") == 0)

    clock.ahead = timedelta(days=3, minutes=1, seconds=5)
    aws.invoke("sweep")
    aws.settle()

    assert handle.result(timeout_seconds=5) == "receipt-o-9: nobody approved it"


def test_activity__its_worker_was_given_up__is_performed_by_another_and_the_zombie_is_refused(aws: Workflows) -> None:
    handle = ponder.start("o-5", id="p-5")
    aws.run(lambda: aws.container.opened.store.get(ACTIVITIES, Key("p-5#1#000001"), consistent=True))
    aws.invoke("waker", {"Records": aws.changes("headgate-activities")})
    records = aws.received(aws.tasks)
    zombie = aws.container = aws.another_container()
    thread = threading.Thread(target=activities.activities, args=({"Records": records}, Context()))
    thread.start()
    aws.container = aws.opened
    store = aws.container.opened.store
    aws.run(lambda: order_app.done)
    watch = aws.container.sweeper.workers
    (seen,) = watch.checks()
    assert isinstance(seen.wake, WorkerWake)
    # Another sign of life since, and it is alive.
    store.update(WORKERS, Key(seen.wake.worker_id), set={"beats": seen.wake.beats + 1})
    aws.invoke("waker", {"Records": [message(seen)]})
    assert watch.checks()[0].wake == replace(seen.wake, beats=seen.wake.beats + 1)
    held = store.get(ACTIVITIES, Key("p-5#1#000001"), consistent=True)
    assert held is not None
    assert held["worker"] == seen.wake.worker_id

    # None, and it is dead.
    aws.invoke("waker", {"Records": [message(watch.checks()[0])]})
    order_app.go_on.set()
    aws.run(lambda: handle.describe().status == "SUCCEEDED")
    thread.join(30)
    aws.settle()
    zombie.close()

    assert handle.result(timeout_seconds=5) == "slow-2"
    history = aws.container.service.client.history("p-5")
    (ended,) = [event for turn in history for event in turn.events if isinstance(event, ActivityEnded)]
    assert ended.attempts == 2


class Waning(Context):
    """An invocation whose time is over as soon as it has begun something."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def get_remaining_time_in_millis(self) -> int:
        self._asked += 1
        return 60_000 if self._asked == 1 else MARGIN_MS - 1


def test_activity__the_time_of_its_function_is_over__fails_that_attempt_and_is_tried_again(aws: Workflows) -> None:
    handle = ponder.start("o-6", id="p-6")
    aws.run(lambda: aws.container.opened.store.get(ACTIVITIES, Key("p-6#1#000001"), consistent=True))
    aws.invoke("waker", {"Records": aws.changes("headgate-activities")})
    (record,) = aws.received(aws.tasks)

    assert aws.invoke("activities", {"Records": [record]}, context=Waning()) == {"batchItemFailures": []}

    waiting = aws.container.opened.store.get(ACTIVITIES, Key("p-6#1#000001"), consistent=True)
    assert waiting is not None
    assert "the time of the function" in waiting["last_error"]
    order_app.go_on.set()
    aws.run(lambda: handle.describe().status == "SUCCEEDED")
    assert handle.result(timeout_seconds=5) == "slow-2"
    assert aws.invoke("activities", {"Records": [record]}) == {"batchItemFailures": []}


def test_client__what_it_cannot_do__is_refused_by_name_and_an_execution_ends_when_asked(aws: Workflows) -> None:
    with pytest.raises(InvalidPayloadError, match="start, signal"):
        aws.invoke("client", {"action": "begin"})
    with pytest.raises(NotFoundError):
        aws.invoke("client", {"action": "cancel", "id": "nobody"})
    handle = count.start(1, id="c-8")

    for action in ("cancel", "terminate"):
        assert aws.invoke("client", {"action": action, "id": "c-8", "reason": "test"}) == {"id": "c-8"}

    aws.run(lambda: handle.status().is_closed)
    shown = aws.invoke("client", {"action": "show", "id": "c-8"})
    assert (shown["status"], shown["result"]) == (handle.status().value, None)
    assert shown["error"]["type"]


def test_sweep__asked_to_check__loads_the_app_and_changes_nothing(aws: Workflows) -> None:
    assert aws.invoke("sweep", {"check": True}) == {"workflows": len(order_app.app.workflows)}


def test_turns__no_time_left__are_reported_and_taken_later(aws: Workflows) -> None:
    handle = count.start(0, id="c-7")
    aws.invoke("waker", {"Records": aws.changes("headgate-inboxes")})
    records = aws.received(aws.turns)

    answer = aws.invoke("turns", {"Records": records}, context=Context(left_ms=MARGIN_MS - 1))

    assert answer == {"batchItemFailures": [{"itemIdentifier": each["messageId"]} for each in records]}
    assert handle.describe().status == "RUNNING"
    # After a second, and not after the twenty for which the queue hides the message.
    again = aws.received_within(aws.turns, seconds=5)
    assert [each["messageId"] for each in again] == [each["messageId"] for each in records]
    assert aws.invoke("turns", {"Records": again}) == {"batchItemFailures": []}
    assert handle.result(timeout_seconds=5) == 0


def test_turns__aws_is_busy__are_delivered_again_after_a_back_off(aws: Workflows) -> None:
    handle = fulfil.start({"id": "o-10"}, id="o-10")
    (expiry,) = aws.run(lambda: [each for each in aws.schedules() if "o-10" in each["Target"]["Input"]])
    # A timer of three days that comes at once needs another schedule.
    aws.container.queues.send([replace(load_due(expiry["Target"]["Input"]), at_ms=AT_ONCE_MS)])
    records = aws.received(aws.turns)
    faults = Faults(aws.container.clients.client("scheduler"))
    faults.inject("CreateSchedule", *[refused("ThrottlingException")] * TRIES)

    with pytest.raises(TransientLambdaError):
        aws.invoke("turns", {"Records": records})

    again = aws.received_within(aws.turns, seconds=5)
    assert [each["messageId"] for each in again] == [each["messageId"] for each in records]
    assert aws.invoke("turns", {"Records": again}) == {"batchItemFailures": []}
    assert handle.describe().awaits == ("approved",)
