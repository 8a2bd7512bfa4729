"""Branches: the states that run machines of their own, Parallel and the inline Map.

Lanes: works that go beside each other in an execution, of which none outlives the state that began them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headgate.asl.errors import StateError
from headgate.asl.expressions.scope import Evaluator, Json, Member
from headgate.asl.model.definition import Language, Machine, MapSpec, ParallelSpec
from headgate.asl.runtime.resume_point import Frame
from headgate.asl.runtime.state_visit import Lane, Visit

if TYPE_CHECKING:
    from headgate.asl.runtime.interpreter import Run


async def all_done(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all works. The first that fails ends the rest and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        # Whoever failed or was cancelled: nobody is left running, and nobody's end goes unheard.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# Without a MaxConcurrency, Step Functions runs this many iterations of an inline Map at once.
INLINE_CONCURRENCY: Final = 40


async def run_parallel(run: Run, visit: Visit, spec: ParallelSpec, input: Json) -> Json:
    """Return what the branches ended with, in their order. The first that fails ends the others."""
    lane = visit.lane
    lane.event_id = started_id = run.note("ParallelStateStarted", lane.event_id)

    room = Room(visit, run.limits.data_bytes_max)

    async def branch(place: int) -> None:
        machine = spec.branches[place]
        frame = _frame(visit.frame, place, machine, input)
        begun = Lane(lane.context, visit.variables, started_id)
        try:
            await _end(visit.frame, place, run.machine(machine, frame, begun), room)
        finally:
            # What the state ends with follows from the branch that ended last.
            lane.event_id = begun.event_id

    await _succeed(run, visit, "Parallel", range(len(spec.branches)), branch, len(spec.branches))
    return [visit.frame.outputs[place] for place in range(len(spec.branches))]


async def run_inline_map(run: Run, visit: Visit, spec: MapSpec, input: Json) -> Json:
    """Return what the iterations ended with, in the order of the items. The first that fails ends the others."""
    lane, frame = visit.lane, visit.frame
    items = items_of(visit, spec, input)
    concurrency = whole_number(spec.concurrency_max, visit, "MaxConcurrency") or INLINE_CONCURRENCY
    lane.event_id = run.note("MapStateStarted", lane.event_id, {"length": len(items)})
    started_id = lane.event_id
    room = Room(visit, run.limits.data_bytes_max)

    async def iterate(place: int) -> None:
        details = {"name": visit.state.name, "index": place}
        context = {**lane.context, "Map": {"Item": described(place, items[place])}}
        event_id = run.note("MapIterationStarted", started_id, details)
        iteration = Lane(context, visit.variables, event_id)
        try:
            begun = _frame(frame, place, spec.processor, lambda: selected(visit, spec, input, place, items[place]))
            await _end(frame, place, run.machine(spec.processor, begun, iteration), room)
        except StateError:
            lane.event_id = run.note("MapIterationFailed", iteration.event_id, details)
            raise
        except asyncio.CancelledError:
            run.note("MapIterationAborted", iteration.event_id, details)
            raise
        lane.event_id = run.note("MapIterationSucceeded", iteration.event_id, details)

    await _succeed(run, visit, "Map", range(len(items)), iterate, concurrency)
    return [frame.outputs[place] for place in range(len(items))]


class Room:
    """How much the branches of a state may still end with: together they are one document."""

    def __init__(self, visit: Visit, bytes_max: int) -> None:
        self._visit = visit
        self._bytes_left = bytes_max
        for output in visit.frame.outputs.values():
            self.take(output)

    def take(self, output: Json) -> None:
        """Make room for one more output. Raises `StateError` if there is none."""
        # And a comma, or a bracket.
        self._bytes_left -= len(msgspec.json.encode(output)) + 1
        if self._bytes_left < 1:
            self._visit.check_size([], "a result", 0)


def items_of(visit: Visit, spec: MapSpec, input: Json) -> Sequence[Json]:
    """Return the items of a Map that are in its input. Raises `StateError` if that is no list."""
    items = input if spec.items is None else spec.items(visit.scope(input))
    if isinstance(items, dict) and visit.state.language is Language.JSONATA:
        return [Member(Key=key, Value=value) for key, value in items.items()]
    if not isinstance(items, list):
        cause = f"The items of the Map state '{visit.state.name}' must be a list, not {type(items).__name__}"
        raise visit.wrong("Items", cause)
    return items


def described(place: int, item: Json) -> dict[str, Json]:
    """Return an item as the context object speaks of it."""
    return {"Index": place, **item} if type(item) is Member else {"Index": place, "Value": item}


def selected(visit: Visit, spec: MapSpec, input: Json, place: int, item: Json) -> Json:
    """Return what an iteration is given for an item."""
    if spec.selector is None:
        return item
    scope = visit.scope(input)
    scope.context = {**visit.context, "Map": {"Item": described(place, item)}}
    return spec.selector(scope)


def whole_number(field: Evaluator | None, visit: Visit, name: str) -> int:
    """Return a number of a Map, 0 if it is not given. Raises `StateError` for what is no whole number from 0."""
    value = 0 if field is None else field(visit.scope(visit.selected_input()))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise visit.wrong(name, f"The {name} of the state '{visit.state.name}' must be a whole number from 0")
    return value


def _frame(parent: Frame, place: int, machine: Machine, input: Json | Callable[[], Json]) -> Frame:
    """Return where a branch stands: where it was left, or at its beginning."""
    frame = parent.branches.get(place)
    if frame is None:
        frame = Frame(machine.start_at, input() if callable(input) else input)
        parent.branches[place] = frame
    return frame


async def _end(parent: Frame, place: int, running: Awaitable[Json], room: Room) -> None:
    output = await running
    room.take(output)
    parent.outputs[place] = output
    del parent.branches[place]


async def _succeed(
    run: Run, visit: Visit, kind: str, places: range, work: Callable[[int], Awaitable[None]], lanes_max: int
) -> None:
    lane = visit.lane
    waiting = (place for place in places if place not in visit.frame.outputs)
    try:
        await _in_lanes(waiting, work, min(lanes_max, len(places)))
    except StateError as exc:
        details = {"error": exc.error, "cause": exc.cause}
        lane.event_id = run.note(f"{kind}StateFailed", lane.event_id, details)
        raise
    lane.event_id = run.note(f"{kind}StateSucceeded", lane.event_id)


async def _in_lanes(places: Iterator[int], work: Callable[[int], Awaitable[None]], lanes: int) -> None:
    """Do the work of all places, `lanes` at a time. The first failure ends the rest and is raised."""

    is_failed = False

    async def one_lane() -> None:
        nonlocal is_failed
        for place in places:
            # A lane that never waits would otherwise go on to the last place before it can be told to stop.
            if is_failed:
                return
            try:
                await work(place)
            except BaseException:
                is_failed = True
                raise

    await all_done(one_lane() for _ in range(lanes))
