"""Fan-outs as users look them up with AWS's own tools, and as the library does, on one table under their own name."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import boto3
import msgspec
import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.model.rows import Chunk, Fanout, Policy
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Admission, ChunkStatus, Disposition, FanoutStatus
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT, IDEMPOTENCY
from headgate.store.model.requests import Put
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from headgate.store.table_names import TableNames
from tests.contract.conftest import DYNAMODB_BACKENDS, NOW, Aws, Eventually
from tests.ministack import REGION, fresh_account
from tests.stores import open_sqlite

TABLES = (FANOUT, IDEMPOTENCY)
RUN_ID: Final = "2b7e1516-28ae-4d2a-a6ab-f7158809cf4f"
STARTS: Final = (0, 500, 1000, 1500, 2000)

# As they are printed in the manual of those who make them; only the id of the run is filled in.

GET_THE_RUN_SUMMARY: Final = r"""
aws dynamodb get-item \
--table-name phspectra-runs \
--key '{"PK":{"S":"<run-id>"},"SK":{"S":"RUN"}}'
"""
LIST_ALL_CHUNKS_FOR_A_RUN: Final = r"""
aws dynamodb query \
--table-name phspectra-runs \
--key-condition-expression 'PK = :pk AND begins_with(SK, :prefix)' \
--expression-attribute-values '{":pk":{"S":"<run-id>"},":prefix":{"S":"CHUNK#"}}'
"""
FIND_STUCK_CHUNKS: Final = r"""
aws dynamodb query \
--table-name phspectra-runs \
--key-condition-expression 'PK = :pk AND begins_with(SK, :prefix)' \
--filter-expression '#s = :status' \
--expression-attribute-names '{"#s":"status"}' \
--expression-attribute-values '{":pk":{"S":"<run-id>"},":prefix":{"S":"CHUNK#"},":status":{"S":"IN_PROGRESS"}}'
"""
FIND_MOST_RECENT_RUN_FOR_A_SURVEY: Final = r"""
aws dynamodb query \
--table-name phspectra-runs \
--index-name GSI1 \
--key-condition-expression 'GSI1_PK = :survey' \
--expression-attribute-values '{":survey":{"S":"grs-15"}}' \
--scan-index-forward false \
--limit 1
"""

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture
def names() -> TableNames:
    """The fan-out table under the name that its users know."""
    return TableNames(overrides={"headgate-fanout": "phspectra-runs"})


class Account(Aws):
    """Clients of one fresh account, whose key other programs can be given too."""

    def __init__(self, session: boto3.Session, endpoint_url: str) -> None:
        self.account = fresh_account()
        self.endpoint_url = endpoint_url
        options: dict[str, Any] = {
            "endpoint_url": endpoint_url, "aws_access_key_id": self.account, "aws_secret_access_key": "-",
        }  # fmt: skip
        self.dynamodb = session.client("dynamodb", **options)
        self.streams = session.client("dynamodbstreams", **options)


@pytest.fixture
def aws(request: pytest.FixtureRequest, backend: str) -> Iterator[Account]:
    endpoint = "ministack" if backend == "dynamodb" else "dynamodb_local"
    account = Account(request.getfixturevalue("aws_session"), request.getfixturevalue(endpoint))
    yield account
    account.close()


def corrected(command: str) -> str:
    """Return a command of the manual as the AWS CLI takes it: booleans are flags, and the manual gives one a value."""
    return command.replace("--scan-index-forward false", "--no-scan-index-forward")


def _with_the_command_line(aws: Account, folder: Path) -> Ask:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": aws.account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": aws.endpoint_url,
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
        "AWS_PAGER": "",
    }

    def ask(command: str) -> dict[str, Any]:
        done = subprocess.run(
            ["sh", "-c", corrected(command).replace("<run-id>", RUN_ID)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


def _with_botocore(aws: Account) -> Ask:
    """Make the call that the command line makes of a command: its options are the members of the request."""

    def ask(command: str) -> dict[str, Any]:
        program, service, operation, *options = shlex.split(command.replace("<run-id>", RUN_ID).replace("\\\n", " "))
        assert (program, service) == ("aws", "dynamodb")
        shape = aws.dynamodb.meta.service_model.operation_model(_camel(operation)).input_shape
        assert shape is not None
        request: dict[str, Any] = {}
        for option, text in zip(options[::2], options[1::2], strict=True):
            name = _camel(option.removeprefix("--"))
            is_text = shape.members[name].type_name == "string"
            request[name] = text if is_text else json.loads(text)
        found: dict[str, Any] = getattr(aws.dynamodb, operation.replace("-", "_"))(**request)
        return found

    return ask


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


TOOLS: Final = ["botocore", "command line"] if shutil.which("aws") else ["botocore"]


@pytest.fixture(params=TOOLS)
def ask(request: pytest.FixtureRequest, aws: Account, tmp_path: Path) -> Ask:
    return _with_botocore(aws) if request.param == "botocore" else _with_the_command_line(aws, tmp_path)


class Work:
    """Fan-outs of two surveys; the chunks of one are done, dead, running since long, running, and waiting."""

    def __init__(self, store: Store, clock: VirtualClock, *, shards: int) -> None:
        self.queries = FanoutQueries(store, clock)
        self._clock = clock
        self._ids = IdMaker(clock)
        self._tracker = Tracker(store, clock, self._ids, draw=lambda: 0.0)
        self._splitter = Splitter(store, clock, self._ids, shards=shards)
        self._maintenance = FanoutMaintenance(store, clock, self._ids)

    def do(self) -> None:
        self._split("earlier", "grs-15", 500)
        self._split("elsewhere", "vgps", 500)
        self._clock.advance(60)
        self._split(RUN_ID, "grs-15", 2300)
        self._clock.advance(60)
        done, dead, stuck = (self._start(start) for start in STARTS[:3])
        self._clock.advance(0.25)
        self._tracker.complete(done, AttemptResult(output_key="decompositions/survey=grs-15/chunk-0000000.parquet"))
        self._tracker.fail(dead, AttemptFailure("ValueError", "bad spectrum " + "x" * 2000))
        self._maintenance.chunk_ended(RUN_ID)
        assert stuck.chunk.status is ChunkStatus.IN_PROGRESS
        self._clock.advance(1200)
        self._start(STARTS[3])

    def _split(self, run_id: str, group: str, items: int) -> Fanout:
        order = Order(group=group, chunk_size=500, params={"beta": 3.5}, policy=Policy(max_attempts=1))
        return self._splitter.split(order, RangeSource(0, items), run_id=run_id)

    def _start(self, start: int) -> Claim:
        found = self._tracker.start(RUN_ID, f"chunk-{start:07d}", worker="w")
        assert found.admission is Admission.RUN
        assert found.claim is not None
        return found.claim


@pytest.fixture
def work(store: Store, clock: VirtualClock) -> Work:
    work = Work(store, clock, shards=16)
    work.do()
    return work


# With AWS's own tools.


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_tools__get_the_run_summary__has_all_that_is_documented(work: Work, ask: Ask) -> None:
    item = ask(GET_THE_RUN_SUMMARY)["Item"]

    created_at = item["created_at"]["S"]
    assert re.fullmatch(r"2040-01-01T00:01:00\.000Z", created_at)
    documented = {
        "PK": {"S": RUN_ID},
        "SK": {"S": "RUN"},
        "GSI1_PK": {"S": "grs-15"},
        "GSI1_SK": {"S": created_at},
        "survey": {"S": "grs-15"},
        "created_at": {"S": created_at},
        "jobs_total": {"N": "5"},
        "jobs_completed": {"N": "1"},
        "jobs_failed": {"N": "1"},
        "n_spectra": {"N": "2300"},
        "n_chunks": {"N": "5"},
        "params": {"S": '{"beta":3.5}'},
    }
    assert {name: item.get(name) for name in documented} == documented


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_tools__list_all_chunks_for_a_run__has_all_that_is_documented(work: Work, ask: Ask) -> None:
    answer = ask(LIST_ALL_CHUNKS_FOR_A_RUN)

    assert answer["Count"] == 5
    items = answer["Items"]
    assert [item["SK"]["S"] for item in items] == [f"CHUNK#chunk-{start:07d}" for start in STARTS]
    statuses = ["COMPLETED", "FAILED", "IN_PROGRESS", "IN_PROGRESS", "PENDING"]
    assert [item["status"]["S"] for item in items] == statuses
    assert [item["n_spectra"]["N"] for item in items] == ["500", "500", "500", "500", "300"]
    # What the splitter wrote is there to the end, whatever workers write.
    assert [item["chunk_key"]["S"] for item in items] == [
        "range:0-499", "range:500-999", "range:1000-1499", "range:1500-1999", "range:2000-2299",
    ]  # fmt: skip
    assert all(item["PK"] == {"S": RUN_ID} and "S" in item["created_at"] for item in items)
    assert ["started_at" in item for item in items] == [True, True, True, True, False]
    assert ["completed_at" in item for item in items] == [True, True, False, False, False]
    assert ["duration_ms" in item for item in items] == [True, True, False, False, False]
    done, dead = items[:2]
    assert done["duration_ms"] == dead["duration_ms"] == {"N": "250"}
    assert done["output_key"] == {"S": "decompositions/survey=grs-15/chunk-0000000.parquet"}
    assert dead["error"]["S"].startswith("bad spectrum")
    assert len(dead["error"]["S"]) == 1024


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_tools__find_stuck_chunks__finds_those_in_progress(work: Work, ask: Ask) -> None:
    items = ask(FIND_STUCK_CHUNKS)["Items"]

    assert [item["SK"]["S"] for item in items] == ["CHUNK#chunk-0001000", "CHUNK#chunk-0001500"]


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_tools__find_most_recent_run_for_a_survey__is_that_run(work: Work, ask: Ask, eventually: Eventually) -> None:
    answer = eventually(
        lambda: ask(FIND_MOST_RECENT_RUN_FOR_A_SURVEY), lambda answer: bool(answer["Items"][0]["PK"]["S"] == RUN_ID)
    )

    assert len(answer["Items"]) == 1
    assert answer["Items"][0]["SK"] == {"S": "RUN"}


if shutil.which("aws"):

    def test_tools__find_most_recent_run_as_printed__is_refused_by_the_command_line() -> None:
        done = subprocess.run(
            ["sh", "-c", FIND_MOST_RECENT_RUN_FOR_A_SURVEY], capture_output=True, text=True, check=False
        )

        assert done.returncode != 0
        assert "Unknown options: false" in done.stderr


def test_tools__the_corrected_command__is_in_the_manual() -> None:
    page = Path(__file__).parents[2] / "docs/how-to/run-chunks-from-a-queue.md"

    assert corrected(FIND_MOST_RECENT_RUN_FOR_A_SURVEY) in page.read_text()


@pytest.mark.parametrize("backend", DYNAMODB_BACKENDS, indirect=True)
def test_tools__count_failures_with_details__say_why_and_how_long(work: Work, aws: Account) -> None:
    ask = _with_botocore(aws)

    items = ask(FIND_STUCK_CHUNKS.replace("IN_PROGRESS", "FAILED"))["Items"]

    assert [(item["SK"]["S"], item["duration_ms"]["N"]) for item in items] == [("CHUNK#chunk-0000500", "250")]


# Through the library: the same five questions, and the same answers on every backend.


def _answers(queries: FanoutQueries) -> dict[str, Any]:
    since = "2040-01-01T00:00:30.000Z"
    return {
        "run": _plain(queries.fanout(RUN_ID, consistent=True)),
        "chunks": [_plain(chunk) for chunk in queries.every_chunk(RUN_ID)],
        "latest": [_plain(fanout) for fanout in queries.by_group("grs-15", since=since, limit=1).fanouts],
        "stuck": [
            _plain(chunk) for chunk in queries.every_in_disposition(RUN_ID, Disposition.RUNNING, before=queries.now())
        ],
        "failed": [_plain(chunk) for chunk in queries.failures(RUN_ID)],
    }


def _plain(row: Chunk | Fanout) -> Item:
    """Return a row without what is drawn by lot."""
    plain: Item = msgspec.to_builtins(replace(row, token="-") if isinstance(row, Chunk) else row)
    return plain


def test_library__five_questions__are_answered_alike_on_every_backend(
    work: Work, eventually: Eventually, tmp_path: Path
) -> None:
    (tmp_path / "reference").mkdir()
    clock = VirtualClock(float(NOW))
    reference = open_sqlite(tmp_path / "reference", clock=clock, synchronous=Synchronous.NORMAL)
    try:
        twin = Work(reference, clock, shards=16)
        twin.do()
        expected = _answers(twin.queries)
    finally:
        reference.close()

    found = eventually(lambda: _answers(work.queries), lambda found: found == expected)

    assert found["run"]["status"] == FanoutStatus.RUNNING
    assert [chunk["SK"] for chunk in found["chunks"]] == [f"CHUNK#chunk-{start:07d}" for start in STARTS]
    assert [fanout["PK"] for fanout in found["latest"]] == [RUN_ID]
    assert [chunk["SK"] for chunk in found["stuck"]] == ["CHUNK#chunk-0001000"]
    assert [(chunk["SK"], chunk["error_class"]) for chunk in found["failed"]] == [("CHUNK#chunk-0000500", "ValueError")]


def test_library__chunks_in_pages__are_all_there(work: Work) -> None:
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        page = work.queries.chunks(RUN_ID, limit=2, cursor=cursor)
        seen += [chunk.chunk_id for chunk in page.chunks]
        cursor = page.cursor

    assert cursor is None
    assert seen == [f"chunk-{start:07d}" for start in STARTS]


# Rows of the program that the layout is from.

MADE_AT: Final = "2026-02-17T10:00:00.123456+00:00"
THEIR_RUN: Final[Item] = {
    "PK": RUN_ID, "SK": "RUN", "GSI1_PK": "grs-15", "GSI1_SK": MADE_AT, "survey": "grs-15", "created_at": MADE_AT,
    "jobs_total": 6, "jobs_completed": 1, "jobs_failed": 1, "n_spectra": 2800, "n_chunks": 6, "params": '{"beta": 3.5}',
}  # fmt: skip


def _theirs(start: int, status: str, **attributes: Any) -> Item:
    return {"PK": RUN_ID, "SK": f"CHUNK#chunk-{start:07d}", "status": status, **attributes}


def _made(start: int) -> Item:
    return {"chunk_key": f"chunks/{RUN_ID}/chunk-{start:07d}.npz", "n_spectra": 500, "created_at": MADE_AT}


THEIR_CHUNKS: Final = [
    _theirs(0, "COMPLETED", started_at=MADE_AT, completed_at=MADE_AT, duration_ms=320_123, output_key="d/0.parquet"),
    _theirs(500, "FAILED", started_at=MADE_AT, completed_at=MADE_AT, duration_ms=12, error="KeyError: 'x'"),
    # Their worker replaced the row when it started, and with that lost what the splitter had written.
    _theirs(1000, "IN_PROGRESS", started_at=MADE_AT),
    _theirs(1500, "IN_PROGRESS", started_at=MADE_AT, **_made(1500)),
    _theirs(2000, "PENDING", **_made(2000)),
    _theirs(2500, "PENDING", **_made(2500)),
]


def test_library__rows_of_the_original_program__are_read(
    store: Store, clock: VirtualClock, eventually: Eventually
) -> None:
    store.batch_write([Put(FANOUT, row) for row in (THEIR_RUN, *THEIR_CHUNKS)])
    queries = FanoutQueries(store, clock)

    fanout = queries.fanout(RUN_ID, consistent=True)
    assert (fanout.group, fanout.chunks_total, fanout.items_total) == ("grs-15", 6, 2800)
    counts = queries.counts(fanout)
    assert (counts.total, counts.completed, counts.failed) == (6, 1, 1)
    chunks = list(queries.every_chunk(RUN_ID))
    assert [chunk.status.value for chunk in chunks] == [row["status"] for row in THEIR_CHUNKS]
    assert [chunk.start for chunk in chunks] == [0, 500, 1000, 1500, 2000, 2500]
    assert [chunk.items for chunk in chunks] == [0, 0, 0, 500, 500, 500]
    assert (chunks[1].error, chunks[1].duration_ms) == ("KeyError: 'x'", 12)
    assert queries.chunk(RUN_ID, "chunk-0002000").input_key == f"chunks/{RUN_ID}/chunk-0002000.npz"
    assert [queries.attempts(chunk) for chunk in chunks] == [[]] * 6
    assert list(queries.failures(RUN_ID)) == []
    page = eventually(lambda: queries.by_group("grs-15"), lambda page: len(page.fanouts) == 1)
    assert page.fanouts[0].run_id == RUN_ID


def test_library__run_that_only_their_workers_have_counted__is_read(store: Store, clock: VirtualClock) -> None:
    store.put(FANOUT, {"PK": RUN_ID, "SK": "RUN", "jobs_completed": 3})

    fanout = FanoutQueries(store, clock).fanout(RUN_ID, consistent=True)

    assert (fanout.run_id, fanout.chunks_total, fanout.chunks_completed) == (RUN_ID, 0, 3)
