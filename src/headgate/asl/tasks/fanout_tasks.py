"""Fan-out Tasks: start a fan-out, and with `.sync` wait for its end.

The Resource is fanout:module.function. The Parameters are `items` or a `range` of two numbers, and optionally
`chunk_size`, `each`, `params`, `group`, `campaign`, the fields of a policy, and with `.sync` also `collect`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any, Final

import msgspec

from headgate import typed_decode
from headgate.asl.errors import TASK_FAILED, TIMEOUT, StateError, runtime_error
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.activities import FanoutOrder
from headgate.asl.tasks.resources import TaskCall
from headgate.durable.model.failures import Failure
from headgate.durable.model.names import is_built_in
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import HeadgateError, UserError
from headgate.fanout import hg_map
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.results import Summary
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus

_FAILED: Final = "Fanout.FanoutFailedException"
_INVALID: Final = "Fanout.InvalidOrderException"


class FanoutParameters(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Parameters of a fan-out Task."""

    items: list[Any] | None = None
    # Start, and exclusive end.
    range: tuple[int, int] | None = None
    chunk_size: int | None = None
    params: dict[str, Any] = {}
    group: str | None = None
    campaign: str | None = None
    # Whether the handler receives one item at a time instead of a chunk.
    each: bool = True
    # Whether the handlers' return values are part of the Task's result.
    collect: bool = False

    @property
    def policy(self) -> Policy:
        """The policy of the fan-out."""
        return Policy(**{name: getattr(self, name) for name in Policy.__struct_fields__})

    @property
    def sequence(self) -> Any:  # noqa: ANN401 - a list of user values, or a range
        """The items, as `hg_map.map` takes them."""
        return range(*self.range) if self.range is not None else self.items or []

    @property
    def source(self) -> Source:
        """The items, as a source of a fan-out."""
        return RangeSource(*self.range) if self.range is not None else ListSource(self.items or [])


def handler_name(name: str) -> str:
    """Return the handler of a Resource as `module:function`. Raises `StateError`."""
    module, _, function = name.rpartition(":" if ":" in name else ".")
    if not module or not function:
        raise runtime_error(f"fanout:{name}: write fanout:module.function, such as fanout:prices.update")
    if is_built_in(f"{module}."):
        raise runtime_error(
            f"fanout:{name}: the modules of Headgate are reserved for Headgate itself; name one of an app"
        )
    return f"{module}:{function}"


def read_parameters(name: str, parameters: Json) -> FanoutParameters:
    """Parse the Parameters of a Task. Raises `StateError`."""
    try:
        read = typed_decode.convert(parameters, FanoutParameters)
    except msgspec.ValidationError as exc:
        raise runtime_error(f"The Parameters of fanout:{name} cannot be used: {exc}") from exc
    if (read.items is None) == (read.range is None):
        raise runtime_error(f"The Parameters of fanout:{name} must have one of 'items' and 'range'")
    if read.range is not None and read.range[1] < read.range[0]:
        raise runtime_error(f"The Parameters of fanout:{name}: 'range' must not end before it begins")
    return read


def start_fanout(splitter: Splitter, order: FanoutOrder, context: ActivityContext) -> Json:
    """Start a fan-out without waiting for it, and return its id. Idempotent by activity id. Raises `StateError`."""
    parameters = read_parameters(order.fanout, order.parameters)
    source = parameters.source
    split_order = Order(
        group=parameters.group or order.fanout,
        chunk_size=parameters.chunk_size or max(1, math.ceil((source.total() or 0) / hg_map.CHUNKS_USUAL)),
        handler=handler_name(order.fanout),
        params=parameters.params,
        policy=parameters.policy,
        campaign=parameters.campaign,
        submitted_by=f"execution {context.execution_id}",
    )
    # Hashed: an activity id is longer than a fan-out id may be.
    run_id = f"asl-{hashlib.sha256(context.activity_id.encode()).hexdigest()[:32]}"
    try:
        splitter.split(split_order, source, run_id=run_id)
    except UserError as exc:
        raise StateError(_INVALID, str(exc)) from exc
    return {"runId": run_id}


async def run_fanout(call: TaskCall) -> Json:
    """Run a fan-out from the workflow that runs a machine, and return its result. Raises `StateError`.

    The fan-out signals its end in the transaction that closes it. A timeout or cancellation of the Task cancels it.
    """
    name = call.target.name
    parameters = read_parameters(name, call.input)
    try:
        async with asyncio.timeout(call.timeout_seconds):
            mapped = await hg_map.map(
                handler_name(name),
                parameters.sequence,
                chunk_size=parameters.chunk_size,
                each=parameters.each,
                group=parameters.group or name,
                params=parameters.params,
                policy=parameters.policy,
                campaign=parameters.campaign,
                collect=parameters.collect,
                allow_failures=True,
            )
    except TimeoutError:
        raise StateError(
            TIMEOUT, f"fanout:{name}: it took longer than {call.timeout_seconds:g} s and is cancelled"
        ) from None
    except UserError as exc:
        raise StateError(_INVALID, str(exc)) from None
    except (HeadgateError, Failure) as exc:
        raise StateError(_FAILED, str(exc)) from None
    result = fanout_result(mapped.summary)
    if mapped.summary.status != FanoutStatus.SUCCEEDED:
        # As for every `.sync` job: States.TaskFailed, with the job's description as the cause.
        raise StateError(TASK_FAILED, msgspec.json.encode({"Error": _FAILED, **result}).decode())
    return {**result, "results": mapped.results} if parameters.collect else result


def fanout_result(summary: Summary) -> dict[str, Json]:
    """Return the summary of a fan-out as the result of a Task."""
    return {
        "runId": summary.run_id,
        "status": summary.status,
        "chunks": summary.chunks,
        "completed": summary.completed,
        "failed": summary.failed,
        "cancelled": summary.cancelled,
        "items": summary.items,
        "itemsOk": summary.items_ok,
        "itemsFailed": summary.items_failed,
    }
