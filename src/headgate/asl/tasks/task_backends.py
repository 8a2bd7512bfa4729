"""Task backends: what makes the calls of Tasks outside of Headgate; `bootstrap` builds it from the settings."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.aws_calls import AwsCalls
from headgate.asl.tasks.http_calls import HttpCalls
from headgate.asl.tasks.resource_map import CommandTarget, ResourceMap
from headgate.asl.tasks.task_access import TaskAccess
from headgate.durable.sdk.activity_context import ActivityContext


class CommandRunner(Protocol):
    """Runs the commands of a resource map."""

    def run(self, target: CommandTarget, input: Json, context: ActivityContext) -> Json:
        """Run a command to its end and return its result. An attempt after a crash finds the running command again.

        Raises `StateError`.
        """


class TaskBackends(Struct, frozen=True):
    """The resource map and the allow-list of this process, and what makes the calls. By default nothing is allowed."""

    resources: ResourceMap = ResourceMap()
    access: TaskAccess = TaskAccess()
    aws: AwsCalls | None = None
    http: HttpCalls | None = None
    commands: CommandRunner | None = None
