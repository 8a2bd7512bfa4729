"""Permissions: the roles of the functions grant what their handlers call, and nothing else.

That they grant all that is called, `test_aws_lifecycle.py` and the other tests of functions show: each records what its
functions ask of AWS. That they grant no more is shown twice: the import graph of a handler has code that could call it,
and a story has called it, or `UNRECORDED` says why none does.
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

from headgate.store.catalogue import tables
from headgate.store.model.schema import Table
from tests.aws_rig import FUNCTIONS, ROOT, TERRAFORM
from tests.recorded_calls import AUTHORISED_AS, recorded

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


# What Terraform grants every function: payloads beside the tables, and the keyring.
OF_EVERY_FUNCTION: Final = {"s3:GetObject", "s3:PutObject", "secretsmanager:GetSecretValue"}
# Streams are read by the mapping in the name of the function, and by the watchdog itself.
OF_STREAMS: Final = {
    "dynamodb:DescribeStream", "dynamodb:DescribeTable", "dynamodb:GetRecords", "dynamodb:GetShardIterator",
}  # fmt: skip


# What no story calls, by the reason for which a role grants it: code for failures, for payloads and limits beyond those
# of the stories, or for what an app may do.
_REGISTRY: Final = {"read observability-dataset-registry", "read observability-dataset-resolution"}
_GATE: Final = {*_REGISTRY, "read observability-incident-index", "read observability-signal-state"}
_LINEAGE: Final = {
    f"{kind} observability-{table}"
    for table in ("column-readers", "column-writers", "dataset-readers", "dataset-writers")
    for kind in ("read", "write")
}
_EVIDENCE: Final = {"read observability-evidence-cache", "write observability-evidence-cache"}
_MANY: Final = "an event with more deliveries than one transaction has room for leaves the rest in a row of its own"
_RULES: Final = "a rule on a dataset asks the health gate, in the function that evaluates or is woken by the change"
_JOB: Final = "a job that is a workflow or fan-out is started, looked at, cancelled and resumed through its own rows"
_OWN: Final = "code of the app may start, signal, cancel and reset executions, put schedules and emit events"
_DEAD: Final = "claims of a dead worker are queued again, or end with a message, a dead letter and a free slot"
_ROUTES: Final = "routes: every one of them is in the stories of a server, with the same application"
_REST: Final = {"read headgate-control", "write headgate-control"}
UNRECORDED: Final[dict[str, dict[str, set[str]]]] = {
    "activities": {
        _OWN: {
            "read headgate-control", "read headgate-events", "read headgate-executions", "read headgate-idempotency",
            "read headgate-inboxes", "read headgate-schedules", "read headgate-subscriptions", "read headgate-timers",
            "read headgate-turns", "scheduler:CreateSchedule", "write headgate-control", "write headgate-definitions",
            "write headgate-events", "write headgate-idempotency", "write headgate-schedules",
            "write headgate-subscriptions", "write headgate-timers", "write headgate-turns",
        },
    },
    "activity": {
        _OWN: {
            "read headgate-control", "read headgate-events", "read headgate-executions", "read headgate-fanout",
            "read headgate-idempotency", "read headgate-inboxes", "read headgate-schedules",
            "read headgate-subscriptions", "read headgate-timers", "read headgate-turns", "scheduler:CreateSchedule",
            "sqs:SendMessage", "write headgate-control", "write headgate-definitions", "write headgate-events",
            "write headgate-executions", "write headgate-fanout", "write headgate-idempotency",
            "write headgate-schedules", "write headgate-subscriptions", "write headgate-timers",
            "write headgate-turns",
        },
    },
    "api": {
        _ROUTES: {
            *_GATE - {"read observability-incident-index"}, *_LINEAGE, *_EVIDENCE,
            "read headgate-fanout", "read headgate-idempotency", "read headgate-inboxes", "read headgate-schedules",
            "read headgate-sessions", "read headgate-task-items", "read headgate-turns",
            "read observability-signal-history", "scheduler:CreateSchedule", "scheduler:DeleteSchedule",
            "sqs:SendMessage", "states:SendTaskSuccess", "write headgate-definitions", "write headgate-events",
            "write headgate-fanout", "write headgate-idempotency", "write headgate-pipelines",
            "write headgate-schedules", "write headgate-task-items", "write headgate-timers", "write headgate-turns",
            "write headgate-workers", "write observability-dataset-registry",
            "write observability-dataset-resolution", "write observability-health-check",
            "write observability-incident-index", "write observability-signal-history",
            "write observability-signal-state",
        },
    },
    "bus-handler": {
        _MANY: _REST,
        "an event with an id of its producer is compared with what that id stands for": {
            "read headgate-events", "read headgate-idempotency",
        },
    },
    "client": {
        "programs may ask the function for each operation on an execution": {
            "read headgate-activities", "read headgate-inboxes", "read headgate-timers", "read headgate-turns",
            "write headgate-control", "write headgate-idempotency", "write headgate-timers",
        },
    },
    "clockwork": {
        "outcomes of runs become signals, evidence, incidents and lineage, with an audit entry": {
            *_REGISTRY, *_LINEAGE, *_EVIDENCE, "read observability-audit", "read observability-signal-history",
            "read observability-signal-state", "write observability-audit", "write observability-dataset-registry",
            "write observability-dataset-resolution", "write observability-incident-index",
            "write observability-signal-history", "write observability-signal-state",
        },
        "deliveries are activities of subscriptions, which may start and signal executions and put schedules": {
            "read headgate-fanout", "read headgate-turns", "write headgate-executions", "write headgate-fanout",
            "write headgate-inboxes", "write headgate-schedules", "write headgate-subscriptions",
            "write headgate-timers", "write headgate-turns",
        },
    },
    "dead-letter": {"the last chunk closes its fan-out, which emits an event and wakes a workflow": {
        "write headgate-activities", "write headgate-inboxes",
    }},
    "definitions": {_MANY: {"write headgate-control"}},
    "evaluator": {
        _MANY: _REST,
        "quarantined records and findings of a trait are events; a shared trait is a definition": {
            "read headgate-definitions", "read headgate-subscriptions", "write headgate-activities",
        },
    },
    "event-sink": {
        "what a target refuses waits in a queue, and is sent again": {
            "sqs:DeleteMessage", "sqs:ReceiveMessage", "sqs:SendMessage",
        },
        "a payload of 64 KB is read from its row; keys are checked at the start": {
            "read headgate-control", "read headgate-events",
        },
    },
    "fanout-sweep": {"it closes fan-outs, which emits an event and wakes a workflow": {
        "read headgate-subscriptions", "write headgate-activities", "write headgate-events", "write headgate-inboxes",
    }},
    "health-sweep": {"OpenLineage events become lineage, datasets and evidence; timers end incidents": {
        *_LINEAGE - {"write observability-dataset-writers"}, *_EVIDENCE, "read observability-dataset-resolution",
        "write observability-dataset-resolution", "write observability-incident-index",
    }},
    "internal-api": {
        _ROUTES: {
            "read headgate-activities", "read headgate-definitions", "read headgate-events", "read headgate-fanout",
            "read headgate-idempotency", "read headgate-inboxes", "read headgate-schedules",
            "read headgate-task-items", "read headgate-turns", "read observability-audit",
            "read observability-health-check", "write headgate-control", "write headgate-definitions",
            "write headgate-fanout", "write headgate-idempotency", "write headgate-schedules",
            "write headgate-subscriptions", "write headgate-task-items", "write headgate-timers",
            "write headgate-turns", "write headgate-workers", "write observability-audit",
            "write observability-health-check",
        },
    },
    "lost-activities": {"the retry policy may be that of the workflow, which is a declaration": {
        "read headgate-definitions", "write headgate-definitions",
    }},
    "orchestrator": {
        _MANY: _REST,
        _RULES: _GATE,
        _JOB: {
            "read headgate-activities", "read headgate-inboxes", "read headgate-timers", "read headgate-turns",
            "states:SendTaskSuccess", "write headgate-executions", "write headgate-fanout", "write headgate-inboxes",
            "write headgate-timers", "write headgate-turns",
        },
    },
    "run-checker": {
        _MANY: _REST,
        _JOB: {
            "read headgate-activities", "read headgate-definitions", "read headgate-inboxes",
            "read headgate-subscriptions", "read headgate-timers", "read headgate-turns", "states:SendTaskSuccess",
            "write headgate-activities", "write headgate-events", "write headgate-executions",
            "write headgate-fanout", "write headgate-inboxes", "write headgate-pipelines", "write headgate-timers",
            "write headgate-turns",
        },
    },
    "sla-monitor": {
        _MANY: _REST,
        "a deadline may follow a calendar, which is a definition": {"read headgate-definitions"},
    },
    "splitter": {"the parts of a workflow that has no items end at once, which emits an event": {
        "read headgate-subscriptions", "write headgate-events", "write headgate-inboxes",
    }},
    "stream-router": {
        _MANY: _REST,
        _RULES: _GATE,
        "a start that is put off is a schedule": {"scheduler:CreateSchedule"},
    },
    "sweep": {
        "histories are archived, schedules fire with the token of their slot, deadlines end activities": {
            "read headgate-events", "read headgate-idempotency", "read headgate-turns", "scheduler:CreateSchedule",
            "write headgate-events", "write headgate-idempotency", "write headgate-timers", "write headgate-turns",
            "write headgate-workers",
        },
    },
    "trigger": {
        _MANY: {"write headgate-control"},
        _JOB: {
            "read headgate-activities", "read headgate-executions", "read headgate-inboxes", "read headgate-timers",
            "read headgate-turns", "read headgate-workers", "states:SendTaskSuccess", "write headgate-activities",
            "write headgate-timers", "write headgate-turns",
        },
    },
    "turns": {
        "a turn that is replayed reads history; limits, cancelled claims and tokens of children are rows": {
            "read headgate-activities", "read headgate-control", "read headgate-turns", "sqs:SendMessage",
            "write headgate-control", "write headgate-idempotency",
        },
    },
    "waker": {
        _DEAD: {
            "read headgate-control", "write headgate-control", "write headgate-inboxes",
            "write headgate-subscriptions",
        },
        "the sweeper that it shares makes subscriptions and declarations known": {
            "read headgate-subscriptions", "write headgate-definitions",
        },
    },
    "watchdog": {
        _MANY: _REST,
        _RULES: _GATE,
        _JOB: {
            "read headgate-activities", "read headgate-executions", "read headgate-fanout", "read headgate-inboxes",
            "read headgate-subscriptions", "read headgate-timers", "read headgate-turns", "states:SendTaskSuccess",
            "write headgate-executions", "write headgate-fanout", "write headgate-inboxes", "write headgate-timers",
            "write headgate-turns",
        },
    },
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


def modules_of(handler: str) -> set[str]:
    """Return the modules of the import graph of a handler."""
    waiting, seen = [handler.rpartition(".")[0]], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += parsed(name)[0]
    return seen


def reachable(handler: str) -> set[str]:
    """Return the actions that the import graph of a handler can call."""
    return {action for module in modules_of(handler) for action in parsed(module)[1]}


def receives(function: str) -> bool:
    """Whether a queue invokes a function."""
    each = FUNCTIONS[function]
    return bool(each.get("receives") or {"run", "bury"} & {*each.get("chunk_queues", [])})


def job_actions() -> set[str]:
    """Return what starting, asking after and ending jobs takes, as Terraform grants it for the jobs that are named."""
    text = (TERRAFORM / "iam.tf").read_text()
    block = text[text.index("job_grants = {") : text.index('data "aws_iam_policy_document" "function"')]
    lines = re.findall(r"actions\s*=\s*\[([^\]]*)\]", block)
    return {action for line in lines for action in re.findall(r'"([^"]+)"', line)}


# Stories of the triggers record them: tests/contract/test_triggers_aws.py.
JOBS: Final = job_actions()


def granted(function: str) -> set[str]:
    """Return the actions on services, other than the tables and the bucket, that Terraform grants a function."""
    each = FUNCTIONS[function]
    actions = {*each["calls"], *each.get("event_calls", [])}
    for grant in each.get("chunk_queues", []):
        actions |= OF_CHUNK_QUEUES[grant]
    return actions | JOBS if each["starts_jobs"] else actions


def granted_on_tables(function: str) -> set[str]:
    """Return `read TABLE` and `write TABLE` as Terraform grants them."""
    each = FUNCTIONS[function]
    return {f"read {table}" for table in each["reads"]} | {f"write {table}" for table in each["writes"]}


@functools.cache
def named_tables(name: str) -> frozenset[str]:
    """Return the tables that a module names."""
    path = module_file(name)
    assert path is not None
    named = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    return frozenset(table.name for each in named if isinstance(table := getattr(tables, each, None), Table))


def needed(function: str) -> set[str]:
    """Return what stories have recorded, as what a role grants."""
    found = recorded()[function]
    # A check in a transaction is granted by a read as well as by a write.
    checked = {each.removeprefix("check ") for each in found if each.startswith("check ")}
    on_tables = granted_on_tables(function)
    of_checks = {f"{kind} {table}" for table in checked for kind in ("read", "write")} & on_tables
    return {each for each in found if not each.startswith("check ")} | of_checks


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_role__of_a_function__grants_what_stories_record_and_what_is_named_here(function: str) -> None:
    grants = granted_on_tables(function) | granted(function)
    unrecorded = {each for permissions in UNRECORDED.get(function, {}).values() for each in permissions}
    of_aws = OF_AWS | (OF_MAPPINGS if receives(function) else set())

    assert needed(function) - grants - OF_EVERY_FUNCTION - OF_STREAMS == set(), "called and not granted"
    found = grants - needed(function) - of_aws - JOBS
    advice = "run 'python -m tests.recorded_calls' if a story calls it now, or name it here with the reason"
    assert found == unrecorded, f"granted, neither recorded nor named; or named, and recorded: {advice}"


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_role__of_a_function__grants_no_table_that_its_code_does_not_name(function: str) -> None:
    modules = modules_of(FUNCTIONS[function]["handler"])
    named = {table for module in modules for table in named_tables(module)}

    assert {each.partition(" ")[2] for each in granted_on_tables(function)} - named == set()


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_role__of_a_function__grants_nothing_that_its_handler_cannot_call(function: str) -> None:
    can = reachable(FUNCTIONS[function]["handler"]) | OF_AWS

    assert granted(function) - can - (OF_MAPPINGS if receives(function) else set()) == set()


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
