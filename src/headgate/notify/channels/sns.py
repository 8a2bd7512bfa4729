"""SNS channel, and secrets of AWS Secrets Manager. boto3 is loaded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headgate.durable.model.failures import NonRetryable
from headgate.errors import SettingsError, ThrottledError, TransientError
from headgate.notify.enums import AlertAction
from headgate.notify.messages import Message, line

TIMEOUT_SECONDS: Final = 10
_SUBJECT_MAX: Final = 100
_MESSAGE_BYTES_MAX: Final = 250_000
_THROTTLES: Final = frozenset({"Throttling", "ThrottlingException", "Throttled", "KMSThrottling"})
_PERMANENT: Final = frozenset(
    {"NotFound", "NotFoundException", "AuthorizationError", "AuthorizationErrorException", "InvalidParameter",
     "InvalidParameterException", "InvalidClientTokenId", "AccessDenied", "KMSAccessDenied", "KMSDisabled",
     "KMSNotFound", "ResourceNotFoundException", "AccessDeniedException"}
)  # fmt: skip


class SnsChannel:
    """Publishes to one topic: JSON, with severity, event and pipeline as filterable attributes."""

    actions = frozenset(AlertAction)

    def __init__(self, name: str, topic_arn: str, client: Any) -> None:  # noqa: ANN401 - boto3 has no types here
        self.name = name
        self._topic_arn = topic_arn
        self._client = client

    def send(self, message: Message) -> str:
        """Publish the message, and return its SNS id. Raises `NonRetryable` and `TransientError`."""
        record = msgspec.to_builtins(message)
        if len(msgspec.json.encode(record)) > _MESSAGE_BYTES_MAX:
            record["detail"] = {"cut": True}
        request: dict[str, Any] = {
            "TopicArn": self._topic_arn,
            # SNS accepts printable ASCII only.
            "Subject": line(
                f"{message.severity.upper()} {message.title}".encode("ascii", "replace").decode(), _SUBJECT_MAX - 2
            ).replace("…", "~"),
            "Message": msgspec.json.encode(record).decode(),
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value}
                for name, value in (
                    ("severity", message.severity.value),
                    ("event", message.event),
                    ("pipeline_id", message.pipeline_id),
                    ("action", message.action.value),
                )
            },
        }
        if self._topic_arn.endswith(".fifo"):
            request |= {"MessageGroupId": message.pipeline_id[:128], "MessageDeduplicationId": message.message_id[:128]}
        return str(call_aws(f"channel {self.name}", lambda: self._client.publish(**request))["MessageId"])


def call_aws(what: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Call AWS and translate its errors to `NonRetryable`, `ThrottledError` or `TransientError`."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except ClientError as exc:
        code = str(exc.response.get("Error", {}).get("Code", ""))
        if code in _THROTTLES:
            raise ThrottledError(f"{what}: AWS throttles calls ({code})") from exc
        if code in _PERMANENT:
            raise NonRetryable(f"{what}: AWS refused it with {code}; check its name and the permissions") from exc
        raise TransientError(f"{what}: AWS answered {code}") from exc
    except BotoCoreError as exc:
        raise TransientError(f"{what}: AWS cannot be reached: {exc}") from exc


def aws_client(service: str, *, region: str | None, endpoint_url: str | None) -> Any:  # noqa: ANN401 - as above
    """Return a client with credentials from the standard AWS sources. Sends nothing.

    Raises `SettingsError` if boto3 is not installed, or region or endpoint are invalid.
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as exc:
        raise SettingsError(f"{service}: boto3 is not installed; install headgate[aws]") from exc
    config = Config(
        connect_timeout=3, read_timeout=TIMEOUT_SECONDS, retries={"total_max_attempts": 2, "mode": "standard"}
    )
    try:
        session: Any = boto3.session.Session(region_name=region)
        return session.client(service, endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as exc:
        raise SettingsError(f"{service}: no client can be built: {exc}; check region and endpoint") from exc


def secret_fetch(*, region: str | None, endpoint_url: str | None) -> Callable[[str], str]:
    """Return a function that reads a secret of AWS Secrets Manager by name. Its errors contain no secret."""

    def fetch(name: str) -> str:
        client = aws_client("secretsmanager", region=region, endpoint_url=endpoint_url)
        try:
            answer = call_aws(f"secret {name}", lambda: client.get_secret_value(SecretId=name))
        except NonRetryable as exc:
            # Retried, since an operator may create the secret or grant access later.
            raise TransientError(str(exc)) from exc
        return str(answer.get("SecretString", ""))

    return fetch
