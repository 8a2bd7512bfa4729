"""Fields of a distributed Map: the workflow evaluates them into the messages for the activities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from headgate.asl.errors import runtime_error
from headgate.asl.expressions.scope import Evaluator, Json, Member
from headgate.asl.map.item_readers import ItemReading, items_in
from headgate.asl.map.items import batch_overhead
from headgate.asl.map.messages import FailureTolerance, ItemSelection, MapRunOrder, SplitOrder
from headgate.asl.map.results import ResultWriting
from headgate.asl.model.definition import BatcherSpec, ExecutionType, MapSpec
from headgate.asl.runtime.parallel import whole_number
from headgate.asl.runtime.state_visit import StateVisit

if TYPE_CHECKING:
    from headgate.asl.runtime.execution_request import ExecutionRequest

# The default MaxConcurrency. STANDARD iterations wait in the store; EXPRESS ones need threads.
STANDARD_CONCURRENCY: Final = 1_000
EXPRESS_CONCURRENCY: Final = 40


def items_of(visit: StateVisit, spec: MapSpec, input: Json) -> list[Json] | None:
    """Return the items in the input, or None if an ItemReader provides them. Raises `StateError`."""
    if spec.reader is not None:
        return None
    items = input if spec.items is None else spec.items(visit.scope(input))
    try:
        return list(items_in(items, f"The items of the Map state '{visit.state.name}'"))
    except ValueError as exc:
        raise visit.field_error("Items", str(exc)) from None


def order_of(request: ExecutionRequest, visit: StateVisit, spec: MapSpec, input: Json) -> MapRunOrder:
    """Return the settings that all iterations share. Raises `StateError`."""
    is_express = spec.execution_type is ExecutionType.EXPRESS
    limit = EXPRESS_CONCURRENCY if is_express else STANDARD_CONCURRENCY
    concurrency = whole_number(spec.concurrency_max, visit, "MaxConcurrency")
    count = spec.tolerated_failures
    return MapRunOrder(
        run_id=visit.frame.map_run,
        machine=f"{request.machine}/{spec.label or visit.state.name}",
        definition=msgspec.json.encode(spec.processor_definition).decode(),
        is_express=is_express,
        is_batched=spec.batcher is not None,
        batch_input=_batch_input(visit, spec.batcher, input),
        concurrency=min(concurrency or limit, limit),
        tolerance=FailureTolerance(
            None if count is None else whole_number(count, visit, "ToleratedFailureCount"),
            _percentage(spec.tolerated_failure_percentage, visit),
        ),
        limits=request.limits,
        is_routed=request.is_routed,
        case=request.case,
    )


def split_order_of(
    definition: str, visit: StateVisit, spec: MapSpec, input: Json, order: MapRunOrder, items: list[Json] | None
) -> SplitOrder:
    """Return the input of the split. Raises `StateError`."""
    selection = None
    if spec.selector is not None:
        selection = ItemSelection(
            definition, visit.state.name, input, visit.frame.input, visit.context, visit.variables
        )
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


def writing_of(visit: StateVisit, spec: MapSpec, input: Json) -> ResultWriting:
    """Return the evaluated ResultWriter. Raises `StateError`."""
    writer = spec.writer
    if writer is None:
        return ResultWriting()
    parameters = {} if writer.parameters is None else writer.parameters(visit.scope(input))
    config = writer.config if isinstance(writer.config, dict) else {}
    return ResultWriting(writer.resource, parameters if isinstance(parameters, dict) else {}, config)


def _batch_input(visit: StateVisit, batcher: BatcherSpec | None, input: Json) -> Json:
    if batcher is None or batcher.batch_input is None:
        return None
    return batcher.batch_input(visit.scope(input))


def _batch_limits(visit: StateVisit, batcher: BatcherSpec | None, order: MapRunOrder) -> tuple[int, int]:
    """Return the maximum of items and of their bytes in a batch; 0 is unlimited."""
    if batcher is None:
        return 0, 0
    limit = order.limits.data_bytes_max
    requested = whole_number(batcher.bytes_max, visit, "MaxInputBytesPerBatch")
    # A batch is the input of an execution, so its limit applies too.
    bytes_max = min(requested or limit, limit) - batch_overhead(order.batch_input)
    if bytes_max <= 0:
        raise runtime_error(f"The BatchInput of the state '{visit.state.name}' leaves no room for items")
    return whole_number(batcher.items_max, visit, "MaxItemsPerBatch"), bytes_max


def _reading(visit: StateVisit, spec: MapSpec, input: Json) -> ItemReading | None:
    reader = spec.reader
    if reader is None:
        return None
    parameters = reader.parameters(visit.scope(input))
    if not isinstance(parameters, dict):
        raise runtime_error(f"The ItemReader of the state '{visit.state.name}' must have an object as its parameters")
    config = reader.config if isinstance(reader.config, dict) else {}
    return ItemReading(reader.resource, parameters, config, whole_number(reader.items_max, visit, "MaxItems"))


def _percentage(field: Evaluator | None, visit: StateVisit) -> float | None:
    if field is None:
        return None
    value = field(visit.scope(visit.selected_input()))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= 100:
        name = "ToleratedFailurePercentage"
        raise visit.field_error(name, f"The {name} of the state '{visit.state.name}' must be a number up to 100")
    return float(value)
