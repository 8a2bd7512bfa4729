"""Map results: what the iterations of a distributed Map came to, as the state's result or as files in blobs.

The files are those that Step Functions writes: `manifest.json`, and for the iterations that succeeded, failed or were
not begun one or more of `SUCCEEDED_0.json`, `FAILED_0.json` and `PENDING_0.json`. They are in the folder
`<Prefix>/<map run>` of the bucket, which is a folder of blobs (see `item_readers`).
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
from headgate.asl.map.ledger import endings_of, inputs_of
from headgate.asl.map.messages import Ending, MapOrder
from headgate.durable.model import payload
from headgate.errors import FatalError, UserError
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Chunk
from headgate.store.blobs.folder import Blobs

MANIFEST: Final = "manifest.json"
# Step Functions cuts its files at 5 GB; ours are put together in memory.
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_PUT: Final = "s3:putObject"


class Transformation(enum.StrEnum):
    """What becomes of what an iteration ended with."""

    NONE = "NONE"
    COMPACT = "COMPACT"
    FLATTEN = "FLATTEN"


class Status(enum.StrEnum):
    """How an iteration ended, and the name of its files."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    PENDING = "PENDING"


class Writing(Struct, frozen=True, omit_defaults=True):
    """What a ResultWriter comes to once its fields are evaluated. Without a resource nothing is written."""

    resource: str | None = None
    parameters: Mapping[str, Json] = {}
    config: Mapping[str, Json] = {}

    @property
    def transformation(self) -> Transformation:
        """What to make of the outputs: by default all that is known where they are written, and else the outputs."""
        default = Transformation.NONE if self.resource is not None else Transformation.COMPACT
        return Transformation(self.config.get("Transformation", default))

    @property
    def is_lines(self) -> bool:
        """Whether each result has a line of its own."""
        return self.config.get("OutputType") == "JSONL"


class Iterated(Struct, frozen=True):
    """An iteration as it stands when its map run has ended."""

    status: Status
    execution_id: str
    input: Json
    chunk: Chunk
    ending: Ending | None

    def record(self, machine: str) -> dict[str, Json]:
        """Return all that is known of it, as Step Functions writes it."""
        record: dict[str, Json] = {
            "ExecutionArn": self.execution_id,
            "Input": _text(self.input),
            "InputDetails": {"Included": True},
            "Name": self.execution_id,
            "OutputDetails": {"Included": True},
            "RedriveCount": self.chunk.redrives,
            "RedriveStatus": "NOT_REDRIVABLE" if self.status is Status.SUCCEEDED else "REDRIVABLE_BY_MAP_RUN",
            "StartDate": self.chunk.started_at,
            "StateMachineArn": machine,
            "Status": self.status.value,
            "StopDate": self.chunk.completed_at,
        }
        if self.ending is not None and self.ending.error is None:
            record["Output"] = _text(self.ending.output)
        elif self.ending is not None:
            record |= {"Error": self.ending.error, "Cause": self.ending.cause}
        return dict(sorted(record.items()))


