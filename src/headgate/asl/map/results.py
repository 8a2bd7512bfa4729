"""Results of a distributed Map: collects the outcomes of its iterations as the state's result, or as files in blobs.

The files are those of Step Functions: `manifest.json`, and one or more each of `SUCCEEDED_0.json`, `FAILED_0.json` and
`PENDING_0.json` (iterations that never started). They are in the folder `<Prefix>/<map run>` of the bucket, which is a
folder of blobs (see `item_readers`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.asl.errors import DATA_LIMIT_EXCEEDED, RESULT_WRITER_FAILED, StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.map.item_readers import blob_name
from headgate.asl.map.ledger import inputs_of, outcomes_of
from headgate.asl.map.messages import IterationOutcome, MapRunOrder
from headgate.durable.model import payload
from headgate.errors import FatalError, UserError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Chunk
from headgate.store.blobs.folder import Blobs

MANIFEST: Final = "manifest.json"
# Step Functions splits its files at 5 GB; these are built in memory.
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_PUT: Final = "s3:putObject"


class Transformation(enum.StrEnum):
    """How the outcome of an iteration is written."""

    NONE = "NONE"
    COMPACT = "COMPACT"
    FLATTEN = "FLATTEN"


class IterationStatus(enum.StrEnum):
    """The status of an iteration, and the name of its files."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PENDING = "PENDING"


class ResultWriting(Struct, frozen=True, omit_defaults=True):
    """An evaluated ResultWriter. Without a resource nothing is written."""

    resource: str | None = None
    parameters: Mapping[str, Json] = {}
    config: Mapping[str, Json] = {}

    @property
    def transformation(self) -> Transformation:
        """The transformation: by default NONE for files, COMPACT for the state's result."""
        default = Transformation.NONE if self.resource is not None else Transformation.COMPACT
        return Transformation(self.config.get("Transformation", default))

    @property
    def is_lines(self) -> bool:
        """Whether the output is JSON lines."""
        return self.config.get("OutputType") == "JSONL"


class IterationResult(Struct, frozen=True):
    """An iteration of a map run that has ended."""

    status: IterationStatus
    execution_id: str
    input: Json
    chunk: Chunk
    outcome: IterationOutcome | None

    def record(self, machine: str) -> dict[str, Json]:
        """Return the full record, as Step Functions writes it."""
        record: dict[str, Json] = {
            "ExecutionArn": self.execution_id,
            "Input": _text(self.input),
            "InputDetails": {"Included": True},
            "Name": self.execution_id,
            "OutputDetails": {"Included": True},
            "RedriveCount": self.chunk.redrives,
            "RedriveStatus": "NOT_REDRIVABLE" if self.status is IterationStatus.SUCCEEDED else "REDRIVABLE_BY_MAP_RUN",
            "StartDate": self.chunk.started_at,
            "StateMachineArn": machine,
            "Status": self.status.value,
            "StopDate": self.chunk.completed_at,
        }
        if self.outcome is not None and self.outcome.error is None:
            record["Output"] = _text(self.outcome.output)
        elif self.outcome is not None:
            record |= {"Error": self.outcome.error, "Cause": self.outcome.cause}
        return dict(sorted(record.items()))


