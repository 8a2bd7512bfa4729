"""A fan-out whose chunks are messages of an SQS queue, with the installed program alone: 221 dead letters and back."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from mypy_boto3_sqs import SQSClient

from headgate.bootstrap.store import open_store
from headgate.clock import SystemClock
from headgate.settings import Settings
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put
from headgate.store.model.values import Item
from tests.acceptance.page_commands import commands_of
from tests.acceptance.program import Server, run, until
from tests.ministack import REGION, Ministack, aws_session, fresh_account

CHUNKS: Final = 221
_PAGE: Final = Path(__file__).parents[2] / "docs/how-to/run-chunks-from-a-queue.md"
# The programs of the page, by the names in their first lines.
EXAMPLES: Final = {
    match[2]: match[1] for match in re.finditer(r"^```python\n(# (\S+)\n.*?)^```", _PAGE.read_text(), re.M | re.S)
}
# Calls the function of the page with an event; a second argument is the store that it connects to.
INVOKE: Final = """
import json, sys
import headgate as hg
if sys.argv[2]:
    connect, target = hg.ChunkWorker.connect, sys.argv[2]
    hg.ChunkWorker.connect = lambda: connect(target)
from worker import fit
print(json.dumps(fit({"Records": json.loads(sys.argv[1])})))
"""


class Site:
    """A server with SQS beside it, a queue and its dead-letter queue, and the program as its users type it."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.account = fresh_account()
        self.environ = {
            "AWS_ACCESS_KEY_ID": self.account,
            "AWS_SECRET_ACCESS_KEY": "-",
            "HEADGATE_STORE_AWS_REGION": REGION,
            "HEADGATE_STORE_AWS_ENDPOINT_URL": endpoint,
            "HEADGATE_FANOUT_MANIFESTS": "manifests",
            "HEADGATE_FANOUT_QUEUES": f"{endpoint}/*/survey-*,https://sqs.*.amazonaws.com/*/survey-*",
        }
        self.sqs: SQSClient = aws_session(self.account).client("sqs", endpoint_url=endpoint)
        self.dead_url = self.sqs.create_queue(QueueName="survey-dead")["QueueUrl"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.dead_url, AttributeNames=["QueueArn"])["Attributes"]
        redrive = {"deadLetterTargetArn": found["QueueArn"], "maxReceiveCount": 1}
        attributes: Any = {"RedrivePolicy": json.dumps(redrive)}
        self.queue_url = self.sqs.create_queue(QueueName="survey-chunks", Attributes=attributes)["QueueUrl"]
        self.server = Server(folder, **self.environ)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, folder=self.folder, **self.environ)

    def printed(self, *arguments: str, exit_code: int = 0) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def facts(self, run_id: str) -> dict[str, str]:
        """What `fanout show` prints, by the words on the left."""
        lines = self.printed("fanout", "show", run_id).splitlines()
        return dict(re.split(r"  +", line, maxsplit=1) for line in lines if "  " in line)

    def messages(self, url: str) -> int:
        found = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
        return int(found["Attributes"]["ApproximateNumberOfMessages"])

    def to_queue(self) -> list[str]:
        return ["--queue-url", self.queue_url]

    def records(self) -> list[dict[str, Any]]:
        """Every message that is visible, as the records of a function's event."""
        found: list[dict[str, Any]] = []
        while messages := self.sqs.receive_message(
            QueueUrl=self.queue_url, MaxNumberOfMessages=10, VisibilityTimeout=600
        ).get("Messages"):
            for each in messages:
                found.append({"messageId": each["MessageId"], "body": each["Body"]})
                self.sqs.delete_message(QueueUrl=self.queue_url, ReceiptHandle=each["ReceiptHandle"])
        return found

    def consumed(self) -> int:
        """Run the documented consumer until the queue is empty, and return how many messages it says it handled."""
        return int(self._python("consumer.py", self.queue_url).split()[0])

    def invoked(self, records: list[dict[str, Any]], target: str = "") -> Any:
        """Call the documented function in a process of its own, as Lambda does, and return its answer."""
        (self.folder / "invoke.py").write_text(INVOKE)
        return json.loads(self._python("invoke.py", json.dumps(records), target))

    def _python(self, *arguments: str) -> str:
        for name, text in EXAMPLES.items():
            (self.folder / name).write_text(text)
        environ = {**self.environ, "PATH": "", "HEADGATE_SERVER": self.server.url}
        environ |= {"AWS_DEFAULT_REGION": REGION, "AWS_ENDPOINT_URL": self.environ["HEADGATE_STORE_AWS_ENDPOINT_URL"]}
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()[-1]

    def time_out(self, messages: int = CHUNKS) -> None:
        """Receive every message as a function that always times out does, until all are dead letters."""

        def all_are_dead() -> bool:
            self.sqs.receive_message(QueueUrl=self.queue_url, MaxNumberOfMessages=10, VisibilityTimeout=0)
            return self.messages(self.dead_url) == messages

        until(all_are_dead, "every message in the dead-letter queue")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Ministack.start(tmp_path_factory.mktemp("ministack"))
    yield server.endpoint
    server.stop()


