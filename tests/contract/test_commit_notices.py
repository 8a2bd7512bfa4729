"""Notices of commits on DynamoDB: an idle process learns from a row that another one has committed work."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError

from headgate.clock import VirtualClock
from headgate.store.catalogue.tables import ACTIVITIES, CONTROL
from headgate.store.dynamodb.notices import SHARDS, CommitNotices
from headgate.store.table_names import TableNames
from tests.contract.conftest import DYNAMODB_BACKENDS, Aws, Eventually, OpenStore
from tests.contract.first_use import TablesWhenUsed

TABLES = (ACTIVITIES, CONTROL)
pytestmark = pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)


@pytest.fixture
def mailbox(aws: Aws, names: TableNames, clock: VirtualClock) -> CommitNotices:
    """The notices as one process has them."""
    TablesWhenUsed(aws.dynamodb, names, TABLES)
    return _notices(aws, names, clock)


def _notices(aws: Aws, names: TableNames, clock: VirtualClock) -> CommitNotices:
    return CommitNotices(aws.dynamodb, names=names, clock=clock)


def test_receive__notice_of_another_process__is_new_once(
    mailbox: CommitNotices, aws: Aws, names: TableNames, clock: VirtualClock
) -> None:
    others = [_notices(aws, names, clock) for _ in range(2 * SHARDS)]
    mailbox.receive()
    assert mailbox.receive() is False

    for other in others:
        other.send()
    assert [mailbox.receive(), mailbox.receive()] == [True, False]

    clock.advance(1)
    others[0].send()
    assert [mailbox.receive(), mailbox.receive()] == [True, False]


def test_receive__own_notice__is_none(mailbox: CommitNotices) -> None:
    mailbox.receive()
    mailbox.send()

    assert mailbox.receive() is False


def test_send__store_cannot_be_reached__is_no_error_and_receive_says_that_it_does_not_know(
    mailbox: CommitNotices, aws: Aws
) -> None:
    aws.dynamodb.meta.events.register("before-send.dynamodb", _unreached)

    mailbox.send()

    assert mailbox.receive() is None


def _unreached(**_: object) -> None:
    raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")


def test_commit__of_work__sends_a_notice_and_one_of_a_heartbeat_does_not(
    aws: Aws, names: TableNames, clock: VirtualClock, open_store: OpenStore, eventually: Eventually
) -> None:
    busy, mailbox = open_store(has_notices=True), _notices(aws, names, clock)
    mailbox.receive()

    busy.put(CONTROL, {"PK": "REGION#REPORTS", "SK": "east"})
    busy.put(ACTIVITIES, {"activity_id": "act-1", "queue_pk": "Q#default", "available_at_ms": 1000})

    assert eventually(mailbox.receive, bool)
    # Its next commits of this second are covered by that notice.
    busy.put(ACTIVITIES, {"activity_id": "act-2", "queue_pk": "Q#default", "available_at_ms": 1000})
    assert mailbox.receive() is False
