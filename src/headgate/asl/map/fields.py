"""Map evaluation: what the fields of a distributed Map come to, worked out in the execution that has the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from headgate.asl.errors import runtime
from headgate.asl.expressions.scope import Evaluator, Json, Member
from headgate.asl.map.item_readers import Reading, items_in
from headgate.asl.map.items import batch_overhead
from headgate.asl.map.messages import MapOrder, Selection, SplitOrder, Tolerance
from headgate.asl.map.results import Writing
from headgate.asl.model.definition import BatcherSpec, ExecutionType, MapSpec
from headgate.asl.runtime.parallel import whole_number
from headgate.asl.runtime.state_visit import Visit

if TYPE_CHECKING:
    from headgate.asl.requests import Request

# Without a MaxConcurrency. Executions wait in the store; what runs in memory needs threads.
STANDARD_CONCURRENCY: Final = 1_000
EXPRESS_CONCURRENCY: Final = 40


def items_of(visit: Visit, spec: MapSpec, input: Json) -> list[Json] | None:
    """Return the items that are in the input, or None if a reader has them. Raises `StateError`."""
    if spec.reader is not None:
        return None
    items = input if spec.items is None else spec.items(visit.scope(input))
    try:
        return list(items_in(items, f"The items of the Map state '{visit.state.name}'"))
    except ValueError as exc:
        raise visit.wrong("Items", str(exc)) from None


def order_of(request: Request, visit: Visit, spec: MapSpec, input: Json) -> MapOrder:
    """Return what is the same for all iterations. Raises `StateError`."""
    is_express = spec.execution_type is ExecutionType.EXPRESS
    most = EXPRESS_CONCURRENCY if is_express else STANDARD_CONCURRENCY
    asked = whole_number(spec.concurrency_max, visit, "MaxConcurrency")
    count = spec.tolerated_failures
    return MapOrder(
        run_id=visit.frame.map_run,
        machine=f"{request.machine}/{spec.label or visit.state.name}",
        definition=msgspec.json.encode(spec.processor_definition).decode(),
        is_express=is_express,
        is_batched=spec.batcher is not None,
        batch_input=_batch_input(visit, spec.batcher, input),
        concurrency=min(asked or most, most),
        tolerance=Tolerance(
            None if count is None else whole_number(count, visit, "ToleratedFailureCount"),
            _percentage(spec.tolerated_failure_percentage, visit),
        ),
        limits=request.limits,
    )


def split_order_of(
    definition: str, visit: Visit, spec: MapSpec, input: Json, order: MapOrder, items: list[Json] | None
) -> SplitOrder:
    """Return where the items come from, and how they are split. Raises `StateError`."""
    selection = None
    if spec.selector is not None:
        selection = Selection(definition, visit.state.name, input, visit.frame.input, visit.context, visit.variables)
    items_max, bytes_max = _batch_limits(visit, spec.batcher, order)
    return SplitOrder(
        run_id=order.run_id,
        group=order.machine,
        execution_id=str(visit.context["Execution"]["Id"]),
        is_express=order.is_express,
        is_batched=order.is_batched,
        items=items,
        is_of_object=items is not None and bool(items) and type(items[0]) is Member,
        reading=_reading(visit, spec, input),
        selection=selection,
        item_bytes_max=order.limits.data_bytes_max,
        items_max=items_max,
        bytes_max=bytes_max,
    )


def writing_of(visit: Visit, spec: MapSpec, input: Json) -> Writing:
    """Return where the results go, and in which form. Raises `StateError`."""
    writer = spec.writer
    if writer is None:
        return Writing()
    parameters = {} if writer.parameters is None else writer.parameters(visit.scope(input))
    config = writer.config if isinstance(writer.config, dict) else {}
    return Writing(writer.resource, parameters if isinstance(parameters, dict) else {}, config)


def _batch_input(visit: Visit, batcher: BatcherSpec | None, input: Json) -> Json:
    if batcher is None or batcher.batch_input is None:
        return None
    return batcher.batch_input(visit.scope(input))


def _batch_limits(visit: Visit, batcher: BatcherSpec | None, order: MapOrder) -> tuple[int, int]:
    """Return how many items, and how many bytes of them, an iteration is given at most; 0 is without limit."""
    if batcher is None:
        return 0, 0
    most = order.limits.data_bytes_max
    asked = whole_number(batcher.bytes_max, visit, "MaxInputBytesPerBatch")
    # A batch is the input of an execution, whatever is asked for.
    room = min(asked or most, most) - batch_overhead(order.batch_input)
    if room <= 0:
        raise runtime(f"The BatchInput of the state '{visit.state.name}' leaves no room for items")
    return whole_number(batcher.items_max, visit, "MaxItemsPerBatch"), room


def _reading(visit: Visit, spec: MapSpec, input: Json) -> Reading | None:
    reader = spec.reader
    if reader is None:
        return None
    parameters = reader.parameters(visit.scope(input))
    if not isinstance(parameters, dict):
        raise runtime(f"The ItemReader of the state '{visit.state.name}' must have an object as its parameters")
    config = reader.config if isinstance(reader.config, dict) else {}
    return Reading(reader.resource, parameters, config, whole_number(reader.items_max, visit, "MaxItems"))


def _percentage(field: Evaluator | None, visit: Visit) -> float | None:
    if field is None:
        return None
    value = field(visit.scope(visit.selected_input()))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 100:
        name = "ToleratedFailurePercentage"
        raise visit.wrong(name, f"The {name} of the state '{visit.state.name}' must be a number up to 100")
    return float(value)