@pytest.fixture
def site(tmp_path: Path, endpoint: str) -> Iterator[Site]:
    made = Site(tmp_path, endpoint)
    with made.server:
        yield made
    made.sqs.close()


def test_queue__221_dead_letters__are_drained_shown_redriven_and_run_to_success(site: Site) -> None:
    work = ["--group", "grs-15", "--run-id", "survey", "--range", f"0..{CHUNKS}", "--chunk-size", "1"]
    submitted = site.run("fanout", "submit", *work, "--queue-url", site.queue_url)
    assert submitted.stdout == "survey\n"
    assert submitted.stderr.startswith("221 chunks of 1 item, 221 items; ")
    assert submitted.stderr.endswith(f"; consumers of {site.queue_url} run it\n")
    assert site.messages(site.queue_url) == CHUNKS
    refused = site.run("chunk", "work", "--run", "survey", "--until-idle")
    assert f"its chunks are messages of {site.queue_url}" in refused.stderr

    site.time_out()
    assert site.printed("fanout", "drain", site.dead_url) == "221 messages recorded, 0 left\n"

    facts = site.facts("survey")
    assert (facts["status"], facts["chunks"]) == ("FAILED", "0 of 221 completed, 221 failed")
    assert facts["queue"] == site.queue_url
    failures = site.printed("fanout", "failures", "survey", "--limit", "300").splitlines()
    dead = [line for line in failures if line.startswith("chunk-")]
    assert len(dead) == CHUNKS
    assert all("DEAD_LETTER" in line and "never completed" in line for line in dead)
    errors = site.printed("fanout", "errors", "survey")
    assert re.search(r"^[0-9a-f]{12}  221 .*DEAD_LETTER", errors, re.MULTILINE)
    assert re.search(r"^attempt +0$", site.printed("chunk", "show", "survey", "chunk-0000007"), re.MULTILINE)

    one = site.printed("fanout", "redrive", "survey", "--failed", "--limit", "1", "--dry-run")
    assert one.startswith("survey: 1 chunk would be redriven\n")
    assert site.printed("fanout", "redrive", "survey", "--failed").startswith("survey: 221 chunks redriven\n")
    assert site.facts("survey")["status"] == "RUNNING"
    # Maintenance may have sent some as well: duplicates are harmless.
    assert site.messages(site.queue_url) >= CHUNKS

    assert site.consumed() >= CHUNKS
    facts = site.facts("survey")
    assert (facts["status"], facts["chunks"]) == ("SUCCEEDED", "221 of 221 completed")
    assert facts["items"] == "221 of 221 ok"
    assert site.printed("fanout", "ls", "--group", "grs-15").count("survey ") == 1


