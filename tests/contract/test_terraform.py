"""Terraform validates and plans the files of the deployment, where the program and a mirror of its provider are here.

`python -m tests.soak terraform` applies and destroys them.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError

from headgate.cli.aws.package import own_architecture
from headgate.embedded_metrics import COMPLETED, FUNCTIONS_NAMESPACE, METRICS, NAMESPACE
from headgate.health.model.enums import Severity, SignalState
from headgate.store.catalogue.tables import ALL_TABLES, DATASET_REGISTRY, EVIDENCE_CACHE, INCIDENT_INDEX, SIGNAL_STATE
from headgate.store.dynamodb.tables import create_request
from headgate.store.model.schema import Billing, Table
from tests.aws_rig import FUNCTIONS, TERRAFORM
from tests.iam_policies import allows
from tests.ministack import REGION, Ministack, aws_session
from tests.terraform_rig import ACCOUNT, EVERYTHING, Deployment, Plan, PlanRefusedError, small_package
from tests.terraform_tools import TOOLS, VARIABLE, Tools, find_tools

if TOOLS is None:
    pytest.skip("Terraform is not here", allow_module_level=True)

FOREIGN: Final = {"x86_64": "arm64", "arm64": "x86_64"}
# Resources that AWS bills by the hour, the key, the event or the series, whether they are used or not.
OPTIONAL: Final = {
    "aws_appautoscaling_policy",
    "aws_appautoscaling_target",
    "aws_cloudtrail",
    "aws_cloudwatch_dashboard",
    "aws_dynamodb_contributor_insights",
    "aws_elasticache_replication_group",
    "aws_elasticache_subnet_group",
    "aws_kms_alias",
    "aws_kms_key",
    "aws_route53_health_check",
    "aws_route53_record",
    "aws_s3_bucket_policy",
    "aws_security_group",
    "aws_sns_topic",
    "aws_ssm_parameter",
    "aws_vpc_endpoint",
    "aws_vpc_security_group_egress_rule",
    "aws_vpc_security_group_ingress_rule",
}
# Metrics of AWS that alarms and the dashboard read, as the documentation of each service lists them.
AWS_METRICS: Final = {
    "AWS/ApiGateway": {"5xx"},
    "AWS/DynamoDB": {"ConsumedWriteCapacityUnits", "ReadThrottleEvents", "WriteThrottleEvents"},
    "AWS/Events": {"FailedInvocations"},
    "AWS/Lambda": {"DestinationDeliveryFailures", "Errors", "IteratorAge", "Throttles"},
    "AWS/SQS": {"ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"},
    "AWS/Scheduler": {"InvocationDroppedCount", "InvocationsFailedToBeSentToDeadLetterCount"},
    "AWS/States": {"ExecutionThrottled", "ExecutionsAborted", "ExecutionsFailed", "ExecutionsTimedOut"},
}
ORDERS: Final = "urn:dp:orders:order_created:v1"
FINANCE: Final = "urn:dp:finance:ledger:v1"


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Plan]) -> Plan:
    """Return a plan that the test processes of this run make once."""
    folder = factory.getbasetemp().parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / f"{name}.plan.json"
        if not made.exists():
            made.write_text(json.dumps(make().shown))
        return Plan(json.loads(made.read_text()))


@pytest.fixture(scope="module")
def open_deployment(ministack: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Deployment]:
    """Returns the deployment, initialised when it is asked for first."""
    opened: list[Deployment] = []

    def deployment() -> Deployment:
        if not opened:
            assert TOOLS is not None
            folder = tmp_path_factory.mktemp("deploy") / "copy"
            opened.append(Deployment(TOOLS, folder, ministack, ACCOUNT))
        return opened[0]

    return deployment


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The variables without a default."""
    package = small_package(tmp_path_factory.mktemp("package"))
    return {"region": REGION, "bucket": "acme", "package": str(package), "architecture": own_architecture()}


