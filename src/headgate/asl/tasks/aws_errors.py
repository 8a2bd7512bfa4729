"""AWS errors: the names that Step Functions gives to the errors of AWS services, and their causes.

SDK integrations use the exception classes of the Java SDK 2: `S3.NoSuchKeyException`, and `S3.S3Exception` for an error
that the service does not declare. Optimised integrations use those of the Java SDK 1.
"""

from __future__ import annotations

import re
from typing import Any, Final

from headgate.asl.errors import StateError
from headgate.asl.tasks.integrations import Integration

# The parts of a service id: words, and acronyms before a capital.
_WORDS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z0-9]+")
# Services that answer a HEAD request without a body have no error code.
_HEAD_CODES: Final = {("HeadObject", "404"): "NoSuchKey", ("HeadBucket", "404"): "NoSuchBucket"}

_OVERLOADED: Final = frozenset({"RequestLimitExceeded", "SlowDown", "TooManyRequestsException"})


def error_prefix(integration: Integration, service_id: str) -> str:
    """Return the prefix of the error names of a service, such as DynamoDb."""
    declared = integration.declared_error_names
    return declared[0] if declared is not None else pascal_service(service_id)


def pascal_service(service_id: str) -> str:
    """Return the name of a service in the Java SDK 2: DynamoDB is DynamoDb, RDS Data is RdsData."""
    return "".join(word[:1].upper() + word[1:].lower() for word in _WORDS.findall(service_id))


def answered_error(integration: Integration, service_model: Any, error: Any) -> StateError:  # noqa: ANN401 - of botocore
    """Return the error of a Task for a response of AWS."""
    response: dict[str, Any] = error.response
    metadata = response.get("ResponseMetadata", {})
    code, message = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
    status, request_id = metadata.get("HTTPStatusCode", 0), metadata.get("RequestId", "")
    prefix = error_prefix(integration, service_model.service_id)
    code = _HEAD_CODES.get((integration.operation, code), code)
    # An error that the service declares has a class of its own, except after a HEAD request.
    shape = service_model.shape_for_error_code(code)
    modelled = type(error).__name__ if type(error).__name__ != "ClientError" else None if shape is None else shape.name
    declared = integration.declared_error_names
    if modelled is not None:
        name = exception_name(modelled)
    else:
        name = f"{prefix}Exception" if declared is None else declared[1]
    if declared is None:
        cause = f"{message} (Service: {prefix}, Status Code: {status}, Request ID: {request_id})"
    else:
        detail = f"Status Code: {status}; Error Code: {code}; Request ID: {request_id}; Proxy: null"
        cause = f"{message} (Service: {declared[1].removesuffix('Exception')}; {detail})"
    return StateError(f"{prefix}.{name}", cause)


def is_passing(error: Any) -> bool:  # noqa: ANN401 - of botocore
    """Whether a response says that the service is overloaded or broken, and nothing about the request."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(error.response["Error"].get("Code", ""))
    return status >= 500 or status == 429 or "Throttl" in code or code in _OVERLOADED


def exception_name(shape_name: str) -> str:
    """Return the exception class of an error: NoSuchKey is NoSuchKeyException, ClusterNotFoundFault is …Exception."""
    if shape_name.endswith("Exception"):
        return shape_name
    return f"{shape_name.removesuffix('Fault')}Exception"


def client_error(integration: Integration, service_id: str, error: Exception) -> StateError:
    """Return the error of a Task for a call without a response."""
    return StateError(
        f"{error_prefix(integration, service_id)}.SdkClientException", " ".join(str(error).split())[:1000]
    )
