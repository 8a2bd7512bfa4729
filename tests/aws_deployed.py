"""Headgate deployed by its own commands to an account of MiniStack that enforces IAM: package, Terraform, functions.

The package is that of `headgate aws package`, with one file more: `bootstrap`, which starts AWS's runtime client for
Lambda in a process that sees no other installed package. The roles are those of Terraform. What MiniStack errs in is in
`EMULATOR`, and nowhere else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from headgate.cli.aws.package import read_manifest, write_sidecar
from tests.ministack import REGION, Ministack
from tests.terraform_tools import Tools

ROOT: Final = Path(__file__).parents[1]
FILES: Final = ROOT / "deploy" / "terraform"
PROGRAM: Final = Path(sys.executable).parent / "headgate"
RUNTIME_CLIENT: Final = "awslambdaric==4.2.2"
BUCKET: Final = "acme-headgate"
ACCOUNT: Final = "000000000000"
_BOOTSTRAP: Final = """#!/bin/sh
cd "$LAMBDA_TASK_ROOT"
export PYTHONPATH="$LAMBDA_TASK_ROOT"
exec "{python}" -m awslambdaric "$_HANDLER"
"""
# Terraform reads files whose names end in _override.tf last, and they replace what they name.
EMULATOR: Final = """
# An emulator has no host names for buckets.
provider "aws" {{
  region                      = var.region
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  s3_use_path_style           = true
}}

# Functions reach the emulator, and not AWS.
variable "settings" {{
  default = {{
    HEADGATE_STORE_AWS_ENDPOINT_URL = "{functions}"
  }}
}}

# MiniStack reports every error of a handler as Runtime.HandlerError with a runtime of its own, so that no Retry or
# Catch finds it; with a bootstrap in the package the error has its name, as on AWS.
resource "aws_lambda_function" "function" {{
  runtime = "provided.al2023"
}}
"""
# What roles of functions may do besides, from the moment when they exist: Terraform itself invokes functions.
EMULATOR_GRANTS: Final = """
resource "aws_iam_role_policy" "emulator" {{
  for_each = aws_iam_role.function

  name   = "emulator"
  role   = each.value.id
  policy = <<-EOT
  {policy}
  EOT
}}
"""
# Actions that MiniStack asks for and AWS does not have, or that it looks up under another name of the resource.
QUIRKS: Final = {
    "Version": "2012-10-17",
    "Statement": [
        # AWS authorises a batch as the single action.
        {
            "Effect": "Allow",
            "Action": ["sqs:SendMessageBatch", "sqs:DeleteMessageBatch", "sqs:ChangeMessageVisibilityBatch"],
            "Resource": "*",
        },
        # The group of a schedule is always `default` in the name that is looked up.
        {
            "Effect": "Allow",
            "Action": ["scheduler:CreateSchedule", "scheduler:DeleteSchedule", "scheduler:GetSchedule"],
            "Resource": f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/*",
        },
        # Streams are looked up under no name at all.
        {
            "Effect": "Allow",
            "Action": ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"],
            "Resource": "*",
        },
        # AWS looks these up under the machine, MiniStack under *.
        {
            "Effect": "Allow",
            "Action": ["states:SendTaskSuccess", "states:SendTaskFailure", "states:SendTaskHeartbeat"],
            "Resource": "*",
        },
    ],
}


class Deployment:
    """A deployment, what a program outside of it does, and what it sees."""

    def __init__(self, emulator: Ministack, folder: Path) -> None:
        self.endpoint = emulator.endpoint
        self.folder = folder
        self._session = boto3.session.Session("test", "test", region_name=REGION)
        self._clients: dict[str, Any] = {}
        self.environ = {**os.environ, **self.account(), "COLUMNS": "400"}

    def account(self) -> dict[str, str]:
        """Return the variables with which programs reach the account."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def client(self, service: str) -> Any:
        if service not in self._clients:
            make: Any = self._session.client
            patient = Config(read_timeout=900, retries={"max_attempts": 1}, tcp_keepalive=True)
            self._clients[service] = make(service, endpoint_url=self.endpoint, config=patient)
        return self._clients[service]

    # Deploying.

    def headgate(self, *arguments: str | Path, within_seconds: float = 840) -> subprocess.CompletedProcess[str]:
        """Run `headgate` as a person at a terminal does."""
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=within_seconds,
            check=False,
        )

    def terraform_folder(self, tools: Tools, functions_endpoint: str = "") -> Path:
        """Return a copy of deploy/terraform for this emulator, with the providers of this machine.

        `functions_endpoint` is where the functions reach it, if not where it is.
        """
        folder = self.folder / "deploy" / "terraform"
        shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns(".terraform*"))
        shutil.copy(FILES.parent / "statemachine.asl.json", folder.parent)
        override = EMULATOR.format(functions=functions_endpoint or self.endpoint)
        (folder / "emulator_override.tf").write_text(override)
        (folder / "emulator.tf").write_text(EMULATOR_GRANTS.format(policy=json.dumps(QUIRKS)))
        configuration = self.folder / "terraform.rc"
        mirror = f'provider_installation {{\n  filesystem_mirror {{\n    path = "{tools.mirror}"\n  }}\n}}\n'
        configuration.write_text(f"{mirror}disable_checkpoint = true\n")
        self.environ["TF_CLI_CONFIG_FILE"] = str(configuration)
        self.environ["PATH"] = f"{tools.program.parent}{os.pathsep}{self.environ['PATH']}"
        return folder

    def make_runnable(self, package: Path) -> None:
        """Add to a package, and to its description, the one file more that an emulator needs."""
        entry = zipfile.ZipInfo("bootstrap", (1980, 1, 1, 0, 0, 0))
        entry.external_attr = 0o755 << 16
        with zipfile.ZipFile(package, "a") as opened:
            opened.writestr(entry, _BOOTSTRAP.format(python=self._runtime_client()))
        description = json.loads(package.with_name(f"{package.name}.json").read_text())
        write_sidecar(package, read_manifest(package), description["bus_rules"])

    def _runtime_client(self) -> Path:
        """Return the Python of an environment that has AWS's runtime client, and nothing of Headgate."""
        environment = self.folder / "runtime"
        if not environment.exists():
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            pip = [str(environment / "bin" / "pip"), "-q", "install", RUNTIME_CLIENT]
            subprocess.run(pip, check=True, capture_output=True)
        return environment / "bin" / "python"

    # What a program outside does.

    def invoke(self, function: str, event: Mapping[str, Any] | None = None) -> Any:
        """Invoke a function, and return what it answers. Raises `AssertionError` with its error."""
        answer = self.client("lambda").invoke(
            FunctionName=f"headgate-{function}:live", Payload=json.dumps(event or {}).encode()
        )
        body = json.loads(answer["Payload"].read() or b"null")
        assert "FunctionError" not in answer, f"{function}: {body}"
        return body

    def put_row(self, partition: str, sort: str, **attributes: Any) -> None:
        item = {"PK": {"S": partition}, "SK": {"S": sort}, **attributes}
        self.client("dynamodb").put_item(TableName="headgate-pipelines", Item=item)

    def row(self, partition: str, sort: str) -> dict[str, Any] | None:
        key = {"PK": {"S": partition}, "SK": {"S": sort}}
        answer = self.client("dynamodb").get_item(TableName="headgate-pipelines", Key=key, ConsistentRead=True)
        item: dict[str, Any] | None = answer.get("Item")
        return item

    # What it sees.

    def queue(self, name: str) -> str:
        return str(self.client("sqs").get_queue_url(QueueName=name)["QueueUrl"])

    def depth(self, name: str) -> int:
        answer = self.client("sqs").get_queue_attributes(QueueUrl=self.queue(name), AttributeNames=["All"])
        counts = answer["Attributes"]
        return int(counts["ApproximateNumberOfMessages"]) + int(counts["ApproximateNumberOfMessagesNotVisible"])

    def executions(self, machine: str = "headgate-lifecycle") -> dict[str, str]:
        arn = f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{machine}"
        pages = self.client("stepfunctions").get_paginator("list_executions").paginate(stateMachineArn=arn)
        return {each["name"]: each["status"] for page in pages for each in page["executions"]}


