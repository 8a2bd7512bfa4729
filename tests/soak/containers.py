"""Containers: the Dockerfile's steps in a clean Debian, then the image's programs as its user on a read-only root."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
import httpx

from headgate.bootstrap.store import create_dynamodb_tables
from headgate.clock import SystemClock
from headgate.settings import Settings
from tests.acceptance.program import until
from tests.container_build import Stage, build, command_of
from tests.ministack import REGION, Ministack
from tests.soak.figures import Figure

ROOT: Final = Path(__file__).parents[2]
POLICY: Final = ROOT / "deploy" / "ecs" / "worker-policy.json"
STATE: Final = "/var/lib/headgate"
START_SECONDS_MAX: Final = 90.0
_ADDRESS: Final = re.compile(r"http=(https?://\S+)")
_APP: Final = """
import headgate as hg

app = hg.App("orders")


@app.activity
def charge(order: str) -> str:
    return f"receipt-{order}"


@app.workflow
async def fulfil(order: str) -> str:
    return await charge(order)
"""


class Image:
    """The image that the Dockerfile makes, run with a folder for its state and one for the app."""

    def __init__(self, folder: Path) -> None:
        self.stage, self.root = build(ROOT, folder)
        self._folder = folder
        self.app = folder / "app"
        self.app.mkdir()
        (self.app / "orders.py").write_text(_APP)

    @contextmanager
    def running(self, name: str, arguments: Sequence[str], **environ: str) -> Iterator[Running]:
        """Run the program of the image with arguments until the block ends, and end it by the image's signal."""
        state, output = self._folder / name, self._folder / f"{name}.log"
        if not state.exists():
            state.mkdir(mode=0o700)
            os.chown(state, *map(int, self.stage.user.split(":")))
        command = command_of(
            self.stage,
            self.root,
            arguments,
            environ=environ,
            volumes={STATE: state},
            files={self.stage.folder: self.app},
        )
        with output.open("wb") as out:
            began = time.monotonic()
            process = subprocess.Popen(command, stdout=out, stderr=out)
        running = Running(process, output, self.stage, began)
        try:
            yield running
        finally:
            running.stop()


class Running:
    """A process of the image."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, stage: Stage, began: float) -> None:
        self.process = process
        self._output = output
        self._stage = stage
        self._began = began
        self.exit_code: int | None = None

    @property
    def output(self) -> str:
        return self._output.read_text()

    def ready(self) -> float:
        """Wait until the program says that it is ready; return the seconds since its start."""
        until(lambda: " ready " in self.output or self.process.poll() is not None, "ready", START_SECONDS_MAX)
        assert self.process.poll() is None, self.output
        return time.monotonic() - self._began

    @property
    def url(self) -> str:
        match = _ADDRESS.search(self.output)
        assert match is not None, self.output
        return match.group(1)

    def status(self) -> dict[str, str]:
        """Return what the kernel says of the process: its user, its capabilities."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def can_write(self, path: str) -> bool:
        """Whether the file system at a path of the process can be written."""
        return not os.statvfs(f"/proc/{self.process.pid}/root{path}").f_flag & os.ST_RDONLY

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.Signals[self._stage.stop_signal])
        try:
            self.exit_code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run(folder: Path) -> list[Figure]:
    """Build the image and run it on both stores; return what was found."""
    began = time.monotonic()
    image = Image(folder)
    minutes = (time.monotonic() - began) / 60
    size = int(subprocess.check_output(["du", "-sm", str(image.root / "opt" / "headgate")]).split()[0])
    return [
        Figure("the Dockerfile's steps in a clean Debian: minutes", f"{minutes:.1f}", holds=True),
        Figure("the program with its packages, in MB", f"{size}", size < 400),
        *_on_sqlite(image),
        *_on_dynamodb(image, folder),
    ]


def _on_sqlite(image: Image) -> list[Figure]:
    up = ["up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--app", "orders:app"]
    with image.running("sqlite", up) as server:
        seconds = server.ready()
        status = server.status()
        writable = [path for path in ("/", "/opt/headgate", "/app", "/tmp", STATE) if server.can_write(path)]
        with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as api:
            begun = api.post("/executions", json={"workflow": "fulfil", "input": "7", "id": "o-7"}).status_code
            until(lambda: _status(api, "o-7") == "SUCCEEDED", "the workflow runs in the image")
    with image.running("sqlite", up) as again:
        again.ready()
        with httpx.Client(base_url=f"{again.url}/api/v1", timeout=30) as api:
            kept = _status(api, "o-7")
    user = image.stage.user.partition(":")[0]
    codes = (server.exit_code, again.exit_code)
    return [
        Figure("`up` on SQLite: seconds to its ready line", f"{seconds:.1f}", begun == 201),
        Figure(
            "user and capabilities of its process",
            f"{status['Uid'].split()[0]}, {int(status['CapEff'], 16)}",
            set(status["Uid"].split()) == {user} and int(status["CapBnd"], 16) == 0,
        ),
        Figure("what it can write", " ".join(writable), writable == ["/tmp", STATE]),
        Figure("state after a new container on the same volume", str(kept), kept == "SUCCEEDED"),
        Figure("exit codes after SIGTERM", f"{codes}", codes == (0, 0)),
    ]


