"""Turn spans: the trace of an execution, one span for each turn, below the span of its start.

The context of the start is stored on the execution's row. An execution without one, such as that of a schedule, begins
a trace with its next turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.engine.turn_commit import Source, TurnTransaction
from headgate.durable.model.history import Started
from headgate.durable.model.records import Execution
from headgate.span_export import Attribute, SpanRecord
from headgate.telemetry import Tracing

EXECUTION_ID: Final = "headgate.execution_id"
WORKFLOW: Final = "headgate.workflow"


class TurnSpan(Struct, frozen=True):
    """A turn that is being computed and committed. `links` are the contexts of its messages."""

    context: str
    parent: str
    start_ns: int
    links: tuple[str, ...] = ()
    error: str = ""


class TurnSpans:
    """Makes the spans of the turns of one engine."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock

    def begin(self, row: Execution, sources: Sequence[Source], error: str = "") -> tuple[Execution, TurnSpan]:
        """Return the execution with its trace context, and the span of its next turn."""
        now_ns = self._now_ns()
        parent = row.traceparent
        if not parent:
            parent = self._start(row, sources, now_ns)
            row = replace(row, traceparent=parent)
        return row, TurnSpan(self._tracing.child_of(parent), parent, now_ns, _links(sources), error)

    def end(self, span: TurnSpan, turn: TurnTransaction) -> None:
        """Record the span of a turn that is committed."""
        row = turn.execution
        is_closed = row.status.is_closed
        attributes: dict[str, Attribute] = {"headgate.turn": row.turn if turn.turn is not None else row.turn + 1}
        if is_closed:
            attributes["headgate.status"] = row.status.value
        if span.error:
            attributes["error.type"] = span.error
        is_error = bool(span.error) or (is_closed and row.error is not None)
        ends_ns = self._now_ns()
        labels = (EXECUTION_ID, row.execution_id, WORKFLOW, row.workflow)
        self._tracing.finish(
            SpanRecord(
                "execution.turn", span.context, span.parent, span.start_ns, ends_ns, attributes, is_error, span.links,
                labels,
            )
        )  # fmt: skip

    def _start(self, row: Execution, sources: Sequence[Source], now_ns: int) -> str:
        context = self._tracing.child_of("")
        stored_ms = min((each.at_ms for each in sources if each.at_ms), default=0)
        labels = (EXECUTION_ID, row.execution_id, WORKFLOW, row.workflow)
        start_ns = stored_ms * 1_000_000 or now_ns
        self._tracing.finish(SpanRecord("execution.start", context, "", start_ns, now_ns, {}, labels=labels))
        return context

    def _now_ns(self) -> int:
        return int(self._clock.seconds() * 1_000_000_000)


def _links(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the trace contexts of the messages that a turn consumes. The start is its parent."""
    found: tuple[str, ...] = ()
    for each in sources:
        if each.traceparent and each.traceparent not in found and not isinstance(each.event, Started):
            found = (*found, each.traceparent)
    return found
