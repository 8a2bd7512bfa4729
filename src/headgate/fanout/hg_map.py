"""Mapping: a fan-out as one step of a durable workflow: `await hg.map(handler, items)`.

It runs three activities that every app has: split, cancel and collect. The workflow chooses the fan-out's id, so that a
retry finds it. The end of the fan-out is a signal to the execution, written in the transaction that closes it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.history import ActivityOptions
from headgate.durable.model.retry import Retry
from headgate.durable.sdk.app import App
from headgate.durable.sdk.definitions import Activity
from headgate.durable.sdk.workflow import info, uuid, wait_signal
from headgate.errors import ConflictError, DefinitionError, HeadgateError, NotFoundError, PayloadTooLargeError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.model.results import Summary
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource, RangeSource, Source
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.control import FanoutControl

# Activity names; the dot keeps them apart from users' functions.
SPLIT: Final = "headgate.map.split"
CANCEL: Final = "headgate.map.cancel"
COLLECT: Final = "headgate.map.collect"
CHUNKS_USUAL: Final = 1000
RESULTS_BYTES_MAX: Final = 1024 * 1024


class MapRequest(Struct, frozen=True):
    """The request of a workflow to split a fan-out."""

    run_id: str
    execution_id: str
    handler: str
    chunk_size: int
    group: str
    signal: str
    policy: Policy
    items: list[Any] | None = None
    low: int = 0
    high: int = 0
    params: dict[str, Any] = {}
    campaign: str | None = None

    def source(self) -> Source:
        """Return the source of the items."""
        return RangeSource(self.low, self.high) if self.items is None else ListSource(self.items)


class Mapped(Struct, frozen=True):
    """The summary of a fan-out, and the handler's result for each item (for each chunk, if it takes chunks)."""

    summary: Summary
    results: list[Any] | None


class FanoutFailure(Exception):
    """A fan-out ended without success."""

    def __init__(self, summary: Summary) -> None:
        failed = f"{summary.failed} of {summary.chunks} chunks and {summary.items_failed} items failed"
        failed += f" ({summary.reason})" if summary.reason else ""
        super().__init__(
            f"fan-out {summary.run_id} ended as {summary.status}: {failed}; "
            f"'headgate fanout failures {summary.run_id}' says why"
        )
        self.summary = summary


async def map(  # noqa: PLR0913 - each is a thing that users set
    handler: Callable[..., Any] | str,
    items: Iterable[Any],
    *,
    chunk_size: int | None = None,
    each: bool = True,
    group: str | None = None,
    params: dict[str, Any] | None = None,
    policy: Policy | None = None,
    campaign: str | None = None,
    collect: bool = True,
    allow_failures: bool = False,
) -> Mapped:
    """Run a handler over items as a fan-out, and wait for its end.

    The handler is a module-level function, called in separate processes with one item at a time, or with a list
    of items if `each` is False. Raises `FanoutFailure` unless all succeeded, no more failed than the policy tolerates
    (`tolerated_failures`, `tolerated_failure_share`), or `allow_failures` is set. The result of what failed is None.
    Cancelling the workflow cancels the fan-out.
    """
    me = info()
    run_id = f"map-{uuid()}"
    count, request = _sized(items)
    ordered = MapRequest(
        run_id=run_id,
        execution_id=me.execution_id,
        handler=handler_name(handler),
        chunk_size=chunk_size or max(1, math.ceil(count / CHUNKS_USUAL)),
        group=group or me.workflow,
        signal=f"headgate.map.{run_id}",
        policy=msgspec.structs.replace(policy or Policy(), each=each),
        params=params or {},
        campaign=campaign,
        **request,
    )
    await _split(ordered)
    try:
        payload = await wait_signal(ordered.signal)
    except asyncio.CancelledError:
        await _cancel(run_id)
        raise
    summary = typed_decode.convert(payload, Summary)
    if summary.status != FanoutStatus.SUCCEEDED and not allow_failures:
        raise FanoutFailure(summary)
    return Mapped(summary, await _collect(run_id, each=each) if collect else None)


def handler_name(handler: Callable[..., Any] | str) -> str:
    """Return a function as `module:function`. Raises `DefinitionError` if other processes could not import it."""
    if isinstance(handler, str):
        return handler
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", "")
    if not inspect.isroutine(handler) or module in (None, "__main__") or "<" in name:
        raise DefinitionError(
            f"handler {handler!r}: other processes must find it by name; give a function of a module, "
            "not of the main program and not one made inside another"
        )
    return f"{module}:{name}"


def register(app: App, splitter: Splitter, control: FanoutControl, queries: FanoutQueries) -> None:
    """Register the activities behind `map` with an app."""

    def split(request: MapRequest) -> None:
        order = Order(
            group=request.group,
            chunk_size=request.chunk_size,
            handler=request.handler,
            params=request.params,
            policy=request.policy,
            campaign=request.campaign,
            submitted_by=f"execution {request.execution_id}",
            waiter=request.execution_id,
            waiter_signal=request.signal,
        )
        splitter.split(order, request.source(), run_id=request.run_id)

    def cancel(run_id: str) -> None:
        try:
            control.cancel(run_id, by="its workflow", reason="the workflow that waited for it was cancelled")
        except (ConflictError, NotFoundError):
            # It has ended already, or was never created.
            return

    def collect(run_id: str, *, each: bool) -> list[Any]:
        return collected(queries, run_id, each=each)

    for name, function in ((SPLIT, split), (CANCEL, cancel), (COLLECT, collect)):
        app.activities[name] = _activity(name, function)


def collected(queries: FanoutQueries, run_id: str, *, each: bool) -> list[Any]:
    """Return the handler's results in item order. Raises `PayloadTooLargeError`."""
    results: list[Any] = []
    size = 0
    for chunk in queries.every_chunk(run_id):
        size += len(chunk.output or "")
        if size > RESULTS_BYTES_MAX:
            raise PayloadTooLargeError(
                f"fan-out {run_id}: its results have more than {RESULTS_BYTES_MAX} bytes; "
                "map with collect=False and read them chunk by chunk"
            )
        output = None if chunk.output is None else msgspec.json.decode(chunk.output)
        if each:
            results += output if isinstance(output, list) else [None] * chunk.items
        else:
            results.append(output)
    return results


def _sized(items: Iterable[Any]) -> tuple[int, dict[str, Any]]:
    if isinstance(items, range) and items.step == 1:
        return len(items), {"low": items.start, "high": max(items.start, items.stop)}
    listed = list(items)
    return len(listed), {"items": listed}


def _activity(name: str, function: Callable[..., Any]) -> Activity[..., Any]:
    # A split resumes where it stopped, so that retries are cheap; an invalid request stays invalid.
    retry = Retry(attempts=20, never=(DefinitionError, PayloadTooLargeError))
    return Activity(function, name=name, options=ActivityOptions(retry=retry))


def _declared_split(request: MapRequest) -> None:
    raise _misplaced(request.run_id)


def _declared_cancel(run_id: str) -> None:
    raise _misplaced(run_id)


def _declared_collect(run_id: str, *, each: bool) -> list[Any]:
    del each
    raise _misplaced(run_id)


def _misplaced(run_id: str) -> HeadgateError:
    return DefinitionError(f"fan-out {run_id}: hg.map belongs into a workflow")


# Declarations for workflow code; `register` provides the implementations to the worker's app.
_split: Final = _activity(SPLIT, _declared_split)
_cancel: Final = _activity(CANCEL, _declared_cancel)
_collect: Final = _activity(COLLECT, _declared_collect)
