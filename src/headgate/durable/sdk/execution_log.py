"""Execution log: lines that workflow and activity code writes to the log of its execution."""

from __future__ import annotations

from headgate.durable.replay.interpreter import running
from headgate.durable.sdk.activity_context import running_activity
from headgate.errors import WorkflowViolationError


def log(text: str, *, level: str = "INFO") -> None:
    """Write a line to the log of the execution, in a workflow or in an activity.

    A replay of the workflow writes none. The lines of an activity are shown once its attempt has ended.
    """
    interpreter = running()
    if interpreter is not None:
        interpreter.note(level.upper(), text)
        return
    context = running_activity()
    if context is None:
        raise WorkflowViolationError(
            "hg.log() belongs into a workflow or an activity, and none is running here; elsewhere use logging"
        )
    context.note(level.upper(), text)