class MapResults:
    """Puts together what map runs came to."""

    def __init__(self, queries: FanoutQueries, blobs: Blobs) -> None:
        self._queries = queries
        self._blobs = blobs

    def collected(self, order: MapOrder, writing: Writing) -> Json:
        """Return what the iterations ended with, in the order of the items. Raises `StateError` if it is too large.

        What failed and was tolerated is there with all that is known of it, as Step Functions documents it.
        """
        results: list[Json] = []
        size = 0
        for iterated in self._iterated(order):
            for result in _transformed(iterated, order.machine, writing.transformation):
                results.append(result)
                size += len(msgspec.json.encode(result)) + 1
                if size > order.limits.data_bytes_max:
                    raise StateError(
                        DATA_LIMIT_EXCEEDED,
                        "The Map state returned a result with a size exceeding the maximum number of bytes service "
                        "limit. Write it to a bucket with ResultWriter.",
                    )
        return "\n".join(map(_text, results)) if writing.is_lines else results

    def written(self, order: MapOrder, writing: Writing) -> Json:
        """Write what the iterations came to, and return where the manifest is. Raises `StateError`."""
        bucket, prefix = writing.parameters.get("Bucket"), writing.parameters.get("Prefix", "")
        if not (writing.resource or "").endswith(_PUT) or not isinstance(bucket, str) or not isinstance(prefix, str):
            raise StateError(
                RESULT_WRITER_FAILED,
                f"results are written with {_PUT}, a Bucket and a Prefix, not {writing.parameters}",
            )
        folder = "/".join(filter(None, (prefix.strip("/"), order.run_id)))
        files = {status: _Files(self._blobs, bucket, folder, status, writing) for status in Status}
        try:
            for iterated in self._iterated(order):
                for result in _transformed(iterated, order.machine, writing.transformation):
                    files[iterated.status].add(result)
            manifest = {
                "DestinationBucket": bucket,
                "MapRunArn": order.run_id,
                "ResultFiles": {status.value: files[status].closed() for status in Status},
            }
            self._blobs.put(blob_name(bucket, f"{folder}/{MANIFEST}"), msgspec.json.encode(manifest))
        except (UserError, FatalError) as exc:
            raise StateError(RESULT_WRITER_FAILED, f"bucket {bucket}, folder {folder}: {exc}") from exc
        return {
            "MapRunArn": order.run_id,
            "ResultWriterDetails": {"Bucket": bucket, "Key": f"{folder}/{MANIFEST}"},
        }

    def _iterated(self, order: MapOrder) -> Iterator[Iterated]:
        for chunk in self._queries.every_chunk(order.run_id):
            inputs = inputs_of(order, chunk)
            endings = endings_of(chunk) or [None] * len(inputs)
            for place, (input, ending) in enumerate(zip(inputs, endings, strict=True)):
                status = Status.PENDING
                if ending is not None:
                    status = Status.SUCCEEDED if ending.error is None else Status.FAILED
                name = iteration_name(order, chunk, place)
                yield Iterated(status, name, input, chunk, ending)


class _Files:
    """The files of the iterations that ended alike, written as they fill."""

    def __init__(self, blobs: Blobs, bucket: str, folder: str, status: Status, writing: Writing) -> None:
        self._blobs = blobs
        self._bucket = bucket
        self._stem = f"{folder}/{status}"
        self._is_lines = writing.is_lines
        self._parts: list[bytes] = []
        self._size = 0
        self._made: list[dict[str, Any]] = []

    def add(self, result: Json) -> None:
        part = bytes(payload.encode(result, what="result"))
        if self._parts and self._size + len(part) > FILE_BYTES_MAX:
            self._write()
        self._parts.append(part)
        self._size += len(part) + 1

    def closed(self) -> list[dict[str, Any]]:
        """Return what the manifest says of the files."""
        if self._parts:
            self._write()
        return self._made

    def _write(self) -> None:
        content = b"\n".join(self._parts) if self._is_lines else b"[" + b",".join(self._parts) + b"]"
        key = f"{self._stem}_{len(self._made)}.{'jsonl' if self._is_lines else 'json'}"
        self._blobs.put(blob_name(self._bucket, key), content)
        self._made.append({"Key": key, "Size": len(content)})
        self._parts, self._size = [], 0


def iteration_name(order: MapOrder, chunk: Chunk, place: int) -> str:
    """Return what an iteration is called: by its execution, or in memory by its item."""
    if not order.is_express and chunk.log_ref is not None:
        return chunk.log_ref
    return f"{order.run_id}:{chunk.start + place}"


def _transformed(iterated: Iterated, machine: str, transformation: Transformation) -> list[Json]:
    ending = iterated.ending
    if transformation is Transformation.NONE or ending is None or ending.error is not None:
        return [iterated.record(machine)]
    if transformation is Transformation.FLATTEN and isinstance(ending.output, list):
        return ending.output
    return [ending.output]


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()
