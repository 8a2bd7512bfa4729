"""Task resources: checks the Resource of a Task for its target.

Here a Task calls functions, activities, machines, fan-outs and some services; on AWS it calls what its ARN names.
"""

from __future__ import annotations

import re
from typing import Final

from headgate.asl.compile.problems import ProblemCode, SourceLocation, Target, listed
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import replace_unresolved
from headgate.asl.tasks.actions import INVOKE, known_actions, normalized_call
from headgate.asl.tasks.integrations import find_integration
from headgate.asl.tasks.resources import RESOURCES, Callee, TaskTarget, WaitMode, target_of

_ON_AWS: Final = (
    "the ARN of a Lambda function or of an activity, or arn:aws:states:::service:action, with .sync or "
    ".waitForTaskToken where the service has it"
)
# Stands for a part of an ARN that a deployment fills in.
_ANY: Final = "any"
_PARTITION: Final = rf"(?:aws[a-z-]*|{_ANY})"
# After the partition comes the service; a region and an account are allowed and mean nothing.
_INTEGRATION: Final = re.compile(
    rf"arn:{_PARTITION}:states:[^:]*:[^:]*:(?P<service>(?:aws-sdk:)?[a-z0-9-]+):(?P<action>[A-Za-z0-9]+)"
    r"(?P<wait>\.sync(?::2)?|\.waitForTaskToken)?"
)
_LAMBDA: Final = re.compile(rf"arn:{_PARTITION}:lambda:[^:]*:[^:]*:function:\S+")
_ACTIVITY: Final = re.compile(rf"arn:{_PARTITION}:states:[^:]*:[^:]*:activity:\S+")


def check_resource(location: SourceLocation, value: str) -> None:
    """Report a Resource that the target cannot call."""
    if location.target is Target.AWS:
        _check_for_aws(location, value)
        return
    try:
        target = target_of(value)
    except ValueError as error:
        location.report(ProblemCode.BAD_RESOURCE, str(error), f"write {RESOURCES}")
    else:
        if (fact := _not_here(target)) is not None:
            location.report(ProblemCode.BAD_RESOURCE, fact, _alternatives(target))


def _check_for_aws(location: SourceLocation, value: str) -> None:
    plain = replace_unresolved(value, _ANY)
    if plain == _ANY or _LAMBDA.fullmatch(plain) or _ACTIVITY.fullmatch(plain):
        return
    if (found := _INTEGRATION.fullmatch(plain)) is None:
        location.report(ProblemCode.BAD_RESOURCE, f"Step Functions cannot call {value!r}", f"write {_ON_AWS}")
        return
    integration, wait = find_integration(found["service"], found["action"]), WaitMode(found["wait"] or "")
    if integration is None:
        fact = f"Step Functions has no integration {found['service']}:{found['action']}"
        location.report(ProblemCode.BAD_RESOURCE, fact, f"write {_ON_AWS}; an action of the SDK has aws-sdk: before it")
        return
    if wait not in integration.waits:
        waits = listed(sorted(each.value for each in integration.waits if each.value))
        allowed = f"leave it out{f', or write {waits}' if waits else ''}"
        location.report(ProblemCode.BAD_RESOURCE, f"{integration.name} has no {wait.value}", allowed)
        return
    if (reason := _not_here(target_of(value))) is not None:
        location.report_only_aws(ProblemCode.ONLY_ON_AWS, reason, "AWS can run it")


def _not_here(target: TaskTarget) -> str | None:
    """Return why a Task cannot call a target here; None if it can."""
    if target.callee is not Callee.SERVICE or (target.name, target.action) == INVOKE:
        return None
    service, action, _ = normalized_call(target.name, target.action)
    if action in known_actions().get(service, ()) and target.wait is not WaitMode.JOB:
        return None
    return f"no Task can call {target.name}:{target.action} here"


def _alternatives(target: TaskTarget) -> str:
    known = known_actions()
    service, _, _ = normalized_call(target.name, target.action)
    near = {service: known[service]} if service in known else known
    names = [f"{name}:{each}" for name, actions in near.items() for each in actions]
    return f"write arn:aws:states::: with {listed(names)}, or call a function that does it"


def check_action(location: SourceLocation, value: Json, names: tuple[str, ...]) -> None:
    """Report a Resource that is not the ARN of one of these actions."""
    plain = replace_unresolved(value, "aws") if isinstance(value, str) else ""
    if not plain.startswith("arn:aws") or not plain.endswith(tuple(f":states:::{name}" for name in names)):
        arns = listed([f"arn:aws:states:::{name}" for name in names])
        location.report(ProblemCode.BAD_RESOURCE, f"{value!r} cannot be called here", f"write {arns}")
