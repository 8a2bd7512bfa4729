"""The doctor of a deployment, against MiniStack with faults that were really made there."""

from __future__ import annotations

import io
import json
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import boto3
import pytest
from typer.testing import CliRunner

from headgate.cli.aws.aws import app
from headgate.cli.session import Session
from headgate.clock import SystemClock
from headgate.deployment.doctor.facts import DeploymentFacts
from headgate.deployment.doctor.findings import Finding, Severity, findings
from headgate.deployment.doctor.reader import read_deployment
from headgate.errors import StoreIOError
from headgate.store.catalogue.tables import DATASET_REGISTRY, FANOUT, TURNS
from headgate.store.dynamodb.tables import create_request
from headgate.store.table_names import TableNames
from tests.aws_faults import Fault, answered, refused
from tests.ministack import REGION, aws_session, fresh_account

PREFIX: Final = "prod-"


class Deployment:
    """An account of MiniStack with tables, functions and queues of a deployment that is called acme."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.account = fresh_account()
        self.session: Any = aws_session(self.account)
        self.faults: dict[str, Fault] = {}

    def client(self, service: str) -> Any:
        return self.session.client(service, endpoint_url=self.endpoint)

    def create_tables(self) -> None:
        dynamodb = self.client("dynamodb")
        for table in (DATASET_REGISTRY, FANOUT):
            physical = PREFIX + table.name
            dynamodb.create_table(**create_request(table, physical))
            dynamodb.update_continuous_backups(
                TableName=physical, PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
            )
            if table.ttl_attribute is not None:
                dynamodb.update_time_to_live(
                    TableName=physical,
                    TimeToLiveSpecification={"Enabled": True, "AttributeName": table.ttl_attribute},
                )

    def create_function(self, name: str) -> None:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as opened:
            opened.writestr("module.py", "def handler(event, context): pass")
        self.client("lambda").create_function(
            FunctionName=name,
            Runtime="python3.11",
            Role=f"arn:aws:iam::{self.account}:role/function",
            Handler="module.handler",
            Code={"ZipFile": content.getvalue()},
            Timeout=60,
        )

    def create_queue(self, name: str, **attributes: str) -> str:
        return str(self.client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def arn(self, service: str, name: str) -> str:
        return f"arn:aws:{service}:{REGION}:{self.account}:{name}"

    def put(self, namespace: str, metric: str, value: float, **dimensions: str) -> None:
        """Put a metric of ten minutes ago."""
        self.client("cloudwatch").put_metric_data(
            Namespace=namespace,
            MetricData=[
                {
                    "MetricName": metric,
                    "Value": value,
                    "Timestamp": datetime.now(UTC) - timedelta(minutes=10),
                    "Dimensions": [{"Name": name, "Value": each} for name, each in dimensions.items()],
                }
            ],
        )

    def meet(self, event: str, fault: Fault) -> None:
        """Let every request of an operation, written as service.Operation, meet a fault."""
        self.faults[event] = fault

    def facts(self) -> DeploymentFacts:
        session = aws_session(self.account)
        for event, fault in self.faults.items():
            session.events.register(f"before-send.{event}", lambda request, fault=fault, **_: fault(request))
        return read_deployment(
            session,
            SystemClock(),
            region=REGION,
            name="acme",
            catalogue=(DATASET_REGISTRY, FANOUT),
            names=TableNames(PREFIX),
            hours=24,
            endpoint_url=self.endpoint,
        )

    def found(self) -> list[Finding]:
        return findings(self.facts())


@pytest.fixture
def deployment(ministack: str) -> Deployment:
    made = Deployment(ministack)
    made.create_tables()
    made.create_function("acme-evaluator")
    return made


def about(found: list[Finding], subject: str) -> list[tuple[Severity, str]]:
    return [(each.severity, each.fact) for each in found if each.subject == subject]


def test_doctor__deployment_without_faults__finds_nothing(deployment: Deployment) -> None:
    facts = deployment.facts()

    assert findings(facts) == []
    assert [table.name for table in facts.tables] == [f"{PREFIX}{DATASET_REGISTRY.name}", f"{PREFIX}{FANOUT.name}"]
    assert [each.name for each in facts.functions or ()] == ["acme-evaluator"]
    assert (facts.mappings, facts.queues, facts.machines) == ((), (), ())
    assert facts.failures == ()


def test_doctor__missing_table_and_changed_one__names_both_with_the_difference(deployment: Deployment) -> None:
    dynamodb = deployment.client("dynamodb")
    dynamodb.delete_table(TableName=f"{PREFIX}{DATASET_REGISTRY.name}")
    dynamodb.update_table(
        TableName=f"{PREFIX}{FANOUT.name}",
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "attention-index"}}],
    )
    dynamodb.update_continuous_backups(
        TableName=f"{PREFIX}{FANOUT.name}", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": False}
    )

    found = deployment.found()

    assert about(found, f"table {PREFIX}{DATASET_REGISTRY.name}") == [(Severity.FAIL, "does not exist")]
    assert about(found, f"table {PREFIX}{FANOUT.name}") == [
        (Severity.FAIL, "index 'attention-index' is missing; create it"),
        (Severity.WARN, "has no point-in-time recovery"),
    ]


def test_doctor__throttled_index_without_insights__names_the_key_of_most_items(deployment: Deployment) -> None:
    table = f"{PREFIX}{FANOUT.name}"
    dynamodb = deployment.client("dynamodb")
    for number in range(40):
        hot, key = number % 4 != 0, f"CHUNK#{number:04d}"
        item = {"PK": f"fan_{number}", "SK": key, "queue_pk": "one#ready" if hot else f"{key}#ready", "queue_sk": key}
        dynamodb.put_item(TableName=table, Item={name: {"S": value} for name, value in item.items()})
    index = {"TableName": table, "GlobalSecondaryIndexName": "queue-index"}
    deployment.put("AWS/DynamoDB", "WriteThrottleEvents", 1200, **index)
    deployment.put("AWS/DynamoDB", "WriteKeyRangeThroughputThrottleEvents", 1200, **index)

    found = deployment.found()

    place = about(found, f"{table}/queue-index")
    assert place == [
        (Severity.FAIL, "1,200 writes and 0 reads throttled in 24 h: one partition is hot"),
        (Severity.WARN, "partition key 'one#ready' has 75% of 40 items in a sample of the table"),
        (Severity.WARN, "is throttled, and Contributor Insights is off"),
    ]
    (remedy,) = [each.remedy for each in found if "Insights is off" in each.fact]
    assert remedy.startswith(f"aws dynamodb update-contributor-insights --table-name {table} --index-name queue-index ")


def test_doctor__provisioned_table_near_its_capacity__compares_the_busiest_five_minutes(
    deployment: Deployment,
) -> None:
    table = f"{PREFIX}{DATASET_REGISTRY.name}"
    # 25 units a second are provisioned: 24 a second for five minutes.
    deployment.put("AWS/DynamoDB", "ConsumedWriteCapacityUnits", 24 * 300, TableName=table)
    deployment.put("AWS/DynamoDB", "WriteThrottleEvents", 3, TableName=table)

    found = [each for each in deployment.found() if each.subject == table and each.check != "hot keys"]

    assert [(each.severity, each.fact) for each in found] == [
        (Severity.WARN, "3 writes and 0 reads throttled in 24 h: provisioned capacity"),
        (Severity.WARN, "consumed 24 of 25 write units a second in its busiest five minutes"),
    ]
    assert found[1].remedy.endswith("provision 30 write units")


def test_doctor__contributor_insights__name_the_key_that_is_throttled(deployment: Deployment) -> None:
    table = f"{PREFIX}{FANOUT.name}"
    deployment.client("dynamodb").update_contributor_insights(TableName=table, ContributorInsightsAction="ENABLE")
    # MiniStack has no reports of rules.
    deployment.meet(
        "dynamodb.DescribeContributorInsights",
        answered({"ContributorInsightsRuleList": [f"DynamoDBContributorInsights-PKT-{table}-17"]}),
    )
    deployment.meet(
        "cloudwatch.GetInsightRuleReport",
        answered(
            {
                "AggregateValue": 400.0,
                "Contributors": [{"Keys": ["fan_1"], "ApproximateAggregateValue": 380.0, "Datapoints": []}],
            }
        ),
    )

    assert about(deployment.found(), table) == [
        (Severity.WARN, "partition key 'fan_1' has 95% of 380 requests that were throttled, by Contributor Insights")
    ]


def test_doctor__functions_with_errors_and_a_time_out__name_the_log(deployment: Deployment) -> None:
    function = {"FunctionName": "acme-evaluator"}
    deployment.put("AWS/Lambda", "Invocations", 200, **function)
    deployment.put("AWS/Lambda", "Errors", 7, **function)
    deployment.put("AWS/Lambda", "Duration", 60_000, **function)

    found = deployment.found()

    assert about(found, "function acme-evaluator") == [
        (Severity.FAIL, "an invocation ran into the time-out of 60 s in the last 24 h"),
        (Severity.WARN, "7 of 200 invocations failed in 24 h"),
    ]
    assert found[1].remedy == "aws logs tail /aws/lambda/acme-evaluator --since 24h --filter-pattern ERROR"


def test_doctor__disabled_mapping_stuck_queue_and_dead_letters__are_failures(deployment: Deployment) -> None:
    deployment.create_function("acme-turns")
    deployment.create_function("acme-waker")
    dead = deployment.create_queue("acme-failed-wakes")
    deployment.create_queue(
        "acme-turns",
        VisibilityTimeout="60",
        RedrivePolicy=json.dumps(
            {"deadLetterTargetArn": deployment.arn("sqs", "acme-failed-wakes"), "maxReceiveCount": 5}
        ),
    )
    mapping = deployment.client("lambda").create_event_source_mapping(
        FunctionName="acme-turns", EventSourceArn=deployment.arn("sqs", "acme-turns"), Enabled=False
    )
    deployment.client("sqs").send_message(QueueUrl=dead, MessageBody="given up")
    deployment.put("AWS/SQS", "ApproximateAgeOfOldestMessage", 4000, QueueName="acme-turns")

    found = deployment.found()

    assert {(each.severity, each.subject, each.fact) for each in found} == {
        (Severity.FAIL, "mapping acme-turns to acme-turns", "is Disabled"),
        (Severity.FAIL, "function acme-waker", "has no event source mapping, so nothing invokes it"),
        (Severity.FAIL, "queue acme-turns", "its oldest message waits for 4,000 s; 0 wait, 0 are in flight"),
        (Severity.FAIL, "queue acme-failed-wakes", "1 message given up"),
    }
    assert f"--uuid {mapping['UUID']} --enabled" in next(each.remedy for each in found if each.fact == "is Disabled")


def test_doctor__state_machine_with_failed_executions__counts_them(deployment: Deployment) -> None:
    made = deployment.client("stepfunctions").create_state_machine(
        name="acme-lifecycle",
        definition=json.dumps({"StartAt": "End", "States": {"End": {"Type": "Succeed"}}}),
        roleArn=f"arn:aws:iam::{deployment.account}:role/machine",
    )
    deployment.put("AWS/States", "ExecutionsFailed", 2, StateMachineArn=made["stateMachineArn"])

    assert about(deployment.found(), "state machine acme-lifecycle") == [(Severity.WARN, "2 executions failed in 24 h")]


def test_doctor__calls_that_are_refused__are_listed_once_and_the_rest_is_checked(deployment: Deployment) -> None:
    deployment.client("dynamodb").delete_table(TableName=f"{PREFIX}{FANOUT.name}")
    deployment.meet("cloudwatch.GetMetricData", refused("AccessDenied", "not authorized"))
    deployment.meet("lambda.ListFunctions", refused("AccessDeniedException", "not authorized"))

    found = deployment.found()

    assert about(found, f"table {PREFIX}{FANOUT.name}") == [(Severity.FAIL, "does not exist")]
    unknown = [each for each in found if each.severity is Severity.UNKNOWN]
    assert {each.subject for each in unknown} == {"cloudwatch:GetMetricData", "lambda:ListFunctions"}
    assert all(each.remedy.startswith(f"grant {each.subject}") for each in unknown)


def test_doctor__no_way_to_aws__is_an_error_and_no_diagnosis() -> None:
    with pytest.raises(StoreIOError, match="check the region, the credentials and the network"):
        read_deployment(
            boto3.Session(region_name=REGION, aws_access_key_id="1", aws_secret_access_key="-"),
            SystemClock(),
            region=REGION,
            name="acme",
            catalogue=(TURNS,),
            names=TableNames(),
            hours=1,
            endpoint_url="http://127.0.0.1:1",
        )


def test_command__deployment_without_tables__exits_with_1_and_says_so_in_json(
    ministack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", fresh_account())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "-")
    session = Session({"HEADGATE_STORE_AWS_ENDPOINT_URL": ministack})
    options = ["doctor", "--name", "acme", "--region", REGION]

    text = CliRunner().invoke(app, options, obj=session, catch_exceptions=False)
    shown = CliRunner().invoke(app, [*options, "--json"], obj=session, catch_exceptions=False)

    assert (text.exit_code, shown.exit_code) == (1, 1)
    assert f"FAIL    table {TURNS.name}: does not exist\n        remedy: run 'headgate table create'" in text.stdout
    assert f"checked in {REGION}: 0 tables, 0 functions, 0 mappings, 0 queues, 0 state machines; " in text.stdout
    found = json.loads(shown.stdout)["findings"]
    assert {each["severity"] for each in found} == {"FAIL", "WARN"}
