"""AWS clients of triggers: created on first use, with errors translated to failure categories.

boto3 is imported with the first client, so that processes without AWS never load it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from headgate.errors import SettingsError
from headgate.triggers.contract import FailureCategory, TriggerFailedError, shown

if TYPE_CHECKING:
    import boto3

CONNECT_SECONDS: Final = 10.0
READ_SECONDS: Final = 60.0
TRIES: Final = 3

# Temporary refusals that say nothing about the request.
_PASSING: Final = frozenset(
    {
        "ConcurrentRunsExceededException",
        "ConcurrentModificationException",
        "EC2ThrottledException",
        "ENILimitReachedException",
        "ExecutionLimitExceeded",
        "ExpiredToken",
        "ExpiredTokenException",
        "InternalError",
        "InternalServerException",
        "InternalServiceException",
        "LimitExceededException",
        "OperationTimeoutException",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "ResourceConflictException",
        "ResourceNotReadyException",
        "ResourceNumberLimitExceededException",
        "ServiceException",
        "ServiceQuotaExceededException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)


class AwsClients:
    """Clients of one account. Safe to use from many threads."""

    def __init__(
        self, *, region: str | None = None, endpoint_url: str | None = None, session: boto3.Session | None = None
    ) -> None:
        self._region = region
        self._endpoint_url = endpoint_url
        self._session = session
        self._clients: dict[tuple[str, str | None, float, int], Any] = {}
        self._lock = threading.Lock()

    def client(
        self, service: str, *, region: str | None = None, read_seconds: float = READ_SECONDS, tries: int = TRIES
    ) -> Any:  # noqa: ANN401 - each service has a class of its own
        """Return the client of a service. Raises `SettingsError` if boto3 is missing or no region is set."""
        region = region or self._region
        which = (service, region, read_seconds, tries)
        with self._lock:
            if which not in self._clients:
                self._clients[which] = self._made(service, region, read_seconds, tries)
            return self._clients[which]

    def _made(self, service: str, region: str | None, read_seconds: float, tries: int) -> Any:  # noqa: ANN401
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import NoRegionError
        except ModuleNotFoundError as exc:
            if exc.name not in ("boto3", "botocore"):
                raise
            raise SettingsError(
                f"{exc.name} is not installed, and triggers of AWS need it; run: pip install 'headgate[aws]'"
            ) from exc
        if self._session is None:
            self._session = boto3.Session(region_name=self._region)
        config = Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_seconds,
            retries={"mode": "standard", "total_max_attempts": tries},
        )
        make = cast("Any", self._session).client
        try:
            return make(service, region_name=region, endpoint_url=self._endpoint_url, config=config)
        except NoRegionError as exc:
            raise SettingsError("store.aws_region: triggers of AWS need a region; set it, or `region` there") from exc

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()


class AwsTrigger:
    """A trigger that calls AWS. Its config holds no secrets, unless it names them."""

    secret_fields: ClassVar[frozenset[str]] = frozenset()
    is_local: ClassVar[bool] = False

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients


@contextmanager
def aws_call(what: str) -> Iterator[None]:
    """Raise AWS errors within the block as `TriggerFailedError`, with their category."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as exc:
        raise TriggerFailedError(f"{what}: {error_code(exc)}: {_message(exc)}", _category(exc)) from exc
    except BotoCoreError as exc:
        raise TriggerFailedError(f"{what}: {shown(str(exc))}", _category_without_answer(exc)) from exc


def error_code(error: Exception) -> str:
    """Return the code of an AWS error, or an empty string."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _message(error: Exception) -> str:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    return shown(str(response.get("Error", {}).get("Message", "")))


def _category(error: Exception) -> FailureCategory:
    response: dict[str, Any] = getattr(error, "response", None) or {}
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status >= 500 or status == 429 or error_code(error) in _PASSING:
        return FailureCategory.TRANSIENT
    return FailureCategory.PERMANENT


def _category_without_answer(error: Exception) -> FailureCategory:
    from botocore.exceptions import (
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
        ProfileNotFound,
        ReadTimeoutError,
    )

    if isinstance(error, ReadTimeoutError):
        return FailureCategory.TIMEOUT
    if isinstance(error, ParamValidationError | NoCredentialsError | PartialCredentialsError | ProfileNotFound):
        return FailureCategory.PERMANENT
    return FailureCategory.TRANSIENT


def answered(value: object, what: str) -> str:
    """Return an id from a response. Raises `TriggerFailedError` if it is missing."""
    if not isinstance(value, str) or not value:
        raise TriggerFailedError(f"{what}: answered without an id", FailureCategory.TRANSIENT)
    return value
