"""What each function asks of AWS in the stories of the contract tests, as permissions: the file `recorded_calls.json`.

`python -m tests.recorded_calls` runs the stories and writes it. The permissions test holds the roles against it: a role
that lacks what is recorded fails the story, and one that grants more fails the permissions test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent / "recorded_calls.json"
# Names the folder that stories record to.
VARIABLE: Final = "RECORD_AWS_CALLS_TO"
STORIES: Final = (
    "test_aws_async_activities.py",
    "test_aws_events.py",
    "test_aws_fanouts.py",
    "test_aws_http.py",
    "test_aws_lifecycle.py",
    "test_aws_together.py",
    "test_aws_workflows.py",
)
# Operations that are authorised as another action.
AUTHORISED_AS: Final = {
    "sns:PublishBatch": "sns:Publish",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "lambda:Invoke": "lambda:InvokeFunction",
    # The model of boto3 has streams as a service of their own.
    "dynamodbstreams:DescribeStream": "dynamodb:DescribeStream",
    "dynamodbstreams:GetRecords": "dynamodb:GetRecords",
    "dynamodbstreams:GetShardIterator": "dynamodb:GetShardIterator",
}
_READS: Final = frozenset({"GetItem", "BatchGetItem", "Query"})
_SERVICES: Final = {"stepfunctions": "states", "emr": "elasticmapreduce"}


def recorded() -> dict[str, set[str]]:
    """Return the permissions of the file by function: `read TABLE`, `write TABLE`, `check TABLE` and actions."""
    content: dict[str, list[str]] = json.loads(FILE.read_text())
    return {name: set(permissions) for name, permissions in content.items()}


def record(function: str, calls: Iterable[tuple[str, str, str]]) -> None:
    """Note the calls of a function, each a service, an operation and a table, while the file is made anew."""
    folder = os.environ.get(VARIABLE)
    if folder is not None:
        with (Path(folder) / function).open("a") as file:
            file.writelines(f"{_permission(*each)}\n" for each in calls)


def _permission(service: str, operation: str, table: str) -> str:
    name, _, write = table.partition(":")
    if service == "dynamodb" and name and operation != "DescribeTable":
        return f"{_needed(operation, write)} {name}"
    action = f"{_SERVICES.get(service, service)}:{operation}"
    return AUTHORISED_AS.get(action, action)


def _needed(operation: str, write: str) -> str:
    if write == "ConditionCheck":
        return "check"
    return "read" if operation in _READS else "write"


def main() -> None:
    """Run the stories and write the file."""
    contract = Path(__file__).parent / "contract"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", *(str(contract / each) for each in STORIES)]
        status = subprocess.run(command, env={**os.environ, VARIABLE: folder}, check=False).returncode
        if status:
            sys.exit("a story has failed: what it did not come to is not recorded")
        found = {path.name: sorted({*path.read_text().splitlines()}) for path in sorted(Path(folder).iterdir())}
    FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
