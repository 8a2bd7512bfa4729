"""Lambda trigger: invokes a function, which is the job itself, or only starts it (Event).

The API has no idempotency token: the function receives our key in the client context, and must detect repetitions
itself. The client does not retry, since it cannot know whether the first invocation ran.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from headgate import typed_decode
from headgate.durable.model.duration import Seconds
from headgate.triggers.aws.clients import AwsTrigger, aws_call
from headgate.triggers.config import Config, between, check_name
from headgate.triggers.contract import (
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    completed,
    running,
    shown,
)
from headgate.triggers.failure_patterns import category_of

# The longest run time of a function, and a margin for the network.
_TIMEOUT_SECONDS: Final = 905.0
_PAYLOAD_CHARS_MAX: Final = 65_536


class LambdaConfig(Config, frozen=True):
    """A function, by name or ARN. `payload` is any JSON; by default, a description of the run."""

    function: str
    payload: Any = None
    invocation: Literal["RequestResponse", "Event"] = "RequestResponse"
    qualifier: str | None = None
    region: str | None = None
    timeout: Seconds = Seconds(_TIMEOUT_SECONDS)

    def __post_init__(self) -> None:
        check_name("function", self.function)
        between("timeout", self.timeout, 1, _TIMEOUT_SECONDS)


class LambdaKind(AwsTrigger):
    """Invocations of Lambda functions."""

    name: ClassVar[str] = "lambda"
    config_type: ClassVar[type[LambdaConfig]] = LambdaConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset({"payload"})

    def start(self, job: Job[LambdaConfig]) -> Started:
        config = job.config
        what = f"function {config.function}"
        client = self._clients.client("lambda", region=config.region, read_seconds=config.timeout, tries=1)
        options: dict[str, str] = {} if config.qualifier is None else {"Qualifier": config.qualifier}
        if config.invocation == "RequestResponse":
            # The client context does not reach asynchronous invocations.
            options["ClientContext"] = _context(job)
        with aws_call(what):
            answer = client.invoke(
                FunctionName=config.function, InvocationType=config.invocation, Payload=_payload(job), **options
            )
            detail = answer["Payload"].read(_PAYLOAD_CHARS_MAX).decode(errors="replace")
        if answer.get("FunctionError"):
            raise failure_of(what, detail)
        request_id = str(answer.get("ResponseMetadata", {}).get("RequestId") or "")
        if job.order.callback_url is not None:
            return running(job.key, request_id=request_id)
        return completed(job.key, request_id=request_id)

    def poll(self, job: Job[LambdaConfig], metadata: Mapping[str, str]) -> PollResult:
        del metadata
        if job.order.callback_url is not None:
            return PollResult(JobState.RUNNING, reason="it reports its end itself")
        return PollResult(JobState.SUCCEEDED, reason="it had ended when the invocation was answered")

    def cancel(self, job: Job[LambdaConfig], metadata: Mapping[str, str]) -> None:
        """Do nothing: AWS cannot cancel an invocation."""
        del job, metadata


def _payload(job: Job[LambdaConfig]) -> bytes:
    order = job.order
    payload = job.config.payload
    if payload is None:
        payload = {"pipeline": order.pipeline, "schedule": order.schedule, "date": order.date, "run_id": order.run_id}
        if order.callback_url is not None:
            payload |= {"callback_url": order.callback_url, "callback_token": order.callback_token}
    return msgspec.json.encode(payload)


def _context(job: Job[LambdaConfig]) -> str:
    context = {"custom": {"headgate_run_id": job.order.run_id, "headgate_key": job.key}}
    return base64.b64encode(msgspec.json.encode(context)).decode()


def failure_of(what: str, detail: str) -> TriggerFailedError:
    """Return the error of a failed function, from the payload of its response."""
    try:
        answer = typed_decode.from_json(detail.encode(), dict[str, Any])
    except msgspec.DecodeError:
        answer = {}
    error, message = str(answer.get("errorType") or ""), str(answer.get("errorMessage") or "")
    text = ": ".join(part for part in (error, message) if part) or detail
    return TriggerFailedError(f"{what}: it failed: {shown(text)}", category_of(text), was_started=True)
