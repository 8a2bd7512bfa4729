"""Service calls: decides where each call of an AWS service goes: to AWS, or to Headgate itself.

A rule of tasks.aws sends a call to AWS. Without one, Headgate implements DynamoDB on the tables of tasks.tables, and
SNS, SQS and EventBridge as events of its bus. Every other call is refused.
"""

from __future__ import annotations

import msgspec

from headgate.asl.errors import PERMISSIONS, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.actions import ACTIONS, CallParameters, normalized_call
from headgate.asl.tasks.activities import JobStep, ResourceCall, ServiceCall
from headgate.asl.tasks.aws_calls import AwsCalls
from headgate.asl.tasks.aws_jobs import AwsJobs
from headgate.asl.tasks.dynamodb import OPTIMISED, SDK, DynamodbCalls
from headgate.asl.tasks.integrations import Integration, find_integration, unknown_integration
from headgate.asl.tasks.messaging import BusCalls
from headgate.asl.tasks.task_backends import TaskBackends
from headgate.asl.tasks.user_tables import UserTables
from headgate.durable.bus.bus import Bus
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.store.port import Store


class ServiceCalls:
    """Makes the calls of Tasks that are no functions, machines or fan-outs. Safe to use from many threads."""

    def __init__(self, store: Store, bus: Bus, tables: UserTables, backends: TaskBackends) -> None:
        self._dynamodb = DynamodbCalls(store, tables)
        self._messages = BusCalls(bus)
        self._backends = backends

    def call(self, call: ServiceCall, context: ActivityContext) -> Json:
        """Make a call of an AWS service, or a step of a job, and return its result. Raises `StateError`."""
        integration = find_integration(call.service, call.action)
        aws = self._backends.aws
        if integration is not None and call.step is not JobStep.NONE:
            return self._job_step(integration, call, context)
        if integration is not None and integration.service == "http" and not integration.is_sdk:
            return self._invoke_http(integration, call)
        if integration is not None and aws is not None and aws.is_allowed(integration, call.parameters):
            return aws.call(integration, call.parameters, context)
        return self._own(integration, call, context)

    def call_mapped(self, call: ResourceCall, context: ActivityContext) -> Json:
        """Make the HTTP call or run the command that the resource map has for a resource. Raises `StateError`."""
        entry = self._backends.resources.find(call.resource, call.parameters)
        if entry is not None and entry.http_target is not None and self._backends.http is not None:
            return self._backends.http.send(entry.http_target, call.input, context)
        if entry is not None and entry.command_target is not None and self._backends.commands is not None:
            return self._backends.commands.run(entry.command_target, call.input, context)
        raise runtime_error(
            f"{call.resource}: the resource map of this worker has no HTTP call or command for it; start every worker "
            "with the same map"
        )

    def _job_step(self, integration: Integration, call: ServiceCall, context: ActivityContext) -> Json:
        jobs = AwsJobs(self._aws(integration, call.parameters))
        match call.step, call.job:
            case JobStep.POLL, job if job is not None:
                return msgspec.to_builtins(jobs.poll(integration, job))
            case JobStep.STOP, job if job is not None:
                jobs.stop(integration, job)
                return None
            case _:
                return msgspec.to_builtins(jobs.start(integration, call.parameters, context))

    def _aws(self, integration: Integration, parameters: Json) -> AwsCalls:
        if self._backends.aws is None:
            raise StateError(PERMISSIONS, self._backends.access.refusal(integration, parameters))
        return self._backends.aws

    def _invoke_http(self, integration: Integration, call: ServiceCall) -> Json:
        access, http = self._backends.access, self._backends.http
        if http is None or not access.allows(integration, call.parameters):
            raise StateError(PERMISSIONS, access.refusal(integration, call.parameters))
        return http.invoke(CallParameters(integration.name, call.parameters))

    def _own(self, integration: Integration | None, call: ServiceCall, context: ActivityContext) -> Json:
        service, action, is_sdk = normalized_call(call.service, call.action)
        if action not in ACTIONS.get(service, ()):
            if integration is not None:
                raise StateError(PERMISSIONS, self._backends.access.refusal(integration, call.parameters))
            raise runtime_error(unknown_integration(call.service, call.action))
        parameters = CallParameters(f"{service}:{action}", call.parameters)
        match service:
            case "sns":
                return self._messages.publish(parameters, context)
            case "sqs":
                return self._messages.send_message(parameters, context)
            case "events":
                return self._messages.put_events(parameters, context, raises=not is_sdk)
            case _:
                return self._dynamodb.call(action, parameters, context, SDK if is_sdk else OPTIMISED)
