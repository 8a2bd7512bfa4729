"""AWS calls of the doctor: one that is refused becomes a fact, and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from headgate.deployment.doctor.facts import CallFailure
from headgate.errors import StoreIOError
from headgate.store.resilience.error_policy import NOT_ALLOWED, codes_of

Answer = dict[str, Any]
_REFUSED: Final = codes_of(NOT_ALLOWED) | {"AuthorizationError", "UnauthorizedOperation", "AuthorizationErrorException"}
_ABSENT: Final = frozenset(
    {
        "ResourceNotFoundException",
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "ResourceNotFound",
    }
)


class DoctorCalls:
    """Makes calls and collects their failures."""

    def __init__(self) -> None:
        self.failures: list[CallFailure] = []

    def call(self, action: str, about: str, method: Callable[..., Any], **request: object) -> Answer | None:
        """Return the answer, or None after recording a failure. `action` is the IAM action of the call.

        Raises `StoreIOError` if AWS cannot be reached or there are no credentials.
        """
        try:
            return dict(method(**request))
        except ClientError as exc:
            self._record(action, about, exc)
            return None
        except BotoCoreError as exc:
            raise StoreIOError(f"{action}: {exc}; check the region, the credentials and the network") from exc

    def find(self, action: str, about: str, method: Callable[..., Any], **request: object) -> tuple[bool, Answer]:
        """Return whether the resource is absent, and the answer. An absent resource is no failure.

        The answer is empty if the resource is absent or the call failed.
        """
        try:
            return False, dict(method(**request))
        except ClientError as exc:
            if _code(exc) in _ABSENT:
                return True, {}
            self._record(action, about, exc)
            return False, {}
        except BotoCoreError as exc:
            raise StoreIOError(f"{action}: {exc}; check the region, the credentials and the network") from exc

    def pages(self, action: str, about: str, client: Any, operation: str, **request: object) -> Iterator[Answer] | None:  # noqa: ANN401 - any client
        """Return all pages of a list, or None after recording a failure."""
        try:
            return iter([dict(page) for page in client.get_paginator(operation).paginate(**request)])
        except ClientError as exc:
            self._record(action, about, exc)
            return None
        except BotoCoreError as exc:
            raise StoreIOError(f"{action}: {exc}; check the region, the credentials and the network") from exc

    def _record(self, action: str, about: str, exc: ClientError) -> None:
        code = _code(exc)
        message = exc.response.get("Error", {}).get("Message", "")
        self.failures.append(CallFailure(action, about, code, message, is_permission=code in _REFUSED))


def _code(exc: ClientError) -> str:
    return exc.response.get("Error", {}).get("Code", "")