def _on_dynamodb(image: Image, folder: Path) -> list[Figure]:
    (folder / "ministack").mkdir()
    emulator = Ministack.start(folder / "ministack", has_iam=True)
    try:
        return _with_worker(image, folder, emulator)
    finally:
        emulator.stop()


def _with_worker(image: Image, folder: Path, emulator: Ministack) -> list[Figure]:
    store = {
        "HEADGATE_STORE_AWS_REGION": REGION,
        "HEADGATE_STORE_AWS_ENDPOINT_URL": emulator.endpoint,
        "HEADGATE_STORE_BLOB_BUCKET": "acme-headgate",
        "HEADGATE_STORE_BLOB_PREFIX": "blobs/",
    }
    owner = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    role, powerless = _role(emulator, owner, "worker", POLICY.read_text()), _role(emulator, owner, "powerless", "")
    settings = Settings.load({**store, "HEADGATE_STORE_BACKEND": "dynamodb"}, None, {"home": str(folder / "here")})
    os.environ |= owner
    session: Any = boto3.session.Session("test", "test", region_name=REGION)
    session.client("s3", endpoint_url=emulator.endpoint).create_bucket(Bucket="acme-headgate")
    create_dynamodb_tables(settings, SystemClock())
    up = ["up", "--store", "dynamodb", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    worker = ["worker", "--store", "dynamodb", "--app", "orders:app"]
    with image.running("server", up, **store, **owner) as server:
        server.ready()
        # The worker has the server's keys, as from a secret.
        subprocess.run(["cp", "-a", str(folder / "server"), str(folder / "worker")], check=True)
        with image.running("worker", worker, **store, **role) as working:
            seconds = working.ready()
            with httpx.Client(base_url=f"{server.url}/api/v1", timeout=30) as api:
                api.post("/executions", json={"workflow": "fulfil", "input": "8", "id": "o-8"}).raise_for_status()
                until(lambda: _status(api, "o-8") == "SUCCEEDED", "the workflow runs in the worker", 60)
                result = api.get("/executions/o-8").json()
        with image.running("refused", worker, **store, **powerless) as refused:
            refused.process.wait(60)
    denied = len(re.findall("AccessDenied|did not allow", working.output))
    codes = (server.exit_code, working.exit_code)
    is_refused = refused.process.returncode not in (0, None) and "did not allow" in refused.output
    return [
        Figure("`worker --store dynamodb`: seconds to its ready line", f"{seconds:.1f}", holds=True),
        Figure("a workflow of the server ended in the worker", result["status"], result["status"] == "SUCCEEDED"),
        Figure("calls that deploy/ecs/worker-policy.json refused (MiniStack's IAM)", f"{denied}", denied == 0),
        Figure("a worker whose role has no policy", "refused" if is_refused else "starts", is_refused),
        Figure("exit codes of server and worker after SIGTERM", f"{codes}", codes == (0, 0)),
    ]


def _role(emulator: Ministack, owner: Mapping[str, str], name: str, policy: str) -> dict[str, str]:
    """Return the credentials of a role with a policy, in MiniStack's account."""
    session: Any = boto3.session.Session("test", owner["AWS_SECRET_ACCESS_KEY"], region_name=REGION)
    sts, iam = (session.client(service, endpoint_url=emulator.endpoint) for service in ("sts", "iam"))
    trust = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
    if policy:
        account = sts.get_caller_identity()["Account"]
        here = policy.replace("eu-west-1", REGION).replace("123456789012", account)
        iam.put_role_policy(RoleName=name, PolicyName="worker", PolicyDocument=here)
    got = sts.assume_role(RoleArn=arn, RoleSessionName=name)["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": got["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": got["SecretAccessKey"],
        "AWS_SESSION_TOKEN": got["SessionToken"],
    }


def _status(api: httpx.Client, execution_id: str) -> object:
    return api.get(f"/executions/{execution_id}").json().get("status")