def test_queue_page__every_command__does_what_the_page_says(site: Site) -> None:
    (site.folder / "spectra.jsonl").write_text("".join(f"{number}\n" for number in range(20)))
    left = commands_of(_PAGE)

    def typed(pattern: str, *more: str, exit_code: int = 0) -> str:
        """Type the command of the page that matches, with the queues of this test for those of the page."""
        (command,) = (each for each in left if re.fullmatch(pattern, each))
        left.remove(command)
        words = command.split()[1:]
        urls = {True: site.dead_url, False: site.queue_url}
        named = {"RUN": "survey", "URL": site.queue_url, "NAME": "test"}
        # A chunk for each line, by a word of its own: the port in an address may have these digits too.
        named["500"] = "1"
        words = [urls["dead" in word] if word.startswith("https://sqs.") else named.get(word, word) for word in words]
        return site.printed(*words, *more, exit_code=exit_code)

    typed(r"headgate fanout submit .*--queue-url https://\S+", "--run-id", "survey")
    assert site.messages(site.queue_url) == 20
    site.time_out(20)
    assert "20 messages recorded" in typed(r"headgate fanout drain https://\S+")
    assert "DEAD_LETTER" in typed(r"headgate fanout failures RUN")
    assert "20 chunks redriven" in typed(r"headgate fanout redrive RUN --failed")
    assert "RUNNING" in typed(r"headgate fanout show", "survey")
    doctor = typed(r"headgate fanout doctor --queue-url URL --environment NAME", exit_code=1)
    assert site.queue_url in doctor
    assert left == set()


def test_queue__lambda_function__reports_over_http_and_straight_to_the_store(site: Site) -> None:
    """The documented function, invoked with the events that an event source makes of SQS messages."""
    site.printed("fanout", "submit", "--run-id", "few", "--range", "0..30", "--chunk-size", "10", *site.to_queue())

    assert site.invoked(site.records()) == {"batchItemFailures": []}
    assert site.facts("few")["status"] == "SUCCEEDED"

    site.printed("fanout", "submit", "--run-id", "more", "--range=-1..29", "--chunk-size", "15", *site.to_queue())
    # A duplicate changes nothing, also if it is delivered by way of the store.
    again = {"messageId": "m", "body": json.dumps({"run_id": "few", "chunk_id": "chunk-0000010"})}
    assert site.invoked([again, *site.records()], str(site.server.home)) == {"batchItemFailures": []}
    assert site.facts("few")["chunks"] == "3 of 3 completed"
    facts = site.facts("more")
    assert (facts["status"], facts["chunks"]) == ("PARTIAL", "2 of 2 completed")
    assert facts["items"] == "29 of 30 ok, 1 failed"
    assert "a negative number" in site.printed("fanout", "failures", "more")


def test_manifest__uploaded_to_a_folder__starts_the_split_and_the_newest_of_its_group_is_printed(site: Site) -> None:
    (site.folder / "jobs.py").write_text("def count(items):\n    return len(items)\n")
    order = {"group": "grs-15", "range": [0, 30], "chunk_size": 10, "handler": "jobs:count"}
    (site.folder / "survey.json").write_text(json.dumps(order))

    first = site.printed("fanout", "upload", "survey.json", "--to", "manifests").strip()
    watched = site.printed("fanout", "upload", "survey.json", "--to", "manifests", "--watch")

    second = watched.split()[0]
    assert first.startswith("survey-")
    assert second.startswith("survey-")
    assert first != second
    assert f"{second}  SUCCEEDED  3 of 3 completed" in watched
    assert site.printed("fanout", "ls", "--group", "grs-15", "--latest").splitlines()[1].startswith(second)
    (site.folder / "survey.json").write_text('{"range": [0, 30], "colour": "red"}')
    refused = site.run("fanout", "upload", "survey.json", "--to", "manifests")
    assert (refused.returncode, "colour" in refused.stderr) == (2, True), refused.stderr
    assert (site.folder / "manifests" / "refused" / "survey.json").is_file()


