"""Parallel and inline Map: run their branches concurrently inside one execution, with a limit on concurrency.

No branch outlives its state: the first failure cancels the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.asl.errors import StateError
from headgate.asl.expressions.scope import Evaluator, Json, Member
from headgate.asl.model.definition import Language, Machine, MapSpec, ParallelSpec
from headgate.asl.runtime.frame import Frame
from headgate.asl.runtime.state_visit import Branch, StateVisit

if TYPE_CHECKING:
    from headgate.asl.runtime.interpreter import MachineRun


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently. The first failure cancels the rest and is raised."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        # No task is left running, and every exception is retrieved.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# The default MaxConcurrency of an inline Map in Step Functions.
INLINE_CONCURRENCY: Final = 40


async def run_parallel(run: MachineRun, visit: StateVisit, spec: ParallelSpec, input: Json) -> Json:
    """Return the outputs of the branches in order. The first failure cancels the other branches."""
    parent = visit.branch
    parent.event_id = started_id = run.record("ParallelStateStarted", parent.event_id)
    budget = OutputBudget(visit, run.limits.data_bytes_max)

    async def run_branch(index: int) -> None:
        machine = spec.branches[index]
        frame = _branch_frame(visit.frame, index, machine, input)
        branch = Branch(parent.context, visit.variables, started_id)
        try:
            await _store_output(visit.frame, index, run.machine(machine, frame, branch), budget)
        finally:
            # The next event of the state follows from the branch that ended last.
            parent.event_id = branch.event_id

    await _run_branches(run, visit, "Parallel", range(len(spec.branches)), run_branch, len(spec.branches))
    return [visit.frame.outputs[index] for index in range(len(spec.branches))]


async def run_inline_map(run: MachineRun, visit: StateVisit, spec: MapSpec, input: Json) -> Json:
    """Return the outputs of the iterations in the order of the items. The first failure cancels the others."""
    parent, frame = visit.branch, visit.frame
    items = items_of(visit, spec, input)
    concurrency = whole_number(spec.concurrency_max, visit, "MaxConcurrency") or INLINE_CONCURRENCY
    parent.event_id = started_id = run.record("MapStateStarted", parent.event_id, {"length": len(items)})
    budget = OutputBudget(visit, run.limits.data_bytes_max)

    async def iterate(index: int) -> None:
        details = {"name": visit.state.name, "index": index}
        context = {**parent.context, "Map": {"Item": item_context(index, items[index])}}
        branch = Branch(context, visit.variables, run.record("MapIterationStarted", started_id, details))
        try:
            inner = _branch_frame(
                frame, index, spec.processor, lambda: iteration_input(visit, spec, input, index, items[index])
            )
            await _store_output(frame, index, run.machine(spec.processor, inner, branch), budget)
        except StateError:
            parent.event_id = run.record("MapIterationFailed", branch.event_id, details)
            raise
        except asyncio.CancelledError:
            run.record("MapIterationAborted", branch.event_id, details)
            raise
        parent.event_id = run.record("MapIterationSucceeded", branch.event_id, details)

    await _run_branches(run, visit, "Map", range(len(items)), iterate, concurrency)
    return [frame.outputs[index] for index in range(len(items))]


class OutputBudget:
    """The bytes left for the outputs of a state's branches, which together are one document."""

    def __init__(self, visit: StateVisit, bytes_max: int) -> None:
        self._visit = visit
        self._bytes_left = bytes_max
        for output in visit.frame.outputs.values():
            self.spend(output)

    def spend(self, output: Json) -> None:
        """Deduct the size of an output. Raises `StateError` if it exceeds the budget."""
        # Plus a comma or a bracket.
        self._bytes_left -= len(msgspec.json.encode(output)) + 1
        if self._bytes_left < 1:
            self._visit.check_size([], "a result", 0)


def items_of(visit: StateVisit, spec: MapSpec, input: Json) -> Sequence[Json]:
    """Return the items of an inline Map. Raises `StateError` if they are not a list."""
    items = input if spec.items is None else spec.items(visit.scope(input))
    if isinstance(items, dict) and visit.state.language is Language.JSONATA:
        return [Member(Key=key, Value=value) for key, value in items.items()]
    if not isinstance(items, list):
        cause = f"The items of the Map state '{visit.state.name}' must be a list, not {type(items).__name__}"
        raise visit.field_error("Items", cause)
    return items


def item_context(index: int, item: Json) -> dict[str, Json]:
    """Return `$$.Map.Item` for an item."""
    return {"Index": index, **item} if type(item) is Member else {"Index": index, "Value": item}


def iteration_input(visit: StateVisit, spec: MapSpec, input: Json, index: int, item: Json) -> Json:
    """Return the input of the iteration of an item."""
    if spec.selector is None:
        return item
    scope = visit.scope(input)
    scope.context = {**visit.context, "Map": {"Item": item_context(index, item)}}
    return spec.selector(scope)


def whole_number(field: Evaluator | None, visit: StateVisit, name: str) -> int:
    """Return a numeric field of a Map, 0 if absent. Raises `StateError` if it is not a whole number of at least 0."""
    value = 0 if field is None else field(visit.scope(visit.selected_input()))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise visit.field_error(name, f"The {name} of the state '{visit.state.name}' must be a whole number from 0")
    return value


def _branch_frame(parent: Frame, index: int, machine: Machine, input: Json | Callable[[], Json]) -> Frame:
    """Return the frame of a branch: the one to resume, or a new one at the branch's first state."""
    frame = parent.branches.get(index)
    if frame is None:
        frame = Frame(machine.start_at, input() if callable(input) else input)
        parent.branches[index] = frame
    return frame


async def _store_output(parent: Frame, index: int, running: Awaitable[Json], budget: OutputBudget) -> None:
    output = await running
    budget.spend(output)
    parent.outputs[index] = output
    del parent.branches[index]


async def _run_branches(
    run: MachineRun,
    visit: StateVisit,
    kind: str,
    indexes: range,
    run_branch: Callable[[int], Awaitable[None]],
    concurrency_max: int,
) -> None:
    branch = visit.branch
    unfinished = (index for index in indexes if index not in visit.frame.outputs)
    try:
        await _run_concurrently(unfinished, run_branch, min(concurrency_max, len(indexes)))
    except StateError as exc:
        details = {"error": exc.error, "cause": exc.cause}
        branch.event_id = run.record(f"{kind}StateFailed", branch.event_id, details)
        raise
    branch.event_id = run.record(f"{kind}StateSucceeded", branch.event_id)


async def _run_concurrently(
    indexes: Iterator[int], run_branch: Callable[[int], Awaitable[None]], concurrency: int
) -> None:
    """Run all branches, `concurrency` at a time. The first failure cancels the rest and is raised."""

    is_failed = False

    async def worker() -> None:
        nonlocal is_failed
        for index in indexes:
            # A worker whose branches never suspend cannot be cancelled: it stops at this flag.
            if is_failed:
                return
            try:
                await run_branch(index)
            except BaseException:
                is_failed = True
                raise

    await run_all(worker() for _ in range(concurrency))
