"""Task resources: checks the Resource of a Task for its target.

Here a Task calls functions, activities, machines, fan-outs and some services; on AWS it calls what its ARN names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from headgate.asl.compile.problems import ProblemCode, SourceLocation, listed
from headgate.asl.compile.severities import Target
from headgate.asl.expressions.jsonata import is_expression
from headgate.asl.expressions.scope import Json
from headgate.asl.model.substitution import replace_unresolved, unresolved
from headgate.asl.tasks.actions import known_actions, normalized_call
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
_LAMBDA: Final = re.compile(
    rf"arn:{_PARTITION}:lambda:[^:]*:[^:]*:function:[A-Za-z0-9_.-]+(?::(?:\$LATEST|[A-Za-z0-9_-]+))?"
    r"(?:\.waitForTaskToken)?"
)
_ACTIVITY: Final = re.compile(rf"arn:{_PARTITION}:states:[^:]*:[^:]*:activity:[A-Za-z0-9_.-]+")


def check_resource(location: SourceLocation, resource: str, parameters: Json) -> None:
    """Report a Resource that the target cannot call with these Parameters or Arguments."""
    constants, is_complete = constant_parameters(parameters)
    if location.target is Target.AWS:
        if _is_for_aws(location, resource) and location.tasks is not None:
            try:
                reason = location.tasks.refusal(resource, constants, is_complete=is_complete)
            except ValueError as error:
                # A form of ARN that is unknown here.
                reason = f"{error}; map it in a resource map (--resources FILE)"
            if reason is not None:
                _report(location.report_only_aws, ProblemCode.ONLY_ON_AWS, reason)
        return
    try:
        if location.tasks is None:
            _check_callable(location, target_of(resource))
        elif (reason := location.tasks.refusal(resource, constants, is_complete=is_complete)) is not None:
            _report(location.report, ProblemCode.BAD_RESOURCE, reason)
    except ValueError as error:
        location.report(ProblemCode.BAD_RESOURCE, str(error), f"write {RESOURCES}")


def constant_parameters(parameters: Json) -> tuple[dict[str, Json], bool]:
    """Return the parameters that a definition states as they are, and whether there are no others."""
    if not isinstance(parameters, dict):
        return {}, False
    constants = {name: value for name, value in parameters.items() if _is_constant({name: value})}
    return constants, len(constants) == len(parameters)


def _is_constant(value: Json) -> bool:
    """Whether a value has no expression and no placeholder in it."""
    if isinstance(value, dict):
        return all(not name.endswith(".$") and _is_constant(member) for name, member in value.items())
    if isinstance(value, list):
        return all(map(_is_constant, value))
    return not isinstance(value, str) or not (is_expression(value) or unresolved(value))


def _report(report: Callable[[ProblemCode, str, str], None], code: ProblemCode, reason: str) -> None:
    fact, _, remedy = reason.partition("; ")
    report(code, fact, remedy)


def _is_for_aws(location: SourceLocation, resource: str) -> bool:
    """Whether Step Functions can call a resource; report why not."""
    plain = replace_unresolved(resource, _ANY)
    if plain == _ANY or _LAMBDA.fullmatch(plain) or _ACTIVITY.fullmatch(plain):
        return True
    found = _INTEGRATION.fullmatch(plain)
    if found is None:
        location.report(ProblemCode.BAD_RESOURCE, f"Step Functions cannot call {resource!r}", f"write {_ON_AWS}")
        return False
    return _check_integration(location, found["service"], found["action"], WaitMode(found["wait"] or ""))


def _check_integration(location: SourceLocation, service: str, action: str, wait: WaitMode) -> bool:
    """Whether AWS has an integration that waits like this; report why not."""
    integration = find_integration(service, action)
    if integration is None:
        fact = f"Step Functions has no integration {service}:{action}"
        allowed = f"write {_ON_AWS}; an action of the SDK has aws-sdk: before it"
        location.report(ProblemCode.BAD_RESOURCE, fact, allowed)
        return False
    if wait not in integration.waits:
        waits = listed(sorted(each.value for each in integration.waits if each.value))
        allowed = f"leave it out{f', or write {waits}' if waits else ''}"
        location.report(ProblemCode.BAD_RESOURCE, f"{integration.name} has no {wait.value}", allowed)
        return False
    return True


def _check_callable(location: SourceLocation, target: TaskTarget) -> None:
    """Report a service action that neither Headgate nor AWS has."""
    service, action, _ = normalized_call(target.name, target.action)
    is_implemented = action in known_actions().get(service, ()) and target.wait is not WaitMode.JOB
    if target.callee is Callee.SERVICE and not is_implemented:
        _check_integration(location, target.name, target.action, target.wait)


def check_action(location: SourceLocation, value: Json, names: tuple[str, ...]) -> None:
    """Report a Resource that is not the ARN of one of these actions."""
    plain = replace_unresolved(value, "aws") if isinstance(value, str) else ""
    if not plain.startswith("arn:aws") or not plain.endswith(tuple(f":states:::{name}" for name in names)):
        arns = listed([f"arn:aws:states:::{name}" for name in names])
        location.report(ProblemCode.BAD_RESOURCE, f"{value!r} cannot be called here", f"write {arns}")
