"""Lambda handlers of fan-outs. Each parses its event, makes one call, and returns the response.

Objects in the bucket invoke splitter; the queue of chunks invokes chunk_worker, and its dead-letter queue dead_letter;
an EventBridge rule invokes fanout_sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote_plus

import structlog

from headgate.aws.fanout_container import FanoutContainer, fanout_container
from headgate.aws.invocation import Context, Event, handle

T = TypeVar("T")
_log = structlog.get_logger(__name__)


def splitter(event: Event, context: Context) -> Event:
    """Split the fan-outs of manifests that were put into the bucket."""

    def split(container: FanoutContainer) -> list[str]:
        run_ids = []
        for record in event["Records"]:
            # Keys are encoded as in a form.
            bucket, key = record["s3"]["bucket"]["name"], unquote_plus(record["s3"]["object"]["key"])
            fanout = container.split(bucket, key, record["s3"]["object"].get("sequencer", ""))
            _log.info("manifest split", key=key, run_id=fanout.run_id, chunks=fanout.chunks_total)
            run_ids.append(fanout.run_id)
        return run_ids

    return {"run_ids": _handle("splitter", context, split)}


def chunk_worker(event: Event, context: Context) -> Event:
    """Run chunks, and report the messages of those that are to run again or for which no time is left."""
    answer: Event = _handle("chunk-worker", context, lambda container: container.chunks(event, context))
    return answer


def dead_letter(event: Event, context: Context) -> Event:
    """Record dead letters on their chunks, and report those that stay in the queue."""
    left = _handle("dead-letter", context, lambda container: container.record(event["Records"]))
    for message_id, reason in left.items():
        _log.warning("dead letter not recorded", message_id=message_id, reason=reason)
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in left]}


def fanout_sweep(event: Event, context: Context) -> Event:
    """Maintain the fan-outs that have not ended."""
    del event
    return {"fanouts": _handle("fanout-sweep", context, FanoutContainer.sweep)}


def _handle(function: str, context: Context, call: Callable[[FanoutContainer], T]) -> T:
    def run() -> T:
        container = fanout_container()
        with container.metrics.of(function):
            return call(container)

    return handle(function, context, run)