@pytest.fixture(scope="module")
def usual(
    open_deployment: Callable[[], Deployment], required: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Plan:
    """The plan of a deployment that sets nothing but what it has to."""
    return once(tmp_path_factory, "usual", lambda: open_deployment().plan(required))


@pytest.fixture(scope="module")
def full(
    open_deployment: Callable[[], Deployment], required: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Plan:
    """The plan of a deployment that has everything."""
    return once(tmp_path_factory, "full", lambda: open_deployment().plan({**required, **EVERYTHING}))


def test_files__as_terraform_reads_them__are_formatted(open_deployment: Callable[[], Deployment]) -> None:
    assert open_deployment().run("fmt", "-check", "-recursive") == ""


# Variables.


def test_plan__package_of_another_architecture__is_refused(
    open_deployment: Callable[[], Deployment], required: dict[str, Any], tmp_path: Path
) -> None:
    foreign = FOREIGN[own_architecture()]
    package = small_package(tmp_path, foreign)

    # The rest of the plan has no part in it.
    with pytest.raises(PlanRefusedError, match=f"the package was built for {foreign}, not for {own_architecture()}"):
        open_deployment().plan({**required, "package": str(package)}, "-target=aws_s3_object.package")


def test_plan__every_variable_invalid__each_is_refused_with_what_to_write(
    open_deployment: Callable[[], Deployment],
) -> None:
    text = "\n".join(path.read_text() for path in sorted(TERRAFORM.glob("*.tf")))
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL)
    checked = {name: block for name, block in blocks if "validation {" in block}
    invalid = {
        "list(string)": ["n o"],
        "map(string)": {"n o": "n o"},
        "number": -1,
        "string": "n o",
    }
    given = {name: invalid[re.findall(r"type\s+= (\S+)", block)[0]] for name, block in checked.items()}

    with pytest.raises(PlanRefusedError) as refused:
        open_deployment().with_variables("plan", given)

    for name, block in checked.items():
        message = re.findall(r'error_message = "(.*)"\n', block)[0].replace('\\"', '"')
        assert message in str(refused.value), name


# What is there by default, and what is not.


def test_plan__of_a_deployment_that_sets_little__has_nothing_optional(usual: Plan, full: Plan) -> None:
    assert usual.kinds() & OPTIONAL == set()
    assert full.kinds() >= OPTIONAL
    assert usual.of("aws_lambda_function")['function["orchestrator"]']["architectures"] == [own_architecture()]
    reserved = {each["reserved_concurrent_executions"] for each in usual.of("aws_lambda_function").values()}
    assert reserved == {-1}


def test_queues__that_call_functions__keep_messages_hidden_for_six_times_the_time_out(full: Plan) -> None:
    queues = {each["name"]: each for each in full.of("aws_sqs_queue").values()}
    read = {
        "headgate-turns.fifo": "turns",
        "headgate-later": "waker",
        "headgate-activities-default": "activities",
        "headgate-chunks": "chunk-worker",
        "headgate-chunks-dead": "dead-letter",
    }

    assert len(full.of("aws_lambda_event_source_mapping")) >= len(read)
    for queue, function in read.items():
        assert queues[queue]["visibility_timeout_seconds"] >= 6 * FUNCTIONS[function]["timeout_seconds"]


def test_buckets__of_a_deployment__keep_versions_and_end_them(full: Plan) -> None:
    buckets = full.of("aws_s3_bucket")

    assert len(full.of("aws_s3_bucket_versioning")) == len(buckets) == 2
    assert len(full.of("aws_s3_bucket_lifecycle_configuration")) == len(buckets)
    assert len(full.of("aws_s3_bucket_public_access_block")) == len(buckets)


# Events.


def test_bus__of_an_app__has_a_rule_for_each_subscription_that_skips_what_the_deployment_published(full: Plan) -> None:
    rules = {each["name"]: each for each in full.of("aws_cloudwatch_event_rule").values()}

    pattern = json.loads(rules["headgate-ship"]["event_pattern"])
    forwarded = json.loads(rules["headgate-to-west"]["event_pattern"])

    assert pattern["detail-type"] == ["order.paid"]
    # What goes out has this source, and what comes in another: no event goes round.
    assert pattern["source"] == [{"anything-but": forwarded["source"]}]


def test_bus__of_named_senders__admits_events_of_each_and_of_no_other_account(full: Plan) -> None:
    admitted = list(full.of("aws_cloudwatch_event_permission").values())

    assert [each["principal"] for each in admitted] == EVERYTHING["event_bus_senders"]
    assert {each["action"] for each in admitted} == {"events:PutEvents"}
    assert all(each["condition"] == [] for each in admitted)


# Activities.


def test_activities__invoked_asynchronously__are_functions_whose_failures_are_counted(full: Plan) -> None:
    planned = full.of("aws_lambda_function_event_invoke_config")['activity["weigh"]']
    function = full.of("aws_lambda_function")['function["activity-weigh"]']
    mapping = full.of("aws_lambda_event_source_mapping")['wakes["lost-activities"]']
    alarms = full.of("aws_cloudwatch_metric_alarm")

    assert (planned["maximum_retry_attempts"], planned["maximum_event_age_in_seconds"]) == (1, 5400)
    assert (planned["qualifier"], function["handler"]) == ("live", "headgate.aws.activities.invoked")
    assert function["dead_letter_config"] == []
    assert mapping["function_response_types"] == ["ReportBatchItemFailures"]
    assert alarms['dead_letters["lost-activities"]']["dimensions"] == {"QueueName": "headgate-failed-lost-activities"}
    assert alarms['destination["weigh"]']["dimensions"] == {"FunctionName": "headgate-activity-weigh"}


# Tables.


def test_tables__provisioned__are_scaled_with_their_indexes(full: Plan) -> None:
    scaled = {
        (each["resource_id"], each["scalable_dimension"]) for each in full.of("aws_appautoscaling_target").values()
    }
    provisioned = [table for table in ALL_TABLES if table.billing is Billing.PROVISIONED]

    assert provisioned
    assert scaled == {
        (resource, f"dynamodb:{space}:{kind}CapacityUnits")
        for table in provisioned
        for resource, space in (
            (f"table/{table.name}", "table"),
            *((f"table/{table.name}/index/{index.name}", "index") for index in table.indexes),
        )
        for kind in ("Read", "Write")
    }
    assert len(full.of("aws_appautoscaling_policy")) == len(scaled)


def test_tables__of_two_regions__are_those_that_describe_datasets(usual: Plan, full: Plan) -> None:
    def tables(plan: Plan) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in plan.of("aws_dynamodb_table").values()}

    replicated = {name for name, each in tables(full).items() if each["replica"]}

    assert {table.name for table in ALL_TABLES} == {*tables(usual)} == {*tables(full)}
    assert all(each["replica"] == [] for each in tables(usual).values())
    # The audit log is a chain of each region; the health check writes its own row in each.
    own = {"observability-audit", "observability-health-check"}
    assert replicated == {name for name in tables(full) if name.startswith("observability-")} - own
    assert all(tables(full)[name]["stream_view_type"] == "NEW_AND_OLD_IMAGES" for name in replicated)


