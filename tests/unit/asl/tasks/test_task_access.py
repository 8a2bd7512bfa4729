"""Task access: the allow-list of AWS calls, and the names of Headgate that no rule opens."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.asl.tasks.integrations import Integration, find_integration
from headgate.asl.tasks.local_tasks import LocalTasks
from headgate.asl.tasks.resource_map import MappedResource, ResourceMap
from headgate.asl.tasks.task_access import OwnNames, TaskAccess
from headgate.errors import SettingsError

OWN = OwnNames.of(
    ["zz-headgate-pipelines", "headgate-blobs", "https://sqs.eu-west-1.amazonaws.com/1/hg-turns",
     "arn:aws:states:eu-west-1:1:stateMachine:hg-lifecycle", None]
)  # fmt: skip
TABLE = "arn:aws:dynamodb:eu-west-1:123456789012:table/"


def integration(name: str) -> Integration:
    service, _, action = name.rpartition(":")
    found = find_integration(service, action)
    assert found is not None, name
    return found


def allows(rules: list[str], name: str, parameters: Any) -> bool:
    access, called = TaskAccess(rules, OWN), integration(name)
    return access.allows(called, parameters) and access.own_name(called, parameters) is None


def test_allows__no_rule__nothing() -> None:
    assert not allows([], "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "a"})
    assert not allows(["s3:putObject"], "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "a"})
    assert not allows(["dynamodb:*"], "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "a"})


@pytest.mark.parametrize(
    ("rule", "name", "parameters", "expected"),
    [
        ("s3:getObject:reports", "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "in/a"}, True),
        ("s3:get*:reports/in/*", "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "in/a"}, True),
        ("s3:get*:reports/in/*", "aws-sdk:s3:getObject", {"Bucket": "reports", "Key": "out/a"}, False),
        ("s3:*:reports", "aws-sdk:s3:getObject", {"Bucket": "other", "Key": "a"}, False),
        ("s3:*:reports", "aws-sdk:s3:listBuckets", {}, False),
        ("s3:*", "aws-sdk:s3:listBuckets", {}, True),
        ("s3:*", "aws-sdk:s3:getObject", {"Bucket": "arn:aws:s3:eu-west-1:1:accesspoint/x", "Key": "a"}, False),
        ("s3:*", "aws-sdk:s3:getObject", {"Bucket": "any-s3alias", "Key": "a"}, False),
        ("s3:*:to", "aws-sdk:s3:copyObject", {"Bucket": "to", "Key": "a", "CopySource": "from/a"}, False),
        ("s3:*:to", "aws-sdk:s3:copyObject", {"Bucket": "to", "Key": "a", "CopySource": "to/b"}, True),
        ("dynamodb:*:orders", "dynamodb:getItem", {"TableName": "orders", "Key": {}}, True),
        ("dynamodb:*:orders", "dynamodb:getItem", {"TableName": f"{TABLE}orders", "Key": {}}, True),
        ("dynamodb:*:orders", "aws-sdk:dynamodb:getItem", {"tableName": "orders", "Key": {}}, True),
        ("dynamodb:*:orders", "dynamodb:getItem", {"TableName": "lines", "Key": {}}, False),
        ("dynamodb:*", "aws-sdk:dynamodb:executeStatement", {"Statement": 'SELECT * FROM "x"'}, False),
        ("dynamodb:*", "aws-sdk:dynamodb:listTables", {}, False),
        ("dynamodb:*:orders", "aws-sdk:dynamodb:batchWriteItem", {"RequestItems": {"orders": []}}, True),
        ("dynamodb:*:orders", "aws-sdk:dynamodb:batchWriteItem", {"RequestItems": {"orders": [], "x": []}}, False),
        ("events:putEvents:default", "events:putEvents", {"Entries": [{"Source": "a"}]}, True),
        ("events:putEvents:default", "aws-sdk:eventbridge:putEvents", {"Entries": [{"EventBusName": "x"}]}, False),
        ("eventbridge:putEvents:x", "events:putEvents", {"Entries": [{"EventBusName": "x"}]}, True),
        ("sqs:sendMessage:jobs", "sqs:sendMessage", {"QueueUrl": "https://sqs.x.amazonaws.com/1/jobs"}, True),
        ("sqs:sendMessage:jobs", "sqs:sendMessage", {"QueueUrl": "https://sqs.x.amazonaws.com/1/other"}, False),
        ("sns:publish:alerts", "sns:publish", {"TopicArn": "arn:aws:sns:eu-west-1:1:alerts"}, True),
        ("lambda:invoke:price", "lambda:invoke", {"FunctionName": "price:live"}, True),
        ("lambda:invoke:price", "lambda:invoke", {"FunctionName": "arn:aws:lambda:x:1:function:price:3"}, True),
        ("lambda:invoke:price", "lambda:invoke", {"FunctionName": "price2"}, False),
        ("ecs:runTask:job", "ecs:runTask", {"TaskDefinition": "arn:aws:ecs:x:1:task-definition/job:7"}, True),
        ("athena:*:primary", "athena:startQueryExecution", {"QueryString": "SELECT 1"}, True),
        ("http:invoke:https://a.example/*", "http:invoke", {"ApiEndpoint": "https://a.example/v1"}, True),
        ("http:invoke:https://a.example/*", "http:invoke", {"ApiEndpoint": "https://b.example/v1"}, False),
        ("http:invoke:v1", "http:invoke", {"ApiEndpoint": "https://b.example/v1"}, False),
        ("http:invoke:https://*.a.example/*", "http:invoke", {"ApiEndpoint": "https://v1.a.example/x/y?z=1"}, True),
        ("http:invoke:https://*.a.example/*", "http:invoke", {"ApiEndpoint": "https://b.example/.a.example/"}, False),
        ("http:invoke:https://*.a.example/*", "http:invoke", {"ApiEndpoint": "https://b.example?.a.example/"}, False),
        ("http:invoke:https://*.a.example/*", "http:invoke", {"ApiEndpoint": "https://b.example#.a.example/"}, False),
        ("http:invoke:https://a.example/*/x", "http:invoke", {"ApiEndpoint": "https://a.example/1/2/x"}, True),
        ("http:invoke:https://*", "http:invoke", {"ApiEndpoint": "https://b.example/v1"}, True),
        ("http:invoke:*", "http:invoke", {"ApiEndpoint": "https://b.example/v1"}, True),
        ("http:invoke:*.a.example/*", "http:invoke", {"ApiEndpoint": "https://b.example/.a.example/"}, False),
        ("logs:getLogEvents:app", "aws-sdk:cloudwatchlogs:getLogEvents", {"LogGroupName": "app"}, True),
        ("cloudwatchlogs:*:app", "aws-sdk:cloudwatchlogs:getLogEvents", {"LogGroupName": "other"}, False),
        ("lambda:invoke", "lambda:invoke", {"FunctionName": "price"}, True),
        ("glue:startJobRun:night*", "glue:startJobRun", {"JobName": "nightly"}, True),
        ("comprehend:detectSentiment", "aws-sdk:comprehend:detectSentiment", {"Text": "good"}, True),
        ("comprehend:detectSentiment:x", "aws-sdk:comprehend:detectSentiment", {"Text": "good"}, False),
    ],
)  # fmt: skip
def test_allows__rule__decides_by_service_action_and_resource(
    rule: str, name: str, parameters: Any, expected: bool
) -> None:
    assert allows([rule], name, parameters) is expected


@pytest.mark.parametrize(
    ("rule", "name", "parameters"),
    [
        ("dynamodb:*", "dynamodb:putItem", {"TableName": "zz-headgate-pipelines"}),
        ("dynamodb:*", "dynamodb:putItem", {"TableName": " ZZ-Headgate-Pipelines"}),
        ("dynamodb:*", "dynamodb:putItem", {"TableName": f"{TABLE}zz-headgate-pipelines"}),
        ("dynamodb:*", "aws-sdk:dynamodb:query", {"TableName": f"{TABLE}zz-headgate-pipelines/index/x"}),
        ("dynamodb:*", "aws-sdk:dynamodb:batchWriteItem", {"RequestItems": {"zz-headgate-pipelines": []}}),
        (
            "dynamodb:*",
            "aws-sdk:dynamodb:transactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "zz-headgate-pipelines"}}]},
        ),
        ("s3:*", "aws-sdk:s3:putObject", {"Bucket": "headgate-blobs", "Key": "a"}),
        ("s3:*", "aws-sdk:s3:copyObject", {"Bucket": "mine", "Key": "a", "CopySource": "headgate-blobs/k"}),
        ("s3:*", "aws-sdk:s3:copyObject", {"Bucket": "mine", "Key": "a", "CopySource": "/headgate%2Dblobs/k"}),
        ("s3:*", "aws-sdk:s3:putBucketLogging", {"Bucket": "mine", "X": {"TargetBucket": "headgate-blobs"}}),
        ("sqs:*", "sqs:sendMessage", {"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/hg-turns"}),
        ("sqs:*", "aws-sdk:sqs:getQueueUrl", {"QueueName": "hg-turns"}),
        ("sfn:*", "aws-sdk:sfn:stopExecution", {"ExecutionArn": "arn:aws:states:x:1:execution:hg-lifecycle:run"}),
        ("scheduler:*", "aws-sdk:scheduler:createSchedule", {"Target": {"Input": '{"t":"zz-headgate-pipelines"}'}}),
        ("athena:*", "athena:startQueryExecution", {"QueryString": 'SELECT * FROM "zz-headgate-pipelines"'}),
        ("athena:*", "athena:startQueryExecution", {"QueryString": "SELECT * FROM ddb.main.zz-headgate-pipelines"}),
        (
            "transcribe:*",
            "aws-sdk:transcribe:startTranscriptionJob",
            {"Media": {"MediaFileUri": "https://headgate-blobs.s3.eu-west-1.amazonaws.com/k"}},
        ),
    ],
)
def test_allows__something_of_headgate__is_refused_whatever_the_rules_say(
    rule: str, name: str, parameters: Any
) -> None:
    assert not allows([rule], name, parameters)


def test_allows__name_that_only_begins_or_ends_like_one_of_headgate__is_another() -> None:
    query = {"QueryString": "SELECT * FROM zz-headgate-pipelines-copy, my-zz-headgate-pipelines"}

    assert allows(["athena:*"], "athena:startQueryExecution", query)


def test_allows__message_that_mentions_a_table_of_headgate__is_data() -> None:
    parameters = {"TopicArn": "arn:aws:sns:x:1:alerts", "Message": "zz-headgate-pipelines"}

    assert allows(["sns:publish"], "sns:publish", parameters)


@pytest.mark.parametrize("rule", ["s3", "s3:", "*:*", "iam:*", "sts:assumeRole", "S3:get", "s3:get object"])
def test_rule__invalid_or_of_a_service_that_grants_access__is_refused(rule: str) -> None:
    with pytest.raises(SettingsError, match=r"tasks\.aws"):
        TaskAccess([rule])


def test_rule__names_something_of_headgate__is_refused() -> None:
    with pytest.raises(SettingsError, match="belongs to Headgate itself"):
        TaskAccess(["dynamodb:*:zz-headgate-pipelines"], OWN)


def test_refusal__no_rule__names_the_rule_to_add() -> None:
    text = TaskAccess().refusal(integration("aws-sdk:s3:getObject"), {"Bucket": "reports", "Key": "a"})

    assert '"s3:getObject:reports"' in text


# Up front.


@pytest.mark.parametrize(
    ("resource", "constants", "part"),
    [
        ("arn:aws:states:::aws-sdk:s3:getObject", {}, None),
        ("arn:aws:states:::aws-sdk:s3:getObject", {"Bucket": "reports"}, None),
        ("arn:aws:states:::aws-sdk:s3:getObject", {"Bucket": "other"}, "no setting allows this call"),
        ("arn:aws:states:::aws-sdk:s3:putObject", {}, "no setting allows this call"),
        ("arn:aws:states:::glue:startJobRun.sync", {}, "no setting allows this call"),
        ("arn:aws:states:::eks:runJob.sync", {}, "only AWS can run it"),
        ("arn:aws:states:::mapped:action", {}, None),
        ("arn:aws:states:::unknown:action", {}, "AWS has no such integration"),
        ("arn:aws:states:::sns:publish", {}, None),
        ("arn:aws:states:::lambda:invoke", {"FunctionName": "f"}, None),
        ("arn:aws:states:::states:startExecution.sync:2", {}, None),
        ("price", {}, None),
    ],
)
def test_local_tasks__before_a_run__refuse_what_cannot_run_here(
    resource: str, constants: dict[str, Any], part: str | None
) -> None:
    mapped = ResourceMap((MappedResource("mapped:*", answer=None),))
    found = LocalTasks(mapped, TaskAccess(["s3:getObject:reports"])).refusal(resource, constants)

    assert (found is None) if part is None else (found is not None and part in found), found