def test_manifest__uploaded_to_a_bucket__is_an_object_and_its_fan_out_is_awaited(site: Site) -> None:
    s3 = aws_session(site.account).client("s3", endpoint_url=site.environ["HEADGATE_STORE_AWS_ENDPOINT_URL"])
    bucket = f"survey-{site.account}"
    s3.create_bucket(Bucket=bucket)
    (site.folder / "survey.json").write_text('{"run_id": "from-s3", "range": [0, 3], "chunk_size": 1}')
    nothing = site.run("fanout", "upload", "survey.json", "--to", f"s3://{bucket}/manifests/", "--timeout", "0s")
    assert (nothing.returncode, "no fan-out within 0 s" in nothing.stderr) == (75, True), nothing.stderr

    # What the function does with the object; test_aws_fanouts.py has that.
    found = s3.get_object(Bucket=bucket, Key="manifests/survey.json")["Body"].read()
    httpx.post(f"{site.server.url}/api/v1/fanouts", json={"group": "default", **json.loads(found)}, timeout=20)

    assert site.printed("fanout", "upload", "survey.json", "--to", f"s3://{bucket}/manifests") == "from-s3\n"
    s3.close()


def test_queue__not_usable__is_refused_and_nothing_is_created(site: Site) -> None:
    refusals = {
        "https://169.254.169.254/1/chunks": "fanout.queues allows",
        site.queue_url.replace("survey", "payroll"): "an operator can add this URL there",
        "https://sqs.eu-north-1.amazonaws.com/123456789012/survey-chunks": f"store.aws_region is {REGION}",
        "survey-chunks": "write the URL of an SQS queue",
        f"{site.queue_url}-of-others": "it does not exist",
    }
    for url, said in refusals.items():
        ended = site.run("fanout", "submit", "--range", "0..3", "--queue-url", url)
        assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr

    assert "no fan-outs" in site.printed("fanout", "ls")


# Rows as phspectra's splitter and workers write them: no counters beside the run, none of them while it is zero.
MADE_AT: Final = "2026-02-17T10:00:00.123456+00:00"
THEIRS: Final[list[Item]] = [
    {
        **{"PK": "theirs", "SK": "RUN", "GSI1_PK": "grs-15", "GSI1_SK": MADE_AT, "survey": "grs-15"},
        **{"created_at": MADE_AT, "jobs_total": 3, "n_spectra": 1500, "n_chunks": 3},
    },
    {"PK": "theirs", "SK": "CHUNK#chunk-0000000", "status": "FAILED", "started_at": MADE_AT, "completed_at": MADE_AT,
     "duration_ms": 12, "error": "KeyError: 'x'"},
    {"PK": "theirs", "SK": "CHUNK#chunk-0000500", "status": "IN_PROGRESS", "started_at": MADE_AT},
    {"PK": "theirs", "SK": "CHUNK#chunk-0001000", "status": "PENDING", "created_at": MADE_AT, "n_spectra": 500,
     "chunk_key": "chunks/theirs/chunk-0001000.npz"},
]  # fmt: skip


def test_queue__rows_of_phspectra__are_printed_and_left_alone(site: Site) -> None:
    with closing(open_store(Settings(home=site.server.home), SystemClock()).store) as store:
        store.batch_write([Put(FANOUT, row) for row in THEIRS])
    # Their message names the input, not the chunk.
    body = {"run_id": "theirs", "survey": "grs-15", "chunk_key": "chunks/theirs/chunk-0001000.npz"}
    site.sqs.send_message(QueueUrl=site.dead_url, MessageBody=json.dumps(body))

    facts = site.facts("theirs")
    assert (facts["group"], facts["status"]) == ("grs-15", "RUNNING")
    assert facts["chunks"] == "0 of 3 completed, 1 failed, 1 running, 1 pending"
    failures = site.printed("fanout", "failures", "theirs")
    assert re.search(r"^chunk-0000000  DEAD .*KeyError: 'x'", failures, re.MULTILINE)
    stuck = site.printed("fanout", "stuck", "theirs")
    assert "chunk-0000500" in stuck
    drained = site.printed("fanout", "drain", site.dead_url, exit_code=1)
    assert drained.startswith("0 messages recorded, 1 left\n")
    assert "fan-out theirs was created by another program" in drained
    refused = site.run("fanout", "redrive", "theirs", "--failed")
    assert "only fan-outs that Headgate has split can be changed" in refused.stderr