# Alarms and the dashboard.


def test_alarms__and_panels__read_metrics_that_are_written_with_these_dimensions(full: Plan) -> None:
    own = {each.name: {frozenset(names) for names in each.dimensions} for each in METRICS.values()}
    alarms = [
        (each["namespace"], each["metric_name"], frozenset(each.get("dimensions") or ()))
        for each in full.of("aws_cloudwatch_metric_alarm").values()
    ]
    body = json.loads(next(iter(full.of("aws_cloudwatch_dashboard").values()))["dashboard_body"])
    panels = [
        (line[0], line[1], frozenset(line[2:-1:2]))
        for widget in body["widgets"]
        for line in widget["properties"]["metrics"]
    ]

    assert len(alarms) > 50
    assert len(panels) > 50
    for namespace, metric, dimensions in (*alarms, *panels):
        if namespace == NAMESPACE:
            assert dimensions in own[metric], metric
        elif namespace == FUNCTIONS_NAMESPACE:
            assert (metric, dimensions) == (COMPLETED, frozenset({"function"}))
        else:
            assert metric in AWS_METRICS[namespace]
    assert {metric for namespace, metric, _ in alarms if namespace == NAMESPACE} == {
        "dynamodb.throttle_count",
        "dynamodb.read_latency",
        "api.request_count",
        "cache.hit_rate",
    }


def test_dashboard__its_panels__are_the_four_of_the_state_store_with_values_of_the_product(full: Plan) -> None:
    text = next(iter(full.of("aws_cloudwatch_dashboard").values()))["dashboard_body"]
    widgets = {each["properties"]["title"]: each["properties"] for each in json.loads(text)["widgets"]}

    for panel in ("Throughput", "Latency (p99)", "Capacity by table", "Throttled requests", "Business"):
        assert any(title.startswith(panel) for title in widgets), panel
    assert {widgets["Latency (p99)"]["stat"]} == {"p99"}
    lines = [line for each in widgets.values() for line in each["metrics"]]
    shown = {(line[place], line[place + 1]) for line in lines for place in range(2, len(line) - 1, 2)}
    tables = {table.name for table in ALL_TABLES}
    states = {state.value for state in SignalState}
    assert {value for name, value in shown if name == "severity"} <= {each.value for each in Severity}
    assert {value for name, value in shown if name in ("from_state", "to_state")} <= states
    assert {value for name, value in shown if name in ("table", "TableName")} <= tables


