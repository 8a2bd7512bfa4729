"""Terraform: the whole deployment is applied to an emulator, planned again, filled with objects, and destroyed.

The emulator has no Application Auto Scaling and no replicas. It answers requests for alarms in the form that the
provider uses without their period, statistic and dimensions, so that these seem to change; in the form that boto3 uses,
they are as they were written. It forgets the tracing of a machine, which a proxy keeps as AWS does, and parts of a
network and of its cache, which are left out here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headgate.cli.aws import package
from tests.ministack import REGION, Ministack, aws_session
from tests.remembering_proxy import RememberingProxy
from tests.soak.figures import Figure
from tests.terraform_rig import ACCOUNT, EVERYTHING, Deployment, Plan
from tests.terraform_tools import TOOLS, described

APP: Final = "import headgate as hg\n\napp = hg.App('orders')\n"
_LEFT_OUT: Final = frozenset(
    {
        "autoscaling_units_max",
        "cache_node_type",
        "client_security_groups",
        "interface_endpoints",
        "private_subnet_ids",
        "replica_regions",
        "route_table_ids",
        "vpc_id",
    }
)
_ALARM: Final = "aws_cloudwatch_metric_alarm"
# What the emulator leaves out of alarms.
_FORGOTTEN: Final = frozenset(
    {
        "actions_enabled",
        "alarm_actions",
        "alarm_description",
        "dimensions",
        "extended_statistic",
        "period",
        "statistic",
        "treat_missing_data",
    }
)


def run(folder: Path) -> list[Figure]:
    """Apply, plan, fill and destroy. Raises `PlanRefusedError` if Terraform fails."""
    if TOOLS is None:
        return [Figure("Apply and destroy", described(TOOLS), holds=True)]
    (folder / "code").mkdir()
    (folder / "code" / "orders.py").write_text(APP)
    zipped = folder / "headgate.zip"
    package.build(zipped, code=folder / "code")
    session: Any = aws_session(ACCOUNT)
    with Ministack.start(folder) as emulator, RememberingProxy(emulator.endpoint) as proxy:
        deployment = Deployment(TOOLS, folder / "copy", proxy.endpoint, ACCOUNT)
        variables: dict[str, Any] = {
            **{name: value for name, value in EVERYTHING.items() if name not in _LEFT_OUT},
            "failover_zone_id": _zone(session, proxy.endpoint),
            "region": REGION,
            "bucket": "acme",
            "package": str(zipped),
            "architecture": package.own_architecture(),
            "deletion_protection": False,
            "settings": {"HEADGATE_STORE_AWS_ENDPOINT_URL": emulator.endpoint},
        }
        return _story(deployment, variables, session)


def _story(deployment: Deployment, variables: Mapping[str, Any], session: Any) -> list[Figure]:
    began = time.monotonic()
    deployment.with_variables("apply", variables, "-auto-approve", "-parallelism=20")
    applied_seconds = time.monotonic() - began
    again = deployment.plan(variables)
    s3 = session.client("s3", endpoint_url=deployment.endpoint)
    for number in range(3):
        s3.put_object(Bucket="acme", Key="blobs/payload", Body=b"%d" % number)
    changed = again.changes()
    others = {address: names for address, names in changed.items() if not _is_forgotten(address, names)}
    wrong = _alarms_that_differ(again, session.client("cloudwatch", endpoint_url=deployment.endpoint))
    began = time.monotonic()
    deployment.with_variables("destroy", variables, "-auto-approve", "-parallelism=20")
    destroyed_seconds = time.monotonic() - began
    left = _left(session, deployment.endpoint)
    kinds = len(again.kinds())
    return [
        Figure(
            "Resources applied",
            f"{len(again.planned)} of {kinds} types in {applied_seconds:.0f} s",
            holds=kinds > 25,
        ),
        Figure(
            "A second plan, without what the emulator leaves out of alarms",
            f"{len(others)} changes {', '.join(sorted(others)) or ''}".strip(),
            holds=not others,
        ),
        Figure(
            "Alarms that are stored as another than was planned",
            f"{' '.join([str(len(wrong)), *wrong])} of {len(again.of(_ALARM))}; "
            f"{len(changed) - len(others)} seem to change",
            holds=not wrong,
        ),
        Figure(
            "Left after destroy, with three versions of an object in the bucket",
            f"{', '.join(left) or 'nothing'}, in {destroyed_seconds:.0f} s",
            holds=not left,
        ),
    ]


def _zone(session: Any, endpoint: str) -> str:
    """Make a hosted zone and return its id."""
    route53 = session.client("route53", endpoint_url=endpoint)
    zone = route53.create_hosted_zone(Name="acme.example", CallerReference="soak")["HostedZone"]["Id"]
    return str(zone).rpartition("/")[2]


def _is_forgotten(address: str, names: set[str]) -> bool:
    return address.startswith(f"{_ALARM}.") and names <= _FORGOTTEN


def _alarms_that_differ(plan: Plan, cloudwatch: Any) -> list[str]:
    """Return the alarms that are stored with another metric, period, threshold or dimension than was planned."""
    stored = {
        each["AlarmName"]: each
        for page in cloudwatch.get_paginator("describe_alarms").paginate()
        for each in page["MetricAlarms"]
    }
    return [
        name
        for alarm in plan.of(_ALARM).values()
        if (name := alarm["alarm_name"]) not in stored or _summary(stored[name]) != _planned(alarm)
    ]


def _summary(stored: Mapping[str, Any]) -> str:
    dimensions = {each["Name"]: each["Value"] for each in stored.get("Dimensions", [])}
    # MiniStack stores an average beside a percentile; AWS has one of the two.
    statistic = stored.get("ExtendedStatistic") or stored.get("Statistic")
    return json.dumps([stored["MetricName"], stored["Period"], statistic, stored["Threshold"], dimensions])


def _planned(alarm: Mapping[str, Any]) -> str:
    statistic = alarm.get("statistic") or alarm.get("extended_statistic")
    values = [alarm["metric_name"], alarm["period"], statistic, float(alarm["threshold"]), alarm["dimensions"] or {}]
    return json.dumps(values)


def _left(session: Any, endpoint: str) -> list[str]:
    """Return the tables, buckets, functions, queues and machines that are there."""

    def names(service: str, operation: str, key: str, name: str = "") -> list[str]:
        answer = getattr(session.client(service, endpoint_url=endpoint), operation)()
        return [each[name] if name else each for each in answer.get(key, [])]

    return [
        *names("dynamodb", "list_tables", "TableNames"),
        *names("s3", "list_buckets", "Buckets", "Name"),
        *names("lambda", "list_functions", "Functions", "FunctionName"),
        *names("sqs", "list_queues", "QueueUrls"),
        *names("stepfunctions", "list_state_machines", "stateMachines", "name"),
    ]
