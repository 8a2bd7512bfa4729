"""HTTP tracker: records attempts at chunks over the API of a server.

Every request may be sent twice: the worker chooses the token of its claim, so that a repeated start returns the same
claim, and a repeated end finds the chunk ended under that token.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.durable.remote.exchange import Request, json_body, path_of
from headgate.durable.remote.sync_client import Connection
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.tracking import Claim, Start
from headgate.fanout.model.rows import (
    ERROR_CHARS_MAX,
    SLOW_LANE,
    WIDTH_MIN,
    Chunk,
    Fanout,
    Policy,
    dump_policy,
    sort_key,
    timestamp_ms,
)
from headgate.fanout.model.states import Admission, ChunkStatus, Disposition, FanoutStatus
from headgate.ids import IdMaker

_NAME_CHARS_MAX: Final = 200
A = TypeVar("A")


class _Started(Struct, frozen=True):
    """The part of the answer to a start that the worker needs. Servers may answer with more."""

    admission: Admission
    token: str = ""
    attempt: int = 0
    lease_expires_at: str | None = None
    group: str = ""
    handler: str | None = None
    queue_url: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: float | None = None
    heartbeat_seconds: float | None = None
    lane: str = ""
    start: int = 0
    item_count: int = 0
    input_key: str = ""
    input: Raw = msgspec.field(default_factory=Raw)
    places: list[int] = []
    is_rerun: bool = False
    items: list[Any] | None = None


class _Beaten(Struct, frozen=True):
    cancelled: bool
    lease_expires_at: str


class _Ended(Struct, frozen=True):
    status: ChunkStatus
    disposition: Disposition
    retry_at: str | None = None


class HttpTracker:
    """Records attempts over HTTP. Safe to use from many threads."""

    def __init__(self, connection: Connection, ids: IdMaker) -> None:
        self._connection = connection
        self._ids = ids

    def start(
        self,
        run_id: str,
        chunk_id: str,
        *,
        worker: str,
        receive_count: int = 0,
        message_id: str | None = None,
        lease_seconds: float | None = None,
    ) -> Start:
        """Start an attempt at a chunk if it may run now. The rows of the claim have what the worker needs."""
        body = {
            "worker": worker[:_NAME_CHARS_MAX],
            "receive_count": receive_count,
            "message_id": message_id,
            "lease_seconds": lease_seconds,
            "token": self._ids.ulid(),
        }
        started = self._post((run_id, chunk_id), "start", body, _Started)
        if started.admission is not Admission.RUN:
            return Start(started.admission)
        return Start(Admission.RUN, Claim(_fanout(run_id, started), _chunk(run_id, chunk_id, started), started.items))

    def heartbeat(self, claim: Claim, *, items_done: int | None = None, lease_seconds: float | None = None) -> Claim:
        """Extend the lease and record the progress. The fan-out of the claim says whether it is cancelled."""
        body = {"token": claim.chunk.token, "items_done": items_done, "lease_seconds": lease_seconds}
        beaten = self._post(_address(claim), "heartbeat", body, _Beaten)
        cancelled_at = beaten.lease_expires_at if beaten.cancelled else None
        chunk = replace(claim.chunk, lease_expires_at=beaten.lease_expires_at)
        return replace(claim, fanout=replace(claim.fanout, cancelled_at=cancelled_at), chunk=chunk)

    def complete(self, claim: Claim, result: AttemptResult) -> Chunk:
        """Complete the chunk. The row that is returned has its status."""
        body = {
            "token": claim.chunk.token,
            "output": None if result.output is None else Raw(result.output.encode()),
            "output_key": result.output_key,
            "item_errors": dict(result.item_errors),
            "deferred": list(result.deferred),
        }
        return self._end(claim, "complete", body)

    def fail(self, claim: Claim, failure: AttemptFailure) -> Chunk:
        """Record a failed attempt. The row that is returned has its status, and when it is due again."""
        body = {
            "token": claim.chunk.token,
            "error_class": failure.error_class[:_NAME_CHARS_MAX],
            "message": failure.message[:ERROR_CHARS_MAX],
            "is_final": failure.is_final,
            "item_errors": dict(failure.item_errors),
            "traceback": failure.traceback,
        }
        return self._end(claim, "fail", body)

    def release(self, claim: Claim) -> Chunk:
        """Return the chunk to the queue unfinished; the attempt does not count."""
        return self._end(claim, "release", {"token": claim.chunk.token})

    def now_ms(self) -> int:
        """Return the time of this machine."""
        return int(self._connection.clock.seconds() * 1000)

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def _end(self, claim: Claim, step: str, body: dict[str, Any]) -> Chunk:
        ended = self._post(_address(claim), step, body, _Ended)
        due = None if ended.retry_at is None else f"{timestamp_ms(ended.retry_at)}#"
        return replace(claim.chunk, status=ended.status, disposition=ended.disposition, queue_sk=due)

    def _post(self, address: tuple[str, str], step: str, body: dict[str, Any], answer: type[A]) -> A:
        run_id, chunk_id = address
        path = path_of("fanouts", run_id, "chunks", chunk_id, step)
        return self._connection.call(Request(method="POST", path=path, body=json_body(body)), answer)


def _address(claim: Claim) -> tuple[str, str]:
    return claim.chunk.run_id, claim.chunk.chunk_id


def _fanout(run_id: str, started: _Started) -> Fanout:
    usual = Policy()
    policy = replace(
        usual,
        timeout_seconds=started.timeout_seconds or usual.timeout_seconds,
        heartbeat_seconds=started.heartbeat_seconds,
    )
    return Fanout(
        run_id=run_id,
        sk="RUN",
        group=started.group,
        gsi1_pk=started.group,
        gsi1_sk="",
        created_at="",
        status=FanoutStatus.RUNNING,
        version=0,
        width=WIDTH_MIN,
        shards=0,
        chunk_size=0,
        source="",
        digest="",
        policy=dump_policy(policy),
        params=msgspec.json.encode(started.params).decode() if started.params else None,
        handler=started.handler,
        queue_url=started.queue_url,
    )


def _chunk(run_id: str, chunk_id: str, started: _Started) -> Chunk:
    return Chunk(
        run_id=run_id,
        sk=sort_key(chunk_id),
        status=ChunkStatus.IN_PROGRESS,
        disposition=Disposition.RUNNING,
        created_at="",
        start=started.start,
        items=started.item_count or len(started.places),
        token=started.token,
        input_key=started.input_key,
        input=bytes(started.input).decode() or None,
        attempt=started.attempt,
        lease_expires_at=started.lease_expires_at,
        deferred=msgspec.json.encode(started.places).decode() if started.lane == SLOW_LANE else None,
        rerun_items=msgspec.json.encode(started.places).decode() if started.is_rerun else None,
    )