def test_alarms__of_every_function_queue_rule_and_the_lifecycle__are_there(usual: Plan) -> None:
    alarms = {each["alarm_name"] for each in usual.of("aws_cloudwatch_metric_alarm").values()}
    functions = [each["function_name"] for each in usual.of("aws_lambda_function").values()]
    rules = [each["name"] for each in usual.of("aws_cloudwatch_event_rule").values()]

    assert {f"{name}-{kind}" for name in functions for kind in ("errors", "throttles")} <= alarms
    assert {f"{name}-{kind}" for name in rules for kind in ("silence", "rule")} <= alarms
    letters = [each["name"] for each in usual.of("aws_sqs_queue").values() if "failed" in each["name"]]
    assert {f"{name}-letters" for name in letters} <= alarms
    assert {"headgate-chunks-late", "headgate-stream-router-behind", "headgate-lifecycle-ExecutionsFailed"} <= alarms


# Roles of programs that use the tables directly.


def policy_of(plan: Plan, program: str) -> str:
    return str(plan.of("aws_iam_role_policy")[f'program["{program}"]']["policy"])


def arn(full: Plan, table: str) -> str:
    (granted,) = {
        each
        for each in re.findall(r'"(arn:aws:dynamodb:[^"]+)"', policy_of(full, "rca-copilot"))
        if each.endswith(f":table/{table}")
    }
    return str(granted)


def test_signal_engine__writes_signals_of_its_datasets__and_of_no_others(full: Plan) -> None:
    policy, table = policy_of(full, "signal-engine"), arn(full, SIGNAL_STATE.name)

    def may_write(keys: list[str], **tags: str) -> bool:
        context = {f"aws:PrincipalTag/{name}": value for name, value in tags.items()}
        named: dict[str, Any] = {"dynamodb:LeadingKeys": keys} if keys else {}
        return allows(policy, "dynamodb:PutItem", table, {**context, **named})

    assert may_write([ORDERS], AllowedDatasets="urn:dp:orders:")
    assert not may_write([FINANCE], AllowedDatasets="urn:dp:orders:")
    assert not may_write([ORDERS, FINANCE], AllowedDatasets="urn:dp:orders:")
    assert not may_write([ORDERS])
    # ForAllValues alone would let a request without keys through.
    assert not may_write([], AllowedDatasets="urn:dp:orders:")
    assert not allows(policy, "dynamodb:DeleteItem", table, {"dynamodb:LeadingKeys": [ORDERS]})
    assert allows(policy, "dynamodb:PutItem", arn(full, "observability-evidence-cache"), {})


def test_alerting_engine__manages_incidents__and_only_reads_signals(full: Plan) -> None:
    policy = policy_of(full, "alerting-engine")
    incidents, signals = arn(full, "observability-incident-index"), arn(full, SIGNAL_STATE.name)

    assert allows(policy, "dynamodb:UpdateItem", incidents, {})
    assert allows(policy, "dynamodb:Query", f"{incidents}/index/status-severity-index", {})
    assert allows(policy, "dynamodb:Query", f"{signals}/index/breach-index", {})
    assert not allows(policy, "dynamodb:PutItem", signals, {})
    assert not allows(policy, "dynamodb:DeleteItem", incidents, {})


def test_rca_copilot__reads_what_describes_datasets__and_writes_nothing(full: Plan) -> None:
    policy = policy_of(full, "rca-copilot")

    for table in ALL_TABLES:
        name = f"{arn(full, SIGNAL_STATE.name).rpartition('/')[0]}/{table.name}"
        assert allows(policy, "dynamodb:Query", name, {}) == table.name.startswith("observability-")
        assert not allows(policy, "dynamodb:PutItem", name, {})


def test_admin__changes_the_registry__with_a_ticket_only(full: Plan) -> None:
    policy, table = policy_of(full, "admin"), arn(full, "observability-dataset-registry")

    assert allows(policy, "dynamodb:PutItem", table, {"aws:PrincipalTag/ApprovalTicket": "CHG-1"})
    assert not allows(policy, "dynamodb:PutItem", table, {"aws:PrincipalTag/ApprovalTicket": ""})
    assert not allows(policy, "dynamodb:PutItem", table, {})
    assert not allows(policy, "dynamodb:DeleteTable", table, {"aws:PrincipalTag/ApprovalTicket": "CHG-1"})
    assert not allows(
        policy, "dynamodb:PutItem", arn(full, SIGNAL_STATE.name), {"aws:PrincipalTag/ApprovalTicket": "C"}
    )


