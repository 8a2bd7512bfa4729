"""AWS: the deployment of `headgate aws`, driven from outside on an emulator that enforces IAM, story by story.

Every story uses the rows, queues, topics and functions that Terraform makes, and the package of `headgate aws package`,
run by AWS's own client of the Lambda runtime. Where the emulator deviates from AWS's documentation, the story
says so, and does what AWS would do.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import httpx

from tests.acceptance.program import Server
from tests.aws_deployed import ACCOUNT, BUCKET, ROOT, Deployment, Subscriber, deployed_options, emulated, until
from tests.faulty_proxy import FaultyProxy
from tests.ministack import REGION
from tests.soak.figures import Figure
from tests.terraform_tools import TOOLS, described

DATE: Final = "2026-03-03"
CHUNKS: Final = 1_000
BROKEN: Final = 10
# Five minutes on two cores; how long a busy machine takes says nothing about the deployment.
CHUNKS_SECONDS_MAX: Final = 2_400.0
LONG_TIMER_MINUTES: Final = 16
# Each function is killed so often while a call of it is in progress, at most one process at a time.
KILLS: Final = 3
KILLS_WITHIN_SECONDS: Final = 900.0
KILL_PAUSE_SECONDS: Final = 0.5
FAULT_SECONDS: Final = 20.0
# The queue of turns hides the messages of a killed function for three minutes, and some are killed thrice.
RECOVERY_SECONDS_MAX: Final = 1_200.0
KILLED_WORKFLOWS: Final = 10
KILLED_RUNS: Final = 6
KILLABLE: Final = tuple(
    f"headgate-{name}" for name in ("turns", "activities", "trigger", "orchestrator", "waker", "chunk-worker")
)
URN: Final = "urn:dp:shop:orders:v1"
MACHINE: Final = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:headgate-lifecycle"
_JOB: Final = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:the-job"
PACKAGE_BYTES_MAX: Final = 50_000_000
# Where a compiled module says what it was compiled for.
_ELF_MACHINE: Final = slice(18, 20)
_ELF_MACHINES: Final = {"x86_64": 62, "arm64": 183}
APPLIES_MAX: Final = 4
APPLY_SECONDS_MAX: Final = 1_800.0
# An hour ends at least this long after the definitions are written, so that they are in force by then.
DEPLOYED_AFTER: Final = timedelta(minutes=10)
# Zones whose hours end at different minutes of UTC.
_ZONES: Final = ("UTC", "Asia/Kathmandu", "Asia/Kolkata")
SILENCE_SECONDS_MAX: Final = 3_600.0
_HOURLY: Final = ("silent", "promised")
_DEFINITIONS: Final = {
    "silver": "trigger: {type: lambda, config: {function: the-job}}",
    "starved": "readiness: {window: 6s, interval: 2s, rules: [{key: never, check: exists}]}\n"
    "trigger: {type: lambda, config: {function: the-job}}",
    "gold": "readiness: {window: 1h, interval: 5m, rules: [{dataset: 'urn:dp:shop:orders:v1'}]}\n"
    "trigger: {type: lambda, config: {function: the-job}}",
    "orders": "trigger: {type: workflow, check_interval: 1s, config: {workflow: fulfil, input: {id: o-1}}}",
    "silent": "trigger: {type: lambda, config: {function: the-job}}",
    "promised": "sla: {deadline: ':02'}\ntrigger: {type: lambda, config: {function: the-job}}",
    "measured": "trigger: {type: fan-out, check_interval: 5s, config: {handler: 'aws_app:measure', "
    "range: [0, 10000], chunk_size: 10, policy: {max_attempts: 2, backoff_seconds: 1}}}\nretry: {attempts: 1}",
    "weighed": "trigger: {type: fan-out, check_interval: 5s, config: {handler: 'aws_app:weigh', "
    "range: [0, 600], chunk_size: 10, policy: {timeout_seconds: 20}}}\nretry: {attempts: 1}",
}


class World:
    """A deployment with its topics, as the stories use it."""

    def __init__(self, deployment: Deployment, proxy: FaultyProxy) -> None:
        self.deployment = deployment
        self.proxy = proxy
        self.alerts = Subscriber(deployment, "alerts")
        self.ended = Subscriber(deployment, "lifecycle")
        self.package = Path()
        self.options: list[str | Path] = []
        self.long_timer_at = 0.0

    # Deploying.

    def bad_channel_refused(self) -> str:
        """Build with an alert channel without a valid topic, and return why the build is refused."""
        (self.deployment.folder / "bad.toml").write_text('[channels.topic]\nkind = "sns"\ntopic_arn = "people"\n')
        built = self.deployment.headgate("aws", "package", "build/bad.zip", "--notify", "bad.toml")
        assert built.returncode == 2, built.stdout + built.stderr
        assert not (self.deployment.folder / "build" / "bad.zip").exists()
        return built.stderr.strip().splitlines()[0]

    def write_project(self) -> None:
        """Write what a team has: definitions, alert channels, an app."""
        folder = self.deployment.folder
        (folder / "pipelines").mkdir()
        zone = min(_ZONES, key=partial(_hour_ends_at, datetime.now(UTC) + DEPLOYED_AFTER))
        for name, text in _DEFINITIONS.items():
            when = f"period: hourly\ntimezone: {zone}" if name in _HOURLY else "period: daily\ntimezone: UTC"
            due = ", deadline: ':02'" if name == "silent" else ""
            head = f"id: {name}\nowner: ana@example.com\n{when}\n"
            schedule = f"schedules: [{{name: stream, sensor: {{key: landed{due}}}}}]\n"
            (folder / "pipelines" / f"{name}.yaml").write_text(f"{head}{schedule}{text}\n")
        (folder / "notify.toml").write_text(f'[channels.topic]\nkind = "sns"\ntopic_arn = "{self.alerts.topic_arn}"\n')
        (folder / "code").mkdir()
        shutil.copy(ROOT / "tests" / "soak" / "aws_app.py", folder / "code")

    def build(self) -> str:
        """Build the package, and return what the command says."""
        project = ["--pipelines", "pipelines", "--notify", "notify.toml", "--code", "code", "--app", "aws_app:app"]
        built = self.deployment.headgate("aws", "package", "build/headgate.zip", *project)
        assert built.returncode == 0, built.stdout + built.stderr
        self.package = self.deployment.folder / "build" / "headgate.zip"
        self.deployment.make_runnable(self.package)
        return built.stdout

    def build_for_the_other_architecture(self) -> tuple[str, bool]:
        """Build twice for the architecture that this machine has not, and return what came of it.

        Every compiled module has to be for that architecture, and both packages have to be the same.
        """
        other = "x86_64" if platform.machine() in ("arm64", "aarch64") else "arm64"
        packages = []
        for name in ("one", "two"):
            built = self.deployment.headgate("aws", "package", f"build/{name}.zip", "--architecture", other)
            assert built.returncode == 0, built.stdout + built.stderr
            packages.append(self.deployment.folder / "build" / f"{name}.zip")
        one, two = packages
        with zipfile.ZipFile(one) as opened:
            compiled = [opened.read(name) for name in opened.namelist() if name.endswith(".so")]
        machines = {int.from_bytes(each[_ELF_MACHINE], "little") for each in compiled}
        size = one.stat().st_size
        holds = one.read_bytes() == two.read_bytes() and machines == {_ELF_MACHINES[other]} and size < PACKAGE_BYTES_MAX
        return f"{size:,} bytes for {other}, {len(compiled)} compiled modules, the same when built again", holds

    def deploy(self) -> int:
        """Deploy the package, and return the number of resources."""
        assert TOOLS is not None, described(TOOLS)
        terraform = self.deployment.terraform_folder(TOOLS, self.proxy.endpoint)
        values: dict[str, object] = {
            "lifecycle_topic_arn": self.ended.topic_arn,
            "alert_topic_arns": [self.alerts.topic_arn],
            "lambda_job_arns": [_JOB],
            "deletion_protection": False,
        }
        options: list[str | Path] = [
            "--region",
            REGION,
            "--bucket",
            BUCKET,
            "--app",
            "aws_app:app",
            "--terraform",
            terraform,
        ]
        self.options = [*options, *deployed_options(values)]
        done = self.applied()
        assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
        self._make_job()
        counted = re.search(r"Resources: (\d+) added", done.stdout)
        return 0 if counted is None else int(counted.group(1))

    def applied(self) -> subprocess.CompletedProcess[str]:
        """Deploy, again if a call that the emulator has carried out was repeated because its answer came late."""
        for _ in range(APPLIES_MAX):
            done = self.deployment.headgate(
                "aws", "deploy", self.package, *self.options, "--yes", within_seconds=APPLY_SECONDS_MAX
            )
            twice = re.findall(r"Table already exists: (\S+)", done.stdout + done.stderr)
            if done.returncode == 0 or not twice:
                break
            for table in set(twice):
                self.deployment.client("dynamodb").delete_table(TableName=re.sub(r"\x1b.*", "", table))
        return done

    def _make_job(self) -> None:
        environment = {"HEADGATE_STORE_AWS_ENDPOINT_URL": self.proxy.endpoint}
        self.deployment.client("lambda").create_function(
            FunctionName="the-job",
            Runtime="provided.al2023",
            Handler="aws_app.job",
            Role=f"arn:aws:iam::{ACCOUNT}:role/headgate-client",
            Code={"ZipFile": self.package.read_bytes()},
            Timeout=60,
            Environment={"Variables": environment},
        )

    # Doing and looking.

    def land(self, pipeline_id: str, date: str = DATE) -> None:
        """Write the row of a sensor, as any program does. Each write is a record of the stream."""
        self.deployment.put_row(f"PIPELINE#{pipeline_id}", "SENSOR#landed", data={"M": {"date": {"S": date}}})

    def run_log(self, pipeline_id: str, date: str = DATE) -> dict[str, Any] | None:
        """Return the attributes of the run log of a date, without their types."""
        key = {"PK": {"S": f"PIPELINE#{pipeline_id}"}, "SK": {"S": f"RUNLOG#{date}#stream"}}
        found = self.deployment.client("dynamodb").get_item(
            TableName="headgate-pipelines", Key=key, ConsistentRead=True
        )
        item = found.get("Item")
        return None if item is None else {name: next(iter(value.values())) for name, value in item.items()}

    def ended_run(self, pipeline_id: str, *, date: str = DATE, within_seconds: float = 900.0) -> dict[str, Any]:
        """Return the run log once the run and its execution are over."""

        def look() -> dict[str, Any] | None:
            log = self.run_log(pipeline_id, date)
            is_over = log is not None and self.deployment.executions().get(log["execution"]) not in (None, "RUNNING")
            return log if is_over else None

        found: dict[str, Any] = until(f"{pipeline_id} is over", look, within_seconds=within_seconds)
        return found

    def logged(self, function: str, text: str) -> int:
        """Return how many lines of the log of a function contain a text."""
        pages = self.deployment.client("logs").get_paginator("filter_log_events")
        found = pages.paginate(logGroupName=f"/aws/lambda/headgate-{function}")
        return sum(text in event["message"] for page in found for event in page["events"])

    def call(self, action: str, **members: Any) -> Any:
        return self.deployment.invoke("client", {"action": action, **members})

    def alert(self, about: str, *, within_seconds: float = 600.0) -> str:
        """Return an alert about something as it arrived at the topic, after a call of the clockwork."""
        until(f"an alert about {about}", lambda: self.alerts.messages(about), within_seconds=within_seconds)
        self.deployment.invoke("clockwork")
        messages = self.alerts.messages(about)
        ids = Counter(json.loads(each)["message_id"] for each in messages)
        assert set(ids.values()) == {1}, f"delivered twice: {ids}"
        return str(messages[0])

    @contextmanager
    def times_out(self, pipeline_id: str, every_seconds: float) -> Iterator[None]:
        """End waits of a run as AWS does by TimeoutSecondsPath, which MiniStack ignores."""
        stop = threading.Event()

        def end() -> None:
            seen = ""
            while not stop.wait(every_seconds):
                row = self.deployment.row(f"PIPELINE#{pipeline_id}", f"WAIT#stream#{DATE}#change")
                token = "" if row is None else str(row["task_token"]["S"])
                if token and token == seen:
                    with suppress(self.deployment.client("stepfunctions").exceptions.ClientError):
                        self.deployment.client("stepfunctions").send_task_failure(
                            taskToken=token, error="States.Timeout"
                        )
                seen = token

        thread = threading.Thread(target=end)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextmanager
    def server(self) -> Iterator[httpx.Client]:
        """Run `headgate up` beside the functions, with the settings that Terraform prints."""
        endpoint = {
            "HEADGATE_STORE_AWS_REGION": REGION,
            "HEADGATE_STORE_AWS_ENDPOINT_URL": self.proxy.endpoint,
            "HEADGATE_STORE_BLOB_BUCKET": BUCKET,
            "HEADGATE_STORE_BLOB_PREFIX": "blobs/",
            "HEADGATE_PIPELINES_STATE_MACHINE_ARN": MACHINE,
            "HEADGATE_PIPELINES_SCHEDULER_ROLE_ARN": f"arn:aws:iam::{ACCOUNT}:role/headgate-scheduler",
            "HEADGATE_PIPELINES_SCHEDULER_GROUP_NAME": "headgate",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        with (
            Server(self.deployment.folder / "server", "--store", "dynamodb", **endpoint) as server,
            httpx.Client(base_url=f"{server.url}/api/v1", timeout=60) as api,
        ):
            yield api
            server.signal(signal.SIGTERM)
            server.exit_code(30)


Story = Callable[[World], str]


def _hour_ends_at(after: datetime, zone: str) -> datetime:
    """Return when the hour of a zone ends that has begun by a time."""
    local = after.astimezone(ZoneInfo(zone))
    return local.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


def a_marker_becomes_a_run(world: World) -> str:
    began = time.monotonic()
    world.land("silver")
    log = world.ended_run("silver")
    published = until("it is published", lambda: world.ended.messages(log["run_id"]))
    letter = json.loads(published[0])
    assert (log["status"], world.deployment.executions()[log["execution"]]) == ("COMPLETED", "SUCCEEDED")
    assert letter["eventType"] == "PIPELINE_COMPLETED"
    return f"COMPLETED and published in {time.monotonic() - began:.1f} s"


def not_ready_is_exhausted_and_alerted(world: World) -> str:
    with world.times_out("starved", 2.0):
        world.land("starved")
        log = world.ended_run("starved")
    alert = world.alert("starved")
    return f"{log['status']}; alert: {_title(alert)}"


def silence_is_noticed(world: World) -> str:
    """Nothing arrives for one pipeline, and nothing runs for the other; a server beside the functions is up."""
    with world.server():
        silent, promised = (world.alert(name, within_seconds=SILENCE_SECONDS_MAX) for name in ("silent", "promised"))
    assert world.run_log("silent") is None
    return f"alerts: {_title(silent)}; {_title(promised)}"


def a_poison_record_blocks_nothing(world: World) -> str:
    date = "2026-03-04"
    # A reference to an object of the bucket that is not there: every attempt at it fails.
    reference = {"$blob": {"S": "2026030400/gone"}, "bytes": {"N": "9"}}
    world.deployment.put_row("PIPELINE#nobody", "SENSOR#poison", data={"M": reference})
    world.land("silver", date)
    log = world.ended_run("silver", date=date)
    assert log["status"] == "COMPLETED", log
    reported = until("the record is reported", lambda: world.logged("stream-router", "record failed"))
    return f"reported {reported} times; the row after it: {log['status']}"


def a_pipeline_starts_a_workflow(world: World) -> str:
    world.land("orders")
    started = until("it is started", partial(_execution_of, world, "fulfil"))
    until("it waits for its signal", lambda: world.call("show", id=started)["status"] == "RUNNING")
    world.call("signal", id=started, name="approved", payload={"by": "ada"})
    log = world.ended_run("orders")
    shown = world.call("show", id=started)
    wanted = {"receipt": "receipt-o-1", "by": "ada", "parcel": "parcel-o-1", "gift": "ValueError"}
    assert shown["result"] == wanted, shown
    assert log["status"] == "COMPLETED"
    return "COMPLETED: two retries, signal, timer of 3 s, child and a failing activity"


def _plain(value: str) -> str:
    """Return the value of an attribute whose index is sharded without its shard."""
    return value.partition("*")[0]


def _execution_of(world: World, workflow: str) -> str:
    """Return the id of the execution of a workflow, or nothing while there is none."""
    rows = world.deployment.client("dynamodb").scan(TableName="headgate-executions", ConsistentRead=True)["Items"]
    found = [each["execution_id"]["S"] for each in rows if _plain(each["workflow"]["S"]) == workflow]
    return found[0] if found else ""


def a_timer_longer_than_a_queue_delays(world: World) -> str:
    late = time.monotonic() - world.long_timer_at
    until("it has aged", lambda: world.call("show", id="aged")["status"] == "SUCCEEDED", within_seconds=1_200)
    return f"{LONG_TIMER_MINUTES} minutes, seen after {max(late, time.monotonic() - world.long_timer_at) / 60:.1f}"


def a_fan_out_of_a_thousand_chunks(world: World) -> str:
    began = time.monotonic()
    world.land("measured")
    with world.server() as api:

        def fanout() -> dict[str, Any] | None:
            found = [each for each in api.get("/fanouts").json()["fanouts"] if each["chunks_total"] == CHUNKS]
            return found[0] if found else None

        run = until("it is split", fanout)["run_id"]
        counts = until("all chunks have ended", partial(_counts, api, run, BROKEN), within_seconds=CHUNKS_SECONDS_MAX)
        seconds = time.monotonic() - began
        world.deployment.client("s3").put_object(Bucket=BUCKET, Key="blobs/repaired", Body=b"")
        api.post(f"/fanouts/{run}/redrive", json={"failed": True, "reason": "repaired"}).raise_for_status()
        again = until("the redriven ones have ended", partial(_counts, api, run, 0), within_seconds=CHUNKS_SECONDS_MAX)
    return f"{CHUNKS} chunks in {seconds:.0f} s: {counts}; after the redrive: {again}"


def _counts(api: httpx.Client, run: str, failed: int) -> str:
    """Return the counts of a fan-out in words once all of its chunks have ended, so many of them failed."""
    chunks: dict[str, int] = api.get(f"/fanouts/{run}").json()["chunks"]
    is_over = chunks["completed"] + chunks["failed"] == CHUNKS and chunks["failed"] == failed
    return f"{chunks['completed']} completed, {chunks['failed']} failed" if is_over else ""


def a_breach_holds_and_its_end_releases(world: World) -> str:
    with world.server() as api:
        api.post("/datasets", json={"dataset_urn": URN, "tier": "TIER_1", "owner_team": "shop"}).raise_for_status()
        report = partial(_report, api)
        report("CRITICAL", 0.4)
        opened = until("an incident", lambda: api.get("/incidents").json()["items"])
        world.land("gold")
        until("it waits", lambda: world.deployment.row("PIPELINE#gold", f"WAIT#stream#{DATE}#change"))
        why = api.get("/pipelines/gold/why", params={"date": DATE}).json()["sentence"]
        report("OK", 1.0)
        resolution = {"root_cause": "a field was dropped", "mitigation": "rolled back", "false_positive": False}
        resolved = api.patch(
            f"/incidents/{opened[0]['incident_id']}",
            json={"status": "RESOLVED", "resolution": resolution, "reason": "repaired"},
        )
        resolved.raise_for_status()
        log = world.ended_run("gold")
    assert URN in why, why
    assert log["status"] == "COMPLETED"
    return f"{opened[0]['severity']} held gold, which was released: {log['status']}"


def a_version_whose_check_fails_is_not_called(world: World) -> str:
    """Deploy an app that imports on the laptop and not in a function; what was there before goes on."""
    before = _live_versions(world)
    app = world.deployment.folder / "code" / "aws_app.py"
    app.write_text(
        f"{app.read_text()}\n\nimport os\n\nif 'AWS_LAMBDA_FUNCTION_NAME' in os.environ:\n    import nothing\n"
    )
    world.build()
    refused = world.applied()
    assert refused.returncode != 0, "the deployment succeeded"
    assert "nothing" in refused.stdout + refused.stderr, refused.stderr[-3_000:]
    assert _live_versions(world) == before
    world.land("silver", "2026-03-20")
    log = world.ended_run("silver", date="2026-03-20")
    assert log["status"] == "COMPLETED", log
    return f"refused: No module named 'nothing'; {len(before)} aliases as before, and a run on them: COMPLETED"


def _live_versions(world: World) -> dict[str, str]:
    functions = world.deployment.client("lambda")
    pages = functions.get_paginator("list_functions").paginate()
    names = [each["FunctionName"] for page in pages for each in page["Functions"]]
    return {
        name: functions.get_alias(FunctionName=name, Name="live")["FunctionVersion"]
        for name in names
        if name.startswith("headgate-")
    }


class Killer:
    """Kills the function that makes a call which was carried out and is not answered yet, some of each."""

    def __init__(self, deployment: Deployment) -> None:
        self.killed: Counter[str] = Counter()
        self._deployment = deployment
        self._random = random.Random(3)
        self._lock = threading.Lock()
        self._next_at = 0.0

    @property
    def is_done(self) -> bool:
        return all(self.killed[name] >= KILLS for name in KILLABLE)

    def __call__(self, port: int) -> None:
        with self._lock:
            if time.monotonic() < self._next_at or self._random.random() < 0.5:
                return
            pid, function = _caller(self._deployment, port)
            if function not in KILLABLE or self.killed[function] >= KILLS:
                return
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[function] += 1
                self._next_at = time.monotonic() + KILL_PAUSE_SECONDS


def functions_are_killed(world: World) -> str:
    """Kill functions between their calls while runs, executions and a fan-out are in progress."""
    names = [f"k-{number}" for number in range(KILLED_WORKFLOWS)]
    dates = [f"2026-04-{day:02d}" for day in range(1, KILLED_RUNS + 1)]
    killer = Killer(world.deployment)
    with world.proxy.showing(killer):
        for date in dates:
            world.land("silver", date)
        world.land("weighed")
        for name in names:
            _insist(partial(world.call, "start", workflow="settle", input=name, id=name))
        until(
            f"{KILLS} processes of each function are killed",
            lambda: killer.is_done,
            within_seconds=KILLS_WITHIN_SECONDS,
        )
    seconds = _all_end(world, names, dates)
    weighed = world.ended_run("weighed", within_seconds=RECOVERY_SECONDS_MAX)
    assert weighed["status"] == "COMPLETED", weighed
    kills = f"{killer.killed.total()} kills in the middle of a call ({', '.join(sorted(killer.killed))})"
    return f"{kills}; {len(dates)} runs, {len(names)} executions and a fan-out right, the last {seconds:.0f} s later"


def calls_are_throttled_failed_and_lost(world: World) -> str:
    return _under_faults(world, world.proxy.failing(0.05), "f", "2026-05")


def messages_are_doubled_late_and_dropped(world: World) -> str:
    return _under_faults(world, world.proxy.misdelivering(0.3), "d", "2026-06")


def _under_faults(world: World, faults: AbstractContextManager[None], prefix: str, month: str) -> str:
    """Begin runs and executions while faults are injected, and wait for their right ends."""
    names = [f"{prefix}-{number}" for number in range(KILLED_WORKFLOWS)]
    dates = [f"{month}-{day:02d}" for day in range(1, KILLED_RUNS + 1)]
    before = Counter(world.proxy.met)
    with faults:
        for date in dates:
            world.land("silver", date)
        for name in names:
            _insist(partial(world.call, "start", workflow="settle", input=name, id=name))
        time.sleep(FAULT_SECONDS)
    seconds = _all_end(world, names, dates)
    met = world.proxy.met - before
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(met.items()))
    assert met.total() > 0
    return f"{kinds}; {len(dates)} runs and {len(names)} executions right, the last {seconds:.0f} s later"


def _all_end(world: World, names: Sequence[str], dates: Sequence[str]) -> float:
    """Wait until executions and runs have ended as they should, and return the seconds that took."""
    began = time.monotonic()
    for name in names:
        until(f"{name} ends", partial(_has_succeeded, world, name), within_seconds=RECOVERY_SECONDS_MAX)
    logs = [world.ended_run("silver", date=date, within_seconds=RECOVERY_SECONDS_MAX) for date in dates]
    seconds = time.monotonic() - began
    assert {each["status"] for each in logs} == {"COMPLETED"}, [each["status"] for each in logs]
    results = {world.call("show", id=name)["result"] for name in names}
    assert results == {f"parcel-{name}" for name in names}
    return seconds


def _has_succeeded(world: World, execution_id: str) -> bool:
    return bool(world.call("show", id=execution_id)["status"] == "SUCCEEDED")


def _insist(call: Callable[[], object]) -> None:
    """Repeat a call as a program outside does that is answered with an error; starts are idempotent by id."""

    def answered() -> bool:
        with suppress(AssertionError):
            call()
            return True
        return False

    until("an answer", answered)


def _caller(deployment: Deployment, port: int) -> tuple[int, str]:
    """Return the process and the function of this deployment that has a local port, or none."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {f"socket:[{each[9]}]" for each in sockets if int(each[1].partition(":")[2], 16) == port}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environ = dict(each.split("=", 1) for each in (process / "environ").read_text().split("\0") if "=" in each)
            name = environ.get("AWS_LAMBDA_FUNCTION_NAME", "")
            is_ours = name and str(deployment.folder) in environ.get("LAMBDA_TASK_ROOT", "")
            if is_ours and any(str(each.readlink()) in found for each in (process / "fd").iterdir()):
                return int(process.name), name
    return 0, ""