class Subscriber:
    """A queue that is subscribed to a topic, and the messages that arrived."""

    def __init__(self, deployment: Deployment, topic: str) -> None:
        self.deployment = deployment
        self.topic_arn = str(deployment.client("sns").create_topic(Name=topic)["TopicArn"])
        self._url = str(deployment.client("sqs").create_queue(QueueName=f"{topic}-received")["QueueUrl"])
        arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{topic}-received"
        allowed = {
            "Effect": "Allow",
            "Principal": {"Service": "sns.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": arn,
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        deployment.client("sqs").set_queue_attributes(QueueUrl=self._url, Attributes={"Policy": policy})
        deployment.client("sns").subscribe(TopicArn=self.topic_arn, Protocol="sqs", Endpoint=arn)
        self._messages: list[str] = []

    def messages(self, about: str) -> list[str]:
        """Return all messages so far that contain a text."""
        sqs = self.deployment.client("sqs")
        while found := sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10).get("Messages", []):
            for each in found:
                self._messages.append(str(json.loads(each["Body"])["Message"]))
                sqs.delete_message(QueueUrl=self._url, ReceiptHandle=each["ReceiptHandle"])
        return [each for each in self._messages if about in each]


def until(what: str, read: Callable[[], Any], *, within_seconds: float = 600.0) -> Any:
    """Return what is read as soon as it is something."""
    ends_at = time.monotonic() + within_seconds
    while not (found := read()):
        assert time.monotonic() < ends_at, f"not within {within_seconds:g} s: {what}"
        time.sleep(0.1)
    return found


@contextmanager
def emulated(folder: Path) -> Iterator[Deployment]:
    """Start MiniStack with IAM, and yield an account to deploy to."""
    (folder / "ministack").mkdir(parents=True)
    emulator = Ministack.start(folder / "ministack", has_iam=True)
    try:
        yield Deployment(emulator, folder)
    finally:
        emulator.stop()


def deployed_options(values: Mapping[str, object]) -> Sequence[str]:
    """Return the options `--var` for variables."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return [part for name, text in texts.items() for part in ("--var", f"{name}={text}")]
