"""221 dead letters: drained by the installed program, seen as dead chunks, redriven, and run to success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from mypy_boto3_sqs import SQSClient

from headgate.bootstrap.store import open_fanouts, open_store
from headgate.clock import SystemClock
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.messages import message_about
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.remote.chunk_handler import chunk_handler
from headgate.fanout.remote.sdk import ActiveChunk, ChunkWorker
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.settings import Settings
from tests.ministack import REGION, fresh_account

LETTERS = 221


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> str:
    name = fresh_account()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    return name


@pytest.fixture
def client(ministack: str, account: str) -> SQSClient:
    session = boto3.Session(aws_access_key_id=account, aws_secret_access_key="-", region_name=REGION)
    found: SQSClient = session.client("sqs", endpoint_url=ministack)
    return found


def test_drain__221_dead_letters__are_dead_chunks_that_are_redriven_to_success(
    tmp_path: Path, ministack: str, client: SQSClient
) -> None:
    work_url = client.create_queue(QueueName="prod-chunks")["QueueUrl"]
    dead_url = client.create_queue(QueueName="prod-dead")["QueueUrl"]
    config = tmp_path / "headgate.toml"
    store = f'[store]\naws_region = "{REGION}"\naws_endpoint_url = "{ministack}"\n'
    config.write_text(f'home = "{tmp_path}"\n[fanout]\nqueues = ["{work_url}"]\n{store}')
    settings = Settings.load({}, config, {})
    clock = SystemClock()
    opened = open_store(settings, clock)
    fanouts = open_fanouts(opened, clock, IdMaker(clock))
    order = Order(group="grs-15", chunk_size=1, queue_url=work_url)
    fanouts.splitter.split(order, RangeSource(0, LETTERS), run_id="survey")
    _move_all(client, fanouts, work_url, dead_url)
    opened.store.close()

    drained = _headgate("fanout", "drain", dead_url, "--config", str(config), "--json")

    assert json.loads(drained.stdout) == {"recorded": LETTERS, "left": {}}
    opened = open_store(settings, clock)
    fanouts = open_fanouts(opened, clock, IdMaker(clock))
    fanout = fanouts.queries.fanout("survey", consistent=True)
    assert (fanout.status, fanout.chunks_failed) == (FanoutStatus.FAILED, LETTERS)
    dead = list(fanouts.queries.every_in_disposition("survey", Disposition.DEAD))
    assert len(dead) == LETTERS
    assert all(json.loads(chunk.message or "")["chunk_id"] == chunk.chunk_id for chunk in dead)
    assert fanouts.redriver.redrive("survey", ChunkSelection(all=True)).redriven == LETTERS
    _work_off(client, fanouts, work_url)
    assert fanouts.queries.fanout("survey", consistent=True).status is FanoutStatus.SUCCEEDED
    opened.store.close()


def _headgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("headgate"))
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True, timeout=60, env=dict(os.environ)
    )


def _move_all(client: SQSClient, fanouts: FanoutService, work_url: str, dead_url: str) -> None:
    """Do with all messages what the queue does with those that were received too often."""
    client.purge_queue(QueueUrl=work_url)
    fanout = fanouts.queries.fanout("survey")
    bodies = [message_about(fanout, chunk) for chunk in fanouts.queries.every_chunk("survey")]
    for start in range(0, len(bodies), 10):
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies[start : start + 10])]
        client.send_message_batch(QueueUrl=dead_url, Entries=entries)  # type: ignore[arg-type]


def _work_off(client: SQSClient, fanouts: FanoutService, url: str) -> None:
    @chunk_handler(ChunkWorker(fanouts.tracker))
    def work(chunk: ActiveChunk) -> None:
        chunk.output(sum(chunk.items))

    while True:
        messages = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        if not messages:
            return
        records = [
            {"messageId": each["MessageId"], "body": each["Body"], "attributes": {"ApproximateReceiveCount": "1"}}
            for each in messages
        ]
        assert work({"Records": records}, None) == {"batchItemFailures": []}
        for each in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
