"""Fan-out Tasks: a fan-out that a Task starts, and one whose end is the end of the Task.

The Resource is fanout:module.function, with `.sync` to wait for the end. The Parameters say what there is to do:
`items` or a `range` of two numbers, and as far as wanted `chunk_size`, `each`, `params`, `group`, `campaign`, the
members of a policy, and with `.sync` also `collect`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.asl.errors import TASK_FAILED, TIMEOUT, StateError, runtime
from headgate.asl.expressions.scope import Json
from headgate.asl.runtime.interpreter import Call
from headgate.durable.model.failures import Failure
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.errors import HeadgateError, UserError
from headgate.fanout import hg_map as mapping
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.results import Summary
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus

_FAILED: Final = "Fanout.FanoutFailedException"
_INVALID: Final = "Fanout.InvalidOrderException"


class FanoutParameters(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a Task asks of a fan-out."""

    items: list[Any] | None = None
    # From, and up to before.
    range: tuple[int, int] | None = None
    chunk_size: int | None = None
    params: dict[str, Any] = {}
    group: str | None = None
    campaign: str | None = None
    # Whether the handler is called with one item at a time, and not with a chunk of them.
    each: bool = True
    # Whether what the handler returned is part of the result of the Task.
    collect: bool = False

    @property
    def policy(self) -> Policy:
        """How the chunks are run."""
        return Policy(**{name: getattr(self, name) for name in Policy.__struct_fields__})

    @property
    def listed(self) -> Any:  # noqa: ANN401 - the items of the user's, or numbers
        """The items, as `mapping.map` takes them."""
        return range(*self.range) if self.range is not None else self.items or []

    @property
    def source(self) -> Source:
        """Where the items come from."""
        return RangeSource(*self.range) if self.range is not None else ListSource(self.items or [])


class FanoutOrder(Struct, frozen=True):
    """The input of the activity that starts a fan-out."""

    fanout: str
    parameters: Json = None
    wait: str = ""


def handler_of(name: str) -> str:
    """Return the handler that a Resource names, as `module:function`. Raises `StateError`."""
    module, _, function = name.rpartition(":" if ":" in name else ".")
    if not module or not function:
        raise runtime(f"fanout:{name}: write fanout:module.function, such as fanout:prices.update")
    return f"{module}:{function}"


def read_parameters(name: str, parameters: Json) -> FanoutParameters:
    """Return what a Task asks for. Raises `StateError`."""
    try:
        given = typed_decode.convert(parameters, FanoutParameters)
    except msgspec.ValidationError as exc:
        raise runtime(f"The Parameters of fanout:{name} cannot be used: {exc}") from exc
    if (given.items is None) == (given.range is None):
        raise runtime(f"The Parameters of fanout:{name} must have one of 'items' and 'range'")
    if given.range is not None and given.range[1] < given.range[0]:
        raise runtime(f"The Parameters of fanout:{name}: 'range' must not end before it begins")
    return given


def start_fanout(splitter: Splitter, order: FanoutOrder, context: ActivityContext) -> Json:
    """Start a fan-out that nobody waits for, and return its id. Another attempt finds it. Raises `StateError`."""
    given = read_parameters(order.fanout, order.parameters)
    source = given.source
    asked = Order(
        group=given.group or order.fanout,
        chunk_size=given.chunk_size or max(1, math.ceil((source.total() or 0) / mapping.CHUNKS_USUAL)),
        handler=handler_of(order.fanout),
        params=given.params,
        policy=given.policy,
        campaign=given.campaign,
        submitted_by=f"execution {context.execution_id}",
    )
    # Of the activity's id, which is longer than a fan-out's may be.
    run_id = f"asl-{hashlib.sha256(context.activity_id.encode()).hexdigest()[:32]}"
    try:
        splitter.split(asked, source, run_id=run_id)
    except UserError as exc:
        raise StateError(_INVALID, str(exc)) from exc
    return {"runId": run_id}


async def run_fanout(call: Call) -> Json:
    """Start a fan-out and return how it ended, from inside of the workflow that runs a machine. Raises `StateError`.

    Its end is a signal that is written in the transaction which closes it. If the Task runs out of time or is
    cancelled, so is the fan-out.
    """
    name = call.target.name
    given = read_parameters(name, call.input)
    try:
        async with asyncio.timeout(call.timeout_seconds):
            mapped = await mapping.map(
                handler_of(name),
                given.listed,
                chunk_size=given.chunk_size,
                each=given.each,
                group=given.group or name,
                params=given.params,
                policy=given.policy,
                campaign=given.campaign,
                collect=given.collect,
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
    told = told_of(mapped.summary)
    if mapped.summary.status != FanoutStatus.SUCCEEDED:
        # As other jobs that are waited for: the error of every one, and as its cause how it ended.
        raise StateError(TASK_FAILED, msgspec.json.encode({"Error": _FAILED, **told}).decode())
    return {**told, "results": mapped.results} if given.collect else told


def told_of(summary: Summary) -> dict[str, Json]:
    """Return how a fan-out ended, as the result of a Task."""
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