class Programs:
    """The roles of programs in an emulator that evaluates policies, and the tables that they name."""

    def __init__(self, endpoint: str, plan: Plan) -> None:
        self._endpoint = endpoint
        self._session: Any = aws_session(ACCOUNT)
        dynamodb = self._client("dynamodb")
        for table in (SIGNAL_STATE, EVIDENCE_CACHE, INCIDENT_INDEX, DATASET_REGISTRY):
            dynamodb.create_table(**create_request(table, table.name))
        for name, role in plan.of("aws_iam_role").items():
            if (program := re.fullmatch(r'program\["(.+)"\]', name)) is not None:
                self._client("iam").create_role(
                    RoleName=program[1], AssumeRolePolicyDocument=role["assume_role_policy"]
                )
                self._client("iam").put_role_policy(
                    RoleName=program[1], PolicyName="tables", PolicyDocument=policy_of(plan, program[1])
                )
        # The account itself cannot assume a role.
        self._client("iam").create_user(UserName="engines")
        assume = {"Effect": "Allow", "Action": ["sts:AssumeRole", "sts:TagSession"], "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [assume]})
        self._client("iam").put_user_policy(UserName="engines", PolicyName="assume", PolicyDocument=document)
        key = self._client("iam").create_access_key(UserName="engines")["AccessKey"]
        self._user = self._client(
            "sts", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"]
        )

    def _client(self, service: str, **credentials: str) -> Any:
        return self._session.client(service, endpoint_url=self._endpoint, **credentials)

    def may_put(self, program: str, table: Table, key: dict[str, str], **tags: str) -> bool:
        """Whether a program that has assumed its role, with tags, may write a row."""
        given = self._user.assume_role(
            RoleArn=f"arn:aws:iam::{ACCOUNT}:role/{program}",
            RoleSessionName="test",
            Tags=[{"Key": name, "Value": value} for name, value in tags.items()],
        )["Credentials"]
        dynamodb = self._client(
            "dynamodb",
            aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"],
            aws_session_token=given["SessionToken"],
        )
        try:
            dynamodb.put_item(TableName=table.name, Item={name: {"S": value} for name, value in key.items()})
        except dynamodb.exceptions.ClientError as exc:
            assert exc.response["Error"]["Code"] == "AccessDeniedException"
            return False
        return True


def test_roles__where_an_emulator_evaluates_them__allow_and_deny_as_the_policies_say(
    full: Plan, tmp_path: Path
) -> None:
    emulator = Ministack.start(tmp_path, has_iam=True)
    try:
        programs = Programs(emulator.endpoint, full)
        incident = {"PK": "INC#1", "SK": "META"}
        config = {"PK": ORDERS, "SK": "CONFIG#LATEST"}

        assert programs.may_put("alerting-engine", INCIDENT_INDEX, incident)
        assert not programs.may_put("rca-copilot", INCIDENT_INDEX, incident)
        assert programs.may_put("signal-engine", EVIDENCE_CACHE, {"evidence_id": "e"}, AllowedDatasets="urn:dp:orders:")
        assert not programs.may_put("signal-engine", DATASET_REGISTRY, config, AllowedDatasets="urn:dp:orders:")
        assert programs.may_put("admin", DATASET_REGISTRY, config, ApprovalTicket="CHG-1")
        assert not programs.may_put("admin", SIGNAL_STATE, config, ApprovalTicket="CHG-1")
        with pytest.raises(ClientError, match="AssumeRole"):
            programs.may_put("admin", DATASET_REGISTRY, config)
        # It knows no dynamodb:LeadingKeys, which the policy needs: nothing is written. AWS's evaluation is above.
        assert not programs.may_put("signal-engine", SIGNAL_STATE, config, AllowedDatasets="urn:dp:orders:")
    finally:
        emulator.stop()


# The tools.


def test_tools__of_this_machine__are_found_where_terraform_looks_or_where_they_are_named(tmp_path: Path) -> None:
    assert TOOLS is not None
    program = tmp_path / "terraform"
    program.symlink_to(TOOLS.program)
    mirror = tmp_path / "home" / ".terraform.d" / "plugins"
    mirror.parent.mkdir(parents=True)
    mirror.symlink_to(TOOLS.mirror)

    assert find_tools({VARIABLE: f"{program}:{mirror}"}) == Tools(program, mirror)
    assert find_tools({"PATH": str(tmp_path), "HOME": str(tmp_path / "home")}) == Tools(program, mirror)
    assert find_tools({"PATH": str(tmp_path), "HOME": "/", "TF_PLUGIN_CACHE_DIR": str(mirror)}) == Tools(
        program, mirror
    )
    assert find_tools({"PATH": str(tmp_path / "home"), "HOME": str(tmp_path / "home")}) is None
