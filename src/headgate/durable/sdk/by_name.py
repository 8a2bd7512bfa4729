"""Calls by name: activities and workflows whose code is not at hand, such as those of another app."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, Unpack, overload

from headgate.durable.model import payload
from headgate.durable.model.duration import optional_seconds
from headgate.durable.model.history import ActivityOptions, Cancellation, ParentClose
from headgate.durable.model.names import check_name, check_not_built_in
from headgate.durable.model.retry import Retry
from headgate.durable.replay.interpreter import current
from headgate.durable.sdk.call_shapes import ActivityCallOptions, ChildCallOptions
from headgate.durable.sdk.definitions import (
    Child,
    ExecutionOptions,
    checked_cancellation,
    checked_options,
    new_child,
)

T = TypeVar("T")


@overload
def call_activity(
    name: str, input: object = None, *, returns: type[T], **options: Unpack[ActivityCallOptions]
) -> Awaitable[T]: ...


@overload
def call_activity(
    name: str, input: object = None, *, returns: object = ..., **options: Unpack[ActivityCallOptions]
) -> Awaitable[Any]: ...


def call_activity(
    name: str, input: object = None, *, returns: object = Any, **options: Unpack[ActivityCallOptions]
) -> Awaitable[Any]:
    """Call an activity by its name, in a workflow; any worker of the queue that has it runs it.

    `input` is the argument of an activity with one, or a mapping of several by name. The options are those of this
    call: the declaration of the activity is not known here. The result is decoded as `returns`.
    """
    interpreter = current("hg.call_activity()")
    _check_known("hg.call_activity()", options, ActivityCallOptions)
    check_not_built_in("activity", name)
    checked = ActivityOptions(
        queue=check_name("queue", options.get("queue", "default")),
        retry=options.get("retry") or Retry(),
        start_to_close=optional_seconds(options.get("timeout"), name="timeout"),
        schedule_to_start=optional_seconds(options.get("schedule_to_start"), name="schedule_to_start"),
        schedule_to_close=optional_seconds(options.get("schedule_to_close"), name="schedule_to_close"),
        heartbeat=optional_seconds(options.get("heartbeat"), name="heartbeat"),
        cancellation=checked_cancellation(f"activity {name}", options.get("cancellation", Cancellation.REQUEST)),
    )
    name = check_name("activity", name)
    raw = payload.encode(input, what=f"input of activity {name}")
    what = f"result of activity {name}"
    return interpreter.start_activity(name, raw, checked, lambda result: payload.decode(result, returns, what=what))


@overload
def start_child(
    workflow: str, input: object = None, *, returns: type[T], **options: Unpack[ChildCallOptions]
) -> Child[T]: ...


@overload
def start_child(
    workflow: str, input: object = None, *, returns: object = ..., **options: Unpack[ChildCallOptions]
) -> Child[Any]: ...


def start_child(
    workflow: str, input: object = None, *, returns: object = Any, **options: Unpack[ChildCallOptions]
) -> Child[Any]:
    """Start a child by the name of its workflow, in a workflow. Await it for its result, decoded as `returns`.

    `input` is the argument of a workflow with one, or a mapping of several by name. The child waits for a worker that
    has the workflow.
    """
    interpreter = current("hg.start_child()")
    _check_known("hg.start_child()", options, ChildCallOptions)
    check_not_built_in("workflow", workflow)
    name = check_name("workflow", workflow)
    checked = checked_options(
        ExecutionOptions(),
        name,
        id=options.get("id"),
        parent_close=options.get("parent_close", ParentClose.TERMINATE),
        cancellation=options.get("cancellation", Cancellation.REQUEST),
        timeout=options.get("timeout"),
        tags=options.get("tags"),
        retry=options.get("retry"),
    )
    raw = payload.encode(input, what=f"input of workflow {name}")
    what = f"result of workflow {name}"
    return new_child(interpreter, name, raw, checked, lambda result: payload.decode(result, returns, what=what))


def _check_known(call: str, options: Mapping[str, object], shape: type) -> None:
    """Raise `TypeError`, as for a parameter that a function does not have."""
    unknown = options.keys() - shape.__annotations__.keys()
    if unknown:
        raise TypeError(f"{call}: no option {sorted(unknown)}; it takes {sorted(shape.__annotations__)}")
