"""Integration catalogue: the optimised integrations of Step Functions, the AWS SDK integrations, and how each waits.

It states what AWS offers. `task_access` decides which of them a Task may call here.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from msgspec import Struct

from headgate.asl.tasks.resources import WaitMode

_NOW: Final = frozenset({WaitMode.ANSWER})
_TOKEN: Final = frozenset({WaitMode.ANSWER, WaitMode.TOKEN})
_JOB: Final = frozenset({WaitMode.ANSWER, WaitMode.JOB})
_ALL: Final = frozenset({WaitMode.ANSWER, WaitMode.JOB, WaitMode.TOKEN})

# The optimised integrations of Step Functions: service, action, and what may complete the Task.
OPTIMISED: Final[dict[str, dict[str, frozenset[WaitMode]]]] = {
    "apigateway": {"invoke": _TOKEN},
    "athena": {
        "getQueryExecution": _NOW, "getQueryResults": _NOW, "startQueryExecution": _JOB, "stopQueryExecution": _NOW
    },
    "batch": {"submitJob": _JOB},
    "bedrock": {"createModelCustomizationJob": _JOB, "invokeModel": _NOW},
    "codebuild": {
        "batchDeleteBuilds": _NOW, "batchGetReports": _NOW, "deleteBuildBatch": _NOW, "retryBuildBatch": _JOB,
        "startBuild": _JOB, "startBuildBatch": _JOB, "stopBuild": _NOW, "stopBuildBatch": _NOW,
    },
    "databrew": {"startJobRun": _JOB},
    # Query is no optimised integration of AWS; Headgate accepts it for its own tables.
    "dynamodb": {"deleteItem": _NOW, "getItem": _NOW, "putItem": _NOW, "updateItem": _NOW},
    "ecs": {"runTask": _ALL},
    "eks": {
        "call": _NOW, "createCluster": _JOB, "createFargateProfile": _JOB, "createNodegroup": _JOB,
        "deleteCluster": _JOB, "deleteFargateProfile": _JOB, "deleteNodegroup": _JOB, "runJob": _JOB,
    },
    "elasticmapreduce": {
        "addStep": _JOB, "cancelStep": _NOW, "createCluster": _JOB, "modifyInstanceFleetByName": _NOW,
        "modifyInstanceGroupByName": _NOW, "setClusterTerminationProtection": _NOW, "terminateCluster": _JOB,
    },
    "emr-containers": {"createVirtualCluster": _NOW, "deleteVirtualCluster": _JOB, "startJobRun": _JOB},
    "emr-serverless": {
        "cancelJobRun": _JOB, "createApplication": _JOB, "deleteApplication": _JOB, "startApplication": _JOB,
        "startJobRun": _JOB, "stopApplication": _JOB,
    },
    "events": {"putEvents": _TOKEN},
    "glue": {"startJobRun": _JOB},
    "http": {"invoke": _NOW},
    "lambda": {"invoke": _TOKEN},
    "mediaconvert": {"createJob": _JOB},
    "sagemaker": {
        "createEndpoint": _NOW, "createEndpointConfig": _NOW, "createHyperParameterTuningJob": _JOB,
        "createLabelingJob": _JOB, "createModel": _NOW, "createProcessingJob": _JOB, "createTrainingJob": _JOB,
        "createTransformJob": _JOB, "updateEndpoint": _NOW,
    },
    "sns": {"publish": _TOKEN},
    "sqs": {"sendMessage": _TOKEN},
    "states": {"startExecution": _ALL | {WaitMode.JOB_AS_JSON}},
}  # fmt: skip

# The services whose actions Headgate can run against AWS in their optimised form, with the prefix of their error names.
# Those of the first version of the Java SDK have another name for every error that the service does not declare.
_ERROR_NAMES: Final = {
    "athena": ("Athena", "AmazonAthenaException"),
    "batch": ("Batch", "AWSBatchException"),
    "dynamodb": ("DynamoDB", "AmazonDynamoDBException"),
    "ecs": ("ECS", "AmazonECSException"),
    "events": ("EventBridge", "AmazonEventBridgeException"),
    "glue": ("Glue", "AWSGlueException"),
    "lambda": ("Lambda", "AWSLambdaException"),
    "sns": ("SNS", "AmazonSNSException"),
    "sqs": ("SQS", "AmazonSQSException"),
}
# Names of SDK integrations that differ from those of boto3 by more than hyphens.
_CLIENTS: Final = {
    "cloudwatchevents": "events",
    "cloudwatchlogs": "logs",
    "cognitoidentityprovider": "cognito-idp",
    "costexplorer": "ce",
    "databasemigration": "dms",
    "elasticfilesystem": "efs",
    "elasticloadbalancing": "elb",
    "elasticloadbalancingv2": "elbv2",
    "elasticmapreduce": "emr",
    "eventbridge": "events",
    "sfn": "stepfunctions",
    "states": "stepfunctions",
}
_SDK_ACTION: Final = re.compile(r"[a-z][A-Za-z0-9]{1,100}")
_SDK_SERVICE: Final = re.compile(r"[a-z0-9]{2,60}")


class Integration(Struct, frozen=True):
    """An action of an AWS service, as a Task names it."""

    # As in the ARN, without `aws-sdk:`, such as s3 or glue.
    service: str
    # In lower camel case, such as getObject.
    action: str
    is_sdk: bool
    waits: frozenset[WaitMode]

    @property
    def name(self) -> str:
        """The name as in the ARN, such as `glue:startJobRun` or `aws-sdk:s3:getObject`."""
        return f"{'aws-sdk:' if self.is_sdk else ''}{self.service}:{self.action}"

    @property
    def client_name(self) -> str:
        """The service as boto3 names it, but for hyphens."""
        return _CLIENTS.get(self.service, self.service)

    @property
    def operation(self) -> str:
        """The API operation, such as GetObject."""
        return self.action[:1].upper() + self.action[1:]

    @property
    def declared_error_names(self) -> tuple[str, str] | None:
        """The prefix of the error names, and the name of every other error; None: they follow from the service."""
        return None if self.is_sdk else _ERROR_NAMES.get(self.service)

    @property
    def is_supported(self) -> bool:
        """Whether Headgate can make this call, if a rule allows it."""
        return self.is_sdk or self.service in _ERROR_NAMES or self.service == "http"


def unknown_integration(service: str, action: str) -> str:
    """Return why a service and action are no integration, and the remedy."""
    if service.startswith("aws-sdk:"):
        return f"{service}:{action}: this is no action of the AWS SDK; write aws-sdk:service:action in lower camel case"
    near = OPTIMISED.get(service)
    known = f"; {service} has {', '.join(sorted(near))}" if near else ""
    return (
        f"{service}:{action}: AWS has no such integration{known}; for any action of the SDK write "
        f"aws-sdk:{service}:{action}, or map the resource in a resource map (--resources FILE)"
    )


@functools.lru_cache(maxsize=4096)
def find_integration(service: str, action: str) -> Integration | None:
    """Return the integration of a service, with or without `aws-sdk:`, and an action; None if AWS has none.

    Any service and action in the right form is an SDK integration: what AWS has changes every week.
    """
    is_sdk, name = service.startswith("aws-sdk:"), service.removeprefix("aws-sdk:")
    if not is_sdk:
        waits = OPTIMISED.get(name, {}).get(action)
        return None if waits is None else Integration(name, action, is_sdk=False, waits=waits)
    action = action[:1].lower() + action[1:]
    if not _SDK_SERVICE.fullmatch(name) or not _SDK_ACTION.fullmatch(action):
        return None
    return Integration(name, action, is_sdk=True, waits=_TOKEN)
