"""Permissions: the roles of the functions grant nothing that the import graph of their handlers cannot call.

That they grant all that is called, `test_aws_lifecycle.py` and the other tests of functions show: each records what its
functions ask of AWS. The import graph says less about that, because functions of one kind share their container.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Final

import botocore.session
import pytest
from botocore import xform_name

from tests.aws_rig import FUNCTIONS, ROOT, TERRAFORM

SOURCE: Final = ROOT / "src"
# Services by the prefix of their actions.
SERVICES: Final = {
    "events": "events",
    "scheduler": "scheduler",
    "sns": "sns",
    "sqs": "sqs",
    "states": "stepfunctions",
    "lambda": "lambda",
    "glue": "glue",
    "elasticmapreduce": "emr",
    "emr-serverless": "emr-serverless",
    "logs": "logs",
}
# Operations that are authorised as another action.
AUTHORISED_AS: Final = {
    "sns:PublishBatch": "sns:Publish",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "lambda:Invoke": "lambda:InvokeFunction",
}
# What event source mappings do in the name of a function.
OF_MAPPINGS: Final = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}
# What no code calls by name: Lambda writes logs, and the starter of a job hands over its role.
OF_AWS: Final = {"iam:PassRole", "logs:CreateLogStream", "logs:PutLogEvents"}
OF_CHUNK_QUEUES: Final = {
    "send": {"sqs:SendMessage"},
    "run": {*OF_MAPPINGS, "sqs:ChangeMessageVisibility"},
    "bury": OF_MAPPINGS,
}
# Actions that AWS grants on no narrower resource, and the policies of keys, whose resource is the key itself.
ON_EVERYTHING: Final = {
    "dynamodb:ListStreams",
    "xray:PutTraceSegments", "xray:PutTelemetryRecords", "xray:GetSamplingRules", "xray:GetSamplingTargets",
    "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery",
    "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies", "logs:DescribeLogGroups",
}  # fmt: skip


@functools.cache
def operations() -> dict[str, set[str]]:
    """Return the actions of operations, by the name of the method that calls them."""
    session = botocore.session.get_session()
    found: dict[str, set[str]] = {}
    for prefix, service in SERVICES.items():
        for operation in session.get_service_model(service).operation_names:
            action = f"{prefix}:{operation}"
            found.setdefault(xform_name(operation), set()).add(AUTHORISED_AS.get(action, action))
    return found


def module_file(name: str) -> Path | None:
    path = SOURCE.joinpath(*name.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@functools.cache
def parsed(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the modules of Headgate that a module imports anywhere, and the actions whose methods it calls."""
    path = module_file(name)
    assert path is not None
    tree = ast.parse(path.read_text())
    imported: set[str] = set()
    called: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            # A method, which is called here or passed on.
            called |= operations().get(node.attr, set())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "_" in node.value:
            # A method that is named by a text.
            called |= operations().get(node.value, set())
    own = {each for each in imported if each.startswith("headgate") and module_file(each) is not None}
    # Methods of other objects have the same names: only modules that have a client call AWS.
    has_client = "client" in path.read_text().lower()
    return frozenset(own), frozenset(called if has_client else ())


def reachable(handler: str) -> set[str]:
    """Return the actions that the import graph of a handler can call."""
    waiting, seen, actions = [handler.rpartition(".")[0]], set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        imported, called = parsed(name)
        waiting += imported
        actions |= called
    return actions


def granted(function: str) -> set[str]:
    """Return the actions on services, other than the tables and the bucket, that Terraform grants a function."""
    each = FUNCTIONS[function]
    actions = {*each["calls"], *each.get("event_calls", [])}
    for grant in each.get("chunk_queues", []):
        actions |= OF_CHUNK_QUEUES[grant]
    if each["starts_jobs"]:
        text = (TERRAFORM / "iam.tf").read_text()
        block = text[text.index("job_grants = {") : text.index('data "aws_iam_policy_document" "function"')]
        actions |= {
            action
            for line in re.findall(r"actions\s*=\s*\[([^\]]*)\]", block)
            for action in re.findall(r'"([^"]+)"', line)
        }
    return actions


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_role__of_a_function__grants_nothing_that_its_handler_cannot_call(function: str) -> None:
    can = reachable(FUNCTIONS[function]["handler"]) | OF_AWS
    receives = bool(FUNCTIONS[function].get("receives") or FUNCTIONS[function].get("chunk_queues"))

    assert granted(function) - can - (OF_MAPPINGS if receives else set()) == set()


def test_reach__of_a_handler__is_found_by_its_imports() -> None:
    assert reachable("headgate.aws.events.handlers.event_sink") >= {"events:PutEvents", "sns:Publish"}
    assert "glue:StartJobRun" in reachable("headgate.aws.handlers.trigger")


def test_actions__of_all_policies__are_named_one_by_one() -> None:
    for path in sorted(TERRAFORM.glob("*.tf")):
        for block in re.findall(r"actions\s*=\s*\[([^\]]*)\]", path.read_text()):
            named = re.findall(r'"([^"]+)"', block)
            # Policies of keys and of network endpoints are limits: what a role may do, its own policy says.
            wild = [each for each in named if "*" in each]
            assert wild == [] or path.name in ("keys.tf", "network.tf"), f"{path.name}: {wild}"


def test_resources__of_roles__are_everything_only_where_aws_knows_no_narrower_one() -> None:
    for path in sorted(TERRAFORM.glob("*.tf")):
        text = path.read_text()
        for match in re.finditer(r'resources\s*=\s*\["\*"\]', text):
            before = text[: match.start()]
            block = before[before.rindex("actions") :]
            named = set(re.findall(r'"([a-z0-9-]+:[A-Za-z*]+)"', block))
            is_limit = path.name in ("keys.tf", "network.tf")
            assert is_limit or named <= ON_EVERYTHING, f"{path.name}: {sorted(named)}"