def _report(api: httpx.Client, state: str, score: float) -> None:
    """Report a window of the dataset, as its monitor does."""
    now = datetime.now(UTC)
    window = {"window_start": (now - timedelta(minutes=5)).isoformat(), "window_end": now.isoformat()}
    signature = {} if state == "OK" else {"failure_signature": "MISSING_FIELD:customer_id"}
    body = {"state": state, "score": score, "window_type": "TUMBLING_5M", **window, **signature}
    api.put(f"/datasets/{URN}/signals/CONTRACT_COMPLIANCE", json=body).raise_for_status()


def _title(alert: str) -> str:
    return str(json.loads(alert)["title"])


# What each story shows, and where MiniStack deviates from what AWS documents.
STORIES: Final[Mapping[str, tuple[Story, str]]] = {
    "marker → run → log → SNS": (a_marker_becomes_a_run, ""),
    "signal → incident → hold → release, with a server beside the functions": (a_breach_holds_and_its_end_releases, ""),
    "not ready → exhausted → alert": (
        not_ready_is_exhausted_and_alerted,
        "TimeoutSecondsPath is ignored; the soak ends the waits as AWS does",
    ),
    "a poison record between others": (
        a_poison_record_blocks_nothing,
        "failed records of a batch are not repeated, and do not reach `failed-stream`",
    ),
    "a pipeline starts a workflow": (a_pipeline_starts_a_workflow, ""),
    "a fan-out with dead letters, redriven": (a_fan_out_of_a_thousand_chunks, ""),
    "functions killed mid-turn, mid-trigger, mid-activity and mid-chunk": (functions_are_killed, ""),
    "5 % of the calls throttled, failed or lost": (calls_are_throttled_failed_and_lost, ""),
    "messages doubled, late and dropped (30 % of the batches)": (messages_are_doubled_late_and_dropped, ""),
    "a timer longer than the delay of a queue": (
        a_timer_longer_than_a_queue_delays,
        "one-shot schedules fire up to 10 s late",
    ),
    "a silent schedule, and an SLA with no run, with a server beside the functions": (silence_is_noticed, ""),
    "a version whose check fails": (a_version_whose_check_fails_is_not_called, ""),
}


