"""Functions, event source mappings, queues and state machines of a deployment, found by the name that begins theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from headgate.deployment.doctor.calls import DoctorCalls
from headgate.deployment.doctor.facts import FunctionFacts, MachineFacts, MappingFacts, QueueFacts
from headgate.deployment.doctor.metrics import Metric, Metrics, Reduction

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_sqs import SQSClient

_QUEUE_ATTRIBUTES: Final = (
    "QueueArn",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "VisibilityTimeout",
    "RedrivePolicy",
)
# The queues of what functions, schedules and streams have given up.
_FAILED: Final = "-failed-"


class ServiceReader:
    """Reads what a deployment with the variable `name` has besides its tables."""

    def __init__(
        self,
        name: str,
        calls: DoctorCalls,
        metrics: Metrics,
        *,
        functions: LambdaClient,
        queues: SQSClient,
        machines: Any,  # noqa: ANN401 - the client of Step Functions, of which there are no types
    ) -> None:
        self._prefix = f"{name}-"
        self._calls = calls
        self._metrics = metrics
        self._functions = functions
        self._queues = queues
        self._machines = machines

    def functions(self) -> tuple[FunctionFacts, ...] | None:
        """Return the functions with their metrics."""
        pages = self._calls.pages("lambda:ListFunctions", "the account", self._functions, "list_functions")
        if pages is None:
            return None
        found = [
            self._state(each)
            for page in pages
            for each in page["Functions"]
            if each["FunctionName"].startswith(self._prefix)
        ]
        numbers = self._metrics.read(
            "metrics of the functions", [metric for each in found for metric in _function_metrics(each.name)]
        )
        if numbers is None:
            return tuple(found)
        return tuple(_with_numbers(each, numbers) for each in found)

    def _state(self, listed: Any) -> FunctionFacts:  # noqa: ANN401 - a function as listed
        name = listed["FunctionName"]
        # The list does not show states.
        answer = self._calls.call(
            "lambda:GetFunctionConfiguration",
            f"function {name}",
            self._functions.get_function_configuration,
            FunctionName=name,
        )
        state = answer or {}
        return FunctionFacts(
            name=name,
            timeout_seconds=listed.get("Timeout", 0),
            state=state.get("State", ""),
            state_reason=state.get("StateReason", "") or state.get("LastUpdateStatusReason", ""),
            update_status=state.get("LastUpdateStatus", ""),
        )

    def mappings(self) -> tuple[MappingFacts, ...] | None:
        """Return the event source mappings of the functions."""
        pages = self._calls.pages(
            "lambda:ListEventSourceMappings", "the account", self._functions, "list_event_source_mappings"
        )
        if pages is None:
            return None
        found = [
            MappingFacts(
                each["UUID"],
                _function_name(each["FunctionArn"]),
                _source_name(each.get("EventSourceArn", "")),
                each.get("State", ""),
                each.get("LastProcessingResult", "") or "",
            )
            for page in pages
            for each in page["EventSourceMappings"]
        ]
        return tuple(each for each in found if each.function.startswith(self._prefix))

    def queues(self, mappings: Iterable[MappingFacts] | None) -> tuple[QueueFacts, ...] | None:
        """Return the queues. `mappings` says which have a consumer."""
        pages = self._calls.pages(
            "sqs:ListQueues", "the account", self._queues, "list_queues", QueueNamePrefix=self._prefix
        )
        if pages is None:
            return None
        found: list[QueueFacts] = []
        targets: set[str] = set()
        for url in [url for page in pages for url in page.get("QueueUrls", [])]:
            answer = self._calls.call(
                "sqs:GetQueueAttributes",
                f"queue {url}",
                self._queues.get_queue_attributes,
                QueueUrl=url,
                AttributeNames=list(_QUEUE_ATTRIBUTES),
            )
            if answer is None:
                continue
            attributes = answer["Attributes"]
            redrive = msgspec.json.decode(attributes.get("RedrivePolicy") or "{}")
            targets.add(redrive.get("deadLetterTargetArn", ""))
            found.append(_queue(url, attributes))
        fed = None if mappings is None else {mapping.source for mapping in mappings}
        named = [
            replace(
                each,
                is_dead_letters=each.arn in targets or _FAILED in each.name,
                has_consumer=None if fed is None else each.name in fed,
            )
            for each in found
        ]
        ages = self._metrics.read("ages of the oldest messages", map(_age, named))
        if ages is None:
            return tuple(named)
        return tuple(replace(each, oldest_seconds=ages[_age(each)]) for each in named)

    def machines(self) -> tuple[MachineFacts, ...] | None:
        """Return the state machines with the ends of their executions."""
        pages = self._calls.pages("states:ListStateMachines", "the account", self._machines, "list_state_machines")
        if pages is None:
            return None
        listed = [
            (each["name"], each["stateMachineArn"])
            for page in pages
            for each in page["stateMachines"]
            if each["name"].startswith(self._prefix)
        ]
        found = [self._machine(name, arn) for name, arn in listed]
        numbers = self._metrics.read(
            "metrics of the state machines", [metric for _, arn in listed for metric in _machine_metrics(arn)]
        )
        if numbers is None:
            return tuple(found)
        return tuple(
            replace(
                each,
                failed=round(numbers[_of_machine(arn, "ExecutionsFailed")]),
                timed_out=round(numbers[_of_machine(arn, "ExecutionsTimedOut")]),
                aborted=round(numbers[_of_machine(arn, "ExecutionsAborted")]),
                throttled=round(numbers[_of_machine(arn, "ExecutionThrottled")]),
            )
            for each, (_, arn) in zip(found, listed, strict=True)
        )

    def _machine(self, name: str, arn: str) -> MachineFacts:
        answer = self._calls.call(
            "states:DescribeStateMachine",
            f"state machine {name}",
            self._machines.describe_state_machine,
            stateMachineArn=arn,
        )
        return MachineFacts(name=name, arn=arn, status=(answer or {}).get("status", ""))


def _function_name(arn: str) -> str:
    """Return the function that an ARN names, with or without its alias."""
    return arn.split(":")[6]


def _source_name(arn: str) -> str:
    """Return the queue or the table of an event source."""
    if ":sqs:" in arn:
        return arn.rpartition(":")[2]
    return arn.partition(":table/")[2].partition("/")[0] or arn


def _queue(url: str, attributes: Any) -> QueueFacts:  # noqa: ANN401 - attributes by name
    return QueueFacts(
        name=attributes["QueueArn"].rpartition(":")[2],
        url=url,
        arn=attributes["QueueArn"],
        waiting=int(attributes.get("ApproximateNumberOfMessages", 0)),
        in_flight=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
        visibility_seconds=int(attributes.get("VisibilityTimeout", 30)),
    )


def _age(queue: QueueFacts) -> Metric:
    dimensions = (("QueueName", queue.name),)
    return Metric("AWS/SQS", "ApproximateAgeOfOldestMessage", dimensions, Reduction.LATEST)


def _of_function(name: str, metric: str, reduction: Reduction = Reduction.TOTAL) -> Metric:
    return Metric("AWS/Lambda", metric, (("FunctionName", name),), reduction)


def _function_metrics(name: str) -> list[Metric]:
    return [
        *(_of_function(name, metric) for metric in ("Invocations", "Errors", "Throttles", "DeadLetterErrors")),
        _of_function(name, "Duration", Reduction.MAXIMUM),
        _of_function(name, "IteratorAge", Reduction.LATEST),
    ]


def _with_numbers(function: FunctionFacts, numbers: dict[Metric, float]) -> FunctionFacts:
    name = function.name
    return replace(
        function,
        invocations=round(numbers[_of_function(name, "Invocations")]),
        errors=round(numbers[_of_function(name, "Errors")]),
        throttles=round(numbers[_of_function(name, "Throttles")]),
        dead_letter_errors=round(numbers[_of_function(name, "DeadLetterErrors")]),
        longest_ms=numbers[_of_function(name, "Duration", Reduction.MAXIMUM)],
        iterator_age_ms=numbers[_of_function(name, "IteratorAge", Reduction.LATEST)],
    )


def _of_machine(arn: str, metric: str) -> Metric:
    return Metric("AWS/States", metric, (("StateMachineArn", arn),))


def _machine_metrics(arn: str) -> list[Metric]:
    names = ("ExecutionsFailed", "ExecutionsTimedOut", "ExecutionsAborted", "ExecutionThrottled")
    return [_of_machine(arn, name) for name in names]