class MapResults:
    """Collects the results of map runs."""

    def __init__(self, queries: FanoutQueries, blobs: Blobs) -> None:
        self._queries = queries
        self._blobs = blobs

    def collected(self, order: MapRunOrder, writing: ResultWriting) -> Json:
        """Return the results in the order of the items. Raises `StateError` if they are too large.

        A tolerated failure is included as its full record, as Step Functions documents it.
        """
        results: list[Json] = []
        size = 0
        for iteration in self._iterations(order):
            for result in _transformed(iteration, order.machine, writing.transformation):
                results.append(result)
                size += len(msgspec.json.encode(result)) + 1
                if size > order.limits.data_bytes_max:
                    raise StateError(
                        DATA_LIMIT_EXCEEDED,
                        "The Map state returned a result with a size exceeding the maximum number of bytes service "
                        "limit. Write it to a bucket with ResultWriter.",
                    )
        return "\n".join(map(_text, results)) if writing.is_lines else results

    def written(self, order: MapRunOrder, writing: ResultWriting) -> Json:
        """Write the results to files, and return the location of the manifest. Raises `StateError`."""
        bucket, prefix = writing.parameters.get("Bucket"), writing.parameters.get("Prefix", "")
        if not (writing.resource or "").endswith(_PUT) or not isinstance(bucket, str) or not isinstance(prefix, str):
            raise StateError(
                RESULT_WRITER_FAILED,
                f"results are written with {_PUT}, a Bucket and a Prefix, not {writing.parameters}",
            )
        folder = "/".join(filter(None, (prefix.strip("/"), order.run_id)))
        files = {status: _Files(self._blobs, bucket, folder, status, writing) for status in IterationStatus}
        try:
            for iteration in self._iterations(order):
                for result in _transformed(iteration, order.machine, writing.transformation):
                    files[iteration.status].add(result)
            manifest = {
                "DestinationBucket": bucket,
                "MapRunArn": order.run_id,
                "ResultFiles": {status.value: files[status].close() for status in IterationStatus},
            }
            self._blobs.put(blob_name(bucket, f"{folder}/{MANIFEST}"), msgspec.json.encode(manifest))
        except (UserError, FatalError) as exc:
            raise StateError(RESULT_WRITER_FAILED, f"bucket {bucket}, folder {folder}: {exc}") from exc
        return {
            "MapRunArn": order.run_id,
            "ResultWriterDetails": {"Bucket": bucket, "Key": f"{folder}/{MANIFEST}"},
        }

    def _iterations(self, order: MapRunOrder) -> Iterator[IterationResult]:
        for chunk in self._queries.every_chunk(order.run_id):
            inputs = inputs_of(order, chunk)
            outcomes = outcomes_of(chunk) or [None] * len(inputs)
            for index, (input, outcome) in enumerate(zip(inputs, outcomes, strict=True)):
                status = IterationStatus.PENDING
                if outcome is not None:
                    status = IterationStatus.SUCCEEDED if outcome.error is None else IterationStatus.FAILED
                yield IterationResult(status, iteration_name(order, chunk, index), input, chunk, outcome)


class _Files:
    """The files of one status, each written when it is full."""

    def __init__(self, blobs: Blobs, bucket: str, folder: str, status: IterationStatus, writing: ResultWriting) -> None:
        self._blobs = blobs
        self._bucket = bucket
        self._stem = f"{folder}/{status}"
        self._is_lines = writing.is_lines
        self._parts: list[bytes] = []
        self._size = 0
        self._entries: list[dict[str, Any]] = []

    def add(self, result: Json) -> None:
        part = bytes(payload.encode(result, what="result"))
        if self._parts and self._size + len(part) > FILE_BYTES_MAX:
            self._write()
        self._parts.append(part)
        self._size += len(part) + 1

    def close(self) -> list[dict[str, Any]]:
        """Write the last file, and return the manifest entries of all files."""
        if self._parts:
            self._write()
        return self._entries

    def _write(self) -> None:
        content = b"\n".join(self._parts) if self._is_lines else b"[" + b",".join(self._parts) + b"]"
        key = f"{self._stem}_{len(self._entries)}.{'jsonl' if self._is_lines else 'json'}"
        self._blobs.put(blob_name(self._bucket, key), content)
        self._entries.append({"Key": key, "Size": len(content)})
        self._parts, self._size = [], 0


def iteration_name(order: MapRunOrder, chunk: Chunk, index: int) -> str:
    """Return the name of an iteration: its execution id, or in memory the number of its item."""
    if not order.is_express and chunk.log_ref is not None:
        return chunk.log_ref
    return f"{order.run_id}:{chunk.start + index}"


def _transformed(iteration: IterationResult, machine: str, transformation: Transformation) -> list[Json]:
    outcome = iteration.outcome
    if transformation is Transformation.NONE or outcome is None or outcome.error is not None:
        return [iteration.record(machine)]
    if transformation is Transformation.FLATTEN and isinstance(outcome.output, list):
        return outcome.output
    return [outcome.output]


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()