def run(folder: Path) -> list[Figure]:
    """Deploy, drive every story, and return what came of each."""
    with emulated(folder / "aws") as deployment, FaultyProxy(deployment.endpoint) as proxy:
        world = World(deployment, proxy)
        world.write_project()
        refused = world.bad_channel_refused()
        other = world.build_for_the_other_architecture()
        began = time.monotonic()
        said = world.build().strip()
        made = world.deploy()
        figures = [
            Figure("`headgate aws package` with an alert channel without a topic", refused, holds=True),
            Figure("`headgate aws package`", said.partition(": ")[2], holds=True),
            Figure("`headgate aws package --architecture` of another machine", *other),
            Figure(
                "`headgate aws deploy`",
                f"{made} resources, {time.monotonic() - began:.0f} s with the package",
                made > 0,
            ),
        ]
        world.long_timer_at = time.monotonic()
        world.call("start", workflow="age", input=LONG_TIMER_MINUTES, id="aged")
        return figures + [_told(world, name, *each) for name, each in STORIES.items()]


def _told(world: World, name: str, story: Story, deviation: str) -> Figure:
    try:
        value, holds = story(world), True
    except (AssertionError, httpx.HTTPError, KeyError) as exc:
        value, holds = f"{type(exc).__name__}: {exc}"[:500], False
    # A run takes an hour: what came of a story is seen at once.
    print(f"{datetime.now(UTC):%H:%M:%S} {name}: {value}", file=sys.stderr, flush=True)
    return Figure(name, value + (f" (MiniStack: {deviation})" if deviation else ""), holds)
