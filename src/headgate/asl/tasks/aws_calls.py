"""AWS calls: makes the calls that the allow-list permits, with the outputs and error names of Step Functions.

A call is made at least once: if the worker dies before the response is stored, the activity runs again. Where an API
has a client token, it derives from the activity's id, so that the repetition has no second effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from headgate.asl.errors import PERMISSIONS, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.aws_documents import as_mapping, pascal_members, to_request, to_result
from headgate.asl.tasks.aws_errors import answered_error, client_error, is_passing
from headgate.asl.tasks.integrations import Integration
from headgate.asl.tasks.task_access import TaskAccess, service_name
from headgate.durable.sdk.activity_context import ActivityContext

if TYPE_CHECKING:
    from botocore.model import OperationModel

_NAMESPACE: Final = uuid.UUID("6d0f3f5e-52a4-4f9b-9a53-0c9d3b1d8a37")
# Calls of these kinds change nothing, so the client may repeat them.
_READS: Final = ("get", "list", "describe", "head", "query", "scan", "batchGet", "search")
_TRIES: Final = 3
# The longest a Lambda function runs, and a margin.
_INVOKE_SECONDS: Final = 920.0
_READ_SECONDS: Final = 60.0
_FIFO: Final = ".fifo"
# Marks the runs of Glue jobs, whose API has no client token.
GLUE_MARK: Final = "--headgate_task_id"
_GLUE_RUNS_SEARCHED: Final = 200


class AwsClientSource(Protocol):
    """Makes clients of AWS services with the credentials, the role and the endpoint of the settings."""

    def client(self, service: str, *, read_seconds: float, tries: int) -> Any:  # noqa: ANN401 - a client of boto3
        """Return a client. Raises `SettingsError`; `ValueError` for a service that boto3 does not have."""


class AwsCalls:
    """Makes AWS calls for Tasks. Safe to use from many threads."""

    def __init__(self, clients: AwsClientSource, access: TaskAccess) -> None:
        self.access = access
        self._clients = clients

    def is_allowed(self, integration: Integration, parameters: Json) -> bool:
        """Whether a rule allows a call. Raises `StateError` for a call of something of Headgate itself."""
        if self.access.is_empty or not self.access.allows(integration, parameters):
            return False
        own = self.access.own_name(integration, parameters)
        if own is not None:
            raise StateError(
                PERMISSIONS, f"{integration.name}: {own[:120]} belongs to Headgate itself, and no Task reaches it"
            )
        return True

    def check(self, integration: Integration, parameters: Json) -> None:
        """Raise `StateError` unless a rule allows a call."""
        if not self.is_allowed(integration, parameters):
            raise StateError(PERMISSIONS, self.access.refusal(integration, parameters))

    def call(self, integration: Integration, parameters: Json, context: ActivityContext) -> Json:
        """Make a call and return its result. Raises `StateError`."""
        self.check(integration, parameters)
        given = dict(as_mapping(parameters, integration.name))
        if service_name(integration) == "glue" and integration.action == "startJobRun":
            return self._start_glue(integration, given, context)
        if integration.service == "lambda" and integration.action == "invoke" and not integration.is_sdk:
            return self._invoke(integration, given, context)
        result = self.request(integration, given, context)
        if integration.service == "events" and not integration.is_sdk and result.get("FailedEntryCount"):
            raise StateError("EventBridge.FailedEntry", msgspec.json.encode(result).decode())
        return result

    def request(
        self, integration: Integration, given: Mapping[str, Json], context: ActivityContext | None = None
    ) -> dict[str, Any]:
        """Send the request of a call and return the response as a result. Raises `StateError`."""
        from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

        client = self._client(integration)
        try:
            return self._sent(client, integration, given, context)
        except ParamValidationError as exc:
            raise runtime_error(f"The Parameters of {integration.name}: {' '.join(str(exc).split())}") from exc
        except ClientError as exc:
            raise answered_error(integration, client.meta.service_model, exc) from exc
        except BotoCoreError as exc:
            raise client_error(integration, client.meta.service_model.service_id, exc) from exc

    def describe(self, integration: Integration, given: Mapping[str, Json]) -> dict[str, Any] | None:
        """Send a request that only reads; None: AWS does not answer now. Raises `StateError`.

        Credentials or a region that are missing are an error: they do not come by waiting.
        """
        from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError, HTTPClientError
        from botocore.exceptions import ConnectionError as AwsConnectionError

        client = self._client(integration)
        try:
            return self._sent(client, integration, given, None)
        except ClientError as exc:
            if is_passing(exc):
                return None
            raise answered_error(integration, client.meta.service_model, exc) from exc
        except (HTTPClientError, AwsConnectionError, CredentialRetrievalError):
            return None
        except BotoCoreError as exc:
            raise client_error(integration, client.meta.service_model.service_id, exc) from exc

    def _sent(
        self,
        client: Any,  # noqa: ANN401 - of boto3
        integration: Integration,
        given: Mapping[str, Json],
        context: ActivityContext | None,
    ) -> dict[str, Any]:
        """Send a request. Raises `StateError`, and the errors of botocore."""
        model = client.meta.service_model
        if integration.operation not in model.operation_names:
            raise runtime_error(f"{integration.name}: AWS has no such action; correct its name")
        operation = model.operation_model(integration.operation)
        if operation.has_event_stream_input or operation.has_event_stream_output:
            raise runtime_error(f"{integration.name}: it sends or returns a stream of events, which no Task can do")
        request = to_request(operation.input_shape, dict(given), integration.name)
        if context is not None:
            request |= _tokens(operation, request, context)
        response = _method(client, integration.operation)(**request)
        result: dict[str, Any] = to_result(operation.output_shape, response, is_sdk=integration.is_sdk)
        return result

    def _client(self, integration: Integration) -> Any:  # noqa: ANN401 - a client of boto3
        is_invoke = integration.client_name == "lambda" and integration.action == "invoke"
        is_read = integration.action.startswith(_READS) and not is_invoke
        try:
            return self._clients.client(
                integration.client_name,
                read_seconds=_INVOKE_SECONDS if is_invoke else _READ_SECONDS,
                tries=_TRIES if is_read else 1,
            )
        except ValueError as exc:
            raise runtime_error(f"{integration.name}: AWS has no such service; correct its name") from exc

    def _invoke(self, integration: Integration, given: dict[str, Json], context: ActivityContext) -> Json:
        """Invoke a function. An error of the function is the error of the Task, named by its type."""
        if "Payload" in given:
            given["Payload"] = msgspec.json.encode(given["Payload"]).decode()
        result = self.request(integration, given, context)
        payload = _json_or_text(result.get("Payload", ""))
        if "FunctionError" in result:
            error = payload.get("errorType") if isinstance(payload, dict) else None
            raise StateError(str(error or "Lambda.Unknown"), str(result.get("Payload", "")))
        return {**result, "Payload": payload}

    def _start_glue(self, integration: Integration, given: dict[str, Json], context: ActivityContext) -> Json:
        arguments = given.get("Arguments") or {}
        if not isinstance(arguments, dict):
            raise runtime_error("The value for the field 'Arguments' of glue:startJobRun must be an OBJECT")
        mark = call_token(context)
        if context.attempt > 1 and (found := self._marked_run(integration, given.get("JobName"), mark)) is not None:
            return {"JobRunId": found}
        return self.request(integration, {**given, "Arguments": {**arguments, GLUE_MARK: mark}}, context)

    def _marked_run(self, integration: Integration, job: Json, mark: str) -> str | None:
        """Return the run that an earlier attempt started, if it is among the latest."""
        listing = msgspec.structs.replace(integration, action="getJobRuns")
        runs = self.request(listing, {"JobName": job, "MaxResults": _GLUE_RUNS_SEARCHED}).get("JobRuns", [])
        return next((each["Id"] for each in runs if (each.get("Arguments") or {}).get(GLUE_MARK) == mark), None)


def call_token(context: ActivityContext) -> str:
    """Return the client token of a call: the same for each attempt at the activity."""
    return str(uuid.uuid5(_NAMESPACE, context.activity_id))


def _tokens(operation: OperationModel, request: Mapping[str, Any], context: ActivityContext) -> dict[str, str]:
    """Return the client tokens that a request has no value for."""
    token = call_token(context)
    tokens = {name: token for name in operation.idempotent_members if name not in request}
    target = str(request.get("QueueUrl") or request.get("TopicArn") or "")
    has_deduplication = "MessageDeduplicationId" in pascal_members(operation.input_shape)
    if target.endswith(_FIFO) and has_deduplication and "MessageDeduplicationId" not in request:
        tokens["MessageDeduplicationId"] = token
    return tokens


def _method(client: Any, operation: str) -> Any:  # noqa: ANN401 - of boto3
    method = next(name for name, each in client.meta.method_to_api_mapping.items() if each == operation)
    return getattr(client, method)


def _json_or_text(text: str) -> Json:
    try:
        return msgspec.json.decode(text) if text else ""
    except msgspec.DecodeError:
        return text
